"""The one line above a picture: what the numbers in it say, without a cause that nobody measured."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from ingest_bench.analysis.compare import cells
from ingest_bench.analysis.compare.cells import CellRuns
from ingest_bench.analysis.run import recovery
from ingest_bench.model.results import Summary
from ingest_bench.report.tables.words import bytes_text, gb_text, key_text, on, short, whole

# Below this ratio two cells are called alike: replicates of one cell differ by a few percent.
ALIKE = 1.1


def reads(summaries: Sequence[Summary]) -> str:
    """What a person should see first in the picture of read sizes."""
    rows = [row for row in cells.group(summaries) if row.valid]
    if not rows:
        only_memory = summaries and all(run.state == "oom" for run in summaries)
        return "Every run ended out of memory" if only_memory else "No valid run"
    if any(row.typical("read_bytes_mean") for row in rows):
        return _compared(
            summaries, rows, lambda row: row.typical("read_bytes_mean"), "A socket read carries {}", alone=" on average"
        )
    if any(row.typical("docs_per_s_mean") for row in rows):
        return _compared(
            summaries, rows, lambda row: row.typical("docs_per_s_mean"), "Documents/s taken: {}", text=whole
        )
    return "Neither reads nor throughput could be measured"


def allocation(summaries: Sequence[Summary]) -> str:
    """What a person should see first in the picture of allocations by layer."""
    rows = [row for row in cells.group(summaries) if per_gb(row) is not None]
    if not rows:
        return "No allocation was measured"
    return _compared(summaries, rows, per_gb, "Allocated outside TLABs by the network, for each GB taken: {}", gb_text)


def large(summaries: Sequence[Summary]) -> str:
    """What a person should see first in the picture of large allocations."""
    rows = [row for row in cells.group(summaries) if row.typical("largest_allocation_bytes")]
    if not rows:
        return "No large allocation was seen"
    return _compared(summaries, rows, lambda row: row.typical("largest_allocation_bytes"), "The largest object: {}")


def per_gb(row: CellRuns) -> float | None:
    """What the network layer allocated outside TLABs for each GB taken."""
    return row.typical("outside_tlab_network_bytes_per_gb")


def _compared(
    summaries: Sequence[Summary],
    rows: Sequence[CellRuns],
    value: Callable[[CellRuns], float | None],
    sentence: str,
    text: Callable[[float], str] = bytes_text,
    alone: str = "",
) -> str:
    known = [row for row in rows if value(row) is not None]
    pair = _pair(summaries, known, value)
    if pair is None:
        return sentence.format(_range([value(row) or 0.0 for row in known], text)) + alone
    key, low, high = pair
    small, large = value(low) or 0.0, value(high) or 0.0
    both = f"{text(small)} {on(key, low.levels[key])}, {text(large)} {on(key, high.levels[key])}"
    others = [f"{key_text(other)} {low.levels[other]}" for other in cells.varying(summaries) if other != key]
    rest = f" ({', '.join(others)})" if others else ""
    return f"{sentence.format(both)}: {_times(large / small)}{rest}"


def _pair(
    summaries: Sequence[Summary], rows: Sequence[CellRuns], value: Callable[[CellRuns], float | None]
) -> tuple[str, CellRuns, CellRuns] | None:
    """The two cells that differ most in the value and in one factor only: the first factor that makes a difference."""
    for key in cells.varying(summaries):
        alike = [
            (low, high)
            for low, high in itertools.permutations(rows, 2)
            if low.levels[key] != high.levels[key] and _without(low, key) == _without(high, key)
        ]
        found = [((value(high) or 0) / (value(low) or 1), low, high) for low, high in alike if value(low)]
        best = max(found, key=lambda item: item[0], default=None)
        if best is not None and best[0] >= ALIKE:
            return key, best[1], best[2]
    return None


def _without(row: CellRuns, key: str) -> dict[str, str]:
    return {other: level for other, level in row.levels.items() if other != key}


def _range(values: Sequence[float], text: Callable[[float], str]) -> str:
    low, high = text(min(values)), text(max(values))
    return low if low == high else f"{low} to {high}"


def _times(ratio: float) -> str:
    return f"{ratio:.0f}x" if ratio >= 10 else f"{ratio:.1f}x"


def machine(summaries: Sequence[Summary]) -> str:
    """What a person should see first in the picture of what settings of the machine did."""
    rows = [row for row in cells.group(summaries) if row.typical("docs_per_s_p10") is not None]
    if not rows:
        return "No throughput was measured"
    sentence = "Documents/s in all but the worst tenth of seconds: {}"
    return _compared(summaries, rows, lambda row: row.typical("docs_per_s_p10"), sentence, text=whole)


def timeline(run: Summary) -> str:
    """What a person should see first in one run over time: the cost of its faults, or else its pauses."""
    if run.faults:
        kinds = " and ".join(dict.fromkeys(fault.kind for fault in run.faults))
        return f"{kinds.capitalize()}: {run.values.get('silent_s') or 0} s without progress, {_back(run)}"
    names = ("docs_per_s_mean", "response_ms_p99", "response_ms_max", "requests_failed")
    docs, slow, worst, failed = map(run.values.get, names)
    parts = [f"{whole(float(docs))} documents/s"] if docs is not None else []
    parts += [f"99% {'over' if failed else 'answered'} within {short(float(slow))} ms"] if slow is not None else []
    parts += [f"the slowest in {short(float(worst))} ms"] if worst is not None else []
    parts += [f"{whole(float(failed))} requests failed"] if failed else []
    pauses, paused = run.values.get("gc_pauses"), run.values.get("gc_pause_ms_total")
    if isinstance(pauses, int) and isinstance(paused, (int, float)):
        parts.append(f"{whole(pauses)} GC pauses, {short(paused)} ms in all")
    return ", ".join(parts) or "One run over time"


def _back(run: Summary) -> str:
    """Whether throughput was back after the faults of a run."""
    back_s, rate = run.values.get("recovery_s"), run.series.get("docs_per_s")
    if back_s is not None:
        return f"throughput back {short(float(back_s))} s after it"
    if rate is None or not any(recovery.before(rate, run.faults, run.measure_start_ns or 0)):
        return "no throughput before it to compare with"
    return "throughput not back in time"
