"""Look of all pictures: size, colours, heading, notes; and how a figure becomes a PNG or an SVG.

Figures are created without pyplot, which keeps every figure in a global list and looks for a screen.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from matplotlib import rc_context, rcdefaults, rcParams
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ingest_bench.analysis.compare import cells
from ingest_bench.model.results import Summary
from ingest_bench.report.formatting import SEPARATOR, format_key, join_conditions

# Okabe and Ito, "Color Universal Design" (2008), without yellow (too light on white) and with black last.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
BLUE, RED, GREEN = PALETTE[:3]
INK, FAINT, RULE, GREY = "#222222", "#6b6b6b", "#d9d9d9", "#b5b5b5"
FAULT = "#E69F00"
WIDTH_IN, HEIGHT_IN, DPI = 13.33, 7.5, 120
TITLE_SIZE = 21
NOTE_IN = 0.23
"""Distance of the lines of notes."""
_CONDITIONS_SIZE, _NAMES_SIZE = 13, 14
_LINE_IN = 0.96 * WIDTH_IN
_TITLE_IN, _CONDITIONS_IN, _NAMES_IN = 0.4, 0.3, 0.3

_STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 13,
    "text.color": INK,
    "axes.edgecolor": RULE,
    "axes.labelcolor": INK,
    "axes.labelsize": 13,
    "axes.titlesize": 14,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelsize": 12,
    "ytick.labelsize": 12,
    "svg.hashsalt": "ingest-bench",
    # A name between two dollars is no formula.
    "text.parse_math": False,
}
_IS_SVG = ContextVar("is_svg", default=False)


@contextmanager
def as_svg() -> Iterator[None]:
    """Save figures as SVG within the block, with text as outlines: it looks the same without our font."""
    token = _IS_SVG.set(True)
    try:
        yield
    finally:
        _IS_SVG.reset(token)


@contextmanager
def figure_style() -> Iterator[None]:
    """Apply the project's style within the block.

    A file `matplotlibrc` is ignored: one in the current folder could, for example, let LaTeX set every text.
    """
    with rc_context():
        rcdefaults()
        rcParams.update(_STYLE)
        yield


def new_figure(height_in: float = HEIGHT_IN) -> Figure:
    """Create an empty figure as wide as a slide."""
    figure = Figure(figsize=(WIDTH_IN, height_in), dpi=DPI, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Figure) -> bytes:
    """Return the figure as PNG, or as SVG within `as_svg`, without a date: equal summaries give equal bytes."""
    content = io.BytesIO()
    with figure_style():
        if _IS_SVG.get():
            figure.savefig(content, format="svg", metadata={"Date": None, "Creator": None})
        else:
            figure.savefig(content, format="png", metadata={"Software": None})
    return content.getvalue()


def assign_colours(levels: Iterable[str]) -> Mapping[str, str]:
    """Return a colour for each level, in order; surplus levels share the last colour, black."""
    return {level: PALETTE[min(number, len(PALETTE) - 1)] for number, level in enumerate(dict.fromkeys(levels))}


def add_heading(
    figure: Figure,
    title: str,
    conditions: str,
    names: Mapping[str, str] | None = None,
    least_below_in: float | None = None,
) -> float:
    """Write title, conditions and names in their colours; return the fraction of the height below them.

    The figure grows where less than `least_below_in` inches would be left. Default: what one line of each leaves.
    """
    title = _wrap_title(figure, title)
    conditions = "\n".join(part for line in conditions.split("\n") for part in _break_line(figure, line))
    rows = _arrange_names(figure, names or {})
    conditions_in = 0.28 + _TITLE_IN * (title.count("\n") + 1)
    names_in = conditions_in + 0.1 + _CONDITIONS_IN * (conditions.count("\n") + 1)
    if least_below_in is None:
        least_below_in = figure.get_figheight() - (0.38 + _TITLE_IN + _CONDITIONS_IN)
    height_in = max(figure.get_figheight(), names_in + _NAMES_IN * len(rows) + least_below_in)
    figure.set_figheight(height_in)
    figure.text(0.02, 1 - 0.22 / height_in, title, fontsize=TITLE_SIZE, fontweight="bold", va="top", linespacing=1.25)
    figure.text(0.02, 1 - conditions_in / height_in, conditions, fontsize=_CONDITIONS_SIZE, color=FAINT, va="top")
    for number, row in enumerate(rows):
        y = 1 - (names_in + _NAMES_IN * number) / height_in
        for left_in, name, colour in row:
            figure.text(left_in / WIDTH_IN, y, name, color=colour, fontsize=_NAMES_SIZE, fontweight="bold", va="top")
    return 1 - (names_in + _NAMES_IN * len(rows)) / height_in


def add_notes(figure: Figure, notes: Sequence[str]) -> float:
    """Write the notes at the bottom; return the fraction of the height that they take."""
    height_in = figure.get_figheight()
    if notes:
        text = "\n".join(shorten_to_width(figure, note, 11, _LINE_IN, "normal") for note in notes)
        figure.text(0.02, 0.12 / height_in, text, fontsize=11, color=FAINT, va="bottom", linespacing=1.4)
    return (0.12 + NOTE_IN * len(notes)) / height_in


def describe_conditions(summaries: Sequence[Summary]) -> str:
    """Describe what all runs have in common, the factors of the rows, and how many valid runs a row has."""
    common = []
    for column in ("target", "workload", "network"):
        values = {str(run.values.get(column) or "") for run in summaries}
        if len(values) == 1 and values != {""}:
            common.append(values.pop())
    varying = cells.varying_keys(summaries)
    levels = summaries[0].levels if summaries else {}
    named = ("target", "workload", "network", "network.profile", *varying)
    common += [f"{format_key(key)} {level}" for key, level in levels.items() if key not in named]
    runs = sorted({len(row.valid) for row in cells.group_by_cell(summaries)})
    count = " to ".join(dict.fromkeys([str(runs[0]), str(runs[-1])])) if runs else "0"
    rows = [f"rows: {' · '.join(map(format_key, varying))}"] if varying else []
    return join_conditions([*common, *rows, f"{count} run{'s' if count != '1' else ''}{' each' if varying else ''}"])


def left_out_notes(summaries: Sequence[Summary]) -> list[str]:
    """Return the lines that name the runs that are left out, by reason."""
    by_reason: dict[str, list[str]] = {}
    for run in cells.excluded_runs(summaries):
        by_reason.setdefault(f"{run.state}: {run.reason}" if run.reason else run.state, []).append(run.run)
    if not by_reason:
        return []
    number = sum(map(len, by_reason.values()))
    reasons = "; ".join(f"{reason} ({', '.join(runs)})" for reason, runs in by_reason.items())
    text = f"Left out: {number} of {len(summaries)} runs. {reasons}"
    return textwrap.wrap(textwrap.shorten(text, 420, placeholder=" …"), 150)


def strip_axes(axes: Axes, *, left: bool = False) -> None:
    """Remove tick marks and, unless *left*, the left edge with its labels."""
    axes.tick_params(length=0)
    if not left:
        axes.spines["left"].set_visible(False)
        axes.set_yticks([])


def text_width_in(figure: Figure, text: str, size: int, weight: str = "bold") -> float:
    """Return the width of the text in inches; 0 for ""."""
    if not text:
        return 0.0
    probe = figure.text(0, 0, text, fontsize=size, fontweight=weight)
    width_px = float(probe.get_window_extent().width)
    probe.remove()
    return width_px / figure.dpi


def shorten_to_width(figure: Figure, text: str, size: int, most_in: float, weight: str = "bold") -> str:
    """Return the text, without its middle where it would be wider: a level may be a path or a list of options."""
    short, letters = text, len(text)
    while letters > 2 and (width_in := text_width_in(figure, short, size, weight)) > most_in:
        letters = max(2, min(letters - 1, int(letters * most_in / width_in)))
        short = f"{text[: (letters + 1) // 2]}…{text[-(letters // 2) :]}"
    return short


def _break_line(figure: Figure, line: str) -> list[str]:
    """Break a line of conditions between its parts where it would leave the page; shorten a part that is too long."""
    lines: list[str] = []
    for part in line.split(SEPARATOR):
        longer = f"{lines[-1]}{SEPARATOR}{part}" if lines else part
        if lines and text_width_in(figure, longer, _CONDITIONS_SIZE, "normal") > _LINE_IN:
            lines.append(shorten_to_width(figure, part, _CONDITIONS_SIZE, _LINE_IN, "normal"))
        else:
            lines[-1:] = [shorten_to_width(figure, longer, _CONDITIONS_SIZE, _LINE_IN, "normal")]
    return lines


def _arrange_names(figure: Figure, names: Mapping[str, str]) -> list[list[tuple[float, str, str]]]:
    """Arrange names in as few lines as fit the page, each with its distance from the left in inches and its colour."""
    rows: list[list[tuple[float, str, str]]] = []
    left_in = WIDTH_IN
    for name, colour in names.items():
        text = shorten_to_width(figure, f"— {name}", _NAMES_SIZE, 0.47 * WIDTH_IN)
        width_in = text_width_in(figure, text, _NAMES_SIZE)
        if left_in + width_in > 0.98 * WIDTH_IN:
            rows.append([])
            left_in = 0.02 * WIDTH_IN
        rows[-1].append((left_in, text, colour))
        left_in += width_in + 0.4
    return rows


def _wrap_title(figure: Figure, title: str) -> str:
    """Wrap the title into as few lines as fit the page, of about equal length; keep a number and its unit together."""
    title = re.sub(r"(?<=[0-9]) (?=[A-Za-z]{1,3}\b)", "\u00a0", title)
    title = " ".join(shorten_to_width(figure, word, TITLE_SIZE, 0.48 * WIDTH_IN) for word in title.split(" "))
    wrapped = [textwrap.wrap(title, characters) for characters in range(90, 30, -2)]
    fitting = [lines for lines in wrapped if all(text_width_in(figure, line, TITLE_SIZE) <= _LINE_IN for line in lines)]
    if not fitting:
        return "\n".join(wrapped[-1])
    return "\n".join([lines for lines in fitting if len(lines) == len(fitting[0])][-1])
