"""`report`: tables and pictures of a results folder, built anew."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ingest_bench.analysis.compare import cells
from ingest_bench.analysis.search import knees
from ingest_bench.cli import screen
from ingest_bench.lab import evaluation
from ingest_bench.model.results import Summary
from ingest_bench.report import published_rows
from ingest_bench.report.tables import knee_table, noise_table, text_tables
from ingest_bench.report.tables import parquet as parquet_table
from ingest_bench.results import layout
from ingest_bench.results.layout import Results

app = typer.Typer()

_INVALID = 3
_COMPLETE = frozenset({"measured", "oom", "inapplicable"})


@app.command("report")
def rebuild(
    folder: Annotated[Path, typer.Argument(help="A results folder: results/<experiment>/<start>.")],
    svg: Annotated[bool, typer.Option("--svg", help="Each picture as SVG beside its PNG.")] = False,
    parquet: Annotated[
        bool,
        typer.Option("--parquet", help="Also write summary.parquet: summary.csv with types. It needs pyarrow."),
    ] = False,
) -> int:
    """Rebuild the tables and pictures of a results folder from its raw files."""
    results = layout.open_results(folder, to_write=True)
    if parquet:
        # Before the raw files are read: that takes minutes.
        parquet_table.required()
    found = evaluation.any_summaries(results)
    return show(results, found, evaluation.write_report(results, found, svg=svg, parquet=parquet))


def show(results: Results, found: list[Summary], pictures: tuple[Path, ...]) -> int:
    """Print the table and where the picture is; the exit code: 3 when a run is not valid."""
    head, *rows = text_tables.terminal(found)
    screen.table(results.plan.description, head, rows)
    compared = evaluation.predicted(results, found)
    for title, beside in published_rows(found).items():
        screen.table(title, beside[0], beside[1:], (len(cells.varying(found)) or len(found[0].levels)) + 1)
    if against_itself := noise_table.table(found):
        title = "the same against itself: what is noise, and what would not be (95%, four times of five)"
        screen.table(title, against_itself[0], against_itself[1:], against_itself[0].index("column") + 1)
        screen.say(f"every other column: {results.path / 'report' / 'noise.csv'}")
    if compared:
        screen.table("receive buffers: predicted beside measured", compared[0], compared[1:], 3)
    for summary in found:
        if summary.state not in {"measured", "oom"}:
            screen.say(f"{summary.state}: {summary.run}: {summary.reason}")
    for note in text_tables.notes(found):
        screen.say(f"note: {note}")
    if pictures:
        screen.say(f"picture: {pictures[0]}")
    screen.say(f"tables:  {results.path / 'summary.csv'}")
    if results.plan.search is not None:
        return _show_search(results, found)
    plan = results.plan
    complete = len(found) == len(plan.runs) + len(plan.left_out) and all(each.state in _COMPLETE for each in found)
    return 0 if complete else _INVALID


def _show_search(results: Results, found: list[Summary]) -> int:
    """Print the steps and the knee of each cell; the exit code: 3 when a cell has no knee."""
    searched = knees.knees(results.plan, found)
    head, *rows = knee_table.rows(searched)
    screen.table(f"steps, goal: {searched[0].goal.text}", head, rows)
    for line in knee_table.said(searched):
        screen.say(line)
    return 0 if all(each.found.is_knee for each in searched) else _INVALID
