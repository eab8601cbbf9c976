"""Several nodes: what each cell reached, how long its requests took, and which node the others waited for."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from matplotlib.axes import Axes

from ingest_bench.analysis.compare import cells
from ingest_bench.analysis.compare.cells import CellRuns
from ingest_bench.model.results import Summary
from ingest_bench.report.plots import plots_panels
from ingest_bench.report.plots.plots import conditions, label_column, notes
from ingest_bench.report.plots.plots_style import (
    FAINT,
    PALETTE,
    RULE,
    WIDTH_IN,
    figure,
    footed,
    headed,
    saved,
    style,
)
from ingest_bench.report.tables.words import short, whole

_LABELS_IN = 3.0
_VALUE_IN = 0.95
_BARS = 0.66  # of the row's height
_WAITED = "waited_for_ms_mean"
_PANELS = (
    ("docs_per_s_mean", "documents/s"),
    ("response_ms_p50", "response p50, ms"),
    ("response_ms_p99", "response p99, ms"),
)
# The longest wait is another one's only if it is so many times as long as the next.
_CLEARLY = 2


def nodes(summaries: Sequence[Summary]) -> bytes | None:
    """A PNG with a row for each cell: throughput, response time, and the wait for each node; None without nodes."""
    rows = [row for row in cells.group(summaries) if any(run.nodes for run in row.valid)]
    if not rows:
        return None
    keys = cells.varying(summaries)
    paint = {row.name: PALETTE[0] for row in rows}
    with style():
        made = figure(max(4.6, 3.2 + 0.85 * len(rows)))
        top = headed(made, _headline(rows), conditions(summaries))
        height_in = made.get_figheight()
        top -= 0.5 / height_in
        bottom = footed(made, notes(summaries)) + 0.6 / height_in
        labels, left_in = label_column(made, rows, keys, _LABELS_IN)
        width_in = (WIDTH_IN - left_in - 0.4) / (len(_PANELS) + 1)
        panels = []
        for number in range(len(_PANELS) + 1):
            at = (left_in + number * width_in) / WIDTH_IN
            panels.append(made.add_axes((at, bottom, (width_in - 0.35) / WIDTH_IN, top - bottom)))
        for axes, (column, title) in zip(panels, _PANELS, strict=False):
            plots_panels.frame(axes, title, len(rows))
            plots_panels.points(axes, rows, column, paint, _VALUE_IN)
        plots_panels.frame(panels[-1], "waited for it, mean, ms", len(rows))
        _waits(panels[-1], rows)
        for number, label in enumerate(labels):
            at = top - (top - bottom) * (number + 0.5) / len(rows)
            made.text((left_in - 0.15) / WIDTH_IN, at, label, ha="right", va="center", fontsize=14, fontweight="bold")
        return saved(made)


def _waits(axes: Axes, rows: Sequence[CellRuns]) -> None:
    """A bar for each node in each row, from node 1 down, and its number at its end."""
    waits = [waited(row) for row in rows]
    most = max((value for each in waits for value in each if value is not None), default=1.0) or 1.0
    axes.set_xlim(0, 2.1 * most)
    axes.set_xticks([])
    axes.axvline(0, color=RULE, linewidth=1)
    axes.set_xlabel("a bar a node")
    for number, each in enumerate(waits):
        if not each:
            plots_panels.missing(axes, number, rows[number])
            continue
        height = _BARS / len(each)
        longest = longest_wait(each)
        for place, value in enumerate(each):
            if value is None:
                continue
            at = number - _BARS / 2 + (place + 0.5) * height
            is_longest = place == longest
            colour = PALETTE[1] if is_longest else "#b5b5b5"
            axes.barh(at, value, height=height * 0.8, color=colour)
            axes.annotate(
                f"node {place + 1}: {short(value)}", (value, at), xytext=(5, 0), textcoords="offset points",
                va="center", fontsize=min(11, 54 * height), color=PALETTE[1] if is_longest else FAINT,
                fontweight="bold" if is_longest else "normal",
            )  # fmt: skip


def waited(row: CellRuns) -> list[float | None]:
    """How long the others had waited for each node: the median of the cell's runs."""
    runs = [run.nodes for run in row.valid if run.nodes]
    found: list[float | None] = []
    for place in range(len(runs[0]) if runs else 0):
        values = [value for run in runs if isinstance(value := run[place].get(_WAITED), (int, float))]
        found.append(median(values) if values else None)
    return found


def longest_wait(waits: Sequence[float | None]) -> int | None:
    """The place of the node that was waited for longest; None where that is not clear."""
    known = sorted(((value, place) for place, value in enumerate(waits) if value is not None), reverse=True)
    if len(known) < 2 or known[0][0] <= _CLEARLY * known[1][0]:
        return None
    return known[0][1]


def _headline(rows: Sequence[CellRuns]) -> str:
    """The cell that lost most beside the one that did best, and the node that was waited for in it."""
    known = [(rate, row) for row in rows if (rate := row.typical("docs_per_s_mean")) is not None]
    if len(known) < 2:
        return "What each node did"
    (least, worst), (most, _) = min(known, key=lambda one: one[0]), max(known, key=lambda one: one[0])
    longest = longest_wait(waited(worst))
    said = f"{worst.name.replace('=', ' ')}: {whole(least)} of {whole(most)} documents/s"
    return said if longest is None else f"{said}; the others waited for node {longest + 1}"
