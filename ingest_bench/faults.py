"""Faults: what happens to a link or a server at a moment of a run, and how it ends again."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import heapq
import itertools
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ingest_bench import catalog, network
from ingest_bench.coherence import coherent
from ingest_bench.errors import IngestBenchError, RunFailed, SpecError
from ingest_bench.model.experiment import Cell, Fault
from ingest_bench.model.network import Impairment, LinkName, Profile
from ingest_bench.model.results import Happened
from ingest_bench.network import Direction, Links

Act = Callable[[], object]
_NEEDS_TIME = ("partition", "blackhole", "profile", "throttle", "pause")


@dataclass(frozen=True, slots=True)
class Stage:
    """What faults act on: the links, the JVMs of the server's nodes, and what these have in memory."""

    links: Links | None
    jvm_pids: tuple[int, ...]
    flush: Act | None = None
    """Returns when the nodes have written it to files."""
    paused: Counter[int] = field(default_factory=Counter)
    """How many pauses of each JVM last now."""


def check(cell: Cell) -> None:
    """Refuse faults that cannot happen as written, before anything starts."""
    ends_by_itself = cell.load.measure_documents is None
    if not ends_by_itself and not all(fault.every_ns for fault in cell.faults):
        raise SpecError(
            "faults and a number of documents: their moments are counted in a measurement of known length; only one "
            'that happens again and again needs none: every = "5s"'
        )
    for fault in cell.faults:
        if fault.kind in _NEEDS_TIME and fault.for_ns <= 0:
            raise SpecError(f'fault {fault.kind}: how long does it last? Add for = "5s"')
        if 0 < fault.every_ns <= fault.for_ns:
            raise SpecError(f"fault {fault.kind}: it would begin again before it has ended; every is longer than for")
        if ends_by_itself and fault.at_ns + fault.for_ns > cell.load.measure_ns:
            raise SpecError(f"fault {fault.kind}: it ends after the measurement; measure longer")
        _check_kind(cell, fault)


def _check_kind(cell: Cell, fault: Fault) -> None:
    """Refuse what a fault of another kind has, or one on another link."""
    if (fault.kind == "profile") != (fault.profile is not None):
        raise SpecError(f'fault {fault.kind}: only kind "profile" has a profile, and it needs one')
    if fault.kind in ("reset", "flush") and fault.for_ns:
        raise SpecError(f"fault {fault.kind}: it has no length; take for out")
    if fault.kind in ("pause", "flush") and fault.link == "peers":
        raise SpecError(f"fault {fault.kind}: it is none of a link; take link out")
    if fault.kind in ("reset", "pause", "flush", "profile", "throttle") and fault.direction != "both":
        raise SpecError(f"fault {fault.kind}: it has no direction; take direction out")
    if fault.kind == "flush" and fault.node is not None:
        raise SpecError("fault flush: it is one of all nodes at once; take node out")
    throttles = fault.rate_bps is not None or fault.delay_ns is not None
    if (fault.kind == "throttle") != throttles:
        raise SpecError(f'fault {fault.kind}: only kind "throttle" has a rate or a delay, and it needs one of them')
    if fault.kind == "throttle" and cell.network is not None and cell.network.medium == "loopback":
        raise SpecError('fault throttle: a loopback link has one device for both directions; use medium = "veth"')
    if fault.profile is None or cell.network is None:
        return
    if catalog.profile(fault.profile, {}).medium != cell.network.medium:
        raise SpecError(
            f'fault profile: a link of profile "{cell.network.name}" cannot turn into "{fault.profile}"; '
            "loopback and veth are different devices"
        )


def states(cell: Cell) -> dict[LinkName, tuple[Profile, ...]]:
    """Each link of a run with its states: the one that it begins in, and those that faults will bring it into."""
    numbers = range(1, cell.target.nodes + 1)
    begin: dict[LinkName, Profile | None] = {LinkName((number,)): cell.network for number in numbers}
    begin |= {LinkName(pair): cell.peers for pair in itertools.combinations(numbers, 2)}
    return {
        name: (
            profile,
            *(changed(profile, fault) for fault in cell.faults if _changes(fault) and concerns(fault, name)),
        )
        for name, profile in begin.items()
        if profile is not None
    }


