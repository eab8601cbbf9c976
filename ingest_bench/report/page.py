"""index.html: the pictures and tables of an experiment on one page that needs nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from ingest_bench.analysis.columns import COLUMNS
from ingest_bench.model.results import Summary
from ingest_bench.report import headline, tables

_DATA = ("summary.csv", "summary.json", "histograms.csv")
_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 76rem; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { margin-top: 2.5rem; }
img { background: white; border-radius: 6px; height: auto; max-width: 100%; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid #8884; padding: .3rem .7rem; text-align: left; white-space: nowrap; }
td.number, th.number { text-align: right; }
dt { font-family: ui-monospace, monospace; } dd { margin: 0 0 .4rem 1.5rem; }
"""


def index(summaries: Sequence[Summary], pictures: Mapping[str, str], more: Sequence[tuple[str, str]] = ()) -> str:
    """The page. `pictures` is file name -> what it shows, the main one first; `more` is (title, HTML)."""
    experiment = next((run.experiment for run in summaries if run.experiment), "results")
    first, *others = [_picture(name, caption) for name, caption in pictures.items()] or [""]
    parts = [
        f"<h1>{escape(experiment)}: {escape(headline.reads(summaries))}</h1>",
        first,
        _section("Cells: median over the runs (min..max)", table(tables.terminal(summaries))),
        _section("Left out of tables and pictures", _list(tables.not_shown(summaries))),
        _section("Notes", _list(tables.notes(summaries))),
        *(_section(title, content) for title, content in more),
        *others,
        _section("Columns of summary.csv", _columns()),
        "<p>Data: " + ", ".join(f'<a href="../{name}">{name}</a>' for name in _DATA) + "</p>",
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(experiment)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(part for part in parts if part)
        + "\n</body>\n</html>\n"
    )


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows as an HTML table, the first as its head; cells that begin with a digit are aligned to the right."""
    head, *body = rows
    numeric = [any(row[place][:1].isdigit() for row in body) for place in range(len(head))]
    marks = [' class="number"' if number else "" for number in numeric]

    def line(cells: Sequence[str], tag: str) -> str:
        return "".join(f"<{tag}{mark}>{escape(cell)}</{tag}>" for cell, mark in zip(cells, marks, strict=True))

    content = "".join(f"<tr>{line(row, 'td')}</tr>\n" for row in body)
    return f'<div class="wide"><table>\n<tr>{line(head, "th")}</tr>\n{content}</table></div>'


def _section(title: str, content: str) -> str:
    return f"<h2>{escape(title)}</h2>\n{content}" if content else ""


def _picture(name: str, caption: str) -> str:
    return f'<p><img src="{escape(name)}" alt="{escape(caption)}"></p>'


def _list(items: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(item)}</li>' for item in items)}</ul>" if items else ""


def _columns() -> str:
    return f"<dl>{''.join(f'<dt>{column.name}</dt><dd>{escape(column.meaning)}</dd>' for column in COLUMNS)}</dl>"
