"""HTML pages: `index.html` of an experiment, those of `compare` and `trend`. They load nothing from elsewhere."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

from ingest_bench.analysis.compare import cells, comparison
from ingest_bench.analysis.compare.cells import CellRuns
from ingest_bench.analysis.compare.changes import Changes
from ingest_bench.analysis.compare.trend import Trend
from ingest_bench.analysis.stalls.attribution import STALL_SOURCE
from ingest_bench.inputs.escaping import escape_line
from ingest_bench.model.results import Summary
from ingest_bench.report import cell_tables, change_tables, digest, headline, page_charts, stall_table
from ingest_bench.report.formatting import format_key, format_number, format_size
from ingest_bench.report.grid import build_grid
from ingest_bench.report.headline import Tile
from ingest_bench.report.page_charts import IcicleData, escape_breakable

_FOLDER = Path(__file__).parent
# More columns of numbers do not fit a window of 1280 pixels in the normal font size.
_MAX_NORMAL_COLUMNS = 12
# The space between a number and its unit, which must not break.
_UNIT = re.compile(r"(?<=[0-9]) (?=(?:[KMGT]i?)?B\b|ms\b|s\b)")
# A difference to the first row, in the main table; below this many percent it is called neither better nor worse.
_CHANGE, _LEAST_PERCENT, _HIGHER_IS_BETTER = re.compile(r" +([+-][0-9]+)%$"), 5, ("docs/s",)
# Attached files: a mail of 25 MB is refused by many servers, and pictures need some of it.
_MAX_ATTACHED_BYTES = 4_000_000
# Different servers, heaps or collectors that are named in the line of facts.
_MAX_LISTED = 3
DRAWN_BY_PAGE = ("matrix.png", "reads.png", "time-", "large-allocations.png")
"""Beginnings of the names of pictures whose content the page draws itself."""
# Pictures that are shown first for a headline, although the page draws their content for each run.
_MAIN_PICTURES = {"largest_allocation_bytes": "large-allocations.png"}
_CAPTIONS = {
    "large-allocations.png": "heap over time, and objects of 1 MiB and more",
    "direct-memory.png": "for each cell: time for each direct buffer",
    "forwarding.png": "documents forwarded and delivered",
    "nodes.png": "for each cell: rate, response time, and the node that was waited for",
    "layers.png": "allocations outside TLABs by layer",
    "machine.png": "for each setting of the machine: throughput and kernel counters",
    "knee.png": "the steps of a search for the highest rate",
}


def render_results(
    summaries: Sequence[Summary],
    pictures: Mapping[str, bytes],
    more: Sequence[tuple[str, str]] = (),
    *,
    facts: Mapping[str, Any] | None = None,
    files: Mapping[str, bytes] | None = None,
) -> str:
    """Render `index.html`. `pictures` is by file name, the main one first; `more` is (title, HTML).

    Pictures are shown, except those whose content the page draws itself: reads, and runs over time. `facts` are
    those of the machine. `files` are attached, so that a page sent by mail has its data.
    """
    experiment = next((run.experiment for run in summaries if run.experiment), "results")
    groups, varying = cells.group_by_cell(summaries), cells.varying_keys(summaries)
    anchors = [f"cell-{number}" for number, _ in enumerate(groups, 1)]
    # What all cells have in common is in no title.
    titles = {
        row.name: ", ".join(f"{format_key(key)} {row.levels[key]}" for key in varying if key in row.levels)
        for row in groups
    }
    rows = [replace(row, name=titles[row.name] or row.name) for row in groups]
    icicles = page_charts.build_icicles(summaries)
    charts = [(run, chart) for run in summaries if (chart := page_charts.chart_data(run)) is not None]
    changes = [
        replace(change, first=titles[change.first], second=titles[change.second])
        for change in comparison.compare_pairs(summaries, comparison.DEFAULT_COLUMNS)
        if change.interval is not None
    ]
    # Notes on stalls are in the table of stalls.
    others = [replace(run, notes=tuple(note for note in run.notes if note.source != STALL_SOURCE)) for run in summaries]
    stalls, errors = stall_table.stall_page_rows(summaries), digest.describe_errors(summaries)
    main = _MAIN_PICTURES.get(summaries[0].headline if summaries else "", "")
    images = [
        _render_image(name, content, _CAPTIONS.get(name, name))
        for name, content in sorted(pictures.items(), key=lambda item: item[0] != main)
        if name == main or not name.startswith(DRAWN_BY_PAGE)
    ]
    matrix = render_section(grid.title, page_charts.draw_matrix(grid)) if (grid := build_grid(summaries)) else ""
    lead = [matrix, *images] if matrix else images or [page_charts.draw_read_sizes(rows)]
    parts = [
        f"<h1>{escape(headline.describe_finding(summaries))}</h1>",
        f'<p class="facts">{_describe_facts(experiment, summaries, facts or {})}</p>',
        render_list([*digest.describe_endings(summaries), *([errors] if errors else [])], "problems"),
        _render_tiles(headline.build_tiles(summaries)),
        lead[0],
        _render_cells(summaries, anchors),
        page_charts.draw_read_sizes(rows) if matrix or images else "",
        render_section("Response times by percentile", page_charts.draw_response_times(rows)),
        render_section(
            "Stalls: when requests waited far longer than usual, and why",
            render_table(stall_table.stall_summary_rows(summaries), stacked=True)
            + _fold(f"All {len(stalls) - 1} stalls", render_table(stalls, stacked=True))
            if len(stalls) > 1
            else "",
        ),
        render_section("Changes from cell to cell, each with its 95% interval", page_charts.draw_intervals(changes)),
        *(render_section(title, content) for title, content in more),
        *lead[1:],
        *(
            _cell_section(row, anchor, [run for run, _ in charts], icicles)
            for row, anchor in zip(rows, anchors, strict=True)
        ),
        render_section("Notes", render_list(cell_tables.list_notes(others))),
        _render_files(files or {}),
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


def render_trend(folder: str, trend: Trend, notes: Sequence[str], pictures: Sequence[bytes]) -> str:
    """Render the page of a history of results: what changed since when, and the pictures (SVG) of all histories."""
    changes = render_table(change_tables.trend_rows(trend)) if change_tables.newest_changes(trend) else ""
    images = [_render_image("t.svg", picture, "Results over time") for picture in pictures]
    parts = [
        f"<h1>{escape(change_tables.summarise_trend(trend))}</h1>",
        f'<p class="faint">Results below {escape(folder)}</p>',
        *images,
        render_section("Changes, the newest first", changes),
        render_section("Notes", render_list(notes)),
    ]
    return render_document(f"{folder}: history", parts)


def _cell_section(row: CellRuns, anchor: str, charted: Sequence[Summary], icicles: IcicleData) -> str:
    """Render the runs of one cell: states, charts, and allocations by stack, open for the first run."""
    states = [
        ["run", "measured from (UTC)", "state", "reason"],
        *([run.run, _format_utc(run.measure_start_ns, "%H:%M:%S"), run.state, run.reason] for run in row.runs),
    ]
    figures = [page_charts.chart_figure(charted.index(run), run) for run in row.runs if run in charted]
    with_stacks = [run for run in row.runs if run.stacks]
    figures += [page_charts.icicle_figure(run, icicles, is_open=run is with_stacks[0]) for run in with_stacks]
    return render_section(row.name, "\n".join([render_table(states), *figures]), anchor)


def _describe_facts(experiment: str, summaries: Sequence[Summary], facts: Mapping[str, Any]) -> str:
    """Describe servers, machine, date and command in one line."""

    def join(column: str, text: Callable[[Any], str] = str) -> str:
        values = list(dict.fromkeys(text(value) for run in summaries if (value := run.values.get(column))))
        return " / ".join(values[:_MAX_LISTED]) + (" …" if len(values) > _MAX_LISTED else "")

    start = _format_utc(min((run.measure_start_ns for run in summaries if run.measure_start_ns), default=None))
    measured_s = join("measured_seconds", lambda value: f"{value:,.0f}")
    heap = f"heap {join('heap_bytes', format_size)} {join('gc_collector', str.upper)}" if join("heap_bytes") else ""
    parts = [
        *(experiment, join("target"), heap.strip(), f"Java {join('java')}" if join("java") else ""),
        f"{facts.get('cores', '')} CPUs {facts['cpu']}".strip() if facts.get("cpu") else "",
        f"kernel {facts['kernel']}" if "kernel" in facts else "",
        f"{start} UTC" if start else "",
        f"{measured_s} s measured" if measured_s else "",
        f"ingest-bench {facts['ingest_bench']}" if "ingest_bench" in facts else "",
    ]
    command = f" · <code>{escape(escape_line(str(facts['command'])))}</code>" if "command" in facts else ""
    return escape(escape_line(" · ".join(filter(None, parts)))) + command


def _render_cells(summaries: Sequence[Summary], anchors: Sequence[str]) -> str:
    """Render the table of the main numbers, with differences to its first row, and the one of all columns, folded."""
    head, *body = digest.digest_rows(summaries)
    if len(head) == 1:
        return ""  # no cell has a number; the reasons are listed above
    groups = cells.group_by_cell(summaries)
    rows = [[*head, "errors"], *([*row, _count_errors(cell)] for row, cell in zip(body, groups, strict=True))]
    complete = cell_tables.cell_rows(summaries)
    all_meanings = {column.head: column.meaning for column in cell_tables.CELL_COLUMNS}
    meanings = {title: cell_tables.MEANINGS[column] for column, title, *_ in digest.COLUMNS}
    meanings["errors"] = cell_tables.MEANINGS["errors"]
    return render_table(rows, anchors, stacked=True, meanings=meanings) + _fold(
        f"All {len(complete[0])} columns: median over the runs (min..max)",
        render_table(complete, meanings=all_meanings),
    )


def _count_errors(row: CellRuns) -> str:
    """Return the share of failed requests of all runs with their kinds; of a cell without a result how it ended."""
    runs = row.measured_or_oom.valid
    failed, requests = (sum(int(run.values.get(name) or 0) for run in runs) for name in ("requests_failed", "requests"))
    kinds = ", ".join(dict.fromkeys(str(run.values["errors"]) for run in runs if run.values.get("errors")))
    return (
        f"{format_number(100 * failed / requests)}% {kinds}".strip() if requests and failed else "0" if requests else ""
    )


def _fold(title: str, content: str) -> str:
    return f"<details>\n<summary>{escape(title)}</summary>\n{content}\n</details>"


def _mark_change(head: str, text: str) -> str:
    """Say in a word and a colour whether a difference is better; a small one is neither."""
    match = _CHANGE.search(text)
    if match is None or abs(float(match[1])) < _LEAST_PERCENT:
        return text
    word = "better" if (float(match[1]) > 0) == (head in _HIGHER_IS_BETTER) else "worse"
    return f'{text[: match.start()]} <span class="{word}">{match[1]}% {word}</span>'


def _render_tiles(tiles: Sequence[Tile]) -> str:
    """Render the answers next to each other."""
    content = ""
    for tile in tiles:
        texts = "".join(f"<p>{escape(text)}</p>" for text in (tile.text, tile.verdict) if text)
        content += f"<div><small>{tile.title}</small><strong>{escape(tile.answer)}</strong>{texts}</div>"
    return f'<div class="tiles">{content}</div>'


def _format_utc(at_ns: int | None, form: str = "%Y-%m-%d %H:%M") -> str:
    return f"{datetime.fromtimestamp(at_ns / 1e9, UTC):{form}}" if at_ns else ""


def _render_image(name: str, content: bytes, meaning: str) -> str:
    return f'<p class="wide" tabindex="0"><img src="{_embed(name, content)}" alt="{meaning}"></p>'


def _embed(name: str, content: bytes) -> str:
    kind = {"png": "image/png", "svg": "image/svg+xml"}.get(name.rpartition(".")[2], "text/plain")
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def _render_files(files: Mapping[str, bytes]) -> str:
    """Render the attached files; those beyond the limit are only named."""
    items, left = [], _MAX_ATTACHED_BYTES
    for name, content in files.items():
        left -= len(content)
        base = name.rpartition("/")[2]
        attached = f'<a download="{escape(base)}" href="{_embed(name, content)}">{escape(base)}</a>'
        items.append(attached if left >= 0 else f"{escape(base)} (in the results folder)")
    return f"<p>Files: {', '.join(items)}</p>" if items else ""


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
    rows: Sequence[Sequence[str]],
    anchors: Sequence[str] = (),
    *,
    stacked: bool = False,
    meanings: Mapping[str, str] | None = None,
) -> str:
    """Render rows as a table, the first as its head; columns with numbers are right-aligned.

    The first cell of each row links to its anchor. In a narrow window the cells of a row of a `stacked` table stand
    below each other, each with its head: use it for sentences. `meanings` defines heads.
    """
    head, *body = rows
    is_numeric = [any(row[place][:1].isdigit() for row in body) for place in range(len(head))]
    marks = [' class="number"' if number else "" for number in is_numeric]

    def render_row(texts: Sequence[str], tag: str) -> str:
        return "".join(f"<{tag}{mark}>{text}</{tag}>" for text, mark in zip(texts, marks, strict=True))

    heads = render_row([_define(cell, meanings or {}) for cell in head], "th")
    if stacked:
        marks = [f'{mark} data-head="{escape(cell)}"' for mark, cell in zip(marks, head, strict=True)]
    content = ""
    for number, row in enumerate(body):
        texts = [_UNIT.sub("&nbsp;", escape_breakable(cell)) for cell in row]
        texts = [_mark_change(title, text) for title, text in zip(head, texts, strict=True)] if meanings else texts
        if anchors:
            texts[0] = f'<a href="#{escape(anchors[number])}">{texts[0] or "(no name)"}</a>'
        content += f"<tr>{render_row(texts, 'td')}</tr>\n"
    look = ' class="dense"' if len(head) > _MAX_NORMAL_COLUMNS else ' class="stacked"' if stacked else ""
    # The tab index lets keys scroll what is cut off.
    begin = f'<div class="wide" tabindex="0"><table{look}>\n<thead><tr>{heads}</tr></thead>'
    return f"{begin}\n<tbody>{content}</tbody></table></div>"


def _define(head: str, meanings: Mapping[str, str]) -> str:
    meaning = meanings.get(head)
    return f'<abbr title="{escape(meaning)}">{escape(head)}</abbr>' if meaning else escape(head)


def render_list(texts: Sequence[str], look: str = "") -> str:
    """Render a list; "" without items."""
    items = "".join(f"<li>{escape(text)}</li>" for text in texts)
    return f"<ul{f' class={look}' if look else ''}>{items}</ul>" if items else ""


def _to_json(data: Mapping[str, Any]) -> str:
    """Format JSON that cannot end the script element, whatever names are in it."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
