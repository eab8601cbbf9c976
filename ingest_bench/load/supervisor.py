"""Supervisor of loads: start their workers, let them begin at one moment, merge their progress and their reports.

On this machine each worker is a child process, controlled over pipes (`LocalWorkers`). Workers on other machines belong
to a fleet (`fleet.roster`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import operator
import selectors
import time
from collections import ChainMap, Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ingest_bench import system
from ingest_bench.errors import RunAborted, RunFailed, undo_on_error
from ingest_bench.inputs import files
from ingest_bench.inputs.records import from_json, to_json
from ingest_bench.load.figures import AbortMonitor, figures_from_json
from ingest_bench.model.samples import WorkerReport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from ingest_bench.load.figures import LoadFigures
    from ingest_bench.load.fleet.roster import Fleet
    from ingest_bench.load.plan import LoadPlan
    from ingest_bench.model.target import Endpoint

    Enter = Callable[[Sequence[str]], Sequence[str]]
    """Wraps an argv so that it runs in a namespace."""

# From "ready" of the last worker to the first request, so that every worker knows the moment in advance.
_START_DELAY_NS = 200 * 10**6
# Workers are told one after the other: 100 on a busy machine of 2 cores within 0.1 s.
_START_DELAY_PER_WORKER_NS = 2 * 10**6
_PREPARE_TIMEOUT_S = 300.0
# A worker needs this after its plan ends: the drain (load.worker) and its report.
_END_TIMEOUT_S = 60.0
# A worker that is stopped may end its load in order for this long; then it is killed.
_STOP_GRACE_S = 5.0
# Progress of all workers is merged at most this often: each reports twice a second.
_PROGRESS_INTERVAL_NS = 10**8
_POLL_S = 1.0
_PAGE_TIMEOUT_S = 60.0
# Locust computes the rate that it shows from whole seconds.
_PAGE_INTERVAL_NS = 10**9
# Phases of a load, in order.
PHASES = ("prepare", "prepared", "ready", "warm-up", "measure", "drain", "done")


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress of a load, all workers together."""

    phase: str
    """One of PHASES: the earliest of the workers' phases."""
    documents: int
    """Acknowledged so far."""
    seconds_left: float | None
    """None: unknown, the load ends when everything is sent."""
    figures: LoadFigures | None = None
    """None: they are not reported."""
    heap_bytes: int | None = None
    """Heap after the last collection, all nodes together; None: unknown, as are the pauses."""
    gc_pause_ns: int = 0


