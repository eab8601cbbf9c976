"""What the page's charts are drawn from: each run's series on one axis of seconds, with its faults and stalls. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import isfinite
from typing import Any

from ingest_bench.model.results import Series, Summary
from ingest_bench.report.page import html
from ingest_bench.report.tables import stall_table

Point = tuple[float, float]
# Of a longer series each part has its lowest and its highest value: a day of seconds is more than a screen has pixels.
_MOST_POINTS = 4000
# Title of a panel; of its lines: series, name, colour, and how it is drawn. "steps": each value is of the second that
# begins at its moment. "seconds": the same, as a line through the middles, with a hole where a second is missing.
_Line = tuple[str, str, str, str]
_PANELS: tuple[tuple[str, tuple[_Line, ...]], ...] = (
    ("Documents/s", (("docs_per_s", "documents/s", "blue", "steps"),)),
    (
        "Response, ms: median blue, longest red",
        (
            ("response_ms_max", "longest response, ms", "red", "seconds"),
            ("response_ms_p50", "median response, ms", "blue", "seconds"),
        ),
    ),
    ("GC pauses, ms", (("gc_pause_ms", "GC pause, ms", "red", "bars"),)),
    ("Heap in use, bytes", (("heap_bytes", "heap, bytes", "green", "line"),)),
    ("Objects of 1 MiB and more, bytes", (("large_allocation_bytes", "object, bytes", "pink", "bars"),)),
)
_HINT = (
    "Drag to zoom, double-click for all of it. By keys, once it has the focus: + and - zoom, arrows move, 0 shows all."
)


def run(found: Summary) -> dict[str, Any] | None:
    """The run for the script: ends and points in seconds from the start of the measurement; None without series."""
    start_ns = found.measure_start_ns
    if start_ns is None or found.measure_end_ns is None:
        return None
    panels = [panel for title, lines in _PANELS if (panel := _panel(found, title, lines, start_ns))]
    if not panels:
        return None
    to = (found.measure_end_ns - start_ns) / 1e9
    # From the first second of the load: what the heap was while the server booted is no warm-up.
    load = found.series.get("docs_per_s")
    begin = min(0.0, (load.at_ns[0] - start_ns) / 1e9) if load and load.at_ns else 0.0
    faults = [
        {"kind": fault.kind, "from": left, "to": right}
        for fault in found.faults
        for left, right in [_ends((fault.started, fault.ended or fault.started), start_ns)]
        # Of another time than the load: its record is damaged, or clocks were set.
        if right >= begin and left <= to
    ]
    stalls = [
        {"cause": stall_table.shown([stall]), "from": left, "to": right}
        for stall in found.stalls
        for left, right in [_ends((stall.start_ns, stall.end_ns), start_ns)]
    ]
    spans = {"faults": faults, "stalls": stalls}
    return {"title": f"{found.run} over time", "from": begin, "to": to, "panels": panels, **spans}


def figure(number: int, found: Summary) -> str:
    """HTML: where the script draws the run of that number."""
    name = escape(found.run)
    return (
        f'<figure data-run="{number}">\n<figcaption>{html.breakable(found.run)}</figcaption>\n'
        f'<svg tabindex="0" role="img" aria-label="{name} over time"></svg>\n'
        f'<p class="said" aria-live="polite">{_HINT}</p>\n</figure>'
    )


def _panel(found: Summary, title: str, lines: Sequence[_Line], start_ns: int) -> dict[str, Any] | None:
    drawn = [
        {"name": name, "colour": colour, "kind": kind, "points": points}
        for series, name, colour, kind in lines
        if series in found.series and (points := _points(found.series[series], start_ns))
    ]
    return {"title": title, "lines": drawn} if drawn else None


def _points(series: Series, start_ns: int) -> list[Point]:
    points = [
        (round((at - start_ns) / 1e9, 6), float(f"{value:.6g}"))
        for at, value in zip(series.at_ns, series.values, strict=True)
        # JSON has no other numbers, and there is no place for them in a picture.
        if isfinite(value)
    ]
    if len(points) <= _MOST_POINTS:
        return points
    size = -(-len(points) // (_MOST_POINTS // 2))
    parts = (points[at : at + size] for at in range(0, len(points), size))
    return [
        point
        for part in parts
        for point in sorted({min(part, key=lambda each: each[1]), max(part, key=lambda each: each[1])})
    ]


def _ends(moments: Sequence[int], start_ns: int) -> list[float]:
    return [(moment - start_ns) / 1e9 for moment in moments]
