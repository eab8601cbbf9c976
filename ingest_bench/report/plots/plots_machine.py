"""Settings of the machine over time: throughput above what the kernel counted, a column a level, a line a cell."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from ingest_bench.analysis.compare import cells
from ingest_bench.model.results import Series, Summary
from ingest_bench.report.plots.plots_style import (
    RULE,
    WIDTH_IN,
    bare,
    colours,
    figure,
    fitted,
    footed,
    headed,
    saved,
    style,
    text_width_in,
)
from ingest_bench.report.tables import headline, machine_table
from ingest_bench.report.tables.words import counted, key_text, separated, whole

_LEFT_IN, _RIGHT_IN, _PANEL_IN, _GAP_IN, _BETWEEN_IN = 0.95, 0.3, 0.78, 0.38, 0.3
# The levels above the panels, and what stands below these.
_HEAD_IN, _BELOW_IN = 0.7, 0.8
_MOST_COLUMNS = 4
_SECOND_NS = 10**9


@dataclass(frozen=True, slots=True)
class _Panel:
    series: str
    title: str
    text: Callable[[float], str] = counted


_PANELS = (
    _Panel("docs_per_s", "Documents/s", whole),
    _Panel("response_ms_max", "Longest response time, ms"),
    _Panel("server_cpu_system_cores", "The server's CPU in the kernel, cores"),
    _Panel("server_context_switches_per_s", "Its context switches/s"),
    _Panel("server_page_faults_per_s", "Its page faults/s"),
    _Panel("compact_stall_per_s", "Waits for compaction/s, whole machine"),
    _Panel("numa_pages_migrated_per_s", "Pages moved between NUMA nodes/s"),
)


def machine(summaries: Sequence[Summary]) -> bytes | None:
    """A PNG of one run of each cell, in seconds from the start of the measurement.

    None where no setting of the machine varies, where the probe `host` did not watch, or where there are more levels
    than columns that can be read.
    """
    varying = cells.varying(summaries)
    settings = [key for key in varying if key.startswith(machine_table.KEYS)]
    runs = [run for run in map(_shown, cells.group(summaries)) if run is not None]
    columns = list(dict.fromkeys(_named(run, settings) for run in runs))
    if not settings or not runs or len(columns) > _MOST_COLUMNS:
        return None
    others = [key for key in varying if key not in settings]
    paint = colours(_named(run, others) for run in runs)
    found = {panel: {run.run: _by_second(run, panel.series) for run in runs} for panel in _PANELS}
    drawn = [panel for panel, lines in found.items() if any(any(line.values()) for line in lines.values())]
    flat = [panel.title for panel, lines in found.items() if panel not in drawn and any(lines.values())]
    with style():
        beneath_in = _HEAD_IN + len(drawn) * (_PANEL_IN + _GAP_IN) + _BELOW_IN
        made = figure(beneath_in)
        top = headed(made, headline.machine(summaries), _conditions(runs), paint if others else {}, beneath_in)
        height_in = made.get_figheight()
        footed(made, [f"0 at all times: {', '.join(flat)}"] if flat else [])
        width_in = (WIDTH_IN - _LEFT_IN - _RIGHT_IN - _BETWEEN_IN * (len(columns) - 1)) / len(columns)
        size = next((size for size in (15, 13) if _fit(made, columns, size, width_in)), 11)
        for row, panel in enumerate(drawn):
            most = max(max(line.values(), default=0.0) for line in found[panel].values())
            for place, column in enumerate(columns):
                left_in = _LEFT_IN + place * (width_in + _BETWEEN_IN)
                bottom = top - (_HEAD_IN + row * (_PANEL_IN + _GAP_IN) + _PANEL_IN) / height_in
                box = (left_in / WIDTH_IN, bottom, width_in / WIDTH_IN, _PANEL_IN / height_in)
                axes = made.add_axes(box)
                here = [run for run in runs if _named(run, settings) == column]
                _draw(axes, panel, here, found[panel], {run.run: paint[_named(run, others)] for run in here})
                axes.set_ylim(0, most * 1.08)
                if row == 0:
                    axes.annotate(
                        fitted(made, column, size, width_in), (0, 1), xycoords="axes fraction", xytext=(0, 26),
                        textcoords="offset points", fontsize=size, fontweight="bold",
                    )  # fmt: skip
                if place == 0:
                    axes.set_title(panel.title, loc="left", fontweight="bold", pad=5)
                else:
                    axes.set_yticklabels([])
                if row < len(drawn) - 1:
                    axes.set_xticklabels([])
                elif place == 0:
                    axes.set_xlabel("seconds from the start of the measurement", loc="left")
        return saved(made)


def _fit(made: Figure, texts: Sequence[str], size: int, most_in: float) -> bool:
    return all(text_width_in(made, text, size) <= most_in for text in texts)


def _shown(row: cells.CellRuns) -> Summary | None:
    """The first valid run of a cell that the probe `host` watched."""
    return next((run for run in row.valid if "server_cpu_system_cores" in run.series), None)


def _named(run: Summary, keys: Sequence[str]) -> str:
    return ", ".join(f"{key_text(key)} {run.levels[key]}" for key in keys)


def _by_second(run: Summary, name: str) -> dict[int, float]:
    """The mean of each whole second of the measurement; the probe looks ten times as often, which is noise here."""
    line = run.series.get(name, Series(name, (), ()))
    start_ns, end_ns = run.measure_start_ns or 0, run.measure_end_ns or 0
    found: dict[int, list[float]] = {}
    for at, value in zip(line.at_ns, line.values, strict=True):
        second = (at - start_ns) // _SECOND_NS
        if second >= 0 and start_ns + (second + 1) * _SECOND_NS <= end_ns:
            found.setdefault(second, []).append(value)
    return {second: fmean(values) for second, values in found.items()}


def _draw(
    axes: Axes,
    panel: _Panel,
    runs: Sequence[Summary],
    lines: Mapping[str, Mapping[int, float]],
    paint: Mapping[str, str],
) -> None:
    bare(axes, left=True)
    axes.yaxis.set_major_locator(MaxNLocator(3))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: panel.text(value)))
    axes.grid(axis="y", color=RULE, linewidth=0.8)
    axes.set_axisbelow(True)
    for run in runs:
        line = lines[run.run]
        axes.plot([second + 0.5 for second in line], list(line.values()), color=paint[run.run], linewidth=1.9)
    axes.set_xlim(0, max(((run.measure_end_ns or 0) - (run.measure_start_ns or 0)) / _SECOND_NS for run in runs))


def _conditions(runs: Sequence[Summary]) -> str:
    first = runs[0]
    parts = [str(first.values[name]) for name in ("target", "workload", "network") if first.values.get(name)]
    return separated([*parts, "one run of each cell, means of each second"])
