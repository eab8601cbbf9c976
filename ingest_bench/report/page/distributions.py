"""How sizes of reads and response times are spread, cell by cell, as SVG that takes the look of its page."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor, log2, log10

from ingest_bench.analysis.compare.cells import CellRuns
from ingest_bench.analysis.numbers import histogram
from ingest_bench.analysis.run import closed_loop
from ingest_bench.nearest_rank import percentile
from ingest_bench.report.page import html
from ingest_bench.report.tables.words import bytes_text, counted

_WIDTH, _HEIGHT = 320, 130
_LEFT, _RIGHT, _TOP, _BOTTOM = 14, 306, 8, 108
_BINS_PER_OCTAVE = 4
# What is known of response times. They stand evenly apart: no request is left out by the last one.
_KNOWN = (
    ("response_ms_p50", "50%"),
    ("response_ms_p99", "99%"),
    ("response_ms_p999", "99.9%"),
    ("response_ms_max", "all"),
)


def reads(rows: Sequence[CellRuns]) -> str:
    """HTML: a histogram of read sizes for each cell, all on one axis; empty where no reads were measured."""
    known = [(row, counts) for row in rows if (counts := row.counts("read_bytes"))]
    if not known:
        return ""
    # A bar below 0.5% is too low to be seen: rare small reads would only squeeze the others.
    low = min(log2(percentile(counts, 0.5) or 1) for _, counts in known) - 0.5
    high = max(max(log2(max(counts)) for _, counts in known) + 0.3, low + 4)
    return _cards([(row, _histogram(row, counts, low, high)) for row, counts in known])


def responses(rows: Sequence[CellRuns]) -> str:
    """HTML: for each cell within which time so many of its requests were answered, the median over its runs.

    One logarithmic axis for all cells. Empty where no response was measured.
    """
    known = [(row, times) for row in rows if len(times := _times(row)) > 1]
    if not known:
        return ""
    low = floor(log10(min(value for _, times in known for _, value in times)))
    high = ceil(log10(max(value for _, times in known for _, value in times)))
    return _cards([(row, _curve(times, low, max(high, low + 1)) + _hidden(row)) for row, times in known])


def _histogram(row: CellRuns, counts: dict[int, int], low: float, high: float) -> str:
    def x(exponent: float) -> float:
        return _LEFT + (min(max(exponent, low), high) - low) / (high - low) * (_RIGHT - _LEFT)

    bins = histogram.bins(counts, _BINS_PER_OCTAVE)
    most = max(number for _, _, number in bins)
    bars = []
    for lower, upper, number in bins:
        # The bin of 1 byte would begin at minus infinity: it is as wide as the others.
        left, right = x(log2(lower - 1) if lower > 1 else -1 / _BINS_PER_OCTAVE), x(log2(upper))
        height = number / most * (_BOTTOM - _TOP)
        if right > left and number:
            place = f'x="{left:.1f}" y="{_BOTTOM - height:.1f}" width="{right - left:.1f}" height="{height:.1f}"'
            bars.append(f'<rect class="bar" {place}/>')
    step = ceil((high - low) / 4)
    ticks = [
        _label(x(at), bytes_text(2**at)) for at in range(ceil(low), floor(high) + 1) if at % step == 0 and x(at) > 25
    ]
    mean = row.typical("read_bytes_mean")
    said = f"{counted(histogram.total(counts))} reads" + (f", {bytes_text(mean)} on average" if mean else "")
    return _svg([*bars, _base(), *ticks], said) + f'<p class="faint">{said}</p>'


def _times(row: CellRuns) -> list[tuple[int, float]]:
    """What is known, as (place, ms); a percentile is empty where there are too few requests for it."""
    found = [(place, row.typical(column)) for place, (column, _) in enumerate(_KNOWN)]
    return [(place, value) for place, value in found if value is not None and value > 0]


def _curve(times: Sequence[tuple[int, float]], low: int, high: int) -> str:
    def x(place: int) -> float:
        return _LEFT + 48 + place / (len(_KNOWN) - 1) * (_RIGHT - _LEFT - 68)

    def y(value: float) -> float:
        return _BOTTOM - (log10(value) - low) / (high - low) * (_BOTTOM - _TOP)

    heights = [(10.0**at, y(10.0**at)) for at in range(low, high + 1, ceil((high - low) / 4))]
    rules = [
        f'<line class="rule" x1="{x(0):.1f}" x2="{x(len(_KNOWN) - 1):.1f}" y1="{at:.1f}" y2="{at:.1f}"/>'
        f'<text x="{x(0) - 8:.1f}" y="{at + 4:.1f}" text-anchor="end">{_time(ms)}</text>'
        for ms, at in heights
    ]
    path = " ".join(f"{x(place):.1f},{y(value):.1f}" for place, value in times)
    points = [f'<circle class="bar" cx="{x(place):.1f}" cy="{y(value):.1f}" r="4"/>' for place, value in times]
    ticks = [_label(x(place), text) for place, (_, text) in enumerate(_KNOWN)]
    said = ", ".join(f"{_KNOWN[place][1]} within {counted(value)} ms" for place, value in times)
    return (
        _svg([*rules, f'<polyline class="line blue" points="{path}"/>', *points, *ticks], said)
        + f'<p class="faint">{said}</p>'
    )


def _hidden(row: CellRuns) -> str:
    """What a closed loop hides of these times, of the run that hides most."""
    worst = max(
        row.measured_or_oom.valid, key=lambda run: float(run.values.get("idle_while_waiting_s") or 0), default=None
    )
    said = closed_loop.hidden(worst) if worst else ""
    return f'<p class="hides">{html.breakable(said)}</p>' if said else ""


def _time(ms: float) -> str:
    return f"{ms / 1000:g} s" if ms >= 1000 else f"{ms:g} ms"


def _cards(drawn: Sequence[tuple[CellRuns, str]]) -> str:
    cards = "".join(f"<div>\n<h3>{html.breakable(row.name)}</h3>\n{content}\n</div>\n" for row, content in drawn)
    return f'<div class="cards">\n{cards}</div>'


def _svg(parts: Sequence[str], said: str) -> str:
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{said}">{"".join(parts)}</svg>'


def _base() -> str:
    return f'<line class="rule" x1="{_LEFT}" x2="{_RIGHT}" y1="{_BOTTOM}" y2="{_BOTTOM}"/>'


def _label(x: float, text: str) -> str:
    return f'<text x="{x:.1f}" y="{_HEIGHT - 6}" text-anchor="middle">{text}</text>'
