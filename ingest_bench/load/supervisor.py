"""The supervisor of a load: starts its workers at one moment, tells their progress, and merges what they report."""

from __future__ import annotations

import dataclasses
import json
import selectors
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from ingest_bench import system
from ingest_bench.errors import RunFailed, SpecError
from ingest_bench.load import reports
from ingest_bench.load.arrivals import parse_recorded
from ingest_bench.load.supply import checked, unpacked
from ingest_bench.model.load import WorkerReport
from ingest_bench.records import from_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ingest_bench.load.plan import LoadPlan

    Enter = Callable[[Sequence[str]], Sequence[str]]

# From "ready" of the last worker to the first request: a moment that every worker still sees coming.
_START_DELAY_NS = 100 * 10**6
_PREPARE_LIMIT_S = 300.0
# What a worker may need beyond its plan: the drain (load.worker) and its report.
_END_LIMIT_S = 60.0
_LOG_TAIL_BYTES = 1500


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a load is, all workers together."""

    phase: str
    """ "prepare", "warm-up", "measure", "drain" or "done"."""
    documents: int
    """Acknowledged so far."""
    seconds_left: float | None
    """None: until everything is sent."""


class _Worker:
    """One child and the last line it said."""

    def __init__(self, plan: LoadPlan, popen: subprocess.Popen[bytes]) -> None:
        self.plan = plan
        self.popen = popen
        self.said: dict[str, Any] = {"phase": "prepare"}
        self._unread = b""

    @property
    def name(self) -> str:
        """What errors call it."""
        return f"load worker {self.plan.worker + 1} of {self.plan.workers}"

    @property
    def stdout(self) -> IO[bytes]:
        """The protocol's pipe."""
        assert self.popen.stdout is not None  # noqa: S101 - it was started with one
        return self.popen.stdout

    def hear(self) -> bool:
        """Whether it can still say something; what it said is in `said`."""
        got = self.stdout.read1(65536)  # type: ignore[attr-defined] # a BufferedReader, as subprocess opens pipes
        *lines, self._unread = (self._unread + got).split(b"\n")
        for line in lines:
            try:
                self.said.update(json.loads(line))
            except ValueError:
                continue
        return bool(got)

    def tell(self, line: dict[str, Any]) -> None:
        """One line to its standard input; a worker that has ended does not hear it."""
        assert self.popen.stdin is not None  # noqa: S101 - it was started with one
        try:
            self.popen.stdin.write(json.dumps(line).encode() + b"\n")
            self.popen.stdin.flush()
        except BrokenPipeError:
            return

    def death(self) -> str:
        """Why it ended before it was done."""
        if "error" in self.said:
            return str(self.said["error"])
        code = self.popen.wait()
        log = self.plan.log.read_bytes()[-_LOG_TAIL_BYTES:].decode("utf-8", "replace").strip()
        ended = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return f"{self.name} {ended} in phase {self.said['phase']!r}; its log {self.plan.log} says: {log or 'nothing'}"


class LoadProcess:
    """A running load. `wait` once; `stop` at any time."""

    def __init__(self, workers: Sequence[_Worker]) -> None:
        self._workers = workers
        self._plan = workers[0].plan
        self.measure_start_ns: int | None = None
        """When the measurement begins (CLOCK_MONOTONIC); None until the load has begun."""

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes that were started (inside a namespace: of what entered it)."""
        return tuple(worker.popen.pid for worker in self._workers)

    def wait(self, on_progress: Callable[[Progress], None]) -> WorkerReport:
        """The whole load's report; RunFailed when it was hopeless, or when a worker died (its name is said)."""
        try:
            self._until(lambda: all(worker.said["phase"] == "ready" for worker in self._workers), _PREPARE_LIMIT_S)
            start_ns = time.monotonic_ns() + _START_DELAY_NS
            self.measure_start_ns = start_ns + self._plan.options.warm_up_ns
            for worker in self._workers:
                worker.tell({"start_ns": start_ns})
            options = self._plan.options
            limit_s = (options.warm_up_ns + options.measure_ns) / 1e9 + _END_LIMIT_S
            self._until(lambda: all(worker.said["phase"] == "done" for worker in self._workers), limit_s, on_progress)
        except RunFailed:
            self.stop()
            # What was measured until then is kept: the server may have ended out of memory, which is a result.
            if all(worker.plan.report.exists() for worker in self._workers):
                self._merged()
            raise
        finally:
            self.stop()
        return self._merged()

    def _merged(self) -> WorkerReport:
        report = reports.merge([_read_report(worker) for worker in self._workers])
        reports.write(report, self._plan.out)
        return report

    def stop(self) -> None:
        """No worker runs any more. One that still sends ends its load in order, if that takes no more than 5 s."""
        for worker in self._workers:
            if worker.popen.poll() is None and worker.said["phase"] != "done":
                worker.popen.terminate()
        for worker in self._workers:
            system.stop(worker.popen)
            for pipe in (worker.popen.stdin, worker.popen.stdout):
                if pipe is not None:
                    pipe.close()

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
                selector.register(worker.stdout, selectors.EVENT_READ, worker)
            while not reached():
                ready = selector.select(max(0.0, limit - time.monotonic()))
                if not ready:
                    phases = ", ".join(f"{worker.name}: {worker.said['phase']}" for worker in self._workers)
                    raise RunFailed(f"the load did not get on within {limit_s:.0f} s ({phases})")
                for key, _ in ready:
                    self._hear(key.data, selector)
                if on_progress is not None:
                    on_progress(self._progress())

    def _hear(self, worker: _Worker, selector: selectors.BaseSelector) -> None:
        if worker.hear():
            return
        selector.unregister(worker.stdout)
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


def start(plan: LoadPlan, enter: Enter = tuple) -> LoadProcess:
    """The load's worker processes, preparing. `enter` wraps an argv so that it runs in the client's namespace.

    Call it from the main thread: the children die with the thread that forked them.
    """
    plan.out.mkdir(parents=True, exist_ok=True)
    plan = unpacked(checked(dataclasses.replace(plan, workers=min(plan.options.processes, plan.users))))
    if plan.options.arrivals.file is not None:
        plan = dataclasses.replace(plan, recorded_ns=_recorded(Path(plan.options.arrivals.file)))
    workers: list[_Worker] = []
    try:
        workers.extend(_start_worker(own, enter) for own in _shares(plan))
    except BaseException:
        LoadProcess(workers).stop() if workers else None
        raise
    return LoadProcess(workers)


def _recorded(path: Path) -> tuple[int, ...]:
    try:
        return parse_recorded(path.read_text(), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"load: arrivals: {path} cannot be read ({error})") from None


def _shares(plan: LoadPlan) -> Iterator[LoadPlan]:
    for number in range(plan.workers):
        yield dataclasses.replace(plan, worker=number)


def _start_worker(plan: LoadPlan, enter: Enter) -> _Worker:
    for old in (plan.samples, plan.report):
        old.unlink(missing_ok=True)
    argv = enter((sys.executable, "-m", "ingest_bench.load.worker", str(plan.write())))
    with plan.log.open("wb") as log:
        popen = system.start(argv, stdout=subprocess.PIPE, stdin=subprocess.PIPE, stderr=log.fileno())
    return _Worker(plan, popen)


def _read_report(worker: _Worker) -> WorkerReport:
    try:
        return from_json(WorkerReport, json.loads(worker.plan.report.read_text()))
    except (OSError, ValueError) as error:
        raise RunFailed(f"{worker.name}: its report {worker.plan.report} cannot be read ({error})") from None
