"""Picture of a search: the limited number by rate, with the limit and the knee marked."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from ingest_bench import units
from ingest_bench.analysis.search import Knee
from ingest_bench.report import plot_style as style
from ingest_bench.report.formatting import format_count
from ingest_bench.report.search_table import describe_knees

_LIMIT_COLOUR = "#b00020"
_PANEL_IN = 5.2  # with its axis and legend
_KNEE_IN = 0.3  # each knee has a line of its own above the panel
# Background of a text: no line goes through it.
_BLANK: Any = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}
_MARKERS = {"met": "o", "missed": "X", "generator": "s"}
_MEANINGS = {"met": "met the goal", "missed": "missed it", "generator": "the load generator was the limit"}


def draw_knee(knees: Sequence[Knee]) -> bytes:
    """Draw one line for each cell: the limited number by the planned rate."""
    colours = style.assign_colours(knee.cell for knee in knees)
    with style.figure_style():
        figure = style.new_figure(
            _PANEL_IN + _KNEE_IN * len(_known_rates(knees)),
            _title(knees),
            _describe_conditions(knees),
            colours if len(knees) > 1 else {},
            [line if len(line) <= 150 else f"{line[:149]}…" for line in describe_knees(knees)],
        )
        axes = figure.subplots()
        _prepare_axes(axes, knees)
        for knee in knees:
            _draw_line(axes, knee, colours[knee.cell])
        _draw_limit(axes, knees)
        _mark_knees(axes, knees, colours)
        outcomes = {outcome for knee in knees for _, _, outcome in _points(knee)}
        for outcome, marker in _MARKERS.items():
            if outcome in outcomes:
                face = style.FAINT if outcome == "met" else "white"
                text = _MEANINGS[outcome]
                axes.scatter([], [], s=75, marker=marker, facecolor=face, edgecolor=style.FAINT, label=text)
        if outcomes:
            # Below the panel: inside it would cover points.
            axes.legend(loc="upper left", bbox_to_anchor=(-0.01, -0.12), ncols=len(outcomes), fontsize=12)
        return style.save_figure(figure)


def _prepare_axes(axes: Axes, knees: Sequence[Knee]) -> None:
    limit = knees[0].goal.plotted_limit
    axes.set_xlabel("requests planned in a second")
    axes.grid(linewidth=0.6)
    # Room for the text of the limit above all points.
    axes.margins(y=0.08)
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


def _mark_knees(axes: Axes, knees: Sequence[Knee], colours: Mapping[str, str]) -> None:
    """Draw each knee up to its number above the panel, which is left of its line, and lower where the rate is lower."""
    for row, (per_s, knee) in enumerate(sorted(_known_rates(knees), key=lambda item: item[0])):
        colour = colours[knee.cell]
        axes.axvline(per_s, color=colour, linewidth=1.2, linestyle=":")
        axes.annotate(
            f"knee {per_s:,.6g}/s" if knee.result.is_knee else f"at least {per_s:,.6g}/s",
            (per_s, 1), xycoords=("data", "axes fraction"), xytext=(0, 8 + 72 * _KNEE_IN * row),
            textcoords="offset points", ha="right", fontsize=14, fontweight="bold", color=colour, bbox=_BLANK,
            arrowprops={"arrowstyle": "-", "color": colour, "linestyle": ":", "relpos": (1, 0), "shrinkB": 0},
        )  # fmt: skip


def _known_rates(knees: Sequence[Knee]) -> list[tuple[float, Knee]]:
    return [(knee.result.per_s, knee) for knee in knees if knee.result.per_s is not None]


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
    return style.join_conditions([f"goal: {knees[0].goal.text}", *rates, "open loop, one point a run"])
