"""An experiment from its plan to its results: checks of the machine, each run, and summaries after each run.

Every result is written at once: Ctrl-C or a crash loses only the current run.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from ingest_bench import probes, targets
from ingest_bench.analysis.compare import cells
from ingest_bench.analysis.run.columns import COLUMNS
from ingest_bench.documents import corpus_download, synthetic
from ingest_bench.documents.tracks import reader
from ingest_bench.errors import SpecError
from ingest_bench.experiment import catalog
from ingest_bench.faults import checks
from ingest_bench.host import cpu, node_resources, settings
from ingest_bench.inputs.names import check_name
from ingest_bench.jvm import options as jvm_options
from ingest_bench.jvm.artifacts import Progress as DownloadProgress
from ingest_bench.jvm.attach import find_reader
from ingest_bench.lab import bisection, evaluation, find_max, link_watch, planning, runner
from ingest_bench.lab.planning import Procedure
from ingest_bench.lab.server import borrowed, reach, running_server
from ingest_bench.load.supervisor import Progress
from ingest_bench.model.experiment import Cell, Plan, Run, RunState, SkippedCell
from ingest_bench.model.network import LinkName, Profile
from ingest_bench.model.results import RunRecord, Summary
from ingest_bench.network.act import link as links_module
from ingest_bench.probes import recording
from ingest_bench.results.facts import memory_bytes
from ingest_bench.results.layout import Results
from ingest_bench.units import format_bytes

_DONE_STATES: frozenset[RunState] = frozenset({"measured", "oom", "aborted", "invalid"})


class ProgressListener(Protocol):
    """Receiver of the progress of an experiment."""

    def begin_run(self, number: int, name: str, remaining: int) -> None:
        """Show that a run begins, the first of *remaining*."""

    def begin_phase(self, name: str) -> None:
        """Show that a phase of the run begins."""

    def update(self, progress: Progress) -> None:
        """Show the progress of the load."""

    def end_run(self, message: str) -> None:
        """Show the result of the run."""


def check_machine(plan: Plan, options: runner.RunOptions) -> tuple[str, ...]:
    """Return the messages of `check_plan`; MissingCapability (exit 4) if this machine cannot execute the plan."""
    if options.allow_delete and not any(cell.load.track for cell in unique_cells(plan)):
        raise SpecError("--allow-delete requires --track DIR: only a track deletes indices")
    messages = check_plan(plan, options)
    links: list[Mapping[LinkName, tuple[Profile, ...]]] = []
    for cell in unique_cells(plan):
        if cell.target.is_already_running:
            if cell.target.attach:
                probes.require_probes(cell.probes)
            elif options.is_profiling and not cell.target.watchers:
                raise SpecError(
                    f"--jfr profile: cannot record in the JVM at {cell.target.url} by its URL. If it runs on this "
                    "machine, add --attach PID; otherwise remove --jfr."
                )
            messages += _check_running_server(cell, options)
            continue
        start = cell.target.custom and cell.target.custom.start
        jvm_options.refuse_commands((*cell.target.jvm, *(start.jvm if start else ())))
        settings.require_settings(cell.host)
        node_resources.require_resources(checks.list_needs(cell))
        probes.require_probes(cell.probes)
        states = checks.list_link_profiles(cell)
        if states not in links:
            links_module.require_links(states, options.netem)
            links.append(states)
    return tuple(dict.fromkeys(messages))


def remaining_plan(results: Results) -> Plan:
    """Return the plan with only the runs that are not done; of a search the plan itself: its next step is unknown."""
    plan = results.plan
    if plan.search or plan.bisection:
        return plan
    done = _done(results)
    return dataclasses.replace(plan, runs=tuple(run for run in plan.runs if run.id not in done))


def check_netem(results: Results, remaining: Plan, netem: str) -> None:
    """Raise SpecError if another netem backend would shape the links of remaining runs than those of finished ones."""
    launched = [cell for cell in unique_cells(remaining) if not cell.target.is_already_running]
    states = [state for cell in launched for group in checks.list_link_profiles(cell).values() for state in group]
    if not any(state.needs_netem for state in states):
        return
    cells = {run.id: run.cell for run in results.plan.runs}
    done = {run: record.netem_backend for run, record in _done(results).items() if record.netem_backend}
    used = set(", ".join(done.values()).split(", ")) - {"", "plain"}
    suggestion = used.pop() if len(used) == 1 else "auto"
    # One run per cell and backend is enough.
    for run, before in {(cells[run].name, before): (run, before) for run, before in done.items()}.values():
        if (now := links_module.choose_backends(checks.list_link_profiles(cells[run]), netem)) != before:
            remedy = f"Set --netem {suggestion}" if suggestion != netem else "Start a new experiment without --resume"
            raise SpecError(
                f"--resume {results.path}: the links of {run} were shaped by netem {before}, those of the remaining "
                f"runs would be by {now}. {remedy}."
            )


def _done(results: Results) -> dict[str, RunRecord]:
    return {run: record for run, record in results.read_records().items() if record.state in _DONE_STATES}


def _check_running_server(cell: Cell, options: runner.RunOptions) -> tuple[str, ...]:
    """Return notes on a server that is already running; SpecError if it is unsuitable or has the run's indices."""
    with running_server.reach_server(cell.target, options.java_home) as server:
        cell = dataclasses.replace(cell, target=server.options)
        procedure = planning.build_procedure(
            cell, server.address, Path(), may_delete=options.allow_delete, target=server.target
        )
        borrowed.check_conflicts(server, procedure)
        if not cell.target.is_shaped_remotely:
            reach.check_interface(cell, server.address, server.enter)
        return tuple(f"note: {note}" for note in server.notes)


