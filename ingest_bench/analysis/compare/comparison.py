"""Comparison of cells by one number a run, and the noise between runs of one cell.

Requests of different runs are never pooled: within a run they are not independent, and thousands of them would make any
two runs of the same cell look different.

The method is Welch's t interval on the runs' numbers. If both cells ran in the same blocks, it is the t interval on the
differences within each block: a drift of the machine affects both and cancels. Rejected: a permutation test, whose
smallest possible p value with three runs a side is 0.1; and the bootstrap, whose intervals are too narrow for few runs.

A relative change is a ratio of two means, and the first is as uncertain as the second. Its interval is Fieller's, with
the same t at each ratio: it excludes "no change" exactly if that t does. Rejected: Welch on logarithms, because a run
without a pause has none; and dividing the interval of the difference by the first mean, which reached -164%.

A count of events has at least the variance of as many independent events (Poisson): two runs that happen to have 22
collections each would otherwise be certain of 22. A sum over requests or pauses has at least the variance of the one
that each end of a measurement cuts. "Distinct" is judged over a whole table after Holm (1979, "A simple sequentially
rejective multiple test procedure"): of all tables without differences, at most 1 in 20 has a distinct one.

The noise is measured by an A/A test, in which each cell ran on two sides (`order.against_itself`).
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import fmean, variance

from ingest_bench.analysis import student
from ingest_bench.analysis.compare import cells
from ingest_bench.analysis.compare.cells import CellRuns
from ingest_bench.analysis.run.columns import EVENT_COUNTS
from ingest_bench.model.experiment import SIDES
from ingest_bench.model.results import Summary

CONFIDENCE = 0.95
_POWER = 0.8
_MIN_RUNS = 3
# Columns that a table compares by default: throughput, response time, reads, and costs per GB.
DEFAULT_COLUMNS = (
    "docs_per_s_mean",
    "response_ms_p99",
    "read_bytes_mean",
    "allocated_bytes_per_gb",
    "allocated_network_bytes_per_gb",
    "gc_pause_ms_total_per_gb",
    "outside_tlab_network_bytes_per_gb",
)
_MAX_RUNS = 1000
# Beyond this ratio the first mean is a rounding error of 0.
_MAX_RATIO = 1e12
# Sums over requests or pauses, and the column that counts these.
_PIECES = {"docs_per_s_mean": "requests_answered", "gc_pause_ms_total": "gc_pauses"}
# Changes for which an A/A test reports the necessary replicates.
WANTED_CHANGES = (0.10, 0.05, 0.03)


@dataclass(frozen=True, slots=True, kw_only=True)
class VarianceFloor:
    """Lower limit of the variance of a run's number, as caused by events: `event * mean + constant`."""

    event: float = 0.0
    """Amount that one event adds to the number: the variance of a count is its mean (Poisson)."""
    constant: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """The numbers of the runs of two cells."""

    first: tuple[float, ...]
    second: tuple[float, ...]
    paired: bool
    floor: VarianceFloor

    def error(self, ratio: float = 1.0) -> tuple[float, float | None]:
        """Return the standard error of `second - ratio * first` and its degrees of freedom; None with one run."""
        if self.paired:
            sample_variance = variance(
                [after - ratio * before for before, after in zip(self.first, self.second, strict=True)]
            )
            # The difference of two runs has the variance of both.
            return (max(sample_variance, sum(self._floors(ratio))) / len(self.first)) ** 0.5, len(self.first) - 1
        if len(self.first) < 2 or len(self.second) < 2:
            return 0.0, None
        runs = len(self.first), len(self.second)
        parts = [(part / count, count - 1) for part, count in zip(self.variances(ratio), runs, strict=True)]
        spread = sum(part for part, _ in parts)
        # Welch and Satterthwaite's degrees of freedom, at least those of the smaller side.
        weighted = sum(part**2 / freedom for part, freedom in parts)
        return spread**0.5, spread**2 / weighted if weighted else min(freedom for _, freedom in parts)

    def variances(self, ratio: float) -> tuple[float, float]:
        """Return the variance that a run of each side adds to that of `second - ratio * first`."""
        first, second = self._floors(ratio)
        return max(ratio**2 * _variance(self.first), first), max(_variance(self.second), second)

    def relative_interval(self) -> tuple[float, float] | None:
        """Return the interval of the relative change; None with one run, a negative mean, or a first one near 0."""
        first, second = fmean(self.first), fmean(self.second)
        if first <= 0 or second < 0 or second > first * _MAX_RATIO or self.error()[1] is None:
            return None

        def deviation(ratio: float) -> tuple[float, float]:
            error, freedom = self.error(ratio)
            return error / first, freedom or 0.0

        low, high = student.ratio_interval(second / first, deviation, CONFIDENCE)
        if low == high:
            return (second - first) / first, (second - first) / first
        return low - 1, high - 1

    def _floors(self, ratio: float) -> tuple[float, float]:
        """Return the lower limits of both variances, if the second mean is *ratio* times the first."""
        runs = len(self.first) + ratio * len(self.second)
        mean = (math.fsum(self.first) + math.fsum(self.second)) / runs
        event, constant = self.floor.event * mean, self.floor.constant
        return ratio**2 * (event + constant), ratio * event + constant


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Change from the first cell to the second in the mean of one column over runs."""

    column: str
    first: str
    second: str
    first_runs: int
    second_runs: int
    first_mean: float
    second_mean: float
    error: float = 0.0
    """Standard error of the difference."""
    freedom: float | None = None
    """Its degrees of freedom; None with fewer than two runs on a side: the error is unknown then."""
    sides: Sides | None = None
    """The numbers behind it; None for a step of a history."""
    step_interval: tuple[float, float] | None = None
    """95% interval of the relative change of a step of a history."""
    is_distinct: bool | None = None
    """Whether chance is an unlikely explanation, judged with all comparisons of a table; None if unknown."""

    @property
    def difference(self) -> float:
        """Return second minus first."""
        return self.second_mean - self.first_mean

    @property
    def relative(self) -> float | None:
        """Return the difference as a share of the first mean; None if only that is 0."""
        if self.first_mean:
            return self.difference / abs(self.first_mean)
        return None if self.difference else 0.0

    @property
    def relative_interval(self) -> tuple[float, float] | None:
        """Return the 95% interval of the relative change.

        None without an interval, with a negative mean, or without a first mean above 0. The upper end is infinite if
        the first mean is not distinguishable from 0.
        """
        return self.step_interval if self.sides is None else _relative_interval(self.sides)

    @property
    def interval(self) -> tuple[float, float] | None:
        """Return the 95% interval of the difference; None if its error is unknown."""
        if self.freedom is None:
            return None
        half = student.quantile(self.freedom, (1 + CONFIDENCE) / 2) * self.error
        return self.difference - half, self.difference + half

    @property
    def p_value(self) -> float | None:
        """Return the probability that runs of one cell differ this much, by Student's t."""
        if self.freedom is None:
            return None
        if not self.error:
            return 0.0 if self.difference else 1.0
        return student.p_value(self.freedom, self.difference / self.error)


