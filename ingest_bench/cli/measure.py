"""`run` and `plan`: what is measured."""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
from ingest_bench.load.fleet.roster import Remote
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
MostRuns = Annotated[
    int | None,
    typer.Option(
        help=f"How many runs --find-max may take in each cell, {Search(goal='').most_runs} when not given. With "
        "--resume a search goes on until it has so many.",
        min=3,
    ),
]
Out = Annotated[Path | None, typer.Option(help='The folder for results: "results" when not given.')]
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
    context: typer.Context,
    what: What,
    download: Download = False,
    allow_delete: AllowDelete = False,
    out: Out = None,
    netem: Annotated[NetemBackend, typer.Option(help="Which netem: the kernel's, or a User-Mode Linux box.")] = "auto",
    java_home: Annotated[Path | None, typer.Option(help="The JDK for the server.")] = None,
    resume: Annotated[Path | None, typer.Option(help="A results folder: do only the runs that it lacks.")] = None,
    find_max: FindMax = None,
    most_runs: MostRuns = None,
    workers: worker.Workers = None,
    bind: worker.Bind = None,
    keys: worker.RunKeys = None,
    locust_web: worker.LocustWeb = None,
    prometheus: worker.Prometheus = None,
    last_frames: LastFrames = False,
    jfr: Jfr = "default",
) -> int:
    """Run an experiment: every cell, measured and drawn."""
    options = RunOptions(
        netem=netem,
        java_home=java_home,
        allow_delete=allow_delete,
        locust_web=worker.web(locust_web),
        last_frames=last_frames,
        jfr=jfr,
    )
    away = {"workers": workers, "bind": bind, "keys": keys} if workers is not None else {}
    how = _How(
        options=options,
        download=download,
        remote=worker.asked(context, workers, bind, keys),
        prometheus=prometheus,
        same=_same(options, **away, locust_web=locust_web, prometheus=prometheus),
    )
    if most_runs is not None:
        records.at(Search, ("most_runs",), most_runs, "--most-runs")
    if resume is not None:
        if what != What() or find_max is not None:
            raise SpecError("--resume takes its plan from the folder: give no experiment and no settings beside it")
        if out is not None:
            raise SpecError(f"--resume {resume}: what is measured goes there, too; leave --out {out} out")
        return _resumed(resume, most_runs, how)
    planned = plans(what)
    if find_max is not None:
        if what.against_itself is not None:
            raise SpecError("--aa: a search for a rate has no runs that could be set against each other")
        rules = Search(goal=find_max) if most_runs is None else Search(goal=find_max, most_runs=most_runs)
        planned = [search_for_max.plan_of(ordered, rules) for ordered in planned]
    elif most_runs is not None:
        raise SpecError(f"--most-runs {most_runs}: only a search takes it; add --find-max GOAL")
    return _begun(planned, Path("results") if out is None else out, how)


@dataclass(frozen=True, slots=True, kw_only=True)
class _How:
    """How runs are carried out, as it was typed."""

    options: RunOptions
    download: bool
    remote: Remote | None
    prometheus: str | None
    same: Sequence[str]
    """The words with which the rest is carried out as its beginning was."""

    @contextlib.contextmanager
    def at_work(self) -> Iterator[RunOptions]:
        """The options with what runs beside all runs: workers that have joined, and an exporter."""
        options, web = self.options, self.options.locust_web
        with worker.exported(self.prometheus) as exporter, worker.joined(self.remote, web) as fleet:
            yield dataclasses.replace(options, fleet=fleet, exporter=exporter)


def _resumed(folder: Path, most_runs: int | None, how: _How) -> int:
    """The exit code of a results folder once it has all its runs, after doing those that it lacks."""
    results, jfr = layout.open_results(folder, to_write=True), how.options.jfr
    fingerprints.check(layout.fingerprints(folder), results.plan)
    if (recorded := layout.facts(folder).get("jfr", jfr)) != jfr:
        raise SpecError(
            f"--resume {folder}: its runs were recorded with --jfr {recorded}, and others would cost their server "
            f"something else: give --jfr {recorded}"
        )
    left = campaign.left(results)
    campaign.check_netem(results, left, how.options.netem)
    if most_runs is not None and results.plan.search is None:
        raise SpecError(f"--most-runs {most_runs}: only a search takes it, and {folder} is none")
    if how.download:
        _download([results.plan])
    worker.check(how.remote, [results.plan])
    told = campaign.preflight(left, how.options)
    _fetch([left], how.options)
    if most_runs is not None:
        with campaign.taken(results):
            search_for_max.allow(results, most_runs)
    with how.at_work() as options:
        return _carried_out(results, options, told, _rest([results], how))


def _begun(planned: Sequence[Plan], out: Path, how: _How) -> int:
    """The exit code of these plans, each carried out in a new folder."""
    if how.download:
        _download(planned)
    worker.check(how.remote, planned)
    ours = [run.cell for ordered in planned for run in ordered.runs if not run.cell.target.runs_already]
    layout.check_writable(out, by_jvm=any(cell.probes or how.options.profiles for cell in ours))
    known = [campaign.preflight(ordered, how.options) for ordered in planned]
    _fetch(planned, how.options)
    with how.at_work() as options:
        folders = [
            layout.create(out, ordered, {**facts(), "jfr": options.jfr, "files": fingerprints.of(ordered)})
            for ordered in planned
        ]
        # Those that have not begun are resumed, too, when one is interrupted.
        codes = [
            _carried_out(results, options, told, _rest(folders[at:], how))
            for at, (results, told) in enumerate(zip(folders, known, strict=True))
        ]
    return max(codes)


def _same(options: RunOptions, **others: object) -> list[str]:
    """The words with which other runs are carried out as with these options: runs of one folder are compared.

    `others` are options of the command that are none of a run, by their names.
    """
    usual = RunOptions()
    told = ("jfr", "netem", "java_home", "allow_delete", "last_frames")
    given = {name: value for name in told if (value := getattr(options, name)) != getattr(usual, name)} | others
    words: list[str] = []
    for name, value in given.items():
        if value is not None:
            option = f"--{name.replace('_', '-')}"
            words += [option] if value is True else [option, str(value)]
    return words


def _rest(unfinished: Sequence[Results], how: _How) -> str:
    """The commands that go on with these results."""
    commands = (("ingest-bench", "run", "--resume", str(each.path), *how.same) for each in unfinished)
    return "; ".join(map(shlex.join, commands))


def _download(plans: Sequence[Plan]) -> None:
    with screen.downloads() as tell:
        campaign.download(plans, screen.say, tell)


def _fetch(plans: Sequence[Plan], options: RunOptions) -> None:
    with screen.downloads() as tell:
        for ordered in plans:
            campaign.fetch(ordered, options, tell)


def _carried_out(results: Results, options: RunOptions, told: Sequence[str], rest: str) -> int:
    """The exit code of these runs; Interrupted says how to go on: the commands that are the `rest`."""
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
        raise Interrupted(f"everything that was started is stopped. The rest: {rest}") from None


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
