"""`calibrate`: what this machine can send."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ingest_bench.cli import screen
from ingest_bench.errors import RunFailed
from ingest_bench.experiment import order, spec
from ingest_bench.lab import calibration, campaign
from ingest_bench.lab.runner import RunOptions
from ingest_bench.report.tables import text_tables
from ingest_bench.results import layout
from ingest_bench.results.facts import facts

app = typer.Typer()

# The load generator itself was the limit from here on (`analysis.run.generator_health`).
_BUSY_PERCENT = 90


@app.command()
def calibrate(
    sets: Annotated[list[str], typer.Option("--set", help="A setting or a factor: bulk=55kB processes=1,4.")] = [],  # noqa: B006 - typer copies it
    out: Annotated[Path, typer.Option(help="The folder for results.")] = Path("results"),
) -> int:
    """Measure what this machine can send, against a server that costs little; later runs warn when they ask more."""
    ordered, options = order.order(spec.load(calibration.EXPERIMENT, sets)), RunOptions()
    campaign.preflight(ordered, options)
    with screen.downloads() as tell:
        campaign.fetch(ordered, options, tell)
    results = layout.create(out, ordered, facts())
    with campaign.taken(results), screen.run_progress(len(ordered.runs)) as progress:
        found = campaign.carry_out(results, options, progress)
    sent = calibration.measured(ordered, found)
    if not sent:
        raise RunFailed(f"calibrate: no run was valid; their reasons are in {results.path / layout.SUMMARY}")
    rows = [
        [
            f"{each.body_bytes / 1000:,.1f} kB",
            str(each.processes),
            f"{each.requests_per_s:,.0f}",
            f"{each.requests_per_s * each.body_bytes / 1e6:,.0f}",
            f"{each.cpu_percent:.0f}",
        ]
        for each in sent
    ]
    screen.table(ordered.description, ["body", "processes", "requests/s", "MB/s", "CPU of the busiest, %"], rows)
    for note in text_tables.notes(found):
        screen.say(f"note: {note}")
    if max(each.cpu_percent for each in sent) < _BUSY_PERCENT:
        screen.say(
            "note: no load process used its core: the server or other work was the limit. An idle machine says more"
        )
    screen.say(f"kept: {calibration.keep(sent)}")
    return 0
