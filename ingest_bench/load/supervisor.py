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
import os
import selectors
import time
from collections import Counter
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ingest_bench import system
from ingest_bench.errors import RunAborted, RunFailed
from ingest_bench.inputs.records import from_json, to_json
from ingest_bench.load import figures
from ingest_bench.load.figures import AbortMonitor
from ingest_bench.model.results import SCHEMAS
from ingest_bench.model.samples import WorkerReport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from ingest_bench.load.figures import LoadFigures
    from ingest_bench.load.fleet.roster import Fleet
    from ingest_bench.load.plan import LoadPlan
    from ingest_bench.model.target import Endpoint

    Enter = Callable[[Sequence[str]], Sequence[str]]
    """Wraps an argv so that it runs in a namespace."""

# From "ready" of the last worker to the first request, so that every worker knows the moment in advance.
_START_DELAY_NS = 200 * 10**6
_REMOTE_START_DELAY_NS = 10**9
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
_POLL_ALL_S = 0.5
_PAGE_TIMEOUT_S = 60.0
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


class LoadWorker:
    """One worker of a load, as the supervisor sees it. `status` is what it reported last, at least its phase."""

    def __init__(self, plan: LoadPlan) -> None:
        self.plan = plan
        self.status: dict[str, Any] = {"phase": "prepare"}

    @property
    def name(self) -> str:
        """The name in error messages."""
        return f"load worker {self.plan.worker + 1} of {self.plan.workers}"

    @property
    def phase(self) -> str:
        """One of PHASES, "failed", or "fetched"."""
        return str(self.status["phase"])

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


class Workers:
    """The workers of one load: `LocalWorkers`, or those of a fleet (`fleet.roster.FleetWorkers`)."""

    def __init__(self, workers: Sequence[LoadWorker]) -> None:
        self.workers = workers
        self.failed: dict[LoadWorker, None] = {}
        """Those that ended before they were done, in that order."""

    def process_messages(self, timeout_s: float) -> None:
        """Wait for messages and update the status of the workers; return after the first ones or the timeout."""
        raise NotImplementedError

    def spawn_users(self) -> None:
        """Let all workers start their users."""
        raise NotImplementedError

    def begin(self) -> int:
        """Let all workers begin at one moment and return it (our CLOCK_MONOTONIC)."""
        raise NotImplementedError

    def request_end(self) -> None:
        """Let all workers end their load in order."""
        raise NotImplementedError

    def collect(self) -> list[WorkerReport | None]:
        """Bring all samples into our files, on our clock, and return the reports. None: the worker left none."""
        raise NotImplementedError

    def can_salvage(self) -> bool:
        """Return True if the samples of a load that failed can be collected."""
        raise NotImplementedError

    def stop(self) -> None:
        """End all workers; idempotent."""
        raise NotImplementedError

    def wait_until(
        self, is_reached: Callable[[], bool], timeout_s: float | None, *, ignore_failures: bool = False
    ) -> None:
        """Process messages until *is_reached*; RunFailed if a worker fails first, or after the timeout."""
        limit = None if timeout_s is None else time.monotonic() + timeout_s
        while not is_reached():
            self.process_messages(_POLL_S)
            # Only the failed ones, not all workers: this runs for each message of each of them.
            for worker in () if ignore_failures else self.failed:
                raise RunFailed(worker.describe_failure())
            if limit is not None and time.monotonic() > limit:
                phases = ", ".join(f"{worker.name}: {worker.phase}" for worker in self.workers)
                raise RunFailed(f"the load did not reach its next phase within {timeout_s:.0f} s ({phases})")


class LocalWorker(LoadWorker):
    """A worker that is a child process."""

    def __init__(self, plan: LoadPlan, enter: Enter) -> None:
        super().__init__(plan)
        argv = enter(system.build_module_argv("ingest_bench.load.worker"))
        self.child = system.Child(argv, name=self.name, log=plan.log_file)
        self.child.write_line(json.dumps(plan.to_json()))

    def describe_failure(self) -> str:
        """Return its own reason, or how its process ended."""
        if "error" in self.status:
            return super().describe_failure()
        log = f"its log {self.plan.log_file} ends with: {self.child.read_stderr_tail()}"
        return f"{self.name} {self.child.describe_exit()} in phase {self.phase!r}; {log}"


