"""Charts of the pages: data for the script (runs over time, stacks), and SVG for what needs no script."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from math import ceil, floor, isfinite, log2, log10
from typing import Any
from urllib.parse import quote

from ingest_bench.analysis import quantiles
from ingest_bench.analysis.compare import cells
from ingest_bench.analysis.compare.cells import CellRuns
from ingest_bench.analysis.compare.comparison import Comparison
from ingest_bench.analysis.run import generator
from ingest_bench.model.results import Summary
from ingest_bench.report import change_tables, stall_table
from ingest_bench.report.formatting import format_count, format_size, shorten
from ingest_bench.report.grid import Grid, GridPanel

Point = tuple[float, float]
# A longer series keeps the lowest and highest value of each part: a day of seconds has more points than a screen.
_MAX_POINTS = 4000
# Title of a panel; of its lines: series, name, colour, kind. "steps": a value holds for the second that begins at its
# time. "seconds": the same as a line through the middles, interrupted where a second is missing.
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
    ("Heap in use", (("heap_bytes", "heap", "green", "line"),)),
    (
        "Memory of the process: resident blue, direct buffers red, Netty's chunks green",
        (
            ("server_rss_bytes", "resident memory", "blue", "line"),
            ("direct_buffer_bytes", "direct buffers", "red", "line"),
            ("netty_chunk_bytes", "Netty's chunks", "green", "line"),
        ),
    ),
    ("Objects of 1 MiB and more", (("large_allocation_bytes", "object", "blue", "bars"),)),
)
_CHART_HINT = (
    "Drag to zoom, double-click for everything. With the keyboard focus: + and - zoom, arrows move, 0 shows everything."
)

# Narrower frames are merged with their narrow siblings.
_NARROWEST_FRAME = 0.002
# Servers with deep stacks have a few thousand frames that wide; if there are more, the narrowest are merged too.
_MAX_FRAMES = 4000
MAX_ICICLE_BYTES = 2_000_000
"""Limit for all icicles of a page: a folder of hundreds of runs would make a page that no browser opens."""
# File names have at most 235 bytes (results/safe_files.py), and a prefix and a suffix are added.
_MAX_NAME = 200
_ICICLE_HINT = "Click a frame to zoom. With the keyboard focus: arrow keys select, Enter zooms, 0 shows everything."
_ICICLE_KEY = (
    '<p class="key"><span class="netty">Netty</span> <span class="lucene">Lucene</span> <span class="jdk">JDK</span> '
    '<span class="other">all others</span> <span class="class">the class</span></p>'
)

_WIDTH, _HEIGHT = 320, 130
_LEFT, _RIGHT, _TOP, _BOTTOM = 14, 306, 8, 108
_BINS_PER_OCTAVE = 4
# Label and number of a row of the matrix are in one line.
_ROW_HEIGHT, _ROW_LETTERS = 40, 38
# Columns of response times. They are evenly spaced on the axis: the last one includes all requests.
_RESPONSE_COLUMNS = (
    ("response_ms_p50", "50%"),
    ("response_ms_p99", "99%"),
    ("response_ms_p999", "99.9%"),
    ("response_ms_max", "all"),
)

_INTERVAL_WIDTH, _INTERVAL_HEIGHT = 400, 26
_MIDDLE, _HALF = _INTERVAL_WIDTH / 2, _INTERVAL_WIDTH / 2 - 14
# A longer interval ends in an arrow: one cell with two noisy runs would press all others to a point.
_WIDEST_SCALE, _NARROWEST_SCALE = 1.0, 0.01


def chart_data(run: Summary) -> dict[str, Any] | None:
    """Return the run over time for the script, in seconds from the start of the measurement; None without series."""
    if run.measure_start_ns is None or run.measure_end_ns is None:
        return None
    panels = []
    for title, lines in _PANELS:
        drawn = [
            {"name": name, "colour": colour, "kind": kind, "points": points, "bytes": series.endswith("_bytes")}
            for series, name, colour, kind in lines
            if series in run.series and (points := _points(run, series))
        ]
        panels += [{"title": title, "lines": drawn}] if drawn else []
    if not panels:
        return None
    # From the first second of the load: the heap while the server booted is not warm-up.
    begin, end = run.load_span_s
    faults = [{"kind": kind, "from": left, "to": right} for kind, left, right in stall_table.list_faults(run)]
    stalls = [{"cause": cause, "from": left, "to": right} for cause, left, right in stall_table.list_stalls(run)]
    spans = {"faults": faults, "stalls": stalls}
    return {"title": f"{run.run} over time", "from": begin, "to": end, "panels": panels, **spans}


def chart_figure(number: int, run: Summary) -> str:
    """Render the element in which the script draws the run with that number in the data."""
    return (
        f'<figure data-run="{number}">\n<figcaption>{escape_breakable(run.run)}</figcaption>\n'
        f'<svg tabindex="0" role="img" aria-label="{escape(run.run)} over time"></svg>\n'
        f'<p class="readout" aria-live="polite">{_CHART_HINT}</p>\n</figure>'
    )


def _points(run: Summary, name: str) -> list[Point]:
    points = [
        (round(run.seconds(at_ns), 6), float(f"{value:.6g}"))
        for at_ns, value in zip(run.series[name].at_ns, run.series[name].values, strict=True)
        # JSON has no infinity and no NaN.
        if isfinite(value)
    ]
    if len(points) <= _MAX_POINTS:
        return points
    size = -(-len(points) // (_MAX_POINTS // 2))
    parts = (points[at : at + size] for at in range(0, len(points), size))
    return [
        point
        for part in parts
        for point in sorted({min(part, key=lambda point: point[1]), max(part, key=lambda point: point[1])})
    ]


@dataclass(slots=True)
class Frame:
    """A frame with the bytes allocated in it and in all frames below it."""

    name: str
    total: int = 0
    children: dict[str, Frame] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class IcicleData:
    """The icicles of a page: the names that they share, and their graphs."""

    names: Sequence[str]
    graphs: Mapping[str, Mapping[str, Any]]
    """By run, of those that are drawn."""

    @property
    def data(self) -> dict[str, Any]:
        """The input of the script."""
        return {"names": self.names, "graphs": list(self.graphs.values())}


def folded_file_name(run: Summary) -> str:
    """Return the file with the complete stacks of a run, next to the page. It is unique for each run."""
    name = quote(run.run.replace("/", "-"), safe="=+")
    if len(name) > _MAX_NAME:
        name = f"{name[:_MAX_NAME]}-{hashlib.sha256(run.run.encode()).hexdigest()[:12]}"
    return f"allocations-{name}.folded"


def format_folded(run: Summary) -> str:
    """Format all stacks of a run in Brendan Gregg's folded form, which flamegraph.pl and speedscope read."""
    return "".join(f"{frames} {size}\n" for frames, size in sorted(run.stacks.items()))


