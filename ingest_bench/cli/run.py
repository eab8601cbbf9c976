"""`run`, `plan` and `calibrate`: execute experiments, or show what would run."""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from ingest_bench import targets
from ingest_bench.analysis.run import summary
from ingest_bench.cli import screen, worker
from ingest_bench.cli.completion import complete_results
from ingest_bench.cli.experiment_options import ExperimentOptions, build_plans
from ingest_bench.cli.options import App, OutputOptions, grouped, take_results
from ingest_bench.cli.report import print_results
from ingest_bench.documents import corpus
from ingest_bench.errors import Interrupted, RunFailed, SpecError
from ingest_bench.experiment import catalog, spec
from ingest_bench.inputs import records
from ingest_bench.lab import calibration, campaign, evaluation
from ingest_bench.lab import find_max as search_for_max
from ingest_bench.lab.runner import JfrSettings, NetemBackend, RunOptions
from ingest_bench.load import exporter
from ingest_bench.load.fleet import roster
from ingest_bench.load.fleet.roster import PORT, RemoteWorkers
from ingest_bench.model.experiment import Cell, Plan, Search
from ingest_bench.model.load import LoadOptions
from ingest_bench.report import cell_tables
from ingest_bench.results import layout
from ingest_bench.results.facts import collect_facts
from ingest_bench.results.layout import Results
from ingest_bench.units import format_bytes, format_count, format_time

app = App()

# Boot and other time of a run outside warm-up and measurement (measured on 2 cores; `run` prints it).
_OVERHEAD_S = 15
# A plan names this many values of a setting, and counts the others.
_MAX_NAMED = 5
# From here on the load generator itself was the limit (`analysis.run.generator_health`).
_BUSY_PERCENT = 90


