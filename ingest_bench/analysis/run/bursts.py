"""Bursts: whether their requests left at once, and the memory that the server keeps in the last idle span.

Levels are compared with those before the first burst of the load, warm-up included: what a burst of the warm-up left is
no baseline.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator

import numpy as np

from ingest_bench.analysis.run.sample_columns import SampleSource, iterate_batches, measurement_window
from ingest_bench.model.results import ColumnValue, Note, ProbeOutput, Reading, Series
from ingest_bench.model.samples import WorkerReport

# Series of the memory that is watched over time, by kind.
_LEVELS = {
    "direct": "direct_buffer_bytes",
    "netty": "netty_chunk_bytes",
    "rss": "server_rss_bytes",
    "cgroup": "cgroup_memory_bytes",
}
# A level is back if it is above the earlier one by at most this share of the rise, or this many bytes: the kernel's
# count of resident pages is late by up to 64 pages for each thread.
_BACK_SHARE, _BACK_BYTES = 0.05, 1 << 20


def spread_column(samples: SampleSource, report: WorkerReport, period_ns: int) -> dict[str, ColumnValue]:
    """Return the longest time between the first bytes of the first and the last request of a measured burst."""
    window, started_ns = measurement_window(report), report.started_monotonic_ns
    # Workers on other machines have one moment of a burst each, on our clock: they differ by the clocks' errors.
    first_number = round((window.start_ns - started_ns) / period_ns)
    sent_ns: dict[int, tuple[int, int]] = {}
    for batch in iterate_batches(samples):
        numbers = np.rint((batch["scheduled_ns"] - started_ns) / period_ns).astype(np.int64)
        is_measured = (numbers >= first_number) & (started_ns + numbers * period_ns < window.end_ns)
        is_sent = is_measured & (batch["bytes_sent"] > 0)
        for number in np.unique(numbers[is_sent]).tolist():
            times_ns = batch["sent_ns"][is_sent & (numbers == number)]
            first_ns, last_ns = int(times_ns.min()), int(times_ns.max())
            earlier = sent_ns.get(number, (first_ns, last_ns))
            sent_ns[number] = min(first_ns, earlier[0]), max(last_ns, earlier[1])
    return {"burst_spread_ms_max": max(((last - first) / 1e6 for first, last in sent_ns.values()), default=None)}


def retained_outputs(
    outputs: Iterable[ProbeOutput], samples: SampleSource, report: WorkerReport
) -> Iterator[ProbeOutput]:
    """Yield the memory that one node kept after the last burst of the measurement, and for how long.

    *outputs*: of the node's probes. Nothing if the last burst was not answered before the measurement ended.
    """
    window, offset_ns = measurement_window(report), report.realtime_minus_monotonic_ns
    last_ns = max((int(batch["done_ns"].max()) for batch in iterate_batches(samples) if len(batch)), default=0)
    if last_ns >= window.end_ns:
        text = "the last burst was not answered before the measurement ended: no idle span was observed"
        yield Note(source="load", text=f"{text}. Increase the period of the bursts.")
        return
    series = {item.name: item for item in outputs if isinstance(item, Series)}
    started_ns, end_ns = report.started_monotonic_ns + offset_ns, window.end_ns + offset_ns
    # After the collections that `lab.runner` requests before the load and after it.
    if (live := series.get("live_heap_bytes")) is not None and live.at_ns[-1] >= end_ns:
        before = _last_value(live, started_ns)
        yield Reading("heap_retained_after_idle_bytes", None if before is None else round(live.values[-1] - before))
    for kind, name in _LEVELS.items():
        if name in series:
            yield from _level_readings(kind, series[name], started_ns, last_ns + offset_ns, end_ns)


def _last_value(series: Series, until_ns: int) -> float | None:
    """Return the last value until then; None: there is none."""
    count = bisect.bisect_right(series.at_ns, until_ns)
    return series.values[count - 1] if count else None


def _level_readings(kind: str, series: Series, started_ns: int, idle_ns: int, end_ns: int) -> Iterator[Reading]:
    """Yield the bytes that are left at *end_ns*, and how long the level stayed above the earlier one from *idle_ns*."""
    before = _last_value(series, started_ns)
    loaded = [(at, value) for at, value in zip(series.at_ns, series.values, strict=True) if started_ns < at <= end_ns]
    idle = [(at, value) for at, value in loaded if at > idle_ns]
    if before is None or not idle:
        return
    limit = before + max(_BACK_BYTES, _BACK_SHARE * (max(value for _, value in loaded) - before))
    above = [number for number, (_, value) in enumerate(idle) if value > limit]
    back_ns = idle_ns if not above else end_ns if above[-1] == len(idle) - 1 else idle[above[-1] + 1][0]
    yield Reading(f"{kind}_retained_after_idle_bytes", round(idle[-1][1] - before))
    yield Reading(f"{kind}_retained_s", (back_ns - idle_ns) / 1e9)
