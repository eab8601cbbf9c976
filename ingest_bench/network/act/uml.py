"""The box for kernels without netem: a User-Mode Linux guest as the router between the two namespaces.

Load and server keep native speed, and their packets cross the guest's netem. The guest is a process: no root, no KVM
and no /dev/net/tun is needed. Its two devices are packet sockets of ours on veth pairs. Taps were rejected, because
ordinary users may rarely open /dev/net/tun, and so was User-Mode Linux's own "raw" transport: its buffers are small,
and lost up to 1% of the packets of a stream of 50 to 300 Mbit/s on a busy machine.
"""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from ingest_bench import system
from ingest_bench.errors import RunFailed
from ingest_bench.network.act import guest_process
from ingest_bench.network.act import sandbox as sandboxes
from ingest_bench.network.act.console import Console
from ingest_bench.network.plan import guest, queues

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ingest_bench.model.network import Queue
    from ingest_bench.network.act.sandbox import Namespace

REMEDY = "Install it: apt-get install user-mode-linux busybox-static"
_BOOT_TIMEOUT_S = 60
_END_TIMEOUT_S = 10
_ERRORS = "/run/errors"


# Pid 1 of a pid namespace: when it dies, the kernel ends the guest and all its helper processes. The tmpfs is in a
# mount namespace of its own and goes with it; the guest's memory and pid file are there, and nothing is anywhere else.
# It tells its number outside, and starts nothing before we answer: then we were alive after its death signal was set.
_PID_1 = """\
set -e
mount -t tmpfs none /dev/shm
read -r pid _ < /proc/self/stat
echo "ready $pid"
read -r _
set +e
exec 2>&1
TMPDIR=/dev/shm "$@"
echo "User-Mode Linux ended with status $?"
"""


@dataclass(frozen=True, slots=True)
class Guest:
    """A running guest: a place where commands run."""

    console: Console

    def run(self, argv: Sequence[str], *, stdin: str | None = None, check: bool = True) -> str:
        """What the command, run in the guest, wrote to its standard output; as `system.run`."""
        answer = self.console.ask(argv, stdin=stdin or "", errors=_ERRORS)
        if not check:
            return answer.stdout + answer.stderr
        if answer.status:
            said = (answer.stderr.strip() or answer.stdout.strip() or "nothing")[-2000:]
            raise RunFailed(f"User-Mode Linux: {' '.join(argv)}: exit {answer.status}, it said: {said}")
        return answer.stdout


@contextmanager
def booted(middle: Namespace, argv: Sequence[str]) -> Iterator[Guest]:
    """A guest with the packet sockets of that namespace's devices. It dies with us, and leaves no file."""
    with _booting(middle, argv) as process:
        console = Console(process.stdin.fileno(), process.stdout.fileno())
        console.greet("busybox mount -t tmpfs none /run", timeout_s=_BOOT_TIMEOUT_S)
        yield Guest(console)


@cache
def complaint() -> str:
    """Why there is no such box on this machine, and the remedy; empty when there is one. Found by trying cheaply."""
    missing = [program for program in ("linux.uml", "busybox") if system.which(program) is None]
    if missing:
        return f"User-Mode Linux: {' and '.join(missing)} not found. {REMEDY}"
    version = system.run(("linux.uml", "--version")).strip()
    module = guest.MODULES / version / "kernel/net/sched/sch_netem.ko"
    if not module.is_file():
        return f"User-Mode Linux {version}: its module {module} is missing. {REMEDY}"
    with sandboxes.sandbox() as opened:
        tried = ("unshare", "--mount", "--pid", "--fork", "mount", "-t", "tmpfs", "none", "/dev/shm")  # noqa: S108
        said = opened.add().run(tried, check=False).strip()
    return f"User-Mode Linux: no namespaces for its processes and files ({said})." if said else ""


def queue_complaint(queue: Queue) -> str:
    """Why the guest has no such queue; empty when it has."""
    folder = guest.MODULES / system.run(("linux.uml", "--version")).strip() / "kernel/net/sched"
    files = (folder / f"sch_{name}.ko" for name in queues.MODULES[queue])
    missing = [str(file) for file in files if not file.is_file()]
    return f"{queue}: not in User-Mode Linux, for want of {' and '.join(missing)}." if missing else ""


@cache
def _has_too_wide_registers() -> bool:
    cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    return guest.has_too_wide_registers(system.run(("linux.uml", "--version")), cpuinfo)


def becoming(devices: Sequence[str] = ()) -> tuple[str, ...]:
    """The begin of a command that ends in User-Mode Linux: it has packet sockets of these devices."""
    flags = ("--without-xstate",) if _has_too_wide_registers() else ()
    return system.script(guest_process.__file__, *flags, *devices, "--")


def kernel_words() -> tuple[str, ...]:
    """What must stand on its command line on this processor."""
    return (guest.NO_AVX,) if _has_too_wide_registers() else ()


@contextmanager
def _booting(middle: Namespace, argv: Sequence[str]) -> Iterator[system.Child]:
    """The guest during the block. Then nothing is left: `unshare` ends after pid 1, and that one after all others."""
    begin = becoming([side.outside for side in guest.SIDES])
    killed_with = ("setpriv", "--pdeathsig", "KILL")
    own = ("unshare", "--mount", "--pid", "--fork", "--kill-child=KILL")
    inside = (*killed_with, *own, "sh", "-c", _PID_1, "pid-1", *argv)
    with system.Child(middle.command((*begin, *inside)), name="User-Mode Linux") as process:
        pid_1 = int(process.line(_BOOT_TIMEOUT_S).removeprefix("ready "))
        try:
            process.tell("go")
            yield process
        finally:
            if process.runs():
                with suppress(ProcessLookupError):
                    os.kill(pid_1, signal.SIGKILL)
            with suppress(RunFailed):
                process.rest(_END_TIMEOUT_S)
