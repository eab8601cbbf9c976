"""Picture of a search: the limited number by rate, with the limit and the knee marked."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from ingest_bench import units
from ingest_bench.analysis.search import Knee
from ingest_bench.report import plot_style as style
from ingest_bench.report.formatting import SEPARATOR, format_count
from ingest_bench.report.search_table import describe_knees

_LIMIT_COLOUR = "#b00020"
_PANEL_IN = 4.7  # with its axis
_LEFT_IN, _RIGHT_IN = 1.15, 0.6
_KNEE_SIZE, _KNEE_IN = 14, 0.3  # each knee has a line of its own above the panel
# Background of a text: no line goes through it.
_BLANK: Any = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}
_MARKERS = {"met": "o", "missed": "X", "generator": "s"}
_MEANINGS = {"met": "met the goal", "missed": "missed it", "generator": "the load generator was the limit"}


def draw_knee(knees: Sequence[Knee]) -> bytes:
    """Draw one line for each cell: the limited number by the planned rate."""
    with style.figure_style():
        figure = style.new_figure()
        colours = style.assign_colours(knee.cell for knee in knees)
        marks_in = _KNEE_IN * len(_known_rates(knees))
        notes = [line if len(line) <= 150 else f"{line[:149]}…" for line in describe_knees(knees)]
        least_in = _PANEL_IN + marks_in + style.NOTE_IN * len(notes)
        names = colours if len(knees) > 1 else {}
        top = style.add_heading(figure, _title(knees), _describe_conditions(knees), names, least_in)
        height_in = figure.get_figheight()
        bottom = style.add_notes(figure, notes) + 0.95 / height_in
        ceiling = top - 0.45 / height_in
        width = 1 - (_LEFT_IN + _RIGHT_IN) / style.WIDTH_IN
        axes = figure.add_axes((_LEFT_IN / style.WIDTH_IN, bottom, width, ceiling - bottom - marks_in / height_in))
        _prepare_axes(axes, knees)
        for knee in knees:
            _draw_line(axes, knee, colours[knee.cell])
        _draw_limit(axes, knees)
        _mark_knees(figure, axes, knees, colours)
        _add_legend(figure, axes, knees, ceiling)
        return style.save_figure(figure)


def _prepare_axes(axes: Axes, knees: Sequence[Knee]) -> None:
    limit = knees[0].goal.plotted_limit
    axes.set_xlabel("requests planned in a second")
    axes.grid(visible=True, color=style.RULE, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.patch.set_visible(False)
    # Room for the text of the limit above all points.
    axes.margins(y=0.08)
    axes.tick_params(length=0, which="both")
    rates = [x for knee in knees for x, _, _ in _points(knee)] or [1.0]
    axes.set_xlim(0, max(rates) * 1.08)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_count(value)))
    if limit.column:
        axes.set_yscale("log")
        axes.set_ylabel(f"{'' if limit.name.startswith('service') else 'response '}{limit.name}")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: units.format_time(value * 1e6)))
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_ylabel(limit.name)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.2%}"))


def _points(knee: Knee) -> Iterator[tuple[float, float, str]]:
    """Yield rate, value and outcome of every step that has a number, or whose number has a bound."""
    limit = knee.goal.plotted_limit
    for step, summary in knee.steps:
        value = limit.upper_bound(summary.values)
        if step.per_s is not None and math.isfinite(value) and step.outcome != "broken":
            yield step.per_s, value, step.outcome


def _draw_line(axes: Axes, knee: Knee, colour: str) -> None:
    points = sorted(_points(knee))
    # If a rate was run twice, the line goes through the worse run, which decides.
    worst = {x: y for x, y, _ in points}
    axes.plot(list(worst), list(worst.values()), color=colour, linewidth=1.2, alpha=0.6)
    for outcome, marker in _MARKERS.items():
        chosen = [(x, y) for x, y, kind in points if kind == outcome]
        face = colour if outcome == "met" else "white"
        axes.scatter(
            [x for x, _ in chosen], [y for _, y in chosen], s=75, marker=marker, facecolor=face, edgecolor=colour,
            linewidth=1.6, zorder=3,
        )  # fmt: skip


def _draw_limit(axes: Axes, knees: Sequence[Knee]) -> None:
    limit = knees[0].goal.plotted_limit
    axes.axhline(limit.below, color=_LIMIT_COLOUR, linewidth=1.6, linestyle=(0, (5, 3)))
    axes.annotate(
        limit.text, (0, limit.below), xycoords=("axes fraction", "data"), xytext=(8, 5), textcoords="offset points",
        color=_LIMIT_COLOUR, fontsize=13, fontweight="bold", bbox=_BLANK, zorder=4,
    )  # fmt: skip


def _mark_knees(figure: Figure, axes: Axes, knees: Sequence[Knee], colours: Mapping[str, str]) -> None:
    """Draw each knee from the axis up to its number above the panel: lower where the rate is lower.

    The number is left of its line, where no higher rate has one. At the edge of the page it moves to the right.
    """
    height_in, inner = figure.get_figheight(), axes.get_position()
    for row, (per_s, knee) in enumerate(sorted(_known_rates(knees), key=lambda item: item[0])):
        colour = colours[knee.cell]
        text = f"knee {per_s:,.6g}/s" if knee.result.is_knee else f"at least {per_s:,.6g}/s"
        x = inner.x0 + inner.width * min(1.0, per_s / axes.get_xlim()[1])
        width = style.text_width_in(figure, text, _KNEE_SIZE) / style.WIDTH_IN
        base = inner.y1 + _KNEE_IN * row / height_in
        # Below the panel's own lines and texts.
        figure.add_artist(Line2D((x, x), (inner.y0, base), color=colour, linewidth=1.2, linestyle=":", zorder=-1))
        figure.text(
            max(x, 0.02 + width), base + _KNEE_IN / 2 / height_in, text, ha="right", va="center",
            fontsize=_KNEE_SIZE, fontweight="bold", color=colour, bbox=_BLANK,
        )  # fmt: skip


def _known_rates(knees: Sequence[Knee]) -> list[tuple[float, Knee]]:
    return [(knee.result.per_s, knee) for knee in knees if knee.result.per_s is not None]


def _add_legend(figure: Figure, axes: Axes, knees: Sequence[Knee], ceiling: float) -> None:
    outcomes = {outcome for knee in knees for _, _, outcome in _points(knee)}
    for outcome, marker in _MARKERS.items():
        if outcome in outcomes:
            face = style.FAINT if outcome == "met" else "white"
            axes.scatter([], [], s=75, marker=marker, facecolor=face, edgecolor=style.FAINT, label=_MEANINGS[outcome])
    if outcomes:
        # Above the panel: inside it would cover points.
        above = (axes.get_position().x0 - 0.01, ceiling)
        axes.legend(
            loc="lower left", bbox_to_anchor=above, bbox_transform=figure.transFigure, ncols=len(outcomes),
            frameon=False, fontsize=12,
        )  # fmt: skip


def _title(knees: Sequence[Knee]) -> str:
    rates = _known_rates(knees)
    if not rates:
        return "No rate was found that meets the goal"
    per_s, best = max(rates, key=lambda item: item[0])
    where = f" over {best.cell}" if len(knees) > 1 else ""
    if not best.result.is_knee:
        return f"At least {per_s:,.6g} requests/s meet the goal{where}"
    return f"{per_s:,.6g} requests/s is the highest rate that meets the goal{where}"


def _describe_conditions(knees: Sequence[Knee]) -> str:
    values = next((summary.values for knee in knees for _, summary in knee.steps), {})
    rates = [str(values[name]) for name in ("target", "workload") if values.get(name)]
    return SEPARATOR.join([f"goal: {knees[0].goal.text}", *rates, "open loop, one point a run"])
