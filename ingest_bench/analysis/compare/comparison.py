"""Cells compared by one number a run.

Requests of different runs are never pooled: inside a run they are not independent, and thousands of them would make
any two runs of the same cell look different.

The method is Welch's t interval on the runs' numbers, or, where both cells ran in the same blocks, the t interval on
the differences within each block: a drift of the machine meets both and cancels. With three replicates the interval
is wide (t = 4.3 at 2 degrees of freedom), as it should be. Rejected: a permutation test, whose smallest possible
p value with three runs a side is 0.1; and the bootstrap, whose intervals are too narrow for so few runs.

A relative change is a ratio of two means, and the first is as uncertain as the second. Its interval is Fieller's, with
the same t at each ratio: it leaves "no change" out exactly where that t says so. 94 to 97% of such intervals hold the
truth, for factors of 0.2 to 10 and 3, 5 or 10 runs. Rejected: Welch on logarithms, which has the same coverage, but no
logarithm of a run without a pause; and dividing the interval of the difference by the first mean, which reached -164%.

What counts events has at least the variance of as many events that come independently (Poisson's): two runs that happen
to have 22 collections each would otherwise be certain of 22. What requests or pauses add up to has at least that of the
one which each end of a measurement cuts: three pairs that differ by a third of a request each were called distinct, 4
times in 100. Each interval stands for itself. What is called distinct
is so in its whole table, after Holm (1979, "A simple sequentially rejective multiple test procedure"): of all tables in
which nothing differs, at most one in twenty calls anything distinct.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import fmean, variance

from ingest_bench.analysis.compare import cells
from ingest_bench.analysis.compare.cells import CellRuns
from ingest_bench.analysis.numbers import student
from ingest_bench.analysis.run.columns import COUNTS
from ingest_bench.model.results import Summary

CONFIDENCE = 0.95
_POWER = 0.8
_FEWEST_RUNS = 3
# What a table compares where nobody says else: the rate, the wait, the reads, and what a GB costs.
COMPARED = (
    "docs_per_s_mean",
    "response_ms_p99",
    "read_bytes_mean",
    "gc_pause_ms_total_per_gb",
    "outside_tlab_network_bytes_per_gb",
)
_MOST_RUNS = 1000
# Beyond that the first mean is a rounding of 0.
_MOST_RATIO = 1e12
# What adds up pieces, and the column that counts these.
_PIECES = {"docs_per_s_mean": "requests_answered", "gc_pause_ms_total": "gc_pauses"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """The least variance of the number of a run, as far as events make it: `event * mean + constant`."""

    event: float = 0.0
    """Amount that one event adds to a count; its variance is as many of these as its mean (Poisson)."""
    constant: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """The numbers of the runs of two cells."""

    ones: tuple[float, ...]
    others: tuple[float, ...]
    paired: bool
    floor: Floor

    def error(self, ratio: float = 1.0) -> tuple[float, float | None]:
        """Return the standard error of `second - ratio * first` and its degrees of freedom; None with one run."""
        if self.paired:
            sample_variance = variance(
                [second - ratio * first for first, second in zip(self.ones, self.others, strict=True)]
            )
            # The difference of two runs has the variance of both.
            return (max(sample_variance, sum(self._floors(ratio))) / len(self.ones)) ** 0.5, len(self.ones) - 1
        if len(self.ones) < 2 or len(self.others) < 2:
            return 0.0, None
        runs = len(self.ones), len(self.others)
        parts = [(part / count, count - 1) for part, count in zip(self.variances(ratio), runs, strict=True)]
        spread = sum(part for part, _ in parts)
        # Welch and Satterthwaite's degrees of freedom, at least those of the smaller side.
        weighed = sum(part**2 / freedom for part, freedom in parts)
        return spread**0.5, spread**2 / weighed if weighed else min(freedom for _, freedom in parts)

    def variances(self, ratio: float) -> tuple[float, float]:
        """Return the variance that a run of each side adds to that of `second - ratio * first`."""
        first, second = self._floors(ratio)
        return max(ratio**2 * _variance(self.ones), first), max(_variance(self.others), second)

    def relative_interval(self) -> tuple[float, float] | None:
        """Return the interval of the relative change; None with one run, a negative mean, or a first one near 0."""
        first, second = fmean(self.ones), fmean(self.others)
        if first <= 0 or second < 0 or second > first * _MOST_RATIO or self.error()[1] is None:
            return None

        def deviation(ratio: float) -> tuple[float, float]:
            error, freedom = self.error(ratio)
            return error / first, freedom or 0.0

        low, high = student.ratio_interval(second / first, deviation, CONFIDENCE)
        if low == high:
            return (second - first) / first, (second - first) / first
        return low - 1, high - 1

    def _floors(self, ratio: float) -> tuple[float, float]:
        """Return the least variances of both parts, if the second mean is that multiple of the first."""
        runs = len(self.ones) + ratio * len(self.others)
        mean = (math.fsum(self.ones) + math.fsum(self.others)) / runs
        event, constant = self.floor.event * mean, self.floor.constant
        return ratio**2 * (event + constant), ratio * event + constant


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What changes from the first cell to the second, in the mean of one column over runs."""

    column: str
    first: str
    second: str
    first_runs: int
    second_runs: int
    first_mean: float
    second_mean: float
    paired: bool
    error: float = 0.0
    """The standard error of the difference."""
    freedom: float | None = None
    """Its degrees of freedom; None with fewer than two runs on a side: nothing is known then of its error."""
    relative_interval: tuple[float, float] | None = None
    """95% interval of the relative change. None without an interval, with a negative mean, or without a first mean
    above 0; the upper end is infinite where the first mean cannot be told from 0."""
    sides: Sides | None = None
    """The numbers that it was computed from; None for a step of a history."""
    is_distinct: bool | None = None
    """Whether runs of one cell would hardly do this, as one of all comparisons of a table; None where nobody knows."""

    @property
    def difference(self) -> float:
        """Second minus first."""
        return self.second_mean - self.first_mean

    @property
    def relative(self) -> float | None:
        """The difference as a share of the first; None when that is 0 and the second is not."""
        if self.first_mean:
            return self.difference / abs(self.first_mean)
        return None if self.difference else 0.0

    @property
    def interval(self) -> tuple[float, float] | None:
        """Of the difference, at 95%; None where its error is not known."""
        if self.freedom is None:
            return None
        half = t_quantile(self.freedom) * self.error
        return self.difference - half, self.difference + half

    @property
    def p_value(self) -> float | None:
        """How often runs of one cell would differ so much, by Student's t."""
        if self.freedom is None:
            return None
        if not self.error:
            return 0.0 if self.difference else 1.0
        return student.p_value(self.freedom, self.difference / self.error)