class LoadWorker:
    """One worker of a load, as the supervisor sees it. `status` is what it reported last, at least its phase."""

    def __init__(self, plan: LoadPlan) -> None:
        self.plan = plan
        self.status: dict[str, Any] = {"phase": "prepare"}
        self.clock_offset_ns = 0
        """Offset of its CLOCK_MONOTONIC from ours (positive: ahead)."""
        self.is_lost = False

    @property
    def name(self) -> str:
        """The name in error messages."""
        return f"load worker {self.plan.worker + 1} of {self.plan.workers}"

    @property
    def phase(self) -> str:
        """One of PHASES, or "failed"."""
        return str(self.status["phase"])

    def command(self, line: Mapping[str, Any]) -> None:
        """Send it a command of `load.worker`."""
        raise NotImplementedError

    def describe_failure(self) -> str:
        """Return why it ended before it was done."""
        return str(self.status["error"])

    def read_report(self) -> WorkerReport | None:
        """Return its report; None if it left none."""
        try:
            return from_json(WorkerReport, json.loads(self.plan.report_file.read_text()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            raise RunFailed(f"{self.name}: cannot read its report {self.plan.report_file}: {error}") from None


class LocalWorker(LoadWorker):
    """A worker that is a child process. Its first command is its plan."""

    def __init__(self, plan: LoadPlan, enter: Enter = tuple) -> None:
        super().__init__(plan)
        argv = enter(system.build_module_argv("ingest_bench.load.worker"))
        self.child = system.Child(argv, name=self.name, log=plan.log_file)

    def command(self, line: Mapping[str, Any]) -> None:
        """Send a command to the child."""
        self.child.write_line(json.dumps(line))

    def read_status(self) -> bool:
        """Wait for its next status. Return False if it has failed, or ended before it was done."""
        for line in self.child.read_lines():
            self.status.update(json.loads(line))
        return self.phase != "failed" and (not self.child.has_ended or self.phase == "done")

    def describe_failure(self) -> str:
        """Return its own reason, or how its process ended."""
        if "error" in self.status:
            return super().describe_failure()
        log = f"its log {self.plan.log_file} ends with: {self.child.read_stderr_tail()}"
        return f"{self.name} {self.child.describe_exit()} in phase {self.phase!r}; {log}"


_Worker = TypeVar("_Worker", bound=LoadWorker)


class Workers(Generic[_Worker]):
    """The workers of loads that begin together: `LocalWorkers`, or those of a fleet (`fleet.roster.Fleet`)."""

    start_delay_ns = _START_DELAY_NS

    def __init__(self) -> None:
        self.workers: list[_Worker] = []
        self.failed: dict[_Worker, None] = {}
        """Those that ended before they were done, in that order."""
        self.on_wait: Callable[[], None] = lambda: None
        """Called at least each second while something is waited for; it may raise RunFailed."""

    def process_messages(self, timeout_s: float) -> None:
        """Wait for messages and update the status of the workers; return after the first ones or the timeout."""
        raise NotImplementedError

    def command(self, line: Mapping[str, Any]) -> None:
        """Send a command of `load.worker` to all workers."""
        for worker in self.workers:
            worker.command(line)

    def begin(self) -> int:
        """Let all workers begin at one moment and return it (our CLOCK_MONOTONIC)."""
        start_ns = time.monotonic_ns() + self.start_delay_ns + len(self.workers) * _START_DELAY_PER_WORKER_NS
        for worker in self.workers:
            worker.command({"do": "begin", "start_ns": start_ns + worker.clock_offset_ns})
        return start_ns

    def collect(self) -> list[WorkerReport | None]:
        """Bring all samples into our files, on our clock, and return the reports. None: the worker left none."""
        raise NotImplementedError

    def stop(self) -> None:
        """End all workers; idempotent."""
        raise NotImplementedError

    def wait_until(
        self, is_reached: Callable[[], bool], timeout_s: float | None, *, ignore_failures: bool = False
    ) -> None:
        """Process messages until *is_reached*; RunFailed after the timeout, or if a worker fails or is lost."""
        limit = None if timeout_s is None else time.monotonic() + timeout_s
        while not is_reached():
            self.process_messages(_POLL_S)
            self.on_wait()
            # Only the failed ones, not all workers: this runs for each message of each of them.
            for worker in self.failed:
                if worker.is_lost or not ignore_failures:
                    raise RunFailed(worker.describe_failure())
            if limit is not None and time.monotonic() > limit:
                phases = ", ".join(f"{worker.name}: {worker.phase}" for worker in self.workers)
                raise RunFailed(f"the load did not reach its next phase within {timeout_s:.0f} s ({phases})")


class LocalWorkers(Workers[LocalWorker]):
    """Workers that are child processes, in the client's namespaces. Create them in the main thread."""

    def __init__(self, plans: Sequence[LoadPlan], enters: Sequence[Enter], on_wait: Callable[[], None]) -> None:
        super().__init__()
        self.on_wait = on_wait
        self._selector = selectors.DefaultSelector()
        try:
            for plan, number in ((load, number) for load in plans for number in range(load.workers)):
                worker = LocalWorker(dataclasses.replace(plan, worker=number), enters[number % len(enters)])
                self.workers.append(worker)
                self._selector.register(worker.child.stdout, selectors.EVENT_READ, worker)
                worker.command(worker.plan.to_json())
        except BaseException:
            self.stop()
            raise

    def process_messages(self, timeout_s: float) -> None:
        """Read the status lines of all children."""
        for key, _ in self._selector.select(timeout_s):
            worker: LocalWorker = key.data
            if not worker.read_status():
                self.failed[worker] = None
            if worker.child.has_ended:
                self._selector.unregister(key.fileobj)

    def collect(self) -> list[WorkerReport | None]:
        """Wait for all children and read their reports; their samples are in our files already."""
        self.stop()
        return [worker.read_report() for worker in self.workers]

    def stop(self) -> None:
        """Close all inputs, upon which a child ends its load in order, and kill what is left after 5 s."""
        limit = time.monotonic() + _STOP_GRACE_S
        for worker in self.workers:
            worker.child.stdin.close()
        for worker in self.workers:
            worker.child.close(max(0.0, limit - time.monotonic()))
        self._selector.close()


class RunningLoad:
    """A running load, or several that begin together. Call `wait` or `wait_for_all` once; `stop` at any time."""

    def __init__(
        self, plans: Sequence[LoadPlan], workers: Workers[Any], page: LoadPage | None, ends_all: Sequence[bool]
    ) -> None:
        self._plans, self._workers, self._page = plans, workers, page
        # Each load has a folder of its own.
        self._loads = [[worker for worker in workers.workers if worker.plan.folder == plan.folder] for plan in plans]
        self._ends_all = [load for load, ends in zip(self._loads, ends_all, strict=True) if ends]
        self.measure_start_ns: int | None = None
        """When the measurement starts (CLOCK_MONOTONIC), that of the first load; None until they have begun."""

    @property
    def pids(self) -> tuple[int, ...]:
        """The workers' processes on this machine."""
        return tuple(worker.child.pid for worker in self._workers.workers if isinstance(worker, LocalWorker))

    def wait(self, on_progress: Callable[[Progress], None]) -> WorkerReport:
        """Return the merged report; RunFailed if the load was hopeless or a worker died (with its name).

        RunAborted if an abort condition of the plan ended it: samples and report are kept.
        """
        return self.wait_for_all(on_progress)[0]

    def wait_for_all(self, on_progress: Callable[[Progress], None]) -> list[WorkerReport]:
        """Return the merged report of each load; RunFailed as soon as one has failed: the others keep their samples."""
        try:
            self.wait_until_ready()
            self.measure_start_ns = self._workers.begin() + self._plans[0].options.max_warm_up_ns
            self._wait_until_done(on_progress)
            return self._collect()
        except RunFailed as error:
            is_aborted = isinstance(error, RunAborted)
            if self.measure_start_ns is not None:
                self._salvage(in_order=is_aborted or len(self._plans) > 1)
            if is_aborted:
                on_progress(_merge_progress(self._workers.workers))
            raise
        finally:
            self.stop()

    def process_messages(self) -> None:
        """Process messages without waiting."""
        self._workers.process_messages(0)

    def wait_until_ready(self) -> None:
        """Wait until all users have started; RunFailed if that takes too long. `wait` does it too."""
        workers = self._workers
        if _is_all(workers.workers, "ready"):
            return
        workers.wait_until(lambda: _is_all(workers.workers, "prepared"), _PREPARE_TIMEOUT_S)
        workers.command({"do": "spawn"})
        workers.wait_until(lambda: _is_all(workers.workers, "ready"), _PREPARE_TIMEOUT_S)

    def stop(self) -> None:
        """End all workers. One that still sends ends its load in order, if that takes at most 5 s."""
        try:
            self._workers.stop()
        finally:
            # Also if a second Ctrl-C ends the wait for them.
            _remove_decompressed(self._plans)
        if self._page is not None:
            self._page.clear()

    def _wait_until_done(self, on_progress: Callable[[Progress], None]) -> None:
        monitors = [AbortMonitor(plan.options.abort) for plan in self._plans]
        is_end_requested = False
        last_progress_ns = 0

        def is_done() -> bool:
            nonlocal is_end_requested, last_progress_ns
            is_done, now_ns = _is_all(self._workers.workers, "done"), time.monotonic_ns()
            if not is_done and now_ns - last_progress_ns < _PROGRESS_INTERVAL_NS:
                return False
            last_progress_ns = now_ns
            if not is_end_requested and any(_is_all(load, "done") for load in self._ends_all):
                self._workers.command({"do": "end"})
                is_end_requested = True
            progress = _merge_progress(self._workers.workers)
            on_progress(progress)
            if self._page is not None:
                self._page.show(self._plans[0], progress)
            for load, monitor in zip(self._loads, monitors, strict=True):
                of_load = progress if len(self._loads) == 1 else _merge_progress(load)
                if of_load.figures is not None and of_load.phase == "measure":
                    violation = monitor.find_violation(now_ns, of_load.figures)
                    if violation:
                        raise RunAborted(violation)
            return is_done

        limit_ns = max(plan.options.max_warm_up_ns + plan.measure_ns for plan in self._plans)
        self._workers.wait_until(is_done, limit_ns / 1e9 + _END_TIMEOUT_S)

    def _collect(self) -> list[WorkerReport]:
        """Return the merged report of each load, and write it; RunFailed if a worker left none."""
        reports = dict(zip(self._workers.workers, self._workers.collect(), strict=True))
        merged = []
        for plan, load in zip(self._plans, self._loads, strict=True):
            of_load = [report for worker in load if (report := reports[worker]) is not None]
            if len(of_load) == len(load):
                merged.append(merge_reports(of_load))
                write_report(merged[-1], plan.folder)
        for worker, report in reports.items():
            if report is None:
                raise RunFailed(f"{worker.name}: left no report")
        return merged

    def _salvage(self, *, in_order: bool) -> None:
        """Keep what was measured: a server that ended out of memory is a result. *in_order*: after the responses."""
        workers = self._workers
        with contextlib.suppress(RunFailed):
            if in_order or not self.pids:
                workers.command({"do": "end"})
                workers.wait_until(
                    lambda: all(worker.phase == "done" or worker in workers.failed for worker in workers.workers),
                    _END_TIMEOUT_S,
                    ignore_failures=True,
                )
            self._collect()


def _is_all(workers: Sequence[LoadWorker], phase: str) -> bool:
    return all(worker.phase == phase for worker in workers)


def _merge_progress(workers: Sequence[LoadWorker]) -> Progress:
    statuses = [worker.status for worker in workers]
    all_figures = [figures_from_json(status["figures"]) for status in statuses if "figures" in status]
    # None: that worker ends when everything is sent. Without: it has not begun.
    seconds_left = [status["seconds_left"] for status in statuses if "seconds_left" in status]
    return Progress(
        phase=min((worker.phase for worker in workers if worker.phase in PHASES), key=PHASES.index, default="measure"),
        documents=sum(status.get("documents", 0) for status in statuses),
        seconds_left=None if None in seconds_left else max(seconds_left, default=None),
        figures=functools.reduce(operator.add, all_figures) if all_figures else None,
    )


def start_load(
    plan: LoadPlan,
    enter: Enter | Sequence[Enter] = tuple,
    fleet: Fleet | None = None,
    *,
    page: LoadPage | None = None,
    reports_figures: bool = False,
    on_wait: Callable[[], None] = lambda: None,
) -> RunningLoad:
    """Start the workers of a load; they prepare it. Call it from the main thread.

    *enter* wraps the argv of a worker so that it runs in the client's namespace; of several, workers take each in turn.
    With a *fleet*, its workers send the load where they are. Otherwise *on_wait* is called at least each second while
    the load is waited for; a RunFailed of it ends the load.
    """
    if fleet is None:
        return start_loads([plan], enter, ends_all=[False], page=page, reports_figures=reports_figures, on_wait=on_wait)
    plan = _prepare(plan, fleet.joined_workers, reports_figures=reports_figures or page is not None)
    fleet.assign(plan)
    return RunningLoad([plan], fleet, page, [False])


def start_loads(
    plans: Sequence[LoadPlan],
    enter: Enter | Sequence[Enter],
    *,
    ends_all: Sequence[bool],
    page: LoadPage | None = None,
    reports_figures: bool = False,
    on_wait: Callable[[], None] = lambda: None,
) -> RunningLoad:
    """Start the workers of loads that begin together. Loads marked in *ends_all* end the others; *on_wait* as above."""
    reports_figures = reports_figures or page is not None
    with undo_on_error(lambda: _remove_decompressed(plans)):
        prepared = [
            _prepare(plan, plan.options.processes, reports_figures=reports_figures).with_decompressed_files()
            for plan in plans
        ]
        workers = LocalWorkers(prepared, [enter] if callable(enter) else list(enter), on_wait)
    return RunningLoad(prepared, workers, page, ends_all)


def _remove_decompressed(plans: Sequence[LoadPlan]) -> None:
    for plan in plans:
        plan.remove_decompressed_files()


def _prepare(plan: LoadPlan, processes: int, *, reports_figures: bool) -> LoadPlan:
    plan.folder.mkdir(parents=True, exist_ok=True)
    # Each needs a user, a request of each burst, and a document to send if a number of them ends the load.
    needed = (plan.options.arrivals.requests, plan.options.measure_documents)
    workers = min(processes, plan.users, *filter(None, needed))
    reports_figures = reports_figures or bool(plan.options.abort)
    return dataclasses.replace(plan, workers=workers, reports_figures=reports_figures).with_checked_files()


class LoadPage:
    """Locust's page: a child process outside the client's namespace (`load.page`)."""

    def __init__(self, child: system.Child) -> None:
        self._child = child
        self._next_ns = 0

    def show(self, plan: LoadPlan, progress: Progress) -> None:
        """Show a running load, at most once a second."""
        now_ns = time.monotonic_ns()
        if progress.figures is None or now_ns < self._next_ns:
            return
        self._next_ns = now_ns + _PAGE_INTERVAL_NS
        users = plan.users + plan.options.query_users
        names = {"bulks": plan.wire.destination, "queries": plan.search_path}
        self._write({"users": users, **names, "figures": to_json(progress.figures)})

    def clear(self) -> None:
        """Show that no load is running."""
        self._write({"users": 0})

    def _write(self, line: Mapping[str, Any]) -> None:
        self._child.write_line(json.dumps(line))


@contextlib.contextmanager
def serve_page(address: Endpoint | None) -> Iterator[LoadPage | None]:
    """Serve Locust's page there during the block; RunFailed if it cannot be served. None: no page."""
    if address is None:
        yield None
        return
    argv = system.build_module_argv("ingest_bench.load.page", address.host, str(address.port))
    with system.Child(argv, name="Locust's page") as child:
        started = json.loads(child.read_line(_PAGE_TIMEOUT_S))
        if "error" in started:
            raise RunFailed(started["error"])
        yield LoadPage(child)


def combine_sequential(reports: Sequence[WorkerReport]) -> WorkerReport:
    """Combine the reports of loads that ran one after another: measured is from the first warm-up's end to the end.

    A load that ended during its warm-up has nothing else to measure: it is measured from its start.
    """
    starts = (
        report.warm_up_end_ns if report.warm_up_end_ns < report.measure_end_ns else report.started_monotonic_ns
        for report in reports
    )
    return dataclasses.replace(
        merge_reports(reports),
        warm_up_end_ns=next(starts),
        measure_end_ns=max(report.measure_end_ns for report in reports),
        is_open_loop=any(report.is_open_loop for report in reports),
    )


def write_report(report: WorkerReport, folder: Path) -> None:
    """Replace `load.json` atomically."""
    files.write_json(folder / "load.json", to_json(report))


def merge_reports(reports: Sequence[WorkerReport]) -> WorkerReport:
    """Merge the reports of all workers: sums are exact, a quantile is that of the worst worker."""
    if len(reports) == 1:
        return reports[0]
    most_lag = max(reports, key=lambda report: report.loop_lag_p99_ns)
    most_delay = max(reports, key=lambda report: report.send_delay_p99_ns)
    names = ["bytes_written", "bytes_unread", "cpu_ns", "documents_resent", "documents_repeated"]
    names += ["arrivals_waited", "arrivals_unsent", "window_stalls", "window_stalled_ns"]
    sums: dict[str, Any] = {name: sum(getattr(report, name) for report in reports) for name in names}
    return dataclasses.replace(
        reports[0],
        **sums,
        started_monotonic_ns=min(report.started_monotonic_ns for report in reports),
        warm_up_end_ns=max(report.warm_up_end_ns for report in reports),
        measure_end_ns=max(report.measure_end_ns for report in reports),
        local_ports=tuple(sorted({port for report in reports for port in report.local_ports})),
        item_failures=dict(sum((Counter(report.item_failures) for report in reports), Counter())),
        item_reasons=dict(ChainMap(*(report.item_reasons for report in reports))),
        loop_lag_p99_ns=most_lag.loop_lag_p99_ns,
        loop_lag_samples=most_lag.loop_lag_samples,
        send_delay_p99_ns=most_delay.send_delay_p99_ns,
        send_delay_samples=most_delay.send_delay_samples,
        errors=tuple(error for report in reports for error in report.errors),
        longest_heartbeat_gap_ns=max(report.longest_heartbeat_gap_ns for report in reports),
        stream_window_bytes=max(report.stream_window_bytes for report in reports),
        clock_offsets=tuple(clock for report in reports for clock in report.clock_offsets),
    )
