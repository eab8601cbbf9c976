"""Schedules: the times at which requests are due, from an arrival shape. Pure arithmetic, no clock.

A shape is a rate over time. Its integral is the work due until a moment, and a request is due when the integral reaches
the work of all requests before it. So a schedule never drifts, whatever happens to requests.
"""

from __future__ import annotations

import itertools
import math
import random
from typing import TYPE_CHECKING

from ingest_bench.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ingest_bench.model.load import Arrivals

    When = Callable[[float], float | None]
    """Returns the time (seconds) at which that much work is due; None: never."""


def schedule(
    arrivals: Arrivals, *, sizes: Iterator[float] | None = None, seed: int = 1, recorded_ns: Sequence[int] = ()
) -> Iterator[int]:
    """Yield the times at which requests of an open loop are due, in ns from its start.

    *sizes* are the sizes of the requests in the unit of the rate (documents or bytes); without them 1.
    """
    if arrivals.shape == "recorded":
        return iter(recorded_ns)
    if arrivals.shape == "burst":
        return (burst * arrivals.period_ns for burst in itertools.count() for _ in range(arrivals.requests))
    work = itertools.repeat(1.0) if sizes is None else sizes
    if arrivals.shape == "poisson":
        counts = itertools.accumulate(size * gap for size, gap in zip(work, _exponential_gaps(seed), strict=False))
    else:
        counts = itertools.accumulate(work, initial=0.0)
    return _times(counts, _when(arrivals))


def take_share(times: Iterator[int], worker: int, workers: int, *, burst: int = 0) -> Iterator[int]:
    """Return one worker's share: every n-th time. All shares together are the schedule.

    With bursts it is every n-th time of each burst, as a worker has every n-th user: none of them gets two arrivals.
    """
    if not burst:
        return itertools.islice(times, worker, None, workers)
    return (
        time for time, number in zip(times, itertools.cycle(range(burst)), strict=False) if number % workers == worker
    )


def parse_recorded(text: str, name: str) -> tuple[int, ...]:
    """Parse a recording: one number of seconds per line, from any origin; the first one is the start."""
    times: list[float] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            seconds = float(line)
        except ValueError:
            raise SpecError(f"{name}:{number}: {line[:60]!r} is not a number of seconds") from None
        if not math.isfinite(seconds) or (times and seconds < times[-1]):
            raise SpecError(f"{name}:{number}: {line[:60]!r} is not a later time than the line above: sort the file")
        times.append(seconds)
    if not times:
        raise SpecError(f"{name}: contains no timestamp: write one per line, in seconds")
    return tuple(round((seconds - times[0]) * 1e9) for seconds in times)


def _times(counts: Iterable[float], when: When) -> Iterator[int]:
    for count in counts:
        seconds = when(count)
        if seconds is None:
            return
        yield round(seconds * 1e9)


def _exponential_gaps(seed: int) -> Iterator[float]:
    source = random.Random(seed)  # noqa: S311 - a schedule is no secret
    while True:
        yield source.expovariate(1.0)


def _when(arrivals: Arrivals) -> When:
    period_s = arrivals.period_ns / 1e9
    start, end = (rate.per_s if rate else 0.0 for rate in (arrivals.rate, arrivals.end_rate))
    if arrivals.shape == "ramp":
        return _ramp(start, end, period_s)
    if arrivals.shape == "steps":
        return _steps([rate.per_s for rate in arrivals.rates], period_s)
    if arrivals.shape == "sine":
        return _sine(start, arrivals.amplitude_ppm / 1e6, period_s)
    return lambda count: count / start


def _ramp(start: float, end: float, period_s: float) -> When:
    slope = (end - start) / period_s
    total = (start + end) / 2 * period_s

    def when(count: float) -> float | None:
        if count > total:
            return period_s + (count - total) / end if end else None
        # The root of start * t + slope * t² / 2 = count, in the form that also holds without a slope.
        denominator = start + math.sqrt(max(0.0, start * start + 2 * slope * count))
        return 2 * count / denominator if denominator else 0.0

    return when


def _steps(rates: Sequence[float], period_s: float) -> When:
    ends = list(itertools.accumulate(rate * period_s for rate in rates[:-1]))

    def when(count: float) -> float:
        step = next((step for step, end in enumerate(ends) if count < end), len(ends))
        before = ends[step - 1] if step else 0.0
        return step * period_s + (count - before) / rates[step]

    return when


def _sine(mean: float, amplitude: float, period_s: float) -> When:
    turn = 2 * math.pi / period_s

    def when(count: float) -> float:
        # Work until t is mean * (t + amplitude / turn * (1 - cos(turn * t))): monotone, at most 2 amplitude / turn
        # ahead of the mean. Newton's step, kept inside what is known.
        low, high = max(0.0, count / mean - 2 * amplitude / turn), count / mean
        at = high
        for _ in range(60):
            missing = count / mean - at - amplitude / turn * (1 - math.cos(turn * at))
            if abs(missing) < 1e-10:
                break
            low, high = (at, high) if missing > 0 else (low, at)
            at += missing / (1 + amplitude * math.sin(turn * at))
            if not low <= at <= high:
                at = (low + high) / 2
        return at

    return when