def concerns(fault: Fault, name: LinkName) -> bool:
    """Whether a fault of links is one of that link."""
    return fault.link == name.kind and (fault.node is None or fault.node in name.nodes)


def _changes(fault: Fault) -> bool:
    return fault.kind in ("profile", "throttle")


def changed(profile: Profile, fault: Fault) -> Profile:
    """The state of a link with that profile under a fault that changes it."""
    if fault.profile is not None:
        return catalog.profile(fault.profile, {})

    def throttled(impairment: Impairment) -> Impairment:
        found = impairment
        if fault.rate_bps is not None:
            found = dataclasses.replace(found, rate_bps=fault.rate_bps, burst_bytes=None)
        return found if fault.delay_ns is None else dataclasses.replace(found, delay_ns=fault.delay_ns)

    found = dataclasses.replace(profile, to_server=throttled(profile.to_server), to_client=throttled(profile.to_client))
    return coherent(found, f'fault {fault.kind} of a link of profile "{profile.name}"')


@contextlib.contextmanager
def happening(
    faults: tuple[Fault, ...],
    stage: Stage,
    measure_start_ns: Callable[[], int | None],
    measure_ns: int | None = None,
) -> Iterator[Following]:
    """While the block lasts, each fault happens at its moment; each that began has ended when the block ends.

    `measure_start_ns` says when the measurement begins (CLOCK_MONOTONIC), None as long as nobody knows; `measure_ns` is
    its length, None where nobody knows that. One without a length may take long: others go on meanwhile, and its own
    next turns are left out.
    """
    happened = Following(faults, stage, measure_start_ns, measure_ns)
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
        error = happened.error
        said = str(error) if isinstance(error, (IngestBenchError, OSError)) else f"{type(error).__name__}: {error}"
        raise RunFailed(f"fault: {said}")


