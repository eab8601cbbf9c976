"""The one line above a picture: what its numbers say, without a cause that was not measured."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

from ingest_bench.analysis.compare import cells
from ingest_bench.analysis.compare.cells import CellRuns
from ingest_bench.analysis.run import integrity
from ingest_bench.model.results import Summary
from ingest_bench.report.formatting import (
    describe_level,
    format_gb,
    format_integer,
    format_key,
    format_number,
    format_range,
    format_size,
)

LEAST_RATIO = 1.1
"""Below this ratio two cells count as equal: replicates of one cell differ by a few percent."""
NETWORK_COLUMN = "outside_tlab_network_bytes_per_gb"
"""What the network layer allocated outside TLABs for each GB accepted."""
# By picture: column, sentence, format, and the headline without any number.
_COMPARED: Mapping[str, tuple[str, str, Callable[[float], str], str]] = {
    "layers": (
        NETWORK_COLUMN,
        "Allocated outside TLABs by the network, for each GB accepted: {}",
        format_gb,
        "No allocation was measured",
    ),
    "large-allocations": (
        "largest_allocation_bytes",
        "The largest object: {}",
        format_size,
        "No large allocation was recorded",
    ),
    "machine": (
        "docs_per_s_p10",
        "Documents/s in all but the worst tenth of seconds: {}",
        format_integer,
        "No throughput was measured",
    ),
}


def describe_reads(summaries: Sequence[Summary]) -> str:
    """Return the headline of the picture of read sizes, which is also that of the page."""
    rows = [row for row in cells.group_by_cell(summaries) if row.valid]
    if not rows:
        is_all_oom = summaries and all(run.state == "oom" for run in summaries)
        return "Every run ended out of memory" if is_all_oom else "No valid run"
    for column, sentence, text, alone in (
        ("read_bytes_mean", "A socket read carries {}", format_size, " on average"),
        ("docs_per_s_mean", "Documents/s accepted: {}", format_integer, ""),
    ):
        if any(row.median(column) for row in rows):
            return _compare_cells(summaries, rows, column, sentence, text, alone)
    return "Neither reads nor throughput could be measured"


def compare_cells(picture: str, summaries: Sequence[Summary]) -> str:
    """Return the headline of a picture that compares cells by one column: "layers", "large-allocations", "machine"."""
    column, sentence, text, nothing = _COMPARED[picture]
    rows = [row for row in cells.group_by_cell(summaries) if row.median(column) is not None]
    return _compare_cells(summaries, rows, column, sentence, text) if rows else nothing


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


def _compare_cells(
    summaries: Sequence[Summary],
    rows: Sequence[CellRuns],
    column: str,
    sentence: str,
    text: Callable[[float], str],
    alone: str = "",
) -> str:
    """Complete the sentence with the two cells that differ most, or with the range of all and `alone`."""
    measured = [row for row in rows if row.median(column) is not None]
    pair = _find_pair(summaries, measured, column)
    if pair is None:
        return sentence.format(format_range([row.median(column) or 0.0 for row in measured], text)) + alone
    key, low, high = pair
    small, large = low.median(column) or 0.0, high.median(column) or 0.0
    both = (
        f"{text(small)} {describe_level(key, low.levels[key])}, {text(large)} {describe_level(key, high.levels[key])}"
    )
    others = [f"{format_key(other)} {low.levels[other]}" for other in cells.varying_keys(summaries) if other != key]
    ratio = large / small
    return f"{sentence.format(both)}: {ratio:.{0 if ratio >= 10 else 1}f}x" + (
        f" ({', '.join(others)})" if others else ""
    )


def _find_pair(
    summaries: Sequence[Summary], rows: Sequence[CellRuns], column: str
) -> tuple[str, CellRuns, CellRuns] | None:
    """Return the first factor that makes a difference, and the two cells that differ most in the value by it alone."""
    for key in cells.varying_keys(summaries):
        alike = [
            (low, high)
            for low, high in itertools.permutations(rows, 2)
            if [other for other in low.levels if low.levels[other] != high.levels.get(other)] == [key]
        ]
        pairs = [(value, low, high) for low, high in alike if (value := low.median(column))]
        ratios = [((high.median(column) or 0) / value, low, high) for value, low, high in pairs]
        best = max(ratios, key=lambda item: item[0], default=None)
        if best is not None and best[0] >= LEAST_RATIO:
            return key, best[1], best[2]
    return None


def _describe_recovery(run: Summary) -> str:
    """Describe whether throughput recovered after the faults of a run."""
    recovery_s, rate = run.values.get("recovery_s"), run.series.get("docs_per_s")
    if recovery_s is not None:
        return f"throughput back {format_number(float(recovery_s))} s after it"
    if rate is None or not any(integrity.throughput_before(rate, run.faults, run.measure_start_ns or 0)):
        return "no throughput before it to compare with"
    return "throughput not back in time"
