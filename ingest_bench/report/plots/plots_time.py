"""One run over time: throughput, response time, heap and pauses, with its faults and stalls as shaded spans."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import nan

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator

from ingest_bench.analysis.run import closed_loop
from ingest_bench.model.results import Series, Summary
from ingest_bench.report.plots.plots_style import (
    FAINT,
    FAULT,
    PALETTE,
    RULE,
    WIDTH_IN,
    bare,
    figure,
    headed,
    saved,
    style,
    text_width_in,
)
from ingest_bench.report.tables import headline, stall_table
from ingest_bench.report.tables.words import bytes_text, key_text, separated, short, whole

_BLUE, _RED, _GREEN = PALETTE[0], PALETTE[1], PALETTE[2]
_LABEL_PT = 12
_LEFT_IN, _RIGHT_IN, _PANEL_IN, _GAP_IN = 1.15, 1.35, 1.25, 0.42
_AXIS_IN = 0.6  # numbers and name of the lowest axis

_Draw = Callable[[Axes, Summary, int], None]
_RESPONSES = (
    ("response_ms_max", "max", _RED, "-"),
    ("response_ok_ms_max", "max of ok", PALETTE[3], "--"),
    ("response_ms_p50", "median", _BLUE, "-"),
)


def timeline(run: Summary) -> bytes | None:
    """A PNG of one run over time, in seconds from the start of the measurement; None when nothing was recorded."""
    start_ns = run.measure_start_ns
    panels = [(title, draw) for name, title, draw in _PANELS if name in run.series and run.series[name].at_ns]
    if start_ns is None or not panels:
        return None
    with style():
        hides = closed_loop.hidden(run)
        made = figure((2.05 if hides else 1.75) + len(panels) * (_PANEL_IN + _GAP_IN) + 0.45)
        below = "\n".join(filter(None, (_conditions(run), hides)))
        beneath_in = len(panels) * (_PANEL_IN + _GAP_IN) + _AXIS_IN
        top = headed(made, headline.timeline(run), below, beneath_in=beneath_in)
        height_in = made.get_figheight()
        ends = _ends(run, start_ns)
        for number, (title, draw) in enumerate(panels):
            bottom = top - ((number + 1) * (_PANEL_IN + _GAP_IN)) / height_in
            place = (_LEFT_IN / WIDTH_IN, bottom, 1 - (_LEFT_IN + _RIGHT_IN) / WIDTH_IN, _PANEL_IN / height_in)
            axes = made.add_axes(place)
            bare(axes, left=True)
            axes.set_title(title, loc="left", fontweight="bold", pad=5)
            axes.set_xlim(*ends)
            axes.yaxis.set_major_locator(MaxNLocator(3))
            draw(axes, run, start_ns)
            _spans(made, axes, run, start_ns, ends, labelled=number == 0)
            axes.set_ylim(bottom=0)
            axes.grid(axis="y", color=RULE, linewidth=0.8)
            axes.set_axisbelow(True)
            if number < len(panels) - 1:
                axes.set_xticklabels([])
            else:
                axes.set_xlabel("seconds from the start of the measurement")
        return saved(made)


def _documents(axes: Axes, run: Summary, start_ns: int) -> None:
    at, values = _xy(run.series["docs_per_s"], start_ns)
    axes.set_ylim(0, max(values) * 1.3 or 1)  # room for the names of the spans
    # Each value is of the second that begins at its moment.
    axes.stairs(values, [*at, at[-1] + 1], fill=True, color=_BLUE, alpha=0.25)
    axes.stairs(values, [*at, at[-1] + 1], color=_BLUE, linewidth=2)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: whole(value)))


def _response(axes: Axes, run: Summary, start_ns: int) -> None:
    last = []
    for name, label, colour, dashes in _RESPONSES:
        line = run.series.get(name)
        if line is None or not line.at_ns or (name == "response_ok_ms_max" and not run.values.get("requests_failed")):
            continue
        at, values = _broken(*_xy(line, start_ns))
        axes.plot([moment + 0.5 for moment in at], values, color=colour, linewidth=2, linestyle=dashes)
        last.append((values[-1], label, colour))
    apart = 0.16 * (axes.get_ylim()[1] or 1)
    height = -apart
    for value, label, colour in sorted(last):
        height = max(value, height + apart)
        axes.annotate(
            label, (1, height), xycoords=("axes fraction", "data"), xytext=(8, 0), textcoords="offset points",
            color=colour, va="center", fontweight="bold", annotation_clip=False,
        )  # fmt: skip
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value) if value else "0"))


def _heap(axes: Axes, run: Summary, start_ns: int) -> None:
    at, values = _xy(run.series["heap_bytes"], start_ns)
    axes.plot(at, values, color=_GREEN, linewidth=1.6)
    heap = run.values.get("heap_bytes")
    if isinstance(heap, int):
        axes.yaxis.set_major_locator(FixedLocator([0, heap / 2, heap]))
        axes.axhline(heap, color=FAINT, linewidth=1.2, linestyle="--")
        axes.set_ylim(0, heap * 1.08)
        axes.annotate(
            f"max {bytes_text(heap)}", (1, heap), xycoords=("axes fraction", "data"), xytext=(8, 0),
            textcoords="offset points", color=FAINT, va="center", annotation_clip=False,
        )  # fmt: skip
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: bytes_text(value) if value else "0"))


def _pauses(axes: Axes, run: Summary, start_ns: int) -> None:
    _upright(axes, *_xy(run.series["gc_pause_ms"], start_ns), _RED)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value) if value else "0"))


def _large(axes: Axes, run: Summary, start_ns: int) -> None:
    most = _upright(axes, *_xy(run.series["large_allocation_bytes"], start_ns), _BLUE)
    # Halves of a power of two have round names.
    axes.yaxis.set_major_locator(FixedLocator([0, most / 2, most]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: bytes_text(value) if value else "0"))


def _upright(axes: Axes, at: list[float], values: list[float], colour: str) -> float:
    """A line up to each value that is seen, and the most of them: what was before the load does not scale the panel."""
    first, last = axes.get_xlim()
    seen = [(moment, value) for moment, value in zip(at, values, strict=True) if first <= moment <= last]
    axes.vlines([moment for moment, _ in seen], 0, [value for _, value in seen], color=colour, linewidth=2)
    return max((value for _, value in seen), default=0.0)


_PANELS: tuple[tuple[str, str, _Draw], ...] = (
    ("docs_per_s", "Documents/s", _documents),
    ("response_ms_p50", "Response time, ms: median of what ended, longest of what waited in a second", _response),
    ("heap_bytes", "Heap in use, before and after each collection", _heap),
    ("gc_pause_ms", "GC pauses, ms", _pauses),
    ("large_allocation_bytes", "Objects of 1 MiB and more", _large),
)


def _xy(line: Series, start_ns: int) -> tuple[list[float], list[float]]:
    return [(at - start_ns) / 1e9 for at in line.at_ns], list(line.values)


def _broken(at: list[float], values: list[float]) -> tuple[list[float], list[float]]:
    """The line with a hole wherever a second is missing: nothing was answered there, so nothing is drawn."""
    moments, kept = at[:1], values[:1]
    for before, moment, value in zip(at, at[1:], values[1:], strict=False):
        if moment - before > 1.5:
            moments.append(moment - 1)
            kept.append(nan)
        moments.append(moment)
        kept.append(value)
    return moments, kept


def _ends(run: Summary, start_ns: int) -> tuple[float, float]:
    """From the first second of the load to the end of the measurement."""
    load = run.series.get("docs_per_s")
    first = (load.at_ns[0] - start_ns) / 1e9 if load and load.at_ns else 0.0
    moments = [at for line in run.series.values() for at in line.at_ns]
    end_ns = run.measure_end_ns or max(moments)
    return min(first, 0.0), (end_ns - start_ns) / 1e9


def _spans(made: Figure, axes: Axes, run: Summary, start_ns: int, ends: tuple[float, float], *, labelled: bool) -> None:
    spans = []
    named: dict[str, tuple[float, float]] = {}
    for fault in run.faults:
        left, right = ((end_ns - start_ns) / 1e9 for end_ns in (fault.started, fault.ended or fault.started))
        if right < ends[0] or left > ends[1]:
            continue  # of another time than the load: its record is damaged, or clocks were set
        left, right = max(left, ends[0]), min(right, ends[1])
        # A fault without a length, such as a reset, is a line.
        right = max(right, left + 0.002 * (ends[1] - ends[0]))
        spans.append((left, right))
        axes.axvspan(left, right, color=FAULT, alpha=0.28, linewidth=0, zorder=0)
        # One that happens again and again is named once, and none where its name would hide another: the title has all.
        left = min(left, ends[1] - _wide(made, axes, fault.kind, ends))
        room = (left, left + _wide(made, axes, fault.kind, ends))
        if labelled and fault.kind not in named and _is_free(room, named):
            _label(axes, left, fault.kind, "#8a5a00")
            named[fault.kind] = room
    texts: dict[str, tuple[float, float]] = {}
    for stall in sorted(run.stalls, key=lambda one: one.start_ns - one.end_ns):
        left, right = ((moment - start_ns) / 1e9 for moment in (stall.start_ns, stall.end_ns))
        # Hatched, so that a fault below it is seen too.
        axes.axvspan(left, right, facecolor="none", edgecolor=FAINT, hatch="////", alpha=0.4, linewidth=0, zorder=0)
        cause = stall_table.shown([stall])
        # The longest of each cause is named, where its name hides no other and does not leave the picture.
        if not labelled or cause in texts or cause.removeprefix("fault ") in named:
            continue
        room = (left, left + _wide(made, axes, cause, ends))
        if room[1] <= ends[1] and _is_free(room, texts):
            _label(axes, left, cause, FAINT, down=16)
            texts[cause] = room
    if ends[0] < 0:
        axes.axvspan(ends[0], 0, color=RULE, alpha=0.5, linewidth=0, zorder=0)
        if labelled and not any(left < 0.12 * ends[1] for left, _ in spans):
            _label(axes, ends[0], "warm-up", FAINT)


def _wide(made: Figure, axes: Axes, text: str, ends: tuple[float, float]) -> float:
    """How wide a name is, with some space behind it, in seconds."""
    return text_width_in(made, f"{text}  ", _LABEL_PT) / (axes.bbox.width / made.dpi) * (ends[1] - ends[0])


def _is_free(room: tuple[float, float], taken: Mapping[str, tuple[float, float]]) -> bool:
    """Whether none of those that are taken has a part of it."""
    return all(room[1] < begin or end < room[0] for begin, end in taken.values())


def _label(axes: Axes, at: float, text: str, colour: str, down: int = 3) -> None:
    axes.annotate(
        text, (at, 1), xycoords=("data", "axes fraction"), xytext=(3, -down), textcoords="offset points", va="top",
        color=colour, fontsize=_LABEL_PT, fontweight="bold",
    )  # fmt: skip


def _conditions(run: Summary) -> str:
    parts = [str(run.values[name]) for name in ("target", "workload", "network") if run.values.get(name)]
    levels = [
        f"{key_text(key)} {level}"
        for key, level in run.levels.items()
        if key_text(key) not in ("target", "workload") and not key.startswith("network")
    ]
    return separated([*parts, *levels, f"replicate {run.replicate}"])
