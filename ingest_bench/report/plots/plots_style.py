"""What all pictures share: size, colours, text, and how a figure becomes bytes: PNG, or SVG.

Figures are made without pyplot: it keeps every figure in a global list and looks for a screen.
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

from ingest_bench.report.tables.words import SEPARATOR

# Okabe and Ito, "Color Universal Design" (2008), without yellow (too light on white) and with black last.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
INK, FAINT, RULE = "#222222", "#6b6b6b", "#d9d9d9"
FAULT = "#E69F00"
WIDTH_IN, HEIGHT_IN, DPI = 13.33, 7.5, 120
TITLE_SIZE = 21
_BELOW_SIZE, _NAMES_SIZE = 13, 14
_LINE_IN = 0.96 * WIDTH_IN  # how wide a line can be
NOTE_IN = 0.23  # how far lines of the notes are apart
_TITLE_IN, _BELOW_IN, _NAMES_IN = 0.4, 0.3, 0.3  # how far lines of the title, of conditions and of names are apart

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
    # What stands between two dollars in a name is no formula.
    "text.parse_math": False,
}


_IS_VECTOR = ContextVar("is_vector", default=False)


@contextmanager
def vector() -> Iterator[None]:
    """Pictures that are drawn within become SVG, with each text as its outlines: it looks alike without our font."""
    token = _IS_VECTOR.set(True)
    try:
        yield
    finally:
        _IS_VECTOR.reset(token)


@contextmanager
def style() -> Iterator[None]:
    """The project's look for every figure that is drawn within, whatever a file `matplotlibrc` says.

    There may be one in the current folder, and it can have LaTeX set each text.
    """
    with rc_context():
        rcdefaults()
        rcParams.update(_STYLE)
        yield


def figure(height_in: float = HEIGHT_IN) -> Figure:
    """An empty figure as wide as a slide."""
    made = Figure(figsize=(WIDTH_IN, height_in), dpi=DPI, facecolor="white")
    FigureCanvasAgg(made)
    return made


def saved(made: Figure) -> bytes:
    """The figure as a PNG, or as SVG within `vector`, without a date in it: the same summaries give the same bytes."""
    content = io.BytesIO()
    with style():
        if _IS_VECTOR.get():
            made.savefig(content, format="svg", metadata={"Date": None, "Creator": None})
        else:
            made.savefig(content, format="png", metadata={"Software": None})
    return content.getvalue()


def colours(levels: Iterable[str]) -> Mapping[str, str]:
    """A colour for each level, in order; more levels than colours share the last, black."""
    return {level: PALETTE[min(number, len(PALETTE) - 1)] for number, level in enumerate(dict.fromkeys(levels))}


def headed(
    made: Figure, title: str, below: str, names: Mapping[str, str] | None = None, beneath_in: float | None = None
) -> float:
    """Write the takeaway, the conditions, and names in their colours; the share of the height that they leave.

    The figure grows where less than `beneath_in` would be left: less than beside one line of each, where it is not
    given.
    """
    title = _wrapped(made, title)
    conditions = "\n".join(line for whole in below.split("\n") for line in _broken(made, whole))
    rows = _rows(made, names or {})
    below_in = 0.28 + _TITLE_IN * (title.count("\n") + 1)
    names_in = below_in + 0.1 + _BELOW_IN * (conditions.count("\n") + 1)
    if beneath_in is None:
        beneath_in = made.get_figheight() - (0.38 + _TITLE_IN + _BELOW_IN)
    height_in = max(made.get_figheight(), names_in + _NAMES_IN * len(rows) + beneath_in)
    made.set_figheight(height_in)
    made.text(0.02, 1 - 0.22 / height_in, title, fontsize=TITLE_SIZE, fontweight="bold", va="top", linespacing=1.25)
    made.text(0.02, 1 - below_in / height_in, conditions, fontsize=_BELOW_SIZE, color=FAINT, va="top")
    for number, row in enumerate(rows):
        at = 1 - (names_in + _NAMES_IN * number) / height_in
        for left_in, name, colour in row:
            made.text(left_in / WIDTH_IN, at, name, color=colour, fontsize=_NAMES_SIZE, fontweight="bold", va="top")
    return 1 - (names_in + _NAMES_IN * len(rows)) / height_in


def footed(made: Figure, notes: Sequence[str]) -> float:
    """Write the notes at the bottom; the share of the height that they take."""
    height_in = made.get_figheight()
    if notes:
        text = "\n".join(fitted(made, note, 11, _LINE_IN, "normal") for note in notes)
        made.text(0.02, 0.12 / height_in, text, fontsize=11, color=FAINT, va="bottom", linespacing=1.4)
    return (0.12 + NOTE_IN * len(notes)) / height_in


def bare(axes: Axes, *, left: bool = False) -> None:
    """Take away what carries no number: ticks' marks and, unless asked for, the left edge and its labels."""
    axes.tick_params(length=0)
    if not left:
        axes.spines["left"].set_visible(False)
        axes.set_yticks([])


