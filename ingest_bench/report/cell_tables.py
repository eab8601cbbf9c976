"""Tables with a row for each cell: the main one of every experiment, and those of some topics (`TOPICS`)."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from ingest_bench import units
from ingest_bench.analysis.compare import cells
from ingest_bench.analysis.compare.cells import CellRuns
from ingest_bench.analysis.run import integrity
from ingest_bench.analysis.run.columns import COLUMNS
from ingest_bench.analysis.stalls.attribution import STALL_SOURCE
from ingest_bench.model.results import Summary
from ingest_bench.report import published
from ingest_bench.report.formatting import (
    format_exact_bytes,
    format_gb,
    format_gb_number,
    format_integer,
    format_key,
    format_number,
    format_size,
)
from ingest_bench.report.published import PublishedRow

Rows = list[list[str]]
HOST_KEYS = "host."
"""Prefix of the factors that are settings of the table [host]."""
_FAULT = "fault"


@dataclass(frozen=True, slots=True)
class ShownColumn:
    """A column of a table for people."""

    column: str
    """Name in `summary.csv`; of a computed column, in `PublishedRow.values`."""
    head: str
    """Head with the unit."""
    format: Callable[[float], str]
    meaning: str
    """Definition for the page."""
    only_if: str = ""
    """Shown only if this column is not 0 in some run: otherwise it is noise."""
    compute: Callable[[CellRuns, Sequence[CellRuns]], float | str | None] | None = None
    """Return the value of a cell that is not a column of `summary.csv`, from its row and all rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A table about one subject, with published rows beneath ours where there are some."""

    name: str
    """Of its files: `report/NAME.csv` and `report/NAME.md`."""
    title: str
    """Of its section of the page."""
    columns: tuple[ShownColumn, ...]
    requires: str = ""
    """The table exists only where a cell has this column; empty where it needs none."""
    requires_factor: str = ""
    """The table exists only where a factor whose key begins with this varies."""
    publication: str = ""
    """Where the published rows are from; empty where nothing is published."""
    published_rows: Callable[[CellRuns, Sequence[CellRuns]], Iterable[PublishedRow]]
    is_typical_only: bool = False
    """Medians without the spread and the number of runs, and a CSV of plain numbers."""


FORMATS: Mapping[str, Callable[[float], str]] = {
    "integer": format_integer,
    "number": format_number,
    "ms": lambda value: f"{format_number(value)} ms",
    "s": lambda value: f"{format_number(value)} s",
    "bytes": units.format_bytes,
    "exact bytes": format_exact_bytes,
    "size": format_size,
    "gb": format_gb,
    "gb number": format_gb_number,
}


def _find_sleeps(row: CellRuns, _rows: Sequence[CellRuns]) -> str:
    """Return the sleeps of the first run: counts by length have no median."""
    return next((str(run.values.get("direct_sleeps") or "none") for run in row.measured_or_oom.valid), "")


_COMPUTED: Mapping[str, Callable[[CellRuns, Sequence[CellRuns]], float | str | None]] = {
    "direct_sleeps": _find_sleeps,
    "cap_per_pair": lambda row, _rows: published.cap_per_pair(row),
    "forwards_per_pair": lambda row, _rows: published.forwards_per_pair(row),
    "asynchronous_ratio": published.asynchronous_ratio,
}


def _load_columns(rows: Sequence[Sequence[str]]) -> tuple[ShownColumn, ...]:
    return tuple(
        ShownColumn(column, head, FORMATS[name], MEANINGS[column], "".join(only_if), _COMPUTED.get(column))
        for column, head, name, *only_if in rows
    )


TABLES = tomllib.loads(Path(__file__).with_name("tables.toml").read_text(encoding="utf-8"))
MEANINGS = {column.name: column.meaning for column in COLUMNS} | TABLES["computed"]
CELL_COLUMNS = _load_columns(TABLES["cells"])


_PUBLISHED_ROWS = {
    "es-23185": published.es23185_rows,
    "direct-memory": published.allocation_rows,
    "forwarding": published.forwarding_rows,
}
TOPICS: Mapping[str, Topic] = {
    name: Topic(
        name=name,
        published_rows=_PUBLISHED_ROWS.get(name, lambda _row, _rows: ()),
        **{**table, "columns": _load_columns(table["columns"])},
    )
    for name, table in TABLES["topics"].items()
}


def cell_rows(summaries: Sequence[Summary]) -> Rows:
    """Return a head and one row for each cell: the median over its valid runs, with (min..max) when they differ.

    Columns without any number are left out. A cell without a valid run says so, and one whose runs all ended out of
    memory says when, and has the numbers of the time before.
    """
    rows = cells.group_by_cell(summaries)
    keys = cells.varying_keys(summaries)
    columns = [column for column in CELL_COLUMNS if _is_worth_showing(column, rows)]
    body = [
        [
            *([row.levels.get(key, "") for key in keys] or [row.name]),
            format_runs(row),
            *(format_spread(row.measured_or_oom.numbers(column.column), column.format) for column in columns),
        ]
        for row in rows
    ]
    return [[*(keys or ["cell"]), "runs", *(column.head for column in columns)], *body]


def topic_rows(topic: Topic, summaries: Sequence[Summary]) -> Rows:
    """Return a head and a row for each cell, its published rows beneath it; empty where the topic does not apply."""
    rows, varying = cells.group_by_cell(summaries), cells.varying_keys(summaries)
    if topic.requires and not any(row.measured_or_oom.numbers(topic.requires) for row in rows):
        return []
    if topic.requires_factor and not any(key.startswith(topic.requires_factor) for key in varying):
        return []
    keys = varying or list(summaries[0].levels)
    columns = [column for column in topic.columns if topic.publication or _is_worth_showing(column, rows)]
    source = [""] if topic.publication else []
    runs = [] if topic.is_typical_only else ["runs"]
    table = [[*source, *map(format_key, keys), *runs, *(column.head for column in columns)]]
    for row in rows:
        levels = [row.levels.get(key, "") for key in keys]
        texts = [_format_ours(topic, column, row, rows) for column in columns]
        table.append([*("ours" for _ in source), *levels, *(format_runs(row) for _ in runs), *texts])
        for theirs in topic.published_rows(row, rows):
            levels = [row.levels.get(key, "") if format_key(key) in theirs.conditions else "" for key in keys]
            texts = [_format(column, theirs.values.get(column.column)) for column in columns]
            table.append(["published", *levels, *("" for _ in runs), *texts])
    return table


def topic_csv_rows(topic: Topic, summaries: Sequence[Summary]) -> Sequence[Sequence[object]]:
    """Return the rows of a topic's CSV: those of its table, or plain numbers in the units of `summary.csv`."""
    if not topic.is_typical_only:
        return topic_rows(topic, summaries)
    rows = cells.group_by_cell(summaries)
    table: list[list[object]] = [["source", "cell", *(column.column for column in topic.columns)]]
    for row in rows:
        table.append(["ours", row.name, *(row.measured_or_oom.median(column.column) for column in topic.columns)])
        table += [
            ["published", row.name, *(theirs.values.get(column.column) for column in topic.columns)]
            for theirs in topic.published_rows(row, rows)
        ]
    return table


