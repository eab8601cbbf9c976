"""Pictures with a row for each cell, from one table (`CELL_PICTURES`): each is a list of panels side by side."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import log2
from statistics import median
from typing import Any, TypeVar

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from ingest_bench import units
from ingest_bench.analysis import quantiles
from ingest_bench.analysis.compare import cells
from ingest_bench.analysis.compare.cells import CellRuns
from ingest_bench.model.results import Summary
from ingest_bench.report import headline, published
from ingest_bench.report import plot_style as style
from ingest_bench.report.cell_tables import describe_missing
from ingest_bench.report.formatting import (
    format_axis_number,
    format_count,
    format_exact_bytes,
    format_gb,
    format_integer,
    format_key,
    format_number,
    format_range,
    format_size,
    shorten,
)

Rows = Sequence[CellRuns]
Paint = Mapping[str, str]
_Value = TypeVar("_Value")

# A label of the longest level may take a third of the page.
_MAX_LABEL = 32
ROW_FRACTION = 0.72  # of a row's height, for histograms and bars
_BINS_PER_OCTAVE = 3
LAYERS = (
    ("outside_tlab_network_bytes", "network layer", style.RED),
    ("outside_tlab_lucene_bytes", "Lucene", style.BLUE),
    ("outside_tlab_other_bytes", "other code", style.GREY),
)
# The first one is that of the whole heap, behind the part of the network's threads.
ALLOCATED = ("allocated_bytes_per_gb", "allocated_network_bytes_per_gb")
_MEAN, _MAX = "direct_allocation_ms_mean", "direct_allocation_ms_max"
_MEDIAN, _P99 = "direct_allocation_ms_p50", "direct_allocation_ms_p99"
_WAITED = "peer_wait_ms_mean"
# A node is named only if it was waited for more than this many times as long as any other.
_CLEAR_RATIO = 2
_MARKERS = "os^Dv"
_BOLD: Any = {"fontsize": 14, "fontweight": "bold"}


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel: its title, how it is drawn, and its share of the width."""

    title: str
    draw: Callable[[Axes, Rows, Paint], None]
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CellPicture:
    """A picture with a row for each cell."""

    applies: Callable[[CellRuns], bool]
    """True for a row that has something to show; without any such row there is no picture."""
    title: Callable[[Sequence[Summary], Rows], str]
    panels: Callable[[Rows], Sequence[Panel]]
    names: Callable[[Rows], Paint] = lambda _rows: {}
    """Return the legend: names and their colours."""
    shows_all_rows: bool = False
    """Also rows that do not apply, with "not measured"."""
    row_in: float = 0.52
    has_level_colours: bool = False
    """A colour for each level of the first factor."""


def draw_picture(name: str, summaries: Sequence[Summary]) -> bytes | None:
    """Draw a picture of `CELL_PICTURES`; None where no cell has anything to show."""
    picture = CELL_PICTURES[name]
    rows = cells.group_by_cell(summaries)
    matching = [row for row in rows if picture.applies(row)]
    if not matching:
        return None
    shown = rows if picture.shows_all_rows else matching
    keys = cells.varying_keys(summaries)
    levels = {row.name: row.levels.get(keys[0], "") if keys and picture.has_level_colours else "" for row in shown}
    by_level = style.assign_colours(levels.values())
    paint = {name: by_level[level] for name, level in levels.items()}
    with style.figure_style():
        figure = style.new_figure(
            1.2 + max(1.1, picture.row_in * len(shown)),
            picture.title(summaries, matching),
            style.describe_conditions(summaries),
            picture.names(shown),
            style.left_out_notes(summaries),
        )
        # A number to the right of one panel must not look like a part of the next.
        figure.get_layout_engine().set(w_pad=0.08)  # type: ignore[union-attr, call-arg]
        panels = picture.panels(shown)
        (every,) = figure.subplots(1, len(panels), squeeze=False, width_ratios=[panel.weight for panel in panels])
        for panel, axes in zip(panels, every, strict=True):
            axes.set_title(panel.title, pad=10)
            axes.spines["left"].set_visible(False)
            axes.set_yticks([])
            axes.set_ylim(len(shown) - 0.5, -0.5)
            for number in range(len(shown)):
                axes.axhline(number + ROW_FRACTION / 2, color=style.RULE, linewidth=0.8, zorder=0)
            panel.draw(axes, shown, paint)
        every[0].tick_params("y", pad=12)
        every[0].set_yticks(range(len(shown)), row_labels(shown, keys), **_BOLD)
        for text, row in zip(every[0].get_yticklabels(), shown, strict=True):
            text.set_color(paint[row.name] if picture.has_level_colours else style.INK)
        return style.save_figure(figure)


