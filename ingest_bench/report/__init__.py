"""From summaries to files: tables, pictures and a page. Pure: no input or output.

A report is a function from summaries (in the order in which they are to be shown, `analysis.cells.in_order`) to files:
name below the results folder -> content. To add one: write the function, add a line to `REPORTS`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from ingest_bench import data
from ingest_bench.analysis import cells, published
from ingest_bench.analysis.published import Published
from ingest_bench.model.results import Summary
from ingest_bench.report import es23185, page, plots, plots_layers, plots_time, tables

Files = dict[str, bytes]


def csv_tables(summaries: Sequence[Summary]) -> Files:
    """The tables of every experiment."""
    files = {
        "summary.csv": tables.summary_csv(summaries),
        "summary.json": tables.summary_json(summaries),
        "histograms.csv": tables.histograms_csv(summaries),
        "report/cells.md": tables.markdown(tables.terminal(summaries), len(cells.varying(summaries)) or 1),
    }
    compared = tables.comparisons(summaries)
    if len(compared) > 1:
        files["report/comparisons.csv"] = tables.csv_text(compared)
    if any("wire_bytes" in run.histograms for run in summaries):
        files["report/wire.csv"] = tables.histograms_csv(summaries, "wire_bytes", "frames")
    return {name: text.encode() for name, text in files.items()}


def issue_tables(summaries: Sequence[Summary]) -> Files:
    """The table of Elasticsearch issue 23185; nothing when no run measured allocations."""
    known = _published()
    rows = es23185.table(summaries, known)
    if not rows:
        return {}
    return {
        "report/es-23185.csv": tables.csv_text(es23185.values(summaries, known)).encode(),
        "report/es-23185.md": tables.markdown(rows, len(cells.varying(summaries)) + 1).encode(),
    }


def issue_rows(summaries: Sequence[Summary]) -> list[list[str]]:
    """The table of issue 23185 for the screen; empty when the issue has no row for any of these cells."""
    rows = es23185.table(summaries, _published())
    return rows if any(row[0] == "published" for row in rows) else []


def _published() -> list[Published]:
    """The issue's tables, which travel with the package."""
    folder = data.folder("results/reference/published")
    named = {"es-23185-pmc": "pmc", "es-23185-nyc_taxis": "nyc_taxis", "es-23185-network": None}
    return [
        row
        for name, workload in named.items()
        for row in published.rows((folder / f"{name}.csv").read_text(encoding="utf-8"), workload)
    ]


def pictures(summaries: Sequence[Summary]) -> Files:
    """The pictures, the main one first, and the page that holds them."""
    files = {"reads.png": plots.overview(summaries)}
    captions = {"reads.png": "for each cell: sizes of socket reads, documents/s, GC pauses"}
    layers = plots_layers.layers(summaries)
    if layers is not None:
        files["layers.png"], captions["layers.png"] = layers, "allocations outside TLABs by layer"
    for cell in cells.group(summaries):
        for run in sorted(cell.valid, key=lambda run: (run.instrumented, run.replicate))[:1]:
            content = plots_time.timeline(run)
            if content is not None:
                name = f"time-{re.sub('[^A-Za-z0-9.=-]+', '-', cell.name)}.png"
                files[name], captions[name] = content, f"{run.run} over time"
    more = [
        ("What changes from cell to cell", tables.comparisons(summaries)),
        ("The table of Elasticsearch issue 23185", es23185.table(summaries, _published())),
    ]
    sections = [(title, page.table(rows)) for title, rows in more if len(rows) > 1]
    files["index.html"] = page.index(summaries, captions, sections).encode()
    return {f"report/{name}": content for name, content in files.items()}


REPORTS: Mapping[str, Callable[[Sequence[Summary]], Files]] = {
    "tables": csv_tables,
    "es-23185": issue_tables,
    "pictures": pictures,
}
