"""Stalls: when requests waited far longer than usual, what explains it, and what cannot. Pure.

A stall is a span in which requests waited more than 10 times the median, or a second in which the rate fell below half
of its moving median. A cause is named where its intervals cover these requests' waiting, and where it is far rarer
outside of stalls. What no named cause covers is unexplained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingest_bench.analysis.run import samples as load
from ingest_bench.analysis.run.column import Column
from ingest_bench.analysis.run.samples import Samples, Tickets, Window
from ingest_bench.model.load import WorkerReport
from ingest_bench.model.results import Interval, Remark, Stall, Value, Watched

# A request is slow that takes longer than so many medians. Below the least time it is jitter: what looks at the
# machine ten times a second could not say why.
SLOW, LEAST_NS = 10, 100_000_000
# The rate of a second is low below this share of the median of so many around it.
_LOW, _AROUND = 0.5, 15
# A moment of the measurement; the longest ones have fewer: a day takes 70 MB.
_STEP_NS, _MOST_STEPS = 10_000_000, 1 << 23
# Of the waiting of a stall: from this on a cause is named, and below that it is ruled out.
NAMED, RULED_OUT = 0.2, 0.1
# A cause that is named is so many times as frequent within the stall as outside of all stalls.
_RARER = 3
# Of one run, as sentences.
_TOLD = 5

COLUMNS = (
    Column(
        "stalls",
        "spans within the measurement in which requests took more than 10 times the median (and 0.1 s), or the rate "
        "of a second fell below half of its moving median",
    ),
    Column("stalls_s", "their length together: one slow request is enough, while others go on (stalled_s: none does)"),
    Column("stall_cause_top", 'what explains most of it; "unexplained" where nothing explains more'),
    Column("stalled_unexplained_s", "how much of stalls_s no cause explains that was looked for"),
)


@dataclass(frozen=True, slots=True)
class _Waiting:
    """How many slow requests waited at each step of the measurement: a row of counts in flat memory."""

    window: Window
    step_ns: int
    counts: np.ndarray[Any, np.dtype[np.int32]]

    def step(self, moments_ns: Samples) -> Samples:
        """In which step each of these moments lies, those before and after the measurement at its ends."""
        found: Samples = ((moments_ns - self.window.start_ns) // self.step_ns).clip(0, len(self.counts) - 1)
        return found


def of_load(tickets: Tickets, report: WorkerReport, median_ms: Value, watched: Sequence[Watched]) -> tuple[Stall, ...]:
    """The stalls of a load's measurement (`find`)."""
    return find(tickets, load.window_of(report), median_ms, watched, report.realtime_minus_monotonic_ns)


def find(
    tickets: Tickets, window: Window, median_ms: Value, watched: Sequence[Watched], realtime_minus_monotonic_ns: int
) -> tuple[Stall, ...]:
    """The stalls of the measurement, each with its causes; none where nobody knows what is slow.

    `watched`: what was looked for, on CLOCK_REALTIME. Causes of one name from several nodes are one.
    """
    if not isinstance(median_ms, (int, float)) or window.length_s <= 0:
        return ()
    slow_ns = max(SLOW * median_ms * 1e6, LEAST_NS)
    waiting = _waiting(tickets, window, slow_ns)
    begins, ends = _runs(waiting.counts > 0)
    requests, longest_ns = _slowest(tickets, waiting, slow_ns, begins)
    weights = waiting.counts.copy()
    for first, last in _low_seconds(tickets, waiting):
        if not weights[first:last].any():
            weights[first:last] = 1
            place = int(np.searchsorted(begins, first))
            begins, ends = np.insert(begins, place, first), np.insert(ends, place, last)
            requests, longest_ns = np.insert(requests, place, 0), np.insert(longest_ns, place, 0)
    if not len(begins):
        return ()
    covered = {
        cause: _covered(spans, waiting, realtime_minus_monotonic_ns) for cause, spans in _by_cause(watched).items()
    }
    outside = weights == 0
    usual = {cause: float(mask[outside].mean()) if outside.any() else 0.0 for cause, mask in covered.items()}
    zero_ns = window.start_ns + realtime_minus_monotonic_ns
    end_ns = window.end_ns + realtime_minus_monotonic_ns
    found = []
    for begin, end, count, longest in zip(*(one.tolist() for one in (begins, ends, requests, longest_ns)), strict=True):
        masks = {cause: mask[begin:end] for cause, mask in covered.items()}
        named, left, ruled_out = _explained(weights[begin:end], masks, usual)
        found.append(
            Stall(
                start_ns=zero_ns + begin * waiting.step_ns,
                end_ns=min(zero_ns + end * waiting.step_ns, end_ns),
                requests=count,
                at_once=int(waiting.counts[begin:end].max()),
                longest_ns=longest,
                causes=tuple((cause, steps * waiting.step_ns) for cause, steps in named),
                unexplained_ns=left * waiting.step_ns,
                ruled_out=tuple((cause, steps * waiting.step_ns) for cause, steps in ruled_out),
            )
        )
    return tuple(found)