def check_plan(plan: Plan, options: runner.RunOptions | None = None) -> tuple[str, ...]:
    """Return messages about skipped or changed parts of the plan.

    SpecError (exit 2) for a plan that cannot work on any machine, or not with this machine's memory.
    """
    names = [column.name for column in COLUMNS]
    check_name(plan.headline, names, f'headline: unknown column "{plan.headline}"', "docs/columns.md")
    lines = dict.fromkeys(f"left out: {skipped.cell}: {skipped.reason}" for skipped in plan.skipped_cells)
    for cell in unique_cells(plan):
        probes.select_probes(cell.probes)
        checks.check_faults(cell)
        if not cell.target.is_already_running:
            targets.resolve(cell.target).requirements(cell.target)
            heap, memory = cell.target.heap_bytes, memory_bytes()
            if heap > memory:
                raise SpecError(f"heap {format_bytes(heap)} exceeds this machine's memory, {format_bytes(memory)}")
        # Without options nothing is executed.
        may_delete = options is None or options.allow_delete or not cell.target.is_already_running
        procedure = planning.check_procedure(cell, may_delete=may_delete)
        if reason := _inapplicable(cell, procedure):
            raise SpecError(reason)
        lines |= dict.fromkeys(f"skipped: {name}" for name in procedure.skipped)
        lines |= dict.fromkeys(f"note: {note}" for note in procedure.notes)
    loads = [cell.load for cell in unique_cells(plan)]
    for name in dict.fromkeys(load.workload for load in loads if load.track is None and load.documents is None):
        synthetic.check_workload(catalog.load_workload(name))
    return tuple(lines)


def drop_inapplicable_cells(plan: Plan) -> Plan:
    """Return the plan with cells whose fault their server cannot have as skipped cells; SpecError if none remains."""
    skipped = {
        cell.name: SkippedCell(cell=cell.name, levels=cell.levels, reason=reason)
        for cell in unique_cells(plan)
        if cell.faults and (reason := _inapplicable(cell, planning.check_procedure(cell)))
    }
    runs = tuple(run for run in plan.runs if run.cell.name not in skipped)
    if not runs:
        raise SpecError(next(iter(skipped.values())).reason)
    return dataclasses.replace(plan, runs=runs, skipped_cells=tuple(skipped.values()))


def _inapplicable(cell: Cell, procedure: Procedure) -> str:
    protocols = {plan.wire.protocol for plan in procedure.plans}
    target = targets.resolve(cell.target)
    return checks.find_unsupported_fault(
        cell, protocols, is_persistent=target.is_persistent, can_flush=target.flush is not None
    )


