"""What differs between runs of one cell: of an A/A test, in which each cell ran on two sides (`order.against_itself`).

A change that is smaller than this cannot be told from the machine's noise, with so many replicates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ingest_bench.analysis.compare import cells, comparison
from ingest_bench.analysis.compare.cells import CellRuns
from ingest_bench.analysis.compare.comparison import Comparison
from ingest_bench.model.experiment import SIDES
from ingest_bench.model.results import Summary

# Changes that somebody asks for.
WANTED = (0.10, 0.05, 0.03)


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """Of one column of one cell."""

    levels: Mapping[str, str]
    """Of the cell, without the side."""
    sides: Comparison
    """B beside A; what is distinct of it is so by chance, or the runs have a drift."""
    comparisons: int = 1
    """Number of comparisons that `compare` makes of such results: a change must be distinct among these."""

    @property
    def runs(self) -> int:
        """How many a side has, at least."""
        return min(self.sides.first_runs, self.sides.second_runs)

    @property
    def mean(self) -> float:
        """Of both sides."""
        return (self.sides.first_mean + self.sides.second_mean) / 2

    @property
    def spread(self) -> float | None:
        """The standard deviation of the runs of a side, as a share of the mean; None where there is none."""
        if self.sides.freedom is None or not self.mean:
            return None
        return self.sides.error / math.sqrt(1 / self.sides.first_runs + 1 / self.sides.second_runs) / abs(self.mean)

    @property
    def detectable(self) -> float | None:
        """The least change that as many replicates would show four times of five, as a share of the mean."""
        return None if self.spread is None else comparison.detectable(self.spread, self.runs, self.comparisons)

    def replicates(self, change: float) -> int | None:
        """Return how many runs a side would show that change four times of five; None where more than 1,000 would."""
        if self.spread is None:
            return None
        return comparison.replicates_for(self.spread, self.runs, self.comparisons, change)


def noise(summaries: Sequence[Summary], columns: Sequence[str]) -> list[Noise]:
    """Every column that both sides of a cell have; nothing where no cell has two sides."""
    by_levels: dict[tuple[tuple[str, str], ...], dict[str, CellRuns]] = {}
    for row in cells.group(summaries):
        levels = tuple((key, level) for key, level in row.levels.items() if key != "side")
        by_levels.setdefault(levels, {})[row.levels.get("side", "")] = row
    found = []
    for levels, by_side in by_levels.items():
        if set(by_side) == set(SIDES):
            one, other = (by_side[side] for side in SIDES)
            for column in columns:
                compared = comparison.of_cells(column, one, other, paired=False)
                if compared is not None:
                    found.append(Noise(levels=dict(levels), sides=compared))
    judged = comparison.judged([quantity.sides for quantity in found])
    comparisons = sum(quantity.sides.column in comparison.COMPARED for quantity in found) or len(found)
    return [
        replace(quantity, sides=sides, comparisons=comparisons) for quantity, sides in zip(found, judged, strict=True)
    ]