class LocalWorkers(Workers):
    """Workers that are child processes, in the client's namespaces. Create them in the main thread."""

    def __init__(self, plan: LoadPlan, enters: Sequence[Enter]) -> None:
        self._local: list[LocalWorker] = []
        super().__init__(self._local)
        self._selector = selectors.DefaultSelector()
        try:
            for number in range(plan.workers):
                worker = LocalWorker(dataclasses.replace(plan, worker=number), enters[number % len(enters)])
                self._local.append(worker)
                self._selector.register(worker.child.stdout, selectors.EVENT_READ, worker)
        except BaseException:
            self.stop()
            raise

    def process_messages(self, timeout_s: float) -> None:
        """Read the status lines of all children."""
        for key, _ in self._selector.select(timeout_s):
            worker: LocalWorker = key.data
            for line in worker.child.read_lines():
                worker.status.update(json.loads(line))
            has_ended = worker.child.has_ended
            if has_ended:
                self._selector.unregister(key.fileobj)
            if worker.phase == "failed" or (has_ended and worker.phase != "done"):
                self.failed[worker] = None

    def spawn_users(self) -> None:
        """Let all children start their users."""
        self._command({"do": "spawn"})

    def begin(self) -> int:
        """Let all children begin at one moment."""
        start_ns = time.monotonic_ns() + start_delay_ns(len(self._local), is_remote=False)
        self._command({"do": "begin", "start_ns": start_ns})
        return start_ns

    def request_end(self) -> None:
        """Let all children end their load in order."""
        self._command({"do": "end"})

    def collect(self) -> list[WorkerReport | None]:
        """Wait for all children and read their reports; their samples are in our files already."""
        self.stop()
        return [worker.read_report() for worker in self._local]

    def can_salvage(self) -> bool:
        """Return True: the samples are in our files."""
        return True

    def stop(self) -> None:
        """Close all inputs, upon which a child ends its load in order, and kill what is left after 5 s."""
        limit = time.monotonic() + _STOP_GRACE_S
        for worker in self._local:
            worker.child.stdin.close()
        for worker in self._local:
            worker.child.close(max(0.0, limit - time.monotonic()))
        self._selector.close()

    def _command(self, line: Mapping[str, Any]) -> None:
        for worker in self._local:
            worker.child.write_line(json.dumps(line))