_EXAMPLES = """\
Examples:
  ingest-bench run quickstart                            # start here
  ingest-bench run quickstart --set network=jumbo --replicates 3
  ingest-bench run quickstart --find-max "p99 < 500ms"   # the highest rate
  ingest-bench run --url http://127.0.0.1:9200 --documents orders.ndjson
  ingest-bench run --attach 4711                         # a JVM by its pid"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionOptions:
    """Options of `run` that say how runs are executed."""

    netem: NetemBackend = "auto"
    java_home: Path | None = None
    download: bool = False
    allow_delete: bool = False
    workers: int | None = None
    bind: Annotated[
        str | None, {"help": f"Address on which workers join: HOST or HOST:PORT. Default: 127.0.0.1:{PORT}."}
    ] = None
    keys: Annotated[Path | None, {"envvar": worker.KEYS_VARIABLE}] = None
    locust_web: str | None = None
    prometheus: str | None = None
    last_frames: bool = False
    jfr: JfrSettings = "default"

    def to_run_options(self) -> RunOptions:
        """Return the options of each run, without fleet and exporter; SpecError for an unusable option."""
        worker.parse_page_address("--prometheus", self.prometheus, 9464)
        return RunOptions(
            netem=self.netem,
            java_home=self.java_home,
            allow_delete=self.allow_delete,
            locust_web=worker.parse_page_address("--locust-web", self.locust_web, 8089),
            last_frames=self.last_frames,
            jfr=self.jfr,
        )

    def resume_commands(self, unfinished: Sequence[Results]) -> str:
        """Return the commands that continue these results in the same way: runs of one folder are compared."""
        # Keys may be in the environment.
        is_remote = self.workers or any(run.cell.target.watchers for run in unfinished[0].plan.runs)
        left_out = ("download",) if is_remote else ("download", "keys")
        arguments: list[str] = []
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            if value != item.default and item.name not in left_out:
                option = f"--{item.name.replace('_', '-')}"
                arguments += [option] if value is True else [option, str(value)]
        commands = (("ingest-bench", "run", "--resume", str(results.path), *arguments) for results in unfinished)
        return "; ".join(map(shlex.join, commands))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCommand:
    """All options of `run` and `plan`."""

    measured: ExperimentOptions = field(default_factory=ExperimentOptions)
    execution: ExecutionOptions = field(default_factory=ExecutionOptions)
    output: OutputOptions = field(default_factory=OutputOptions)
    results_folder: Path | None = None
    resume: Annotated[Path | None, {"autocompletion": complete_results}] = None
    find_max: str | None = None
    max_runs: Annotated[
        int | None,
        {
            "help": f"Maximum number of runs of --find-max in each cell. Default: {Search(goal='').max_runs}. With "
            "--resume, a search continues up to this number."
        },
    ] = None

    def build_plans(self) -> list[Plan]:
        """Return the plans of a new experiment; SpecError for options that conflict."""
        if self.find_max is None:
            if self.max_runs is not None:
                raise SpecError(f"--max-runs {self.max_runs} requires --find-max GOAL")
            return build_plans(self.measured)
        if self.measured.against_itself is not None:
            raise SpecError("--aa cannot be combined with --find-max: a search has no equal runs to compare")
        limit = {} if self.max_runs is None else {"max_runs": self.max_runs}
        return [
            search_for_max.plan_search(plan, Search(goal=self.find_max, **limit)) for plan in build_plans(self.measured)
        ]

    def open_resumed(self, options: RunOptions) -> tuple[Results, Plan] | None:
        """Return the results to resume and the plan of their missing runs; None for a new experiment."""
        if self.max_runs is not None:
            records.read_key(Search, ("max_runs",), self.max_runs, "--max-runs")
        if self.resume is None:
            return None
        if self.measured != ExperimentOptions() or self.find_max is not None:
            raise SpecError("--resume cannot be combined with an experiment or its settings: the folder has the plan")
        if self.results_folder is not None:
            raise SpecError(
                f"--resume {self.resume} cannot be combined with --out: results go to the resumed folder; remove --out "
                f"{self.results_folder}"
            )
        folder = take_results(self.resume)
        results = layout.open_results(folder, to_write=True)
        catalog.check_fingerprints(layout.read_fingerprints(folder), results.plan)
        if (recorded := layout.read_facts(folder).get("jfr", options.jfr)) != options.jfr:
            raise SpecError(
                f"--resume {folder}: its runs were recorded with --jfr {recorded}, whose CPU cost differs: give --jfr "
                f"{recorded}"
            )
        remaining = campaign.remaining_plan(results)
        campaign.check_netem(results, remaining, options.netem)
        if self.max_runs is not None and results.plan.search is None:
            raise SpecError(f"--max-runs {self.max_runs} applies to searches only, and {folder} is not a search")
        return results, remaining


@app.command(epilog=_EXAMPLES)
@grouped
def run(context: typer.Context, command: RunCommand, is_dry: bool = False) -> int:
    """Run an experiment: measure every cell, and write tables and pictures."""
    if is_dry:
        return _show_plans(command)
    options = command.execution.to_run_options()
    execution, resumed = command.execution, command.open_resumed(options)
    plans = command.build_plans() if resumed is None else [resumed[0].plan]
    remote = worker.parse_workers(context, plans, execution.workers, execution.bind, execution.keys)
    if resumed is not None:
        return _resume(*resumed, command, options, remote)
    return start(plans, command, options, remote)


@app.command("plan")
@grouped
def show_plan(command: RunCommand) -> int:
    """Show what would run, in which order, and for how long. Takes all options of `run`."""
    return _show_plans(command)


def _show_plans(command: RunCommand) -> int:
    resumed = command.open_resumed(command.execution.to_run_options())
    plans = command.build_plans() if resumed is None else [resumed[1]]
    described = [
        (plan, campaign.check_plan(plan), [estimate_run_s(run.cell.load) for run in plan.runs]) for plan in plans
    ]
    if command.output.as_json:
        screen.print_json([_plan_json(*parts) for parts in described])
        return 0
    for parts in described:
        _print_plan(*parts, is_short=command.output.quiet)
    if len(plans) > 1:
        screen.print_text(
            f"{command.measured.experiment}: {_format_total([run_s for *_, seconds in described for run_s in seconds])}"
        )
    screen.print_text("Nothing was started.")
    return 0


@app.command()
def calibrate(
    sets: Annotated[list[str], typer.Option("--set", help="A setting or a factor: bulk=55kB processes=1,4.")] = [],  # noqa: B006 - typer copies it
    results_folder: Annotated[Path, typer.Option("--out", help="The folder for results.")] = layout.RESULTS,
) -> int:
    """Measure how much load this machine can send to a cheap server; later runs warn if they request more."""
    plan, options = spec.build_plan(spec.load_experiment(calibration.EXPERIMENT, sets)), RunOptions()
    campaign.check_machine(plan, options)
    with screen.download_progress() as on_progress:
        campaign.fetch_servers(plan, options, on_progress)
    results = layout.create_results(results_folder, plan, collect_facts())
    with campaign.lock_results(results), screen.RunProgress(len(plan.runs), None, OutputOptions()).show() as progress:
        summaries = campaign.run_missing(results, options, progress)
    rates = calibration.rates_of_runs(plan, summaries)
    if not rates:
        raise RunFailed(f"calibrate: no run was valid; the reasons are in {results.path / layout.SUMMARY}")
    rows = [
        [
            f"{rate.body_bytes / 1000:,.1f} kB",
            str(rate.processes),
            f"{rate.requests_per_s:,.0f}",
            f"{rate.requests_per_s * rate.body_bytes / 1e6:,.0f}",
            f"{rate.cpu_percent:.0f}",
        ]
        for rate in rates
    ]
    screen.print_table(plan.description, ["body", "processes", "requests/s", "MB/s", "CPU of the busiest, %"], rows)
    screen.print_notes(cell_tables.list_notes(summaries))
    if max(rate.cpu_percent for rate in rates) < _BUSY_PERCENT:
        screen.print_text(
            "note: no load process used a full core: the server or other programs were the limit. Calibrate on an idle "
            "machine."
        )
    screen.print_text(f"saved: {calibration.save_rates(rates)}")
    return 0


def _resume(
    results: Results, remaining: Plan, command: RunCommand, options: RunOptions, remote: RemoteWorkers | None
) -> int:
    """Execute the missing runs of a results folder; return the exit code."""
    (notes,) = _prepare([remaining], [results.plan], command, options, remote)
    documents: list[dict[str, Any]] = []
    if command.max_runs is not None:
        with campaign.lock_results(results):
            search_for_max.extend_search(results, command.max_runs)
    with _open_services(command, options, remote) as ready:
        code = _execute(results, ready, notes, command.execution.resume_commands([results]), command.output, documents)
    _print_documents(documents)
    return code


def start(plans: Sequence[Plan], command: RunCommand, options: RunOptions, remote: RemoteWorkers | None = None) -> int:
    """Execute these plans, each in a new folder; return the exit code."""
    folder = command.results_folder or layout.RESULTS
    started = [run.cell for plan in plans for run in plan.runs if not run.cell.target.is_already_running]
    layout.check_writable(folder, by_jvm=bool(started))
    notes = _prepare(plans, plans, command, options, remote)
    with _open_services(command, options, remote) as ready:
        words = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
        facts = {**collect_facts(), "jfr": options.jfr, "command": words}
        folders = [
            layout.create_results(folder, plan, {**facts, "files": catalog.compute_fingerprints(plan)})
            for plan in plans
        ]
        documents: list[dict[str, Any]] = []
        # When one is interrupted, those that have not begun are to be resumed too.
        resumed = [command.execution.resume_commands(folders[at:]) for at, _ in enumerate(folders)]
        codes = [
            _execute(results, ready, notes[at], resumed[at], command.output, documents)
            for at, results in enumerate(folders)
        ]
    _print_documents(documents)
    return max(codes)


def _prepare(
    remaining: Sequence[Plan],
    plans: Sequence[Plan],
    command: RunCommand,
    options: RunOptions,
    remote: RemoteWorkers | None,
) -> Sequence[Sequence[str]]:
    """Download what the runs need and check the machine; return the notes on each plan."""
    with screen.download_progress(to_stderr=command.output.is_silent) as on_progress:
        if command.execution.download:
            campaign.download_corpora(plans, command.output.announce, on_progress)
        worker.check_workers(remote, plans)
        notes = [campaign.check_machine(plan, options) for plan in remaining]
        for plan in remaining:
            campaign.fetch_servers(plan, options, on_progress)
    return notes


@contextlib.contextmanager
def _open_services(command: RunCommand, options: RunOptions, remote: RemoteWorkers | None) -> Iterator[RunOptions]:
    """Start the exporter and wait for workers; yield the options that include them."""
    address = worker.parse_page_address("--prometheus", command.execution.prometheus, 9464)
    is_live = screen.is_live(command.output) or address is not None
    with contextlib.ExitStack() as stack:
        metrics = stack.enter_context(exporter.serve_metrics(address)) if address else None
        fleet = stack.enter_context(roster.open_fleet(remote, command.output.announce)) if remote else None
        yield dataclasses.replace(
            options,
            reports_figures=is_live,
            fleet=fleet if remote and remote.workers else None,
            observers=fleet if remote and remote.observers else None,
            exporter=metrics,
        )


def _execute(
    results: Results,
    options: RunOptions,
    notes: Sequence[str],
    resume_commands: str,
    output: OutputOptions,
    documents: list[dict[str, Any]],
) -> int:
    """Execute the missing runs and print the results, or append them for JSON; return the exit code.

    Interrupted says how to resume.
    """
    # Calibration is about this machine, not about remote workers.
    warnings = [] if options.fleet is not None else calibration.rate_warnings(results.plan, calibration.load_rates())
    for line in (*notes, *warnings):
        output.announce(line)
    try:
        with campaign.lock_results(results):
            with screen.RunProgress(
                campaign.max_runs(results.plan), _mean_run_s(results.plan), output
            ).show() as progress:
                summaries = campaign.run_missing(results, options, progress)
            evaluation.write_report(results, summaries)
        return print_results(results, summaries, output, documents)
    except KeyboardInterrupt:
        raise Interrupted(f"everything that was started is stopped. To resume: {resume_commands}") from None


def _print_documents(documents: Sequence[dict[str, Any]]) -> None:
    """Print the results of all parts of an experiment as one JSON document: a list if there are several."""
    if documents:
        screen.print_json(documents if len(documents) > 1 else documents[0])


def _print_plan(plan: Plan, notes: Sequence[str], seconds: Sequence[float], *, is_short: bool) -> None:
    if not is_short:
        keys = [factor.key for factor in plan.factors]
        rows = [
            [
                *(str(number), *(run.cell.levels[key] for key in keys)),
                f"{run.replicate} with costly probes" if run.instrumented else str(run.replicate),
                _format_estimate(run_s),
            ]
            for number, (run, run_s) in enumerate(zip(plan.runs, seconds, strict=True), 1)
        ]
        screen.print_names(plan.description or plan.experiment, describe_plan(plan))
        screen.print_table("", ["#", *keys, "replicate", "about"], rows)
        for line in notes:
            screen.print_text(line)
    screen.print_text(f"{plan.experiment}: {_format_total(seconds)}")


def _plan_json(plan: Plan, notes: Sequence[str], seconds: Sequence[float]) -> dict[str, Any]:
    runs = [
        {"run": run.id, "levels": run.cell.levels, "instrumented": run.instrumented, "about_s": run_s or None}
        for run, run_s in zip(plan.runs, seconds, strict=True)
    ]
    return {"experiment": plan.experiment, "settings": dict(describe_plan(plan)), "notes": list(notes), "runs": runs}


def _format_total(seconds: Sequence[float]) -> str:
    total = f"about {_format_estimate(sum(seconds))}" if all(seconds) else "as long as their documents take"
    return f"{format_count(len(seconds), 'run')}, {total}."


def describe_plan(plan: Plan) -> list[tuple[str, str]]:
    """Return settings such as "users" with their value, or with all values ("4 / 8") where cells differ."""
    values: dict[str, list[str]] = {}
    # Runs are in random order, levels in the order of the experiment.
    places = {factor.key: {level: at for at, level in enumerate(factor.levels)} for factor in plan.factors}
    cells = sorted(campaign.unique_cells(plan), key=lambda cell: [places[key][cell.levels[key]] for key in places])
    for cell in cells:
        for name, text in _describe_cell(cell):
            values.setdefault(name, []).append(text)
    rows = []
    for name, texts in values.items():
        different = list(dict.fromkeys(texts))
        more = [f"{len(different) - _MAX_NAMED} more"] if len(different) > _MAX_NAMED else []
        rows.append((name, " / ".join([*different[:_MAX_NAMED], *more])))
    return rows


def _describe_cell(cell: Cell) -> Iterator[tuple[str, str]]:
    target, load = cell.target, cell.load
    if target.is_already_running:
        yield "server", target.location
    else:
        version = target.version or targets.resolve(target).default_version
        nodes = f", {target.nodes} nodes" if target.nodes > 1 else ""
        yield "server", f"{target.name} {version}".rstrip() + nodes
        yield "heap", format_bytes(target.heap_bytes)
    yield "network", "unchanged" if cell.network is None else cell.network.name
    yield "workload", summary.workload_name(cell)
    if load.track is None:
        yield from _describe_load(load)
    yield "probes", ", ".join(cell.probes) or "none"


def _describe_load(load: LoadOptions) -> Iterator[tuple[str, str]]:
    workload = catalog.load_workload(load.workload)
    if load.documents is not None:
        file = corpus.check_corpus(Path(load.documents), is_text=load.text_lines)
        if not file.has_action_lines:
            yield "index", f"{corpus.index_name(file.path)} (mapping: {load.mapping or 'dynamic'})"
    yield "users", f"{load.users or workload.users:,}"
    documents = f"{load.bulk_documents or workload.bulk_documents:,} documents"
    yield "bulk", f"at most {format_bytes(load.bulk_bytes)}" if load.bulk_bytes is not None else documents
    yield "warm-up", load.warm_up_ns if isinstance(load.warm_up_ns, str) else format_time(load.warm_up_ns)
    most = load.measure_documents
    yield "measured", format_time(load.measure_ns) if most is None else f"{most:,} documents"


def _format_estimate(seconds: float) -> str:
    return screen.format_duration(seconds) if seconds else "?"


def _mean_run_s(plan: Plan) -> float | None:
    """Estimate the mean duration of a run; None where it, or the number of runs, is unknown."""
    seconds = [estimate_run_s(run.cell.load) for run in plan.runs]
    return statistics.fmean(seconds) if all(seconds) and plan.search is None else None


def estimate_run_s(load: LoadOptions) -> float:
    """Estimate the duration of a run; 0 where it is unknown: a track and a number of documents are sent once."""
    if load.track or load.measure_documents:
        return 0
    return (load.max_warm_up_ns + load.measure_ns) / 1e9 + _OVERHEAD_S
