"""Load workers on other machines, as the supervisor sees them: their clocks are measured, their samples come here.

They join once and send all loads of an experiment. One that is lost is not replaced: the loads after it fail at once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ingest_bench.errors import RunFailed
from ingest_bench.load import wire
from ingest_bench.load.workers import read_report
from ingest_bench.model.load import ClockOffset, WorkerReport
from ingest_bench.model.samples import SAMPLE, TIMES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ingest_bench.load.plan import LoadPlan
    from ingest_bench.load.wire import Wire
    from ingest_bench.model.target import Endpoint

_PINGS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """Where workers from other machines may join a load."""

    bind: Endpoint
    workers: int
    secret: str = field(default="", repr=False)
    patience_s: float = 300.0
    """How long they are waited for."""


class RemoteWorker:
    """A worker that joined. Its agent (`load.agent`) runs a local one there and passes on what it says."""

    def __init__(self, wire: Wire, machine: str) -> None:
        self.said: dict[str, Any] = {"phase": "prepare"}
        self.plan: LoadPlan | None = None
        """Of the load that it is at."""
        self.machine = machine
        self._wire = wire
        self._clock = ClockOffset(worker=0)
        self._heard = time.monotonic()
        self._lost = ""

    @property
    def name(self) -> str:
        """What errors call it."""
        who = f"{self.machine}, {self._wire.partner}"
        plan = self.plan
        return f"load worker {who}" if plan is None else f"load worker {plan.worker + 1} of {plan.workers} ({who})"

    def fileno(self) -> int:
        """Its connection."""
        return self._wire.sock.fileno()

    @property
    def is_silent(self) -> bool:
        """Whether nothing came for so long that it must be gone: with a load it says something every second."""
        return time.monotonic() - self._heard > wire.SILENCE_S

    def assign(self, plan: LoadPlan) -> None:
        """It prepares this share of the load, in a folder of its own machine; RunFailed when it is gone."""
        self.plan = plan
        for old in (plan.samples, plan.queries, plan.report):
            old.unlink(missing_ok=True)
        with self._or_lost("is gone"):
            before_ns, round_trip_ns = self._measure_clock()
            # Behind the clock's answers: what the load before this one still said has been read.
            self.said = {"phase": "prepare"}
            self._wire.send(load=plan.table(), files=_sizes(plan))
        self._clock = ClockOffset(
            worker=plan.worker,
            machine=f"{self.machine}, {self._wire.partner}",
            before_ns=before_ns,
            round_trip_ns=round_trip_ns,
        )
        self._heard = time.monotonic()

    def hear(self) -> bool:
        """Whether it is still there."""
        try:
            lines = self._wire.read()
        except RunFailed as error:
            self._lost = str(error)
            return False
        self._heard = time.monotonic()
        for line in lines or ():
            self.said.update(line)
        if lines is None:
            self._lost = f"{self._wire.partner}: closed the connection"
        return lines is not None and self.said["phase"] != "failed"

    def begin(self, start_ns: int) -> None:
        """It hears the same moment on its own clock."""
        with contextlib.suppress(RunFailed), self._or_lost("is gone"):
            self._wire.send(start_ns=start_ns + self._clock.before_ns)

    def death(self) -> str:
        """What it said itself, or that it is gone."""
        why = f" ({self._lost})" if self._lost else ""
        said = self.said.get("error", f"is gone in phase {self.said['phase']!r}{why}")
        return f"{self.name}: {said}"

    def stop(self, *, orderly: bool) -> None:
        """Its agent ends the load, and waits for the next one. In order is what `collect` does."""
        if orderly or self.plan is None or self._lost:
            return
        self.plan = None
        with contextlib.suppress(RunFailed), self._or_lost("is gone"):
            self._wire.send(stop=True)

    def collect(self) -> WorkerReport | None:
        """Its report, and its samples here with our clock's times. It is free for the next load."""
        plan = self.plan
        assert plan is not None  # noqa: S101 - it was assigned one
        with self._or_lost("its samples did not arrive"):
            after_ns, _ = self._measure_clock()
            self._wire.send(collect=True)
            for path in (*plan.sample_files, plan.report):
                self._wire.receive_file(path)
        self._clock = dataclasses.replace(self._clock, after_ns=after_ns)
        offset_ns = (self._clock.before_ns + self._clock.after_ns) // 2
        for path in plan.sample_files:
            shift_samples(path, -offset_ns)
        report = read_report(plan, self.name)
        self.plan = None
        return None if report is None else shifted(report, self._clock, offset_ns)

    def dismiss(self) -> None:
        """It hears that there are no more loads."""
        with contextlib.suppress(RunFailed):
            self._wire.send(dismissed=True)

    def close(self) -> None:
        """No connection. Without `dismiss` its agent takes that for our death."""
        self._wire.close()

    @contextlib.contextmanager
    def _or_lost(self, what: str) -> Iterator[None]:
        """RunFailed with its name for what goes wrong on the wire; then it is lost for all that follows."""
        if self._lost:
            raise RunFailed(f"{self.name}: {what} ({self._lost})")
        try:
            yield
        except RunFailed as error:
            self._lost = f"{error}; it said: {self.said['error']}" if "error" in self.said else str(error)
            raise RunFailed(f"{self.name}: {what} ({self._lost})") from None

    def _measure_clock(self) -> tuple[int, int]:
        """How far its CLOCK_MONOTONIC is ahead of ours, and the round trip of the best of some questions."""
        found = []
        for number in range(_PINGS):
            asked_ns = time.monotonic_ns()
            self._wire.send(ping=number)
            while (answer := self._wire.ask()).get("pong") != number:
                self.said.update(answer)
                if time.monotonic_ns() - asked_ns > wire.SILENCE_S * 1e9:
                    raise RunFailed(f"{self._wire.partner}: does not tell its time")
            heard_ns = time.monotonic_ns()
            found.append((heard_ns - asked_ns, int(answer["monotonic_ns"]) - (asked_ns + heard_ns) // 2))
        round_trip_ns, offset_ns = min(found)
        return offset_ns, round_trip_ns


@contextlib.contextmanager
def joined(remote: Remote, tell: Callable[[str], None]) -> Iterator[tuple[RemoteWorker, ...]]:
    """The workers that joined, for all loads of the block; when it ends well they hear that it was all.

    RunFailed when they do not come in time. `tell` gets a line about what is waited for, and one for each that joins.
    """
    with contextlib.ExitStack() as stack:
        workers = gather(remote, tell)
        for worker in workers:
            stack.callback(worker.close)
        yield tuple(workers)
        for worker in workers:
            worker.dismiss()


def gather(remote: Remote, tell: Callable[[str], None]) -> list[RemoteWorker]:
    """So many workers as were asked for, each of which knew the secret; RunFailed when they do not come in time."""
    wire.check_bind(remote.bind, remote.secret)
    found: list[RemoteWorker] = []
    refused: list[str] = []
    deadline = time.monotonic() + remote.patience_s
    try:
        family = socket.AF_INET6 if ":" in remote.bind.host else socket.AF_INET
        with socket.create_server((remote.bind.host, remote.bind.port), family=family, backlog=16) as listener:
            tell(f"waiting on {remote.bind} for {remote.workers} x `ingest-bench worker --connect`")
            while len(found) < remote.workers:
                listener.settimeout(max(0.01, deadline - time.monotonic()))
                accepted, _ = listener.accept()
                with contextlib.ExitStack() as unless_admitted:
                    unless_admitted.callback(accepted.close)
                    try:
                        found.append(RemoteWorker(*wire.admit(accepted, remote.secret)))
                    except RunFailed as error:
                        refused.append(str(error))
                        tell(f"refused: {error}")
                        continue
                    unless_admitted.pop_all()
                    tell(f"{found[-1].name} joined")
    except BaseException as error:
        for worker in found:
            worker.close()
        if isinstance(error, TimeoutError):
            came = f"{len(found)} of {remote.workers} workers joined on {remote.bind} in {remote.patience_s:.0f} s"
            raise RunFailed("; ".join([came, *refused[-3:]])) from None
        if isinstance(error, OSError):
            raise RunFailed(f"{remote.bind}: workers cannot join there ({error.strerror})") from None
        raise
    return found


def _sizes(plan: LoadPlan) -> dict[str, int]:
    """The files that each machine needs, as large as ours: every worker reads its own part of them."""
    step = [] if plan.step is None else [file.path for file in plan.step.files]
    return {path: Path(path).stat().st_size for path in (*([plan.corpus] if plan.corpus else ()), *step)}


def shift_samples(path: Path, shift_ns: int) -> None:
    """The same samples, their times moved by so much."""
    samples = np.fromfile(path, dtype=SAMPLE)
    for name in TIMES:
        samples[name] += shift_ns
    samples.tofile(path)


def shifted(report: WorkerReport, clock: ClockOffset, offset_ns: int) -> WorkerReport:
    """The report of a worker, on our clock."""
    return dataclasses.replace(
        report,
        started_monotonic_ns=report.started_monotonic_ns - offset_ns,
        realtime_minus_monotonic_ns=time.time_ns() - time.monotonic_ns(),
        warm_up_end_ns=report.warm_up_end_ns - offset_ns,
        measure_end_ns=report.measure_end_ns - offset_ns,
        clock_offsets=(clock,),
    )
