"""One run, top to bottom: server, index, probes, load, counting, teardown.

Everything that a run starts is on one stack of contexts; leaving it in any way stops all of it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

from ingest_bench import probes, targets
from ingest_bench.analysis.run import sample_columns, summary
from ingest_bench.errors import InvalidRun, MissingCapability, RunAborted, RunFailed
from ingest_bench.faults import timeline
from ingest_bench.faults.kind import Node, Stage
from ingest_bench.host import cpu
from ingest_bench.jvm.attach import launched
from ingest_bench.lab import evaluation, link_watch, planning, preloading
from ingest_bench.lab.planning import Loads, Procedure
from ingest_bench.lab.server import borrowed, running_server
from ingest_bench.lab.server.running_server import RunningServer, ServerSetup
from ingest_bench.load import supervisor
from ingest_bench.load.exporter import Exporter
from ingest_bench.load.fleet.roster import Fleet
from ingest_bench.load.plan import LoadPlan
from ingest_bench.load.supervisor import LoadPage, Progress, RunningLoad
from ingest_bench.model.experiment import Run
from ingest_bench.model.results import RunPhase, RunRecord
from ingest_bench.model.samples import WorkerReport
from ingest_bench.model.target import Endpoint, ServerAddress
from ingest_bench.probes import gc
from ingest_bench.probes.oom import OutOfMemory
from ingest_bench.results.layout import RunFolder
from ingest_bench.targets import counting
from ingest_bench.targets.http import Enter

NetemBackend = Literal["auto", "kernel", "uml"]
JfrSettings = Literal["default", "profile"]
_PROFILED = "the flight recorder recorded profiling events too (--jfr profile): their cost to the server is unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Options of the user about how runs are executed, not about what they measure."""

    netem: NetemBackend = "auto"
    java_home: Path | None = None
    allow_delete: bool = False
    """A track may delete the indices that it declares, also on a server that is not ours."""
    last_frames: bool = False
    """Keep the headers of the last frames of each failed, aborted or invalid run."""
    jfr: JfrSettings = "default"
    """Events of the flight recorder: those of the probes, or the JDK's profiling events too."""
    fleet: Fleet | None = None
    """Workers on other machines that send the loads; None: local processes."""
    observers: Fleet | None = None
    """Observers on the machines of the server's nodes; None: it is watched from here."""
    locust_web: Endpoint | None = None
    """Address of Locust's page."""
    exporter: Exporter | None = None
    """Exports the figures of each run to a dashboard."""
    reports_figures: bool = False
    """Loads report live figures with their progress."""

    @property
    def is_profiling(self) -> bool:
        """Return True if the flight recorder records profiling events too."""
        return self.jfr == "profile"


def run(
    planned: Run,
    folder: RunFolder,
    options: RunOptions,
    *,
    on_phase: Callable[[str], None],
    on_progress: Callable[[Progress], None],
) -> RunRecord:
    """Execute a run; return its record, also written to its folder. Only Ctrl-C and internal errors raise."""
    folder.create()
    execution = _Execution(planned, folder, options, on_phase, on_progress)
    folder.write_record(execution.record)
    if options.exporter is not None:
        options.exporter.begin_run(run=planned.id, cell=planned.cell.name, workload=summary.workload_name(planned.cell))
    machine = cpu.OtherUsers()
    try:
        with cpu.watch_other_users(
            starts_everything=not planned.cell.target.is_already_running and options.fleet is None
        ) as machine:
            execution.execute()
    except InvalidRun as error:
        execution.update(state="invalid", reason=str(error))
    except RunFailed as error:
        execution.update(state="failed", reason=str(error))
    finally:
        # After Ctrl-C too.
        folder.remove_homes()
        skipped_files = folder.move_jvm_files()
    notes = (*execution.record.notes, *skipped_files, *machine.notes, *([_PROFILED] if options.is_profiling else []))
    nodes = folder.nodes(planned.cell.target.node_count)
    observers = tuple(watching for node in nodes if (watching := node.read_observer()) is not None)
    execution.update(files=folder.digest_files(), notes=notes, observers=observers)
    folder.write_record(execution.record)
    return execution.record


