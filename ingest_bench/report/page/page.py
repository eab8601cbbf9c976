"""index.html: the pictures and tables of an experiment on one page that needs nothing from elsewhere."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from urllib.parse import quote

from ingest_bench.analysis.compare import cells, comparison
from ingest_bench.analysis.compare.cells import CellRuns
from ingest_bench.analysis.compare.changes import Changes
from ingest_bench.analysis.compare.trend import Trend
from ingest_bench.analysis.run.columns import COLUMNS
from ingest_bench.analysis.stalls.sentences import OF_STALL
from ingest_bench.model.results import Summary
from ingest_bench.report.page import charts, distributions, flames, html, intervals
from ingest_bench.report.tables import headline, stall_table, text_tables, trend_table
from ingest_bench.report.tables.changes_table import rows, summed_up
from ingest_bench.report.tables.words import key_text


@dataclass(frozen=True, slots=True)
class Picture:
    """A PNG, and what it shows."""

    content: bytes
    caption: str


_DATA = ("summary.csv", "summary.json", "histograms.csv")
# Pictures of what the page draws itself.
_DRAWN = ("reads.png", "time-")


def index(summaries: Sequence[Summary], pictures: Mapping[str, Picture], more: Sequence[tuple[str, str]] = ()) -> str:
    """The page. `pictures` is by file name, the main one first; `more` is (title, HTML).

    Of reads and of runs over time there are no pictures: those are drawn from the data. All others are inside.
    """
    experiment = next((run.experiment for run in summaries if run.experiment), "results")
    inside = [_picture(picture) for name, picture in pictures.items() if not name.startswith(_DRAWN)]
    shown, groups = text_tables.terminal(summaries), cells.group(summaries)
    places = {row.name: f"cell-{number}" for number, row in enumerate(groups, 1)}
    varying = cells.varying(summaries)
    head = len(varying) or 1
    # What all cells have in common stands nowhere in their titles.
    titles = {
        row.name: ", ".join(f"{key_text(key)} {row.levels[key]}" for key in varying if key in row.levels)
        for row in groups
    }
    titled = [replace(row, name=titles[row.name] or row.name) for row in groups]
    links = {key: [f"#{place}" for place in places.values()] for key in range(head)}
    allocated = flames.flames(summaries)
    drawn = [(run, chart) for run in summaries if (chart := charts.run(run)) is not None]
    found = [
        replace(each, first=titles[each.first], second=titles[each.second])
        for each in comparison.table(summaries, comparison.COMPARED)
    ]
    # These are in the table of stalls.
    beside = [
        replace(run, remarks=tuple(remark for remark in run.remarks if remark.probe != OF_STALL)) for run in summaries
    ]
    parts = [
        f"<h1>{escape(headline.reads(summaries))}</h1>",
        f'<p class="faint">{escape(experiment)}</p>',
        html.section("Cells: median over the runs (min..max)", html.table(shown, links)),
        html.section("Left out of tables and pictures", html.items(text_tables.not_shown(summaries))),
        html.section("Sizes of socket reads (bytes, logarithmic)", distributions.reads(titled)),
        html.section("Response times: how many requests within which time", distributions.responses(titled)),
        html.section("Stalls: when requests waited far longer than usual, and why", _stalls(summaries)),
        html.section("Notes", html.items(text_tables.notes(beside))),
        html.section("What changes from cell to cell, each with its 95% interval", intervals.drawn(found)),
        *(html.section(title, content) for title, content in more),
        *inside,
        *(
            _cell(row, place, [run for run, _ in drawn], allocated)
            for row, place in zip(titled, places.values(), strict=True)
        ),
        html.section("Columns of summary.csv", _columns()),
        "<p>Files: " + ", ".join(f'<a href="{address}">{name}</a>' for address, name in _files(pictures)) + "</p>",
    ]
    return html.document(experiment, parts, {"runs": [chart for _, chart in drawn], "flames": allocated.data})


def _stalls(summaries: Sequence[Summary]) -> str:
    """The stalls of all runs, and nothing where there was none."""
    found = stall_table.page_rows(summaries)
    return html.table(found, stacked=True) if len(found) > 1 else ""


def _title(row: CellRuns, varying: Sequence[str]) -> str:
    return ", ".join(f"{key_text(key)} {row.levels[key]}" for key in varying if key in row.levels) or row.name


def _cell(row: CellRuns, place: str, drawn: Sequence[Summary], allocated: flames.Flames) -> str:
    """The runs of one cell: how each ended, its charts, and who allocated: of the first run, of others on demand."""
    runs = [["run", "state", "reason"], *([run.run, run.state, run.reason] for run in row.runs)]
    content = [html.table(runs), *(charts.figure(drawn.index(run), run) for run in row.runs if run in drawn)]
    known = [run for run in row.runs if run.stacks]
    content += [flames.figure(run, allocated, is_open=run is known[0]) for run in known]
    return html.section(row.name, "\n".join(content), place)


def _files(pictures: Mapping[str, Picture]) -> list[tuple[str, str]]:
    """What lies beside the page, as (address, name)."""
    return [*((f"../{name}", name) for name in _DATA), *((quote(name), escape(name)) for name in pictures)]


def compared(before: str, now: str, changes: Changes) -> str:
    """The page of two results: what changed from the first to the second, or why nobody can say."""
    if changes.refused:
        parts = ["<h1>No verdict: these two cannot be compared</h1>", html.items(changes.refused)]
    else:
        parts = [f"<h1>{escape(summed_up(changes.found))}</h1>"]
    parts += [
        f'<p class="faint">From {escape(before)} to {escape(now)}</p>',
        html.section("Changes, each with its 95% interval", intervals.drawn(changes.found)),
        html.section("Notes", html.items(changes.notes)),
        html.section("Numbers", html.table(rows(changes)) if changes.found else ""),
    ]
    return html.document(f"{before} to {now}", parts)


def trended(folder: str, found: Trend, notes: Sequence[str]) -> str:
    """The page of many nights: what changed since when, each history drawn."""
    parts = [
        f"<h1>{escape(trend_table.summed_up(found))}</h1>",
        f'<p class="faint">The nights below {escape(folder)}</p>',
        html.section("Nights: the median of the runs, and the level", trend_table.drawn(found)),
        html.section(
            "Changes, the newest first", html.table(trend_table.rows(found)) if trend_table.newest(found) else ""
        ),
        html.section("Notes", html.items(notes)),
    ]
    return html.document(f"{folder}: nights", parts)


def _picture(picture: Picture) -> str:
    content = base64.b64encode(picture.content).decode()
    return f'<p><img src="data:image/png;base64,{content}" alt="{escape(picture.caption)}"></p>'


def _columns() -> str:
    named = "".join(f"<dt>{column.name}</dt><dd>{escape(column.meaning)}</dd>" for column in COLUMNS)
    return f"<details>\n<summary>What each of the {len(COLUMNS)} columns holds</summary>\n<dl>{named}</dl>\n</details>"
