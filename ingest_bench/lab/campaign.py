"""An experiment from its plan to its results: preflight, each run, the summaries after each.

Every result is written as soon as it is there: Ctrl-C or a crash costs the run that was under way, and no other.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from ingest_bench import probes, targets
from ingest_bench.analysis.compare import cells
from ingest_bench.documents import synthetic, tracks
from ingest_bench.errors import SpecError
from ingest_bench.experiment import catalog
from ingest_bench.faults import checks
from ingest_bench.host import node_resources, others, settings
from ingest_bench.jvm import options as jvm_options
from ingest_bench.jvm.artifacts import Progress as Download
from ingest_bench.jvm.attach import reader
from ingest_bench.lab import evaluation, runner, steps, wires
from ingest_bench.lab.server import attaching, borrowed, real_path, running_server
from ingest_bench.lab.steps import downloads, parts, track_steps
from ingest_bench.load.supervisor import Progress
from ingest_bench.model.experiment import Cell, LeftOut, Plan, Run, RunState
from ingest_bench.model.network import LinkName, Profile
from ingest_bench.model.results import RunRecord, Summary
from ingest_bench.network.act import links as links_module
from ingest_bench.probes import recording
from ingest_bench.results.facts import memory_bytes
from ingest_bench.results.layout import Results
from ingest_bench.units import format_bytes

DONE: frozenset[RunState] = frozenset({"measured", "oom", "aborted", "invalid"})


class Watcher(Protocol):
    """Whoever wants to know how far it is."""

    def begin(self, number: int, name: str, left: int) -> None:
        """A run begins, the first of so many that are left."""

    def stage(self, name: str) -> None:
        """A stage of the run begins."""

    def load(self, seen: Progress) -> None:
        """The load says how far it is."""

    def end(self, said: str) -> None:
        """A run ended."""


def preflight(plan: Plan, options: runner.RunOptions) -> tuple[str, ...]:
    """What `check` says; MissingCapability (exit 4) for what this machine cannot do, before anything starts."""
    told = check(plan, options)
    links: list[Mapping[LinkName, tuple[Profile, ...]]] = []
    for cell in unique_cells(plan):
        if cell.target.runs_already:
            if cell.target.attach is not None:
                probes.require(cell.probes)
            elif options.profiles:
                raise SpecError(
                    f"--jfr profile: nobody can record in the JVM at {cell.target.url} from outside; where it runs on "
                    "this machine give --attach PID, too, or else leave --jfr out"
                )
            told += _reach(cell, options)
            continue
        start = cell.target.server and cell.target.server.start
        jvm_options.refuse_commands((*cell.target.jvm, *(start.jvm if start else ())))
        settings.require(cell.host)
        node_resources.require(checks.needs(cell))
        probes.require(cell.probes)
        states = checks.states(cell)
        if states not in links:
            links_module.require(states, options.netem)
            links.append(states)
    return tuple(dict.fromkeys(told))


def left(results: Results) -> Plan:
    """The plan with those runs alone that are not done; that of a search as it is, for nobody knows its next step."""
    plan = results.plan
    if plan.search is not None:
        return plan
    done = _done(results)
    return dataclasses.replace(plan, runs=tuple(run for run in plan.runs if run.id not in done))


def check_netem(results: Results, left: Plan, netem: str) -> None:
    """SpecError where what shaped the links of a run that is done is not what would shape them now.

    Without netem in any run that is left nothing is shaped otherwise.
    """
    if not any(state.needs_netem for cell in unique_cells(left) for state in _link_states(cell)):
        return
    cells = {run.id: run.cell for run in results.plan.runs}
    done = {run: record.netem_backend for run, record in _done(results).items() if record.netem_backend}
    used = set(", ".join(done.values()).split(", ")) - {"", "plain"}
    again = used.pop() if len(used) == 1 else "auto"
    # Of the runs of a cell that were shaped alike one speaks for all.
    for run, before in {(cells[run].name, before): (run, before) for run, before in done.items()}.values():
        if (now := links_module.backend(checks.states(cells[run]), netem)) != before:
            remedy = f"give --netem {again}" if again != netem else "no --netem does both; begin anew, without --resume"
            raise SpecError(
                f"--resume {results.path}: the links of {run} were shaped by netem {before}, and those of others would "
                f"be by {now}: {remedy}"
            )


def _link_states(cell: Cell) -> Iterator[Profile]:
    if not cell.target.runs_already:
        for states in checks.states(cell).values():
            yield from states


def _done(results: Results) -> dict[str, RunRecord]:
    return {run: record for run, record in results.records().items() if record.state in DONE}


def _reach(cell: Cell, options: runner.RunOptions) -> tuple[str, ...]:
    """What is to know of a server that runs already; SpecError when it is not one, or has indices of these names."""
    with running_server.reached(cell.target, options.java_home) as server:
        cell = dataclasses.replace(cell, target=server.asked)
        to_do = steps.of(cell, server.place, Path(), may_delete=options.allow_delete, target=server.target)
        borrowed.check(server, to_do)
        real_path.check(cell, server.place, server.enter)
        return tuple(f"note: {note}" for note in server.notes)


def check(plan: Plan, options: runner.RunOptions | None = None) -> tuple[str, ...]:
    """What the user should know: what is not done, or done in another way than it is written.

    SpecError (exit 2) for a plan that cannot be carried out by anybody, or not with this machine's memory.
    """
    lines = dict.fromkeys(f"left out: {each.cell}: {each.reason}" for each in plan.left_out)
    for cell in unique_cells(plan):
        probes.chosen(cell.probes)
        checks.check(cell)
        if not cell.target.runs_already:
            targets.of(cell.target).requirements(cell.target)
            _fits(cell)
        # Without options nothing is carried out.
        allowed = options is None or options.allow_delete
        to_do = steps.check(cell, may_delete=allowed or not cell.target.runs_already)
        if reason := _inapplicable(cell, to_do):
            raise SpecError(reason)
        lines |= dict.fromkeys(f"skipped: {name}" for name in to_do.skipped)
        lines |= dict.fromkeys(f"note: {note}" for note in to_do.notes)
    loads = [cell.load for cell in unique_cells(plan)]
    for name in dict.fromkeys(load.workload for load in loads if load.track is None and load.documents is None):
        synthetic.check(catalog.workload(name))
    return tuple(lines)


def applicable(plan: Plan) -> Plan:
    """The plan without cells whose fault cannot happen to their server; it names them, each with its reason.

    SpecError where no cell is left.
    """
    found = {
        cell.name: LeftOut(cell=cell.name, levels=cell.levels, reason=reason)
        for cell in unique_cells(plan)
        if cell.faults and (reason := _inapplicable(cell, steps.check(cell)))
    }
    runs = tuple(run for run in plan.runs if run.cell.name not in found)
    if not runs:
        raise SpecError(next(iter(found.values())).reason)
    return dataclasses.replace(plan, runs=runs, left_out=tuple(found.values()))


def _inapplicable(cell: Cell, to_do: parts.Procedure) -> str:
    protocols = {one.plan.wire.protocol for part in to_do.parts for one in parts.sends(part)}
    target = targets.of(cell.target)
    return checks.inapplicable(cell, protocols, keeps_files=target.keeps_files, can_flush=target.flush is not None)


def fetch(plan: Plan, options: runner.RunOptions, tell: Download) -> None:
    """Fill the cache with every server and JDK that the plan needs, before the first run.

    MissingCapability where one of these has no settings for profiling and `options` ask for it.
    """
    for cell in unique_cells(plan):
        if cell.target.attach is not None:
            jvm = attaching.jvm_of(cell.target, options.java_home)
            recording.reader(reader(jvm, options.java_home))
            home = jvm.jcmd.parent.parent
        elif cell.target.runs_already:
            continue
        else:
            jdk = targets.fetch(targets.of(cell.target).requirements(cell.target), options.java_home, tell)
            recording.reader(jdk)
            home = jdk.home
        if options.profiles:
            recording.settings({}, recording.profile(home))


def download(plans: Sequence[Plan], say: Callable[[str], None], tell: Download) -> None:
    """The corpora of the plans' tracks are in the cache or beside the track; their size is said first."""
    chosen = [cell.load.track for plan in plans for cell in unique_cells(plan)]
    found = [track_steps.read(choice) for choice in chosen if choice is not None]
    if not found:
        raise SpecError("--download is for the corpora of a track: which one? --track DIR")
    absent = {file.path: file for one in found for file in tracks.missing(one)}
    files = downloads.missing(list(absent.values()))
    if files:
        say(downloads.announcement(files))
    for file in files:
        downloads.fetch(file, tell)


