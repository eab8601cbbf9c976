"""Waiting requests of a measurement: slow requests, the spans in which they waited, and the times of all responses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ingest_bench.analysis.run import sample_columns as load
from ingest_bench.analysis.run.sample_columns import SECOND_NS, Samples, SampleSource, Window
from ingest_bench.model.samples import response_times_ns

# A request is slow if it takes more than this many medians and at least this time. Below it is jitter, and probes that
# sample ten times a second could not attribute it.
SLOW, LEAST_NS = 10, 100_000_000
# Throughput of a second is low below this share of the median of this many seconds around it.
_LOW, _AROUND = 0.5, 15
# Time resolution; very long measurements have fewer steps: a day takes 70 MB.
_STEP_NS, _MAX_STEPS = 10_000_000, 1 << 23
# Slow requests that are kept, the longest ones: 50 MB.
_MAX_KEPT = 1 << 19
# Spans closer than this many times the slow limit, and than this time, are one stall.
_APART, _MAX_APART_NS = 2, 250_000_000
# A drop in throughput is a separate stall if slow requests waited for less than this share of it.
_MOSTLY = 0.5
# Resolution of the ends of a drop in throughput.
_CLOSE_NS = 100_000_000

# A request's usual time in medians, with limits: the tolerance for scheduling and for rare requests.
_LEAD, _MIN_LEAD_NS, _MAX_LEAD_NS = 4, 20_000_000, 250_000_000

Steps = np.ndarray[Any, np.dtype[np.int32]]


@dataclass(frozen=True, slots=True)
class Span:
    """A stall before attribution, on the clock of the samples."""

    start_ns: int
    end_ns: int
    slow: Samples
    """Its slow requests; empty if only throughput fell."""
    max_concurrent: int
    """The maximum number of them that waited at one time."""


@dataclass(slots=True)
class Waiting:
    """Waiting within a measurement, in constant memory."""

    window: Window
    slow_ns: float
    """Response time from which a request is slow."""
    median_ns: float
    """Median response time."""
    gap_ns: float
    """Mean interval between requests."""
    step_ns: int
    counts: Steps
    """Number of waiting slow requests at each step."""
    answered: dict[int, Steps] = field(default_factory=dict)
    """Responses that began until each step, by server address."""
    slow: Samples = field(default_factory=lambda: np.empty(0))
    """The slow requests in order of their schedule."""

    @property
    def lead_ns(self) -> int:
        """Return how long a request may be in flight before its cause begins, or after it ends."""
        return int(min(max(_LEAD * self.median_ns, _MIN_LEAD_NS), _MAX_LEAD_NS))

    def step(self, times_ns: Samples) -> Samples:
        """Return the step of each time; times outside the measurement belong to its first and last step."""
        steps: Samples = ((times_ns - self.window.start_ns) // self.step_ns).clip(0, len(self.counts) - 1)
        return steps

    def count_responses(self, start_ns: int, end_ns: int, address: int | None = None) -> int:
        """Return the number of responses that began between two times (whole steps), of one address or of all."""
        first, last = (int((time_ns - self.window.start_ns) // self.step_ns) for time_ns in (start_ns, end_ns))
        first, last = max(first + 1, 0), min(last, len(self.counts))
        if last <= first:
            return 0
        addresses = self.answered if address is None else {address} & self.answered.keys()
        return sum(int(self.answered[number][last] - self.answered[number][first]) for number in addresses)


def find_waiting(samples: SampleSource, window: Window, median_ms: float) -> Waiting:
    """Return the waiting within the measurement."""
    length_ns = window.end_ns - window.start_ns
    step_ns = max(_STEP_NS, -(-length_ns // _MAX_STEPS))
    steps = -(-length_ns // step_ns)
    median_ns = median_ms * 1e6
    waiting = Waiting(window, max(SLOW * median_ns, LEAST_NS), median_ns, 0, step_ns, np.zeros(steps, dtype=np.int32))
    kept: list[Samples] = []
    change, requests = np.zeros(steps + 1, dtype=np.int32), 0
    for batch in load.iterate_batches(samples):
        in_flight = load.is_in_flight(batch, window)
        requests += int(in_flight.sum())
        slow = batch[in_flight & (response_times_ns(batch) > waiting.slow_ns)]
        np.add.at(change, waiting.step(slow["scheduled_ns"]), 1)
        np.add.at(change, waiting.step(slow["done_ns"]) + 1, -1)
        kept = [load.keep_longest(np.concatenate([*kept, slow]), _MAX_KEPT)]
        answered = batch[load.is_within(batch["first_byte_ns"], window) & (batch["status"] > 0)]
        for address in np.unique(answered["address"]).tolist():
            total = waiting.answered.setdefault(address, np.zeros(steps + 1, dtype=np.int32))
            step = waiting.step(answered["first_byte_ns"][answered["address"] == address]) + 1
            total += np.bincount(step, minlength=steps + 1).astype(np.int32)
    np.cumsum(change[:-1], out=waiting.counts)
    for until in waiting.answered.values():
        np.cumsum(until, out=until)
    waiting.gap_ns = length_ns / max(requests, 1)
    waiting.slow = np.sort(kept[0], order="scheduled_ns") if kept else waiting.slow
    return waiting


def find_spans(waiting: Waiting, samples: SampleSource, *, has_idle_spans: bool = False) -> list[Span]:
    """Return the stalls in order: steps with waiting slow requests, and, without idle spans, low throughput."""
    start_ns, step_ns = waiting.window.start_ns, waiting.step_ns
    begins, ends = _runs(waiting.counts > 0)
    is_apart = (begins[1:] - ends[:-1]) * step_ns > min(_APART * waiting.slow_ns, _MAX_APART_NS)
    begins = begins[np.concatenate(([True] * bool(len(begins)), is_apart)).astype(bool)]
    ends = ends[np.concatenate((is_apart, [True] * bool(len(ends)))).astype(bool)]
    span_of = np.empty(0, dtype=np.int64)
    if len(begins):
        span_of = np.searchsorted(begins, waiting.step(waiting.slow["scheduled_ns"]), side="right") - 1
    spans = []
    for number, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True)):
        slow = waiting.slow[span_of == number]
        end_ns = min(start_ns + end * step_ns, waiting.window.end_ns)
        # A user's next request begins when the last one ends.
        ended = np.searchsorted(np.sort(slow["done_ns"]), slow["scheduled_ns"], side="right")
        max_concurrent = int((np.arange(1, len(slow) + 1) - ended).max(initial=0))
        spans.append(Span(start_ns + begin * step_ns, end_ns, slow, max_concurrent))
    for first_ns, last_ns in () if has_idle_spans else _low_throughput(samples, waiting.window):
        first, last = waiting.step(np.array([first_ns, last_ns])).tolist()
        if (waiting.counts[first : last + 1] > 0).mean() < _MOSTLY:
            spans.append(Span(first_ns, last_ns, waiting.slow[:0], 0))
    return sorted(spans, key=lambda span: span.start_ns)


def _low_throughput(samples: SampleSource, window: Window) -> list[tuple[int, int]]:
    """Return the ends of each run of seconds below half of the moving median, to a tenth of a second.

    A run extends into the neighbouring seconds as far as each tenth of them is low. With a few requests a second most
    tenths are empty, so low tenths further away do not count.
    """
    seconds = window.seconds
    if seconds < 3:
        return []
    rate = load.spread_acked(samples, window.start_ns, seconds, SECOND_NS)
    half = _AROUND // 2
    padded = np.pad(rate, half, mode="reflect" if seconds > half else "edge")
    around = np.median(np.lib.stride_tricks.sliding_window_view(padded, 2 * half + 1), axis=1)
    is_slow = rate < _LOW * around
    # A rate that was never higher has not fallen: the load or the server is still ramping up.
    before = load.spread_acked(samples, window.start_ns - _AROUND * SECOND_NS, _AROUND, SECOND_NS)
    if before.max() < _LOW * around[0]:
        is_slow[: int(np.argmin(is_slow))] = False
    begins, ends = _runs(is_slow)
    if not len(begins):
        return []
    parts = SECOND_NS // _CLOSE_NS
    close = load.spread_acked(samples, window.start_ns, seconds * parts, _CLOSE_NS)
    runs = []
    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
        is_low = close < _LOW * around[begin:end].max() / parts
        low = begin * parts + np.flatnonzero(is_low[begin * parts : end * parts])
        if not len(low):
            continue
        first, last = int(low[0]), int(low[-1]) + 1
        while first > max(begin - 1, 0) * parts and is_low[first - 1]:
            first -= 1
        while last < min(end + 1, seconds) * parts and is_low[last]:
            last += 1
        runs.append((window.start_ns + first * _CLOSE_NS, window.start_ns + last * _CLOSE_NS))
    return runs


def _runs(mask: Samples) -> tuple[Samples, Samples]:
    """Return start and end (exclusive) of each run of true values."""
    change = np.diff(np.concatenate(([0], mask.astype(np.int8), [0])))
    return np.flatnonzero(change == 1), np.flatnonzero(change == -1)
