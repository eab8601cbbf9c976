"""Pictures over time: one run, the heap and large objects of each cell, and settings of the machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import ceil, log2, nan
from statistics import fmean, median

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator
from matplotlib.transforms import Bbox

from ingest_bench.analysis.compare import cells
from ingest_bench.analysis.run import generator
from ingest_bench.model.results import Series, Summary
from ingest_bench.report import headline
from ingest_bench.report import plot_style as style
from ingest_bench.report.cell_tables import HOST_KEYS
from ingest_bench.report.formatting import (
    format_count,
    format_integer,
    format_key,
    format_number,
    format_size,
    shorten,
)
from ingest_bench.report.plot_cells import row_labels
from ingest_bench.report.stall_table import list_faults, list_stalls

_X_LABEL = "seconds from the start of the measurement"
_RUN_PANEL_IN, _LARGE_ROW_IN, _MACHINE_PANEL_IN = 1.65, 1.75, 1.2
_Draw = Callable[[Axes, Summary], None]
_RESPONSES = (
    ("response_ms_max", "max", style.RED, "-"),
    ("response_ok_ms_max", "max of ok", style.PALETTE[3], "--"),
    ("response_ms_p50", "median", style.BLUE, "-"),
)
LARGE = "large_allocation_bytes"
_LARGE_TITLE = "Objects of 1 MiB and more"
_LARGE_BYTES, _VERY_LARGE_BYTES = 1 << 20, 100 << 20
_MAX_COLUMNS = 4
_SECOND_NS = 10**9


def draw_timeline(run: Summary) -> bytes | None:
    """Draw one run in seconds from the start of the measurement, with its faults and stalls; None without series."""
    panels = [(title, draw) for name, title, draw in _RUN_PANELS if name in run.series and run.series[name].at_ns]
    if run.measure_start_ns is None or not panels:
        return None
    levels = [
        f"{format_key(key)} {level}"
        for key, level in run.levels.items()
        if format_key(key) not in ("target", "workload") and not key.startswith("network")
    ]
    conditions = style.join_conditions([*_list_parts(run), *levels, f"replicate {run.replicate}"])
    conditions = "\n".join(filter(None, (conditions, generator.describe_hidden_waiting(run.values, run.measured_s))))
    with style.figure_style():
        figure = style.new_figure(0.4 + len(panels) * _RUN_PANEL_IN, headline.describe_run(run), conditions)
        every = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
        for axes, (title, draw) in zip(every, panels, strict=True):
            axes.set_title(title, pad=5)
            axes.set_xlim(*run.load_span_s)
            axes.yaxis.set_major_locator(MaxNLocator(3))
            draw(axes, run)
            axes.set_ylim(bottom=0)
            axes.grid(axis="y", linewidth=0.8)
        every[-1].set_xlabel(_X_LABEL)
        # Labels of spans depend on the width of the panels.
        figure.draw_without_rendering()
        for axes in every:
            _draw_spans(axes, run, has_labels=axes is every[0])
        return style.save_figure(figure)


def _list_parts(run: Summary) -> list[str]:
    return [str(run.values[name]) for name in ("target", "workload", "network") if run.values.get(name)]


def _format_y(axes: Axes, text: Callable[[float], str]) -> None:
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: text(value) if value else "0"))


def _draw_documents(axes: Axes, run: Summary) -> None:
    at, values = _xy(run, "docs_per_s")
    axes.set_ylim(0, max(values) * 1.3 or 1)  # room for the names of the spans
    # A value is of the second that begins at its time.
    axes.stairs(values, [*at, at[-1] + 1], fill=True, color=style.BLUE, alpha=0.25)
    axes.stairs(values, [*at, at[-1] + 1], color=style.BLUE, linewidth=2)
    _format_y(axes, format_integer)


def _draw_responses(axes: Axes, run: Summary) -> None:
    ends = []
    for name, label, colour, dashes in _RESPONSES:
        line = run.series.get(name)
        if line is None or not line.at_ns or (name == "response_ok_ms_max" and not run.values.get("requests_failed")):
            continue
        at, values = _break_at_gaps(*_xy(run, name))
        axes.plot([moment + 0.5 for moment in at], values, color=colour, linewidth=2, linestyle=dashes)
        ends.append((values[-1], label, colour))
    distance = 0.16 * (axes.get_ylim()[1] or 1)
    height = -distance
    for value, label, colour in sorted(ends):
        height = max(value, height + distance)
        _label_right(axes, height, label, colour, "bold")
    _format_y(axes, format_number)


def _draw_heap(axes: Axes, run: Summary) -> None:
    axes.plot(*_xy(run, "heap_bytes"), color=style.GREEN, linewidth=1.6)
    _mark_heap_limit(axes, run)
    _format_y(axes, format_size)


def _mark_heap_limit(axes: Axes, run: Summary) -> None:
    heap = run.values.get("heap_bytes")
    if isinstance(heap, int):
        axes.yaxis.set_major_locator(FixedLocator([0, heap / 2, heap]))
        axes.axhline(heap, color=style.FAINT, linewidth=1.2, linestyle="--")
        axes.set_ylim(0, heap * 1.08)


def _draw_bars(axes: Axes, run: Summary, *, name: str, colour: str, text: Callable[[float], str]) -> None:
    """Draw a vertical line for each value in view. Values before the load do not scale the axis."""
    first, last = axes.get_xlim()
    points = [(at, value) for at, value in zip(*_xy(run, name), strict=True) if first <= at <= last]
    axes.vlines([at for at, _ in points], 0, [value for _, value in points], color=colour, linewidth=2)
    if name == LARGE:
        # Halves of a power of two have round names.
        most = max((value for _, value in points), default=0.0)
        axes.yaxis.set_major_locator(FixedLocator([0, most / 2, most]))
    _format_y(axes, text)


def _label_right(axes: Axes, y: float, text: str, colour: str, weight: str = "normal") -> None:
    axes.annotate(
        text, (1, y), xycoords=("axes fraction", "data"), xytext=(8, 0), textcoords="offset points", color=colour,
        va="center", fontweight=weight, annotation_clip=False,
    )  # fmt: skip


_RUN_PANELS: tuple[tuple[str, str, _Draw], ...] = (
    ("docs_per_s", "Documents/s", _draw_documents),
    (
        "response_ms_p50",
        "Response time, ms: median of ended requests, longest of waiting ones in each second",
        _draw_responses,
    ),
    ("heap_bytes", "Heap in use, before and after each collection; dashed: its maximum", _draw_heap),
    ("gc_pause_ms", "GC pauses, ms", partial(_draw_bars, name="gc_pause_ms", colour=style.RED, text=format_number)),
    (LARGE, _LARGE_TITLE, partial(_draw_bars, name=LARGE, colour=style.BLUE, text=format_size)),
)


def _xy(run: Summary, name: str) -> tuple[list[float], list[float]]:
    line = run.series[name]
    return [run.seconds(at_ns) for at_ns in line.at_ns], list(line.values)


def _break_at_gaps(at: list[float], values: list[float]) -> tuple[list[float], list[float]]:
    """Interrupt the line where a second is missing: no request ended there."""
    moments, kept = at[:1], values[:1]
    for before, moment, value in zip(at, at[1:], values[1:], strict=False):
        if moment - before > 1.5:
            moments.append(moment - 1)
            kept.append(nan)
        moments.append(moment)
        kept.append(value)
    return moments, kept


def _draw_spans(axes: Axes, run: Summary, *, has_labels: bool) -> None:
    """Shade faults, stalls and the warm-up; label them in the first panel."""
    first, last = axes.get_xlim()
    faults, stalls = [], []
    for kind, begin, end in list_faults(run):
        left = max(begin, first)
        # A fault without duration, such as a reset, becomes a line.
        right = max(min(end, last), left + 0.002 * (last - first))
        faults.append((left, kind))
        axes.axvspan(left, right, color=style.FAULT, alpha=0.28, linewidth=0, zorder=0)
    for cause, left, right in sorted(list_stalls(run), key=lambda stall: stall[1] - stall[2]):
        # Hatched, so that a fault beneath it stays visible.
        axes.axvspan(
            left, right, facecolor="none", edgecolor=style.FAINT, hatch="////", alpha=0.4, linewidth=0, zorder=0
        )
        stalls.append((left, cause))
    if first < 0:
        axes.axvspan(first, 0, color=style.RULE, alpha=0.5, linewidth=0, zorder=0)
        if not any(left < 0.12 * last for left, _ in faults):
            faults.append((first, "warm-up"))
    if has_labels:
        named = _label_spans(axes, faults, "#8a5a00", 3, may_move=True)
        # The longest stall of each cause is labelled; a fault has its label already.
        others = [(left, cause) for left, cause in stalls if cause.removeprefix("fault ") not in named]
        _label_spans(axes, others, style.FAINT, 16, may_move=False)


def _label_spans(
    axes: Axes, spans: Iterable[tuple[float, str]], colour: str, y_points: int, *, may_move: bool
) -> set[str]:
    """Write each text once, at its second, in one line at the top; return those with room.

    A text that would cover another is left out. One that `may_move` moves left where it would leave the panel.
    """
    taken: dict[str, Bbox] = {}
    for x, text in spans:
        if text in taken:
            continue
        label = axes.annotate(
            text, (x, 1), xycoords=("data", "axes fraction"), xytext=(3, -y_points), textcoords="offset points",
            va="top", color=style.FAINT if text == "warm-up" else colour, fontsize=12, fontweight="bold",
        )  # fmt: skip
        if may_move and label.get_window_extent().x1 > axes.bbox.x1:
            label.xyann = (-3, -y_points)
            label.xy = (axes.get_xlim()[1], 1)
            label.set_horizontalalignment("right")
        box = label.get_window_extent()
        if box.x1 > axes.bbox.x1 or box.padded(4).count_overlaps(taken.values()):
            label.remove()
        else:
            taken[text] = box
    return set(taken)


def draw_large_allocations(summaries: Sequence[Summary]) -> bytes | None:
    """Draw heap and large objects of the first valid run of each cell; None when no run recorded large allocations."""
    first = [
        (row, run)
        for row in cells.group_by_cell(summaries)
        for run in [run for run in row.valid if LARGE in run.series and run.measure_start_ns is not None][:1]
    ]
    if not first:
        return None
    labels = row_labels([row for row, _ in first], cells.varying_keys(summaries))
    runs = [run for _, run in first]
    most = max((value for run in runs for value in _measured_xy(run, LARGE)[1]), default=0.0)
    seconds = max(run.measured_s for run in runs) or 1.0
    with style.figure_style():
        figure = style.new_figure(
            0.8 + _LARGE_ROW_IN * len(runs),
            headline.describe_finding(summaries, "largest_allocation_bytes"),
            style.describe_conditions(summaries),
            {fault.kind: style.FAULT for run in runs for fault in run.faults},
            style.left_out_notes(summaries),
        )
        every = figure.subplots(len(runs), 2, sharex=True, squeeze=False)
        for title, axes in zip(("Heap in use", _LARGE_TITLE), every[0], strict=True):
            axes.set_title(title, pad=8)
        for (heap, sizes), run, label in zip(every, runs, labels, strict=True):
            heap.set_ylabel(label, rotation=0, ha="right", va="center", fontsize=15, fontweight="bold")
            if "heap_bytes" in run.series:
                heap.plot(*_measured_xy(run, "heap_bytes"), color=style.GREEN, linewidth=1.8)
            _mark_heap_limit(heap, run)
            _draw_sizes(sizes, run, most)
            for axes in (heap, sizes):
                # Room for half a point at either end.
                axes.set_xlim(-0.01 * seconds, 1.01 * seconds)
                axes.grid(axis="y", linewidth=0.8)
                _format_y(axes, format_size)
                for fault in run.faults:
                    if 0 <= (at := run.seconds(fault.start_ns)) <= seconds:
                        axes.axvline(at, color=style.FAULT, linewidth=1.6, alpha=0.8, zorder=0)
        every[-1, 0].set_xlabel(_X_LABEL, loc="left")
        return style.save_figure(figure)


def _draw_sizes(axes: Axes, run: Summary, most: float) -> None:
    at, values = _measured_xy(run, LARGE)
    axes.set_yscale("log", base=2)
    top = max(most, float(_VERY_LARGE_BYTES))
    axes.set_ylim(_LARGE_BYTES / 1.5, top * 3)
    axes.yaxis.set_major_locator(FixedLocator([float(1 << power) for power in range(20, ceil(log2(top)) + 1, 4)]))
    axes.minorticks_off()
    if values:
        colours = [style.BLUE if value < _VERY_LARGE_BYTES else style.RED for value in values]
        axes.vlines(at, _LARGE_BYTES / 1.5, values, color=colours, alpha=0.35)
        axes.scatter(at, values, [26 if value < _VERY_LARGE_BYTES else 46 for value in values], colours, zorder=3)
    else:
        axes.text(0.5, 0.5, "none of 1 MiB or more", transform=axes.transAxes, ha="center", color=style.FAINT)


def _measured_xy(run: Summary, name: str) -> tuple[list[float], list[float]]:
    """Return the points within the measurement, in seconds from its start."""
    at, values = _xy(run, name)
    inside = [(x, y) for x, y in zip(at, values, strict=True) if 0 <= x <= run.measured_s]
    return [x for x, _ in inside], [y for _, y in inside]


# Title and format of the panels, by series.
_MACHINE_PANELS: Mapping[str, tuple[str, Callable[[float], str]]] = {
    "docs_per_s": ("Documents/s", format_integer),
    "response_ms_max": ("Longest response time, ms", format_count),
    "server_cpu_system_cores": ("The server's CPU in the kernel, cores", format_count),
    "server_context_switches_per_s": ("Its context switches/s", format_count),
    "server_page_faults_per_s": ("Its page faults/s", format_count),
    "compact_stall_per_s": ("Waits for compaction/s, whole machine", format_count),
    "numa_pages_migrated_per_s": ("Pages moved between NUMA nodes/s", format_count),
}


def draw_machine(summaries: Sequence[Summary]) -> bytes | None:
    """Draw one run of each cell: throughput above kernel counters, a column for each setting of the machine.

    None where no setting of the machine varies, where no run had the probe `host`, or for too many columns to read.
    """
    varying = cells.varying_keys(summaries)
    settings = [key for key in varying if key.startswith(HOST_KEYS)]
    others = [key for key in varying if key not in settings]
    runs = [
        run
        for row in cells.group_by_cell(summaries)
        for run in [run for run in row.valid if "server_cpu_system_cores" in run.series][:1]
    ]
    columns = list(dict.fromkeys(_name_levels(run, settings) for run in runs))
    if not settings or not runs or len(columns) > _MAX_COLUMNS:
        return None
    colours = style.assign_colours(_name_levels(run, others) for run in runs)
    lines = {name: {run.run: _mean_by_second(run, name) for run in runs} for name in _MACHINE_PANELS}
    panels = [name for name, by_run in lines.items() if any(any(line.values()) for line in by_run.values())]
    zero = [_MACHINE_PANELS[name][0] for name in lines if name not in panels and any(lines[name].values())]
    with style.figure_style():
        figure = style.new_figure(
            0.8 + len(panels) * _MACHINE_PANEL_IN,
            headline.describe_finding(summaries, "response_ms_max"),
            style.join_conditions([*_list_parts(runs[0]), "one run of each cell, means of each second"]),
            colours if others else {},
            [*style.left_out_notes(summaries), *([f"0 at all times: {'; '.join(zero)}"] if zero else [])],
        )
        every = figure.subplots(len(panels), len(columns), sharex=True, sharey="row", squeeze=False)
        for column, axes in zip(columns, every[0], strict=True):
            axes.annotate(
                shorten(column, 90 // len(columns)), (0, 1), xycoords="axes fraction", xytext=(0, 28),
                textcoords="offset points", fontsize=14, fontweight="bold",
            )  # fmt: skip
        for name, row in zip(panels, every, strict=True):
            title, text = _MACHINE_PANELS[name]
            row[0].set_title(title, pad=5, fontweight="normal")
            row[0].yaxis.set_major_locator(MaxNLocator(3))
            _format_y(row[0], text)
            drawn: list[tuple[Axes, dict[int, float], str]] = []
            for column, axes in zip(columns, row, strict=True):
                axes.grid(axis="y", linewidth=0.8)
                for run in runs:
                    if _name_levels(run, settings) == column:
                        line, colour = lines[name][run.run], colours[_name_levels(run, others)]
                        axes.plot([at + 0.5 for at in line], list(line.values()), color=colour, linewidth=1.9)
                        drawn += [(axes, line, colour)] if line else []
            _scale_row(drawn)
        axes.set_xlim(0, max(run.measured_s for run in runs) or 1.0)
        axes.xaxis.set_major_locator(MaxNLocator(5, prune="upper"))
        every[-1, 0].set_xlabel(_X_LABEL, loc="left")
        return style.save_figure(figure)


def _scale_row(drawn: Sequence[tuple[Axes, Mapping[int, float], str]]) -> None:
    """Scale panels to their lines. A line whose peak is far above the usual one is cut off, and its peak written."""
    peaks = [max(line.values()) for _, line, _ in drawn]
    limit = 5 * median(filter(None, peaks))
    top = max(peak for peak in peaks if peak <= limit)
    top *= 1.08 if top == max(peaks) else 1.5  # room for the marks
    for (axes, line, colour), peak in zip(drawn, peaks, strict=True):
        axes.set_ylim(0, top)
        if peak > top:
            at = next(second for second, value in line.items() if value == peak)
            axes.text(
                at + 0.5, 1, "\n" * len(axes.texts) + f"  ▲ up to {format_count(peak)}  ", color=colour, va="top",
                ha="left" if at < max(line) / 2 else "right", transform=axes.get_xaxis_transform(), fontsize=11,
            )  # fmt: skip


def _name_levels(run: Summary, keys: Sequence[str]) -> str:
    return ", ".join(f"{format_key(key)} {run.levels[key]}" for key in keys)


def _mean_by_second(run: Summary, name: str) -> dict[int, float]:
    """Return the mean of each complete second of the measurement; the probe samples 10 times a second."""
    line = run.series.get(name, Series(name, (), ()))
    start_ns, end_ns = run.measure_start_ns or 0, run.measure_end_ns or 0
    by_second: dict[int, list[float]] = {}
    for at, value in zip(line.at_ns, line.values, strict=True):
        second = (at - start_ns) // _SECOND_NS
        if second >= 0 and start_ns + (second + 1) * _SECOND_NS <= end_ns:
            by_second.setdefault(second, []).append(value)
    return {second: fmean(values) for second, values in by_second.items()}
