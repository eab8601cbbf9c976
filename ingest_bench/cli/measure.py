"""`run` and `plan`: what is measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ingest_bench import analyse, conduct, plan, spec, store
from ingest_bench.cli import report, screen
from ingest_bench.errors import SpecError
from ingest_bench.facts import facts
from ingest_bench.model.experiment import Plan
from ingest_bench.runner import NetemBackend, RunOptions

# Outside the warm-up and the measurement a run takes a boot and a few seconds (measured on 2 cores; `run` prints it).
_AROUND_A_RUN_S = 15

Experiment = Annotated[str, typer.Argument(help="An experiment by name (see `list`), or your own TOML file.")]
Sets = Annotated[list[str], typer.Option("--set", help="A setting or a factor: heap=1g,2g or network=jumbo.")]
Replicates = Annotated[int | None, typer.Option(help="How often each cell runs.", min=1)]
Measure = Annotated[str | None, typer.Option(help='How long each run measures, such as "20s".')]
WarmUp = Annotated[str | None, typer.Option(help='How long each run warms up before that, such as "5s".')]
Documents = Annotated[str | None, typer.Option(help="Send this file (NDJSON, also .gz .bz2 .zst) as the documents.")]
Out = Annotated[Path, typer.Option(help="The folder for results.")]


def add_to(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("run")(run)
    app.command("plan")(show_plan)


def run(
    experiment: Annotated[
        str | None, typer.Argument(help="An experiment by name (see `list`), or a TOML file.")
    ] = None,
    sets: Sets = [],  # noqa: B006 - typer copies it
    replicates: Replicates = None,
    measure: Measure = None,
    warm_up: WarmUp = None,
    documents: Documents = None,
    out: Out = Path("results"),
    netem: Annotated[NetemBackend, typer.Option(help="Which netem: the kernel's, or a User-Mode Linux box.")] = "auto",
    java_home: Annotated[Path | None, typer.Option(help="The JDK for the server.")] = None,
    resume: Annotated[Path | None, typer.Option(help="A results folder: do only the runs that it lacks.")] = None,
) -> int:
    """Run an experiment: every cell, measured and drawn."""
    options = RunOptions(netem=netem, java_home=java_home)
    if resume is not None:
        if experiment or sets or replicates or measure or warm_up or documents:
            raise SpecError("--resume takes its plan from the folder: give no experiment and no settings beside it")
        results = store.open_results(resume)
        conduct.preflight(results.plan, options)
    else:
        if experiment is None:
            raise SpecError("which experiment? Try: ingest-bench run quickstart (`ingest-bench list` shows all)")
        ordered = _plan(experiment, sets, replicates, measure, warm_up, documents)
        conduct.preflight(ordered, options)
        results = store.create(out, ordered, facts())
    with screen.downloads() as tell:
        conduct.fetch(results.plan, options, tell)
    with screen.run_progress(len(results.plan.runs)) as progress:
        found = conduct.carry_out(results, options, progress)
    pictures = analyse.write_report(results, found)
    return report.show(results, found, pictures)


def show_plan(
    experiment: Experiment,
    sets: Sets = [],  # noqa: B006 - typer copies it
    replicates: Replicates = None,
    measure: Measure = None,
    warm_up: WarmUp = None,
    documents: Documents = None,
) -> None:
    """Show what would run, in which order, and for how long."""
    ordered = _plan(experiment, sets, replicates, measure, warm_up, documents)
    seconds = [(run.cell.load.warm_up_ns + run.cell.load.measure_ns) / 1e9 + _AROUND_A_RUN_S for run in ordered.runs]
    keys = [factor.key for factor in ordered.factors]
    rows = [
        [str(at), *(run.cell.levels[key] for key in keys), str(run.replicate), f"{lasts:.0f} s"]
        for at, (run, lasts) in enumerate(zip(ordered.runs, seconds, strict=True), 1)
    ]
    screen.table(ordered.description, ["#", *keys, "replicate", "about"], rows)
    screen.say(f"{len(rows)} runs, about {sum(seconds) / 60:.0f} min. Nothing was started.")


def _plan(
    experiment: str,
    sets: list[str],
    replicates: int | None,
    measure: str | None,
    warm_up: str | None,
    documents: str | None,
) -> Plan:
    fixed = {"measure": measure, "warm_up": warm_up, "documents": documents}
    return plan.order(spec.load(experiment, sets, fixed=fixed, replicates=replicates))