def build_icicles(summaries: Sequence[Summary]) -> IcicleData:
    """Build the icicles of all runs with stacks up to `MAX_ICICLE_BYTES`: the first run of each cell first."""
    names: dict[str, int] = {}
    graphs: dict[str, Mapping[str, Any]] = {}
    size = 0
    groups = [[run for run in row.runs if run.stacks] for row in cells.group_by_cell(summaries)]
    first = [run for runs in groups for run in runs[:1]]
    for run in (*first, *(run for runs in groups for run in runs[1:])):
        before = len(names)
        graph = _build_graph(run, names)
        size += len(json.dumps(graph)) + len(json.dumps(list(names)[before:]))
        if size > MAX_ICICLE_BYTES:
            # Drop its names too, which may be most of the size.
            names = dict(list(names.items())[:before])
            break
        graphs[run.run] = graph
    return IcicleData(list(names), graphs)


def icicle_figure(run: Summary, icicles: IcicleData, *, is_open: bool) -> str:
    """Render the element in which the script draws the stacks of a run, or why it does not; "" without stacks."""
    if not run.stacks:
        return ""
    file = escape(folded_file_name(run))
    name = escape_breakable(run.run)
    if (graph := icicles.graphs.get(run.run)) is None:
        limit = f"{MAX_ICICLE_BYTES // 1_000_000} MB"
        return (
            f'<p class="faint">{name}: allocations by stack are not drawn, the page is limited to {limit} of them: '
            f"{file}</p>"
        )
    total, merged = graph["nodes"][0][2], graph["merged"]
    text = (
        f"{format_size(total)} in all. A frame is as wide as what it and the frames below it allocated; the last frame "
        "is the class. A TLAB counts in full for the thread that requested it."
    )
    if merged:
        text += f" {merged / total:.1%} are in frames below {graph['least']:.1%} each, which are merged."
    place = list(icicles.graphs).index(run.run)
    return (
        f"<details{' open' if is_open else ''}>\n<summary>{name}: allocations by stack</summary>\n"
        f'<p class="faint">{text} All stacks: {file}</p>\n{_ICICLE_KEY}\n'
        f'<figure data-flames="{place}">\n<svg tabindex="0" role="img" aria-label="{escape(run.run)}: allocations by '
        f'stack"></svg>\n<p class="readout" aria-live="polite">{_ICICLE_HINT}</p>\n</figure>\n</details>'
    )