class RunningLoad:
    """A running load. Call `wait` once; `stop` at any time."""

    def __init__(self, plan: LoadPlan, workers: Workers, page: LoadPage | None = None) -> None:
        self._plan, self._workers, self._page = plan, workers, page
        self._is_ready = self._must_end = False
        self.measure_start_ns: int | None = None
        """When the measurement starts (CLOCK_MONOTONIC); None until the load has begun."""

    @property
    def pids(self) -> tuple[int, ...]:
        """The workers' processes on this machine."""
        return tuple(worker.child.pid for worker in self._workers.workers if isinstance(worker, LocalWorker))

    def wait(self, on_progress: Callable[[Progress], None]) -> WorkerReport:
        """Return the merged report; RunFailed if the load was hopeless or a worker died (with its name).

        RunAborted if an abort condition of the plan ended it: samples and report are kept.
        """
        try:
            self.wait_until_ready()
            self._begin()
            self._wait_until_done(on_progress)
            merged = merge_reports(list(self._require_reports()))
            write_report(merged, self._plan.folder)
        except RunFailed as error:
            is_aborted = isinstance(error, RunAborted)
            self._salvage(in_order=is_aborted)
            if is_aborted:
                on_progress(self._progress())
            raise
        finally:
            self.stop()
        return merged

    def process_messages(self) -> None:
        """Process messages without waiting."""
        self._workers.process_messages(0)

    def wait_until_ready(self) -> None:
        """Wait until all users have started; RunFailed if that takes too long. `wait` does it too."""
        if self._is_ready:
            return
        workers = self._workers
        workers.wait_until(lambda: self._is_all("prepared"), _PREPARE_TIMEOUT_S)
        workers.spawn_users()
        workers.wait_until(lambda: self._is_all("ready"), _PREPARE_TIMEOUT_S)
        self._is_ready = True

    def request_end(self) -> None:
        """Start no new request: `wait`, maybe in another thread, returns soon, with a report."""
        self._must_end = True

    def stop(self) -> None:
        """End all workers. One that still sends ends its load in order, if that takes at most 5 s."""
        self._workers.stop()
        if self._page is not None:
            self._page.clear()

    def _is_all(self, phase: str) -> bool:
        return all(worker.phase == phase for worker in self._workers.workers)

    def _begin(self) -> None:
        if self._page is not None:
            self._page.show([worker.plan for worker in self._workers.workers])
        self.measure_start_ns = self._workers.begin() + self._plan.options.max_warm_up_ns

    def _wait_until_done(self, on_progress: Callable[[Progress], None]) -> None:
        options = self._plan.options
        monitor = AbortMonitor(options.abort)
        is_end_requested = False
        last_progress_ns = 0

        def is_done() -> bool:
            nonlocal is_end_requested, last_progress_ns
            if self._must_end and not is_end_requested:
                self._workers.request_end()
                is_end_requested = True
            is_done, now_ns = self._is_all("done"), time.monotonic_ns()
            if not is_done and now_ns - last_progress_ns < _PROGRESS_INTERVAL_NS:
                return False
            last_progress_ns = now_ns
            progress = self._progress()
            on_progress(progress)
            if progress.figures is not None and progress.phase == "measure":
                violation = monitor.find_violation(now_ns, progress.figures)
                if violation:
                    raise RunAborted(violation)
            return is_done

        self._workers.wait_until(is_done, (options.max_warm_up_ns + self._plan.measure_ns) / 1e9 + _END_TIMEOUT_S)

    def _require_reports(self) -> Iterator[WorkerReport]:
        for worker, report in zip(self._workers.workers, self._workers.collect(), strict=True):
            if report is None:
                raise RunFailed(f"{worker.name}: left no report")
            yield report

    def _salvage(self, *, in_order: bool) -> None:
        """Keep what was measured: a server that ended out of memory is a result. *in_order*: after the responses."""
        workers = self._workers
        with contextlib.suppress(RunFailed):
            if not workers.can_salvage():
                return
            if in_order or not self.pids:
                workers.request_end()
                workers.wait_until(self._has_sent_all, _END_TIMEOUT_S, ignore_failures=True)
            reports = [report for report in workers.collect() if report is not None]
            if reports and len(reports) == len(workers.workers):
                write_report(merge_reports(reports), self._plan.folder)

    def _has_sent_all(self) -> bool:
        return all(worker.phase == "done" or worker in self._workers.failed for worker in self._workers.workers)

    def _progress(self) -> Progress:
        workers = self._workers.workers
        all_figures = [worker.status["figures"] for worker in workers if "figures" in worker.status]
        seconds_left = (worker.status.get("seconds_left") for worker in workers)
        return Progress(
            phase=min(
                (worker.phase for worker in workers if worker.phase in PHASES), key=PHASES.index, default="measure"
            ),
            documents=sum(worker.status.get("documents", 0) for worker in workers),
            seconds_left=max(filter(None, seconds_left), default=None),
            figures=figures.merge_figures_json(all_figures) if all_figures else None,
        )


def start_load(
    plan: LoadPlan,
    enter: Enter | Sequence[Enter] = tuple,
    fleet: Fleet | None = None,
    *,
    page: LoadPage | None = None,
    reports_figures: bool = False,
) -> RunningLoad:
    """Start the workers of a load; they prepare it. Call it from the main thread.

    *enter* wraps the argv of a worker so that it runs in the client's namespace; of several, workers take each in turn.
    With a *fleet*, its workers send the load where they are.
    """
    plan.folder.mkdir(parents=True, exist_ok=True)
    processes = plan.options.processes if fleet is None else fleet.joined_workers
    # Each needs a user, and a document to send if a number of them ends the load.
    workers = min(processes, plan.users, plan.options.measure_documents or plan.users)
    reports_figures = reports_figures or bool(plan.options.abort)
    plan = dataclasses.replace(plan, workers=workers, reports_figures=reports_figures).with_checked_files()
    if fleet is not None:
        return RunningLoad(plan, fleet.assign(plan))
    return RunningLoad(
        plan, LocalWorkers(plan.with_decompressed_files(), [enter] if callable(enter) else list(enter)), page
    )


def start_delay_ns(workers: int, *, is_remote: bool) -> int:
    """Return how long before its start that many workers are told when a load starts."""
    return (_REMOTE_START_DELAY_NS if is_remote else _START_DELAY_NS) + workers * _START_DELAY_PER_WORKER_NS


class LoadPage:
    """Locust's page for loads of this machine: a child process outside the client's namespace (`load.page`)."""

    def __init__(self, child: system.Child) -> None:
        self._child = child

    def show(self, plans: Sequence[LoadPlan]) -> None:
        """Show the load of these workers."""
        sample_files: dict[str, list[str]] = {}
        for plan in plans:
            sample_files.setdefault(plan.path, []).append(str(plan.sample_file.absolute()))
            if plan.worker_query_users:
                sample_files.setdefault(plan.search_path, []).append(str(plan.query_sample_file.absolute()))
        self._write({"users": plans[0].users + plans[0].options.query_users, "sample_files": sample_files})

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


