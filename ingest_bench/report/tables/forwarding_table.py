"""Forwarding as a table, with the figures beneath our rows that pull request 6394 of Data Prepper published for it."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass

from ingest_bench import units
from ingest_bench.analysis.compare import cells
from ingest_bench.analysis.compare.cells import CellRuns
from ingest_bench.model.results import Summary
from ingest_bench.report.tables import text_tables
from ingest_bench.report.tables.text_tables import Shown
from ingest_bench.report.tables.words import key_text, short, whole

DELIVERED, FORWARDS, CAP = "delivered_per_s", "forwards_per_s", "forwards_cap_per_s"
WAITING, BLOCKING, ASYNCHRONOUS = "waiting", "blocking", "asynchronous"


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """One published figure: a rate of rounds with this batch delay, or how many times faster."""

    figure: str
    batch_delay_ns: int | None
    least: float
    most: float

    @property
    def text(self) -> str:
        """The figure as it was published."""
        return short(self.least) if self.least == self.most else f"{short(self.least)} to {short(self.most)}"


_COLUMNS = (
    Shown("accepted_per_s", "accepted/s", whole),
    Shown(DELIVERED, "delivered/s", whole),
    Shown(FORWARDS, "forwards/s", short),
    Shown("delivery_ms_p50", "accepted to delivered, p50, ms", short),
    Shown("delivery_ms_p99", "p99, ms", short),
    Shown("lost_documents", "lost", whole),
    Shown("delivered_twice", "delivered twice", whole),
)
_BESIDE = ("workers / batch delay", "forwards/s, node to peer", "asynchronous / blocking")


def read(text: str) -> list[Published]:
    """The published figures."""
    return [
        Published(
            figure=row["figure"],
            batch_delay_ns=int(row["batch_delay_ms"]) * 10**6 if row["batch_delay_ms"] else None,
            least=float(row["least"]),
            most=float(row["most"]),
        )
        for row in csv.DictReader(text.splitlines())
    ]


def table(summaries: Sequence[Summary], published: Sequence[Published]) -> list[list[str]]:
    """A head and a row a cell, each with what was published beneath it; empty when no server forwards anything."""
    rows = cells.group(summaries)
    if not any(row.numbers(FORWARDS) for row in rows):
        return []
    keys = cells.varying(summaries) or list(summaries[0].levels)
    made = [["", *map(key_text, keys), "runs", *(shown.head for shown in _COLUMNS), *_BESIDE]]
    for row in rows:
        levels = [row.levels.get(key, "") for key in keys]
        numbers = [text_tables.spread(row.numbers(shown.column), shown.text) for shown in _COLUMNS]
        times = times_faster(row, rows)
        ours = ["" if value is None else short(value) for value in (row_cap(row), rounds_per_s(row), times)]
        made.append(["ours", *levels, text_tables.runs(row), *numbers, *ours])
        theirs = [
            "",
            _text(published, "rounds_per_s", _capped_delay_ns(row)),
            "" if times is None else _text(published, "asynchronous_by_blocking", None),
        ]
        if any(theirs):
            blank = [""] * (len(keys) + 1 + len(_COLUMNS))
            made.append(["published", *blank, *theirs])
    return made


def rounds_per_s(row: CellRuns) -> float | None:
    """The forwards in a second from one node to one other; None where that is not known."""
    forwards, pairs = row.typical(FORWARDS), _pairs(row)
    return forwards / pairs if forwards is not None and pairs else None


def row_cap(row: CellRuns) -> float | None:
    """Workers / batch delay of its nodes, which `rounds_per_s` cannot exceed where the delay is never skipped."""
    cap, pairs = row.typical(CAP), _pairs(row)
    return cap / pairs if cap is not None and pairs else None


def times_faster(row: CellRuns, rows: Sequence[CellRuns]) -> float | None:
    """How many times as much a cell delivers that does not wait as the same one that does; None where one is not."""
    level = next((key for key in row.levels if key_text(key) == WAITING), None)
    if level is None or row.levels[level] != ASYNCHRONOUS:
        return None
    wanted = {**row.levels, level: BLOCKING}
    other = next((one.typical(DELIVERED) for one in rows if one.levels == wanted), None)
    mine = row.typical(DELIVERED)
    return mine / other if mine is not None and other else None


def _pairs(row: CellRuns) -> int:
    """How many pairs of a node and a peer there are."""
    nodes = next((len(run.nodes) for run in row.valid if run.nodes), 0)
    return nodes * (nodes - 1)


def _capped_delay_ns(row: CellRuns) -> int | None:
    """The batch delay of a cell whose cap is as published: 50 rounds a second of a node."""
    cap = row_cap(row)
    delay = next((level for key, level in row.levels.items() if key_text(key) == "batch delay"), None)
    return None if cap is None or delay is None or round(cap) != 50 else units.parse_time_ns(delay)


def _text(published: Sequence[Published], figure: str, delay_ns: int | None) -> str:
    found = (one.text for one in published if one.figure == figure and one.batch_delay_ns == delay_ns)
    return next(found, "")
