"""One run, top to bottom: server, index, probes, load, counting, teardown.

Everything that a run starts hangs on one stack of contexts; leaving it, by whatever way, takes all of it down again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from ingest_bench import probes
from ingest_bench.analysis.run import summary
from ingest_bench.errors import InvalidRun, RunAborted, RunFailed
from ingest_bench.faults import stage as faults_stage
from ingest_bench.faults import timeline
from ingest_bench.host import others
from ingest_bench.lab import earlier, fault_stage, steps, why_failed, window, wires
from ingest_bench.lab.first_load import FirstLoad
from ingest_bench.lab.server import borrowed, running_server
from ingest_bench.lab.server.running_server import RunningServer
from ingest_bench.lab.stages import Stages
from ingest_bench.lab.steps.parts import Procedure
from ingest_bench.load import supervisor, together
from ingest_bench.load.fleet import roster
from ingest_bench.load.fleet.roster import Fleet
from ingest_bench.load.live.exporter import Exporter
from ingest_bench.load.plan import LoadPlan
from ingest_bench.load.supervisor import LoadProcess, Progress
from ingest_bench.model.experiment import Cell, Run
from ingest_bench.model.load import WorkerReport
from ingest_bench.model.results import Happened, RunRecord
from ingest_bench.model.target import Endpoint
from ingest_bench.probes import recording
from ingest_bench.probes.oom import OutOfMemory
from ingest_bench.results.run_folder import RunFolder

NetemBackend = Literal["auto", "kernel", "uml"]
JfrSettings = Literal["default", "profile"]
_PROFILED = (
    "the flight recorder recorded for profiling, too (--jfr profile): nobody measured what that costs the server"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What the user chose about how runs are carried out, not about what they measure."""

    netem: NetemBackend = "auto"
    java_home: Path | None = None
    allow_delete: bool = False
    """A track may delete the indices that it declares, also on a server that is not ours."""
    last_frames: bool = False
    """Keep the headers of the last frames of each run that does not go well."""
    jfr: JfrSettings = "default"
    """What the flight recorder records: what the probes need, or beside it what the JDK does for profiling."""
    fleet: Fleet | None = None
    """Workers on other machines that send the loads; None: processes of our own do."""
    locust_web: Endpoint | None = None
    """Where Locust's page shows the loads of our own processes."""
    exporter: Exporter | None = None
    """Where a dashboard gets the figures of each run; None: nowhere."""

    @property
    def profiles(self) -> bool:
        """Whether the flight recorder records for profiling, too."""
        return self.jfr == "profile"