def _waiting(tickets: Tickets, window: Window, slow_ns: float) -> _Waiting:
    length_ns = window.end_ns - window.start_ns
    step_ns = max(_STEP_NS, -(-length_ns // _MOST_STEPS))
    steps = -(-length_ns // step_ns)
    waiting = _Waiting(window, step_ns, np.zeros(steps, dtype=np.int32))
    change = np.zeros(steps + 1, dtype=np.int32)
    for samples, _ in load.pieces(tickets):
        slow = _slow(samples, window, slow_ns)
        np.add.at(change, waiting.step(slow["planned_ns"]), 1)
        np.add.at(change, waiting.step(slow["done_ns"]) + 1, -1)
    np.cumsum(change[:-1], out=waiting.counts)
    return waiting


def _slow(samples: Samples, window: Window, slow_ns: float) -> Samples:
    """What took so long and was under way within the measurement."""
    response_ns = samples["done_ns"] - samples["planned_ns"]
    found: Samples = samples[load.under_way(samples, window) & (response_ns > slow_ns)]
    return found


def _slowest(tickets: Tickets, waiting: _Waiting, slow_ns: float, begins: Samples) -> tuple[Samples, Samples]:
    """Of each stall how many requests were slow, and the longest response time."""
    requests, longest_ns = (np.zeros(len(begins), dtype=np.int64) for _ in range(2))
    for samples, _ in load.pieces(tickets):
        slow = _slow(samples, waiting.window, slow_ns)
        place = np.searchsorted(begins, waiting.step(slow["planned_ns"]), side="right") - 1
        np.add.at(requests, place, 1)
        np.maximum.at(longest_ns, place, slow["done_ns"] - slow["planned_ns"])
    return requests, longest_ns


def _low_seconds(tickets: Tickets, waiting: _Waiting) -> list[tuple[int, int]]:
    """The steps of each run of seconds whose rate is below half of its moving median."""
    seconds = waiting.window.seconds
    if seconds < 3:
        return []
    rate = load.acked_per_second(tickets, waiting.window.start_ns, seconds)
    half = _AROUND // 2
    padded = np.pad(rate, half, mode="reflect" if seconds > half else "edge")
    around = np.lib.stride_tricks.sliding_window_view(padded, 2 * half + 1)
    low = rate < _LOW * np.median(around, axis=1)
    steps = np.append(
        np.arange(seconds) * 10**9 // waiting.step_ns, min(seconds * 10**9 // waiting.step_ns, len(waiting.counts))
    )
    begins, ends = _runs(low)
    return [(int(steps[first]), int(steps[last])) for first, last in zip(begins.tolist(), ends.tolist(), strict=True)]


def _runs(true: Samples) -> tuple[Samples, Samples]:
    """Where each run of true values begins, and where it has ended."""
    change = np.diff(np.concatenate(([0], true.astype(np.int8), [0])))
    return np.flatnonzero(change == 1), np.flatnonzero(change == -1)


def _by_cause(watched: Sequence[Watched]) -> dict[str, list[Interval]]:
    found: dict[str, list[Interval]] = {}
    for one in watched:
        found.setdefault(one.cause, []).extend(one.spans)
    return found


def _covered(spans: Sequence[Interval], waiting: _Waiting, offset_ns: int) -> Samples:
    """Whether the middle of each step lies in one of these intervals."""
    change = np.zeros(len(waiting.counts) + 1, dtype=np.int32)
    zero_ns, step_ns = waiting.window.start_ns + offset_ns, waiting.step_ns
    for span in spans:
        # The first step whose middle is not before it.
        first, after = ((moment - zero_ns + step_ns // 2) // step_ns for moment in (span.start_ns, span.end_ns))
        if after > 0 and first < len(waiting.counts):
            change[max(first, 0)] += 1
            change[min(after, len(waiting.counts))] -= 1
    found: Samples = np.cumsum(change[:-1]) > 0
    return found


def _explained(
    weights: Samples, masks: dict[str, Samples], usual: dict[str, float]
) -> tuple[list[tuple[str, int]], int, list[tuple[str, int]]]:
    """The named causes with their steps, the steps that none of them covers, and the causes that are ruled out.

    The cause that covers most of the waiting is named first; another one only for what is left then. Of two that cover
    the same the one that comes first in `masks` is named.
    """
    whole = float(weights.sum())
    shares = {cause: float(weights[mask].sum()) / whole for cause, mask in masks.items()}
    open_ = {
        cause
        for cause, share in shares.items()
        if share >= NAMED and float(masks[cause].mean()) > _RARER * usual[cause]
    }
    left, named = np.ones(len(weights), dtype=bool), []
    while open_:
        gains = {cause: float(weights[masks[cause] & left].sum()) / whole for cause in masks if cause in open_}
        best = max(gains, key=lambda cause: gains[cause])
        if gains[best] < NAMED:
            break
        named.append((best, int(masks[best].sum())))
        left &= ~masks[best]
        open_.remove(best)
    out = [(cause, int(masks[cause].sum())) for cause, share in shares.items() if share < RULED_OUT]
    return sorted(named, key=lambda one: -one[1]), int(left.sum()), out


def values(stalls: Sequence[Stall]) -> dict[str, Value]:
    """The columns about them."""
    unexplained_ns = sum(stall.unexplained_ns for stall in stalls)
    totals: dict[str, int] = {}
    for stall in stalls:
        for cause, lasted_ns in stall.causes:
            totals[cause] = totals.get(cause, 0) + lasted_ns
    if unexplained_ns:
        totals["unexplained"] = unexplained_ns
    return {
        "stalls": len(stalls),
        "stalls_s": sum(stall.end_ns - stall.start_ns for stall in stalls) / 1e9,
        "stall_cause_top": max(totals, key=lambda cause: totals[cause], default=None),
        "stalled_unexplained_s": unexplained_ns / 1e9,
    }


def sentence(stall: Stall, start_ns: int, users: int) -> str:
    """One stall in one line; seconds are from the start of the measurement."""
    first, last = ((moment - start_ns) / 1e9 for moment in (stall.start_ns, stall.end_ns))
    if stall.requests:
        who = f"{stall.at_once} of {users} users" if users else f"{stall.at_once} requests at once"
        what = f"{who} waited, the longest request {stall.longest_ns / 1e9:.2f} s"
    else:
        what = "the rate was below half of what it is around"
    length_s = last - first
    because = ", ".join(f"{cause} ({lasted_ns / 1e9:.2f} s)" for cause, lasted_ns in stall.causes)
    if not because:
        because = "unexplained"
    elif stall.unexplained_ns / 1e9 >= RULED_OUT * length_s:
        because += f"; {stall.unexplained_ns / 1e9:.2f} s unexplained"
    out = ", ".join(f"{cause} ({lasted_ns / 1e9:.2f} s)" for cause, lasted_ns in stall.ruled_out)
    return f"{first:.2f}-{last:.2f} s: {what}: {because}" + (f"; ruled out: {out}" if out else "")


def remarks(stalls: Sequence[Stall], report: WorkerReport, tickets: Tickets) -> list[Remark]:
    """A sentence for each of the longest stalls, in their order in time."""
    if not stalls:
        return []
    start_ns = report.warm_up_end_ns + report.realtime_minus_monotonic_ns
    users = len({int(user) for samples, _ in load.pieces(tickets) for user in np.unique(samples["user"]) if user >= 0})
    longest = sorted(stalls, key=lambda stall: stall.start_ns - stall.end_ns)[:_TOLD]
    told = [sentence(stall, start_ns, users) for stall in sorted(longest, key=lambda stall: stall.start_ns)]
    if len(stalls) > _TOLD:
        told.append(f"{len(stalls) - _TOLD} shorter stalls more: report/stalls.csv")
    return [Remark(probe="load", text=f"stall: {text}") for text in told]
