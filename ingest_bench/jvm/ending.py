"""The end of servers: nothing of them is left, whatever they started and wherever it went."""

from __future__ import annotations

import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from ingest_bench.errors import RunFailed

if TYPE_CHECKING:
    from collections.abc import Sequence

_POLL_S = 0.05
# A recording of 200 MB is written at the JVM's exit.
GRACE_S = 60.0
# After SIGKILL: the kernel takes back some GB of memory in a second.
_GONE_S = 60.0


def end(*popens: subprocess.Popen[bytes], grace_s: float = GRACE_S) -> None:
    """No process of those servers: SIGTERM for all at once, so that recordings are written, SIGKILL after the grace."""
    told = [(popen, children_of(popen)) for popen in popens]
    for popen, children in told:
        # The JVM first: a launcher (Elasticsearch 8) ends by itself when its server has ended. Not `unshare`, which
        # holds the namespace: older ones die of SIGTERM, and the JVM with them.
        for process in reversed(children) if children else (popen,):
            _signal(process)
    deadline = time.monotonic() + grace_s
    for popen, children in told:
        with suppress(subprocess.TimeoutExpired):
            popen.wait(max(0.0, deadline - time.monotonic()))
        _kill(popen, running(children, deadline))


def kill(popen: subprocess.Popen[bytes]) -> None:
    """End a server by SIGKILL, with all that it started; nothing of them runs any more."""
    _kill(popen, children_of(popen))


def running(processes: Sequence[psutil.Process], deadline: float) -> list[psutil.Process]:
    """Those that still run then, or nobody, as soon as that is so.

    One that has ended is no child of ours, and whose it is now may never ask for its status (psutil.wait_procs would
    wait for that): a JVM outlives the script that started it, and PID 1 of a container need not be an init.
    """
    while left := [process for process in processes if _runs(process)]:
        if time.monotonic() > deadline:
            return left
        time.sleep(_POLL_S)
    return []


def _kill(popen: subprocess.Popen[bytes] | None, others: Sequence[psutil.Process]) -> None:
    """SIGKILL for a child of ours and for others; it returns when they are gone. RunFailed for one that stays."""
    deadline = time.monotonic() + _GONE_S
    for process in others:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    if popen is not None:
        popen.kill()
        try:
            popen.wait(_GONE_S)
        except subprocess.TimeoutExpired:
            raise RunFailed(_why_it_stays(popen.pid)) from None
    for process in running(others, deadline):
        raise RunFailed(_why_it_stays(process.pid))


def _why_it_stays(pid: int) -> str:
    """Of a process that SIGKILL does not end."""
    said = f"pid {pid} was killed {_GONE_S:g} s ago and is still there"
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines()
        status = {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
        said += f", in state {status.get('State', '?')}"
        if (tracer := status.get("TracerPid", "0")) != "0":
            # The kernel tells its parent of its end once the tracer has looked (ptrace(2)).
            said += f": pid {tracer} traces it, and must let it go"
    return said


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _signal(process: psutil.Process | subprocess.Popen[bytes]) -> None:
    with suppress(psutil.NoSuchProcess):
        process.send_signal(signal.SIGTERM)
        # A paused server acts on nothing else.
        process.send_signal(signal.SIGCONT)


def children_of(popen: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """What the process started, the youngest last. A process that has ended has nothing."""
    try:
        return psutil.Process(popen.pid).children(recursive=True) if popen.poll() is None else []
    except psutil.NoSuchProcess:
        return []
