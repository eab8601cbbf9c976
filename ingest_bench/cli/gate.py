"""`gate`: thresholds, with or without a baseline, to an exit code."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ingest_bench import analyse, catalog, gate
from ingest_bench.cli import screen


def add_to(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("gate")(judge)


def judge(
    folder: Annotated[Path, typer.Argument(help="A results folder, or a summary.csv.")],
    thresholds: Annotated[Path, typer.Option(help=screen.literal("A TOML file of [[threshold]]: see README, In CI."))],
    baseline: Annotated[Path | None, typer.Option(help="The same, to compare with.")] = None,
) -> int:
    """Judge results: exit 0 pass, 1 fail, 3 no verdict (an invalid or missing run, or noise that hides the answer)."""
    wanted = gate.thresholds(catalog.table(thresholds), str(thresholds))
    verdict = gate.judge(analyse.judged(folder), wanted, analyse.judged(baseline) if baseline else None)
    rows = [[check.outcome, check.cell, check.column, check.text] for check in verdict.checks]
    screen.table("", ["", "cell", "column", "found"], rows, numbers_from=3)
    for note in verdict.notes:
        screen.say(f"note: {note}")
    screen.say(f"verdict: {verdict.outcome}")
    return verdict.exit_code
