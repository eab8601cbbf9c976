"""Run a command, start a process: the one seam to the operating system that tests replace."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from typing import TYPE_CHECKING

from ingest_bench.errors import RunFailed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

# Not by a preexec_fn: Python then runs the hooks of os.register_at_fork, where a Ctrl-C is printed and forgotten.
_DYING = ("setpriv", "--pdeathsig", "KILL", "--")
# A change of credentials clears the death signal, so it is set again after that; and whoever lost us in between has
# another parent now and looks for itself.
_WITH_US = (*_DYING, "sh", "-c", '[ "$PPID" = "$0" ] || exit 1; exec "$@"')


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
    _check_program(argv)
    try:
        done = subprocess.run(
            argv if pass_fds else (*_DYING, *argv),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            input=stdin,
            check=False,
            pass_fds=pass_fds,
        )
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
            env=env,
            start_new_session=True,
            user=user,
            group=user,
            extra_groups=None if user is None else [],
        )
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


def _check_program(argv: Sequence[str]) -> None:
    """RunFailed for a program that cannot be run, in place of the error of whoever should start it."""
    for program in (_DYING[0], argv[0]):
        if shutil.which(program) is None:
            trouble = "this user may not run it" if os.path.exists(program) else "this program is not installed"  # noqa: PTH110
            raise RunFailed(f"{program}: {trouble} (tried: {shlex.join(argv)})")
