"""The finding of an experiment, the tiles of its page, and titles of pictures, without a cause that was not measured.

The experiment names the column that answers its question (`headline`). The terminal and the page say the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from ingest_bench.analysis.compare import cells, comparison
from ingest_bench.analysis.compare.cells import CellRuns
from ingest_bench.analysis.compare.comparison import Comparison
from ingest_bench.analysis.run import integrity
from ingest_bench.model.experiment import HEADLINE
from ingest_bench.model.results import Summary
from ingest_bench.report import change_tables, digest
from ingest_bench.report.cell_tables import FORMATS, TABLES
from ingest_bench.report.formatting import describe_level, format_integer, format_key, format_number, format_range

LEAST_RATIO = 1.1
"""Below this ratio two cells count as equal: replicates of one cell differ by a few percent."""
NETWORK_COLUMN = "outside_tlab_network_bytes_per_gb"
"""What the network layer allocated outside TLABs for each GB accepted."""
_READS, _RATE, _PAUSES = "read_bytes_mean", "docs_per_s_mean", "gc_pause_ms_total_per_gb"
# By column: sentence, format, and which value is best ("highest" or "lowest"), if one is.
_SENTENCES: Mapping[str, Sequence[str]] = TABLES["sentences"]
_FORMAT_BY_UNIT = {"bytes": "size", "ms": "ms", "s": "s"}
# The first of these that was measured is in the tile "Heap".
_HEAP_COLUMNS = {HEADLINE: "allocated per GB", _PAUSES: "GC pauses per GB"}


@dataclass(frozen=True, slots=True)
class Tile:
    """One of the answers at the top of the page."""

    title: str
    answer: str
    text: str = ""
    verdict: str = ""


@dataclass(frozen=True, slots=True)
class _Pair:
    """Two cells that differ in one factor alone, in the order of its levels, and the keys that vary."""

    key: str
    rows: tuple[CellRuns, CellRuns]
    varying: Sequence[str]

    @property
    def conditions(self) -> list[str]:
        """Return the levels that both cells have."""
        levels = self.rows[0].levels
        return [f"{format_key(key)} {levels[key]}" for key in self.varying if key != self.key and key in levels]

    def describe(self, column: str) -> str:
        """Return both values with their levels, the smaller first."""
        return " and ".join(self.list_values(column)[:: 1 if self.factor(column) > 1 else -1])

    def list_values(self, column: str) -> list[str]:
        """Return both values with their levels."""
        return [
            f"{format_value(column, row.median(column) or 0.0)} {describe_level(self.key, row.levels[self.key])}"
            for row in self.rows
        ]

    def factor(self, column: str) -> float:
        """Return the second value as a multiple of the first; 0 if that is 0 or either is unknown."""
        first, second = (row.median(column) for row in self.rows)
        return (second or 0.0) / first if first else 0.0

    def compare(self, summaries: Sequence[Summary], column: str) -> tuple[Comparison, str]:
        """Return the comparison of these cells, judged with all others in this column, and its verdict.

        The verdict is "" if the change is distinct, or has none. Of many comparisons one may differ by chance although
        its own interval excludes "no change": then the verdict says of how many.
        """
        names = [row.name for row in self.rows]
        changes = comparison.compare_pairs(summaries, [column])
        change = next(change for change in changes if [change.first, change.second] == names)
        if change.is_distinct is not False or change.interval is None:
            return change, ""
        low, high = change.interval
        judged = sum(other.is_distinct is not None for other in changes)
        return change, "no change seen" if low <= 0 <= high else f"one of {judged} comparisons"


def describe_finding(summaries: Sequence[Summary], column: str = "") -> str:
    """Return the finding: of *column*, else of the experiment's headline, or the next measured one."""
    every = cells.group_by_cell(summaries)
    rows = [row for row in every if row.valid]
    if not rows:
        is_all_oom = {run.state for run in summaries} - {"inapplicable"} == {"oom"}
        return "Every run ended out of memory" if is_all_oom else "No valid run"
    column = column or find_column(summaries)
    begun = [row for row in every if any(run.state != "inapplicable" for run in row.runs)]
    oom = sum(bool(row.oom_runs) and not row.valid for row in begun)
    ending = f". {oom} of {len(begun)} cells ended out of memory" if oom else ""
    measured = [row for row in rows if row.median(column) is not None]
    sentence, *_ = _SENTENCES.get(column, (f"{column}: {{}}", ""))
    if not measured:
        return sentence.format("not measured") + ending
    pair = _find_pair(summaries, measured, column)
    if pair is None:
        values = format_range([row.median(column) or 0.0 for row in measured], partial(format_value, column))
        return sentence.format(values) + ending
    factor, (change, verdict) = pair.factor(column), pair.compare(summaries, column)
    ends = [end + 1 for end in change.relative_interval or ()]
    ratios = [
        ratio if factor > 1 else 1 / ratio if ratio else math.inf
        for ratio in (factor, *sorted(ends, reverse=factor < 1))
    ]
    interval = "1 run per cell" if change.interval is None else ""
    if ends:
        low, high = ratios[1:]
        interval = f"{format_number(low)} {'or more' if high == math.inf else f'to {format_number(high)}'}"
    details = ", ".join(filter(None, (interval, verdict, *pair.conditions)))
    times = f"{ratios[0]:.{0 if ratios[0] >= 10 else 1}f} times"
    return f"{sentence.format(pair.describe(column))}: {times}{f' ({details})' if details else ''}{ending}"


def find_column(summaries: Sequence[Summary]) -> str:
    """Return the column of the finding: the experiment's headline, or the next one that was measured."""
    rows = cells.group_by_cell(summaries)
    return _find_measured(rows, (*(run.headline for run in summaries[:1]), HEADLINE, _READS, _RATE))


