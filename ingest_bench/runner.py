"""One run, top to bottom: server, index, probes, load, counting, teardown.

Everything that a run starts hangs on one stack of contexts; leaving it, by whatever way, takes all of it down again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from ingest_bench import faults, footprint, load, network, probes, procedure, serving
from ingest_bench.analysis import steady
from ingest_bench.errors import InvalidRun, RunFailed
from ingest_bench.jvm import process
from ingest_bench.load import LoadPlan, Progress, RemoteWorker, reports
from ingest_bench.model.experiment import Cell, Run
from ingest_bench.model.load import WorkerReport
from ingest_bench.model.results import Happened, RunRecord, Stage
from ingest_bench.procedure import Procedure
from ingest_bench.serving import Serving
from ingest_bench.store import RunFolder
from ingest_bench.targets.http import Http

NetemBackend = Literal["auto", "kernel", "uml"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What the user chose about how runs are carried out, not about what they measure."""

    netem: NetemBackend = "auto"
    java_home: Path | None = None
    allow_delete: bool = False
    """A track may delete the indices that it declares, also on a server that is not ours."""
    joined: tuple[RemoteWorker, ...] = ()
    """Workers on other machines that send the loads; empty: processes of our own do."""


@dataclass(slots=True)
class Stages:
    """The named parts of a run with their durations; tells whoever watches when one begins."""

    tell: Callable[[str], None]
    done: list[Stage] = field(default_factory=list)

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time what happens inside under that name."""
        self.tell(name)
        started = time.monotonic()
        try:
            yield
        finally:
            self.done.append(Stage(name=name, seconds=round(time.monotonic() - started, 3)))


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
    try:
        record = _carry_out(planned, folder, options, record, stages, on_progress)
    except InvalidRun as error:
        record = dataclasses.replace(record, state="invalid", reason=str(error))
    except RunFailed as error:
        record = dataclasses.replace(record, state="failed", reason=str(error))
    record = dataclasses.replace(record, stages=tuple(stages.done))
    folder.write(record)
    # The index is of no use any more and may be larger than everything else together.
    shutil.rmtree(folder.home, ignore_errors=True)
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
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(
            serving.opened(
                planned.cell,
                folder,
                stages.stage,
                lambda jdk: probes.jvm_options(planned.cell.probes, folder.raw, jdk.version),
                netem=options.netem,
                java_home=options.java_home,
            )
        )
        cell = dataclasses.replace(planned.cell, target=server.asked)
        try:
            to_do = procedure.of(
                cell,
                server.place,
                folder.load,
                may_delete=server.is_ours or options.allow_delete,
                mark="" if server.is_ours else mark,
                target=server.target,
            )
            record = _known(record, server, to_do)
            with footprint.removed(server, to_do, mark) as counted_before:
                with _watched(cell, server, folder, procedure.longest_s(to_do)):
                    stage = faults.Stage(server.link, server.jvm_pid)
                    send = functools.partial(
                        _load,
                        server=server,
                        joined=options.joined,
                        stage=stage,
                        cell=cell,
                        on_progress=on_progress,
                        happened=happened,
                    )
                    procedure.carry_out(to_do, server.http, send, stages.stage, folder.load)
                with stages.stage("count"):
                    record = _counted(record, server, to_do, counted_before, folder)
        except RunFailed as error:
            return _broken(record, cell, folder, server, error)
        finally:
            with stages.stage("stop"):
                stack.close()
    return dataclasses.replace(record, state="measured", faults=tuple(happened), **_window(folder, planned.cell))


def _known(record: RunRecord, server: Serving, to_do: Procedure) -> RunRecord:
    """With what is known before the load starts."""
    return dataclasses.replace(
        record,
        promises=server.promises,
        netem_backend=server.link.backend if server.link else "",
        server=server.told,
        skipped=to_do.skipped,
        notes=(*server.notes, *to_do.notes),
    )


def _counted(record: RunRecord, server: Serving, to_do: Procedure, before: int, folder: RunFolder) -> RunRecord:
    """With what server and link say after the load. A server that ran before has counted for others too."""
    return dataclasses.replace(
        record,
        documents_counted=server.target.count_documents(server.http, to_do.indices) - before,
        counters=server.target.counters(server.http) if server.is_ours else {},
        link=network.readings(server.link, folder.raw / network.WIRE) if server.link else {},
    )


@contextlib.contextmanager
def _watched(cell: Cell, server: Serving, folder: RunFolder, limit_s: int) -> Iterator[None]:
    """Every probe watches, as far as this server can be watched."""
    with contextlib.ExitStack() as stack:
        if server.jvm_pid is not None:
            stack.enter_context(probes.watch(cell.probes, server.jvm_pid, folder.raw))
        elif server.jvm is not None:
            stack.enter_context(probes.attach(cell.probes, server.jvm, folder.raw, limit_s))
        else:
            http = stack.enter_context(server.asking())
            stack.enter_context(
                probes.watch_from_outside(cell.probes, functools.partial(_node_stats, http), folder.raw)
            )
        if server.link is not None:
            stack.enter_context(network.watch_wire(server.link, folder.raw))
        yield


def _node_stats(http: Http) -> Any:
    """What all nodes say of their JVMs; None where nobody says it."""
    answer = http.request("GET", "/_nodes/stats/jvm", timeout_s=10)
    return answer.json() if answer.status == 200 else None


def _window(folder: RunFolder, cell: Cell) -> dict[str, Any]:
    """The measurement on the wall's clock and whose clocks it was compared with, as far as the load got to say.

    With `warm_up = "auto"` this is where it is decided, from the samples: what comes later reads load.json anew.
    """
    report = folder.load_report()
    if report is None:
        return {}
    if cell.load.warm_up_ns == "auto":
        report = steady.settled(folder.samples(), report, cell.load.measure_ns)
        reports.write(report, folder.load)
    offset_ns = report.realtime_minus_monotonic_ns
    return {
        "warm_up_ns": report.warm_up_end_ns - report.started_monotonic_ns,
        "measure_start_realtime_ns": report.warm_up_end_ns + offset_ns,
        "measure_end_realtime_ns": report.measure_end_ns + offset_ns,
        "clock_offsets": report.clock_offsets,
    }


def _until(folder: RunFolder, cell: Cell, end_ns: int) -> dict[str, Any]:
    """What was measured until the server ended; of the warm-up, when it did not last a second of the measurement."""
    window, report = _window(folder, cell), folder.load_report()
    if report is None:
        return window
    start_ns = window["measure_start_realtime_ns"]
    if end_ns - start_ns < 10**9:
        start_ns = report.started_monotonic_ns + report.realtime_minus_monotonic_ns
    end_ns = max(start_ns, min(end_ns, window["measure_end_realtime_ns"]))
    return window | {"measure_start_realtime_ns": start_ns, "measure_end_realtime_ns": end_ns}


def _load(
    sending: LoadPlan,
    *,
    server: Serving,
    joined: tuple[RemoteWorker, ...],
    stage: faults.Stage,
    cell: Cell,
    on_progress: Callable[[Progress], None],
    happened: list[Happened],
) -> WorkerReport:
    """The load's report; the faults that happened during it are added to `happened`."""
    sender = load.start(sending, server.enter, joined)
    try:
        with faults.happening(cell.faults, stage, lambda: sender.measure_start_ns) as seen:
            report = sender.wait(on_progress)
        happened += seen.records
        return report
    finally:
        sender.stop()


def _broken(record: RunRecord, cell: Cell, folder: RunFolder, server: Serving, error: RunFailed) -> RunRecord:
    """A run that ended early: an OutOfMemoryError is a result, everything else is a failure that says why."""
    out_of_memory = probes.find_oom(folder.raw, folder.log)
    if out_of_memory is not None:
        said = f"{out_of_memory.kind}: {out_of_memory.text} ({out_of_memory.source})"
        return dataclasses.replace(
            record,
            state="oom",
            reason=said,
            out_of_memory=out_of_memory.kind,
            out_of_memory_realtime_ns=out_of_memory.at_ns,
            **_until(folder, cell, out_of_memory.at_ns),
        )
    reason = str(error)
    if server.has_ended():
        log = f"; its log ends:\n{process.last_lines(folder.log)}" if server.is_ours else ""
        reason = f"the server ended during the run{log}\n{reason}"
    return dataclasses.replace(record, state="failed", reason=reason)