def row_labels(rows: Rows, keys: Sequence[str]) -> list[str]:
    """Return a label for each row: its levels of the factors that vary; in several lines if shorter ones were equal."""
    names = ["" if len(rows) == 1 else row.name for row in rows]
    levels = [[row.levels.get(key, "") for key in keys] or [name] for row, name in zip(rows, names, strict=True)]
    short = [shorten(" · ".join(parts), _MAX_LABEL) for parts in levels]
    if len(set(short)) == len(short):
        return short
    unequal = [" · ".join(shorten(part, _MAX_LABEL) for part in parts) for parts in levels]
    return [textwrap.fill(label, _MAX_LABEL, break_on_hyphens=False) for label in unequal]


def _iterate_known(axes: Axes, rows: Rows, values: Iterable[_Value | None]) -> Iterator[tuple[int, CellRuns, _Value]]:
    """Yield place, row and value where there is one; elsewhere write why there is none."""
    for number, (row, value) in enumerate(zip(rows, values, strict=True)):
        if value is not None:
            yield number, row, value
            continue
        place: dict[str, Any] = {"transform": axes.get_yaxis_transform(), "va": "center"}
        axes.text(0.02, number, describe_missing(row), color=style.FAINT, fontsize=12, **place)


def _write_right(axes: Axes, x: float, number: int, text: str) -> None:
    """Write a bold text to the right of a value."""
    axes.annotate(text, (x, number), xytext=(9, 0), textcoords="offset points", va="center", **_BOLD)


def _begin_at_zero(axes: Axes, values: Iterable[float], label: str, colour: str = style.INK) -> None:
    """Prepare an axis from 0 to the largest value, without numbers; with room for half a point and a number behind."""
    most = max(values, default=1.0) or 1.0
    axes.set_xlim(-0.03 * most, 1.25 * most)
    axes.set_xticks([])
    axes.axvline(0, color=style.RULE, linewidth=1)
    axes.set_xlabel(label, color=colour)


def _points(column: str, title: str) -> Panel:
    """Return a panel with a point for each run and the median next to them, from 0 on."""

    def draw(axes: Axes, rows: Rows, paint: Paint) -> None:
        _begin_at_zero(axes, (value for row in rows for value in row.numbers(column)), "one point per run")
        for number, row, middle in _iterate_known(axes, rows, (row.median(column) for row in rows)):
            values, colour = row.numbers(column), paint[row.name]
            axes.plot([0, middle], [number, number], color=colour, linewidth=2, alpha=0.35, zorder=1)
            axes.scatter(values, [number] * len(values), s=70, color=colour, alpha=0.75, linewidths=0, zorder=2)
            _write_right(axes, max(values), number, format_count(middle))

    return Panel(title, draw)


def _draw_heap(axes: Axes, rows: Rows, paint: Paint) -> None:
    """Draw the median heap allocated per GB of each row, with the part of the network's threads dark.

    Where only some rows know that part, the others are hatched.
    """
    totals, parts = ([row.median(column) for row in rows] for column in ALLOCATED)
    has_parts = any(parts)
    lines = ["dark: network", *(["hatched: unknown"] if None in parts else [])]
    _begin_at_zero(axes, (total or 0.0 for total in totals), ";\n".join(lines) if has_parts else "")
    for number, row, total in _iterate_known(axes, rows, totals):
        part = parts[number]
        hatch = "///" if has_parts and part is None else ""
        colour = paint[row.name]
        axes.barh(number, total, color=colour, edgecolor=colour, linewidth=0, alpha=0.35, height=0.5, hatch=hatch)
        if part is not None:
            axes.barh(number, part, color=colour, height=0.5)
        _write_right(axes, total, number, format_gb(total))


