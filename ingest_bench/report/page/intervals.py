"""Comparisons drawn as intervals: for each column the changes of its cells on one scale, no change in the middle."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from html import escape

from ingest_bench.analysis.compare.comparison import Comparison
from ingest_bench.report.page import html
from ingest_bench.report.tables import changes_table

_WIDTH, _HEIGHT = 400, 26
_MIDDLE, _HALF = _WIDTH / 2, _WIDTH / 2 - 14
# A longer interval ends in an arrow: one cell with two noisy runs would press all others to a point.
_WIDEST = 1.0
_NARROWEST = 0.01


def drawn(found: Sequence[Comparison]) -> str:
    """HTML: for each column a heading with its scale, and a row for each comparison, which come by column."""
    parts = []
    for column, several in itertools.groupby(found, lambda each: each.column):
        group = list(several)
        scale = _scale(group)
        rows = "".join(_row(each, scale) for each in group)
        parts.append(
            f"<h3>{escape(column)}</h3>\n"
            f'<p class="faint">Scale: -{scale:.0%} to +{scale:.0%}; the line in the middle is no change.</p>\n'
            f'<div class="intervals">\n{rows}</div>'
        )
    return "\n".join(parts)


def _scale(group: Sequence[Comparison]) -> float:
    """The share that the ends of the picture stand for: all that is in it, within reason."""
    ends = [abs(end) for each in group for end in each.relative_interval or (each.relative or 0.0,)]
    return min(_WIDEST, max(_NARROWEST, *ends))


def _row(found: Comparison, scale: float) -> str:
    said = f"<b>{escape(changes_table.change(found))}</b>"
    if found.relative_interval is not None:
        said += f" ({escape(changes_table.interval(found))})"
    elif found.interval is None:
        said += f" {changes_table.NO_VERDICT}"
    if found.is_distinct is not None:
        said += f", {changes_table.verdict(found)}"
    kind = "changed" if found.is_distinct else "unknown"
    text = f"{changes_table.change(found)} {changes_table.interval(found)}".strip()
    return (
        f"<div>{html.breakable(changes_table.cell(found))}</div>\n"
        f'<svg class="{kind}" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(text)}">'
        f'<rect class="frame" width="{_WIDTH}" height="{_HEIGHT}" rx="4"/>'
        f'<line class="zero" x1="{_MIDDLE:g}" x2="{_MIDDLE:g}" y1="0" y2="{_HEIGHT}"/>'
        f"{_interval(found, scale)}</svg>\n"
        f'<div class="said">{said}</div>\n'
    )


def _interval(found: Comparison, scale: float) -> str:
    """The interval and the change in it; no interval where nobody knows it, and nothing where there is no share."""
    if found.relative is None:
        return ""
    middle = _HEIGHT / 2
    parts = []
    if found.relative_interval is not None:
        low, high = found.relative_interval
        left, right = _place(low, scale), _place(high, scale)
        parts.append(f'<line class="span" x1="{left:.1f}" x2="{right:.1f}" y1="{middle:g}" y2="{middle:g}"/>')
        for end, at, outward in ((low, left, -7), (high, right, 7)):
            if abs(end) > scale:
                points = f"{at + outward:.1f},{middle:g} {at:.1f},{middle - 6:g} {at:.1f},{middle + 6:g}"
                parts.append(f'<polygon class="point" points="{points}"/>')
            else:
                parts.append(f'<line class="span" x1="{at:.1f}" x2="{at:.1f}" y1="7" y2="{_HEIGHT - 7}"/>')
    if found.relative_interval is None and abs(found.relative) > scale:
        end, outward = _place(found.relative, scale), 7 if found.relative > 0 else -7
        points = f"{end + outward:.1f},{middle:g} {end:.1f},{middle - 6:g} {end:.1f},{middle + 6:g}"
        parts.append(f'<polygon class="point" points="{points}"/>')
    if abs(found.relative) <= scale:
        parts.append(f'<circle class="point" cx="{_place(found.relative, scale):.1f}" cy="{middle:g}" r="5"/>')
    return "".join(parts)


def _place(share: float, scale: float) -> float:
    return _MIDDLE + max(-1.0, min(1.0, share / scale)) * _HALF
