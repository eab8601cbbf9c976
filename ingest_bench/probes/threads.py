"""The threads of a process, one by one: context switches, states, and how long each waited for a CPU."""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ingest_bench.inputs import decoding

if TYPE_CHECKING:
    from collections.abc import Iterator

# Less within a sample's tenth of a second explains nothing.
_LEAST_NS = 20_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """One thread that waited for a CPU, or was seen waiting for a disk, between two samples (CLOCK_REALTIME)."""

    since_ns: int
    at_ns: int
    thread: int
    """Its number in the namespace of the process, as the process itself knows it."""
    name: str
    """The first 15 letters of it: the kernel keeps no more."""
    waited_ns: int
    """In the run queue. It is counted when the thread runs again: it may be longer than the time between samples."""
    state: str


def read(path: Path) -> Iterator[Wait]:
    """Those of a file with one a line; a line that was cut off by a kill is left out."""
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            wait: Wait = decoding.decoded(Wait, json.loads(line))
        except (ValueError, RecursionError):
            continue
        yield wait


@dataclass(slots=True)
class _Thread:
    """What is known of one thread since its last sample."""

    status: int
    schedstat: int | None
    ran: bytes = b""
    waited_ns: int = 0
    grown_ns: int = 0
    switches: tuple[int, int] = (0, 0)
    state: str = ""
    name: str = ""
    number: int = 0


class Threads:
    """All threads of a process; switches of those that have ended are kept.

    Files stay open between samples: a server has a hundred threads, and opening each of them again costs more than
    reading it. `status` costs seven times what `schedstat` does, and is read only of those that ran since, or do not
    sleep. What a thread did after its last sample is lost with it.
    """

    def __init__(self, pid: int) -> None:
        self._tasks = Path(f"/proc/{pid}/task")
        self._alive: dict[str, _Thread] = {}
        self._ended = (0, 0)
        self._since_ns = self._at_ns = 0

    def sample(self, at_ns: int) -> tuple[int, int]:
        """Voluntary and involuntary switches since each thread began. `at_ns`: now, CLOCK_REALTIME."""
        self._since_ns, self._at_ns = self._at_ns, at_ns
        alive = {entry.name for entry in os.scandir(self._tasks)}
        for tid in self._alive.keys() - alive:
            self._end(tid)
        for tid in alive:
            try:
                if tid not in self._alive:
                    self._alive[tid] = self._begin(tid)
                _look(self._alive[tid])
            except (ProcessLookupError, FileNotFoundError):
                self._end(tid)
        return (
            self._ended[0] + sum(one.switches[0] for one in self._alive.values()),
            self._ended[1] + sum(one.switches[1] for one in self._alive.values()),
        )

    def states(self) -> Counter[str]:
        """How many threads were in each state at the last sample, by its letter (man 5 proc): T stopped, D disk."""
        return Counter(one.state for one in self._alive.values())

    def waits(self) -> Iterator[Wait]:
        """The threads that waited since the sample before the last one."""
        if self._since_ns:
            for one in self._alive.values():
                if one.grown_ns >= _LEAST_NS or one.state == "D":
                    yield Wait(
                        since_ns=self._since_ns,
                        at_ns=self._at_ns,
                        thread=one.number,
                        name=one.name,
                        waited_ns=one.grown_ns,
                        state=one.state,
                    )

    def _begin(self, tid: str) -> _Thread:
        status = os.open(self._tasks / tid / "status", os.O_RDONLY)
        try:
            # A kernel without CONFIG_SCHED_INFO has none.
            return _Thread(status, os.open(self._tasks / tid / "schedstat", os.O_RDONLY))
        except FileNotFoundError:
            return _Thread(status, None)

    def _end(self, tid: str) -> None:
        if (one := self._alive.pop(tid, None)) is not None:
            os.close(one.status)
            if one.schedstat is not None:
                os.close(one.schedstat)
            self._ended = (self._ended[0] + one.switches[0], self._ended[1] + one.switches[1])


def _look(one: _Thread) -> None:
    if one.schedstat is not None:
        ran = os.pread(one.schedstat, 256, 0)
        waited_ns = parse_schedstat(ran)
        one.grown_ns = waited_ns - one.waited_ns if one.ran else 0
        if ran == one.ran and one.state == "S":
            return
        one.ran, one.waited_ns = ran, waited_ns
    status = os.pread(one.status, 8192, 0)
    one.switches, one.state = parse_switches(status), parse_state(status)
    one.name, one.number = parse_name(status), parse_number(status)


def parse_schedstat(text: bytes) -> int:
    """How long a thread waited in the run queue: the second of three numbers (Documentation/scheduler/sched-stats)."""
    return int(text.split()[1])


def parse_switches(status: bytes) -> tuple[int, int]:
    """The last two lines of a thread's `status`: voluntary_ctxt_switches and nonvoluntary_ctxt_switches."""
    voluntary, involuntary = status.rstrip().rsplit(b"\n", 2)[1:]
    return int(voluntary.split()[1]), int(involuntary.split()[1])


def parse_state(status: bytes) -> str:
    """The letter of a thread's state; empty where it says none."""
    return _field(status, b"State")[:1]


def parse_name(status: bytes) -> str:
    """The first 15 letters of its name."""
    return _field(status, b"Name")


def parse_number(status: bytes) -> int:
    """Its number in its own namespace, the innermost; 0 where it says none."""
    numbers = (_field(status, b"NSpid") or _field(status, b"Pid")).split()
    return int(numbers[-1]) if numbers else 0


def _field(status: bytes, name: bytes) -> str:
    _, found, rest = (b"\n" + status).partition(b"\n" + name + b":\t")
    return rest.partition(b"\n")[0].decode(errors="replace") if found else ""