def _numbers(column: str, title: str, format_value: Callable[[float], str], *, has_oom: bool = False) -> Panel:
    """Return a panel with the typical value of each row as text; if *has_oom*, also until memory ran out."""

    def draw(axes: Axes, rows: Rows, _paint: Paint) -> None:
        axes.set_xticks([])
        axes.spines["bottom"].set_visible(False)
        for number, row in enumerate(rows):
            value = (row.measured_or_oom if has_oom else row).median(column)
            text = "" if value is None else format_value(value)
            axes.text(0, number, text, transform=axes.get_yaxis_transform(), va="center", **_BOLD)

    return Panel(title, draw, weight=0.5)


def _sizes(name: str, title: str) -> Panel:
    """Return a panel with a histogram of sizes in each row."""

    def draw(axes: Axes, rows: Rows, paint: Paint) -> None:
        both = ("read_bytes", "wire_bytes")
        axes.set_xlim(
            quantiles.logarithmic_limits([counts for row in rows for kind in both if (counts := row.counts(kind))])
        )
        # Even powers of two are the rounder sizes: 1, 4, 16, 64, 256 KiB.
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True, steps=[1, 2, 4, 8, 10]))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda power, _: format_size(2**power)))
        axes.tick_params("x", labelsize=10)
        axes.set_xlabel("bytes per read (log);\ndashed: buffer" if name == "read_bytes" else "bytes per frame (log)")
        for number, row, counts in _iterate_known(axes, rows, (row.counts(name) or None for row in rows)):
            draw_histogram(axes, number, counts, paint[row.name])
            if name == "read_bytes" and (buffer_bytes := row.median("receive_predictor_bytes")) is not None:
                ends = [number + ROW_FRACTION / 2, number - ROW_FRACTION / 2]
                axes.plot([log2(buffer_bytes)] * 2, ends, color=style.FAINT, linestyle="--", linewidth=1.2)

    return Panel(title, draw, weight=1.6)


def draw_histogram(axes: Axes, number: int, counts: Mapping[int, int], colour: str) -> None:
    """Draw one row's histogram on its own scale, so that a wide one is as readable as a narrow one."""
    lower, upper, count = np.array(quantiles.logarithmic_bins(counts, _BINS_PER_OCTAVE)).T
    left, right = np.where(lower > 1, np.log2(np.maximum(lower, 1)), -0.2), np.log2(upper + 1)
    heights = -ROW_FRACTION * count / count.max()
    axes.bar(left, heights, (right - left) * 0.94, number + ROW_FRACTION / 2, align="edge", color=colour, zorder=2)


