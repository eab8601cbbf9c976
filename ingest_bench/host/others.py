"""Who else uses this machine while a run is carried out: other experiments, and whoever takes its CPUs.

Two experiments at once halve each other's rate, and neither can see it in its own numbers.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

# In the kernel's list of sockets a name that is no file begins with "@", which stands for a zero byte.
_MARK = "ingest-bench/"
# Not the pid alone: of two containers on the host's network both may be process 1.
_DRAWN = secrets.token_hex(4)
_LISTED = "@" + _MARK
# sizeof(sun_path), unix(7).
_LONGEST_BYTES = 107
# Of all CPUs. Less is what a quiet machine's own services take.
_LEAST_SHARE = 0.10


@contextlib.contextmanager
def marked(path: Path) -> Iterator[None]:
    """Everybody on this machine can see that these results are being made. The kernel ends it with us.

    A name of a socket, not a lock on a file: it leaves nothing behind and needs no folder that all may write to.
    """
    start, whole = f"\0{_MARK}{_own()}/".encode(), os.fsencode(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as mark:
        # Of a long path the end says more.
        mark.bind(start + whole[-(_LONGEST_BYTES - len(start)) :])
        yield


def experiments() -> tuple[str, ...]:
    """The results that other processes make now, by the end of their path."""
    lines = Path("/proc/net/unix").read_text(encoding="utf-8", errors="replace").splitlines()
    names = {line.partition(_LISTED)[2] for line in lines if _LISTED in line}
    return tuple(sorted(path for who, _, path in (name.partition("/") for name in names) if who != _own()))


def _own() -> str:
    """What tells us from all other processes of this machine."""
    return f"{os.getpid()}-{_DRAWN}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """CPU seconds at a moment."""

    at_s: float
    all_s: float
    """Of everybody, by /proc/stat: without interrupts, which are nobody's."""
    ours_s: float
    """Of this process and of what it started and saw end."""

    @classmethod
    def now(cls) -> Used:
        """As it is."""
        whole, own = psutil.cpu_times(), os.times()
        return cls(at_s=time.monotonic(), all_s=whole.user + whole.nice + whole.system, ours_s=sum(own[:4]))


@dataclass(slots=True)
class Shared:
    """What was seen of others."""

    experiments: set[str] = field(default_factory=set)
    cpu: str = ""

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about it; none: the machine was ours alone, as far as can be seen."""
        at_once = f"another experiment ran at the same time ({', '.join(sorted(self.experiments))})"
        seen = [at_once if self.experiments else "", self.cpu]
        return tuple(f"this machine is shared: {text}" for text in seen if text)


@contextlib.contextmanager
def watched(*, all_ours: bool) -> Iterator[Shared]:
    """Who else used the machine during the block; known at its end.

    `all_ours`: everything that the run needs is started and ended in the block. Otherwise, as with a server that runs
    already, nobody knows whose CPU time it was.
    """
    shared, before = Shared(set(experiments())), Used.now()
    try:
        yield shared
    finally:
        shared.experiments |= set(experiments())
        if all_ours:
            shared.cpu = cpu(before, Used.now(), psutil.cpu_count() or 1)


def cpu(before: Used, after: Used, cores: int) -> str:
    """What others took between two moments; empty where it was too little to matter."""
    took_s, lasted_s = after.all_s - before.all_s, after.at_s - before.at_s
    cores_taken = (took_s - (after.ours_s - before.ours_s)) / lasted_s if lasted_s > 0 else 0.0
    if cores_taken < _LEAST_SHARE * cores:
        return ""
    return f"other processes took {cores_taken:.1f} of its {cores} CPUs on average"