def build_tiles(summaries: Sequence[Summary]) -> list[Tile]:
    """Return the answers about heap, stalls and throughput, between the cells of the finding."""
    rows = [row for row in cells.group_by_cell(summaries) if row.valid]
    pair = _find_pair(summaries, rows, find_column(summaries))
    heap = _find_measured(rows, tuple(_HEAP_COLUMNS))
    stalls = digest.describe_stalls(summaries) or "Not measured"
    return [
        _build_tile("Heap", summaries, rows, heap, _HEAP_COLUMNS.get(heap, ""), pair),
        Tile("Stalls", stalls.partition(" of ")[0].rstrip("."), stalls.partition(" of ")[2]),
        _build_tile("Throughput", summaries, rows, _RATE, "documents/s", pair),
    ]


def describe_run(run: Summary) -> str:
    """Return the headline of one run over time: the cost of its faults, or else its response times and pauses."""
    if run.faults:
        kinds = " and ".join(dict.fromkeys(fault.kind for fault in run.faults))
        outage_s = run.values.get("zero_throughput_s") or 0
        return f"{kinds.capitalize()}: {outage_s} s without progress, {_describe_recovery(run)}"
    names = ("docs_per_s_mean", "response_ms_p99", "response_ms_max", "requests_failed")
    docs, p99, slowest, failed = map(run.values.get, names)
    parts = [f"{format_integer(float(docs))} documents/s"] if docs is not None else []
    if p99 is not None:
        parts.append(f"99% {'over' if failed else 'answered'} within {format_number(float(p99))} ms")
    parts += [f"the slowest in {format_number(float(slowest))} ms"] if slowest is not None else []
    parts += [f"{format_integer(float(failed))} requests failed"] if failed else []
    pauses, paused_ms = run.values.get("gc_pauses"), run.values.get("gc_pause_ms_total")
    if isinstance(pauses, int) and isinstance(paused_ms, (int, float)):
        parts.append(f"{format_integer(pauses)} GC pauses, {format_number(paused_ms)} ms in all")
    return ", ".join(parts) or "One run over time"


def _build_tile(
    title: str, summaries: Sequence[Summary], rows: Sequence[CellRuns], column: str, name: str, pair: _Pair | None
) -> Tile:
    """Return the change of a column between two cells with its verdict; without a pair its range over all cells."""
    values = [value for row in rows if (value := row.median(column)) is not None]
    if not values:
        return Tile(title, "Not measured")
    pair = pair if pair and pair.factor(column) else _find_pair(summaries, rows, column)
    if pair is None:
        return Tile(title, f"{format_range(values, partial(format_value, column))}", name)
    factor, (change, verdict) = pair.factor(column), pair.compare(summaries, column)
    answer = (
        f"{factor - 1:+.0%}" if 0.5 < factor < 2 else f"{factor:,.0f} times" if factor >= 10 else f"{factor:.2g} times"
    )
    verdict = "no verdict" if change.is_distinct is None else verdict
    text = f"{name}: {', '.join((' → '.join(pair.list_values(column)), *pair.conditions))}"
    interval = change_tables.format_interval(change) or change_tables.NO_VERDICT
    return Tile(title, ", ".join(filter(None, (answer, verdict))), text, interval)


def _find_measured(rows: Sequence[CellRuns], columns: Sequence[str]) -> str:
    """Return the first of the columns that any cell has, else the last."""
    return next((name for name in columns if any(row.median(name) is not None for row in rows)), columns[-1])


def format_value(column: str, value: float) -> str:
    """Format a value of a column with its unit, where the column has one."""
    words = column.split("_")
    # "docs_per_s" ends with a part of a unit.
    unit = next((word for word in ("bytes", "ms", "s") if word in words and "per" not in words), "")
    default = "gb" if column.endswith("_bytes_per_gb") else _FORMAT_BY_UNIT.get(unit, "number")
    _, name, *_ = _SENTENCES.get(column, ("", default))
    return FORMATS[name](value)


def describe_measure(column: str) -> str:
    """Return the sentence of a column without its values."""
    sentence, *_ = _SENTENCES.get(column, (f"{column}: {{}}",))
    return sentence.format("…")


def find_best(column: str) -> str:
    """Return which value of a column is best: "highest" or "lowest"; "" where neither is."""
    _, _, *best = _SENTENCES.get(column, ("", ""))
    return "".join(best)


def _find_pair(summaries: Sequence[Summary], rows: Sequence[CellRuns], column: str) -> _Pair | None:
    """Return the first factor that makes a difference, and the two cells that differ most in the value by it alone."""
    varying, neighbours = cells.varying_keys(summaries), list(cells.find_neighbours(rows))
    for key in varying:
        pairs = [
            _Pair(key, (first, second), varying)
            for other, first, second in neighbours
            if other == key and key in first.levels and key in second.levels
        ]
        best = max(pairs, key=lambda pair: _distance(pair.factor(column)), default=None)
        if best is not None and _distance(best.factor(column)) >= LEAST_RATIO:
            return best
    return None


def _distance(factor: float) -> float:
    return max(factor, 1 / factor) if factor else 0.0


def _describe_recovery(run: Summary) -> str:
    """Describe whether throughput recovered after the faults of a run."""
    recovery_s, rate = run.values.get("recovery_s"), run.series.get("docs_per_s")
    if recovery_s is not None:
        return f"throughput back {format_number(float(recovery_s))} s after it"
    if rate is None or not any(integrity.throughput_before(rate, run.faults, run.measure_start_ns or 0)):
        return "no throughput before it to compare with"
    return "throughput not back in time"
