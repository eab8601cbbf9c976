"""The netem router as User-Mode Linux, for kernels without netem: boot it, and run commands on its console.

Load and server keep native speed, and their packets cross the netem of User-Mode Linux. It is a process: no root, no
KVM and no /dev/net/tun is needed. Its two devices are our packet sockets on veth pairs. Taps were rejected because
ordinary users can rarely open /dev/net/tun. User-Mode Linux's own "raw" transport was rejected because its buffers are
small: they lost up to 1% of the packets of a stream of 50 to 300 Mbit/s on a busy machine.
"""

from __future__ import annotations

import os
import secrets
import select
import shlex
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from ingest_bench import system
from ingest_bench.errors import RunFailed
from ingest_bench.model.network import Queue
from ingest_bench.network.act import sandbox as sandboxes
from ingest_bench.network.act import uml_process
from ingest_bench.network.act.sandbox import Namespace
from ingest_bench.network.plan import link_plan, netem

REMEDY = "Install it: apt-get install user-mode-linux busybox-static"
_BOOT_TIMEOUT_S = 60
_END_TIMEOUT_S = 10
# Holds the standard error of a command until it ends.
_STDERR_FILE = "/run/stderr"
# User-Mode Linux 6.1 may miss that input arrived and sleep on: 4 of 260 commands hung for 10 s on a busy machine. One
# more byte woke it each time, and an empty line means nothing to a shell. With it, 300 of 300 commands returned.
NUDGE_S = 0.2
_OUTPUT_TAIL = 2000


# Pid 1 of a pid namespace: when it dies, the kernel ends User-Mode Linux and all its helper processes. The tmpfs is in
# a mount namespace and goes with it; memory and pid file of User-Mode Linux are there, and nothing is anywhere else.
# Pid 1 prints its outer pid and starts nothing before we reply: then we were alive after its death signal was set.
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


class Console:
    """A shell at the other end of two pipes, such as a UML console, that runs one command at a time: a `Place`.

    A file that User-Mode Linux polls was rejected: each command would take up to a poll interval longer, and it would
    need a place on the host that both may write.
    """

    def __init__(
        self, to_shell: int, from_shell: int, *, stderr_file: str = _STDERR_FILE, nudge_s: float = NUDGE_S
    ) -> None:
        self._to_shell = to_shell
        self._from_shell = from_shell
        self._stderr_file = stderr_file
        self._nudge_s = nudge_s
        self._nonce = secrets.token_hex(8)
        self._commands = 0

    def wait_until_ready(self, first: str = "true", *, timeout_s: float) -> str:
        """Run the shell's `first` line and return all output until then, such as boot messages.

        Afterwards the terminal transmits the shell's output only: no echo, no prompt, no changed line ends.
        """
        # In two parts, so that the terminal's echo of the command is not taken for its output.
        self._send(f"PS1= PS2=; stty -echo -opost; {first}; echo '{self._nonce[:8]}''{self._nonce[8:]}:hello'\n")
        return self._read_until(f"{self._nonce}:hello\n", timeout_s, "first reply")

    def run(self, argv: Sequence[str], *, stdin: str | None = None, check: bool = True) -> str:
        """Run a command and return its output, as `system.run`."""
        stdout, stderr, status = self.read_reply(argv, stdin=stdin or "")
        if not check:
            return stdout + stderr
        if status:
            output = (stderr.strip() or stdout.strip() or "nothing")[-_OUTPUT_TAIL:]
            raise RunFailed(f"User-Mode Linux: {' '.join(argv)}: exit status {status}. Output: {output}")
        return stdout

    def read_reply(self, argv: Sequence[str], *, stdin: str = "", timeout_s: float = 30) -> tuple[str, str, int]:
        """Run a command and return its output, its standard error and its exit status."""
        self._commands += 1
        mark = f"{self._nonce}:{self._commands}:"
        self._send(frame_command(argv, stdin, mark, self._stderr_file))
        text = self._read_until(f"{mark}end\n", timeout_s, shlex.join(argv))
        _, _, output = text.partition(f"{mark}out\n")
        stdout, _, output = output.partition(f"{mark}err\n")
        stderr, _, status = output.rpartition(mark)
        try:
            return stdout, stderr, int(status)
        except ValueError:
            raise RunFailed(f"console: {shlex.join(argv)}: malformed reply: {text[-_OUTPUT_TAIL:]!r}") from None

    def _send(self, text: str) -> None:
        unsent = memoryview(text.encode())
        # After a broken pipe the shell's last output is still to be read.
        with suppress(BrokenPipeError):
            while unsent:
                unsent = unsent[os.write(self._to_shell, unsent) :]

    def _read_until(self, end: str, timeout_s: float, purpose: str) -> str:
        end_bytes, output = end.encode(), b""
        deadline = time.monotonic() + timeout_s
        while end_bytes not in output:
            if time.monotonic() > deadline:
                raise RunFailed(f"console: {purpose}: timed out after {timeout_s:g} s. Output: {_tail(output)}")
            readable, _, _ = select.select([self._from_shell], [], [], self._nudge_s)
            if not readable:
                self._send("\n")
                continue
            block = os.read(self._from_shell, 65536)
            if not block:
                raise RunFailed(f"console: {purpose}: the shell exited. Output: {_tail(output)}")
            output += block
        return output.partition(end_bytes)[0].decode(errors="replace")


