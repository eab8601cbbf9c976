"""The picture of a search: what the goal limits against the rate, with the limit and the knee marked."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from ingest_bench import units
from ingest_bench.analysis.search.knees import Knee
from ingest_bench.report.plots.plots_style import FAINT, RULE, WIDTH_IN, colours, figure, footed, headed, saved, style
from ingest_bench.report.tables.words import SEPARATOR, counted

_LIMIT = "#b00020"
_BENEATH_IN = 5.6  # panel, axis and notes
_MARKS = {"met": "o", "missed": "X", "generator": "s"}
_MEANINGS = {"met": "met the goal", "missed": "missed it", "generator": "the load generator was the limit"}


def knee(knees: Sequence[Knee]) -> bytes:
    """A PNG with one line a cell: the limited number against the planned rate."""
    with style():
        made = figure()
        paint = colours(each.cell for each in knees)
        top = headed(made, _title(knees), _conditions(knees), paint if len(knees) > 1 else {}, _BENEATH_IN)
        bottom = footed(made, _notes(knees)) + 0.95 / made.get_figheight()
        axes = made.add_axes((1.15 / WIDTH_IN, bottom, 1 - 1.75 / WIDTH_IN, top - bottom - 0.45 / made.get_figheight()))
        _axes(axes, knees)
        for each in knees:
            _line(axes, each, paint[each.cell])
        _marks(axes, knees, paint)
        _legend(axes, knees)
        return saved(made)


def _axes(axes: Axes, knees: Sequence[Knee]) -> None:
    limit = knees[0].goal.shown
    axes.set_xlabel("requests planned in a second")
    axes.grid(visible=True, color=RULE, linewidth=0.6)
    axes.set_axisbelow(True)
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


def _marks(axes: Axes, knees: Sequence[Knee], paint: Mapping[str, str]) -> None:
    """The limit across, and each knee down to the axis."""
    limit = knees[0].goal.shown
    axes.axhline(limit.below, color=_LIMIT, linewidth=1.6, linestyle=(0, (5, 3)))
    axes.annotate(
        limit.text, (0, limit.below), xycoords=("axes fraction", "data"), xytext=(8, 5), textcoords="offset points",
        color=_LIMIT, fontsize=13, fontweight="bold",
    )  # fmt: skip
    for number, each in enumerate(knees):
        if each.found.per_s is None:
            continue
        axes.axvline(each.found.per_s, color=paint[each.cell], linewidth=1.2, linestyle=":")
        axes.annotate(
            f"knee {each.found.per_s:,.6g}/s" if each.found.is_knee else f"at least {each.found.per_s:,.6g}/s",
            (each.found.per_s, 1), xycoords=("data", "axes fraction"), textcoords="offset points",
            xytext=(-6, -4 - 20 * number),
            ha="right", va="top", fontsize=14, fontweight="bold", color=paint[each.cell],
        )  # fmt: skip


def _legend(axes: Axes, knees: Sequence[Knee]) -> None:
    seen = {outcome for each in knees for _, _, outcome in _points(each)}
    for outcome, mark in _MARKS.items():
        if outcome in seen:
            face = FAINT if outcome == "met" else "white"
            axes.scatter([], [], s=75, marker=mark, facecolor=face, edgecolor=FAINT, label=_MEANINGS[outcome])
    if seen:
        # Above the panel: inside it would cover points.
        axes.legend(loc="lower left", bbox_to_anchor=(-0.01, 1.0), ncols=len(seen), frameon=False, fontsize=12)


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
    return [line if len(line) <= 150 else f"{line[:149]}…" for line in lines[:4]]
