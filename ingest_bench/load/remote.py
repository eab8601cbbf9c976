"""Load workers on other machines, as the supervisor sees them: their clocks are measured, their samples come here."""

from __future__ import annotations

import dataclasses
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ingest_bench.errors import RunFailed
from ingest_bench.load import wire
from ingest_bench.load.workers import read_report
from ingest_bench.model.load import SAMPLE_FIELDS, ClockOffset, WorkerReport

if TYPE_CHECKING:
    from pathlib import Path

    from ingest_bench.load.plan import LoadPlan
    from ingest_bench.load.wire import Wire
    from ingest_bench.model.target import Endpoint

_PINGS = 20
_TIMES = ("planned_ns", "sent_ns", "done_ns")


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """Where workers from other machines may join a load."""

    bind: Endpoint
    workers: int
    secret: str = ""
    patience_s: float = 300.0
    """How long they are waited for."""


class RemoteWorker:
    """A worker that joined. Its agent (`load.agent`) runs a local one there and passes on what it says."""

    def __init__(self, wire: Wire, machine: str) -> None:
        self.said: dict[str, Any] = {"phase": "prepare"}
        self.plan: LoadPlan
        self._wire = wire
        self._machine = machine
        self._clock = ClockOffset(worker=0)
        self._heard = time.monotonic()

    @property
    def name(self) -> str:
        """What errors call it."""
        return f"load worker {self.plan.worker + 1} of {self.plan.workers} ({self._machine}, {self._wire.partner})"

    def fileno(self) -> int:
        """Its connection."""
        return self._wire.sock.fileno()

    @property
    def is_silent(self) -> bool:
        """Whether nothing came for so long that it must be gone: an agent says something every second."""
        return time.monotonic() - self._heard > wire.SILENCE_S

    def assign(self, plan: LoadPlan) -> None:
        """It prepares this share of the load, in a folder of its own machine."""
        self.plan = plan
        for old in (plan.samples, plan.queries, plan.report):
            old.unlink(missing_ok=True)
        before = self._measure_clock()
        self._clock = ClockOffset(worker=plan.worker, before_ns=before[0], round_trip_ns=before[1])
        self._wire.send(plan=plan.table())
        self._heard = time.monotonic()

    def hear(self) -> bool:
        """Whether it is still there."""
        try:
            lines = self._wire.read()
        except RunFailed:
            return False
        self._heard = time.monotonic()
        for line in lines or ():
            self.said.update(line)
        return lines is not None and self.said["phase"] != "failed"

    def begin(self, start_ns: int) -> None:
        """It hears the same moment on its own clock."""
        try:
            self._wire.send(start_ns=start_ns + self._clock.before_ns)
        except RunFailed:
            return

    def death(self) -> str:
        """What it said itself, or that it is gone."""
        said = self.said.get("error", f"is gone in phase {self.said['phase']!r}")
        return f"{self.name}: {said}"

    def stop(self, *, orderly: bool) -> None:
        """Its agent ends it when the connection ends."""
        if not orderly:
            self._wire.close()

    def collect(self) -> WorkerReport | None:
        """Its report, and its samples here with our clock's times."""
        try:
            after = self._measure_clock()
            self._clock = dataclasses.replace(self._clock, after_ns=after[0])
            self._wire.send(collect=True)
            for path in (*self.plan.sample_files, self.plan.report):
                self._wire.receive_file(path)
        except RunFailed as error:
            raise RunFailed(f"{self.name}: its samples did not arrive: {error}") from None
        offset_ns = (self._clock.before_ns + self._clock.after_ns) // 2
        for path in self.plan.sample_files:
            shift_samples(path, -offset_ns)
        report = read_report(self.plan, self.name)
        return None if report is None else shifted(report, self._clock, offset_ns)

    def _measure_clock(self) -> tuple[int, int]:
        """How far its CLOCK_MONOTONIC is ahead of ours, and the round trip of the best of some questions."""
        found = []
        for number in range(_PINGS):
            asked_ns = time.monotonic_ns()
            self._wire.send(ping=number)
            while (answer := self._wire.ask()).get("pong") != number:
                self.said.update(answer)
                if time.monotonic_ns() - asked_ns > wire.SILENCE_S * 1e9:
                    raise RunFailed(f"{self._machine}, {self._wire.partner}: does not tell its time")
            heard_ns = time.monotonic_ns()
            found.append((heard_ns - asked_ns, int(answer["monotonic_ns"]) - (asked_ns + heard_ns) // 2))
        round_trip_ns, offset_ns = min(found)
        return offset_ns, round_trip_ns


def gather(remote: Remote) -> list[RemoteWorker]:
    """So many workers as were asked for, each of which knew the secret; RunFailed when they do not come in time."""
    wire.check_bind(remote.bind, remote.secret)
    joined: list[RemoteWorker] = []
    refused: list[str] = []
    deadline = time.monotonic() + remote.patience_s
    try:
        with socket.create_server((remote.bind.host, remote.bind.port), backlog=16) as listener:
            while len(joined) < remote.workers:
                listener.settimeout(max(0.01, deadline - time.monotonic()))
                accepted, _ = listener.accept()
                try:
                    joined.append(RemoteWorker(*wire.admit(accepted, remote.secret)))
                except RunFailed as error:
                    refused.append(str(error))
                    accepted.close()
    except BaseException as error:
        for worker in joined:
            worker.stop(orderly=False)
        if isinstance(error, TimeoutError):
            came = f"{len(joined)} of {remote.workers} workers joined on {remote.bind} in {remote.patience_s:.0f} s"
            raise RunFailed("; ".join([came, *refused[-3:]])) from None
        if isinstance(error, OSError):
            raise RunFailed(f"{remote.bind}: workers cannot join there ({error.strerror})") from None
        raise
    return joined


def shift_samples(path: Path, shift_ns: int) -> None:
    """The same samples, their times moved by so much."""
    samples = np.fromfile(path, dtype=np.dtype(list(SAMPLE_FIELDS)))
    for field in _TIMES:
        samples[field] += shift_ns
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