class Following:
    """The faults of a run, and what became of them."""

    def __init__(
        self,
        faults: tuple[Fault, ...],
        stage: Stage,
        measure_start_ns: Callable[[], int | None],
        measure_ns: int | None = None,
    ) -> None:
        self.over = threading.Event()
        self.error: Exception | None = None
        self.records: list[Happened] = []
        self._stage = stage
        self._measure_start_ns = measure_start_ns
        self._measure_ns = measure_ns
        self._faults = faults
        # When, whether it begins, and which: those that end come before those that begin at the same moment.
        self._moments = [(fault.at_ns, 1, number) for number, fault in enumerate(faults)]
        heapq.heapify(self._moments)
        self._ends: dict[int, tuple[Act, int]] = {}
        self._busy: dict[int, threading.Thread] = {}

    def follow(self) -> None:
        """Let each fault begin and end at its moment."""
        try:
            while self._moments and self.error is None:
                at_ns, begins, number = heapq.heappop(self._moments)
                if (late_ns := self._wait_until(at_ns)) is None:
                    return
                fault = self._faults[number]
                if not begins:
                    self._end(number)
                    continue
                if self._is_too_late(fault, at_ns + late_ns):
                    continue
                if number not in self._busy or not self._busy[number].is_alive():
                    self._begin(number, fault)
                if fault.for_ns:
                    heapq.heappush(self._moments, (at_ns + fault.for_ns, 0, number))
                if fault.every_ns:
                    again_ns = at_ns + (1 + late_ns // fault.every_ns) * fault.every_ns
                    heapq.heappush(self._moments, (again_ns, 1, number))
        except Exception as error:  # noqa: BLE001 - it ends the run: nobody would see it in this thread
            self.error = error
        finally:
            for number in list(self._ends):
                self._end(number)
            for thread in self._busy.values():
                thread.join()

    def _is_too_late(self, fault: Fault, begin_ns: int) -> bool:
        """Whether one turn more would not end within the measurement."""
        if not fault.every_ns or self._measure_ns is None:
            return False
        return begin_ns >= self._measure_ns or begin_ns + fault.for_ns > self._measure_ns

    def _wait_until(self, at_ns: int) -> int | None:
        """How late it is then, once that moment of the measurement has come; None: the block ended before."""
        while (start_ns := self._measure_start_ns()) is None:
            if self.over.wait(0.02):
                return None
        late_ns = time.monotonic_ns() - start_ns - at_ns
        return None if self.over.wait(max(0, -late_ns) / 1e9) else max(0, late_ns)

    def _begin(self, number: int, fault: Fault) -> None:
        direction = "" if fault.kind in ("reset", "flush") else fault.direction
        link = "" if fault.kind in ("pause", "flush") else fault.link
        self.records.append(
            Happened(kind=fault.kind, started=time.time_ns(), direction=direction, link=link, node=fault.node)
        )
        place = len(self.records) - 1
        if fault.for_ns:
            self._ends[number] = (begin(fault, self._stage), place)
            return
        # What ends meanwhile, such as a pause of the server, must not wait for it.
        thread = threading.Thread(target=self._happen, args=(fault, place), name=fault.kind, daemon=True)
        self._busy[number] = thread
        thread.start()

    def _happen(self, fault: Fault, place: int) -> None:
        """One without a length, from its beginning to its end."""
        try:
            begin(fault, self._stage)()
        except Exception as error:  # noqa: BLE001 - as above
            self.error = self.error or error
        else:
            self.records[place] = dataclasses.replace(self.records[place], ended=time.time_ns())

    def _end(self, number: int) -> None:
        if number not in self._ends:
            return
        end, place = self._ends.pop(number)
        try:
            end()
        except Exception as error:  # noqa: BLE001 - as above, and the others have to end, too
            self.error = self.error or error
        else:
            self.records[place] = dataclasses.replace(self.records[place], ended=time.time_ns())


def begin(fault: Fault, stage: Stage) -> Act:
    """Let a fault begin; what is returned ends it."""
    if fault.kind == "flush":
        return _flush(stage)
    ending = contextlib.ExitStack()
    if fault.kind == "pause":
        if not stage.jvm_pids:
            raise SpecError("fault pause: it needs the server's process on this machine")
        for number, pid in enumerate(stage.jvm_pids, 1):
            if fault.node in (None, number):
                ending.callback(_pause(pid, stage.paused))
        return ending.close
    if stage.links is None:
        raise SpecError(f"fault {fault.kind}: it needs a link of ours")
    for name, link in stage.links.by_name.items():
        if concerns(fault, name):
            change = functools.partial(changed, fault=fault) if _changes(fault) else None
            ending.enter_context(network.fault(link, fault.kind, _directions(fault, name), change))
    return ending.close


def _directions(fault: Fault, name: LinkName) -> tuple[Direction, ...]:
    """The directions of a link that a fault is about. Between nodes the second one is where a server would be."""
    if fault.direction == "both":
        return network.DIRECTIONS
    if name.kind == "peers" and name.nodes[0] == fault.node:
        return tuple(each for each in network.DIRECTIONS if each != fault.direction)
    return (fault.direction,)


def _pause(pid: int, paused: Counter[int]) -> Act:
    """A JVM stands still, as in a long stop-the-world pause; what is returned lets it go on when no other one lasts."""
    os.kill(pid, signal.SIGSTOP)
    paused[pid] += 1

    def go_on() -> None:
        paused[pid] -= 1
        if not paused[pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    return go_on


def _flush(stage: Stage) -> Act:
    """Everything that the server has in memory is written, all of it at once. There is nothing to end."""
    if stage.flush is None:
        raise SpecError("fault flush: it needs a server of ours")
    stage.flush()
    return lambda: None
