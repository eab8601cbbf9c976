"""Allocations outside TLABs by layer, for each GB that was taken: stacked bars."""

from __future__ import annotations

from collections.abc import Sequence

from ingest_bench.analysis.compare import cells
from ingest_bench.model.results import Summary
from ingest_bench.report.plots.plots import conditions, label_column, notes
from ingest_bench.report.plots.plots_style import (
    FAINT,
    INK,
    PALETTE,
    WIDTH_IN,
    bare,
    figure,
    footed,
    headed,
    saved,
    style,
    text_width_in,
)
from ingest_bench.report.tables import headline
from ingest_bench.report.tables.words import gb_text

_LABELS_IN = 4.0
LAYERS = (
    ("outside_tlab_network_bytes", "network layer", PALETTE[1]),
    ("outside_tlab_lucene_bytes", "Lucene", PALETTE[0]),
    ("outside_tlab_rest_bytes", "the rest", "#b5b5b5"),
)


def layers(summaries: Sequence[Summary]) -> bytes | None:
    """A PNG with a bar for each cell, its layers stacked; None when no run measured allocations.

    A bar is the run in the middle: layers of different runs are never put on one bar.
    """
    rows = [row for row in cells.group(summaries) if headline.per_gb(row) is not None]
    if not rows:
        return None
    keys = cells.varying(summaries)
    with style():
        made = figure(max(4.2, 2.9 + 0.62 * len(rows)))
        top = headed(made, headline.allocation(summaries), conditions(summaries))
        height_in = made.get_figheight()
        top -= 0.45 / height_in
        bottom = footed(made, notes(summaries)) + 0.6 / height_in
        labels, left_in = label_column(made, rows, keys, _LABELS_IN)
        axes = made.add_axes((left_in / WIDTH_IN, bottom, 1 - (left_in + 1.3) / WIDTH_IN, top - bottom))
        bare(axes)
        axes.set_xticks([])
        axes.set_ylim(len(rows) - 0.45, -0.55)
        stacks = [_stack(row) for row in rows]
        for number, (label, stack) in enumerate(zip(labels, stacks, strict=True)):
            at = 0.0
            for (_, _, colour), value in zip(LAYERS, stack, strict=True):
                axes.barh(number, value, left=at, color=colour, height=0.66)
                at += value
            axes.annotate(
                gb_text(at), (at, number), xytext=(7, 0), textcoords="offset points", va="center", fontsize=14,
                fontweight="bold", color=INK, annotation_clip=False,
            )  # fmt: skip
            # As the axis has it, from -0.55 on.
            at_bar = top - (top - bottom) * (number + 0.55) / (len(rows) + 0.1)
            made.text(
                (left_in - 0.15) / WIDTH_IN, at_bar, label, ha="right", va="center", fontsize=14, fontweight="bold",
            )  # fmt: skip
        axes.set_xlim(left=0)
        axes.set_xlabel("bytes allocated outside TLABs for each GB (10⁹ bytes) of requests", color=FAINT)
        at_in = left_in
        for _, name, colour in LAYERS:
            made.text(
                at_in / WIDTH_IN, top + 0.12 / height_in, name, color=colour if name != "the rest" else FAINT,
                fontsize=15, fontweight="bold",
            )  # fmt: skip
            at_in += text_width_in(made, name, 15) + 0.35
        return saved(made)


def _stack(row: cells.CellRuns) -> list[float]:
    """The layers of the run in the middle, by the network's bytes for each GB."""
    shares = [
        [float(run.values.get(f"{name}_per_gb") or 0) for name, _, _ in LAYERS]
        for run in row.valid
        if run.values.get(f"{LAYERS[0][0]}_per_gb") is not None
    ]
    return sorted(shares)[len(shares) // 2]
