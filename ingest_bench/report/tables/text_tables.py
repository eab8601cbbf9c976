"""Summaries as text: CSV, JSON, Markdown, and rows for the terminal."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import cast, get_args

from ingest_bench import units
from ingest_bench.analysis.compare import cells, comparison
from ingest_bench.analysis.compare.cells import CellRuns
from ingest_bench.analysis.numbers import histogram
from ingest_bench.analysis.run.columns import COLUMNS
from ingest_bench.analysis.stalls.sentences import OF_STALL
from ingest_bench.model.experiment import RunState
from ingest_bench.model.results import Summary, Value
from ingest_bench.report.tables import changes_table
from ingest_bench.report.tables.words import exact_bytes, gigabytes, short, whole

_HEAD = ("experiment", "run", "replicate", "state", "reason")
# Whether costly probes watched the run: its rates and times then count nowhere.
_INSTRUMENTED = "instrumented"


def summary_csv(summaries: Sequence[Summary]) -> str:
    """`summary.csv`: one row a run, every run. An unavailable number is an empty cell, never 0."""
    columns = [column.name for column in COLUMNS]
    keys = dict.fromkeys(key for summary in summaries for key in summary.levels)
    levels = [key for key in keys if key not in columns]
    rows = [
        [summary.experiment, summary.run, summary.replicate, summary.state, summary.reason]
        + [summary.levels.get(key, "") for key in levels]
        + [_cell(summary.values.get(name)) for name in columns]
        + ["yes" if summary.instrumented else "no"]
        for summary in summaries
    ]
    return csv_text([[*_HEAD, *levels, *columns, _INSTRUMENTED], *rows])


def nodes_csv(summaries: Sequence[Summary]) -> str:
    """`nodes.csv`: one row a node of each run that has several, with what is known of it."""
    found = [(summary, number, values) for summary in summaries for number, values in enumerate(summary.nodes, 1)]
    has = {name for _, _, values in found for name in values}
    columns = [column.name for column in COLUMNS if column.name in has]
    levels = list(dict.fromkeys(key for summary, _, _ in found for key in summary.levels))
    rows = [
        [summary.experiment, summary.run, summary.replicate, summary.state, number]
        + [summary.levels.get(key, "") for key in levels]
        + [_cell(values.get(name)) for name in columns]
        for summary, number, values in found
    ]
    return csv_text([["experiment", "run", "replicate", "state", "node", *levels, *columns], *rows])


def read_summary_csv(text: str) -> list[Summary]:
    """The runs of a `summary.csv`, such as a baseline: states and numbers, without histograms and series.

    ValueError says what is wrong with the file.
    """
    reader = csv.DictReader(io.StringIO(text), restval="")
    try:
        head, rows = reader.fieldnames or [], [(reader.line_num, row) for row in reader]
    except csv.Error as error:
        raise ValueError(f"this is no summary.csv: line {reader.line_num}: {error}") from None
    missing = [name for name in _HEAD if name not in head]
    if missing:
        raise ValueError(f"this is no summary.csv: the column {missing[0]} is missing")
    columns = {column.name for column in COLUMNS}
    levels = [name for name in head if name not in columns and name not in (*_HEAD, _INSTRUMENTED)]
    found = []
    seen = set[str]()
    for number, row in rows:
        if row["state"] not in get_args(RunState):
            raise ValueError(f'line {number}: "{row["state"]}" is no state of a run')
        if not row["replicate"].isdecimal():
            raise ValueError(f'line {number}: replicate: "{row["replicate"]}" is no whole number')
        if row["run"] in seen:
            raise ValueError(f'line {number}: the run "{row["run"]}" is there twice')
        seen.add(row["run"])
        found.append(
            Summary(
                run=row["run"],
                cell=row["run"].rpartition("/")[0],
                replicate=int(row["replicate"]),
                levels={key: row[key] for key in levels},
                state=cast("RunState", row["state"]),
                reason=row["reason"],
                values={name: _value(row.get(name) or "") for name in columns},
                instrumented=row.get(_INSTRUMENTED) == "yes",
                experiment=row["experiment"],
            )
        )
    return found


def histograms_csv(summaries: Sequence[Summary], name: str = "read_bytes", number: str = "reads") -> str:
    """`histograms.csv`: how many reads had a size from lower to upper, both included. Valid runs only."""
    rows = [
        [summary.run, *row]
        for summary in summaries
        if summary.state == "measured"
        for row in histogram.bins(summary.histograms.get(name, {}))
    ]
    return csv_text([["run", "lower", "upper", number], *rows])


def summary_json(summaries: Sequence[Summary]) -> str:
    """`summary.json`: everything, with exact histograms and series, but the stacks, which have files of their own."""
    found = [dataclasses.asdict(dataclasses.replace(summary, stacks={})) for summary in summaries]
    for table in found:
        del table["stacks"]
    return json.dumps(found, indent=1) + "\n"


def csv_text(rows: Sequence[Sequence[object]]) -> str:
    """Rows as CSV with line feeds."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def markdown(rows: Sequence[Sequence[str]], numbers_from: int = 1) -> str:
    """Rows as a Markdown table, the first as its head; columns from `numbers_from` on are aligned to the right."""
    head, *body = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    rule = ["---" if place < numbers_from else "---:" for place in range(len(head))]
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, rule, *body))


