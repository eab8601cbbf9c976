"""One run, top to bottom: link, server, index, probes, load, counting, teardown.

Everything that a run starts hangs on one stack of contexts; leaving it, by whatever way, takes all of it down again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from ingest_bench import faults, load, network, probes, procedure, records, targets
from ingest_bench.analysis import steady
from ingest_bench.errors import InvalidRun, RunFailed
from ingest_bench.jvm import process
from ingest_bench.load import LoadPlan, Progress, reports
from ingest_bench.model.experiment import Cell, Run
from ingest_bench.model.load import WorkerReport
from ingest_bench.model.results import RunRecord, Stage
from ingest_bench.model.target import Endpoint
from ingest_bench.store import RunFolder
from ingest_bench.targets.http import ask

NetemBackend = Literal["auto", "kernel", "uml"]

# Any port will do: the server has a namespace of its own.
_PORT = 9200
_BOOT_LIMIT_S = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What the user chose about how runs are carried out, not about what they measure."""

    netem: NetemBackend = "auto"
    java_home: Path | None = None


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
    cell = planned.cell
    target = targets.named(cell.target.name)
    with contextlib.ExitStack() as stack:
        with stages.stage("link"):
            link = stack.enter_context(network.link(cell.network, netem=options.netem, later=faults.states(cell)))
        with stages.stage("check"):
            promises = network.check(link)
        listen = Endpoint(link.server_address, _PORT)
        # The server is ours, started for this run: what a track deletes there was nobody's.
        to_do = procedure.of(cell, listen, folder.load, may_delete=True)
        jdk = targets.fetch(target.requirements(cell.target), options.java_home)
        jvm_options = probes.jvm_options(cell.probes, folder.raw, jdk.version)
        launch = target.launch_plan(cell.target, jdk, folder.home, listen, jvm_options)
        launch = dataclasses.replace(launch, writable=(*launch.writable, folder.raw))
        serving = stack.enter_context(contextlib.ExitStack())
        with stages.stage("boot"):
            http = stack.enter_context(ask(link.server.command, listen))
            served = process.serve(
                launch,
                enter=link.server.command,
                log=folder.log,
                listen=listen,
                ready=lambda: target.is_ready(http),
                timeout_s=_BOOT_LIMIT_S,
            )
            server = serving.enter_context(served)
            description = target.describe(http, cell.target, folder.log)
        record = dataclasses.replace(
            record,
            promises=promises,
            netem_backend=link.backend,
            server={**description, "runtime": records.to_json(jdk)},
            skipped=to_do.skipped,
            notes=to_do.notes,
        )
        happened: list[dict[str, Any]] = []
        stage = faults.Stage(link, server.jvm_pid)
        try:
            with probes.watch(cell.probes, server.jvm_pid, folder.raw), network.watch_wire(link, folder.raw):
                send = functools.partial(_load, stage=stage, cell=cell, on_progress=on_progress, happened=happened)
                procedure.carry_out(to_do, http, send, stages.stage, folder.load)
            with stages.stage("count"):
                counted = target.count_documents(http, to_do.indices)
                own = target.counters(http)
                readings = network.readings(link, folder.raw / network.WIRE)
        except RunFailed as error:
            return _broken(record, cell, folder, server, error)
        finally:
            with stages.stage("stop"):
                serving.close()
    return dataclasses.replace(
        record,
        state="measured",
        documents_counted=counted,
        counters=own,
        link=readings,
        faults=tuple(happened),
        **_window(folder, cell),
    )


def _window(folder: RunFolder, cell: Cell) -> dict[str, Any]:
    """The measurement on the wall's clock, as far as the load got to say.

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
    }


def _load(
    sending: LoadPlan,
    *,
    stage: faults.Stage,
    cell: Cell,
    on_progress: Callable[[Progress], None],
    happened: list[dict[str, Any]],
) -> WorkerReport:
    """The load's report; the faults that happened during it are added to `happened`."""
    sender = load.start(sending, stage.link.client.command)
    try:
        with faults.happening(cell.faults, stage, lambda: sender.measure_start_ns) as seen:
            report = sender.wait(on_progress)
        happened += seen.records
        return report
    finally:
        sender.stop()


def _broken(
    record: RunRecord, cell: Cell, folder: RunFolder, server: process.ServerProcess, error: RunFailed
) -> RunRecord:
    """A run that ended early: an OutOfMemoryError is a result, everything else is a failure that says why."""
    out_of_memory = probes.find_oom(folder.raw, folder.log)
    if out_of_memory is not None:
        said = f"{out_of_memory.kind}: {out_of_memory.text} ({out_of_memory.source})"
        return dataclasses.replace(record, state="oom", reason=said, **_window(folder, cell))
    reason = str(error)
    if server.popen.poll() is not None:
        reason = f"the server ended during the run; its log ends:\n{process.last_lines(folder.log)}\n{reason}"
    return dataclasses.replace(record, state="failed", reason=reason)
