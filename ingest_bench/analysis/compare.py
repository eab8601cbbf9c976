"""Cells compared by one number a run.

Requests of different runs are never pooled: inside a run they are not independent, and thousands of them would make
any two runs of the same cell look different.

The method is Welch's t interval on the runs' numbers, or, where both cells ran in the same blocks, the t interval on
the differences within each block: a drift of the machine meets both and cancels. With three replicates the interval
is wide (t = 4.3 at 2 degrees of freedom), as it should be. Rejected: a permutation test, whose smallest possible
p value with three runs a side is 0.1; and the bootstrap, whose intervals are too narrow for so few runs.
Each interval stands for itself: among twenty true zeroes one is expected to be missed.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, variance

from ingest_bench.analysis import cells, student
from ingest_bench.analysis.cells import CellRuns
from ingest_bench.model.results import Summary

CONFIDENCE = 0.95


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
    low: float | None
    """The interval of the difference; None with fewer than two runs on a side."""
    high: float | None
    paired: bool

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
    def is_distinct(self) -> bool | None:
        """Whether the interval leaves out 0, so that runs of one cell would hardly do this; None without one."""
        return None if self.low is None or self.high is None else self.low > 0 or self.high < 0


def numbers(
    column: str, first: tuple[str, Mapping[int, float]], second: tuple[str, Mapping[int, float]], *, paired: bool
) -> Comparison | None:
    """The comparison of two cells, each (name, {replicate: number}); None when one of them has no number."""
    (first_name, ones), (second_name, others) = first, second
    if not ones or not others:
        return None
    blocks = sorted(ones.keys() & others.keys())
    paired = paired and len(blocks) >= 2
    if paired:
        ones, others = ({block: side[block] for block in blocks} for side in (ones, others))
        interval: tuple[float, float] | None = _paired([others[block] - ones[block] for block in blocks])
    else:
        interval = _welch(list(ones.values()), list(others.values()))
    low, high = interval or (None, None)
    return Comparison(
        column=column,
        first=first_name,
        second=second_name,
        first_runs=len(ones),
        second_runs=len(others),
        first_mean=fmean(ones.values()),
        second_mean=fmean(others.values()),
        low=low,
        high=high,
        paired=paired,
    )


def pairs(summaries: Sequence[Summary], column: str) -> list[Comparison]:
    """Every two cells of one experiment that differ in exactly one factor, the first of its levels first."""
    found = []
    for one, other in itertools.combinations(cells.group(summaries), 2):
        if len(_differing(one, other)) == 1:
            sides = [(side.name, side.by_replicate(column)) for side in (one, other)]
            comparison = numbers(column, sides[0], sides[1], paired=True)
            if comparison is not None:
                found.append(comparison)
    return found


def _differing(one: CellRuns, other: CellRuns) -> list[str]:
    return [key for key in one.levels if one.levels[key] != other.levels.get(key)]


def _paired(differences: Sequence[float]) -> tuple[float, float]:
    half = student.quantile(CONFIDENCE, len(differences) - 1) * (variance(differences) / len(differences)) ** 0.5
    return fmean(differences) - half, fmean(differences) + half


def _welch(ones: Sequence[float], others: Sequence[float]) -> tuple[float, float] | None:
    if len(ones) < 2 or len(others) < 2:
        return None
    difference = fmean(others) - fmean(ones)
    parts = [variance(side) / len(side) for side in (ones, others)]
    spread = sum(parts)
    if spread == 0:
        return difference, difference
    # Welch and Satterthwaite's degrees of freedom, at least those of the smaller side.
    freedom = spread**2 / sum(part**2 / (len(side) - 1) for part, side in zip(parts, (ones, others), strict=True))
    half = student.quantile(CONFIDENCE, round(freedom, 3)) * spread**0.5
    return difference - half, difference + half