def acknowledged_rows(summaries: Sequence[Summary]) -> Rows:
    """Return a row for each fault, a column for each combination of other levels; empty where no fault varies."""
    varying = cells.varying_keys(summaries)
    if _FAULT not in varying:
        return []
    others = [key for key in varying if key != _FAULT]
    outcomes: dict[str, dict[str, list[str]]] = {}
    columns: dict[str, None] = {}
    for summary in summaries:
        levels = summary.levels
        names = [levels[key] if key == "target" else f"{format_key(key)} {levels[key]}" for key in others]
        column = ", ".join(names) or "acknowledged documents"
        columns[column] = None
        texts = outcomes.setdefault(summary.levels[_FAULT], {}).setdefault(column, [])
        if (text := _describe_acknowledged(summary)) not in texts:
            texts.append(text)
    body = [[fault, *("; ".join(row.get(column, ())) for column in columns)] for fault, row in outcomes.items()]
    return [[_FAULT, *columns], *body]


def format_spread(numbers: Sequence[float], text: Callable[[float], str]) -> str:
    """Format the median with (min..max), or alone where both ends read the same; "" without a number."""
    if not numbers:
        return ""
    middle, low, high = text(median(numbers)), text(min(numbers)), text(max(numbers))
    return middle if low == high else f"{middle} ({low}..{high})"


