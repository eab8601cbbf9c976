"""index.html: the pictures and tables of an experiment on one page that needs nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from ingest_bench.analysis.changes import Changes
from ingest_bench.analysis.columns import COLUMNS
from ingest_bench.model.results import Summary
from ingest_bench.report import headline, html, intervals, tables
from ingest_bench.report.changes import rows, summed_up

_DATA = ("summary.csv", "summary.json", "histograms.csv")


def index(summaries: Sequence[Summary], pictures: Mapping[str, str], more: Sequence[tuple[str, str]] = ()) -> str:
    """The page. `pictures` is file name -> what it shows, the main one first; `more` is (title, HTML)."""
    experiment = next((run.experiment for run in summaries if run.experiment), "results")
    first, *others = [_picture(name, caption) for name, caption in pictures.items()] or [""]
    parts = [
        f"<h1>{escape(experiment)}: {escape(headline.reads(summaries))}</h1>",
        first,
        html.section("Cells: median over the runs (min..max)", html.table(tables.terminal(summaries))),
        html.section("Left out of tables and pictures", html.items(tables.not_shown(summaries))),
        html.section("Notes", html.items(tables.notes(summaries))),
        *(html.section(title, content) for title, content in more),
        *others,
        html.section("Columns of summary.csv", _columns()),
        "<p>Data: " + ", ".join(f'<a href="../{name}">{name}</a>' for name in _DATA) + "</p>",
    ]
    return html.document(experiment, parts)


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


def _picture(name: str, caption: str) -> str:
    return f'<p><img src="{escape(name)}" alt="{escape(caption)}"></p>'


def _columns() -> str:
    return f"<dl>{''.join(f'<dt>{column.name}</dt><dd>{escape(column.meaning)}</dd>' for column in COLUMNS)}</dl>"