def _build_graph(run: Summary, names: dict[str, int]) -> dict[str, Any]:
    """Return the frames from the top down, each as (depth, index of its name, bytes); `merged` bytes have no frame."""
    tree = Frame("all")
    for frames, size in run.stacks.items():
        frame = tree
        frame.total += size
        for name in frames.split(";"):
            frame = frame.children.setdefault(name, Frame(name))
            frame.total += size
    least = _NARROWEST_FRAME
    # No frame is wider than its caller, so the drawn frames are the widest of all.
    widest = sorted(_iterate_totals(tree), reverse=True)
    if len(widest) > _MAX_FRAMES:
        least = max(least, (widest[_MAX_FRAMES] + 1) / tree.total)
    nodes: list[tuple[int, int, int]] = []
    merged = _add_nodes(nodes, names, tree, least * tree.total)
    return {"title": run.run, "least": least, "merged": merged, "nodes": nodes}


# The next two are loops: an attached JVM may keep 2048 frames of a stack, more than Python's recursion limit.
def _iterate_totals(tree: Frame) -> Iterator[int]:
    waiting = [tree]
    while waiting:
        frame = waiting.pop()
        yield frame.total
        waiting.extend(frame.children.values())


def _add_nodes(nodes: list[tuple[int, int, int]], names: dict[str, int], tree: Frame, least: float) -> int:
    """Append the nodes of all frames with at least that many bytes; return the bytes of the others."""
    merged, waiting = 0, [(0, tree)]
    while waiting:
        depth, frame = waiting.pop()
        nodes.append((depth, names.setdefault(frame.name, len(names)), frame.total))
        children = sorted(frame.children.values(), key=lambda child: -child.total)
        small = sum(child.total for child in children if child.total < least)
        if small:
            waiting.append((depth + 1, Frame("(smaller)", small)))
            merged += small
        waiting.extend((depth + 1, child) for child in reversed(children) if child.total >= least)
    return merged


def draw_matrix(grid: Grid) -> str:
    """Draw the matrix: a card for each panel, with a line for each row; all on one scale."""
    parts = []
    for group, panels in grid.groups:
        cards = "".join(
            f"<div>\n<h3>{escape(panel.title)}</h3>\n{_draw_panel(grid, panel)}\n</div>\n" for panel in panels
        )
        parts += [f"<h3>{escape(group)}</h3>"] if group else []
        parts.append(f'<div class="matrix">\n{cards}</div>')
    return "\n".join([*parts, f'<p class="faint">{" ".join(grid.notes)}</p>'])


