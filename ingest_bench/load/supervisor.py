"""The supervisor of a load: starts its workers at one moment, tells their progress, and merges what they report."""

from __future__ import annotations

import contextlib
import dataclasses
import selectors
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ingest_bench.errors import RunFailed, SpecError
from ingest_bench.load import reports
from ingest_bench.load.arrivals import parse_recorded
from ingest_bench.load.workers import LocalWorker, start_local
from ingest_bench.model.load import WorkerReport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ingest_bench.load.plan import LoadPlan
    from ingest_bench.load.remote import RemoteWorker
    from ingest_bench.load.workers import Enter, Worker

# From "ready" of the last worker to the first request: a moment that every worker still sees coming.
_START_DELAY_NS = 100 * 10**6
_REMOTE_START_DELAY_NS = 10**9
_LOOK_S = 1.0
_PREPARE_LIMIT_S = 300.0
# What a worker may need beyond its plan: the drain (load.worker) and its report.
_END_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a load is, all workers together."""

    phase: str
    """ "prepare", "warm-up", "measure", "drain" or "done"."""
    documents: int
    """Acknowledged so far."""
    seconds_left: float | None
    """None: until everything is sent."""


class LoadProcess:
    """A running load. `wait` once; `stop` at any time."""

    def __init__(self, plan: LoadPlan, workers: Sequence[Worker]) -> None:
        self._workers = workers
        self._plan = plan
        self.measure_start_ns: int | None = None
        """When the measurement begins (CLOCK_MONOTONIC); None until the load has begun."""

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes that were started here (inside a namespace: of what entered it)."""
        return tuple(worker.popen.pid for worker in self._workers if isinstance(worker, LocalWorker))

    def wait(self, on_progress: Callable[[Progress], None]) -> WorkerReport:
        """The whole load's report; RunFailed when it was hopeless, or when a worker died (its name is said)."""
        try:
            self._until(lambda: all(worker.said["phase"] == "ready" for worker in self._workers), _PREPARE_LIMIT_S)
            near = all(isinstance(worker, LocalWorker) for worker in self._workers)
            start_ns = time.monotonic_ns() + (_START_DELAY_NS if near else _REMOTE_START_DELAY_NS)
            self.measure_start_ns = start_ns + self._plan.options.longest_warm_up_ns
            for worker in self._workers:
                worker.begin(start_ns)
            options = self._plan.options
            limit_s = (options.longest_warm_up_ns + self._plan.measure_ns) / 1e9 + _END_LIMIT_S
            self._until(lambda: all(worker.said["phase"] == "done" for worker in self._workers), limit_s, on_progress)
            return self._merged()
        except RunFailed:
            self._salvage()
            raise
        finally:
            self.stop()

    def stop(self) -> None:
        """No worker runs any more. One that still sends ends its load in order, if that takes no more than 5 s."""
        for orderly in (True, False):
            for worker in self._workers:
                worker.stop(orderly=orderly)

    def _salvage(self) -> None:
        """What was measured until then is kept: the server may have ended out of memory, which is a result."""
        for worker in self._workers:
            worker.stop(orderly=True)
        found = []
        for worker in self._workers:
            with contextlib.suppress(RunFailed):
                found.append(worker.collect())
        whole = [report for report in found if report is not None]
        if len(whole) == len(self._workers):
            reports.write(reports.merge(whole), self._plan.out)

    def _merged(self) -> WorkerReport:
        found = []
        for worker in self._workers:
            report = worker.collect()
            if report is None:
                raise RunFailed(f"{worker.name}: left no report")
            found.append(report)
        merged = reports.merge(found)
        reports.write(merged, self._plan.out)
        return merged

    def _until(
        self,
        reached: Callable[[], bool],
        limit_s: float,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> None:
        """Returns once it is reached; RunFailed when a worker ends before or the time is over."""
        limit = time.monotonic() + limit_s
        with selectors.DefaultSelector() as selector:
            for worker in self._workers:
                selector.register(worker, selectors.EVENT_READ, worker)
            while not reached():
                for key, _ in selector.select(_LOOK_S):
                    self._hear(key.data, selector)
                for worker in self._workers:
                    if worker.is_silent:
                        raise RunFailed(worker.death())
                if time.monotonic() > limit:
                    phases = ", ".join(f"{worker.name}: {worker.said['phase']}" for worker in self._workers)
                    raise RunFailed(f"the load did not get on within {limit_s:.0f} s ({phases})")
                if on_progress is not None:
                    on_progress(self._progress())

    def _hear(self, worker: Worker, selector: selectors.BaseSelector) -> None:
        if worker.hear():
            return
        selector.unregister(worker)
        if worker.said["phase"] != "done":
            raise RunFailed(worker.death())

    def _progress(self) -> Progress:
        order = ("prepare", "ready", "warm-up", "measure", "drain", "done")
        phases = [worker.said["phase"] for worker in self._workers]
        return Progress(
            phase=min((phase for phase in phases if phase in order), key=order.index, default="measure"),
            documents=sum(worker.said.get("documents", 0) for worker in self._workers),
            seconds_left=max(filter(None, (worker.said.get("seconds_left") for worker in self._workers)), default=None),
        )


def start(plan: LoadPlan, enter: Enter | Sequence[Enter] = tuple, joined: Sequence[RemoteWorker] = ()) -> LoadProcess:
    """The load's worker processes, preparing. `enter` wraps an argv so that it runs in the client's namespace.

    With several `enter` the workers take them in turn; workers that have `joined` from other machines take their place.
    Call it from the main thread: the children die with the thread that forked them.
    """
    plan.out.mkdir(parents=True, exist_ok=True)
    plan = dataclasses.replace(plan, workers=min(len(joined) or plan.options.processes, plan.users)).checked()
    if plan.options.arrivals.file is not None:
        plan = dataclasses.replace(plan, recorded_ns=_recorded(Path(plan.options.arrivals.file)))
    workers: list[Worker] = []
    try:
        if joined:
            workers.extend(joined[: plan.workers])
            for worker, own in zip(joined, _shares(plan), strict=False):
                worker.assign(own)
        else:
            enters = [enter] if callable(enter) else list(enter)
            workers.extend(start_local(own, enters[own.worker % len(enters)]) for own in _shares(plan.unpacked()))
    except BaseException:
        LoadProcess(plan, workers).stop()
        raise
    return LoadProcess(plan, workers)


def _recorded(path: Path) -> tuple[int, ...]:
    try:
        return parse_recorded(path.read_text(), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"load: arrivals: {path} cannot be read ({error})") from None


def _shares(plan: LoadPlan) -> Iterator[LoadPlan]:
    for number in range(plan.workers):
        yield dataclasses.replace(plan, worker=number)
