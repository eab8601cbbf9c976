"""Pictures over time: one run, the heap and large objects of each cell, and settings of the machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, log2, nan
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator

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
    join_conditions,
)
from ingest_bench.report.plot_cells import row_labels
from ingest_bench.report.stall_table import format_causes

_X_LABEL = "seconds from the start of the measurement"
_AXIS_IN = 0.6  # numbers and label of the lowest axis
_LABEL_PT = 12

# One run: left and right margins, height of a panel and distance to the next.
_RUN_LEFT_IN, _RUN_RIGHT_IN, _RUN_PANEL_IN, _RUN_GAP_IN = 1.15, 1.35, 1.25, 0.42
_Draw = Callable[[Axes, Summary, int], None]
_RESPONSES = (
    ("response_ms_max", "max", style.RED, "-"),
    ("response_ok_ms_max", "max of ok", style.PALETTE[3], "--"),
    ("response_ms_p50", "median", style.BLUE, "-"),
)

LARGE = "large_allocation_bytes"
_LABELS_IN, _TICKS_IN, _LARGE_GAP_IN, _LARGE_RIGHT_IN, _LARGE_ROW_IN = 3.0, 0.95, 0.25, 0.4, 1.75
_LARGE_BYTES, _VERY_LARGE_BYTES = 1 << 20, 100 << 20

_LEFT_IN, _RIGHT_IN, _PANEL_IN, _GAP_IN, _BETWEEN_IN = 0.95, 0.3, 0.78, 0.38, 0.3
_COLUMN_HEAD_IN, _BELOW_IN = 0.7, 0.8
_MAX_COLUMNS = 4
_SECOND_NS = 10**9


def draw_timeline(run: Summary) -> bytes | None:
    """Draw one run in seconds from the start of the measurement, with its faults and stalls; None without series."""
    start_ns = run.measure_start_ns
    panels = [(title, draw) for name, title, draw in _RUN_PANELS if name in run.series and run.series[name].at_ns]
    if start_ns is None or not panels:
        return None
    with style.figure_style():
        hidden = generator.describe_hidden_waiting(run)
        panels_in = len(panels) * (_RUN_PANEL_IN + _RUN_GAP_IN)
        figure = style.new_figure((2.05 if hidden else 1.75) + panels_in + 0.45)
        conditions = "\n".join(filter(None, (_describe_run_conditions(run), hidden)))
        top = style.add_heading(figure, headline.describe_run(run), conditions, least_below_in=panels_in + _AXIS_IN)
        height_in = figure.get_figheight()
        ends = _find_ends(run, start_ns)
        for number, (title, draw) in enumerate(panels):
            bottom = top - ((number + 1) * (_RUN_PANEL_IN + _RUN_GAP_IN)) / height_in
            width = 1 - (_RUN_LEFT_IN + _RUN_RIGHT_IN) / style.WIDTH_IN
            axes = figure.add_axes((_RUN_LEFT_IN / style.WIDTH_IN, bottom, width, _RUN_PANEL_IN / height_in))
            axes.set_title(title, loc="left", fontweight="bold", pad=5)
            axes.set_xlim(*ends)
            axes.yaxis.set_major_locator(MaxNLocator(3))
            draw(axes, run, start_ns)
            _draw_spans(figure, axes, run, start_ns, has_labels=number == 0)
            axes.set_ylim(bottom=0)
            _finish_time_axes(axes, is_last=number == len(panels) - 1)
        return style.save_figure(figure)


def _finish_time_axes(axes: Axes, *, is_last: bool) -> None:
    """Add horizontal rules, and the numbers and label of the time axis to the last panel only."""
    style.strip_axes(axes, left=True)
    axes.grid(axis="y", color=style.RULE, linewidth=0.8)
    axes.set_axisbelow(True)
    if is_last:
        axes.set_xlabel(_X_LABEL)
    else:
        axes.set_xticklabels([])


def _format_y(axes: Axes, text: Callable[[float], str]) -> None:
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: text(value) if value else "0"))


def _draw_documents(axes: Axes, run: Summary, start_ns: int) -> None:
    at, values = _xy(run.series["docs_per_s"], start_ns)
    axes.set_ylim(0, max(values) * 1.3 or 1)  # room for the names of the spans
    # A value is of the second that begins at its time.
    axes.stairs(values, [*at, at[-1] + 1], fill=True, color=style.BLUE, alpha=0.25)
    axes.stairs(values, [*at, at[-1] + 1], color=style.BLUE, linewidth=2)
    _format_y(axes, format_integer)


def _draw_responses(axes: Axes, run: Summary, start_ns: int) -> None:
    ends = []
    for name, label, colour, dashes in _RESPONSES:
        line = run.series.get(name)
        if line is None or not line.at_ns or (name == "response_ok_ms_max" and not run.values.get("requests_failed")):
            continue
        at, values = _break_at_gaps(*_xy(line, start_ns))
        axes.plot([moment + 0.5 for moment in at], values, color=colour, linewidth=2, linestyle=dashes)
        ends.append((values[-1], label, colour))
    distance = 0.16 * (axes.get_ylim()[1] or 1)
    height = -distance
    for value, label, colour in sorted(ends):
        height = max(value, height + distance)
        _label_right(axes, height, label, colour, "bold")
    _format_y(axes, format_number)


def _draw_heap(axes: Axes, run: Summary, start_ns: int) -> None:
    axes.plot(*_xy(run.series["heap_bytes"], start_ns), color=style.GREEN, linewidth=1.6)
    heap = _mark_heap_limit(axes, run)
    if heap is not None:
        _label_right(axes, heap, f"max {format_size(heap)}", style.FAINT)
    _format_y(axes, format_size)


def _mark_heap_limit(axes: Axes, run: Summary) -> int | None:
    heap = run.values.get("heap_bytes")
    if not isinstance(heap, int):
        return None
    axes.yaxis.set_major_locator(FixedLocator([0, heap / 2, heap]))
    axes.axhline(heap, color=style.FAINT, linewidth=1.2, linestyle="--")
    axes.set_ylim(0, heap * 1.08)
    return heap


def _draw_pauses(axes: Axes, run: Summary, start_ns: int) -> None:
    _draw_bars(axes, *_xy(run.series["gc_pause_ms"], start_ns), style.RED)
    _format_y(axes, format_number)


def _draw_large_objects(axes: Axes, run: Summary, start_ns: int) -> None:
    most = _draw_bars(axes, *_xy(run.series[LARGE], start_ns), style.BLUE)
    # Halves of a power of two have round names.
    axes.yaxis.set_major_locator(FixedLocator([0, most / 2, most]))
    _format_y(axes, format_size)


def _draw_bars(axes: Axes, at: list[float], values: list[float], colour: str) -> float:
    """Draw a vertical line for each value in view; return the largest. Values before the load do not scale the axis."""
    first, last = axes.get_xlim()
    visible = [(moment, value) for moment, value in zip(at, values, strict=True) if first <= moment <= last]
    axes.vlines([moment for moment, _ in visible], 0, [value for _, value in visible], color=colour, linewidth=2)
    return max((value for _, value in visible), default=0.0)


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
    ("heap_bytes", "Heap in use, before and after each collection", _draw_heap),
    ("gc_pause_ms", "GC pauses, ms", _draw_pauses),
    (LARGE, "Objects of 1 MiB and more", _draw_large_objects),
)


def _xy(line: Series, start_ns: int) -> tuple[list[float], list[float]]:
    return [(at - start_ns) / 1e9 for at in line.at_ns], list(line.values)


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


def _find_ends(run: Summary, start_ns: int) -> tuple[float, float]:
    """Return the first second of the load and the end of the measurement."""
    load = run.series.get("docs_per_s")
    first = (load.at_ns[0] - start_ns) / 1e9 if load and load.at_ns else 0.0
    end_ns = run.measure_end_ns or max(at for line in run.series.values() for at in line.at_ns)
    return min(first, 0.0), (end_ns - start_ns) / 1e9


class _SpanLabels:
    """Names of spans in one line at the top of a panel. A name that would cover another is left out."""

    def __init__(self, figure: Figure, axes: Axes, y_points: int, colour: str) -> None:
        self._figure, self._axes, self._y_points, self._colour = figure, axes, y_points, colour
        self._taken: dict[str, tuple[float, float]] = {}

    def add(self, left: float, text: str, *, may_move: bool) -> None:
        """Write the text at that second, once; one that `may_move` moves left where it would leave the picture."""
        first, last = self._axes.get_xlim()
        panel_in = self._axes.bbox.width / self._figure.dpi
        width = style.text_width_in(self._figure, f"{text}  ", _LABEL_PT) / panel_in * (last - first)
        left = min(left, last - width) if may_move else left
        right = left + width
        is_free = all(right < begin or end < left for begin, end in self._taken.values())
        if text not in self._taken and is_free and right <= last * (1 + 1e-9):
            _label_span(self._axes, left, text, self._colour, self._y_points)
            self._taken[text] = (left, right)

    def __contains__(self, text: str) -> bool:
        return text in self._taken


def _draw_spans(figure: Figure, axes: Axes, run: Summary, start_ns: int, *, has_labels: bool) -> None:
    """Shade faults, stalls and the warm-up; label them in the first panel."""
    first, last = axes.get_xlim()
    fault_labels, stall_labels = _SpanLabels(figure, axes, 3, "#8a5a00"), _SpanLabels(figure, axes, 16, style.FAINT)
    begins = []
    for fault in run.faults:
        left, right = ((at_ns - start_ns) / 1e9 for at_ns in (fault.start_ns, fault.end_ns or fault.start_ns))
        if right < first or left > last:
            continue  # outside the load: its record is damaged, or clocks were set
        left, right = max(left, first), min(right, last)
        # A fault without duration, such as a reset, becomes a line.
        right = max(right, left + 0.002 * (last - first))
        begins.append(left)
        axes.axvspan(left, right, color=style.FAULT, alpha=0.28, linewidth=0, zorder=0)
        if has_labels:
            fault_labels.add(left, fault.kind, may_move=True)
    for stall in sorted(run.stalls, key=lambda stall: stall.start_ns - stall.end_ns):
        left, right = ((at_ns - start_ns) / 1e9 for at_ns in (stall.start_ns, stall.end_ns))
        # Hatched, so that a fault beneath it stays visible.
        axes.axvspan(
            left, right, facecolor="none", edgecolor=style.FAINT, hatch="////", alpha=0.4, linewidth=0, zorder=0
        )
        cause = format_causes([stall])
        # The longest stall of each cause is labelled; a fault has its label already.
        if has_labels and cause.removeprefix("fault ") not in fault_labels:
            stall_labels.add(left, cause, may_move=False)
    if first < 0:
        axes.axvspan(first, 0, color=style.RULE, alpha=0.5, linewidth=0, zorder=0)
        if has_labels and not any(left < 0.12 * last for left in begins):
            _label_span(axes, first, "warm-up", style.FAINT, 3)


def _label_span(axes: Axes, x: float, text: str, colour: str, y_points: int) -> None:
    axes.annotate(
        text, (x, 1), xycoords=("data", "axes fraction"), xytext=(3, -y_points), textcoords="offset points", va="top",
        color=colour, fontsize=_LABEL_PT, fontweight="bold",
    )  # fmt: skip


def _describe_run_conditions(run: Summary) -> str:
    parts = [str(run.values[name]) for name in ("target", "workload", "network") if run.values.get(name)]
    levels = [
        f"{format_key(key)} {level}"
        for key, level in run.levels.items()
        if format_key(key) not in ("target", "workload") and not key.startswith("network")
    ]
    return join_conditions([*parts, *levels, f"replicate {run.replicate}"])


def draw_large_allocations(summaries: Sequence[Summary]) -> bytes | None:
    """Draw heap and large objects of the first valid run of each cell; None when no run recorded large allocations."""
    first = {
        row.name: next((run for run in row.valid if LARGE in run.series and run.measure_start_ns is not None), None)
        for row in cells.group_by_cell(summaries)
    }
    rows = [row for row in cells.group_by_cell(summaries) if first[row.name] is not None]
    runs = [run for run in first.values() if run is not None]
    if not runs:
        return None
    with style.figure_style():
        figure = style.new_figure(2.6 + _LARGE_ROW_IN * len(rows))
        faults = {fault.kind: style.FAULT for run in runs for fault in run.faults}
        title, least_in = headline.describe_large_objects(summaries), 1.5 + _LARGE_ROW_IN * len(rows)
        top = style.add_heading(figure, title, style.describe_conditions(summaries), faults, least_in)
        height_in = figure.get_figheight()
        top -= 0.5 / height_in
        bottom = style.add_notes(figure, style.left_out_notes(summaries)) + 0.65 / height_in
        keys = cells.varying_keys(summaries)
        labels = [style.shorten_to_width(figure, label, 15, _LABELS_IN) for label in row_labels(rows, keys)]
        left_in = 0.25 + max(style.text_width_in(figure, label, 15) for label in labels)
        width_in = (style.WIDTH_IN - left_in - 2 * _TICKS_IN - _LARGE_GAP_IN - _LARGE_RIGHT_IN) / 2
        most = max((value for run in runs for value in _measured_xy(run.series[LARGE], run)[1]), default=0.0)
        seconds = max(_measured_s(run) for run in runs)
        row_height = (top - bottom) / len(rows)
        for number, (run, label) in enumerate(zip(runs, labels, strict=True)):
            low = top - (number + 1) * row_height + 0.22 / height_in
            figure.text(
                (left_in - 0.02) / style.WIDTH_IN,
                low + row_height / 2,
                label,
                ha="right",
                fontsize=15,
                fontweight="bold",
            )
            for place, (title, draw) in enumerate((("Heap in use", _draw_cell_heap), (_LARGE_TITLE, _draw_sizes))):
                start_in = left_in + _TICKS_IN + place * (width_in + _TICKS_IN + _LARGE_GAP_IN)
                box = (start_in / style.WIDTH_IN, low, width_in / style.WIDTH_IN, row_height - 0.34 / height_in)
                axes = figure.add_axes(box)
                # Room for half a point at either end.
                axes.set_xlim(-0.01 * seconds, 1.01 * seconds)
                draw(axes, run, most)
                for fault in run.faults:
                    at = (fault.start_ns - (run.measure_start_ns or 0)) / 1e9
                    if 0 <= at <= seconds:
                        axes.axvline(at, color=style.FAULT, linewidth=1.6, alpha=0.8, zorder=0)
                _format_y(axes, format_size)
                if number == 0:
                    axes.set_title(title, loc="left", fontweight="bold", pad=8)
                _finish_time_axes(axes, is_last=number == len(runs) - 1)
        return style.save_figure(figure)


_LARGE_TITLE = "Objects of 1 MiB and more"


def _draw_cell_heap(axes: Axes, run: Summary, _most: float) -> None:
    if "heap_bytes" in run.series:
        axes.plot(*_measured_xy(run.series["heap_bytes"], run), color=style.GREEN, linewidth=1.8)
    _mark_heap_limit(axes, run)


def _draw_sizes(axes: Axes, run: Summary, most: float) -> None:
    at, values = _measured_xy(run.series[LARGE], run)
    axes.set_yscale("log", base=2)
    top = max(most, float(_VERY_LARGE_BYTES))
    axes.set_ylim(_LARGE_BYTES / 1.5, top * 3)
    axes.yaxis.set_major_locator(FixedLocator([float(1 << power) for power in range(20, ceil(log2(top)) + 1, 4)]))
    axes.minorticks_off()
    points = list(zip(at, values, strict=True))
    for chosen, colour, size in (
        ([(x, y) for x, y in points if y < _VERY_LARGE_BYTES], style.BLUE, 26),
        ([(x, y) for x, y in points if y >= _VERY_LARGE_BYTES], style.RED, 46),
    ):
        if chosen:
            axes.vlines([x for x, _ in chosen], _LARGE_BYTES / 1.5, [y for _, y in chosen], color=colour, alpha=0.35)
            axes.scatter([x for x, _ in chosen], [y for _, y in chosen], color=colour, s=size, zorder=3)
    if not values:
        axes.text(0.5, 0.5, "none of 1 MiB or more", transform=axes.transAxes, ha="center", color=style.FAINT)


def _measured_s(run: Summary) -> float:
    start_ns = run.measure_start_ns or 0
    return ((run.measure_end_ns or start_ns) - start_ns) / 1e9 or 1.0


def _measured_xy(line: Series, run: Summary) -> tuple[list[float], list[float]]:
    """Return the points within the measurement, in seconds from its start."""
    start_ns, end_ns = run.measure_start_ns or 0, run.measure_end_ns or 0
    at, values = _xy(line, start_ns)
    inside = [(x, y) for x, y in zip(at, values, strict=True) if 0 <= x <= (end_ns - start_ns) / 1e9]
    return [x for x, _ in inside], [y for _, y in inside]


@dataclass(frozen=True, slots=True)
class _MachinePanel:
    series: str
    title: str
    text: Callable[[float], str] = format_count


_MACHINE_PANELS = (
    _MachinePanel("docs_per_s", "Documents/s", format_integer),
    _MachinePanel("response_ms_max", "Longest response time, ms"),
    _MachinePanel("server_cpu_system_cores", "The server's CPU in the kernel, cores"),
    _MachinePanel("server_context_switches_per_s", "Its context switches/s"),
    _MachinePanel("server_page_faults_per_s", "Its page faults/s"),
    _MachinePanel("compact_stall_per_s", "Waits for compaction/s, whole machine"),
    _MachinePanel("numa_pages_migrated_per_s", "Pages moved between NUMA nodes/s"),
)


def draw_machine(summaries: Sequence[Summary]) -> bytes | None:
    """Draw one run of each cell: throughput above kernel counters, a column for each setting of the machine.

    None where no setting of the machine varies, where no run had the probe `host`, or for too many columns to read.
    """
    varying = cells.varying_keys(summaries)
    settings = [key for key in varying if key.startswith(HOST_KEYS)]
    others = [key for key in varying if key not in settings]
    first = [
        next((run for run in row.valid if "server_cpu_system_cores" in run.series), None)
        for row in cells.group_by_cell(summaries)
    ]
    runs = [run for run in first if run is not None]
    columns = list(dict.fromkeys(_name_levels(run, settings) for run in runs))
    if not settings or not runs or len(columns) > _MAX_COLUMNS:
        return None
    colours = style.assign_colours(_name_levels(run, others) for run in runs)
    lines = {panel: {run.run: _mean_by_second(run, panel.series) for run in runs} for panel in _MACHINE_PANELS}
    panels = [panel for panel, by_run in lines.items() if any(any(line.values()) for line in by_run.values())]
    zero = [panel.title for panel, by_run in lines.items() if panel not in panels and any(by_run.values())]
    with style.figure_style():
        least_in = _COLUMN_HEAD_IN + len(panels) * (_PANEL_IN + _GAP_IN) + _BELOW_IN
        figure = style.new_figure(least_in)
        values = runs[0].values
        conditions = [str(values[name]) for name in ("target", "workload", "network") if values.get(name)]
        text = join_conditions([*conditions, "one run of each cell, means of each second"])
        top = style.add_heading(figure, headline.describe_machine(summaries), text, colours if others else {}, least_in)
        height_in = figure.get_figheight()
        style.add_notes(figure, [f"0 at all times: {', '.join(zero)}"] if zero else [])
        width_in = (style.WIDTH_IN - _LEFT_IN - _RIGHT_IN - _BETWEEN_IN * (len(columns) - 1)) / len(columns)
        size = next((size for size in (15, 13) if _fits(figure, columns, size, width_in)), 11)
        for row, panel in enumerate(panels):
            most = max(max(line.values(), default=0.0) for line in lines[panel].values())
            for place, column in enumerate(columns):
                left_in = _LEFT_IN + place * (width_in + _BETWEEN_IN)
                bottom = top - (_COLUMN_HEAD_IN + row * (_PANEL_IN + _GAP_IN) + _PANEL_IN) / height_in
                axes = figure.add_axes(
                    (left_in / style.WIDTH_IN, bottom, width_in / style.WIDTH_IN, _PANEL_IN / height_in)
                )
                here = [run for run in runs if _name_levels(run, settings) == column]
                _draw_machine_lines(
                    axes, panel, here, lines[panel], [colours[_name_levels(run, others)] for run in here]
                )
                axes.set_ylim(0, most * 1.08)
                _finish_time_axes(axes, is_last=row == len(panels) - 1)
                axes.set_xlabel(_X_LABEL if row == len(panels) - 1 and place == 0 else "", loc="left")
                if row == 0:
                    axes.annotate(
                        style.shorten_to_width(figure, column, size, width_in), (0, 1), xycoords="axes fraction",
                        xytext=(0, 26), textcoords="offset points", fontsize=size, fontweight="bold",
                    )  # fmt: skip
                if place == 0:
                    axes.set_title(panel.title, loc="left", fontweight="bold", pad=5)
                else:
                    axes.set_yticklabels([])
        return style.save_figure(figure)


def _fits(figure: Figure, texts: Sequence[str], size: int, most_in: float) -> bool:
    return all(style.text_width_in(figure, text, size) <= most_in for text in texts)


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


def _draw_machine_lines(
    axes: Axes,
    panel: _MachinePanel,
    runs: Sequence[Summary],
    lines: Mapping[str, Mapping[int, float]],
    colours: Sequence[str],
) -> None:
    axes.yaxis.set_major_locator(MaxNLocator(3))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: panel.text(value)))
    for run, colour in zip(runs, colours, strict=True):
        line = lines[run.run]
        axes.plot([second + 0.5 for second in line], list(line.values()), color=colour, linewidth=1.9)
    axes.set_xlim(0, max(_measured_s(run) for run in runs))
