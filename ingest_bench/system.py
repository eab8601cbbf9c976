"""Run a command, start a process: the one seam to the operating system that tests replace.

Whatever is started may run as root, in a folder and with an environment that somebody else chose. So a child begins in
`/` and not in the current folder, it finds its programs by `PATH` alone, and a Python child imports nothing from where
it begins: `python`, `program` and `script`. What the user typed is the exception: it runs as typed, in the user's own
folder.
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
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from ingest_bench.errors import RunFailed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

# Where programs are looked for, whatever the caller's PATH says: cron's has no /usr/sbin, where ip and tc are, and one
# with "." in it would run somebody's program.
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# The caller's own, for what the user typed or has: the command of `net exec`, a Java.
CALLERS_PATH = os.environ.get("PATH", PATH)

# Options for every JVM, such as an agent, and for every Python, such as to end with the first warning. Ours are told
# what they need in their argv, and what they print is parsed.
_FOR_EVERYBODY = {"JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "PYTHONWARNINGS", "PYTHONINSPECT"}

# Of what a program said, in an error.
_LAST_WORDS_BYTES = 2000

# Not by a preexec_fn: Python then runs the hooks of os.register_at_fork, where a Ctrl-C is printed and forgotten.
_DYING = ("setpriv", "--pdeathsig", "KILL", "--")
# A change of credentials clears the death signal, so it is set again after that; and whoever lost us in between has
# another parent now and looks for itself.
_WITH_US = (*_DYING, "sh", "-c", '[ "$PPID" = "$0" ] || exit 1; exec "$@"')
# `unshare` dies with us, its child (the first process of the namespace) with `unshare`, and with that child the kernel
# kills every process in the namespace, also those in sessions or namespaces of their own.
_CONTAIN = """[ "$PPID" = "$1" ] || exit 1
shift
exec unshare --pid --fork --kill-child=KILL -- sh -c "$0" "$$" "$@"
"""
# The first process. $0 is the pid of `unshare`, which may have died before the death signal was set: /proc is still the
# outer one and shows the parent. Pids then start after our own outer pid: two JVMs with the same pid share their attach
# socket (/tmp/.java_pidPID) and their counters (/tmp/hsperfdata_USER/PID), which ended JVMs (JDK-8286030).
_FIRST = """while read -r key value; do
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
    """What the command wrote to its standard output; RunFailed with its words when it fails or takes too long.

    With `check=False` a failure is no error: the answer is both outputs together. The command dies with us, unless it
    is given `pass_fds`: it keeps these descriptors open until it ends, even when we end before it. Without `stdin` it
    reads nothing: a question on our terminal would not be seen. `env` is its whole environment; without it the command
    has `environment()`.
    """
    _check_program(argv)
    try:
        done = subprocess.run(
            argv if pass_fds else (*_DYING, *argv),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            input=stdin or "",
            check=False,
            pass_fds=pass_fds,
            cwd="/",
            env=environment() if env is None else env,
        )
    except subprocess.TimeoutExpired:
        raise RunFailed(f"{shlex.join(argv)}: no end after {timeout_s:g} s") from None
    if not check:
        return done.stdout + done.stderr
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or "nothing")[-_LAST_WORDS_BYTES:]
        raise RunFailed(f"{shlex.join(argv)}: exit {done.returncode}, it said: {said}")
    return done.stdout


