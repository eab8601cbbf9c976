"""The picture of a search: what the goal limits against the rate, with the limit and the knee marked."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from ingest_bench import units
from ingest_bench.analysis.search.knees import Knee
from ingest_bench.report.plots.plots_style import (
    FAINT,
    NOTE_IN,
    RULE,
    WIDTH_IN,
    colours,
    figure,
    footed,
    headed,
    saved,
    style,
    text_width_in,
)
from ingest_bench.report.tables.words import SEPARATOR, counted

_LIMIT = "#b00020"
_BENEATH_IN = 4.7  # panel and axis
_LEFT_IN, _RIGHT_IN = 1.15, 0.6  # of the panel
_KNEE_SIZE, _KNEE_IN = 14, 0.3  # the number of a knee has a line of its own
# Behind a text: no line goes through it.
_BLANK: Any = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}
_MARKS = {"met": "o", "missed": "X", "generator": "s"}
_MEANINGS = {"met": "met the goal", "missed": "missed it", "generator": "the load generator was the limit"}


def knee(knees: Sequence[Knee]) -> bytes:
    """A PNG with one line a cell: the limited number against the planned rate."""
    with style():
        made = figure()
        paint = colours(each.cell for each in knees)
        marks_in = _KNEE_IN * len(_known(knees))
        names = paint if len(knees) > 1 else {}
        notes = _notes(knees)
        beneath_in = _BENEATH_IN + marks_in + NOTE_IN * len(notes)
        top = headed(made, _title(knees), _conditions(knees), names, beneath_in)
        height_in = made.get_figheight()
        bottom = footed(made, notes) + 0.95 / height_in
        ceiling = top - 0.45 / height_in
        place = (
            _LEFT_IN / WIDTH_IN,
            bottom,
            1 - (_LEFT_IN + _RIGHT_IN) / WIDTH_IN,
            ceiling - bottom - marks_in / height_in,
        )
        axes = made.add_axes(place)
        _axes(axes, knees)
        for each in knees:
            _line(axes, each, paint[each.cell])
        _goal(axes, knees)
        _marks(made, axes, knees, paint)
        _legend(made, axes, knees, ceiling)
        return saved(made)


def _axes(axes: Axes, knees: Sequence[Knee]) -> None:
    limit = knees[0].goal.shown
    axes.set_xlabel("requests planned in a second")
    axes.grid(visible=True, color=RULE, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.patch.set_visible(False)
    # There is room for the name of a limit above all points.
    axes.margins(y=0.08)
    axes.tick_params(length=0, which="both")
    rates = [x for each in knees for x, _, _ in _points(each)] or [1.0]
    axes.set_xlim(0, max(rates) * 1.08)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: counted(value)))
    if limit.column:
        axes.set_yscale("log")
        axes.set_ylabel(f"{'' if limit.name.startswith('service') else 'response '}{limit.name}")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: units.format_time(value * 1e6)))
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_ylabel(limit.name)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.2%}"))


def _points(each: Knee) -> Iterator[tuple[float, float, str]]:
    """Rate, value and outcome of every step that has a number, or whose number has a bound."""
    limit = each.goal.shown
    for tried, summary in each.steps:
        value = limit.at_most(summary.values)
        if tried.per_s is not None and math.isfinite(value) and tried.outcome != "broken":
            yield tried.per_s, value, tried.outcome


def _line(axes: Axes, each: Knee, colour: str) -> None:
    points = sorted(_points(each))
    # Where a rate was run twice the line goes through the worse run: that one decides.
    worst = {x: y for x, y, _ in points}
    axes.plot(list(worst), list(worst.values()), color=colour, linewidth=1.2, alpha=0.6)
    for outcome, mark in _MARKS.items():
        chosen = [(x, y) for x, y, kind in points if kind == outcome]
        face = colour if outcome == "met" else "white"
        axes.scatter(
            [x for x, _ in chosen], [y for _, y in chosen], s=75, marker=mark, facecolor=face, edgecolor=colour,
            linewidth=1.6, zorder=3,
        )  # fmt: skip


def _goal(axes: Axes, knees: Sequence[Knee]) -> None:
    """The limit across, with its name."""
    limit = knees[0].goal.shown
    axes.axhline(limit.below, color=_LIMIT, linewidth=1.6, linestyle=(0, (5, 3)))
    axes.annotate(
        limit.text, (0, limit.below), xycoords=("axes fraction", "data"), xytext=(8, 5), textcoords="offset points",
        color=_LIMIT, fontsize=13, fontweight="bold", bbox=_BLANK, zorder=4,
    )  # fmt: skip


def _marks(made: Figure, axes: Axes, knees: Sequence[Knee], paint: Mapping[str, str]) -> None:
    """Each knee from the axis up to its number, which stands above the panel: lower where the rate is lower.

    The number is at the left of its line, where no higher rate has one. At the edge of the page it moves to the right.
    """
    height_in, inner = made.get_figheight(), axes.get_position()
    for row, (per_s, each) in enumerate(sorted(_known(knees), key=lambda known: known[0])):
        colour = paint[each.cell]
        text = f"knee {per_s:,.6g}/s" if each.found.is_knee else f"at least {per_s:,.6g}/s"
        at = inner.x0 + inner.width * min(1.0, per_s / axes.get_xlim()[1])
        wide = text_width_in(made, text, _KNEE_SIZE) / WIDTH_IN
        base = inner.y1 + _KNEE_IN * row / height_in
        # Beneath the panel's own lines and texts.
        line = Line2D((at, at), (inner.y0, base), color=colour, linewidth=1.2, linestyle=":", zorder=-1)
        made.add_artist(line)
        made.text(
            max(at, 0.02 + wide), base + _KNEE_IN / 2 / height_in, text, ha="right", va="center",
            fontsize=_KNEE_SIZE, fontweight="bold", color=colour, bbox=_BLANK,
        )  # fmt: skip


def _known(knees: Sequence[Knee]) -> list[tuple[float, Knee]]:
    """Those that have a rate, with it."""
    return [(each.found.per_s, each) for each in knees if each.found.per_s is not None]


def _legend(made: Figure, axes: Axes, knees: Sequence[Knee], ceiling: float) -> None:
    seen = {outcome for each in knees for _, _, outcome in _points(each)}
    for outcome, mark in _MARKS.items():
        if outcome in seen:
            face = FAINT if outcome == "met" else "white"
            axes.scatter([], [], s=75, marker=mark, facecolor=face, edgecolor=FAINT, label=_MEANINGS[outcome])
    if seen:
        # Above the panel: inside it would cover points.
        above = (axes.get_position().x0 - 0.01, ceiling)
        axes.legend(
            loc="lower left", bbox_to_anchor=above, bbox_transform=made.transFigure, ncols=len(seen), frameon=False,
            fontsize=12,
        )  # fmt: skip


def _title(knees: Sequence[Knee]) -> str:
    known = [each for each in knees if each.found.per_s is not None]
    if not known:
        return "No rate was found that meets the goal"
    best = max(known, key=lambda each: each.found.per_s or 0.0)
    rate = f"{best.found.per_s:,.6g} requests/s"
    where = f" over {best.cell}" if len(knees) > 1 else ""
    if not best.found.is_knee:
        return f"At least {rate} meet the goal{where}"
    return f"{rate} is the most that meets the goal{where}"


def _conditions(knees: Sequence[Knee]) -> str:
    first = next((summary.values for each in knees for _, summary in each.steps), {})
    known = [str(first[name]) for name in ("target", "workload") if first.get(name)]
    return SEPARATOR.join([f"goal: {knees[0].goal.text}", *known, "open loop, one point a run"])


def _notes(knees: Sequence[Knee]) -> list[str]:
    lines = [f"{each.cell}: {each.found.said}" if each.cell else each.found.said for each in knees]
    return [line if len(line) <= 150 else f"{line[:149]}…" for line in lines]