def frame_command(argv: Sequence[str], stdin: str, mark: str, stderr_file: str) -> str:
    """Return the lines that run `argv` in a shell and frame its output with marks."""
    file = shlex.quote(stderr_file)
    lines = stdin if stdin.endswith("\n") else stdin + "\n"
    input_text = f" <<'{mark}stdin'\n{lines}{mark}stdin\n" if stdin else " </dev/null\n"
    return (
        f"echo {mark}out; {shlex.join(argv)} 2>{file}{input_text}"
        f"status=$?; echo {mark}err; [ -s {file} ] && cat {file}; echo {mark}$status; echo {mark}end\n"
    )


def _tail(output: bytes) -> str:
    return output[-_OUTPUT_TAIL:].decode(errors="replace").strip() or "nothing"


@contextmanager
def boot_uml(router_host: Namespace, argv: Sequence[str]) -> Iterator[Console]:
    """Yield the console of User-Mode Linux with packet sockets of that namespace's devices.

    It dies with us and leaves no file. At the end of the block no process is left: `unshare` exits after pid 1, pid 1
    last.
    """
    enter = uml_command([side.outside for side in link_plan.ROUTER_SIDES.values()])
    death_signal = ("setpriv", "--pdeathsig", "KILL")
    namespaces = ("unshare", "--mount", "--pid", "--fork", "--kill-child=KILL")
    inside = (*death_signal, *namespaces, "sh", "-c", _PID_1, "pid-1", *argv)
    with system.Child(router_host.command((*enter, *inside)), name="User-Mode Linux") as process:
        pid_1 = int(process.read_line(_BOOT_TIMEOUT_S).removeprefix("ready "))
        try:
            process.write_line("go")
            console = Console(process.stdin.fileno(), process.stdout.fileno())
            console.wait_until_ready("busybox mount -t tmpfs none /run", timeout_s=_BOOT_TIMEOUT_S)
            yield console
        finally:
            if process.is_running():
                with suppress(ProcessLookupError):
                    os.kill(pid_1, signal.SIGKILL)
            with suppress(RunFailed):
                process.read_until_exit(_END_TIMEOUT_S)


@cache
def find_uml_problem() -> str:
    """Return why User-Mode Linux cannot be used here, and the remedy; empty if it can. Checks without booting it."""
    missing = [program for program in ("linux.uml", "busybox") if system.which(program) is None]
    if missing:
        return f"User-Mode Linux: {' and '.join(missing)} not found. {REMEDY}"
    module = _modules_folder() / "sch_netem.ko"
    if not module.is_file():
        return f"User-Mode Linux {_version()}: its module {module} is missing. {REMEDY}"
    with sandboxes.sandbox() as opened:
        argv = ("unshare", "--mount", "--pid", "--fork", "mount", "-t", "tmpfs", "none", "/dev/shm")  # noqa: S108
        error = opened.add_namespace().run(argv, check=False).strip()
    return f"User-Mode Linux: no namespaces for its processes and files ({error})." if error else ""


def find_uml_queue_problem(queue: Queue) -> str:
    """Return why User-Mode Linux does not have the queue; empty if it has."""
    files = (_modules_folder() / f"sch_{name}.ko" for name in netem.QUEUE_MODULES[queue])
    missing = [str(file) for file in files if not file.is_file()]
    return f"{queue}: not in User-Mode Linux, which lacks {' and '.join(missing)}." if missing else ""


def uml_command(devices: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the prefix of a command that becomes User-Mode Linux, with packet sockets of these devices."""
    flags = ("--without-xstate",) if _needs_xstate_workaround() else ()
    return system.build_script_argv(uml_process.__file__, *flags, *devices, "--")


def uml_kernel_options() -> tuple[str, ...]:
    """Return the additional kernel options that User-Mode Linux needs on this processor."""
    return (link_plan.NO_AVX,) if _needs_xstate_workaround() else ()


@cache
def _needs_xstate_workaround() -> bool:
    return link_plan.needs_xstate_workaround(_version(), Path("/proc/cpuinfo").read_text(encoding="utf-8"))


def _version() -> str:
    return system.run(("linux.uml", "--version")).strip()


def _modules_folder() -> Path:
    return link_plan.UML_MODULES / _version() / "kernel/net/sched"