def format_runs(row: CellRuns) -> str:
    """Format how many valid runs a cell has, and how the others ended."""
    others = sorted({_format_ending(run) for run in row.runs if run.state != "measured"})
    after = format_spread(row.measured_or_oom.numbers("out_of_memory_after_s"), format_number)
    until = f", numbers until then ({after} s)" if after and not row.valid else ""
    return f"{len(row.valid)} of {len(row.runs)}: {', '.join(others)}{until}" if others else str(len(row.runs))


def describe_missing(row: CellRuns) -> str:
    """Return why a cell has no number: how its runs ended, or that none of them measured it."""
    if row.valid:
        return "not measured"
    return ", ".join(sorted({_format_ending(run) for run in row.runs}))


def list_notes(summaries: Sequence[Summary]) -> list[str]:
    """Return the notes on runs, one line each, without those that make a run invalid: these are its reason."""
    prefixes = {"load": "", STALL_SOURCE: "stall: "}
    return [
        f"{summary.run}: {prefixes.get(note.source, f'probe {note.source}: ')}{note.text}"
        for summary in summaries
        for note in summary.notes
        if not note.invalidates
    ]


def describe_left_out(summaries: Sequence[Summary]) -> list[str]:
    """Return one sentence for each run whose numbers are left out of tables and pictures."""
    return [f"{run.run}: {run.ending}" for run in cells.excluded_runs(summaries)]


def _is_worth_showing(column: ShownColumn, rows: Sequence[CellRuns]) -> bool:
    def numbers(name: str) -> list[float]:
        return [number for row in rows for number in row.measured_or_oom.numbers(name)]

    return bool(numbers(column.column)) and (not column.only_if or any(numbers(column.only_if)))


def _format_ours(topic: Topic, column: ShownColumn, row: CellRuns, rows: Sequence[CellRuns]) -> str:
    if column.compute is not None:
        return _format(column, column.compute(row, rows))
    if not topic.is_typical_only:
        return format_spread(row.measured_or_oom.numbers(column.column), column.format)
    if column.column == "docs_per_s_mean" and row.oom_runs and not row.numbers(column.column):
        return "OOM"
    return _format(column, row.measured_or_oom.median(column.column))


def _format(column: ShownColumn, value: float | str | None) -> str:
    return "" if value is None else value if isinstance(value, str) else column.format(value)


def _format_ending(run: Summary) -> str:
    kind = run.values.get("out_of_memory")
    return run.state if run.state != "oom" else f"OOM ({kind})" if kind else "OOM"


def _describe_acknowledged(run: Summary) -> str:
    """Return what became of the acknowledged documents of one run."""
    if run.state == "inapplicable":
        return f"does not apply: {run.reason}"
    expected, counted = integrity.expected_documents(run.values), run.values.get("documents_counted")
    if run.state in ("measured", "invalid") and expected is not None and isinstance(counted, int):
        # Numbered documents say which are lost; otherwise the difference is a lower bound.
        exact = run.values.get("lost_documents")
        lost = exact if isinstance(exact, int) else max(0, expected - counted)
        if lost:
            return f"{format_integer(lost)} of {format_integer(expected)} lost"
        if run.state == "measured":
            return f"all {format_integer(expected)} there"
    first, *_ = run.reason.splitlines() or [""]
    return "cannot be counted" if run.state == "measured" else f"{run.state}: {first}"
