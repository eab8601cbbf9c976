"""`file-descriptors`: a JVM has few file descriptors left, so that it can open hardly any file or connection."""

from __future__ import annotations

import itertools
import os
from collections.abc import Set
from pathlib import Path

from ingest_bench import system
from ingest_bench.errors import RunFailed
from ingest_bench.faults import each
from ingest_bench.faults.kind import Begun, FaultKind
from ingest_bench.faults.stage import Act, Node, Stage
from ingest_bench.model.experiment import Fault

# A connection or two, and a file of a segment or two.
LEFT = 4


def _begin(fault: Fault, stage: Stage) -> Begun:
    return each.on_nodes(fault, stage, _few)


def _few(node: Node) -> tuple[str, Act]:
    """The limit is that of the process (prlimit(2)): what is open stays open, any number above is refused."""
    usual: dict[int, str] = {}
    said: list[str] = []

    def begin() -> None:
        pid = node.process.jvm_pid
        usual[pid] = _limit(pid)
        taken = _open(pid)
        _set(pid, str(_with_room(taken, LEFT)))
        said.append(f"{LEFT} left beside the {len(taken)} that are open")

    def end() -> None:
        pid = node.process.jvm_pid
        # One that was started meanwhile may not have got as far as that.
        if pid in usual and Path(f"/proc/{pid}").exists():
            _set(pid, usual[pid])

    let_go = node.hold("file-descriptors", begin, end)
    # Nothing where it has few already, or is down.
    return "".join(said), let_go


def _open(pid: int) -> set[int]:
    return {int(entry.name) for entry in Path(f"/proc/{pid}/fd").iterdir()}


def _with_room(taken: Set[int], count: int) -> int:
    """The limit that leaves so many: it is one of numbers, and the lowest that is free is taken next (open(2))."""
    free = (number for number in itertools.count() if number not in taken)
    return next(itertools.islice(free, count - 1, None)) + 1


def _limit(pid: int) -> str:
    """The soft limit."""
    limits = Path(f"/proc/{pid}/limits").read_text(encoding="ascii")
    return next(line for line in limits.splitlines() if line.startswith("Max open files")).split()[3]


def _set(pid: int, soft: str) -> None:
    """Asked for by the process's own user: root itself may do it only with CAP_SYS_RESOURCE, which containers lack."""
    owner = Path(f"/proc/{pid}").stat()
    argv: tuple[str, ...] = ("prlimit", "--pid", str(pid), f"--nofile={soft}:")
    if owner.st_uid != os.geteuid():
        argv = ("setpriv", f"--reuid={owner.st_uid}", f"--regid={owner.st_gid}", "--clear-groups", *argv)
    system.run(argv)
    if _limit(pid) != soft:
        raise RunFailed(f"file-descriptors: the limit of process {pid} is {_limit(pid)}, it was set to {soft}")


FILE_DESCRIPTORS = FaultKind(hits="node", begin=_begin, lasts=True)