def _draw_panel(grid: Grid, panel: GridPanel) -> str:
    low, high = grid.limits

    def x(value: float) -> float:
        return _LEFT + (grid.place(value) - low) / (high - low) * (_RIGHT - _LEFT)

    parts = []
    for number, (label, cell) in enumerate(zip(grid.labels, panel.cells, strict=True)):
        text_y, y = number * _ROW_HEIGHT + 14, number * _ROW_HEIGHT + 26
        look = cell.mark if cell.value is not None else "missing"
        parts += [
            f'<text x="{_LEFT}" y="{text_y}">{escape(shorten(label, max(8, _ROW_LETTERS - len(cell.text))))}</text>',
            f'<text class="{look}" x="{_RIGHT}" y="{text_y}" text-anchor="end">{escape(cell.text)}</text>',
            f'<line class="rule" x1="{_LEFT}" x2="{_RIGHT}" y1="{y}" y2="{y}"/>',
        ]
        if cell.value is None:
            continue
        if cell.interval is not None:
            ends = [x(end) for end in cell.interval]
            parts.append(f'<line class="span" x1="{ends[0]:.1f}" x2="{ends[1]:.1f}" y1="{y}" y2="{y}"/>')
            parts += [
                _arrow(at, y, outward) if grid.is_beyond(end) else _cap(at, y - 5, y + 5)
                for at, end, outward in zip(ends, cell.interval, (-7, 7), strict=True)
            ]
        parts.append(f'<circle class="point {look}" cx="{x(cell.value):.1f}" cy="{y}" r="5"/>')
    rows = ", ".join(f"{label} {cell.text}" for label, cell in zip(grid.labels, panel.cells, strict=True))
    return _svg(parts, f"{panel.title}: {rows}", len(panel.cells) * _ROW_HEIGHT + 4)


def _arrow(at: float, y: float, outward: float) -> str:
    points = f"{at + outward:.1f},{y:g} {at:.1f},{y - 6:g} {at:.1f},{y + 6:g}"
    return f'<polygon class="point" points="{points}"/>'


def _cap(at: float, top: float, bottom: float) -> str:
    return f'<line class="span" x1="{at:.1f}" x2="{at:.1f}" y1="{top:g}" y2="{bottom:g}"/>'


def draw_read_sizes(rows: Sequence[CellRuns]) -> str:
    """Draw a histogram of read sizes for each cell, all on one axis; "" where no reads were measured."""
    measured = [(row, counts) for row in rows if (counts := row.counts("read_bytes"))]
    if not measured:
        return ""
    low, high = quantiles.logarithmic_limits([counts for _, counts in measured])
    return _render_cards([(row.name, _draw_histogram(row, counts, low, high)) for row, counts in measured], rows=rows)


def draw_response_times(rows: Sequence[CellRuns]) -> str:
    """Draw percentiles of each cell, the median over its runs, on one logarithmic axis; "" without any."""
    measured = [(row, times) for row in rows if len(times := _response_times(row)) > 1]
    if not measured:
        return ""
    low = floor(log10(min(value for _, times in measured for _, value in times)))
    high = ceil(log10(max(value for _, times in measured for _, value in times)))
    return _render_cards(
        [(row.name, _draw_curve(times, low, max(high, low + 1)) + _hidden_wait(row)) for row, times in measured],
        rows=rows,
    )


