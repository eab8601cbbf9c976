"""What a forwarder delivered: by the round trip between its nodes, or beside the cap of its batch delay."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from ingest_bench import units
from ingest_bench.analysis.compare import cells
from ingest_bench.analysis.compare.cells import CellRuns
from ingest_bench.model.results import Summary
from ingest_bench.report.plots import plots_panels
from ingest_bench.report.plots.plots import conditions, label_column, notes
from ingest_bench.report.plots.plots_style import (
    PALETTE,
    RULE,
    WIDTH_IN,
    bare,
    figure,
    fitted,
    footed,
    headed,
    saved,
    style,
    text_width_in,
)
from ingest_bench.report.tables.forwarding_table import CAP, DELIVERED, FORWARDS, rounds_per_s, row_cap, times_faster
from ingest_bench.report.tables.words import beside_axis, short, whole

_LABELS_IN, _VALUE_IN = 3.4, 0.95
_PANELS = ((DELIVERED, "Delivered/s"), ("delivery_ms_p50", "Accepted to delivered, p50, ms"))
_PEERS = "peers."
_MARKS = "os^Dv"


def forwarding(summaries: Sequence[Summary]) -> bytes | None:
    """A PNG of what was delivered; None when no server forwards anything.

    Lines over the round trip where that varies, else a row for each cell, with its forwards beside their cap.
    """
    rows = [row for row in cells.group(summaries) if row.numbers(FORWARDS)]
    if not rows:
        return None
    delay = next((key for key in cells.varying(summaries) if key.startswith(_PEERS) and key.endswith(".delay")), None)
    with style():
        return _lines(summaries, rows, delay) if delay is not None else _rows(summaries, rows)


def _lines(summaries: Sequence[Summary], rows: Sequence[CellRuns], delay: str) -> bytes:
    """A line for each combination of the other levels, over the round trip; the names at their right ends."""
    made = figure(7.5)
    top = headed(made, _most_times(rows, delay), conditions(summaries))
    height_in = made.get_figheight()
    top -= 0.35 / height_in
    bottom = footed(made, notes(summaries)) + 0.8 / height_in
    keys = [key for key in cells.varying(summaries) if key != delay]
    trips = sorted({row.levels[delay] for row in rows}, key=units.parse_time_ns)
    lines: dict[str, dict[int, float]] = {}
    for row in rows:
        name = fitted(made, " · ".join(row.levels.get(key, "") for key in keys) or "delivered/s", 14, _LABELS_IN)
        lines.setdefault(name, {})[trips.index(row.levels[delay])] = row.typical(DELIVERED) or 0.0
    named = {name: f"{name}  {whole(points[max(points)])}" for name, points in lines.items()}
    right_in = 0.4 + max(text_width_in(made, text, 14) for text in named.values())
    axes = made.add_axes((1.0 / WIDTH_IN, bottom, 1 - (1.0 + right_in) / WIDTH_IN, top - bottom))
    bare(axes, left=True)
    axes.set_yscale("log")
    if not any(value > 0 for points in lines.values() for value in points.values()):
        axes.set_ylim(1, 10)  # nothing gives it a scale
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: beside_axis(value)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.grid(axis="y", color=RULE, linewidth=0.8)
    axes.set_title("Documents delivered/s, logarithmic", loc="left", fontweight="bold", pad=10)
    axes.set_xticks(range(len(trips)), trips)
    axes.set_xlabel("round trip between the nodes")
    ends = []
    for number, (name, points) in enumerate(lines.items()):
        colour, places = PALETTE[number % len(PALETTE)], sorted(points)
        values = [points[place] for place in places]
        axes.plot(
            places, values, color=colour, linewidth=2.5, marker=_MARKS[number % len(_MARKS)], markersize=9, alpha=0.9
        )
        ends.append((values[-1], places[-1], named[name], colour))
    _named(axes, ends, (top - bottom) * height_in)
    return saved(made)


def _named(axes: Axes, ends: Sequence[tuple[float, int, str, str]], height_in: float) -> None:
    """The name of each line at its end, none on another one."""
    low, high = axes.get_ylim()
    least_apart = 0.3 / height_in
    ends = sorted(ends)
    heights: list[float] = []
    for value, place, _, _ in ends:
        # The line of one that delivers nothing leaves a logarithmic axis at its lower end.
        seen = axes.transData.transform((place, max(value, low)))
        own = float(axes.transAxes.inverted().transform(seen)[1])
        heights.append(max([own, *(below + least_apart for below in heights[-1:])]))
    highest = 1.0
    for (_, _, text, colour), height in zip(reversed(ends), reversed(heights), strict=True):
        at = min(height, highest)
        highest = at - least_apart
        axes.annotate(
            text, (1.0, at), xycoords="axes fraction", xytext=(10, 0), textcoords="offset points", va="center",
            fontsize=14, fontweight="bold", color=colour,
        )  # fmt: skip
    axes.set_ylim(low, high)


def _rows(summaries: Sequence[Summary], rows: Sequence[CellRuns]) -> bytes:
    """A row for each cell: its forwards with a mark where the cap is, what it delivered, and how long that took."""
    keys = cells.varying(summaries)
    made = figure(max(4.8, 3.2 + 0.55 * len(rows)))
    top = headed(made, _nearest_cap(rows), conditions(summaries))
    height_in = made.get_figheight()
    top -= 0.5 / height_in
    bottom = footed(made, notes(summaries)) + 0.6 / height_in
    labels, left_in = label_column(made, rows, keys, _LABELS_IN)
    width_in = (WIDTH_IN - left_in - 0.3) / (len(_PANELS) + 1)
    panels = [
        made.add_axes(((left_in + number * width_in) / WIDTH_IN, bottom, (width_in - 0.35) / WIDTH_IN, top - bottom))
        for number in range(len(_PANELS) + 1)
    ]
    paint = {row.name: PALETTE[0] for row in rows}
    plots_panels.frame(panels[0], "Forwards/s, node to peer", len(rows))
    _beside_caps(panels[0], rows)
    for axes, (column, title) in zip(panels[1:], _PANELS, strict=True):
        plots_panels.frame(axes, title, len(rows))
        plots_panels.points(axes, rows, column, paint, _VALUE_IN)
    for number, label in enumerate(labels):
        at = top - (top - bottom) * (number + 0.5) / len(rows)
        made.text((left_in - 0.15) / WIDTH_IN, at, label, ha="right", va="center", fontsize=14, fontweight="bold")
    return saved(made)


def _beside_caps(axes: Axes, rows: Sequence[CellRuns]) -> None:
    """Of each row a point where its forwards are, a mark where workers / batch delay is, and both numbers."""
    known = [(number, rate, row_cap(row)) for number, row in enumerate(rows) if (rate := rounds_per_s(row)) is not None]
    most = max((max(rate, cap or 0.0) for _, rate, cap in known), default=1.0) or 1.0
    axes.set_xlim(-0.03 * most, 1.75 * most)
    axes.set_xticks([])
    axes.axvline(0, color=RULE, linewidth=1)
    axes.set_xlabel("| workers / batch delay", color=PALETTE[1])
    for number, rate, cap in known:
        axes.plot([0, rate], [number, number], color=PALETTE[0], linewidth=2, alpha=0.35, zorder=1)
        axes.scatter([rate], [number], s=70, color=PALETTE[0], alpha=0.75, linewidths=0, zorder=2)
        text = short(rate)
        if cap is not None:
            axes.plot([cap, cap], [number - 0.3, number + 0.3], color=PALETTE[1], linewidth=2.5, zorder=3)
            text += f" of {short(cap)}"
        axes.annotate(
            text, (max(rate, cap or 0.0), number), xytext=(9, 0), textcoords="offset points", va="center",
            fontsize=14, fontweight="bold",
        )  # fmt: skip


def _most_times(rows: Sequence[CellRuns], delay: str) -> str:
    """How much more is delivered without waiting, at the round trip where that is most."""
    known = [(times, row) for row in rows if (times := times_faster(row, rows)) is not None]
    if not known:
        return "Documents delivered by the round trip between the nodes"
    times, row = max(known, key=lambda one: one[0])
    trip = row.levels[delay]
    return f"Without waiting for each answer {short(times)} times as much is delivered, at a round trip of {trip}"


def _nearest_cap(rows: Sequence[CellRuns]) -> str:
    """How near the forwards of the cells are to workers / batch delay."""
    shares = [
        forwards / cap for row in rows if (forwards := row.typical(FORWARDS)) is not None and (cap := row.typical(CAP))
    ]
    if not shares:
        return "What the forwarder forwarded and delivered"
    low, high = (f"{share:.0%}" for share in (min(shares), max(shares)))
    said = low if low == high else f"{low} to {high}"
    return f"A node forwards {said} of workers / batch delay"