def text_width_in(made: Figure, text: str, size: int, weight: str = "bold") -> float:
    """How wide that text will be, in inches; "" is 0."""
    if not text:
        return 0.0
    probe = made.text(0, 0, text, fontsize=size, fontweight=weight)
    width_px = float(probe.get_window_extent().width)
    probe.remove()
    return width_px / made.dpi


def fitted(made: Figure, text: str, size: int, most_in: float, weight: str = "bold") -> str:
    """The text, without its middle where it would be wider: a level may be a path, or a list of options."""
    shown, letters = text, len(text)
    while letters > 2 and (width_in := text_width_in(made, shown, size, weight)) > most_in:
        letters = max(2, min(letters - 1, int(letters * most_in / width_in)))
        shown = f"{text[: (letters + 1) // 2]}…{text[-(letters // 2) :]}"
    return shown


def _broken(made: Figure, line: str) -> list[str]:
    """A line of conditions, broken between its parts where it would leave the page; a part without its middle."""
    lines: list[str] = []
    for part in line.split(SEPARATOR):
        longer = f"{lines[-1]}{SEPARATOR}{part}" if lines else part
        if lines and text_width_in(made, longer, _BELOW_SIZE, "normal") > _LINE_IN:
            lines.append(fitted(made, part, _BELOW_SIZE, _LINE_IN, "normal"))
        else:
            lines[-1:] = [fitted(made, longer, _BELOW_SIZE, _LINE_IN, "normal")]
    return lines


def _rows(made: Figure, names: Mapping[str, str]) -> list[list[tuple[float, str, str]]]:
    """Names in as few lines as fit the page, each with the inches from the left edge and its colour."""
    rows: list[list[tuple[float, str, str]]] = []
    left_in = WIDTH_IN
    for name, colour in names.items():
        shown = fitted(made, f"— {name}", _NAMES_SIZE, 0.47 * WIDTH_IN)
        width_in = text_width_in(made, shown, _NAMES_SIZE)
        if left_in + width_in > 0.98 * WIDTH_IN:
            rows.append([])
            left_in = 0.02 * WIDTH_IN
        rows[-1].append((left_in, shown, colour))
        left_in += width_in + 0.4
    return rows


def _wrapped(made: Figure, title: str) -> str:
    """The title in as few lines as fit the page, and those about equally long; a number stays with its unit."""
    title = re.sub(r"(?<=[0-9]) (?=[A-Za-z]{1,3}\b)", "\u00a0", title)
    title = " ".join(fitted(made, word, TITLE_SIZE, 0.48 * WIDTH_IN) for word in title.split(" "))
    wrapped = [textwrap.wrap(title, characters) for characters in range(90, 30, -2)]
    fitting = [lines for lines in wrapped if all(text_width_in(made, line, TITLE_SIZE) <= _LINE_IN for line in lines)]
    if not fitting:
        return "\n".join(wrapped[-1])
    return "\n".join([lines for lines in fitting if len(lines) == len(fitting[0])][-1])