def _draw_histogram(row: CellRuns, counts: dict[int, int], low: float, high: float) -> str:
    def x(exponent: float) -> float:
        return _LEFT + (min(max(exponent, low), high) - low) / (high - low) * (_RIGHT - _LEFT)

    bins = quantiles.logarithmic_bins(counts, _BINS_PER_OCTAVE)
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
        _label(x(at), format_size(2**at)) for at in range(ceil(low), floor(high) + 1) if at % step == 0 and x(at) > 25
    ]
    base = f'<line class="rule" x1="{_LEFT}" x2="{_RIGHT}" y1="{_BOTTOM}" y2="{_BOTTOM}"/>'
    mean = row.median("read_bytes_mean")
    text = f"{format_count(sum(counts.values()))} reads" + (f", {format_size(mean)} on average" if mean else "")
    text += f"; highest bar: {most / sum(counts.values()):.0%}"
    if (buffer_bytes := row.median("receive_predictor_bytes")) is not None:
        at = x(log2(buffer_bytes))
        ticks.append(f'<line class="buffer" x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" y2="{_BOTTOM}"/>')
        text += f"; dashed: buffer, {format_size(buffer_bytes)}"
    return _svg([*bars, base, *ticks], text) + f'<p class="faint">{text}</p>'


def _response_times(row: CellRuns) -> list[tuple[int, float]]:
    """Return the known times as (place, ms); a percentile is empty where there are too few requests for it."""
    times = [(place, row.median(column)) for place, (column, _) in enumerate(_RESPONSE_COLUMNS)]
    return [(place, value) for place, value in times if value is not None and value > 0]


def _draw_curve(times: Sequence[tuple[int, float]], low: int, high: int) -> str:
    last = len(_RESPONSE_COLUMNS) - 1

    def x(place: int) -> float:
        return _LEFT + 48 + place / last * (_RIGHT - _LEFT - 68)

    def y(value: float) -> float:
        return _BOTTOM - (log10(value) - low) / (high - low) * (_BOTTOM - _TOP)

    heights = [(10.0**at, y(10.0**at)) for at in range(low, high + 1, ceil((high - low) / 4))]
    rules = [
        f'<line class="rule" x1="{x(0):.1f}" x2="{x(last):.1f}" y1="{at:.1f}" y2="{at:.1f}"/>'
        f'<text x="{x(0) - 8:.1f}" y="{at + 4:.1f}" text-anchor="end">'
        f"{f'{ms / 1000:g} s' if ms >= 1000 else f'{ms:g} ms'}</text>"
        for ms, at in heights
    ]
    # A percentile without a value interrupts the line.
    path = " ".join(
        f"{'L' if number and times[number - 1][0] == place - 1 else 'M'}{x(place):.1f},{y(value):.1f}"
        for number, (place, value) in enumerate(times)
    )
    points = [f'<circle class="bar" cx="{x(place):.1f}" cy="{y(value):.1f}" r="4"/>' for place, value in times]
    ticks = [_label(x(place), text) for place, (_, text) in enumerate(_RESPONSE_COLUMNS)]
    text = ", ".join(f"{_RESPONSE_COLUMNS[place][1]} within {format_count(value)} ms" for place, value in times)
    parts = [*rules, f'<path class="line first" d="{path}"/>', *points, *ticks]
    return _svg(parts, text) + f'<p class="faint">{text}</p>'


def _hidden_wait(row: CellRuns) -> str:
    """Render the remark on waits that the closed loop hides, of the run that hides most."""
    worst = max(
        row.measured_or_oom.valid, key=lambda run: float(run.values.get("idle_while_waiting_s") or 0), default=None
    )
    text = generator.describe_hidden_waiting(worst.values, worst.measured_s) if worst else ""
    return f'<p class="hides">{escape_breakable(text)}</p>' if text else ""


def _render_cards(cards: Sequence[tuple[str, str]], rows: Sequence[CellRuns] = ()) -> str:
    """Render (title, HTML) next to each other, with *rows* in the colour of their level of the first varying factor."""
    varying = cells.varying_keys(run for row in rows for run in row.runs)[:1]
    levels = list(dict.fromkeys(row.levels.get(key, "") for row in rows for key in varying))
    kinds = {row.name: f"level-{levels.index(row.levels.get(key, ''))}" for row in rows for key in varying}
    parts = (
        f'<div class="{kinds.get(title, "level-0")}">\n<h3>{escape_breakable(title)}</h3>\n{content}\n</div>\n'
        for title, content in cards
    )
    return f'<div class="cards">\n{"".join(parts)}</div>'