def run(
    planned: Run,
    folder: RunFolder,
    options: RunOptions,
    *,
    on_stage: Callable[[str], None],
    on_progress: Callable[[Progress], None],
) -> RunRecord:
    """The record of a run that was carried out, as it is in its folder. Only Ctrl-C and errors of the program raise."""
    folder.create()
    stages = Stages(on_stage)
    record = RunRecord(
        run=planned.id,
        replicate=planned.replicate,
        cell=planned.cell.name,
        levels=planned.cell.levels,
        instrumented=planned.instrumented,
        state="started",
        started_utc=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    folder.write(record)
    if options.exporter is not None:
        options.exporter.begin(run=planned.id, cell=planned.cell.name, workload=summary.sent(planned.cell))
    seen = others.Shared()
    try:
        with others.watched(all_ours=not planned.cell.target.runs_already and options.fleet is None) as seen:
            record = _carry_out(planned, folder, options, record, stages, on_progress)
    except InvalidRun as error:
        record = dataclasses.replace(record, state="invalid", reason=str(error))
    except RunFailed as error:
        record = dataclasses.replace(record, state="failed", reason=str(error))
    finally:
        # After Ctrl-C too.
        folder.remove_homes()
        not_kept = folder.keep_jvm_files()
    notes = (*record.notes, *not_kept, *seen.notes, *([_PROFILED] if options.profiles else []))
    record = dataclasses.replace(record, stages=tuple(stages.done), files=folder.marks(), notes=notes)
    folder.write(record)
    return record


def _carry_out(
    planned: Run,
    folder: RunFolder,
    options: RunOptions,
    record: RunRecord,
    stages: Stages,
    on_progress: Callable[[Progress], None],
) -> RunRecord:
    # No other run has it: what carries it was made by this one.
    mark = f"{planned.id} {record.started_utc} {uuid.uuid4().hex}"
    happened: list[Happened] = []
    if planned.cell.target.earlier_documents:
        with stages.stage("earlier run"):
            earlier.leave(planned.cell, folder, netem=options.netem, java_home=options.java_home)
    with contextlib.ExitStack() as stack:
        fleet = options.fleet or stack.enter_context(roster.local(folder.load, options.locust_web))
        first = FirstLoad(planned.cell, folder.load, fleet, tells_figures=options.exporter is not None)
        server = stack.enter_context(
            running_server.opened(
                planned.cell,
                folder,
                stages.stage,
                lambda jdk, raw: probes.jvm_options(
                    planned.cell.probes, raw, jdk.version, recording.profile(jdk.home) if options.profiles else None
                ),
                netem=options.netem,
                java_home=options.java_home,
                profiles=options.profiles,
                beside=first.prepared,
            )
        )
        cell = dataclasses.replace(planned.cell, target=server.asked)
        try:
            to_do = first.procedure or steps.of(
                cell,
                server.place,
                folder.load,
                may_delete=options.allow_delete,
                mark=mark,
                target=server.target,
            )
            record = _known(record, server, to_do)
            with borrowed.removed(server, to_do, mark) as counted_before:
                earlier.check(cell, to_do, counted_before)
                with (
                    fault_stage.hit_by_faults(cell.faults, server, folder, to_do.indices) as stage,
                    server.vantage.watch(
                        probes.chosen(cell.probes),
                        [node.raw for node in folder.nodes(len(server.nodes))],
                        steps.longest_s(to_do),
                    ),
                    wires.watched(server.links, folder, keeps_last=options.last_frames),
                ):
                    send = functools.partial(
                        _load,
                        server=server,
                        to_do=to_do,
                        fleet=fleet,
                        first=first,
                        exporter=options.exporter,
                        stage=stage,
                        cell=cell,
                        on_progress=on_progress,
                        happened=happened,
                    )
                    ask = functools.partial(server.target.ask, server.http)
                    steps.carry_out(to_do, ask, send, stages.stage, folder.load)
                with stages.stage("count"):
                    record = _survived(_counted(record, server, to_do, counted_before, folder), folder, server)
        except RunAborted as error:
            record = _aborted(record, folder, server, error)
            return dataclasses.replace(record, faults=tuple(happened), **window.fields(folder, cell))
        except RunFailed as error:
            record = _broken(record, cell, folder, server, error)
            return dataclasses.replace(record, faults=tuple(happened))
        finally:
            with stages.stage("stop"):
                stack.close()
    return dataclasses.replace(record, state="measured", faults=tuple(happened), **window.fields(folder, planned.cell))


def _known(record: RunRecord, server: RunningServer, to_do: Procedure) -> RunRecord:
    """With what is known before the load starts."""
    return dataclasses.replace(
        record,
        promises=server.promises,
        netem_backend=server.links.backend if server.links else "",
        server=server.told,
        host=server.host,
        skipped=to_do.skipped,
        notes=(*server.notes, *to_do.notes),
    )


def _counted(
    record: RunRecord, server: RunningServer, to_do: Procedure, before: int | None, folder: RunFolder
) -> RunRecord:
    """With what server and link say after the load. A server that ran before has counted for others too."""
    after = server.count(to_do.indices)
    counters = server.target.counters(server.nodes) if server.is_ours else {}
    folder.keep_delivered((server.is_ours and server.target.read_back(server.nodes)) or ())
    return dataclasses.replace(
        record,
        documents_counted=None if before is None or after is None else after - before,
        counters=counters,
        **wires.counted(server, folder),
    )


def _load(
    sending: Sequence[LoadPlan],
    ends_all: Sequence[bool],
    *,
    server: RunningServer,
    to_do: Procedure,
    fleet: Fleet,
    first: FirstLoad,
    exporter: Exporter | None,
    stage: faults_stage.Stage,
    cell: Cell,
    on_progress: Callable[[Progress], None],
    happened: list[Happened],
) -> Sequence[WorkerReport]:
    """The loads' reports; the faults that happened during the only one are added to `happened`."""
    borrowed.check_made(server, to_do)
    if exporter is not None:
        exporter.begin_load()

    def show(progress: Progress) -> None:
        on_progress(progress)
        if exporter is not None:
            exporter.show(progress)

    tells_figures = exporter is not None
    with contextlib.ExitStack() as stack:
        if len(sending) > 1:
            # Each has a master of its own: a fleet does one load after the other.
            senders = [_started(one, server, None, stack, tells_figures) for one in sending]
            return together.wait(senders, ends_all, show)
        sender = first.taken() or _started(sending[0], server, fleet, stack, tells_figures)
        stack.callback(sender.stop)
        seen = None
        try:
            with timeline.happening(cell.faults, stage, lambda: sender.measure_start_ns, cell.load) as seen:
                return [sender.wait(show)]
        finally:
            happened += seen.records if seen is not None else ()


def _started(
    sending: LoadPlan, server: RunningServer, fleet: Fleet | None, stack: contextlib.ExitStack, tells_figures: bool
) -> LoadProcess:
    sender = supervisor.start(sending, server.enter, fleet, tells_figures=tells_figures)
    stack.callback(sender.stop)
    return sender


def _broken(record: RunRecord, cell: Cell, folder: RunFolder, server: RunningServer, error: RunFailed) -> RunRecord:
    """A run that ended early: an OutOfMemoryError is a result, everything else is a failure that says why."""
    found = why_failed.out_of_memory(folder, server, lived_on=not server.ended())
    if found is not None:
        return dataclasses.replace(
            _out_of_memory(record, found), state="oom", **window.fields(folder, cell, until_ns=found.at_ns)
        )
    return dataclasses.replace(record, state="failed", reason=why_failed.reason(folder, server, error))


def _aborted(record: RunRecord, folder: RunFolder, server: RunningServer, error: RunAborted) -> RunRecord:
    """A run that was given up, with the OutOfMemoryError that its server survived until then."""
    record = _survived(record, folder, server)
    had = f"; the server had an OutOfMemoryError: {record.reason}" if record.out_of_memory else ""
    return dataclasses.replace(record, state="aborted", reason=f"{error}{had}")


def _survived(record: RunRecord, folder: RunFolder, server: RunningServer) -> RunRecord:
    """With the OutOfMemoryError of a server that lives on, where it had one."""
    found = why_failed.out_of_memory(folder, server, lived_on=True)
    return record if found is None else _out_of_memory(record, found)


def _out_of_memory(record: RunRecord, found: OutOfMemory) -> RunRecord:
    return dataclasses.replace(
        record, reason=found.sentence, out_of_memory=found.kind, out_of_memory_realtime_ns=found.at_ns
    )
