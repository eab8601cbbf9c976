"""Who waited when: a measurement's slow requests, the spans in which there were any, and the answers of all. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ingest_bench.analysis.run import sample_columns as load
from ingest_bench.analysis.run.sample_columns import Samples, Tickets, Window
from ingest_bench.model.samples import response_times_ns

# A request is slow that takes longer than so many medians. Below the least time it is jitter: what looks at the
# machine ten times a second could not say why.
SLOW, LEAST_NS = 10, 100_000_000
# The rate of a second is low below this share of the median of so many around it.
_LOW, _AROUND = 0.5, 15
# A moment of the measurement; the longest ones have fewer: a day takes 70 MB.
_STEP_NS, _MOST_STEPS = 10_000_000, 1 << 23
# Slow requests that are kept, the longest ones: 50 MB.
_MOST_KEPT = 1 << 19
# What is less than so many slow requests apart, and no more than so much, is one stall.
_APART, _MOST_APART_NS = 2, 250_000_000
# A rate that fell is a stall of its own where slow requests waited for less of it.
_MOSTLY = 0.5
# Where the rate fell is looked at so closely.
_CLOSE_NS = 100_000_000

Steps = np.ndarray[Any, np.dtype[np.int32]]


@dataclass(frozen=True, slots=True)
class Span:
    """A stall before anybody knows why, on the clock of the samples."""

    start_ns: int
    end_ns: int
    slow: Samples
    """Its slow requests; none where only the rate fell."""
    at_once: int


@dataclass(slots=True)
class Waiting:
    """What is known of the waiting within a measurement, in flat memory."""

    window: Window
    slow_ns: float
    """From this response time on a request is slow."""
    usual_ns: float
    """What a request takes at the median."""
    gap_ns: float
    """From one request to the next, in the mean."""
    step_ns: int
    counts: Steps
    """How many slow requests waited at each step."""
    answered: dict[int, Steps] = field(default_factory=dict)
    """How many answers began until each step, by the address of the server."""
    slow: Samples = field(default_factory=lambda: np.empty(0))
    """The slow requests, the first ones first."""

    def step(self, moments_ns: Samples) -> Samples:
        """In which step each of these moments lies, those before and after the measurement at its ends."""
        found: Samples = ((moments_ns - self.window.start_ns) // self.step_ns).clip(0, len(self.counts) - 1)
        return found

    def answers(self, start_ns: int, end_ns: int, address: int | None = None) -> int:
        """How many answers began between these moments (whole steps), of one address or of all."""
        first, last = (int((moment - self.window.start_ns) // self.step_ns) for moment in (start_ns, end_ns))
        first, last = max(first + 1, 0), min(last, len(self.counts))
        if last <= first:
            return 0
        of = self.answered.values() if address is None else [self.answered[address]] if address in self.answered else []
        return sum(int(until[last] - until[first]) for until in of)


def of_load(tickets: Tickets, window: Window, median_ms: float) -> Waiting:
    """What waited within the measurement."""
    length_ns = window.end_ns - window.start_ns
    step_ns = max(_STEP_NS, -(-length_ns // _MOST_STEPS))
    steps = -(-length_ns // step_ns)
    usual_ns = median_ms * 1e6
    found = Waiting(window, max(SLOW * usual_ns, LEAST_NS), usual_ns, 0, step_ns, np.zeros(steps, dtype=np.int32))
    kept: list[Samples] = []
    change, requests = np.zeros(steps + 1, dtype=np.int32), 0
    for samples, _ in load.pieces(tickets):
        counted = load.under_way(samples, window)
        requests += int(counted.sum())
        slow = samples[counted & (response_times_ns(samples) > found.slow_ns)]
        np.add.at(change, found.step(slow["planned_ns"]), 1)
        np.add.at(change, found.step(slow["done_ns"]) + 1, -1)
        kept = [_longest(np.concatenate([*kept, slow]))]
        _add_answers(found, samples, steps)
    np.cumsum(change[:-1], out=found.counts)
    for until in found.answered.values():
        np.cumsum(until, out=until)
    found.gap_ns = length_ns / max(requests, 1)
    found.slow = np.sort(kept[0], order="planned_ns") if kept else found.slow
    return found


def _longest(slow: Samples) -> Samples:
    if len(slow) <= _MOST_KEPT:
        return slow
    return slow[np.argpartition(slow["planned_ns"] - slow["done_ns"], _MOST_KEPT)[:_MOST_KEPT]]


def _add_answers(found: Waiting, samples: Samples, steps: int) -> None:
    answered = samples[load.within(samples["first_byte_ns"], found.window) & (samples["status"] > 0)]
    for address in np.unique(answered["address"]).tolist():
        of = found.answered.setdefault(address, np.zeros(steps + 1, dtype=np.int32))
        place = found.step(answered["first_byte_ns"][answered["address"] == address]) + 1
        of += np.bincount(place, minlength=steps + 1).astype(np.int32)


def spans(waiting: Waiting, tickets: Tickets) -> list[Span]:
    """The stalls, in their order: runs of steps in which slow requests waited, and seconds in which the rate fell."""
    start_ns, step_ns = waiting.window.start_ns, waiting.step_ns
    begins, ends = _runs(waiting.counts > 0)
    apart = (begins[1:] - ends[:-1]) * step_ns > min(_APART * waiting.slow_ns, _MOST_APART_NS)
    begins = begins[np.concatenate(([True] * bool(len(begins)), apart)).astype(bool)]
    ends = ends[np.concatenate((apart, [True] * bool(len(ends)))).astype(bool)]
    place = np.empty(0, dtype=np.int64)
    if len(begins):
        place = np.searchsorted(begins, waiting.step(waiting.slow["planned_ns"]), side="right") - 1
    found = [
        Span(
            start_ns + begin * step_ns,
            min(start_ns + end * step_ns, waiting.window.end_ns),
            waiting.slow[place == number],
            _at_once(waiting.slow[place == number]),
        )
        for number, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True))
    ]
    for first_ns, last_ns in _low_rate(tickets, waiting.window):
        first, last = waiting.step(np.array([first_ns, last_ns])).tolist()
        if (waiting.counts[first : last + 1] > 0).mean() < _MOSTLY:
            found.append(Span(first_ns, last_ns, waiting.slow[:0], 0))
    return sorted(found, key=lambda span: span.start_ns)


def _at_once(slow: Samples) -> int:
    """Return how many of these requests waited at one moment at most; a user's next one begins where one ends."""
    ended = np.searchsorted(np.sort(slow["done_ns"]), slow["planned_ns"], side="right")
    return int((np.arange(1, len(slow) + 1) - ended).max(initial=0))


