"""`pause`: a JVM stands still, as in a long stop-the-world pause, and goes on after the last pause of it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from ingest_bench.errors import RunFailed
from ingest_bench.faults import each
from ingest_bench.faults.kind import Begun, FaultKind
from ingest_bench.faults.stage import Act, Node, Stage
from ingest_bench.model.experiment import Fault

# A thread stops where it enters or leaves the kernel; one that waits for a disk does so when the disk has answered.
_LIMIT_S = 5.0


def _begin(fault: Fault, stage: Stage) -> Begun:
    return each.on_nodes(fault, stage, _pause)


def _pause(node: Node) -> tuple[str, Act]:
    return "", node.hold("pause", lambda: _stop(node.process.jvm_pid), lambda: _go_on(node.process.jvm_pid))


def _stop(pid: int) -> None:
    """Return when no thread of it runs any more."""
    os.kill(pid, signal.SIGSTOP)
    until = time.monotonic() + _LIMIT_S
    while states := _running(pid):
        if time.monotonic() > until:
            raise RunFailed(f"pause: {states} of its threads still run {_LIMIT_S:g} s after SIGSTOP")
        time.sleep(0.001)


def _go_on(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def _running(pid: int) -> int:
    """How many threads of the process are not stopped (man 5 proc, /proc/PID/task/TID/stat)."""
    count = 0
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):
            count += stat.read_text("ascii", "replace").rpartition(")")[2].split()[0] not in "TtZX"
    return count


PAUSE = FaultKind(hits="node", begin=_begin, lasts=True)