def wait_for_all(
    loads: Sequence[RunningLoad], ends_all: Sequence[bool], on_progress: Callable[[Progress], None]
) -> list[WorkerReport]:
    """Wait for loads that begin together, and return their reports. Loads marked in *ends_all* end the others.

    RunFailed as soon as one has failed; the others are then ended in order first, and keep their samples.
    """
    for load in loads:
        load.wait_until_ready()
    progress: dict[int, Progress] = {}

    def wait_for_load(number: int) -> WorkerReport:
        return loads[number].wait(lambda latest: progress.update({number: latest}))

    with ThreadPoolExecutor(len(loads)) as threads:
        waits = [threads.submit(wait_for_load, number) for number in range(len(loads))]
        try:
            failed = _wait_until_decided(waits, ends_all, lambda: on_progress(_merge_progress(list(progress.values()))))
        finally:
            for load in loads:
                load.request_end()
            wait_for(waits, return_when=ALL_COMPLETED)
    # The first failure, before what it caused in the other loads.
    return [future.result() for future in (*failed, *waits)][len(failed) :]


def _wait_until_decided(
    waits: Sequence[Future[WorkerReport]], ends_all: Sequence[bool], on_progress: Callable[[], None]
) -> list[Future[WorkerReport]]:
    """Return the failed waits as soon as there is one; [] once all are done, or one that ends the others."""
    pending = set(waits)
    while pending:
        done, pending = wait_for(pending, timeout=_POLL_ALL_S, return_when=FIRST_COMPLETED)
        on_progress()
        failed = [future for future in done if future.exception() is not None]
        if failed or any(ends for future, ends in zip(waits, ends_all, strict=True) if future in done):
            return failed
    return []


def _merge_progress(latest: Sequence[Progress]) -> Progress:
    left = [progress.seconds_left for progress in latest if progress.seconds_left is not None]
    all_figures = [progress.figures for progress in latest if progress.figures is not None]
    return Progress(
        phase=min((progress.phase for progress in latest), key=PHASES.index, default=PHASES[0]),
        documents=sum(progress.documents for progress in latest),
        seconds_left=max(left) if left and len(left) == len(latest) else None,
        figures=functools.reduce(operator.add, all_figures) if all_figures else None,
    )


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
    """Write `load.json`, whole or not at all: if we are killed meanwhile, the results stay readable."""
    new = folder / ".load.json.new"
    with new.open("w") as file:
        file.write(json.dumps({"schema": SCHEMAS["load.json"], **to_json(report)}, indent=1))
        file.flush()
        os.fsync(file.fileno())
    new.replace(folder / "load.json")


def merge_reports(reports: Sequence[WorkerReport]) -> WorkerReport:
    """Merge the reports of all workers: sums are exact, a quantile is that of the worst worker."""
    first, *others = reports
    if not others:
        return first

    def concatenate(items: Iterable[Iterable[Any]]) -> tuple[Any, ...]:
        return tuple(item for part in items for item in part)

    most_lag = max(reports, key=lambda report: report.loop_lag_p99_ns)
    most_delay = max(reports, key=lambda report: report.send_delay_p99_ns)
    names = ["bytes_written", "bytes_unread", "cpu_ns", "documents_resent", "documents_repeated"]
    names += ["arrivals_waited", "arrivals_unsent"]
    sums: dict[str, Any] = {name: sum(getattr(report, name) for report in reports) for name in names}
    return dataclasses.replace(
        first,
        **sums,
        started_monotonic_ns=min(report.started_monotonic_ns for report in reports),
        warm_up_end_ns=max(report.warm_up_end_ns for report in reports),
        measure_end_ns=max(report.measure_end_ns for report in reports),
        local_ports=tuple(sorted({port for report in reports for port in report.local_ports})),
        item_failures=dict(sum((Counter(report.item_failures) for report in reports), Counter())),
        loop_lag_p99_ns=most_lag.loop_lag_p99_ns,
        loop_lag_samples=most_lag.loop_lag_samples,
        send_delay_p99_ns=most_delay.send_delay_p99_ns,
        send_delay_samples=most_delay.send_delay_samples,
        errors=concatenate(report.errors for report in reports),
        longest_heartbeat_gap_ns=max(report.longest_heartbeat_gap_ns for report in reports),
        clock_offsets=concatenate(report.clock_offsets for report in reports),
    )
