"""The main picture: for each cell the sizes of its socket reads, beside throughput and GC pauses."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from ingest_bench.analysis.compare import cells
from ingest_bench.analysis.compare.cells import CellRuns
from ingest_bench.model.results import Summary
from ingest_bench.report.plots.plots_panels import frame, points, size_limits, sizes
from ingest_bench.report.plots.plots_style import (
    HEIGHT_IN,
    WIDTH_IN,
    colours,
    figure,
    fitted,
    footed,
    headed,
    saved,
    style,
    text_width_in,
)
from ingest_bench.report.tables import headline
from ingest_bench.report.tables.words import key_text, separated

_MARGIN_IN, _GAP_IN = 0.25, 0.35
_SIZE_IN = 1.05  # "63.9 KiB" at 14 points
_LABELS_IN = 4.0  # what leaves the panels room for their numbers
_NUMBER_IN = 1.0  # a point, and "21,066" at 14 points


def overview(summaries: Sequence[Summary]) -> bytes:
    """A PNG with a row for each cell: frame sizes on the wire (when captured), read sizes, throughput, GC pauses."""
    rows, keys = cells.group(summaries), cells.varying(summaries)
    with style():
        made = figure(_height_in(len(rows)))
        top = headed(made, headline.reads(summaries), conditions(summaries))
        height_in = made.get_figheight()
        top -= 0.42 / height_in
        bottom = footed(made, notes(summaries)) + 0.75 / height_in
        by_level = colours(row.levels.get(keys[0], "") if keys else "" for row in rows)
        paint = {row.name: by_level[row.levels.get(keys[0], "") if keys else ""] for row in rows}
        left_in = _labels(made, rows, keys, paint, top, bottom)
        limits = size_limits(rows)
        for (kind, name, title), (start_in, width_in) in _placed(_panels(rows), left_in):
            place = (start_in / WIDTH_IN, bottom, width_in / WIDTH_IN, top - bottom)
            axes = made.add_axes(place)
            frame(axes, title, len(rows))
            if kind == "sizes":
                sizes(axes, rows, name, paint, limits, _SIZE_IN)
            else:
                points(axes, rows, name, paint, _NUMBER_IN)
        return saved(made)


def conditions(summaries: Sequence[Summary]) -> str:
    """What all runs have in common, and how many valid runs a row has."""
    common = []
    for column in ("target", "workload", "network"):
        found = {str(run.values.get(column) or "") for run in summaries}
        if len(found) == 1 and found != {""}:
            common.append(found.pop())
    varying = cells.varying(summaries)
    levels = summaries[0].levels if summaries else {}
    said = ("target", "workload", "network", "network.profile", *varying)
    common += [f"{key_text(key)} {level}" for key, level in levels.items() if key not in said]
    runs = sorted({len(row.valid) for row in cells.group(summaries)})
    count = " to ".join(dict.fromkeys([str(runs[0]), str(runs[-1])])) if runs else "0"
    rows = [f"rows: {' · '.join(map(key_text, varying))}"] if varying else []
    common += [*rows, f"{count} run{'s' if count != '1' else ''}{' each' if varying else ''}"]
    return separated(common)


def notes(summaries: Sequence[Summary]) -> list[str]:
    """What a reader must know beside the numbers: runs that are left out, by reason."""
    gone: dict[str, list[str]] = {}
    for run in cells.left_out(summaries):
        gone.setdefault(f"{run.state}: {run.reason}" if run.reason else run.state, []).append(run.run)
    if not gone:
        return []
    number = sum(map(len, gone.values()))
    named = "; ".join(f"{reason} ({', '.join(runs)})" for reason, runs in gone.items())
    text = f"Left out: {number} of {len(summaries)} runs. {named}"
    return textwrap.wrap(textwrap.shorten(text, 420, placeholder=" …"), 150)


def row_labels(rows: Sequence[CellRuns], keys: Sequence[str]) -> list[str]:
    """A label for each row: its levels of the factors that vary."""
    if keys:
        return [" · ".join(row.levels.get(key, "") for key in keys) for row in rows]
    return ["" if len(rows) == 1 else textwrap.shorten(row.name, 24, placeholder="…") for row in rows]


def label_column(
    made: Figure, rows: Sequence[CellRuns], keys: Sequence[str], most_in: float
) -> tuple[list[str], float]:
    """The rows' labels as they are written beside panels, and the inches from the left edge at which these begin."""
    labels = [fitted(made, label, 14, most_in) for label in row_labels(rows, keys)]
    return labels, 0.5 + max(text_width_in(made, label, 14) for label in labels)


def _height_in(rows: int) -> float:
    return {1: 4.9, 2: 6.0}.get(rows, max(HEIGHT_IN, 2.4 + 0.52 * rows))


def _panels(rows: Sequence[CellRuns]) -> list[tuple[str, str, str]]:
    wire = [("sizes", "wire_bytes", "Wire frames")] if any(row.counts("wire_bytes") for row in rows) else []
    return [
        *wire,
        ("sizes", "read_bytes", "Socket reads"),
        ("points", "docs_per_s_mean", "Documents/s"),
        ("points", "gc_pauses", "GC pauses"),
    ]


def _placed(
    panels: Sequence[tuple[str, str, str]], left_in: float
) -> list[tuple[tuple[str, str, str], tuple[float, float]]]:
    """Each panel with its left edge and its width in inches. Sizes have their typical value beside the panel."""
    shares = [2.6 if kind == "sizes" else 1.0 for kind, _, _ in panels]
    beside = [_SIZE_IN if kind == "sizes" else 0.0 for kind, _, _ in panels]
    fixed = sum(beside) + sum(_NUMBER_IN for extra in beside if not extra)
    free_in = WIDTH_IN - left_in - _MARGIN_IN - _GAP_IN * (len(panels) - 1) - fixed
    placed, at_in = [], left_in
    for panel, share, extra in zip(panels, shares, beside, strict=True):
        width_in = free_in * share / sum(shares) + (0 if extra else _NUMBER_IN)
        placed.append((panel, (at_in, width_in)))
        at_in += width_in + extra + _GAP_IN
    return placed


def _labels(
    made: Figure, rows: Sequence[CellRuns], keys: Sequence[str], paint: Mapping[str, str], top: float, bottom: float
) -> float:
    """Write the rows' labels; the inches from the left edge at which the panels begin."""
    labels = row_labels(rows, keys)
    for size in (17, 15, 13, 11, 9):
        wanted_in = max((text_width_in(made, label, size) for label in labels), default=0.0)
        if wanted_in <= 2.6 and (len(rows) < 12 or size <= 13):
            break
    if wanted_in > _LABELS_IN:
        labels = [fitted(made, label, size, _LABELS_IN) for label in labels]
        wanted_in = max(text_width_in(made, label, size) for label in labels)
    right = (_MARGIN_IN + wanted_in) / WIDTH_IN
    for number, (row, label) in enumerate(zip(rows, labels, strict=True)):
        at = top - (top - bottom) * (number + 0.5) / len(rows)
        made.text(right, at, label, ha="right", va="center", fontsize=size, color=paint[row.name], fontweight="bold")
    return _MARGIN_IN + wanted_in + (0.25 if wanted_in else 0.0)