def fetch_servers(plan: Plan, options: runner.RunOptions, show: DownloadProgress) -> None:
    """Fill the cache with every server and JDK that the plan needs, before the first run.

    MissingCapability if a JDK lacks the profiling settings that *options* require.
    """
    for cell in unique_cells(plan):
        if cell.target.attach:
            jvms = reach.attach_jvms(cell.target, options.java_home)
            recording.reader_command(find_reader([jvm.java_version for jvm in jvms], options.java_home))
            homes = [jvm.jcmd.parent.parent for jvm in jvms]
        elif cell.target.is_already_running:
            continue
        else:
            jdk = targets.fetch(targets.resolve(cell.target).requirements(cell.target), options.java_home, show)
            recording.reader_command(jdk)
            homes = [jdk.home]
        for home in homes if options.is_profiling else ():
            recording.format_settings({}, recording.profile_path(home))


def download_corpora(plans: Sequence[Plan], announce: Callable[[str], None], show: DownloadProgress) -> None:
    """Download the missing corpora of the plans' tracks, after announcing their size."""
    options = [cell.load.track for plan in plans for cell in unique_cells(plan)]
    all_tracks = [planning.read_track(track) for track in options if track is not None]
    if not all_tracks:
        raise SpecError("--download requires --track DIR")
    missing = {file.path: file for track in all_tracks for file in reader.missing_files(track)}
    files = corpus_download.check_urls(list(missing.values()))
    if files:
        announce(corpus_download.describe_download(files))
    for file in files:
        corpus_download.download_file(file, show)


def unique_cells(plan: Plan) -> Iterator[Cell]:
    """Yield each cell of the plan once, and once more with costly probes."""
    return iter({(run.cell.name, run.instrumented): run.cell for run in plan.runs}.values())


@contextlib.contextmanager
def lock_results(results: Results) -> Iterator[None]:
    """Lock the results, and announce the experiment on this machine; SpecError if another process has locked them."""
    with results.lock(), cpu.announce_experiment(results.path):
        yield


def run_missing(results: Results, options: runner.RunOptions, listener: ProgressListener) -> list[Summary]:
    """Execute all runs that are not done; return the summaries of all runs. Tables are updated after each run."""
    plan, done = results.plan, set(_done(results))
    # Skip repeated runs: they may have left incomplete files.
    finished = evaluation.summarise_runs(results, options.java_home, _DONE_STATES)
    summaries = {summary.run: summary for summary in finished}

    def next_run() -> Run | None:
        if plan.search is not None:
            return find_max.next_run(results, summaries, done)
        if plan.bisection is not None:
            return bisection.next_run(results, summaries, done)
        return next((run for run in plan.runs if run.id not in done), None)

    while planned := next_run():
        title = f"{planned.id} ({planned.step})" if planned.step else planned.id
        listener.begin_run(len(done) + 1, title, remaining=max_runs(plan) - len(done))
        summaries[planned.id] = run_once(results, planned, options, listener)
        # A failed run counts as done until --resume repeats it.
        done.add(planned.id)
        evaluation.write_tables(results, list(summaries.values()))
    return cells.in_factor_order(summaries.values(), results.plan.factors)


def max_runs(plan: Plan) -> int:
    """Return the maximum number of runs; of a bisection that without undecided and skipped releases."""
    return bisection.max_runs(plan.bisection) if plan.bisection else find_max.max_runs(plan)


def run_once(results: Results, planned: Run, options: runner.RunOptions, listener: ProgressListener) -> Summary:
    """Execute one run and return its summary."""
    folder = results.run_folder(planned)
    record = runner.run(planned, folder, options, on_phase=listener.begin_phase, on_progress=listener.update)
    listener.begin_phase("analysis")
    summary = evaluation.summarise_run(results.plan, planned, folder, record, options.java_home)
    link_watch.drop_last_frames(folder, planned.cell.target.node_count, summary.state)
    listener.end_run(_describe_result(record, summary))
    return summary


def _describe_result(record: RunRecord, summary: Summary) -> str:
    if summary.state != "measured":
        # The complete reason is printed at the end, with all others.
        return f"{summary.state}: {summary.reason}".partition("\n")[0].partition(". ")[0]
    rate, mean, pauses = (summary.values.get(name) for name in ("docs_per_s_mean", "read_bytes_mean", "gc_pauses"))
    parts = [f"{rate:,.0f} docs/s"] if isinstance(rate, (int, float)) else []
    parts += [f"{mean:,.0f} bytes per read"] if isinstance(mean, (int, float)) else []
    parts += [f"{pauses} GC pauses"] if pauses is not None else []
    seconds = sum(phase.seconds for phase in record.phases)
    return f"{', '.join(parts)} ({seconds:.0f} s)"