class _Execution:
    """The state of one run: its record, and what its phases share. The methods are in the order of the phases."""

    def __init__(
        self,
        planned: Run,
        folder: RunFolder,
        options: RunOptions,
        on_phase: Callable[[str], None],
        on_progress: Callable[[Progress], None],
    ) -> None:
        self._planned, self._cell, self._folder, self._options = planned, planned.cell, folder, options
        self._on_phase, self._on_progress = on_phase, on_progress
        self.record = RunRecord(
            run=planned.id,
            replicate=planned.replicate,
            cell=planned.cell.name,
            levels=planned.cell.levels,
            instrumented=planned.instrumented,
            state="started",
            started_utc=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        # Unique to this run: it identifies the objects that the run creates on a server.
        self._mark = f"{planned.id} {self.record.started_utc} {uuid.uuid4().hex}"
        self._page: LoadPage | None = None
        self._prepared_load: RunningLoad | None = None
        """The first load, whose workers prepare while a launched server boots."""
        self._procedure: Procedure | None = None
        """None until the address of the server is known."""

    def update(self, **fields: Any) -> None:
        """Set fields of the record."""
        self.record = dataclasses.replace(self.record, **fields)

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Announce and time a part of the run."""
        self._on_phase(name)
        started_s = time.monotonic()
        try:
            yield
        finally:
            finished = RunPhase(name=name, seconds=round(time.monotonic() - started_s, 3))
            self.update(phases=(*self.record.phases, finished))

    def execute(self) -> None:
        """Open the server, measure, and stop everything; then record the result."""
        if self._cell.target.preloaded_documents:
            with self.phase("earlier run"):
                preloading.write_documents(self._cell, self._folder, self._options.netem, self._options.java_home)
        with contextlib.ExitStack() as stack:
            self._page = stack.enter_context(supervisor.serve_page(self._options.locust_web))
            setup = ServerSetup(
                phase=self.phase,
                netem=self._options.netem,
                java_home=self._options.java_home,
                is_profiling=self._options.is_profiling,
                observers=self._options.observers,
                prepare_load=self._prepare_load,
            )
            server = stack.enter_context(running_server.open_server(self._cell, self._folder, setup))
            try:
                self._measure(server)
            except RunAborted as error:
                self._record_abort(server, error)
                return
            except RunFailed as error:
                self._record_failure(server, error)
                return
            finally:
                with self.phase("stop"):
                    stack.close()
        evaluation.write_jmx_clocks(self._planned, self._folder, self.record, self._options.java_home)
        self.update(state="measured", **evaluation.measurement_fields(self._folder, self._cell))

    @contextlib.contextmanager
    def _prepare_load(self, address: ServerAddress, enter: Enter) -> Iterator[Callable[[], None]]:
        """Have the workers of the first load prepare while the server boots, which saves a second or two.

        Yield a function that processes their messages. Not for parallel loads, and not for workers on other machines,
        which wait until they get a load.
        """
        target = targets.resolve(self._cell.target)
        self._procedure = planning.build_procedure(
            self._cell, address, self._folder.load, may_delete=True, target=target
        )
        first = next((step.plans for step in self._procedure.steps if isinstance(step, Loads)), ())
        if self._options.fleet is not None or len(first) != 1:
            yield lambda: None
            return
        load = self._prepared_load = self._start_load(first[0], enter)
        try:
            yield load.process_messages
        finally:
            load.stop()

    def _measure(self, server: RunningServer) -> None:
        """Execute the procedure under observation and faults, then count."""
        cell = dataclasses.replace(self._cell, target=server.options)
        steps = self._procedure or planning.build_procedure(
            cell,
            server.address,
            self._folder.load,
            may_delete=self._options.allow_delete,
            mark=self._mark,
            target=server.target,
        )
        path = (server.path,) if server.path and self._options.fleet is None else ()
        self.update(
            link_checks=server.link_checks,
            netem_backend=server.links.backend if server.links else "",
            server=server.description,
            host=server.host,
            address_nodes=server.address_nodes,
            skipped=steps.skipped,
            notes=(*path, *server.notes, *steps.notes),
        )
        nodes = self._folder.nodes(server.options.node_count)
        for node in nodes:
            node.create_folders()
        raws = [node.raw for node in nodes]
        with borrowed.clean_up_after(server, steps, self._mark) as documents_before:
            preloading.check_documents(cell, steps, documents_before)
            stage = _make_fault_stage(server, self._folder, steps.indices)
            with (
                server.watch(probes.select_probes(cell.probes), raws, planning.time_limit_s(steps)),
                link_watch.watch_links(server.links, self._folder, keeps_last=self._options.last_frames),
            ):
                request = functools.partial(server.target.execute, server.http)
                send = functools.partial(self._send, server, steps, stage)
                self._collect_garbage(stage)
                report = planning.execute(steps, request, send, self.phase, self._folder.load)
                self._collect_garbage(stage)
            with self.phase("count"):
                self._count(server, steps, documents_before, report)

    def _collect_garbage(self, stage: Stage) -> None:
        """Have the launched JVMs collect their heap before and after bursts: the difference is what bursts left."""
        for node in stage.nodes if self._cell.load.arrivals.shape == "burst" else ():
            # Without a JVM, or a JDK with jcmd, the heap is unknown, and the run is as good.
            with contextlib.suppress(RunFailed, MissingCapability):
                node.run_jcmd("GC.run")

    def _start_load(self, plan: LoadPlan, enter: Enter) -> RunningLoad:
        options = self._options
        return supervisor.start_load(
            plan,
            enter,
            options.fleet,
            page=self._page,
            reports_figures=options.reports_figures,
            on_wait=self._poll_observers,
        )

    def _poll_observers(self) -> None:
        if self._options.observers is not None:
            self._options.observers.poll_observers()

    def _send(
        self,
        server: RunningServer,
        steps: Procedure,
        stage: Stage,
        plans: Sequence[LoadPlan],
        ends_all: Sequence[bool],
    ) -> Sequence[WorkerReport]:
        """Send loads at the same time and return their reports. Faults happen during the only one."""
        borrowed.check_templates(server, steps)
        exporter = self._options.exporter
        if exporter is not None:
            exporter.begin_load()

        nodes = self._folder.nodes(server.options.node_count) if self._options.reports_figures else ()
        followers = [gc.LogFollower(node.jvm if server.is_launched else node.raw) for node in nodes]

        def show(progress: Progress) -> None:
            self._on_progress(_add_heap(progress, followers))
            if exporter is not None:
                exporter.update(progress)

        with contextlib.ExitStack() as stack:
            if len(plans) > 1:
                # By local processes also if there is a fleet: a fleet sends one load at a time.
                reports = self._options.reports_figures
                loads = supervisor.start_loads(
                    plans, server.enter, ends_all=ends_all, reports_figures=reports, on_wait=self._poll_observers
                )
                stack.callback(loads.stop)
                return loads.wait_for_all(show)
            load, self._prepared_load = self._prepared_load, None
            load = load or self._start_load(plans[0], server.enter)
            stack.callback(load.stop)
            happened = None
            try:
                faults = self._cell.faults
                with timeline.run_faults(faults, stage, lambda: load.measure_start_ns, self._cell.load) as happened:
                    return [load.wait(show)]
            finally:
                if happened is not None:
                    self.update(faults=(*self.record.faults, *happened.records))

    def _count(self, server: RunningServer, steps: Procedure, before: int | None, report: WorkerReport) -> None:
        """Record the counters of server and link. A server that was already running has counted for others too."""
        after = self._count_documents(server, steps, before, report)
        counters = server.target.read_counters(server.nodes) if server.is_launched else {}
        self._folder.write_delivered((server.is_launched and server.target.read_delivered(server.nodes)) or ())
        self.update(
            documents_counted=None if before is None or after is None else after - before,
            counters=counters,
            **link_watch.link_counts(server, self._folder),
        )
        self._record_oom(server, is_alive=True)

    def _count_documents(
        self, server: RunningServer, steps: Procedure, before: int | None, report: WorkerReport
    ) -> int | None:
        """Return the number of documents, once all acknowledged ones are counted or the time for that is over."""
        settle_s, expected = server.target.settle_s, 0
        if settle_s and before is not None:
            acked = sample_columns.sum_over(self._folder.samples(), itemgetter("documents_acked"))
            expected = before + acked - report.documents_repeated
        return counting.wait_for_count(lambda: server.count(steps.indices), expected, settle_s)

    def _record_oom(self, server: RunningServer, *, is_alive: bool) -> OutOfMemory | None:
        """Record and return the first OutOfMemoryError of the server, if it had one."""
        error = running_server.find_out_of_memory(self._folder, server, is_alive=is_alive)
        if error is not None:
            self.update(reason=error.description, out_of_memory=error.kind, out_of_memory_realtime_ns=error.at_ns)
        return error

    def _record_abort(self, server: RunningServer, error: RunAborted) -> None:
        """Record a run that an abort condition ended, and any OutOfMemoryError before."""
        oom = self._record_oom(server, is_alive=True)
        oom_text = f"; the server had an OutOfMemoryError: {oom.description}" if oom else ""
        window = evaluation.measurement_fields(self._folder, self._cell)
        self.update(state="aborted", reason=f"{error}{oom_text}", **window)

    def _record_failure(self, server: RunningServer, error: RunFailed) -> None:
        """Record a run that ended early: an OutOfMemoryError is a result, anything else a failure."""
        oom = self._record_oom(server, is_alive=not server.ended_nodes())
        if oom is None:
            self.update(state="failed", reason=running_server.describe_failure(self._folder, server, error))
            return
        window = evaluation.measurement_fields(self._folder, self._cell, until_ns=oom.at_ns)
        self.update(state="oom", **window)


def _add_heap(progress: Progress, followers: Sequence[gc.LogFollower]) -> Progress:
    for follower in followers:
        follower.read_on()
    heaps = [follower.heap_bytes for follower in followers if follower.heap_bytes is not None]
    pause_ns = sum(follower.pause_ns for follower in followers)
    return dataclasses.replace(progress, heap_bytes=sum(heaps) if heaps else None, gc_pause_ns=pause_ns)


def _make_fault_stage(server: RunningServer, folder: RunFolder, indices: Sequence[str]) -> Stage:
    """Return the parts that faults act on; empty for a server that was already running."""
    if not server.is_launched:
        return Stage()

    def jcmd(pid: int, command: Sequence[str]) -> str:
        return launched(pid, server.java).run_jcmd(*command)

    limit_s = server.target.listens(server.options).ready_timeout_s
    homes = [node.home for node in folder.nodes(len(server.processes))]
    nodes = tuple(
        Node(number=number, process=node, home=home, jcmd=jcmd, boot_limit_s=limit_s, resources=resources)
        for number, (node, home, resources) in enumerate(
            zip(server.processes, homes, server.resources, strict=True), start=1
        )
    )
    return Stage(links=server.links, names=server.names, nodes=nodes, flush=functools.partial(server.flush, indices))