def compare_cells(column: str, first: CellRuns, second: CellRuns, *, paired: bool) -> Comparison | None:
    """Return the comparison of two cells, not judged yet; None if one has no number."""
    numbers = [row.by_replicate(column) for row in (first, second)]
    if not all(numbers):
        return None
    blocks = sorted(numbers[0].keys() & numbers[1].keys())
    paired = paired and len(blocks) >= 2
    if paired:
        numbers = [{block: side[block] for block in blocks} for side in numbers]
    before, now = (tuple(side.values()) for side in numbers)
    sides = Sides(first=before, second=now, paired=paired, floor=variance_floor(column, (first, second)))
    error, freedom = sides.error()
    return Comparison(
        column=column,
        first=first.name,
        second=second.name,
        first_runs=len(before),
        second_runs=len(now),
        first_mean=fmean(before),
        second_mean=fmean(now),
        error=error,
        freedom=freedom,
        sides=sides,
    )


def mean_interval(column: str, row: CellRuns) -> tuple[float, float] | None:
    """Return the 95% interval of the mean over the runs of a cell; None with fewer than two runs."""
    numbers = row.numbers(column)
    if len(numbers) < 2:
        return None
    mean, floor = fmean(numbers), variance_floor(column, (row,))
    error = (max(_variance(tuple(numbers)), floor.event * mean + floor.constant) / len(numbers)) ** 0.5
    half = student.quantile(len(numbers) - 1, (1 + CONFIDENCE) / 2) * error
    return mean - half, mean + half


def compare_pairs(summaries: Sequence[Summary], columns: Sequence[str]) -> list[Comparison]:
    """Return the comparisons of all pairs of cells that differ in exactly one factor, by column, judged together.

    The cell with the earlier level of the factor is the first of a pair.
    """
    pairs = [(first, second) for _, first, second in cells.find_neighbours(cells.group_by_cell(summaries))]
    unjudged = (compare_cells(column, *pair, paired=True) for column in columns for pair in pairs)
    return mark_distinct([comparison for comparison in unjudged if comparison is not None])


def detectable_difference(spread: float, runs: int, comparisons: int, noise_runs: int | None = None) -> float:
    """Return the smallest difference that *runs* per side detect with 80% probability.

    It is one of *comparisons*, none of which is distinct (Holm). *spread* is the standard deviation of a run, estimated
    from two sides of *noise_runs*; None: of *runs*.
    """
    level, noise_freedom = (1 - CONFIDENCE) / comparisons, 2 * (noise_runs or runs) - 2
    return student.min_effect(_POWER, runs, level=level, noise_freedom=noise_freedom) * spread * math.sqrt(2)


def replicates_for_difference(spread: float, runs: int, comparisons: int, difference: float) -> int | None:
    """Return the runs per side (at least 3) that make *difference* detectable; None if above 1,000.

    *spread* is the standard deviation of a run, estimated from two sides of *runs*.
    """
    return _fewest(lambda count: detectable_difference(spread, count, comparisons, runs) <= difference)


