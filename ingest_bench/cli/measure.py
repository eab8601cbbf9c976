"""`run` and `plan`: what is measured."""

from __future__ import annotations

import dataclasses
import shlex
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from ingest_bench.cli import report, screen, what_runs, worker
from ingest_bench.cli.grouped import grouped
from ingest_bench.cli.what import What, plans
from ingest_bench.errors import Interrupted, SpecError
from ingest_bench.experiment import fingerprints
from ingest_bench.inputs import records
from ingest_bench.lab import calibration, campaign, evaluation
from ingest_bench.lab import find_max as search_for_max
from ingest_bench.lab.runner import JfrSettings, NetemBackend, RunOptions
from ingest_bench.model.experiment import Plan, Search
from ingest_bench.model.load import LoadOptions
from ingest_bench.results import layout
from ingest_bench.results.facts import facts
from ingest_bench.results.layout import Results
from ingest_bench.units import count_of

app = typer.Typer()

# Outside the warm-up and the measurement a run takes a boot and a few seconds (measured on 2 cores; `run` prints it).
_AROUND_A_RUN_S = 15

Download = Annotated[
    bool,
    typer.Option(
        "--download", help="Download what is missing of the track's corpora into the cache; said again, it goes on."
    ),
]
AllowDelete = Annotated[
    bool, typer.Option("--allow-delete", help="A track may delete its own indices on the server at --url.")
]
FindMax = Annotated[
    str | None,
    typer.Option(
        "--find-max",
        help='Search the highest rate that meets a goal: "p99 < 500ms". Errors stay below 0.1% unless it says else.',
    ),
]
MostRuns = Annotated[int, typer.Option(help="How many runs --find-max may take in each cell.", min=3)]
Out = Annotated[Path, typer.Option(help="The folder for results.")]
LastFrames = Annotated[
    bool,
    typer.Option(
        "--last-frames", help="Keep the headers of the last frames of each run that fails, is aborted or is invalid."
    ),
]
Jfr = Annotated[
    JfrSettings,
    typer.Option(
        "--jfr",
        help="What the flight recorder records: what the probes need, or beside it what the JDK does for profiling, "
        "to be opened with JDK Mission Control.",
    ),
]


@app.command()
@grouped
def run(  # noqa: PLR0917 - typer takes them all by name
    what: What,
    download: Download = False,
    allow_delete: AllowDelete = False,
    out: Out = Path("results"),
    netem: Annotated[NetemBackend, typer.Option(help="Which netem: the kernel's, or a User-Mode Linux box.")] = "auto",
    java_home: Annotated[Path | None, typer.Option(help="The JDK for the server.")] = None,
    resume: Annotated[Path | None, typer.Option(help="A results folder: do only the runs that it lacks.")] = None,
    find_max: FindMax = None,
    most_runs: MostRuns = 16,
    workers: worker.Workers = None,
    bind: worker.Bind = None,
    keys: worker.RunKeys = None,
    locust_web: worker.LocustWeb = None,
    prometheus: worker.Prometheus = None,
    last_frames: LastFrames = False,
    jfr: Jfr = "default",
) -> int:
    """Run an experiment: every cell, measured and drawn."""
    remote, shown = worker.asked(workers, bind, keys), worker.web(locust_web)
    options = RunOptions(
        netem=netem,
        java_home=java_home,
        allow_delete=allow_delete,
        locust_web=shown,
        last_frames=last_frames,
        jfr=jfr,
    )
    if resume is not None:
        if what != What() or find_max:
            raise SpecError("--resume takes its plan from the folder: give no experiment and no settings beside it")
        results = layout.open_results(resume)
        kept = layout.facts(resume)
        fingerprints.check(kept.get("files", {}), results.plan)
        if (recorded := kept.get("jfr", jfr)) != jfr:
            raise SpecError(
                f"--resume {resume}: its runs were recorded with --jfr {recorded}, and others would cost their server "
                f"something else: give --jfr {recorded}"
            )
        if download:
            _download([results.plan])
        worker.check(remote, [results.plan])
        told = campaign.preflight(results.plan, options)
        _fetch([results.plan], options)
        with worker.exported(prometheus) as exporter, worker.joined(remote, shown) as fleet:
            return _carried_out(results, dataclasses.replace(options, fleet=fleet, exporter=exporter), told, [results])
    planned = plans(what)
    if find_max is not None:
        if what.against_itself is not None:
            raise SpecError("--aa: a search for a rate has no runs that could be set against each other")
        records.at(Search, ("most_runs",), most_runs, "--most-runs")
        planned = [search_for_max.plan_of(ordered, Search(goal=find_max, most_runs=most_runs)) for ordered in planned]
    if download:
        _download(planned)
    worker.check(remote, planned)
    ours = [run.cell for ordered in planned for run in ordered.runs if not run.cell.target.runs_already]
    layout.check_writable(out, by_jvm=any(cell.probes or options.profiles for cell in ours))
    known = [campaign.preflight(ordered, options) for ordered in planned]
    _fetch(planned, options)
    with worker.exported(prometheus) as exporter, worker.joined(remote, shown) as fleet:
        options = dataclasses.replace(options, fleet=fleet, exporter=exporter)
        folders = [
            layout.create(out, ordered, {**facts(), "jfr": jfr, "files": fingerprints.of(ordered)})
            for ordered in planned
        ]
        # Those that have not begun are resumed, too, when one is interrupted.
        codes = [
            _carried_out(results, options, told, folders[at:])
            for at, (results, told) in enumerate(zip(folders, known, strict=True))
        ]
    return max(codes)


