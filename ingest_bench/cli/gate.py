"""`gate`: thresholds, with or without a baseline, to an exit code."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ingest_bench.cli import screen
from ingest_bench.experiment import catalog
from ingest_bench.lab import evaluation
from ingest_bench.report import gate
from ingest_bench.report.gate import job
from ingest_bench.report.gate import junit as junit_xml

app = typer.Typer()


@app.command("gate")
def judge(
    folder: Annotated[Path, typer.Argument(help="A results folder, or a summary.csv.")],
    thresholds: Annotated[
        Path, typer.Option(help=screen.literal("A TOML file of [[threshold]]: see docs/nightly-ci.md."))
    ],
    baseline: Annotated[Path | None, typer.Option(help="The same, to compare with.")] = None,
    junit: Annotated[Path | None, typer.Option(help="Write the checks to this file as JUnit XML.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write them as Markdown, for the summary of a CI job.")] = None,
    json: Annotated[
        Path | None,
        typer.Option(help="Write the numbers as github-action-benchmark takes them (customSmallerIsBetter)."),
    ] = None,
) -> int:
    """Judge results: exit 0 pass, 1 fail, 3 no verdict (an invalid or missing run, or noise that hides the answer)."""
    wanted = gate.thresholds(catalog.table(thresholds), str(thresholds))
    now = evaluation.judged(folder)
    verdict = gate.judge(now, wanted, evaluation.judged(baseline) if baseline else None)
    rows = [[check.outcome, check.cell, check.column, check.text] for check in verdict.checks]
    screen.table("", ["", "cell", "column", "found"], rows, numbers_from=3)
    for note in verdict.notes:
        screen.say(f"note: {note}")
    screen.say(f"verdict: {verdict.outcome}")
    name = next((run.experiment for run in now.summaries if run.experiment), str(folder))
    for file, text in (
        (junit, junit_xml.xml(verdict, name)),
        (markdown, job.summary(verdict, name)),
        (json, job.smaller_is_better(now.summaries, wanted)),
    ):
        if file is not None:
            screen.keep(file, text)
    return verdict.exit_code