def t_quantile(freedom: float) -> float:
    """The t that |T| stays below with 95%: 4.303 for 2 degrees of freedom."""
    return student.quantile(freedom, (1 + CONFIDENCE) / 2)


def of_cells(column: str, one: CellRuns, other: CellRuns, *, paired: bool) -> Comparison | None:
    """The comparison of two cells in that column; None when one of them has no number.

    It is judged by itself, as the only one of its table.
    """
    sides = [(side.name, side.by_replicate(column)) for side in (one, other)]
    return numbers(column, *sides, paired=paired, floor=floor_of(column, (one, other)))


def numbers(
    column: str,
    first: tuple[str, Mapping[int, float]],
    second: tuple[str, Mapping[int, float]],
    *,
    paired: bool,
    floor: Floor = Floor(),
) -> Comparison | None:
    """The same of two cells that are (name, {replicate: number}), whose runs vary at least so much."""
    (first_name, ones), (second_name, others) = first, second
    if not ones or not others:
        return None
    blocks = sorted(ones.keys() & others.keys())
    paired = paired and len(blocks) >= 2
    if paired:
        ones, others = ({block: side[block] for block in blocks} for side in (ones, others))
    sides = Sides(ones=tuple(ones.values()), others=tuple(others.values()), paired=paired, floor=floor)
    error, freedom = sides.error()
    found = Comparison(
        column=column,
        first=first_name,
        second=second_name,
        first_runs=len(ones),
        second_runs=len(others),
        first_mean=fmean(sides.ones),
        second_mean=fmean(sides.others),
        paired=paired,
        error=error,
        freedom=freedom,
        relative_interval=sides.relative_interval(),
        sides=sides,
    )
    return judged([found])[0]


