"""`recommend`: what other receive buffers would have cost, and which one to use."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from ingest_bench.analysis.buffers.receive_buffers import Limits
from ingest_bench.cli import screen
from ingest_bench.lab import buffer_advice, evaluation
from ingest_bench.report.tables import whatif_table
from ingest_bench.results import layout
from ingest_bench.units import format_bytes

app = typer.Typer()

_INVALID = 3


@app.command()
def recommend(
    folders: Annotated[list[Path], typer.Argument(help="Results folders whose runs had the probe `reads`.")],
) -> int:
    """From the recorded reads: what other receive buffers would have cost, and which one to use. It runs nothing."""
    complete = True
    for folder in folders:
        results = layout.open_results(folder, to_write=True)
        summaries = evaluation.any_summaries(results)
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
    for line in _limits(advice.limits):
        screen.say(line)
    if any(item.is_extrapolated for item in advice.costs):
        screen.say("extrapolated: reads filled the recorded buffer, what lay behind is not known: record a larger one")
    if advice.disagreement:
        screen.say(advice.disagreement)
    screen.say(_checked(advice.errors))
    screen.say(f"recommended: {advice.recommendation.reason}\n")


def _limits(limits: Limits) -> list[str]:
    known = []
    if limits.tlab_bytes is not None:
        known.append(f"a TLAB of the network's threads held {format_bytes(limits.tlab_bytes)} on average")
    else:
        known.append("TLABs of the network's threads are not known: the probe allocations has them")
    if limits.region_bytes is not None:
        region = format_bytes(limits.region_bytes)
        known.append(f"a region of the heap has {region}: a buffer larger than half of that is a humongous object")
    else:
        known.append("regions of the heap are not known: the probe gc has those of G1")
    return known


def _checked(errors: Sequence[float]) -> str:
    if not errors:
        return (
            "how far this is off on this network is not known: measure another receive buffer too, with the probe"
            " kernel-reads where the server does not count its buffers"
        )
    low, high = min(errors), max(errors)
    sizes = f"{len(errors)} other size{'s' if len(errors) > 1 else ''}"
    return f"checked on this network: of {sizes} it said {low:+.1%}{f' to {high:+.1%}' if len(errors) > 1 else ''}"