def start(
    argv: Sequence[str],
    *,
    stdout: Path | int | None = None,
    stdin: int | None = subprocess.DEVNULL,
    stderr: int | None = subprocess.STDOUT,
    cwd: str | Path | None = "/",
    env: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """A child that the kernel ends with us (parent-death signal) and that Ctrl-C of the terminal does not reach.

    Call it from the main thread: the death signal follows the thread that forked. A path as `stdout` is appended to.
    `env` is its whole environment; without it the child has `environment()`. With None as `cwd` it begins where we are.
    """
    _check_program(argv)
    opened = None if stdout is None or isinstance(stdout, int) else stdout.open("ab")
    output = stdout if stdout is None or isinstance(stdout, int) else opened
    try:
        return subprocess.Popen(
            with_us(argv),
            stdin=stdin,
            stdout=output,
            stderr=stderr,
            cwd=cwd,
            env=environment() if env is None else env,
            start_new_session=True,
        )
    finally:
        if opened is not None:
            opened.close()


def start_in_terminal(argv: Sequence[str], *, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """A child with our terminal and in our folder: Ctrl-C reaches it too. It lives on without us."""
    _check_program(argv)
    return subprocess.Popen(argv, env=env)


def start_survivor(argv: Sequence[str], *, pass_fds: tuple[int, ...]) -> subprocess.Popen[bytes]:
    """A child that lives on when we are killed, deaf to the terminal, with nothing of ours but these descriptors."""
    _check_program(argv)
    null = subprocess.DEVNULL
    return subprocess.Popen(
        argv,
        stdin=null,
        stdout=null,
        stderr=null,
        pass_fds=pass_fds,
        cwd="/",
        env=environment(),
        start_new_session=True,
    )


def stop(process: subprocess.Popen[bytes], *, grace_s: float = 5.0) -> int:
    """The exit status of a child that we end: SIGTERM, and SIGKILL after the grace. An ended one is fine."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(grace_s)
        except subprocess.TimeoutExpired:
            process.kill()
    return process.wait()


class Child(AbstractContextManager["Child"]):
    """A child that is told, and tells, lines of text. It dies with us, and is killed at the end of its block.

    Start it from the main thread, as by `start`. Its errors have its name and the end of what it wrote to its standard
    error, which is a file of its own: a pipe that nobody reads would stop it when it is full. One that is late is
    killed: its answer would be taken for that to the next question.
    """

    def __init__(self, argv: Sequence[str], *, name: str, log: Path | None = None) -> None:
        """Its standard error is in `log` then; else in memory, and gone with it."""
        self.name = name
        self._errors = os.fdopen(os.memfd_create("said"), "rb") if log is None else log.open("w+b")
        try:
            self._popen = start(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors.fileno())
        except BaseException:
            self._errors.close()
            raise
        self.stdin, self.stdout = cast("IO[bytes]", self._popen.stdin), cast("IO[bytes]", self._popen.stdout)
        self._unread = b""

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """Of what was started: inside a namespace it may be what entered it."""
        return self._popen.pid

    def tell(self, line: str, limit_s: float = 60) -> None:
        """It hears this; when it is gone, its answer will be missing. RunFailed when it does not listen in time."""
        until = time.monotonic() + limit_s
        left = memoryview(line.encode() + b"\n")
        with suppress(BrokenPipeError):
            while left:
                self._await(self.stdin, select.POLLOUT, until, f"it did not listen for {limit_s:g} s")
                # So much never waits, once there is room.
                left = left[os.write(self.stdin.fileno(), left[: select.PIPE_BUF]) :]

    def line(self, limit_s: float = 60) -> str:
        """The next line that it says; RunFailed when it ends or the time is over before a whole one has come."""
        parts = [self._unread]
        blocks = self._blocks(time.monotonic() + limit_s, f"no answer after {limit_s:g} s")
        while b"\n" not in parts[-1]:
            block = next(blocks, None)
            if block is None:
                raise RunFailed(f"{self.name}: it ended, it said: {self.said()}")
            parts.append(block)
        line, _, self._unread = b"".join(parts).partition(b"\n")
        return line.decode(errors="replace")

    def ask(self, line: str, limit_s: float = 60) -> str:
        """Its answer to that line, as `line`."""
        self.tell(line, limit_s)
        return self.line(limit_s)

    def rest(self, limit_s: float) -> str:
        """All that it still says when its standard input ends; RunFailed when it does not end in that time."""
        until, late = time.monotonic() + limit_s, f"no end after {limit_s:g} s"
        self.stdin.close()
        said, self._unread = b"".join((self._unread, *self._blocks(until, late))), b""
        try:
            self._popen.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise self._late(late) from None
        return said.decode(errors="replace")

    def said(self) -> str:
        """The end of what it wrote to its standard error; "nothing" without a word."""
        size_bytes = os.fstat(self._errors.fileno()).st_size
        end = os.pread(self._errors.fileno(), _LAST_WORDS_BYTES, max(0, size_bytes - _LAST_WORDS_BYTES))
        return end.decode(errors="replace").strip() or "nothing"

    def runs(self) -> bool:
        """Whether it has not ended yet."""
        return self._popen.poll() is None

    def kill(self) -> None:
        """It is ended by SIGKILL; an ended one is fine."""
        self._popen.kill()

    def close(self) -> None:
        """It is gone: killed if need be, and reaped."""
        self.kill()
        self._popen.wait()
        for file in (self.stdin, self.stdout, self._errors):
            file.close()

    def _blocks(self, until: float, late: str) -> Iterator[bytes]:
        """What it says until its end, as it comes."""
        while True:
            self._await(self.stdout, select.POLLIN, until, late)
            block = os.read(self.stdout.fileno(), 1 << 16)
            if not block:
                return
            yield block

    def _await(self, pipe: IO[bytes], event: int, until: float, late: str) -> None:
        # Not by select(): that one knows no descriptor above 1023.
        waiting = select.poll()
        waiting.register(pipe, event)
        if not waiting.poll(max(0.0, until - time.monotonic()) * 1000):
            raise self._late(late)

    def _late(self, how: str) -> RunFailed:
        self.kill()
        return RunFailed(f"{self.name}: {how}, it said: {self.said()}")


def environment() -> dict[str, str]:
    """Our environment for a child: `PATH` in place of the caller's, and no options for every JVM or Python."""
    return {**{key: text for key, text in os.environ.items() if key not in _FOR_EVERYBODY}, "PATH": PATH}


def which(program: str) -> str | None:
    """Where a program is that a child would run; None when it is not installed."""
    return shutil.which(program, path=PATH)


def python(module: str, *arguments: str) -> tuple[str, ...]:
    """The argv of this Python that runs an installed module, and imports nothing from the current folder.

    Nothing from the user's own site-packages either, unless the command itself is installed there. What PYTHONPATH
    names counts, as in any Python; an entry that is empty or relative leads nowhere, since a child begins in `/`.
    """
    return (*_isolated(), "-m", module, *arguments)


def program(path: str | Path, *arguments: str) -> tuple[str, ...]:
    """The argv of this Python that runs a file which needs installed packages, but not the one that it is in."""
    return (*_isolated(), str(path), *arguments)


def script(path: str | Path, *arguments: str) -> tuple[str, ...]:
    """The argv of this Python that runs a file which needs the standard library alone."""
    return (sys.executable, "-I", "-S", str(path), *arguments)


def is_root() -> bool:
    """Whether we may do what only root may."""
    return os.geteuid() == 0


def with_us(argv: Sequence[str]) -> tuple[str, ...]:
    """The argv that runs `argv` and dies with us, for use after an entry into a user namespace or a change of uid."""
    return (*_WITH_US, str(os.getpid()), *argv)


def contained(argv: Sequence[str]) -> tuple[str, ...]:
    """Return the argv that runs *argv* in a process namespace with its own /proc, which the kernel empties when we die.

    Requires CAP_SYS_ADMIN in the current user namespace. The exit status is that of *argv*, 128 + N after signal N.
    """
    return (*_DYING, "sh", "-c", _CONTAIN, _FIRST, str(os.getpid()), *argv)


def _check_program(argv: Sequence[str]) -> None:
    """RunFailed for a program that cannot be run, in place of the error of whoever should start it."""
    for program in (_DYING[0], argv[0]):
        if which(program) is None:
            trouble = "this user may not run it" if os.path.exists(program) else "this program is not installed"  # noqa: PTH110
            raise RunFailed(f"{program}: {trouble} (tried: {shlex.join(argv)})")


def _isolated() -> tuple[str, ...]:
    return (sys.executable, "-P", *(() if _is_in_user_site() else ("-s",)))


def _is_in_user_site() -> bool:
    """Whether pip installed us there, as a copy or as a way to a checkout: what we import may then be there too."""
    folder = site.getusersitepackages()
    return folder in sys.path and any(Path(folder).glob("ingest_bench-*.dist-info"))
