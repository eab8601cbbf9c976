"""The picture of many nights: a panel for each history, those that changed first."""

from __future__ import annotations

import math

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from ingest_bench.analysis.compare.trend import History, Trend
from ingest_bench.report.plots.plots_style import (
    FAINT,
    PALETTE,
    RULE,
    WIDTH_IN,
    figure,
    fitted,
    footed,
    headed,
    saved,
    style,
)
from ingest_bench.report.tables import trend_table as told
from ingest_bench.report.tables.words import beside_axis

_MOST_PANELS = 12
_PANEL_IN, _ABOVE_IN, _BELOW_IN = 1.75, 0.75, 0.4


def trend(found: Trend) -> bytes:
    """A PNG: each night a point, the level a line that breaks where it changed."""
    shown = told.in_order(found)[:_MOST_PANELS]
    columns = 1 if len(shown) < 2 else 2
    lines = math.ceil(len(shown) / columns)
    rest = len(found.histories) - len(shown)
    notes = [f"{rest} more histories are not drawn: give fewer columns (--column), or see the page (--html)"] * (
        rest > 0
    )
    with style():
        made = figure(2.6 + max(1, lines) * (_PANEL_IN + _ABOVE_IN + _BELOW_IN))
        top = headed(made, told.summed_up(found), "each point: the median of a night's runs; hollow: odd, not counted")
        height_in = made.get_figheight()
        bottom = footed(made, notes)
        share = (top - bottom) / max(1, lines)
        wide = 1 / columns
        for number, history in enumerate(shown):
            left = (number % columns) * wide + 1.0 / WIDTH_IN
            floor = top - (number // columns + 1) * share + _BELOW_IN / height_in
            size = (wide - 1.55 / WIDTH_IN, share - (_ABOVE_IN + _BELOW_IN) / height_in)
            axes = made.add_axes((left, floor, *size))
            most_in = size[0] * WIDTH_IN
            titles = [f"{history.column}, {told.name(history, found)}", *_said(history)]
            axes.set_title("\n".join(fitted(made, text, 12, most_in) for text in titles), loc="left", fontsize=12)
            _panel(axes, history)
        return saved(made)


def _said(history: History) -> list[str]:
    """The newest change of it."""
    if not history.changes:
        return [told.NO_STEP]
    change = history.changes[-1]
    return [told.said(change, told.night(history, change)[:10])]


def _panel(axes: Axes, history: History) -> None:
    counted = [place for place in range(len(history.values)) if place not in history.odd]
    for places, face in ((counted, PALETTE[0]), (history.odd, "white")):
        numbers = [history.values[place] for place in places]
        axes.scatter(places, numbers, s=26, facecolor=face, edgecolor=PALETTE[0], linewidth=1.0, zorder=2)
    for begin, end in told.segments(history):
        axes.plot(range(begin, end), history.line[begin:end], color=PALETTE[1], linewidth=2.2, zorder=3)
    for change in history.changes:
        axes.axvline(change.place - 0.5, color=FAINT, linewidth=1.2, linestyle=(0, (4, 3)))
    axes.set_ylim(*told.ends(history))
    axes.grid(visible=True, axis="y", color=RULE, linewidth=0.6)
    axes.tick_params(length=0)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: beside_axis(value)))
    last = len(history.nights) - 1
    places = sorted({0, *(change.place for change in history.changes), last})
    # Two days that are nearer than this would be written over one another.
    apart = max(1, round(last / 5))
    shown = [place for number, place in enumerate(places) if number == 0 or place - places[number - 1] >= apart]
    axes.set_xticks(shown, [history.nights[place][:10] for place in shown])