def notes(summaries: Sequence[Summary]) -> list[str]:
    """What is to know of runs beside their numbers, a line each. What makes one invalid is its reason."""
    by = {"load": "", OF_STALL: "stall: "}
    return [
        f"{summary.run}: {by.get(remark.probe, f'probe {remark.probe}: ')}{remark.text}"
        for summary in summaries
        for remark in summary.remarks
        if not remark.invalidates
    ]


@dataclass(frozen=True, slots=True)
class Shown:
    """A column of the table for people: its head with the unit, and how a number is written."""

    column: str
    head: str
    text: Callable[[float], str]
    when_some: str = ""
    """Shown only where this column is somewhere not 0: otherwise it is noise."""


SHOWN: tuple[Shown, ...] = (
    Shown("docs_per_s_mean", "docs/s", whole),
    Shown("docs_per_s_p10", "its seconds, p10", whole),
    Shown("docs_per_s_p90", "p90", whole),
    Shown("response_ms_p99", "response p99, ms", short),
    # In a closed loop a user that hangs sends nothing else: of thousands of requests one was slow, and no p99 has it.
    Shown("response_ms_max", "response max, ms", short),
    Shown("response_ok_ms_p99", "p99 of acknowledged, ms", short, when_some="requests_failed"),
    Shown("wire_bytes_p50", "frame, median", exact_bytes),
    Shown("reads", "reads", whole),
    Shown("read_bytes_mean", "mean read", units.format_bytes),
    Shown("gc_pauses", "GC pauses", whole),
    Shown("gc_pauses_per_gb", "pauses/GB", short),
    Shown("gc_pause_ms_total", "paused, ms", short),
    Shown("gc_pause_ms_total_per_gb", "ms/GB", short),
    Shown("full_gcs", "full GCs", whole, when_some="full_gcs"),
    Shown("gc_concurrent_mode_failures", "concurrent mode failures", whole, when_some="gc_concurrent_mode_failures"),
    Shown("gc_promotion_failures", "promotion failures", whole, when_some="gc_promotion_failures"),
    Shown("heap_after_gc_max_bytes", "heap after GC, max", units.format_bytes),
    Shown("largest_allocation_bytes", "largest allocation", units.format_bytes),
    Shown("allocations_100mib", "of 100 MiB and more", whole, when_some="allocations_100mib"),
    Shown("flushes", "flushes", whole, when_some="flushes"),
    Shown("compactions", "compactions", whole, when_some="compactions"),
    Shown("outside_tlab_network_bytes", "outside TLABs by network, GB", gigabytes),
    Shown("outside_tlab_network_bytes_per_gb", "GB/GB", gigabytes),
    Shown("direct_allocations_per_s", "direct buffers/s", whole),
    Shown("direct_allocation_ms_mean", "ms each", short),
    Shown("direct_allocation_ms_max", "longest, ms", short),
    Shown("system_gcs", "System.gc()", whole, when_some="system_gcs"),
    Shown("delivered_per_s", "delivered/s", whole),
    Shown("forwards_per_s", "forwards/s", short),
    Shown("delivery_ms_p50", "accepted to delivered, p50, ms", short),
    Shown("delivery_ms_p99", "p99, ms", short),
    Shown("lost_documents", "lost", whole),
    Shown("delivered_twice", "delivered twice", whole, when_some="delivered_twice"),
    Shown("requests_failed", "failed requests", whole, when_some="requests_failed"),
    Shown("silent_s", "silent, s", whole, when_some="silent_s"),
    Shown("recovery_s", "recovery, s", short),
)