def table(summaries: Sequence[Summary], columns: Sequence[str]) -> list[Comparison]:
    """Every two cells of one experiment that differ in exactly one factor, the first of its levels first, by column.

    All of them are judged together.
    """
    rows = cells.group(summaries)
    couples = [(one, other) for one, other in itertools.combinations(rows, 2) if len(_differing(one, other)) == 1]
    found = (of_cells(column, *couple, paired=True) for column in columns for couple in couples)
    return judged([each for each in found if each is not None])


def detectable(spread: float, runs: int, comparisons: int) -> float:
    """Return the least difference that *runs* a side show four times of five, as one of *comparisons*.

    *spread* is the standard deviation of a run, as two sides of *runs* show it.
    """
    return student.least_effect(_planned(runs, comparisons, 2 * runs - 2), _POWER) * spread * math.sqrt(2)


def replicates_for(spread: float, runs: int, comparisons: int, difference: float) -> int | None:
    """Return how many runs a side make that difference detectable, 3 at least; None where that is more than 1,000.

    *spread* is the standard deviation of a run, as two sides of *runs* show it.
    """

    def is_enough(count: int) -> bool:
        effect = student.least_effect(_planned(count, comparisons, 2 * runs - 2), _POWER)
        return effect * spread * math.sqrt(2) <= difference

    return _fewest(is_enough)


def replicates(change: Comparison, limits: Sequence[float]) -> int | None:
    """Return how many runs a side tell four times of five whether the relative change keeps these limits.

    The change is taken to be as it is here, and the noise as these runs show it. None where that is more than 1,000.
    """
    sides = change.sides
    if sides is None:
        return None
    freedom = change.first_runs + change.second_runs - 2
    wanted = []
    for limit in limits:
        first, second = sides.variances(1 + limit)
        distance = abs(change.second_mean - (1 + limit) * change.first_mean)
        wanted.append((distance / math.sqrt(first + second), first / (first + second)))

    def is_enough(count: int) -> bool:
        planned = [(_planned(count, 1, freedom, share), effect) for effect, share in wanted]
        return sum(1 - test.power(effect) for test, effect in planned) <= 1 - _POWER

    return _fewest(is_enough)


def _planned(runs: int, comparisons: int, noise_freedom: int, first_share: float = 0.5) -> student.WelchTest:
    """Return the test of one of *comparisons*, when none of the others is distinct (Holm)."""
    level = (1 - CONFIDENCE) / comparisons
    return student.WelchTest(runs=runs, level=level, noise_freedom=noise_freedom, first_share=first_share)


def _fewest(is_enough: Callable[[int], bool]) -> int | None:
    counts = range(_FEWEST_RUNS, _MOST_RUNS + 1)
    place = bisect.bisect_left(counts, True, key=is_enough)
    return counts[place] if place < len(counts) else None


def judged(family: Sequence[Comparison]) -> list[Comparison]:
    """Which of them are distinct, by Holm: the k-th smallest p value is held to 5% divided by all from it on."""
    known = sorted((each.p_value, place) for place, each in enumerate(family) if each.p_value is not None)
    distinct: set[int] = set()
    for done, (p_value, place) in enumerate(known):
        if p_value > (1 - CONFIDENCE) / (len(known) - done):
            break
        distinct.add(place)
    return [
        replace(each, is_distinct=None if each.p_value is None else place in distinct)
        for place, each in enumerate(family)
    ]


def _differing(one: CellRuns, other: CellRuns) -> list[str]:
    return [key for key in {**one.levels, **other.levels} if one.levels.get(key) != other.levels.get(key)]


def floor_of(column: str, rows: Sequence[CellRuns]) -> Floor:
    """Return the least variance of that column's number of a run of these cells, as far as it is made of events."""
    total = column.removesuffix("_per_gb")
    value = _mean(column, rows)
    if total in COUNTS and (count := _mean(total, rows)):
        return Floor(event=value / count)
    if total in _PIECES and (count := _mean(_PIECES[total], rows)):
        # Two ends, each anywhere within a piece.
        return Floor(constant=2 * (value / count) ** 2 / 12)
    return Floor()


# Of equal numbers it is exactly 0, and that takes long; an interval asks for the same ones many times.
_variance = lru_cache(maxsize=64)(variance)


def _mean(column: str, rows: Sequence[CellRuns]) -> float:
    """Return the mean of all runs of these cells; 0 without any."""
    numbers = [number for row in rows for number in row.numbers(column)]
    return fmean(numbers) if numbers else 0.0
