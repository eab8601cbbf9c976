"""Run a command, start a process: the one seam to the operating system that tests replace."""

from __future__ import annotations

import ctypes
import os
import shlex
import signal
import subprocess
import threading
from typing import TYPE_CHECKING

from ingest_bench.errors import RunFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)
# A change of credentials clears the death signal, so it is set again after that; and whoever lost us in between has
# another parent now and looks for itself.
_WITH_US = ("setpriv", "--pdeathsig", "KILL", "--", "sh", "-c", '[ "$PPID" = "$0" ] || exit 1; exec "$@"')


def run(
    argv: Sequence[str],
    *,
    timeout_s: float = 30,
    stdin: str | None = None,
    check: bool = True,
    pass_fds: tuple[int, ...] = (),
) -> str:
    """What the command wrote to its standard output; RunFailed with its words when it fails or takes too long.

    With `check=False` a failure is no error: the answer is both outputs together. The command dies with us, unless it
    is given `pass_fds`: it keeps these descriptors open until it ends, even when we end before it.
    """
    # The signal follows the thread that forked, and only the main one is sure to stay.
    alone = bool(pass_fds) or threading.current_thread() is not threading.main_thread()
    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            input=stdin,
            check=False,
            pass_fds=pass_fds,
            preexec_fn=None if alone else _dying_with(os.getpid()),
        )
    except FileNotFoundError:
        raise RunFailed(f"{argv[0]}: this program is not installed (tried: {shlex.join(argv)})") from None
    except PermissionError:
        raise RunFailed(f"{argv[0]}: this user may not run it (tried: {shlex.join(argv)})") from None
    except subprocess.TimeoutExpired:
        raise RunFailed(f"{shlex.join(argv)}: no end after {timeout_s:g} s") from None
    if not check:
        return done.stdout + done.stderr
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or "nothing")[-2000:]
        raise RunFailed(f"{shlex.join(argv)}: exit {done.returncode}, it said: {said}")
    return done.stdout


def start(
    argv: Sequence[str],
    *,
    stdout: Path | int | None = None,
    stdin: int | None = subprocess.DEVNULL,
    stderr: int | None = subprocess.STDOUT,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    user: int | None = None,
) -> subprocess.Popen[bytes]:
    """A child that the kernel ends with us (parent-death signal) and that Ctrl-C of the terminal does not reach.

    Call it from the main thread: the death signal follows the thread that forked. `user` drops to that uid and gid.
    A path as `stdout` is appended to.
    """
    opened = None if stdout is None or isinstance(stdout, int) else stdout.open("ab")
    output = stdout if stdout is None or isinstance(stdout, int) else opened
    try:
        return subprocess.Popen(
            argv,
            stdin=stdin,
            stdout=output,
            stderr=stderr,
            cwd=cwd,
            env=env,
            start_new_session=True,
            user=user,
            group=user,
            extra_groups=None if user is None else [],
            preexec_fn=_dying_with(os.getpid()),  # noqa: PLW1509 - the harness has one thread when it starts children
        )
    except FileNotFoundError:
        raise RunFailed(f"{argv[0]}: this program is not installed (tried: {shlex.join(argv)})") from None
    finally:
        if opened is not None:
            opened.close()


def stop(process: subprocess.Popen[bytes], *, grace_s: float = 5.0) -> int:
    """The exit status of a child that we end: SIGTERM, and SIGKILL after the grace. An ended one is fine."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(grace_s)
        except subprocess.TimeoutExpired:
            process.kill()
    return process.wait()


def is_root() -> bool:
    """Whether we may do what only root may."""
    return os.geteuid() == 0


def with_us(argv: Sequence[str]) -> tuple[str, ...]:
    """The argv that runs `argv` and dies with us, for use after an entry into a user namespace or a change of uid."""
    return (*_WITH_US, str(os.getpid()), *argv)


def _dying_with(parent: int) -> Callable[[], None]:
    """What a child does before it runs its program: it asks for the death signal, and ends if that comes too late."""

    def ask() -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return ask
