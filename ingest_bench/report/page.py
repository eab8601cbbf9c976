"""HTML pages: `index.html` of an experiment, those of `compare` and `trend`. They load nothing from elsewhere."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ingest_bench.analysis.compare import cells, comparison
from ingest_bench.analysis.compare.cells import CellRuns
from ingest_bench.analysis.compare.changes import Changes
from ingest_bench.analysis.compare.trend import Trend
from ingest_bench.analysis.run.columns import COLUMNS
from ingest_bench.analysis.stalls.attribution import STALL_SOURCE
from ingest_bench.model.results import Summary
from ingest_bench.report import cell_tables, change_tables, headline, page_charts, stall_table
from ingest_bench.report.formatting import format_key
from ingest_bench.report.page_charts import IcicleData, escape_breakable

_FOLDER = Path(__file__).parent
# More columns of numbers do not fit a window of 1280 pixels in the normal font size.
_MAX_NORMAL_COLUMNS = 12
# The space between a number and its unit, which must not break.
_UNIT = re.compile(r"(?<=[0-9]) (?=(?:[KMGT]i?)?B\b|ms\b|s\b)")
_DATA_FILES = ("summary.csv", "summary.json", "histograms.csv")
# Beginnings of the names of pictures whose content the page draws itself.
_DRAWN_BY_PAGE = ("reads.png", "time-", "large-allocations.png")


@dataclass(frozen=True, slots=True)
class Picture:
    """A PNG and a description of it."""

    content: bytes
    caption: str


def render_results(
    summaries: Sequence[Summary], pictures: Mapping[str, Picture], more: Sequence[tuple[str, str]] = ()
) -> str:
    """Render `index.html`. `pictures` is by file name, the main one first; `more` is (title, HTML).

    Pictures are embedded, except those whose content the page draws itself: reads, and runs over time.
    """
    experiment = next((run.experiment for run in summaries if run.experiment), "results")
    groups, varying = cells.group_by_cell(summaries), cells.varying_keys(summaries)
    anchors = [f"cell-{number}" for number, _ in enumerate(groups, 1)]
    titles = {row.name: _cell_title(row, varying) for row in groups}
    rows = [replace(row, name=titles[row.name] or row.name) for row in groups]
    icicles = page_charts.build_icicles(summaries)
    charts = [(run, chart) for run in summaries if (chart := page_charts.chart_data(run)) is not None]
    changes = [
        replace(change, first=titles[change.first], second=titles[change.second])
        for change in comparison.compare_pairs(summaries, comparison.DEFAULT_COLUMNS)
    ]
    # Notes on stalls are in the table of stalls.
    others = [replace(run, notes=tuple(note for note in run.notes if note.source != STALL_SOURCE)) for run in summaries]
    stalls = stall_table.stall_page_rows(summaries)
    links = {column: [f"#{anchor}" for anchor in anchors] for column in range(len(varying) or 1)}
    files = [*((f"../{name}", name) for name in _DATA_FILES), *((quote(name), escape(name)) for name in pictures)]
    parts = [
        f"<h1>{escape(headline.describe_reads(summaries))}</h1>",
        f'<p class="faint">{escape(experiment)}</p>',
        render_section("Cells: median over the runs (min..max)", render_table(cell_tables.cell_rows(summaries), links)),
        render_section("Left out of tables and pictures", render_list(cell_tables.describe_left_out(summaries))),
        render_section("Sizes of socket reads (bytes, logarithmic)", page_charts.draw_read_sizes(rows)),
        render_section("Response times by percentile", page_charts.draw_response_times(rows)),
        render_section(
            "Stalls: when requests waited far longer than usual, and why",
            render_table(stalls, stacked=True) if len(stalls) > 1 else "",
        ),
        render_section("Notes", render_list(cell_tables.list_notes(others))),
        render_section("Changes from cell to cell, each with its 95% interval", page_charts.draw_intervals(changes)),
        *(render_section(title, content) for title, content in more),
        *(
            f'<p><img src="data:image/png;base64,{base64.b64encode(picture.content).decode()}" '
            f'alt="{escape(picture.caption)}"></p>'
            for name, picture in pictures.items()
            if not name.startswith(_DRAWN_BY_PAGE)
        ),
        *(
            _cell_section(row, anchor, [run for run, _ in charts], icicles)
            for row, anchor in zip(rows, anchors, strict=True)
        ),
        render_section("Columns of summary.csv", _describe_columns()),
        "<p>Files: " + ", ".join(f'<a href="{address}">{name}</a>' for address, name in files) + "</p>",
    ]
    return render_document(experiment, parts, {"runs": [chart for _, chart in charts], "flames": icicles.data})


def render_comparison(before: str, now: str, changes: Changes) -> str:
    """Render the page of two results: what changed from the first to the second, or why they are not comparable."""
    if changes.refusals:
        parts = ["<h1>No verdict: these two results are not comparable</h1>", render_list(changes.refusals)]
    else:
        parts = [f"<h1>{escape(change_tables.summarise_changes(changes.comparisons))}</h1>"]
    parts += [
        f'<p class="faint">From {escape(before)} to {escape(now)}</p>',
        render_section("Changed settings", render_list(changes.changed_settings)),
        render_section("Changes, each with its 95% interval", page_charts.draw_intervals(changes.comparisons)),
        render_section("Notes", render_list(changes.notes)),
        render_section("Numbers", render_table(change_tables.change_rows(changes)) if changes.comparisons else ""),
    ]
    return render_document(f"{before} to {now}", parts)


def render_trend(folder: str, trend: Trend, notes: Sequence[str]) -> str:
    """Render the page of a history of results: what changed since when, each history drawn."""
    changes = render_table(change_tables.trend_rows(trend)) if change_tables.newest_changes(trend) else ""
    parts = [
        f"<h1>{escape(change_tables.summarise_trend(trend))}</h1>",
        f'<p class="faint">Results below {escape(folder)}</p>',
        render_section("Results over time: the median of the runs, and the level", page_charts.draw_histories(trend)),
        render_section("Changes, the newest first", changes),
        render_section("Notes", render_list(notes)),
    ]
    return render_document(f"{folder}: history", parts)


def _cell_title(row: CellRuns, varying: Sequence[str]) -> str:
    """Return the levels of the factors that vary: what all cells have in common is in no title."""
    return ", ".join(f"{format_key(key)} {row.levels[key]}" for key in varying if key in row.levels)


def _cell_section(row: CellRuns, anchor: str, charted: Sequence[Summary], icicles: IcicleData) -> str:
    """Render the runs of one cell: states, charts, and allocations by stack, open for the first run."""
    states = [["run", "state", "reason"], *([run.run, run.state, run.reason] for run in row.runs)]
    figures = [page_charts.chart_figure(charted.index(run), run) for run in row.runs if run in charted]
    with_stacks = [run for run in row.runs if run.stacks]
    figures += [page_charts.icicle_figure(run, icicles, is_open=run is with_stacks[0]) for run in with_stacks]
    return render_section(row.name, "\n".join([render_table(states), *figures]), anchor)


def _describe_columns() -> str:
    items = "".join(f"<dt>{column.name}</dt><dd>{escape(column.meaning)}</dd>" for column in COLUMNS)
    return f"<details>\n<summary>What each of the {len(COLUMNS)} columns holds</summary>\n<dl>{items}</dl>\n</details>"


def render_document(title: str, parts: Sequence[str], data: Mapping[str, Any] | None = None) -> str:
    """Render a page of these parts (HTML). With `data`, `page.js` draws its charts from it."""
    script = ""
    if data is not None:
        script = (
            f'<script type="application/json" id="data">{_to_json(data)}</script>\n'
            f"<script>\n{(_FOLDER / 'page.js').read_text(encoding='utf-8')}</script>\n"
        )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{(_FOLDER / 'page.css').read_text(encoding='utf-8')}</style>\n"
        "</head>\n<body>\n<main>\n"
        + "\n".join(part for part in parts if part)
        + f"\n</main>\n{script}</body>\n</html>\n"
    )


def render_section(title: str, content: str, anchor: str = "") -> str:
    """Render a section with its title; "" without content."""
    mark = f' id="{escape(anchor)}"' if anchor else ""
    return f"<section{mark}>\n<h2>{escape_breakable(title)}</h2>\n{content}\n</section>" if content else ""


def render_table(
    rows: Sequence[Sequence[str]], links: Mapping[int, Sequence[str]] | None = None, *, stacked: bool = False
) -> str:
    """Render rows as a table, the first as its head; columns with numbers are right-aligned.

    `links` maps the index of a column to an address for each row. In a narrow window the cells of a row of a `stacked`
    table stand below each other, each with its head: use it for sentences.
    """
    head, *body = rows
    is_numeric = [any(row[place][:1].isdigit() for row in body) for place in range(len(head))]
    marks = [' class="number"' if number else "" for number in is_numeric]

    def render_row(texts: Sequence[str], tag: str) -> str:
        return "".join(f"<{tag}{mark}>{text}</{tag}>" for text, mark in zip(texts, marks, strict=True))

    def add_links(number: int, row: Sequence[str]) -> list[str]:
        texts = [_UNIT.sub("&nbsp;", escape_breakable(cell)) for cell in row]
        for place, addresses in (links or {}).items():
            texts[place] = f'<a href="{escape(addresses[number])}">{texts[place] or "(no name)"}</a>'
        return texts

    heads = render_row([escape(cell) for cell in head], "th")
    if stacked:
        marks = [f'{mark} data-head="{escape(cell)}"' for mark, cell in zip(marks, head, strict=True)]
    content = "".join(f"<tr>{render_row(add_links(number, row), 'td')}</tr>\n" for number, row in enumerate(body))
    look = ' class="dense"' if len(head) > _MAX_NORMAL_COLUMNS else ' class="stacked"' if stacked else ""
    # The tab index lets keys scroll what is cut off.
    begin = f'<div class="wide" tabindex="0"><table{look}>\n<thead><tr>{heads}</tr></thead>'
    return f"{begin}\n<tbody>{content}</tbody></table></div>"


def render_list(texts: Sequence[str]) -> str:
    """Render a list; "" without items."""
    return f"<ul>{''.join(f'<li>{escape(text)}</li>' for text in texts)}</ul>" if texts else ""


def _to_json(data: Mapping[str, Any]) -> str:
    """Format JSON that cannot end the script element, whatever names are in it."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
