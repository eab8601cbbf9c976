"""When requests are due: planned times from a shape. Pure arithmetic, no clock.

A shape is a rate over time; its integral says how much work is due until a moment, and the n-th request is due when
the integral reaches n. So a schedule never drifts, whatever happened to the requests before.
"""

from __future__ import annotations

import itertools
import math
import random
from typing import TYPE_CHECKING

from ingest_bench.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ingest_bench.model.load import Arrivals, Rate

    When = Callable[[float], float | None]
    """The moment (seconds) at which so many requests are due; None: they never are."""


def schedule(
    arrivals: Arrivals, *, per_request: float = 1.0, seed: int = 1, recorded_ns: Sequence[int] = ()
) -> Iterator[int]:
    """The planned times of an open loop, in ns from its start.

    `per_request` is how much of the rate's unit a request carries: its documents, its bytes, or 1.
    """
    if arrivals.shape == "recorded":
        return iter(recorded_ns)
    counts: Iterable[float] = itertools.count()
    if arrivals.shape == "poisson":
        counts = itertools.accumulate(_exponential_gaps(seed))
    return _times(counts, _when(arrivals, per_request))


def striped(times: Iterator[int], worker: int, workers: int) -> Iterator[int]:
    """One worker's share: every n-th time. All shares together are the schedule, none twice."""
    return itertools.islice(times, worker, None, workers)


def parse_recorded(text: str, name: str) -> tuple[int, ...]:
    """Planned times from a recording: a number of seconds a line, from any origin; the first one is the start."""
    times: list[float] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            seconds = float(line)
        except ValueError:
            raise SpecError(f"{name}:{number}: {line[:60]!r} is not a number of seconds") from None
        if not math.isfinite(seconds) or (times and seconds < times[-1]):
            raise SpecError(f"{name}:{number}: {line[:60]!r} is before the line above: sort the file")
        times.append(seconds)
    if not times:
        raise SpecError(f"{name}: no timestamp in it: write one a line, in seconds")
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


def _when(arrivals: Arrivals, per_request: float) -> When:
    def per_s(rate: Rate | None) -> float:
        assert rate is not None  # noqa: S101 - rates.check_arrivals has seen to it
        return rate.per_s / per_request

    period_s = arrivals.period_ns / 1e9
    if arrivals.shape == "ramp":
        return _ramp(per_s(arrivals.rate), per_s(arrivals.to), period_s)
    if arrivals.shape == "steps":
        return _steps([per_s(rate) for rate in arrivals.rates], period_s)
    if arrivals.shape == "sine":
        return _sine(per_s(arrivals.rate), arrivals.amplitude_ppm / 1e6, period_s)
    constant = per_s(arrivals.rate)
    return lambda count: count / constant


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
