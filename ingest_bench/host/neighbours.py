"""Busy processes on the CPUs of a node: what they have it waits for, as beside the other guests of a host."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil

from ingest_bench import system
from ingest_bench.errors import RunFailed
from ingest_bench.host import busy as busy_script

Waited = Mapping[int, int]
"""For how many nanoseconds each thread has waited for a CPU since it began."""


@contextlib.contextmanager
def busy(count: int, pid: int) -> Iterator[tuple[int, ...]]:
    """The numbers of so many of them, at our own priority, on the CPUs that the process of that number may use.

    They die with the thread that begins the block.
    """
    cpus = _cpus(pid)
    children: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(count):
            children.append(system.start(system.script(busy_script.__file__)))
            os.sched_setaffinity(children[-1].pid, cpus)
        yield tuple(child.pid for child in children)
    finally:
        for child in children:
            child.kill()
            child.wait()


def _cpus(pid: int) -> set[int]:
    """Our own of one that was killed a moment ago: it will be started on them."""
    try:
        return os.sched_getaffinity(pid)
    except ProcessLookupError:
        return os.sched_getaffinity(0)


def ran_s(pid: int) -> float:
    """How much CPU a process of one thread has had; RunFailed when it has ended."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[0]) / 1e9
    except (OSError, IndexError) as error:
        raise RunFailed(f"neighbours: one of them has ended meanwhile ({error})") from None


def waited_ns(pid: int) -> dict[int, int]:
    """Of each thread that it has now: the second number of its schedstat (Documentation/scheduler/sched-stats.rst).

    Nothing of a process that is gone, as in the moment when it is killed.
    """
    found = {}
    for task in Path(f"/proc/{pid}/task").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError):
            found[int(task.name)] = int((task / "schedstat").read_text(encoding="ascii").split()[1])
    return found


def waited_a_second(pid: int) -> float | None:
    """For how many seconds the threads that it has now have waited in each second of its life, all together."""
    try:
        lived_s = time.time() - psutil.Process(pid).create_time()
    except psutil.NoSuchProcess:
        return None
    return sum(waited_ns(pid).values()) / 1e9 / max(lived_s, 0.001)


def more_s(before: Waited, after: Waited) -> float:
    """For how long its threads waited from then till then. What a thread waited that has ended since is not in it."""
    return sum(waited - before.get(thread, 0) for thread, waited in after.items()) / 1e9