def replicates_for_verdict(change: Comparison, limits: Sequence[float]) -> int | None:
    """Return the runs per side that decide with 80% probability whether the change keeps these limits.

    Change and noise are assumed to be as in these runs. None if above 1,000.
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
        powers = (
            student.welch_power(effect, count, level=1 - CONFIDENCE, noise_freedom=freedom, first_share=share)
            for effect, share in wanted
        )
        return sum(1 - power for power in powers) <= 1 - _POWER

    return _fewest(is_enough)


def _fewest(is_enough: Callable[[int], bool]) -> int | None:
    counts = range(_MIN_RUNS, _MAX_RUNS + 1)
    place = bisect.bisect_left(counts, True, key=is_enough)
    return counts[place] if place < len(counts) else None


def mark_distinct(family: Sequence[Comparison]) -> list[Comparison]:
    """Return the comparisons with `is_distinct` by Holm: the k-th of n p values is compared with 5% / (n - k + 1)."""
    p_values = [item.p_value for item in family]
    ranked = sorted((p_value, place) for place, p_value in enumerate(p_values) if p_value is not None)
    distinct: set[int] = set()
    for done, (p_value, place) in enumerate(ranked):
        if p_value > (1 - CONFIDENCE) / (len(ranked) - done):
            break
        distinct.add(place)
    return [
        replace(comparison, is_distinct=None if p_value is None else place in distinct)
        for place, (comparison, p_value) in enumerate(zip(family, p_values, strict=True))
    ]


def variance_floor(column: str, rows: Sequence[CellRuns]) -> VarianceFloor:
    """Return the lower limit of the variance of a column of these cells, as caused by events."""
    total = column.removesuffix("_per_gb")
    value = _mean(column, rows)
    if total in EVENT_COUNTS and (count := _mean(total, rows)):
        return VarianceFloor(event=value / count)
    if total in _PIECES and (count := _mean(_PIECES[total], rows)):
        # Each of the two ends is uniformly distributed within a request or pause.
        return VarianceFloor(constant=2 * (value / count) ** 2 / 12)
    return VarianceFloor()


# Exact (0 for equal numbers) and therefore slow; an interval needs the same variances many times.
_variance = lru_cache(maxsize=64)(variance)
# Takes milliseconds. Of thousands of pairs of cells a page shows a few, each several times.
_relative_interval = lru_cache(maxsize=256)(Sides.relative_interval)


def _mean(column: str, rows: Sequence[CellRuns]) -> float:
    """Return the mean over all runs of these cells; 0 without any."""
    numbers = [number for row in rows for number in row.numbers(column)]
    return fmean(numbers) if numbers else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """Noise of one column of one cell."""

    levels: Mapping[str, str]
    """Levels of the cell, without the side."""
    sides: Comparison
    """Side B compared with A: a distinct difference is chance, or the machine drifts."""
    comparisons: int = 1
    """Number of comparisons that `compare` makes of such results: a change must be distinct among these."""

    @property
    def runs(self) -> int:
        """Return the runs of the smaller side."""
        return min(self.sides.first_runs, self.sides.second_runs)

    @property
    def mean(self) -> float:
        """Return the mean of both sides."""
        return (self.sides.first_mean + self.sides.second_mean) / 2

    @property
    def spread(self) -> float | None:
        """Return the standard deviation of a side's runs as a share of the mean; None if unknown."""
        if self.sides.freedom is None or not self.mean:
            return None
        return self.sides.error / math.sqrt(1 / self.sides.first_runs + 1 / self.sides.second_runs) / abs(self.mean)

    @property
    def detectable(self) -> float | None:
        """Return the smallest relative change that this number of replicates detects with 80% probability."""
        return None if self.spread is None else detectable_difference(self.spread, self.runs, self.comparisons)

    def replicates(self, change: float) -> int | None:
        """Return the runs per side that detect a relative change with 80% probability; None if above 1,000."""
        if self.spread is None:
            return None
        return replicates_for_difference(self.spread, self.runs, self.comparisons, change)


def measure_noise(summaries: Sequence[Summary], columns: Sequence[str]) -> list[Noise]:
    """Return the noise of every column that both sides of a cell have; empty if no cell has two sides."""
    by_levels: dict[tuple[tuple[str, str], ...], dict[str, CellRuns]] = {}
    for row in cells.group_by_cell(summaries):
        levels = tuple((key, level) for key, level in row.levels.items() if key != "side")
        by_levels.setdefault(levels, {})[row.levels.get("side", "")] = row
    noises = []
    for levels, by_side in by_levels.items():
        if set(by_side) == set(SIDES):
            first, second = (by_side[side] for side in SIDES)
            compared = (compare_cells(column, first, second, paired=False) for column in columns)
            noises += [Noise(levels=dict(levels), sides=sides) for sides in compared if sides is not None]
    judged = mark_distinct([noise.sides for noise in noises])
    comparisons = sum(noise.sides.column in DEFAULT_COLUMNS for noise in noises) or len(noises)
    return [replace(noise, sides=sides, comparisons=comparisons) for noise, sides in zip(noises, judged, strict=True)]