def unique_cells(plan: Plan) -> Iterator[Cell]:
    """Each cell of the plan once, and once more with costly probes."""
    return iter({(run.cell.name, run.instrumented): run.cell for run in plan.runs}.values())


@contextlib.contextmanager
def taken(results: Results) -> Iterator[None]:
    """Nobody else carries out these runs meanwhile, and whoever measures on this machine sees that somebody does.

    SpecError when somebody carries them out already.
    """
    with results.held(), others.marked(results.path):
        yield


def carry_out(results: Results, options: runner.RunOptions, watcher: Watcher) -> list[Summary]:
    """The summaries of all runs, after doing each one that was not done yet; tables and pictures are up to date."""
    plan = results.plan
    done = _done(results)
    # A run that is done anew may have left anything: half a file, too.
    found = {summary.run: summary for summary in evaluation.summaries(results, options.java_home, DONE)}
    missing = [(number, run) for number, run in enumerate(plan.runs, 1) if run.id not in done]
    for at, (number, planned) in enumerate(missing):
        watcher.begin(number, planned.id, left=len(missing) - at)
        found[planned.id] = one(results, planned, options, watcher)
        evaluation.write_tables(results, list(found.values()))
    return cells.in_order(found.values(), plan.factors)


def one(results: Results, planned: Run, options: runner.RunOptions, watcher: Watcher) -> Summary:
    """The summary of one run, after doing it."""
    folder = results.run(planned)
    record = runner.run(planned, folder, options, on_stage=watcher.stage, on_progress=watcher.load)
    watcher.stage("analysis")
    summary = evaluation.run_summary(results.plan, planned, folder, record, options.java_home)
    wires.forget(folder, planned.cell.target.nodes, summary.state)
    watcher.end(_said(record, summary))
    return summary


def _fits(cell: Cell) -> None:
    heap, memory = cell.target.heap_bytes, memory_bytes()
    if heap > memory:
        raise SpecError(f"heap {format_bytes(heap)} is larger than this machine's memory, {format_bytes(memory)}")


def _said(record: RunRecord, summary: Summary) -> str:
    seconds = sum(stage.seconds for stage in record.stages)
    if summary.state != "measured":
        # What a log says follows at the end, with all other reasons.
        return "\n".join(f"{summary.state}: {summary.reason}".splitlines()[:1])
    rate, mean, pauses = (summary.values.get(name) for name in ("docs_per_s_mean", "read_bytes_mean", "gc_pauses"))
    shown = [f"{rate:,.0f} docs/s"] if isinstance(rate, (int, float)) else []
    shown += [f"{mean:,.0f} bytes a read"] if isinstance(mean, (int, float)) else []
    shown += [f"{pauses} GC pauses"] if pauses is not None else []
    return f"{', '.join(shown)} ({seconds:.0f} s)"
