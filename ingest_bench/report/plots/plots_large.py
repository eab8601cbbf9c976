"""Each cell over time: the heap with the moments of its faults, and beside it the sizes of large allocations."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, log2

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter

from ingest_bench.analysis.compare import cells
from ingest_bench.model.results import Series, Summary
from ingest_bench.report.plots.plots import conditions, notes, row_labels
from ingest_bench.report.plots.plots_style import (
    FAINT,
    FAULT,
    PALETTE,
    RULE,
    WIDTH_IN,
    bare,
    figure,
    fitted,
    footed,
    headed,
    saved,
    style,
    text_width_in,
)
from ingest_bench.report.tables import headline
from ingest_bench.report.tables.words import bytes_text

SERIES = "large_allocation_bytes"
_LABELS_IN, _TICKS_IN, _GAP_IN, _RIGHT_IN, _ROW_IN = 3.0, 0.95, 0.25, 0.4, 1.75
_GREEN, _RED, _BLUE = PALETTE[2], PALETTE[1], PALETTE[0]
_LEAST_BYTES, _VERY_LARGE_BYTES = 1 << 20, 100 << 20


def large(summaries: Sequence[Summary]) -> bytes | None:
    """A PNG with a row for each cell, its first valid run that has them; None when no run looked for allocations."""
    rows = [row for row in cells.group(summaries) if _shown(row) is not None]
    if not rows:
        return None
    runs = [run for row in rows if (run := _shown(row)) is not None]
    with style():
        made = figure(2.6 + _ROW_IN * len(rows))
        marked = {fault.kind: FAULT for run in runs for fault in run.faults}
        beneath_in = 1.5 + _ROW_IN * len(rows)
        top = headed(made, headline.large(summaries), conditions(summaries), marked, beneath_in)
        height_in = made.get_figheight()
        top -= 0.5 / height_in
        bottom = footed(made, notes(summaries)) + 0.65 / height_in
        labels = [fitted(made, label, 15, _LABELS_IN) for label in row_labels(rows, cells.varying(summaries))]
        left_in = 0.25 + max(text_width_in(made, label, 15) for label in labels)
        width_in = (WIDTH_IN - left_in - 2 * _TICKS_IN - _GAP_IN - _RIGHT_IN) / 2
        most = max((value for run in runs for value in _xy(run.series[SERIES], run)[1]), default=0.0)
        seconds = max(_seconds(run) for run in runs)
        each = (top - bottom) / len(rows)
        for number, (run, label) in enumerate(zip(runs, labels, strict=True)):
            low = top - (number + 1) * each + 0.22 / height_in
            made.text((left_in - 0.02) / WIDTH_IN, low + each / 2, label, ha="right", fontsize=15, fontweight="bold")
            for place, (title, draw) in enumerate(_PANELS):
                start_in = left_in + _TICKS_IN + place * (width_in + _TICKS_IN + _GAP_IN)
                axes = made.add_axes((start_in / WIDTH_IN, low, width_in / WIDTH_IN, each - 0.34 / height_in))
                bare(axes, left=True)
                # Room for the half of a point at either end.
                axes.set_xlim(-0.01 * seconds, 1.01 * seconds)
                draw(axes, run, most)
                _faults(axes, run, seconds)
                axes.grid(axis="y", color=RULE, linewidth=0.8)
                axes.set_axisbelow(True)
                axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: bytes_text(value) if value else "0"))
                if number == 0:
                    axes.set_title(title, loc="left", fontweight="bold", pad=8)
                if number < len(runs) - 1:
                    axes.set_xticklabels([])
                else:
                    axes.set_xlabel("seconds from the start of the measurement")
        return saved(made)


def _shown(row: cells.CellRuns) -> Summary | None:
    return next((run for run in row.valid if SERIES in run.series and run.measure_start_ns is not None), None)


def _heap(axes: Axes, run: Summary, _most: float) -> None:
    heap = run.values.get("heap_bytes")
    line = run.series.get("heap_bytes")
    if line is not None:
        axes.plot(*_xy(line, run), color=_GREEN, linewidth=1.8)
    if isinstance(heap, int):
        axes.yaxis.set_major_locator(FixedLocator([0, heap / 2, heap]))
        axes.axhline(heap, color=FAINT, linewidth=1.2, linestyle="--")
        axes.set_ylim(0, heap * 1.06)


def _sizes(axes: Axes, run: Summary, most: float) -> None:
    at, values = _xy(run.series[SERIES], run)
    axes.set_yscale("log", base=2)
    top = max(most, float(_VERY_LARGE_BYTES))
    axes.set_ylim(_LEAST_BYTES / 1.5, top * 3)
    axes.yaxis.set_major_locator(FixedLocator([float(1 << power) for power in range(20, ceil(log2(top)) + 1, 4)]))
    axes.minorticks_off()
    is_huge = [value >= _VERY_LARGE_BYTES for value in values]
    for wanted, colour, size in ((False, _BLUE, 26), (True, _RED, 46)):
        chosen = [(moment, value) for moment, value, huge in zip(at, values, is_huge, strict=True) if huge is wanted]
        if chosen:
            axes.vlines([x for x, _ in chosen], _LEAST_BYTES / 1.5, [y for _, y in chosen], color=colour, alpha=0.35)
            axes.scatter([x for x, _ in chosen], [y for _, y in chosen], color=colour, s=size, zorder=3)
    if not values:
        axes.text(0.5, 0.5, "none of 1 MiB or more", transform=axes.transAxes, ha="center", color=FAINT)


_PANELS = (("Heap in use", _heap), ("Objects of 1 MiB and more", _sizes))


def _faults(axes: Axes, run: Summary, seconds: float) -> None:
    start_ns = run.measure_start_ns or 0
    for fault in run.faults:
        at = (fault.started - start_ns) / 1e9
        if 0 <= at <= seconds:
            axes.axvline(at, color=FAULT, linewidth=1.6, alpha=0.8, zorder=0)


def _seconds(run: Summary) -> float:
    start_ns = run.measure_start_ns or 0
    return ((run.measure_end_ns or start_ns) - start_ns) / 1e9 or 1.0


def _xy(line: Series, run: Summary) -> tuple[list[float], list[float]]:
    """What is of the measurement, in seconds from its start."""
    start_ns, end_ns = run.measure_start_ns or 0, run.measure_end_ns or 0
    found = [
        ((at - start_ns) / 1e9, value)
        for at, value in zip(line.at_ns, line.values, strict=True)
        if start_ns <= at <= end_ns
    ]
    return [at for at, _ in found], [value for _, value in found]
