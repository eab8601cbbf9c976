"""`recommend`: what other receive buffers would have cost, and which one to use."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ingest_bench.cli import screen
from ingest_bench.lab import buffer_advice, evaluation
from ingest_bench.report.tables import whatif_table
from ingest_bench.results import layout
from ingest_bench.units import format_bytes

_INVALID = 3


def add_to(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("recommend")(recommend)


def recommend(
    folders: Annotated[list[Path], typer.Argument(help="Results folders whose runs had the probe `reads`.")],
) -> int:
    """From the recorded reads: what other receive buffers would have cost, and which one to use. It runs nothing."""
    complete = True
    for folder in folders:
        results = layout.open_results(folder)
        summaries = evaluation.summaries(results)
        for advice in buffer_advice.advice(results, summaries):
            _show(advice)
            complete = complete and advice.recommendation is not None
    return 0 if complete else _INVALID


def _show(advice: buffer_advice.Advice) -> None:
    screen.heading(advice.cell)
    if advice.recommendation is None:
        screen.say(f"no recommendation: {advice.problem}\n")
        return
    head, *rows = whatif_table.table(advice.costs)
    screen.table("", head, rows)
    if advice.tlab_bytes is not None:
        screen.say(f"a TLAB held {format_bytes(advice.tlab_bytes)} on average")
    if any(item.is_extrapolated for item in advice.costs):
        screen.say("extrapolated: reads filled the recorded buffer, what lay behind is not known: record a larger one")
    screen.say(f"recommended: {advice.recommendation.reason}\n")
