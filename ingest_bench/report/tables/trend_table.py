"""What changed over nights: rows for the terminal, numbers for a CSV, and the histories drawn for the page."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from html import escape

from ingest_bench.analysis.compare.trend import Change, History, Trend
from ingest_bench.report.page import html
from ingest_bench.report.tables import changes_table
from ingest_bench.report.tables.words import beside_axis, short

NO_STEP = "no step"
_WIDTH, _HEIGHT = 460, 170
_LEFT, _RIGHT, _TOP, _BOTTOM = 72, 450, 12, 142


def newest(trend: Trend) -> list[tuple[History, Change]]:
    """Every change with its history, the last night's first, and of one night the surest."""
    found = [(history, change) for history in trend.histories for change in history.changes]
    found.sort(key=lambda each: each[1].compared.p_value or 0.0)
    return sorted(found, key=lambda each: night(*each), reverse=True)


def in_order(trend: Trend) -> list[History]:
    """The histories that changed, by their newest change, then the others."""
    changed = list({id(history): history for history, _ in newest(trend)}.values())
    return [*changed, *(history for history in trend.histories if not history.changes)]


def night(history: History, change: Change) -> str:
    """The first night that has the new level."""
    return history.nights[change.place]


def name(history: History, trend: Trend) -> str:
    """The cell, after its experiment where there are several."""
    several = len({each.experiment for each in trend.histories}) > 1
    return f"{history.experiment}: {history.cell}" if several else history.cell


def rows(trend: Trend) -> list[list[str]]:
    """A head and a row for each change, for people."""
    head = ["column", "cell", "since", "before", "after", "change", "95% interval", "nights", "what changed with it"]
    return [head, *(_row(trend, history, change) for history, change in newest(trend))]


def values(trend: Trend) -> list[list[object]]:
    """A head and a row for each night of each history; the night of a change has its share, the ends, and the facts."""
    head: list[object] = [
        *("experiment", "cell", "column", "night", "value", "level", "odd"),
        *("change", "change_low", "change_high", "facts"),
    ]
    return [head, *(row for history in trend.histories for row in _values(history))]


def summed_up(trend: Trend) -> str:
    """One line: what changed since when, the newest first, and what changed with it."""
    total, found = len(trend.histories), newest(trend)
    if not total:
        return "No verdict: no cell has enough nights"
    if not found:
        return f"Of {total} histories none has a step"
    history, change = found[0]
    said = f"{history.column} {changes_table.change(change.compared)} since {night(*found[0])} ({name(history, trend)})"
    with_it = f", with it: {'; '.join(change.facts)}" if change.facts else ", and no fact changed with it"
    changed = len({id(history) for history, _ in found})
    return f"{changed} of {total} histories changed, the last time: {said}{with_it}"


def drawn(trend: Trend) -> str:
    """HTML: a picture of each history, those that changed first."""
    cards = "".join(
        f"<div>\n<h3>{html.breakable(f'{history.column}, {name(history, trend)}')}</h3>\n{_picture(history)}\n</div>\n"
        for history in in_order(trend)
    )
    return f'<div class="cards wide-cards">\n{cards}</div>' if cards else ""


def said(change: Change, since: str) -> str:
    """Such as "-12.1% (-14.0% to -10.2%) since 2026-11-22T04-00-00Z"."""
    ends = changes_table.interval(change.compared)
    return f"{changes_table.change(change.compared)}{f' ({ends})' if ends else ''} since {since}"


def _row(trend: Trend, history: History, change: Change) -> list[str]:
    found = change.compared
    means = (short(found.first_mean), short(found.second_mean))
    which = (history.column, name(history, trend), night(history, change))
    nights = f"{found.first_runs}, {found.second_runs}"
    size = (changes_table.change(found), changes_table.interval(found))
    return [*which, *means, *size, nights, "; ".join(change.facts) or "no fact"]


def _values(history: History) -> list[list[object]]:
    by_place = {change.place: change for change in history.changes}
    return [
        [
            *(history.experiment, history.cell, history.column, night, value, level),
            "yes" if place in history.odd else "no",
            *_change(by_place.get(place)),
        ]
        for place, (night, value, level) in enumerate(zip(history.nights, history.values, history.line, strict=True))
    ]


def _change(change: Change | None) -> Sequence[object]:
    if change is None:
        return ("", "", "", "")
    relative = "" if change.compared.relative is None else change.compared.relative
    return (relative, *changes_table.ends(change.compared), "; ".join(change.facts))


def _picture(history: History) -> str:
    """The nights as points, the level as a line that breaks at each step."""
    low, high = ends(history)
    last = len(history.values) - 1

    def x(place: float) -> float:
        return _LEFT + place / last * (_RIGHT - _LEFT)

    def y(value: float) -> float:
        return _BOTTOM - (value - low) / (high - low) * (_BOTTOM - _TOP)

    parts = [
        f'<line class="rule" x1="{_LEFT}" x2="{_RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>'
        f'<text x="{_LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{beside_axis(value)}</text>'
        for value in (low, (low + high) / 2, high)
    ]
    for change in history.changes:
        at = x(change.place - 0.5)
        parts.append(f'<line class="zero" x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" y2="{_BOTTOM}"/>')
    for place, value in enumerate(history.values):
        kind = "odd" if place in history.odd else "bar"
        parts.append(f'<circle class="{kind}" cx="{x(place):.1f}" cy="{y(value):.1f}" r="3"/>')
    for begin, end in segments(history):
        points = " ".join(f"{x(place):.1f},{y(history.line[place]):.1f}" for place in range(begin, end))
        parts.append(f'<polyline class="line red" points="{points}"/>')
    for place, anchor in ((0, "start"), (last, "end")):
        text = escape(history.nights[place][:10])
        parts.append(f'<text x="{x(place):.1f}" y="{_HEIGHT - 10}" text-anchor="{anchor}">{text}</text>')
    told = [said(change, night(history, change)) for change in history.changes] or [NO_STEP]
    lines = [f"{text}; {facts(change)}" for text, change in zip(told, history.changes, strict=False)] or told
    label = escape("; ".join(told))
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}">{"".join(parts)}</svg>' + "".join(
        f'<p class="faint">{escape(line)}</p>' for line in lines
    )


def facts(change: Change) -> str:
    """What changed with it, in words."""
    return f"with it: {'; '.join(change.facts)}" if change.facts else "no fact changed with it"


def segments(history: History) -> list[tuple[int, int]]:
    """First place, and the one after the last, of each stretch between steps."""
    places = [0, *(change.place for change in history.changes), len(history.values)]
    return list(itertools.pairwise(places))


def ends(history: History) -> tuple[float, float]:
    """The least and the greatest number of its picture, which differ."""
    low, high = (found(*history.values, *history.line) for found in (min, max))
    room = (high - low) * 0.05 or abs(high) * 0.05 or 1.0
    return low - room, high + room
