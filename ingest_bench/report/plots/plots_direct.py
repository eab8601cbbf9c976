"""Time for each direct buffer, cell by cell: what is usual, and the single long waits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from ingest_bench.analysis.compare import cells
from ingest_bench.analysis.compare.cells import CellRuns
from ingest_bench.model.results import Summary
from ingest_bench.report.plots.plots import conditions, label_column, notes
from ingest_bench.report.plots.plots_panels import missing
from ingest_bench.report.plots.plots_style import (
    FAINT,
    INK,
    PALETTE,
    RULE,
    WIDTH_IN,
    bare,
    figure,
    footed,
    headed,
    saved,
    style,
    text_width_in,
)
from ingest_bench.report.tables.direct_memory_table import Published, matching
from ingest_bench.report.tables.words import short, whole

_LABELS_IN, _NUMBERS_IN = 4.0, 3.9
_MEAN, _MAX = "direct_allocation_ms_mean", "direct_allocation_ms_max"
_MEDIAN, _P99 = "direct_allocation_ms_p50", "direct_allocation_ms_p99"
_BESIDE = (("mean, ms", _MEAN, short), ("longest, ms", _MAX, short), ("System.gc()", "system_gcs", whole))

_USUAL, _WAIT = PALETTE[0], PALETTE[1]
_KEY = (("median to p99, and mean", _USUAL), ("longest waits", _WAIT))


def waits(summaries: Sequence[Summary], published: Sequence[Published] = ()) -> bytes | None:
    """A PNG with a row for each cell: median to 99th percentile, mean, published mean, and the longest waits beyond.

    None when no server told of its direct buffers.
    """
    rows = cells.group(summaries)
    told = [row for row in rows if row.measured_or_oom.numbers(_MEAN)]
    if not told:
        return None
    keys = cells.varying(summaries)
    theirs = {row.name: found.mean_ms for row in told if (found := matching(row, published)) is not None}
    with style():
        made = figure(max(4.6, 3.0 + 0.46 * len(rows)))
        top = headed(made, _headline(told), conditions(summaries))
        height_in = made.get_figheight()
        top -= 0.45 / height_in
        bottom = footed(made, notes(summaries)) + 0.75 / height_in
        labels, left_in = label_column(made, rows, keys, _LABELS_IN)
        place = (left_in / WIDTH_IN, bottom, 1 - (left_in + _NUMBERS_IN) / WIDTH_IN, top - bottom)
        axes = made.add_axes(place)
        bare(axes)
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_ylim(len(rows) - 0.45, -0.55)
        axes.set_xlim(_least(told) / 1.6, max(max(row.measured_or_oom.numbers(_MAX)) for row in told) * 1.6)
        for number, (row, label) in enumerate(zip(rows, labels, strict=True)):
            _row(axes, number, row)
            if row.name in theirs:
                axes.scatter(
                    [theirs[row.name]], [number], s=70, marker="D", facecolors="none", edgecolors=INK, zorder=5
                )
            at = top - (top - bottom) * (number + 0.55) / (len(rows) + 0.1)
            made.text((left_in - 0.15) / WIDTH_IN, at, label, ha="right", va="center", fontsize=14, fontweight="bold")
        _numbers(made, rows, top, bottom, height_in)
        axes.set_xlabel("ms for each direct buffer, logarithmic")
        at_in = left_in
        known = (*_KEY, ("◇ published mean", INK)) if theirs else _KEY
        for text, colour in known:
            made.text(at_in / WIDTH_IN, top + 0.12 / height_in, text, color=colour, fontsize=14, fontweight="bold")
            at_in += text_width_in(made, text, 14) + 0.35
        return saved(made)


def _headline(rows: Sequence[CellRuns]) -> str:
    longest = max(max(row.measured_or_oom.numbers(_MAX)) for row in rows)
    means = [row.measured_or_oom.typical(_MEAN) or 0.0 for row in rows]
    low, high = short(min(means)), short(max(means))
    usual = f"{low} ms" if low == high else f"{low} to {high} ms"
    return f"A direct buffer takes {usual} on average; the longest wait was {short(longest)} ms"


def _least(rows: Sequence[CellRuns]) -> float:
    """What the axis begins with. Of a single buffer there is a mean and no median."""
    return min(value for row in rows for name in (_MEDIAN, _MEAN) for value in row.measured_or_oom.numbers(name))


def _row(axes: Axes, number: int, row: CellRuns) -> None:
    told = row.measured_or_oom
    mean, low, high = map(told.typical, (_MEAN, _MEDIAN, _P99))
    if mean is None:
        missing(axes, number, row)
        return
    axes.axhline(number, color=RULE, linewidth=1, zorder=0)
    recorded = [run.series["direct_wait_ms"] for run in told.valid if "direct_wait_ms" in run.series]
    # Below 100 buffers there is no 99th percentile, and each wait is one of the longest.
    found = [value for series in recorded for value in series.values if high is None or value > high]
    # The same shifts in each picture, so that waits of one length do not hide each other.
    shifts = np.random.default_rng(number).uniform(-0.26, 0.26, len(found))
    axes.scatter(found, number + shifts, s=14, color=_WAIT, alpha=0.45, linewidths=0, zorder=2)
    if low is not None and high is not None:
        axes.plot([low, high], [number, number], color=_USUAL, linewidth=7, alpha=0.45, solid_capstyle="butt", zorder=3)
    axes.scatter([mean], [number], s=80, color=_USUAL, linewidths=0, zorder=4)


def _numbers(made: Figure, rows: Sequence[CellRuns], top: float, bottom: float, height_in: float) -> None:
    """The numbers beside the panel, each below its head."""
    step_in = (_NUMBERS_IN - 0.15) / len(_BESIDE)
    for place, (head, column, text) in enumerate(_BESIDE):
        right = 1 - (0.15 + step_in * (len(_BESIDE) - 1 - place)) / WIDTH_IN
        made.text(right, top + 0.12 / height_in, head, ha="right", color=FAINT, fontsize=12)
        for number, row in enumerate(rows):
            value = row.measured_or_oom.typical(column)
            at = top - (top - bottom) * (number + 0.55) / (len(rows) + 0.1)
            said = "" if value is None else text(value)
            made.text(right, at, said, ha="right", va="center", fontsize=13, fontweight="bold")