def _download(plans: Sequence[Plan]) -> None:
    with screen.downloads() as tell:
        campaign.download(plans, screen.say, tell)


def _fetch(plans: Sequence[Plan], options: RunOptions) -> None:
    with screen.downloads() as tell:
        for ordered in plans:
            campaign.fetch(ordered, options, tell)


def _carried_out(results: Results, options: RunOptions, told: Sequence[str], unfinished: Sequence[Results]) -> int:
    """The exit code of these runs; Interrupted says how to go on with everything that is unfinished."""
    # What other machines can send was not measured here.
    for line in (
        *told,
        *([] if options.fleet is not None else calibration.warnings(results.plan, calibration.kept())),
    ):
        screen.say(line)
    try:
        searched = results.plan.search is not None
        with campaign.taken(results):
            with screen.run_progress(search_for_max.most_runs(results.plan), _run_s(results.plan)) as progress:
                found = (search_for_max if searched else campaign).carry_out(results, options, progress)
            pictures = evaluation.write_report(results, found)
        return report.show(results, found, pictures)
    except KeyboardInterrupt:
        rest = "; ".join(
            shlex.join(("ingest-bench", "run", "--resume", str(each.path), *_same(options))) for each in unfinished
        )
        raise Interrupted(f"everything that was started is stopped. The rest: {rest}") from None


def _same(options: RunOptions) -> Iterator[str]:
    """The options with which the rest is carried out as its beginning was: runs of one folder are compared."""
    if options.profiles:
        yield from ("--jfr", options.jfr)
    if options.netem != RunOptions().netem:
        yield from ("--netem", options.netem)
    if options.java_home is not None:
        yield from ("--java-home", str(options.java_home))
    if options.allow_delete:
        yield "--allow-delete"
    if options.last_frames:
        yield "--last-frames"
    if options.fleet is not None:
        yield from ("--workers", str(options.fleet.joined))


@app.command("plan")
@grouped
def show_plan(what: What) -> None:
    """Show what would run, in which order, and for how long."""
    for ordered in plans(what):
        _show(ordered)
    screen.say("Nothing was started.")


def _show(ordered: Plan) -> None:
    told = campaign.check(ordered)
    seconds = [_seconds(run.cell.load) for run in ordered.runs]
    keys = [factor.key for factor in ordered.factors]
    rows = [
        [str(at), *(run.cell.levels[key] for key in keys), str(run.replicate), screen.lasts(lasts) if lasts else "?"]
        for at, (run, lasts) in enumerate(zip(ordered.runs, seconds, strict=True), 1)
    ]
    screen.names(ordered.description or ordered.experiment, what_runs.rows(ordered))
    screen.table("", ["#", *keys, "replicate", "about"], rows)
    for line in told:
        screen.say(line)
    lasts = f"about {screen.lasts(sum(seconds))}" if all(seconds) else "each as long as its documents take"
    screen.say(f"{count_of(len(rows), 'run')}, {lasts}.")


def _run_s(ordered: Plan) -> float | None:
    """About how long a run lasts on average; None where nobody knows, or how many there will be."""
    seconds = [_seconds(run.cell.load) for run in ordered.runs]
    return statistics.fmean(seconds) if all(seconds) and ordered.search is None else None


def _seconds(load: LoadOptions) -> float:
    """About how long a run lasts; 0: nobody knows, a track is sent once and so are a number of documents."""
    return (
        0
        if load.track or load.measure_documents
        else (load.longest_warm_up_ns + load.measure_ns) / 1e9 + _AROUND_A_RUN_S
    )
