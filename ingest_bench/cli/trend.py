"""`trend`: the results of many nights, and what changed since when."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ingest_bench.analysis.compare import comparison
from ingest_bench.analysis.compare import trend as over_nights
from ingest_bench.analysis.run.columns import COLUMNS
from ingest_bench.cli import screen
from ingest_bench.errors import SpecError
from ingest_bench.inputs import records
from ingest_bench.lab import nights
from ingest_bench.report.page import page
from ingest_bench.report.tables import text_tables, trend_table

app = typer.Typer()

_NO_VERDICT = 3


@app.command("trend")
def show(
    folder: Annotated[Path, typer.Argument(help="A folder that holds the results folders of many nights.")],
    column: Annotated[list[str], typer.Option(help="A column of summary.csv. Several are allowed.")] = [],  # noqa: B006 - typer copies it
    csv: Annotated[Path | None, typer.Option(help="Write every night's number and level to this file.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with the nights drawn to this file.")] = None,
    png: Annotated[Path | None, typer.Option(help="Write a picture of the nights to this file.")] = None,
) -> int:
    """Show what changed over nights, since when, and what changed with it.

    Exit 0 whether or not something changed, as compare does; 3 where no cell has 6 nights. What is allowed is for gate.
    """
    known = [each.name for each in COLUMNS]
    for name in column:
        if name not in known:
            raise SpecError(f'--column: unknown column "{name}"; {records.nearest(name, known)}')
    found, left_out = nights.below(folder)
    judged = over_nights.trend(found, list(dict.fromkeys(column)) or comparison.COMPARED)
    notes = [*left_out, *judged.notes]
    if csv is not None:
        screen.keep(csv, text_tables.csv_text(trend_table.values(judged)))
    if html is not None:
        screen.keep(html, page.trended(str(folder), judged, notes))
    if png is not None:
        from ingest_bench.report.plots import plots_trend  # noqa: PLC0415 - as all pictures: `report.pictures`

        screen.keep(png, plots_trend.trend(judged))
    head, *rows = trend_table.rows(judged)
    if rows:
        screen.table(str(folder), head, rows, numbers_from=3)
    for note in notes:
        screen.say(f"note: {note}")
    screen.say(trend_table.summed_up(judged))
    return 0 if judged.histories else _NO_VERDICT