def escape_breakable(name: str) -> str:
    """Escape a text and allow line breaks between levels of a cell and ends of a range, but not within a number."""
    return re.sub(r",(?=[^0-9 ])|\+(?=[a-z])|\.\.(?=[0-9])", r"\g<0><wbr>", escape(name))


def _svg(parts: Sequence[str], label: str, height: int = _HEIGHT) -> str:
    return f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'


def _label(x: float, text: str) -> str:
    return f'<text x="{x:.1f}" y="{_HEIGHT - 6}" text-anchor="middle">{text}</text>'


def draw_intervals(changes: Sequence[Comparison]) -> str:
    """Draw comparisons, sorted by column: for each column a heading with its scale, and one interval for each cell."""
    parts = []
    for column, several in itertools.groupby(changes, lambda change: change.column):
        group = list(several)
        ends = [abs(end) for change in group for end in change.relative_interval or (change.relative or 0.0,)]
        scale = min(_WIDEST_SCALE, max(_NARROWEST_SCALE, *ends))
        rows = "".join(_interval_row(change, scale) for change in group)
        parts.append(
            f"<h3>{escape(column)}</h3>\n"
            f'<p class="faint">Scale: -{scale:.0%} to +{scale:.0%}; the line in the middle is no change.</p>\n'
            f'<div class="intervals">\n{rows}</div>'
        )
    return "\n".join(parts)


def _interval_row(change: Comparison, scale: float) -> str:
    text = f"<b>{escape(change_tables.format_change(change))}</b>"
    if change.relative_interval is not None:
        text += f" ({escape(change_tables.format_interval(change))})"
    elif change.interval is None:
        text += f" {change_tables.NO_VERDICT}"
    if change.is_distinct is not None:
        text += f", {change_tables.describe_verdict(change)}"
    kind = "changed" if change.is_distinct else "unknown"
    label = f"{change_tables.format_change(change)} {change_tables.format_interval(change)}".strip()
    return (
        f"<div>{escape_breakable(change_tables.format_cells(change))}</div>\n"
        f'<svg class="{kind}" viewBox="0 0 {_INTERVAL_WIDTH} {_INTERVAL_HEIGHT}" role="img" '
        f'aria-label="{escape(label)}">'
        f'<rect class="frame" width="{_INTERVAL_WIDTH}" height="{_INTERVAL_HEIGHT}" rx="4"/>'
        f'<line class="zero" x1="{_MIDDLE:g}" x2="{_MIDDLE:g}" y1="0" y2="{_INTERVAL_HEIGHT}"/>'
        f"{_draw_interval(change, scale)}</svg>\n"
        f'<div class="readout">{text}</div>\n'
    )


def _draw_interval(change: Comparison, scale: float) -> str:
    """Draw the change and its interval, with an arrow where one is beyond the scale; "" for a change from 0."""
    if change.relative is None:
        return ""
    middle = _INTERVAL_HEIGHT / 2

    def x(share: float) -> float:
        return _MIDDLE + max(-1.0, min(1.0, share / scale)) * _HALF

    def arrow(share: float) -> str:
        return _arrow(x(share), middle, 7 if share > 0 else -7)

    parts = []
    if change.relative_interval is not None:
        low, high = change.relative_interval
        parts.append(f'<line class="span" x1="{x(low):.1f}" x2="{x(high):.1f}" y1="{middle:g}" y2="{middle:g}"/>')
        parts += [arrow(end) if abs(end) > scale else _cap(x(end), 7, _INTERVAL_HEIGHT - 7) for end in (low, high)]
    if abs(change.relative) <= scale:
        parts.append(f'<circle class="point" cx="{x(change.relative):.1f}" cy="{middle:g}" r="5"/>')
    elif change.relative_interval is None:
        parts.append(arrow(change.relative))
    return "".join(parts)
