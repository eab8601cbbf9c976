"""From summaries to files: tables, pictures and a page. Pure: no input or output.

A report is a function from summaries (in the order in which they are to be shown, `analysis.cells.in_order`) to files:
name below the results folder -> content. To add one: write the function, add a line to `REPORTS`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from ingest_bench.analysis import cells
from ingest_bench.model.results import Summary
from ingest_bench.report import page, plots, plots_layers, plots_time, tables

Files = dict[str, bytes]


def csv_tables(summaries: Sequence[Summary]) -> Files:
    """The tables of every experiment."""
    files = {
        "summary.csv": tables.summary_csv(summaries),
        "summary.json": tables.summary_json(summaries),
        "histograms.csv": tables.histograms_csv(summaries),
        "report/cells.md": tables.markdown(tables.terminal(summaries), len(cells.varying(summaries)) or 1),
    }
    if any("wire_bytes" in run.histograms for run in summaries):
        files["report/wire.csv"] = tables.histograms_csv(summaries, "wire_bytes", "segments")
    return {name: text.encode() for name, text in files.items()}


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
    files["index.html"] = page.index(summaries, captions).encode()
    return {f"report/{name}": content for name, content in files.items()}


REPORTS: Mapping[str, Callable[[Sequence[Summary]], Files]] = {
    "tables": csv_tables,
    "pictures": pictures,
}
