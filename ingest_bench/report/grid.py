"""The matrix of an experiment with two or more factors: panels by the network, rows by another factor, one measure.

This module decides what is shown, and where. `plot_grid` draws it as a PNG, `page_charts` on the page.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log2
from statistics import median

from ingest_bench.analysis import quantiles
from ingest_bench.analysis.compare import cells, comparison
from ingest_bench.analysis.compare.cells import CellRuns
from ingest_bench.model.results import Summary
from ingest_bench.report import headline
from ingest_bench.report.cell_tables import describe_missing
from ingest_bench.report.formatting import format_key

# Larger grids are tables: a picture of more cells is higher than a page.
_MAX_CELLS = 400
# From this ratio on small values would all be at the left end of a linear axis.
_LOGARITHMIC_RATIO = 20
# A longer interval ends in an arrow: one cell with two noisy runs would press all others to a point.
_MAX_EXCESS = 1.5
_SIGNS = {"best": "★", "worst": "✕", "highest": "▲", "lowest": "▼"}


@dataclass(frozen=True, slots=True, kw_only=True)
class GridCell:
    """One cell: its typical value with interval and mark, or why it has none."""

    runs: CellRuns | None = None
    """None for a combination that the experiment does not have."""
    text: str = "not run"
    value: float | None = None
    interval: tuple[float, float] | None = None
    """95% interval of the mean over the runs; None with one run."""
    mark: str = ""
    """"best" or "worst"; of a measure of which neither is better, "highest" or "lowest"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GridPanel:
    """The cells of one level of the factor across, from the first row down."""

    title: str
    cells: tuple[GridCell, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """All panels on one scale."""

    title: str
    axes: str
    """The factors of rows and panels."""
    labels: tuple[str, ...]
    """Of the rows."""
    groups: tuple[tuple[str, tuple[GridPanel, ...]], ...]
    """Levels of the other factors, and their panels."""
    is_logarithmic: bool
    limits: tuple[float, float]
    """Of the scale; of its logarithm to base 2 if it is logarithmic."""
    has_sizes: bool
    """The measure is a size of reads whose histograms are known."""
    notes: tuple[str, ...]

    def place(self, value: float) -> float:
        """Return the place of a value between the limits; of one beyond them, the limit."""
        low, high = self.limits
        return min(max(log2(max(value, 1e-9)) if self.is_logarithmic else value, low), high)

    def is_beyond(self, value: float) -> bool:
        """Return True for a value that the scale does not reach."""
        return not self.limits[0] <= (log2(max(value, 1e-9)) if self.is_logarithmic else value) <= self.limits[1]


def build_grid(summaries: Sequence[Summary]) -> Grid | None:
    """Return the matrix of the experiment's measure; None unless two factors cross, each with two levels or more."""
    rows, keys = cells.group_by_cell(summaries), cells.varying_keys(summaries)
    # Nothing differs between the sides of an A/A test.
    if len(keys) < 2 or "side" in keys or len(rows) > _MAX_CELLS:
        return None
    across = next((key for key in keys if key.startswith(("network", "peers"))), keys[1])
    down, *others = [key for key in keys if key != across]
    column = headline.find_column(summaries)
    measured = [row for row in rows if row.median(column) is not None]
    levels = {key: tuple(dict.fromkeys(row.levels.get(key, "") for row in rows)) for key in keys}
    crossed = {(row.levels.get(down), row.levels.get(across)) for row in rows}
    # Less is a diagonal, such as each version on its own Java, or the steps of a search for each network.
    is_filled = 2 * len(crossed) > len(levels[down]) * len(levels[across])
    if not is_filled or any(len({row.levels.get(key) for row in measured}) < 2 for key in (down, across)):
        return None
    most = max(len(row.numbers(column)) for row in measured)
    marked, is_undecided = _mark_extremes(column, [_build_cell(column, row, most) for row in rows])
    by_levels = {
        tuple(row.levels.get(key, "") for key in (*others, across, down)): cell
        for row, cell in zip(rows, marked, strict=True)
    }
    groups = []
    for chosen in itertools.product(*(levels[key] for key in others)):
        panels = tuple(
            GridPanel(
                title=f"{format_key(across)} {level}",
                cells=tuple(by_levels.get((*chosen, level, label), GridCell()) for label in levels[down]),
            )
            for level in levels[across]
        )
        if any(cell.runs for panel in panels for cell in panel.cells):
            title = ", ".join(f"{format_key(key)} {level}" for key, level in zip(others, chosen, strict=True))
            groups.append((title, panels))
    sizes = [counts for row in measured if (counts := row.counts("read_bytes"))] if "read_bytes" in column else []
    is_logarithmic, limits = (True, quantiles.logarithmic_limits(sizes)) if sizes else _find_scale(marked)
    return Grid(
        title=f"{headline.describe_measure(column)}, by {format_key(down)} and {format_key(across)}",
        axes=f"rows: {format_key(down)}\u00a0\u00a0·  panels: {' · '.join(map(format_key, (across, *others)))}",
        labels=levels[down],
        groups=tuple(groups),
        is_logarithmic=is_logarithmic,
        limits=limits,
        has_sizes=bool(sizes),
        notes=tuple(_list_notes(most, is_logarithmic=is_logarithmic, is_undecided=is_undecided)),
    )


def _build_cell(column: str, row: CellRuns, most: int) -> GridCell:
    numbers = row.numbers(column)
    if not numbers:
        return GridCell(runs=row, text=describe_missing(row))
    value, interval = median(numbers), comparison.mean_interval(column, row)
    if interval is not None and min(numbers) >= 0:
        interval = max(interval[0], 0.0), interval[1]
    text = headline.format_value(column, value) + (f" ({len(numbers)} of {most} runs)" if len(numbers) < most else "")
    return GridCell(runs=row, text=text, value=value, interval=interval)


def _mark_extremes(column: str, every: Sequence[GridCell]) -> tuple[list[GridCell], bool]:
    """Mark the two extreme cells, and return True where noise may have chosen them: then none is marked."""
    measured = [cell for cell in every if cell.value is not None]
    low, high = (choose(measured, key=lambda cell: cell.value or 0.0) for choose in (min, max))
    least, most = low.value or 0.0, high.value or 0.0
    if most - least <= (headline.LEAST_RATIO - 1) * max(abs(most), abs(least)):
        return list(every), False
    # Of many cells alike the extremes differ by chance; that two 95% intervals are apart is rare then.
    if (low.interval or high.interval) and (low.interval or (least, least))[1] >= (high.interval or (most, most))[0]:
        return list(every), True
    names = {"": ("lowest", "highest"), "lowest": ("best", "worst"), "highest": ("worst", "best")}
    values = [cell.value for cell in every]
    # Of several equal cells none is the best.
    marks = {
        value: mark
        for value, mark in zip((least, most), names[headline.find_best(column)], strict=True)
        if values.count(value) == 1
    }
    return [
        replace(cell, mark=mark, text=f"{_SIGNS[mark]} {mark} {cell.text}")
        if cell.value is not None and (mark := marks.get(cell.value))
        else cell
        for cell in every
    ], False


def _find_scale(every: Sequence[GridCell]) -> tuple[bool, tuple[float, float]]:
    """Return whether the scale is logarithmic, and its limits: intervals beyond them end in an arrow."""
    values = [cell.value for cell in every if cell.value is not None]
    ends = [end for cell in every for end in cell.interval or ()]
    least, most = min(values), max(values)
    high = max(most, min(max([most, *ends]), most * _MAX_EXCESS))
    if least > 0 and most / least >= _LOGARITHMIC_RATIO:
        return True, (log2(max(min([least, *ends]), least / _MAX_EXCESS)) - 0.5, log2(high) + 0.1)
    low = min(least, 0.0)
    return False, (low, high if high > low else low + 1)


def _list_notes(most: int, *, is_logarithmic: bool, is_undecided: bool) -> list[str]:
    runs = "Point: median of the runs; line: 95% interval of their mean, with an arrow where it goes further."
    notes = [runs if most > 1 else "1 run per cell: no interval, no verdict."]
    notes.append("The scale is logarithmic." if is_logarithmic else "The scale begins at 0.")
    if is_undecided:
        notes.append("The intervals of the extremes overlap: none is marked.")
    return notes