def _draw_layers(axes: Axes, rows: Rows, _paint: Paint) -> None:
    """Draw a stacked bar for each row: the run with the median network layer. Runs are never mixed in one bar."""
    axes.set_xlabel("bytes allocated outside TLABs for each GB (10⁹ bytes) of requests", color=style.FAINT)
    axes.set_xticks([])
    for number, row in enumerate(rows):
        shares = [
            [float(run.values.get(f"{name}_per_gb") or 0) for name, _, _ in LAYERS]
            for run in row.valid
            if run.values.get(f"{LAYERS[0][0]}_per_gb") is not None
        ]
        right = 0.0
        for (_, _, colour), value in zip(LAYERS, sorted(shares)[len(shares) // 2], strict=True):
            axes.barh(number, value, left=right, color=colour, height=0.66)
            right += value
        _write_right(axes, right, number, format_gb(right))
    axes.set_xlim(left=0)


def _draw_direct_waits(axes: Axes, rows: Rows, _paint: Paint) -> None:
    """Draw median to 99th percentile, mean, published mean, and the longest waits of direct buffers."""
    timed = [row.measured_or_oom for row in rows if row.measured_or_oom.numbers(_MEAN)]
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    # A single buffer has a mean and no median.
    least = min(value for row in timed for column in (_MEDIAN, _MEAN) for value in row.numbers(column))
    axes.set_xlim(least / 1.6, max(value for row in timed for value in row.numbers(_MAX)) * 1.6)
    axes.set_xlabel("ms for each direct buffer, logarithmic")
    for number, row, mean in _iterate_known(axes, rows, (row.measured_or_oom.median(_MEAN) for row in rows)):
        measured = row.measured_or_oom
        low, high = map(measured.median, (_MEDIAN, _P99))
        series = [run.series["direct_wait_ms"] for run in measured.valid if "direct_wait_ms" in run.series]
        # Below 100 buffers there is no 99th percentile, and every wait is drawn.
        waits = [value for line in series for value in line.values if high is None or value > high]
        # A fixed seed: the same vertical shifts, which keep equal waits apart, in every picture.
        shifts = np.random.default_rng(number).uniform(-0.26, 0.26, len(waits))
        axes.scatter(waits, number + shifts, s=14, color=style.RED, alpha=0.45, linewidths=0, zorder=2)
        if low is not None and high is not None:
            axes.plot(
                [low, high], [number] * 2, color=style.BLUE, linewidth=7, alpha=0.45, solid_capstyle="butt", zorder=3
            )
        axes.scatter([mean], [number], s=80, color=style.BLUE, linewidths=0, zorder=4)
        for theirs in published.allocation_rows(row):
            axes.scatter(
                [theirs.values[_MEAN]], [number], s=70, marker="D", facecolors="none", edgecolors=style.INK, zorder=5
            )


def _direct_memory_title(_summaries: Sequence[Summary], rows: Rows) -> str:
    longest = max(max(row.measured_or_oom.numbers(_MAX)) for row in rows)
    usual = format_range([row.measured_or_oom.median(_MEAN) or 0.0 for row in rows], format_number)
    return f"A direct buffer takes {usual} ms on average; the longest wait was {format_number(longest)} ms"


def _direct_memory_names(rows: Rows) -> Paint:
    theirs = {"◇ published mean": style.INK} if any(any(published.allocation_rows(row)) for row in rows) else {}
    return {"median to p99, and mean": style.BLUE, "longest waits": style.RED, **theirs}


def node_waits(row: CellRuns) -> list[float | None]:
    """Return how long the others waited for each node, in ms: the median of the cell's runs."""
    runs = [run.nodes for run in row.valid if run.nodes]
    waits: list[float | None] = []
    for place in range(len(runs[0]) if runs else 0):
        values = [value for run in runs if isinstance(value := run[place].get(_WAITED), (int, float))]
        waits.append(median(values) if values else None)
    return waits


def find_longest_wait(waits: Sequence[float | None]) -> int | None:
    """Return the index of the node that was waited for longest; None where that is not clear."""
    measured = sorted(((value, place) for place, value in enumerate(waits) if value is not None), reverse=True)
    if len(measured) < 2 or measured[0][0] <= _CLEAR_RATIO * measured[1][0]:
        return None
    return measured[0][1]


def _draw_node_waits(axes: Axes, rows: Rows, _paint: Paint) -> None:
    """Draw a bar for each node in each row, from node 1 down, with its number."""
    waits = [node_waits(row) for row in rows]
    _begin_at_zero(axes, (value for values in waits for value in values if value is not None), "one bar per node")
    for number, _, values in _iterate_known(axes, rows, (values or None for values in waits)):
        height = ROW_FRACTION / len(values)
        longest = find_longest_wait(values)
        for place, value in enumerate(values):
            if value is None:
                continue
            y = number - ROW_FRACTION / 2 + (place + 0.5) * height
            is_longest = place == longest
            axes.barh(y, value, height=height * 0.8, color=style.RED if is_longest else style.GREY)
            axes.annotate(
                f"node {place + 1}: {format_number(value)}", (value, y), xytext=(5, 0), textcoords="offset points",
                va="center", fontsize=min(11, 54 * height), color=style.RED if is_longest else style.FAINT,
                fontweight="bold" if is_longest else "normal",
            )  # fmt: skip


def _nodes_title(summaries: Sequence[Summary], rows: Rows) -> str:
    """Name the node that the others waited for: in the slowest cell, or else in that with the longest wait."""
    rates = [row.median("docs_per_s_mean") or 0.0 for row in rows]
    waits = [max((wait or 0.0 for wait in node_waits(row)), default=0.0) for row in rows]
    is_slow = max(rates) > headline.LEAST_RATIO * min(rates)
    place = rates.index(min(rates)) if is_slow else waits.index(max(waits))
    parts = [f"{format_integer(min(rates))} of {format_integer(max(rates))} documents/s"] if is_slow else []
    if (node := find_longest_wait(node_waits(rows[place]))) is not None:
        parts.insert(0, f"The others waited {format_number(waits[place])} ms on average for node {node + 1}")
    levels = [f"{format_key(key)} {rows[place].levels[key]}" for key in cells.varying_keys(summaries)]
    text = ", ".join(parts) + (f" ({', '.join(levels)})" if levels else "")
    return text if parts else headline.describe_finding(summaries, "response_ms_p99")


def _draw_forwards(axes: Axes, rows: Rows, _paint: Paint) -> None:
    """Draw a point for the forwards of each row, a mark for workers / batch delay, and both numbers."""
    measured = [
        (number, rate, published.cap_per_pair(row))
        for number, row in enumerate(rows)
        if (rate := published.forwards_per_pair(row)) is not None
    ]
    _begin_at_zero(axes, (max(rate, cap or 0.0) for _, rate, cap in measured), "| workers / batch delay", style.RED)
    for number, rate, cap in measured:
        axes.plot([0, rate], [number, number], color=style.BLUE, linewidth=2, alpha=0.35, zorder=1)
        axes.scatter([rate], [number], s=70, color=style.BLUE, alpha=0.75, linewidths=0, zorder=2)
        text = format_number(rate)
        if cap is not None:
            axes.plot([cap, cap], [number - 0.3, number + 0.3], color=style.RED, linewidth=2.5, zorder=3)
            text += f" of {format_number(cap)}"
        _write_right(axes, max(rate, cap or 0.0), number, text)


def _forwarding_title(_summaries: Sequence[Summary], rows: Rows) -> str:
    shares = [
        forwards / cap
        for row in rows
        if (forwards := row.median(published.FORWARDS)) is not None and (cap := row.median(published.CAP))
    ]
    if not shares:
        return "Documents forwarded and delivered"
    return f"A node forwards {format_range(shares, lambda share: f'{share:.0%}')} of workers / batch delay"


_WIRE_PANELS = (_sizes("wire_bytes", "Wire frames"), _numbers("wire_bytes_p50", "median", format_exact_bytes))
_READ_PANELS = (_sizes("read_bytes", "Socket reads"), _numbers("read_bytes_mean", "mean", format_size))
_HEAP_PANELS = {
    ALLOCATED[0]: Panel("Heap allocated\nper GB", _draw_heap),
    "gc_pause_ms_total_per_gb": _numbers("gc_pause_ms_total_per_gb", "GC pauses,\nms/GB", format_number),
}
CELL_PICTURES: Mapping[str, CellPicture] = {
    "direct-memory": CellPicture(
        applies=lambda row: bool(row.measured_or_oom.numbers(_MEAN)),
        title=_direct_memory_title,
        panels=lambda _rows: (
            Panel("", _draw_direct_waits, weight=2.4),
            _numbers(_MEAN, "mean, ms", format_number, has_oom=True),
            _numbers(_MAX, "longest, ms", format_number, has_oom=True),
            _numbers("system_gcs", "System.gc()", format_integer, has_oom=True),
        ),
        names=_direct_memory_names,
        shows_all_rows=True,
    ),
    "forwarding": CellPicture(
        applies=lambda row: bool(row.numbers(published.FORWARDS)),
        title=_forwarding_title,
        panels=lambda _rows: (
            Panel("Forwards/s, node to peer", _draw_forwards),
            _points(published.DELIVERED, "Delivered/s"),
            _points("delivery_ms_p50", "Accepted to delivered, p50, ms"),
        ),
    ),
    "nodes": CellPicture(
        applies=lambda row: any(run.nodes for run in row.valid),
        title=_nodes_title,
        panels=lambda _rows: (
            _points("docs_per_s_mean", "Documents/s"),
            _points("response_ms_p50", "Response p50, ms"),
            _points("response_ms_p99", "Response p99, ms"),
            Panel("Wait for each node,\nmean, ms", _draw_node_waits),
        ),
        row_in=0.85,
    ),
    "reads": CellPicture(
        applies=lambda _row: True,
        title=lambda summaries, rows: headline.describe_finding(
            summaries, "read_bytes_mean" if any(row.numbers("read_bytes_mean") for row in rows) else ""
        ),
        panels=lambda rows: (
            *(_WIRE_PANELS if any(row.counts("wire_bytes") for row in rows) else ()),
            *(_READ_PANELS if any(row.counts("read_bytes") for row in rows) else ()),
            _points("docs_per_s_mean", "Documents/s"),
            *(panel for column, panel in _HEAP_PANELS.items() if any(row.numbers(column) for row in rows)),
        ),
        has_level_colours=True,
    ),
    "layers": CellPicture(
        applies=lambda row: row.median(headline.NETWORK_COLUMN) is not None,
        title=lambda summaries, _rows: headline.describe_finding(summaries, headline.NETWORK_COLUMN),
        panels=lambda _rows: (Panel("", _draw_layers),),
        names=lambda _rows: {name: colour if colour != style.GREY else style.FAINT for _, name, colour in LAYERS},
    ),
}
"""By file name without the suffix. The main picture of a topic comes before that of the reads."""


def draw_forwarding(summaries: Sequence[Summary]) -> bytes | None:
    """Draw what a forwarder delivered, by round trip between nodes or by cell; None where nothing was forwarded."""
    rows = [row for row in cells.group_by_cell(summaries) if row.numbers(published.FORWARDS)]
    varying = cells.varying_keys(summaries)
    delay = next((key for key in varying if key.startswith("peers.") and key.endswith(".delay")), None)
    if not rows or delay is None:
        return draw_picture("forwarding", summaries)
    keys = [key for key in varying if key != delay]
    trips = sorted({row.levels[delay] for row in rows}, key=units.parse_time_ns)
    with style.figure_style():
        title, conditions = _round_trip_title(rows, delay), style.describe_conditions(summaries)
        figure = style.new_figure(5.8, title, conditions, None, style.left_out_notes(summaries))
        axes = figure.subplots()
        lines: dict[str, dict[int, float]] = {}
        for row, label in zip(rows, row_labels(rows, keys), strict=True):
            points = lines.setdefault(label or "delivered/s", {})
            points[trips.index(row.levels[delay])] = row.median(published.DELIVERED) or 0.0
        _draw_lines(axes, lines)
        axes.set_title("Documents delivered/s, logarithmic", pad=10)
        axes.set_xticks(range(len(trips)), trips)
        axes.set_xlabel("round trip between the nodes")
        return style.save_figure(figure)


def _draw_lines(axes: Axes, lines: Mapping[str, Mapping[int, float]]) -> None:
    """Draw the lines on a logarithmic axis; their names and last values are to the right, the highest first."""
    axes.set_yscale("log")
    if not any(value > 0 for points in lines.values() for value in points.values()):
        axes.set_ylim(1, 10)  # without any value the axis has no scale
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: format_axis_number(value)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.grid(axis="y", linewidth=0.8)
    ends = []
    for number, (name, points) in enumerate(lines.items()):
        colour, places = style.PALETTE[number % len(style.PALETTE)], sorted(points)
        values = [points[place] for place in places]
        marker = _MARKERS[number % len(_MARKERS)]
        (line,) = axes.plot(places, values, color=colour, linewidth=2.5, marker=marker, markersize=9, alpha=0.9)
        ends.append((values[-1], f"{name}  {format_integer(values[-1])}", line))
    _, names, handles = zip(*sorted(ends, key=lambda end: -end[0]), strict=True)
    font = {"size": 14, "weight": "bold"}
    axes.legend(handles, names, loc="center left", bbox_to_anchor=(1, 0.5), labelcolor="linecolor", prop=font)


def _round_trip_title(rows: Rows, delay: str) -> str:
    """Return how much more is delivered with asynchronous forwards, at the round trip where that is most."""
    measured = [(ratio, row) for row in rows if (ratio := published.asynchronous_ratio(row, rows)) is not None]
    if not measured:
        return "Documents delivered by the round trip between the nodes"
    ratio, row = max(measured, key=lambda item: item[0])
    return f"Asynchronous forwards deliver {format_number(ratio)} times as much, at a round trip of {row.levels[delay]}"
