"""Pictures of histories of results (`trend`): a panel for each history, those that changed first."""

from __future__ import annotations

import itertools
import math

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from ingest_bench.analysis.compare.trend import History, Trend
from ingest_bench.report import change_tables
from ingest_bench.report import plot_style as style
from ingest_bench.report.formatting import format_axis_number, shorten

_MAX_PANELS = 12
_ROW_IN = 2.9


def draw_all(trend: Trend) -> list[bytes]:
    """Draw every history as SVG, in as many pictures as necessary."""
    with style.as_svg():
        return [draw_trend(trend, first) for first in range(0, len(trend.histories), _MAX_PANELS)]


def draw_trend(trend: Trend, first: int | None = None) -> bytes:
    """Draw results as points and levels as lines; a page, which has the finding as its title, begins with *first*."""
    begin = first or 0
    histories = change_tables.order_histories(trend)[begin : begin + _MAX_PANELS]
    columns = 1 if len(histories) < 2 else 2
    rows = max(1, math.ceil(len(histories) / columns))
    more = len(trend.histories) - begin - len(histories)
    notes = [f"{more} more histories: give fewer columns (--column), or use the page (--html)"]
    conditions = "each point: the median of the runs of a result; hollow: an outlier with its value, not counted"
    with style.figure_style():
        part = f"Histories {begin + 1} to {begin + len(histories)}"
        title = change_tables.summarise_trend(trend) if first is None else part
        figure = style.new_figure(rows * _ROW_IN, title, conditions, None, notes if more else [])
        every = figure.subplots(rows, columns, squeeze=False).flat
        for axes in every[len(histories) :]:
            axes.set_axis_off()
        for axes, history in zip(every, histories, strict=False):
            change = "no step"
            if history.changes:
                newest = history.changes[-1]
                interval = change_tables.format_interval(newest.compared)
                change = f"{change_tables.describe_direction(newest.compared)}{f' ({interval})' if interval else ''}"
                change += f" since {change_tables.date_of(history, newest)[:10]}"
            lines = [f"{history.column}, {change_tables.format_history(history, trend)}", change]
            axes.set_title("\n".join(shorten(line, 120 // columns) for line in lines), fontsize=12, fontweight="normal")
            _draw_history(axes, history)
        return style.save_figure(figure)


def _draw_history(axes: Axes, history: History) -> None:
    counted = [place for place in range(len(history.values)) if place not in history.outliers]
    # Outliers do not stretch the axis: they are at its ends, with their values.
    low, high = (end(*(history.values[place] for place in counted), *history.line) for end in (min, max))
    margin = (high - low) * 0.05 or abs(high) * 0.05 or 1.0
    low, high = low - margin, high + margin
    for places, face in ((counted, style.BLUE), (history.outliers, "white")):
        numbers = [min(max(history.values[place], low), high) for place in places]
        axes.scatter(places, numbers, s=26, facecolor=face, edgecolor=style.BLUE, linewidth=1, zorder=2, clip_on=False)
    for place in history.outliers:
        at, text = (place, min(max(history.values[place], low), high)), format_axis_number(history.values[place])
        # Above the panel is its title.
        axes.annotate(text, at, xytext=(5, -12 if at[1] == high else 3), textcoords="offset points", fontsize=10)
    for begin, end in itertools.pairwise([0, *(change.place for change in history.changes), len(history.values)]):
        axes.plot(range(begin, end), history.line[begin:end], color=style.RED, linewidth=2.2, zorder=3)
    for change in history.changes:
        axes.axvline(change.place - 0.5, color=style.FAINT, linewidth=1.2, linestyle=(0, (4, 3)))
    axes.set_ylim(low, high)
    axes.grid(axis="y", linewidth=0.6)
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: format_axis_number(value)))
    last = len(history.dates) - 1
    places = sorted({0, *(change.place for change in history.changes), last})
    # Dates that are closer than this would overlap.
    distance = max(1, round(last / 5))
    ticks = [place for number, place in enumerate(places) if number == 0 or place - places[number - 1] >= distance]
    axes.set_xticks(ticks, [history.dates[place][:10] for place in ticks])
