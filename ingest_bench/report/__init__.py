"""From summaries to files: tables, pictures and a page. Pure: no input or output.

A report is a function from summaries (in the order in which they are to be shown, `analysis.cells.in_order`) to files:
name below the results folder -> content. To add one: write the function, add a line to `REPORTS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ingest_bench.model.results import Summary
from ingest_bench.report import plots, tables

Files = dict[str, bytes]


def csv_tables(summaries: Sequence[Summary]) -> Files:
    """The three tables of every experiment."""
    return {
        "summary.csv": tables.summary_csv(summaries).encode(),
        "summary.json": tables.summary_json(summaries).encode(),
        "histograms.csv": tables.histograms_csv(summaries).encode(),
    }


def pictures(summaries: Sequence[Summary]) -> Files:
    """The pictures; the main one first."""
    return {"report/reads.png": plots.overview(summaries)}


REPORTS: Mapping[str, Callable[[Sequence[Summary]], Files]] = {
    "tables": csv_tables,
    "pictures": pictures,
}