def _low_rate(tickets: Tickets, window: Window) -> list[tuple[int, int]]:
    """The ends of each run of seconds whose rate is below half of its moving median, to a tenth of a second.

    It reaches into the second before it and after it as far as each tenth of these is low. Of a rate of a few requests
    a second most tenths have none: what is low further away is none of it.
    """
    seconds = window.seconds
    if seconds < 3:
        return []
    rate = load.spread_acked(tickets, window.start_ns, seconds, 10**9)
    half = _AROUND // 2
    padded = np.pad(rate, half, mode="reflect" if seconds > half else "edge")
    around = np.median(np.lib.stride_tricks.sliding_window_view(padded, 2 * half + 1), axis=1)
    begins, ends = _runs(rate < _LOW * around)
    if not len(begins):
        return []
    each = 10**9 // _CLOSE_NS
    close = load.spread_acked(tickets, window.start_ns, seconds * each, _CLOSE_NS)
    found = []
    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
        is_low = close < _LOW * around[begin:end].max() / each
        low = begin * each + np.flatnonzero(is_low[begin * each : end * each])
        if not len(low):
            continue
        first, last = int(low[0]), int(low[-1]) + 1
        while first > max(begin - 1, 0) * each and is_low[first - 1]:
            first -= 1
        while last < min(end + 1, seconds) * each and is_low[last]:
            last += 1
        found.append((window.start_ns + first * _CLOSE_NS, window.start_ns + last * _CLOSE_NS))
    return found


def _runs(true: Samples) -> tuple[Samples, Samples]:
    """Where each run of true values begins, and where it has ended."""
    change = np.diff(np.concatenate(([0], true.astype(np.int8), [0])))
    return np.flatnonzero(change == 1), np.flatnonzero(change == -1)
