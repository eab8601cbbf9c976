"""One run, top to bottom: link, server, index, probes, load, counting, teardown.

Everything that a run starts hangs on one stack of contexts; leaving it, by whatever way, takes all of it down again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from ingest_bench import catalog, load, network, probes, records, targets
from ingest_bench.errors import InvalidRun, RunFailed
from ingest_bench.jvm import process
from ingest_bench.load import LoadPlan, Progress
from ingest_bench.model.experiment import Run
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
    workload = catalog.workload(cell.load.workload)
    with contextlib.ExitStack() as stack:
        with stages.stage("link"):
            link = stack.enter_context(network.link(cell.network, netem=options.netem))
        with stages.stage("check"):
            promises = network.check(link)
        record = dataclasses.replace(record, promises=promises, netem_backend=link.backend)
        listen = Endpoint(link.server_address, _PORT)
        jdk = targets.fetch(target.requirements(cell.target), options.java_home)
        launch = target.launch_plan(
            cell.target, jdk, folder.home, listen, probes.jvm_options(cell.probes, folder.raw, jdk.version)
        )
        launch = dataclasses.replace(launch, writable=(*launch.writable, folder.raw))
        serving = contextlib.ExitStack()
        stack.push(serving)
        with stages.stage("boot"):
            http = stack.enter_context(ask(link.server.command, listen))
            server = serving.enter_context(
                process.serve(
                    launch,
                    enter=link.server.command,
                    log=folder.log,
                    listen=listen,
                    ready=lambda: target.is_ready(http),
                    timeout_s=_BOOT_LIMIT_S,
                )
            )
            description = target.describe(http, cell.target, folder.log)
            target.create_index(http, cell.target, workload)
        record = dataclasses.replace(record, server={**description, "runtime": records.to_json(jdk)})
        sending = LoadPlan(
            address=listen,
            bulk_path=target.bulk_path(cell.target, workload),
            workload=workload,
            options=cell.load,
            out=folder.load,
        )
        with (
            probes.watch(cell.probes, server.jvm_pid, folder.raw),
            network.watch_wire(link, folder.raw),
            stages.stage("load"),
        ):
            report = _load(sending, link, on_progress)
        with stages.stage("count"):
            counted = target.count_documents(http, workload)
            readings = network.readings(link, folder.raw / network.WIRE)
        with stages.stage("stop"):
            serving.close()
    offset = report.realtime_minus_monotonic_ns
    return dataclasses.replace(
        record,
        state="measured",
        documents_counted=counted,
        measure_start_realtime_ns=report.warm_up_end_ns + offset,
        measure_end_realtime_ns=report.measure_end_ns + offset,
        link=readings,
    )


def _load(sending: LoadPlan, link: network.Link, on_progress: Callable[[Progress], None]) -> WorkerReport:
    process = load.start(sending, link.client.command)
    try:
        return process.wait(on_progress)
    finally:
        process.stop()
