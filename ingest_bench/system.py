"""Run commands and start child processes. Tests replace these functions.

A child may run as root while another user chose the current folder and the environment. So a child starts in `/`,
looks programs up in `PATH` only, and a Python child imports nothing from its start folder: see `build_module_argv`,
`build_program_argv` and `build_script_argv`. The exception is a command that the user typed: it runs as typed, in the
user's folder.
"""

from __future__ import annotations

import os
import select
import shlex
import shutil
import site
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import IO, cast

from ingest_bench.errors import RunFailed

# Used instead of the caller's PATH: cron's lacks /usr/sbin (ip, tc), and one that has "." could run a planted program.
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# The caller's own PATH, only for programs of the user: the command of `net exec`, a Java.
CALLER_PATH = os.environ.get("PATH", PATH)

# Not passed on: these add options to every JVM (such as an agent) or Python (such as errors for warnings), and the
# output of our children is parsed. Our children get their options in their argv.
_GLOBAL_OPTIONS = {"JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "PYTHONWARNINGS", "PYTHONINSPECT"}

# An error message quotes at most this much of a program's output.
_OUTPUT_TAIL_BYTES = 2000

# Not by a preexec_fn: Python would run the hooks of os.register_at_fork, which print a Ctrl-C and drop it.
_SETPRIV = ("setpriv", "--pdeathsig", "KILL", "--")
# A change of credentials clears the death signal, so it is set again afterwards. If we died in between, the process
# has another parent now: the shell compares PPID.
_CHECK_PARENT = (*_SETPRIV, "sh", "-c", '[ "$PPID" = "$0" ] || exit 1; exec "$@"')
# `unshare` dies with us, and its child (the first process of the namespace) with `unshare`. When that child dies, the
# kernel kills every process in the namespace, including those in other sessions or nested namespaces.
_ENTER_NAMESPACE = """[ "$PPID" = "$1" ] || exit 1
shift
exec unshare --pid --fork --kill-child=KILL -- sh -c "$0" "$$" "$@"
"""
# The first process of the namespace. $0 is the pid of `unshare`, which may have died before the death signal was set:
# /proc is still the outer one and shows the parent. Pids start after our own outer pid: two JVMs with the same pid
# share their attach socket (/tmp/.java_pidPID) and their counters (/tmp/hsperfdata_USER/PID), which has crashed JVMs
# (JDK-8286030).
_INIT = """while read -r key value; do
  [ "$key" != PPid: ] || [ "$value" = "$0" ] || exit 1
done < /proc/self/status
read -r pid _ < /proc/self/stat
exec unshare --mount --propagation slave --mount-proc -- sh -c '
echo "$0" > /proc/sys/kernel/ns_last_pid || exit
"$@"
exit $?' "$pid" "$@"
"""


def run(
    argv: Sequence[str],
    *,
    timeout_s: float = 30,
    stdin: str | None = None,
    check: bool = True,
    pass_fds: tuple[int, ...] = (),
    env: Mapping[str, str] | None = None,
) -> str:
    """Run a command and return its standard output; raise RunFailed with its output if it fails or times out.

    With `check=False` a failure is not an error, and standard output and standard error are returned together. The
    command dies with us, except with `pass_fds`: then it runs to its end with these descriptors open. Without `stdin`
    its standard input is empty, so it cannot prompt. `env` replaces `build_environment()` completely.
    """
    _require_program(argv)
    try:
        completed = subprocess.run(
            argv if pass_fds else (*_SETPRIV, *argv),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            input=stdin or "",
            check=False,
            pass_fds=pass_fds,
            cwd="/",
            env=build_environment() if env is None else env,
        )
    except subprocess.TimeoutExpired:
        raise RunFailed(f"{shlex.join(argv)}: timed out after {timeout_s:g} s") from None
    if not check:
        return completed.stdout + completed.stderr
    if completed.returncode:
        output = (completed.stderr.strip() or completed.stdout.strip() or "(empty)")[-_OUTPUT_TAIL_BYTES:]
        raise RunFailed(f"{shlex.join(argv)}: exited with status {completed.returncode}. Its output: {output}")
    return completed.stdout


def start(
    argv: Sequence[str],
    *,
    stdout: Path | int | None = None,
    stdin: int | None = subprocess.DEVNULL,
    stderr: int | None = subprocess.STDOUT,
    cwd: str | Path | None = "/",
    env: Mapping[str, str] | None = None,
    is_tied: bool = True,
) -> subprocess.Popen[bytes]:
    """Start a child that the kernel kills when we die (parent-death signal), out of reach of the terminal's Ctrl-C.

    Call it from the main thread: the death signal follows the thread that forked. A path as `stdout` is appended to.
    `env` replaces `build_environment()` completely. `cwd=None` is the current folder. With `is_tied=False` it survives
    us, and must notice the end of its standard input.
    """
    _require_program(argv)
    with stdout.open("ab") if isinstance(stdout, Path) else nullcontext(stdout) as output:
        return subprocess.Popen(
            tie_to_parent(argv) if is_tied else argv,
            stdin=stdin,
            stdout=output,
            stderr=stderr,
            cwd=cwd,
            env=build_environment() if env is None else env,
            start_new_session=True,
        )


def start_in_terminal(argv: Sequence[str], *, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a child with our terminal and current folder. Ctrl-C reaches it too, and it survives us."""
    _require_program(argv)
    return subprocess.Popen(argv, env=env)


def start_detached(argv: Sequence[str], *, pass_fds: tuple[int, ...]) -> subprocess.Popen[bytes]:
    """Start a child that survives our death, in a session of its own, with no other open files than *pass_fds*."""
    _require_program(argv)
    null = subprocess.DEVNULL
    return subprocess.Popen(
        argv,
        stdin=null,
        stdout=null,
        stderr=null,
        pass_fds=pass_fds,
        cwd="/",
        env=build_environment(),
        start_new_session=True,
    )


def stop(process: subprocess.Popen[bytes], *, grace_s: float = 5.0) -> int:
    """End a child by SIGTERM, after *grace_s* by SIGKILL, and return its exit status. It may have exited before."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(grace_s)
        except subprocess.TimeoutExpired:
            process.kill()
    return process.wait()


class Child(AbstractContextManager["Child"]):
    """A child process that reads and writes lines of text. It dies with us, and is killed at the end of its block.

    With *grace_s* it survives us, must notice the end of its standard input, and has that time to exit at the end.

    Start it from the main thread, as with `start`. Its errors contain its name and the end of its standard error, which
    is a file: an unread pipe would block the child when it is full. A child that is late is killed, because its late
    reply would be taken for that to the next request.
    """

    def __init__(self, argv: Sequence[str], *, name: str, log: Path | None = None, grace_s: float = 0) -> None:
        """Start the child. Its standard error is written to *log*; without one to memory, and lost at its end."""
        self.name, self._grace_s = name, grace_s
        self._errors = os.fdopen(os.memfd_create("stderr"), "rb") if log is None else log.open("w+b")
        try:
            self._popen = start(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors.fileno(),
                is_tied=not grace_s,
            )
        except BaseException:
            self._errors.close()
            raise
        self.stdin, self.stdout = cast("IO[bytes]", self._popen.stdin), cast("IO[bytes]", self._popen.stdout)
        self._unread = b""
        self.has_ended = False
        """True once `read_lines` has seen the end of its output."""

    def __exit__(self, *_: object) -> None:
        self.close(self._grace_s)

    @property
    def pid(self) -> int:
        """Pid of the process that was started. In a namespace that may be the program that entered it."""
        return self._popen.pid

    def write_line(self, line: str, limit_s: float = 60) -> None:
        """Write a line to its standard input unless it has exited; raise RunFailed if it does not read in time."""
        deadline = time.monotonic() + limit_s
        left = memoryview(line.encode() + b"\n")
        with suppress(BrokenPipeError):
            while left:
                self._await(self.stdin, select.POLLOUT, deadline, f"did not read its input for {limit_s:g} s")
                # A write of this size never blocks after POLLOUT.
                left = left[os.write(self.stdin.fileno(), left[: select.PIPE_BUF]) :]

    def read_line(self, limit_s: float = 60) -> str:
        """Return the next line of its output; raise RunFailed if it exits or times out before the line is complete."""
        parts = [self._unread]
        blocks = self._read_blocks(time.monotonic() + limit_s, f"no reply within {limit_s:g} s")
        while b"\n" not in parts[-1]:
            block = next(blocks, None)
            if block is None:
                raise RunFailed(f"{self.name}: exited. Its error output: {self.read_stderr_tail()}")
            parts.append(block)
        line, _, self._unread = b"".join(parts).partition(b"\n")
        return line.decode(errors="replace")

    def read_lines(self) -> list[str]:
        """Wait for output, at least a part of a line, and return the complete lines; sets `has_ended` at its end."""
        block = os.read(self.stdout.fileno(), 1 << 16)
        self.has_ended = not block
        *lines, self._unread = (self._unread + block).split(b"\n")
        return [line.decode(errors="replace") for line in lines]

    def request(self, line: str, limit_s: float = 60) -> str:
        """Write a line, and return the next line of its output."""
        self.write_line(line, limit_s)
        return self.read_line(limit_s)

    def read_until_exit(self, limit_s: float) -> str:
        """Close its standard input and return the rest of its output; raise RunFailed if it does not exit in time."""
        deadline, failure = time.monotonic() + limit_s, f"did not exit within {limit_s:g} s"
        self.stdin.close()
        output, self._unread = b"".join((self._unread, *self._read_blocks(deadline, failure))), b""
        try:
            self._popen.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise self._kill_late(failure) from None
        return output.decode(errors="replace")

    def read_stderr_tail(self) -> str:
        """Return the end of its standard error, or "(empty)"."""
        size_bytes = os.fstat(self._errors.fileno()).st_size
        tail = os.pread(self._errors.fileno(), _OUTPUT_TAIL_BYTES, max(0, size_bytes - _OUTPUT_TAIL_BYTES))
        return tail.decode(errors="replace").strip() or "(empty)"

    def is_running(self) -> bool:
        """Return True if it has not exited."""
        return self._popen.poll() is None

    def describe_exit(self) -> str:
        """Wait for its exit and return how it ended."""
        status = self._popen.wait()
        return f"was killed by signal {-status}" if status < 0 else f"exited with code {status}"

    def kill(self) -> None:
        """Send SIGKILL. It may have exited before."""
        self._popen.kill()

    def close(self, grace_s: float = 0) -> None:
        """Close its standard input, give it that time to exit, then kill and reap it."""
        with suppress(BrokenPipeError):
            self.stdin.close()
        if grace_s:
            with suppress(subprocess.TimeoutExpired):
                self._popen.wait(grace_s)
        self.kill()
        self._popen.wait()
        for file in (self.stdin, self.stdout, self._errors):
            file.close()

    def _read_blocks(self, deadline: float, failure: str) -> Iterator[bytes]:
        """Yield its output as it arrives, until its end."""
        while True:
            self._await(self.stdout, select.POLLIN, deadline, failure)
            block = os.read(self.stdout.fileno(), 1 << 16)
            if not block:
                return
            yield block

    def _await(self, pipe: IO[bytes], event: int, deadline: float, failure: str) -> None:
        # Not select(), which supports no descriptor above 1023.
        poll = select.poll()
        poll.register(pipe, event)
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise self._kill_late(failure)

    def _kill_late(self, failure: str) -> RunFailed:
        self.kill()
        return RunFailed(f"{self.name}: {failure}. Its error output: {self.read_stderr_tail()}")


def build_environment() -> dict[str, str]:
    """Return our environment for a child: with `PATH`, and without options that apply to every JVM or Python."""
    return {**{key: text for key, text in os.environ.items() if key not in _GLOBAL_OPTIONS}, "PATH": PATH}


def which(program: str) -> str | None:
    """Return the path of the program that a child would run; None if it is not installed."""
    return shutil.which(program, path=PATH)


def build_module_argv(module: str, *arguments: str) -> tuple[str, ...]:
    """Return the argv that runs an installed module with this Python, importing nothing from the current folder.

    The user's own site-packages are excluded too, unless ingest-bench itself is installed there. PYTHONPATH applies as
    usual; an empty or relative entry in it has no effect, because a child starts in `/`.
    """
    return (*_isolated(), "-m", module, *arguments)


def build_program_argv(path: str | Path, *arguments: str) -> tuple[str, ...]:
    """Return the argv that runs a file with this Python; the file may import installed packages, not its neighbours."""
    return (*_isolated(), str(path), *arguments)


def build_script_argv(path: str | Path, *arguments: str) -> tuple[str, ...]:
    """Return the argv that runs a file with this Python; the file may import the standard library only."""
    return (sys.executable, "-I", "-S", str(path), *arguments)


def read_text(path: str | Path) -> str | None:
    """Return a kernel file's text, in which a path may have any bytes; None if it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="surrogateescape").strip()
    except OSError:
        return None


def is_root() -> bool:
    """Return True if we run as root."""
    return os.geteuid() == 0


def tie_to_parent(argv: Sequence[str]) -> tuple[str, ...]:
    """Return the argv that runs *argv* and dies with us, also after entering a user namespace or changing the uid."""
    return (*_CHECK_PARENT, str(os.getpid()), *argv)


def wrap_in_pid_namespace(argv: Sequence[str]) -> tuple[str, ...]:
    """Return the argv that runs *argv* in a pid namespace with its own /proc; the kernel kills all of it when we die.

    Requires CAP_SYS_ADMIN in the current user namespace. The exit status is that of *argv*, 128 + N after signal N.
    """
    return (*_SETPRIV, "sh", "-c", _ENTER_NAMESPACE, _INIT, str(os.getpid()), *argv)


def _require_program(argv: Sequence[str]) -> None:
    """Raise RunFailed if the program (or setpriv) cannot be run: otherwise setpriv or sh would report it."""
    for program in (_SETPRIV[0], argv[0]):
        if which(program) is None:
            reason = "this user may not run it" if os.path.exists(program) else "this program is not installed"  # noqa: PTH110
            raise RunFailed(f"{program}: {reason} (tried: {shlex.join(argv)})")


def _isolated() -> tuple[str, ...]:
    return (sys.executable, "-P", *(() if _is_in_user_site() else ("-s",)))


def _is_in_user_site() -> bool:
    """Return True if ingest-bench (or a link to a checkout) is in the user's site-packages, as its imports may be."""
    folder = site.getusersitepackages()
    return folder in sys.path and any(Path(folder).glob("ingest_bench-*.dist-info"))
