"""Faults: what happens to a link or a server at a moment of a run, and how it ends again."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ingest_bench import catalog, network
from ingest_bench.errors import IngestBenchError, RunFailed, SpecError
from ingest_bench.model.experiment import Cell, Fault
from ingest_bench.model.network import Profile
from ingest_bench.model.results import Happened
from ingest_bench.network import Link

Act = Callable[[], object]
_NEEDS_TIME = ("partition", "blackhole", "profile", "pause")


@dataclass(frozen=True, slots=True)
class Stage:
    """What faults act on: the link, and the server's JVM."""

    link: Link | None
    jvm_pid: int | None


def check(cell: Cell) -> None:
    """Refuse faults that cannot happen as written, before anything starts."""
    if cell.faults and cell.load.measure_documents is not None:
        raise SpecError("faults and a number of documents: their moments are counted in a measurement of known length")
    for fault in cell.faults:
        if fault.kind in _NEEDS_TIME and fault.for_ns <= 0:
            raise SpecError(f'fault {fault.kind}: how long does it last? Add for = "5s"')
        if fault.at_ns + fault.for_ns > cell.load.measure_ns:
            raise SpecError(f"fault {fault.kind}: it ends after the measurement; measure longer")
        if (fault.kind == "profile") != (fault.profile is not None):
            raise SpecError(f'fault {fault.kind}: only kind "profile" has a profile, and it needs one')
        if fault.profile is None or cell.network is None:
            continue
        if catalog.profile(fault.profile, {}).medium != cell.network.medium:
            raise SpecError(
                f'fault profile: a link of profile "{cell.network.name}" cannot turn into "{fault.profile}"; '
                "loopback and veth are different devices"
            )


def states(cell: Cell) -> tuple[Profile, ...]:
    """The states that faults will bring the link into: netem must be there for them from the start."""
    return tuple(catalog.profile(fault.profile, {}) for fault in cell.faults if fault.profile is not None)


@contextlib.contextmanager
def happening(
    faults: tuple[Fault, ...], stage: Stage, measure_start_ns: Callable[[], int | None]
) -> Iterator[Following]:
    """While the block lasts, each fault happens at its moment; each that began has ended when the block ends.

    `measure_start_ns` says when the measurement begins (CLOCK_MONOTONIC), None as long as nobody knows.
    """
    happened = Following(faults, stage, measure_start_ns)
    if not faults:
        yield happened
        return
    thread = threading.Thread(target=happened.follow, name="faults", daemon=True)
    thread.start()
    try:
        yield happened
    finally:
        happened.over.set()
        thread.join()
    if happened.error is not None:
        raise RunFailed(f"fault: {happened.error}")


class Following:
    """The faults of a run, and what became of them."""

    def __init__(self, faults: tuple[Fault, ...], stage: Stage, measure_start_ns: Callable[[], int | None]) -> None:
        self.over = threading.Event()
        self.error: Exception | None = None
        self.records: list[Happened] = []
        self._stage = stage
        self._measure_start_ns = measure_start_ns
        begins = [(fault.at_ns, 1, number, fault) for number, fault in enumerate(faults)]
        ends = [(fault.at_ns + fault.for_ns, 0, number, fault) for number, fault in enumerate(faults) if fault.for_ns]
        self._moments = sorted(begins + ends, key=lambda moment: moment[:3])
        self._ends: dict[int, tuple[Act, int]] = {}

    def follow(self) -> None:
        """Let each fault begin and end at its moment."""
        try:
            for at_ns, begins, number, fault in self._moments:
                if not self._wait_until(at_ns):
                    return
                if begins:
                    self._begin(number, fault)
                else:
                    self._end(number)
        except (IngestBenchError, OSError) as error:
            self.error = error
        finally:
            for number in list(self._ends):
                self._end(number)

    def _wait_until(self, at_ns: int) -> bool:
        """Whether that moment of the measurement came before the block ended."""
        while (start_ns := self._measure_start_ns()) is None:
            if self.over.wait(0.02):
                return False
        return not self.over.wait(max(0, start_ns + at_ns - time.monotonic_ns()) / 1e9)

    def _begin(self, number: int, fault: Fault) -> None:
        direction = "" if fault.kind == "reset" else fault.direction
        self.records.append(Happened(kind=fault.kind, started=time.time_ns(), direction=direction))
        self._ends[number] = (begin(fault, self._stage), len(self.records) - 1)
        if not fault.for_ns:
            self._end(number)

    def _end(self, number: int) -> None:
        if number not in self._ends:
            return
        end, place = self._ends.pop(number)
        end()
        self.records[place] = dataclasses.replace(self.records[place], ended=time.time_ns())


def begin(fault: Fault, stage: Stage) -> Act:
    """Let a fault begin; what is returned ends it."""
    if fault.kind == "pause":
        return _pause(stage)
    if stage.link is None:
        raise SpecError(f"fault {fault.kind}: it needs a link of ours")
    named = {fault.profile: catalog.profile(fault.profile, {})} if fault.profile is not None else {}
    ending = contextlib.ExitStack()
    ending.enter_context(network.fault(stage.link, fault, named))
    return ending.close


def _pause(stage: Stage) -> Act:
    """The JVM stands still, as in a long stop-the-world pause."""
    pid = stage.jvm_pid
    if pid is None:
        raise SpecError("fault pause: it needs the server's process on this machine")
    os.kill(pid, signal.SIGSTOP)

    def go_on() -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    return go_on
