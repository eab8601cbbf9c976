"""The panels of the main picture: histograms of sizes as ridges, and one point a run. A row is a cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, log2

from matplotlib.axes import Axes

from ingest_bench.analysis.compare.cells import CellRuns
from ingest_bench.analysis.numbers import histogram
from ingest_bench.nearest_rank import percentile
from ingest_bench.report.plots.plots_style import FAINT, RULE, bare
from ingest_bench.report.tables.words import bytes_text, counted, exact_bytes

_BINS_PER_OCTAVE = 3
_RIDGE = 0.72  # of the row's height
# A histogram's typical value: its column, what it is called, and how it is written.
_TYPICAL = {
    "read_bytes": ("read_bytes_mean", "mean", bytes_text),
    "wire_bytes": ("wire_bytes_p50", "median", exact_bytes),
}
_TICK_IN = 0.68  # a label such as "256 KiB", with space around it


def frame(axes: Axes, title: str, rows: int) -> None:
    """An empty panel: its title, and a line below each row."""
    bare(axes)
    axes.set_ylim(rows - 0.5, -0.5)
    axes.set_title(title, loc="left", fontweight="bold", pad=10)
    for row in range(rows):
        axes.axhline(row + _RIDGE / 2, color=RULE, linewidth=0.8, zorder=0)


def size_limits(rows: Sequence[CellRuns]) -> tuple[float, float]:
    """The ends of the logarithmic axis that the wire and the reads share, so that they can be compared by eye."""
    known = [counts for row in rows for name in ("wire_bytes", "read_bytes") if (counts := row.counts(name))]
    # A bar below 0.5% is too low to be seen: rare small frames and first reads would only squeeze the others.
    low = min((log2(percentile(counts, 0.5) or min(counts)) for counts in known), default=10.0)
    high = max((log2(max(counts)) for counts in known), default=16.0)
    return low - 0.5, max(high, low + 4) + 0.3


def sizes(
    axes: Axes,
    rows: Sequence[CellRuns],
    name: str,
    paint: Mapping[str, str],
    limits: tuple[float, float],
    value_in: float,
) -> None:
    """A histogram of sizes in each row, and the typical size to the right of the panel, `value_in` inches wide."""
    histograms = [row.counts(name) for row in rows]
    axes.set_xlim(*limits)
    _ticks(axes, *limits)
    axes.set_xlabel(f"bytes a {'read' if name == 'read_bytes' else 'frame'} (log)")
    column, middle, text = _TYPICAL[name]
    right = 1 + value_in / _inches(axes)
    axes.annotate(
        middle, (right, 1), xycoords="axes fraction", xytext=(0, 10), textcoords="offset points", ha="right",
        va="bottom", color=FAINT, fontsize=12,
    )  # fmt: skip
    for number, (row, counts) in enumerate(zip(rows, histograms, strict=True)):
        if not counts:
            missing(axes, number, row)
            continue
        _ridge(axes, number, counts, paint[row.name])
        axes.text(
            right, number, text(row.typical(column) or 0), transform=axes.get_yaxis_transform(), ha="right",
            va="center", fontsize=14, fontweight="bold",
        )  # fmt: skip


def points(axes: Axes, rows: Sequence[CellRuns], column: str, paint: Mapping[str, str], value_in: float) -> None:
    """A point for each run and the median beside them, from 0 on; `value_in` inches are kept free for the number."""
    most = max((value for row in rows for value in row.numbers(column)), default=1.0) or 1.0
    width_in = _inches(axes)
    axes.set_xlim(-0.03 * most, most * width_in / max(width_in - value_in, 0.3 * width_in))
    axes.set_xticks([])
    axes.axvline(0, color=RULE, linewidth=1)
    axes.set_xlabel("a point a run")
    for number, row in enumerate(rows):
        values = row.numbers(column)
        if not values:
            missing(axes, number, row)
            continue
        middle = row.typical(column) or 0.0
        axes.plot([0, middle], [number, number], color=paint[row.name], linewidth=2, alpha=0.35, zorder=1)
        axes.scatter(values, [number] * len(values), s=70, color=paint[row.name], alpha=0.75, linewidths=0, zorder=2)
        axes.annotate(
            counted(middle), (max(values), number),
            xytext=(9, 0), textcoords="offset points", va="center", fontsize=14, fontweight="bold",
        )  # fmt: skip


def missing(axes: Axes, number: int, row: CellRuns) -> None:
    """A word in place of a number: out of memory, no valid run, or not measured."""
    out_of_memory = f"OOM ({row.ran_out_of})" if row.ran_out_of else "OOM"
    text = out_of_memory if row.out_of_memory else "not measured" if row.valid else "no valid run"
    axes.text(
        0.02, number, text, transform=axes.get_yaxis_transform(), va="center", color=FAINT, style="italic", fontsize=12
    )


def _ridge(axes: Axes, number: int, counts: Mapping[int, int], colour: str) -> None:
    """One row's histogram; each row has its own scale, so that a wide one is as readable as a narrow one."""
    found = histogram.bins(counts, _BINS_PER_OCTAVE)
    highest = max(reads for _, _, reads in found)
    base = number + _RIDGE / 2
    for lower, upper, reads in found:
        left, right = log2(lower) if lower > 1 else -0.2, log2(upper + 1)
        height = _RIDGE * reads / highest
        axes.bar(left, -height, width=(right - left) * 0.94, bottom=base, align="edge", color=colour, zorder=2)


def _ticks(axes: Axes, low: float, high: float) -> None:
    most = max(3, int(_inches(axes) / _TICK_IN))
    first = ceil(low)
    step = next(step for step in range(1, 64) if (high - first) / step < most)
    # Even powers of two are the rounder sizes: 1, 4, 16, 64, 256 KiB.
    first += first % 2 if step % 2 == 0 else 0
    powers = range(first, int(high) + 1, step)
    axes.set_xticks(list(powers), [bytes_text(1 << power) for power in powers])


def _inches(axes: Axes) -> float:
    figure = axes.get_figure()
    assert figure is not None  # noqa: S101 - for mypy: a panel stands in a figure
    return float(axes.get_position().width * figure.get_figwidth())  # type: ignore[union-attr]
