"""`compare`: two results, and what changed from the first to the second."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ingest_bench.analysis.compare import changes as compared
from ingest_bench.analysis.compare import comparison
from ingest_bench.analysis.run.columns import COLUMNS
from ingest_bench.cli import screen
from ingest_bench.errors import SpecError
from ingest_bench.inputs import records
from ingest_bench.lab import evaluation
from ingest_bench.report.page import page
from ingest_bench.report.tables import changes_table, text_tables

app = typer.Typer()

_NO_VERDICT = 3


@app.command("compare")
def show(
    before: Annotated[Path, typer.Argument(metavar="A", help="A results folder, or a summary.csv.")],
    now: Annotated[Path, typer.Argument(metavar="B", help="The same, of what came later.")],
    column: Annotated[list[str], typer.Option(help="A column of summary.csv. Several are allowed.")] = [],  # noqa: B006 - typer copies it
    csv: Annotated[Path | None, typer.Option(help="Write the table to this file, as numbers.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with the intervals drawn to this file.")] = None,
) -> int:
    """Show what changed from one result to another: exit 0, or 3 where that cannot be known."""
    _check(column)
    found = compared.between(evaluation.judged(before), evaluation.judged(now), column or comparison.COMPARED)
    for file, text in (
        (csv, text_tables.csv_text(changes_table.values(found))),
        (html, page.compared(str(before), str(now), found)),
    ):
        if file is not None:
            screen.keep(file, text)
    if found.refused:
        screen.say(f"no verdict: these two cannot be compared: {'; '.join(found.refused)}")
        return _NO_VERDICT
    head, *rows = changes_table.rows(found)
    screen.table(f"{before} to {now}", head, rows, numbers_from=2)
    for note in found.notes:
        screen.say(f"note: {note}")
    screen.say(changes_table.summed_up(found.found))
    return 0 if found.is_verdict else _NO_VERDICT


def _check(columns: list[str]) -> None:
    known = [each.name for each in COLUMNS]
    for name in columns:
        if name not in known:
            raise SpecError(f'--column: unknown column "{name}"; {records.nearest(name, known)}')
