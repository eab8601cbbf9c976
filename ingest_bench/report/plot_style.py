"""Look of all pictures: size, colours, heading, notes; and how a figure becomes a PNG or an SVG.

Figures are created without pyplot, which keeps every figure in a global list and looks for a screen.
"""

from __future__ import annotations

import io
import re
import textwrap
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from matplotlib import rc_context, rcdefaults, rcParams
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.transforms import Bbox

from ingest_bench.analysis.compare import cells
from ingest_bench.model.results import Summary
from ingest_bench.report.cell_tables import describe_left_out
from ingest_bench.report.formatting import format_key, shorten

# Okabe and Ito, "Color Universal Design" (2008), without yellow (too light on white) and with black last.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
BLUE, RED, GREEN = PALETTE[:3]
INK, FAINT, RULE, GREY = "#222222", "#6b6b6b", "#d9d9d9", "#b5b5b5"
FAULT = "#E69F00"
TITLE_SIZE = 21
_WIDTH_IN, _MARGIN_IN, _GAP_IN, _DPI = 13.33, 0.25, 0.14, 120
# A legend has as many columns of its longest name as fit: the handle, and a bold letter of 14 points.
_HANDLE_IN, _LETTER_IN = 0.7, 0.14

_STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 13,
    "text.color": INK,
    "axes.axisbelow": True,
    "axes.edgecolor": RULE,
    "axes.labelcolor": INK,
    "axes.labelsize": 13,
    "axes.titlelocation": "left",
    "axes.titlesize": 14,
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": RULE,
    "legend.frameon": False,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelsize": 12,
    "ytick.labelsize": 12,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
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
    """Apply the project's style within the block, whatever a file `matplotlibrc` says: it could let LaTeX set texts."""
    with rc_context(), warnings.catch_warnings():
        # Our font lacks the letters of some languages; a box in the picture is enough.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        rcdefaults()
        rcParams.update(_STYLE)
        yield


def new_figure(
    height_in: float,
    title: str,
    conditions: str,
    names: Mapping[str, str] | None = None,
    notes: Sequence[str] = (),
) -> Figure:
    """Create a figure as wide as a slide: title, conditions and names in their colours above, notes below.

    `height_in` is for the panels between them. The title does not break between a number and its unit.
    """
    figure = Figure(figsize=(_WIDTH_IN - 2 * _MARGIN_IN, height_in), dpi=_DPI, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    title = re.sub(r"(?<=[0-9]) (?=[A-Za-z]{1,3}\b)", "\u00a0", title)
    title = " ".join(shorten(word, 40) for word in title.split(" "))
    texts = [
        figure.text(0, 0, _wrap(title, 73), fontsize=TITLE_SIZE, fontweight="bold", va="top", linespacing=1.25),
        figure.text(0, 0, _wrap(conditions, 135), color=FAINT, va="top", linespacing=1.3),
    ]
    legend = None
    if names:
        handles = [Line2D([], [], color=colour, label=shorten(name, 40)) for name, colour in names.items()]
        column_in = _HANDLE_IN + _LETTER_IN * max(len(str(handle.get_label())) for handle in handles)
        legend = figure.legend(
            handles=handles, loc="upper left", ncols=max(1, int(_WIDTH_IN / column_in)), borderpad=0, borderaxespad=0,
            handlelength=1, labelcolor="linecolor", prop={"size": 14, "weight": "bold"},
        )  # fmt: skip
    below = figure.text(0, 0, _wrap("\n".join(notes), 150), fontsize=11, color=FAINT, va="bottom", linespacing=1.4)
    above = [*texts, legend] if legend else texts
    heights_in = [artist.get_window_extent().height / _DPI + _GAP_IN for artist in above]
    below_in = below.get_window_extent().height / _DPI + _GAP_IN if notes else 0.0
    whole_in = height_in + sum(heights_in) + below_in
    figure.set_figheight(whole_in)
    top_in = whole_in
    for text, taken_in in zip(texts, heights_in, strict=False):
        text.set_y(top_in / whole_in)
        top_in -= taken_in
    if legend:
        legend.set_bbox_to_anchor((0, top_in / whole_in), transform=figure.transFigure)
    figure.get_layout_engine().set(rect=(0, below_in / whole_in, 1, height_in / whole_in))  # type: ignore[union-attr, call-arg]
    return figure


def _wrap(text: str, characters: int) -> str:
    return "\n".join(textwrap.fill(line, characters, break_on_hyphens=False) for line in text.split("\n"))


def save_figure(figure: Figure) -> bytes:
    """Return the figure as PNG, or as SVG within `as_svg`, without a date: equal summaries give equal bytes."""
    content = io.BytesIO()
    kind, metadata = ("svg", {"Date": None, "Creator": None}) if _IS_SVG.get() else ("png", {"Software": None})
    # Once: matplotlib would lay out the figure again for each of its passes.
    figure.get_layout_engine().execute(figure)  # type: ignore[union-attr]
    figure.set_layout_engine("none")
    # The last digits depend on the order in which the solver visits panels, and are in the names of clips in an SVG.
    for axes in figure.axes:
        axes.set_position(Bbox(axes.get_position().get_points().round(6)))
    # A text that is longer than foreseen makes the page larger.
    figure.savefig(content, format=kind, metadata=metadata, bbox_inches="tight", pad_inches=_MARGIN_IN)
    return content.getvalue()


def assign_colours(levels: Iterable[str]) -> Mapping[str, str]:
    """Return a colour for each level, in order; surplus levels share the last colour, black."""
    return {level: PALETTE[min(number, len(PALETTE) - 1)] for number, level in enumerate(dict.fromkeys(levels))}


def join_conditions(parts: Iterable[str]) -> str:
    """Join the parts with dots; lines break only between them."""
    return "\u00a0\u00a0·  ".join(shorten(part, 60).replace(" ", "\u00a0") for part in parts)


def describe_conditions(summaries: Sequence[Summary], axes: str = "") -> str:
    """Describe what all runs have in common, the factors of the rows (or *axes*), and how many valid runs a row has."""
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
    rows = [axes or f"rows: {' · '.join(map(format_key, varying))}"] if varying else []
    return join_conditions([*common, *rows, f"{count} run{'s' if count != '1' else ''}{' each' if varying else ''}"])


def left_out_notes(summaries: Sequence[Summary]) -> list[str]:
    """Return a note that names the runs that are left out, each with its reason; empty without such runs."""
    endings = describe_left_out(summaries)
    text = f"Left out: {len(endings)} of {len(summaries)} runs. {'; '.join(ending.rstrip('.') for ending in endings)}"
    return [textwrap.shorten(text, 420, placeholder=" …")] if endings else []
