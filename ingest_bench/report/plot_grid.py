"""The matrix as a picture: small multiples with rows and panels on one scale (`grid.build_grid`)."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from math import ceil, floor

from matplotlib.axes import Axes

from ingest_bench.model.results import Summary
from ingest_bench.report import headline
from ingest_bench.report import plot_style as style
from ingest_bench.report.formatting import format_size, shorten
from ingest_bench.report.grid import Grid, GridCell, GridPanel, build_grid
from ingest_bench.report.plot_cells import ROW_FRACTION, draw_histogram

_MAX_LABEL = 26
_PAGE_IN, _ROW_IN, _TITLE_LINE_IN, _LETTER_IN, _BOLD_LETTER_IN = 12.6, 0.42, 0.25, 0.105, 0.135
# A panel has at least this much room next to its numbers, and a size below its axis takes that much.
_LEAST_IN, _SIZE_IN = 1.0, 0.8
COLOURS = {"best": style.BLUE, "worst": style.RED}


def draw_matrix(summaries: Sequence[Summary]) -> bytes | None:
    """Draw the matrix; None where no two factors cross."""
    grid = build_grid(summaries)
    if grid is None:
        return None
    labels = [shorten(label, _MAX_LABEL) for label in grid.labels]
    every = [panel for _, panels in grid.groups for panel in panels]
    text_in = _LETTER_IN * max(len(cell.text) for panel in every for cell in panel.cells) + 0.25
    room_in = _PAGE_IN - _BOLD_LETTER_IN * max(map(len, labels))
    across = len(grid.groups[0][1])
    per_line = ceil(across / ceil(across / max(1, int(room_in / (text_in + _LEAST_IN)))))
    width_in = room_in / per_line
    letters = int(width_in / _BOLD_LETTER_IN)
    titled = [
        [(_wrap_title(filter(None, (group, panel.title)), letters), panel) for panel in panels[at : at + per_line]]
        for group, panels in grid.groups
        for at in range(0, len(panels), per_line)
    ]
    title_lines = max(title.count("\n") + 1 for panels in titled for title, _ in panels)
    line_in = _TITLE_LINE_IN * title_lines + 0.25 + (0.45 if grid.has_sizes else 0.1) + _ROW_IN * len(labels)
    with style.figure_style():
        figure = style.new_figure(
            len(titled) * line_in,
            headline.describe_finding(summaries),
            style.describe_conditions(summaries, grid.axes),
            None,
            [
                " ".join([*grid.notes, *(["Grey: sizes of all reads."] if grid.has_sizes else [])]),
                *style.left_out_notes(summaries),
            ],
        )
        all_axes = figure.subplots(len(titled), per_line, squeeze=False)
        for panels, line in zip(titled, all_axes, strict=True):
            for axes in line[len(panels) :]:
                axes.set_visible(False)
            for axes, (title, panel) in zip(line, panels, strict=False):
                axes.set_title(title, pad=8, fontsize=13)
                _draw_panel(axes, grid, panel, width_in, text_in)
            line[0].set_yticks(range(len(labels)), labels, fontsize=13, fontweight="bold")
            line[0].tick_params("y", pad=8, labelcolor=style.INK)
        return style.save_figure(figure)


def _wrap_title(parts: Iterable[str], letters: int) -> str:
    """Return the parts in lines of their own, each in at most two."""
    return "\n".join(textwrap.fill(shorten(part, 2 * letters - 2), letters) for part in parts)


def _draw_panel(axes: Axes, grid: Grid, panel: GridPanel, width_in: float, text_in: float) -> None:
    low, high = grid.limits
    margin = 0.02 * (high - low)
    # Numbers are in a column of their own, to the right of the largest value.
    right = low + (high - low) * 1.02 * width_in / (width_in - text_in)
    # Even powers of two are the rounder sizes.
    step = 2 * ceil((high - low) * _SIZE_IN / (width_in - text_in) / 2)
    ticks = range(step * ceil(low / step), floor(high) + 1, step) if grid.has_sizes else ()
    axes.set_xticks(ticks, [format_size(2**tick) for tick in ticks], fontsize=10)
    axes.set_xlim(low - margin, right)
    axes.set_yticks([])
    axes.set_ylim(len(panel.cells) - 0.5, -0.5)
    axes.spines["left"].set_visible(False)
    axes.spines["bottom"].set_visible(False)
    if not grid.is_logarithmic:
        axes.axvline(0, color=style.RULE, linewidth=1)
    for number, cell in enumerate(panel.cells):
        axes.axhline(number + ROW_FRACTION / 2, color=style.RULE, linewidth=0.8, zorder=0)
        colour = COLOURS.get(cell.mark, style.INK)
        axes.annotate(
            cell.text, (1, number), xycoords=axes.get_yaxis_transform(), ha="right", va="center", fontsize=12,
            color=style.FAINT if cell.value is None else colour, fontweight="bold" if cell.mark else "normal",
        )  # fmt: skip
        if cell.runs is not None and grid.has_sizes and (counts := cell.runs.counts("read_bytes")):
            draw_histogram(axes, number, counts, style.GREY)
        _draw_cell(axes, grid, number, cell, colour)


def _draw_cell(axes: Axes, grid: Grid, number: int, cell: GridCell, colour: str) -> None:
    if cell.value is None:
        return
    if cell.interval is not None:
        axes.plot([grid.place(end) for end in cell.interval], [number] * 2, color=style.FAINT, linewidth=3, zorder=3)
        for end, marker in zip(cell.interval, "<>", strict=True):
            shape = marker if grid.is_beyond(end) else "|"
            axes.plot([grid.place(end)], [number], marker=shape, color=style.FAINT, markersize=8, zorder=3)
    axes.scatter([grid.place(cell.value)], [number], s=90 if cell.mark else 60, color=colour, linewidths=0, zorder=4)