def terminal(summaries: Sequence[Summary]) -> list[list[str]]:
    """A head and one row a cell: the median over its valid runs, with (min..max) when they differ.

    Columns that no run could measure are left out. A cell without a valid run says so instead of numbers, and one whose
    runs all ended out of memory says when, and has the numbers of the time before.
    """
    rows = cells.group(summaries)
    levels = cells.varying(summaries)
    shown = [item for item in SHOWN if _worth(item, rows)]
    head = [*(levels or ["cell"]), "runs", *(item.head for item in shown)]
    body = [
        [
            *([row.levels.get(key, "") for key in levels] or [row.name]),
            runs(row),
            *(spread(row.measured_or_oom.numbers(item.column), item.text) for item in shown),
        ]
        for row in rows
    ]
    return [head, *body]


def spread(numbers: Sequence[float], text: Callable[[float], str]) -> str:
    """The median with (min..max); "" without a number, alone where the ends read the same."""
    if not numbers:
        return ""
    middle, low, high = text(median(numbers)), text(min(numbers)), text(max(numbers))
    return middle if low == high else f"{middle} ({low}..{high})"


def comparisons(summaries: Sequence[Summary]) -> list[list[str]]:
    """A head and a row for each two cells that differ in one factor, and each column that both have.

    The interval is of the relative difference, at 95%; "" where a side has fewer than two runs. What is distinct is so
    beside all others of the table.
    """
    rows = [["column", "from", "to", "runs", "mean from", "mean to", "change", "95% interval", "distinct"]]
    for found in comparison.table(summaries, comparison.COMPARED):
        change = "" if found.relative is None else f"{found.relative:+.1%}"
        runs = f"{found.first_runs}, {found.second_runs}{' in blocks' if found.paired else ''}"
        distinct = {True: "yes", False: "no", None: "one run a side"}[found.is_distinct]
        means = (short(found.first_mean), short(found.second_mean))
        rows.append(
            [found.column, found.first, found.second, runs, *means, change, changes_table.interval(found), distinct]
        )
    return rows


def not_shown(summaries: Sequence[Summary]) -> list[str]:
    """One sentence for each run whose numbers stay out of tables and pictures."""
    return [f"{run.run}: {run.state}{': ' + run.reason if run.reason else ''}" for run in cells.left_out(summaries)]


def _worth(item: Shown, rows: Sequence[CellRuns]) -> bool:
    def numbers(column: str) -> list[float]:
        return [number for row in rows for number in row.measured_or_oom.numbers(column)]

    return bool(numbers(item.column)) and (not item.when_some or any(numbers(item.when_some)))


def runs(row: CellRuns) -> str:
    """How many valid runs a cell has, and how the others ended."""
    others = sorted({_ending(run) for run in row.runs if run.state != "measured"})
    after = spread(row.measured_or_oom.numbers("out_of_memory_after_s"), short)
    until = f", numbers until then ({after} s)" if after and not row.valid else ""
    return f"{len(row.valid)} of {len(row.runs)}: {', '.join(others)}{until}" if others else str(len(row.runs))


def _ending(run: Summary) -> str:
    what = run.values.get("out_of_memory")
    return run.state if run.state != "oom" else f"OOM ({what})" if what else "OOM"


# No count is above 64 bits.
_WHOLE, _NUMBER = re.compile(r"-?[0-9]{1,19}"), re.compile(r"-?[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?")


def _cell(value: Value) -> str:
    if value is None:
        return ""
    # Finer than a nanosecond of a millisecond is arithmetic, not measurement.
    return f"{value:.6f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def _value(text: str) -> Value:
    """A number as `_cell` writes it, or as a spreadsheet does; else a text."""
    if not text:
        return None
    if _WHOLE.fullmatch(text):
        return int(text)
    return float(text) if _NUMBER.fullmatch(text) else text
