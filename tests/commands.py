"""The whole command as a process of a test, which sees everything that it ever started."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import ordinary_user
import psutil
import pytest

from ingest_bench import system, targets
from ingest_bench.cli import app
from ingest_bench.jvm import cache
from ingest_bench.model.target import TargetOptions
from ingest_bench.probes import recording

_PR_SET_CHILD_SUBREAPER = 36
# On a busy machine everything takes long; a hanging command ends the test all the same.
LIMIT_S = 120
NOBODY = ordinary_user.NOBODY


@dataclass(slots=True)
class Command:
    """A running `ingest-bench`. Its whole output is in `output`, everything that it said of itself in `events`."""

    popen: subprocess.Popen[bytes]
    told: int
    heard: int
    """Its output: a pipe, or a terminal's other end."""
    output: bytearray = field(default_factory=bytearray)
    events: list[str] = field(default_factory=list)
    _seen: int = 0
    _unread: bytes = b""

    def until(self, *parts: str) -> None:
        """Returns when that event has come: the next line with all these parts."""
        limit = time.monotonic() + LIMIT_S
        while True:
            while self._seen < len(self.events):
                self._seen += 1
                if all(part in self.events[self._seen - 1] for part in parts):
                    return
            assert self._hear(limit), f"it ended before {parts}: {self.events[-3:]} {self.text}"

    def end(self) -> int:
        """Its exit status, when it has ended."""
        limit = time.monotonic() + LIMIT_S
        while self._hear(limit):
            pass
        return self.popen.wait(LIMIT_S)

    def close_terminal(self) -> None:
        os.close(self.heard)
        self.heard = -1

    @property
    def text(self) -> str:
        return self.output.decode("utf-8", "replace")

    @property
    def stages(self) -> list[str]:
        return [event.removeprefix("stage ") for event in self.events if event.startswith("stage ")]

    def _hear(self, limit: float) -> bool:
        """Whether it still runs; takes what it says."""
        ready, _, _ = select.select([self.told, *([self.heard] if self.heard >= 0 else [])], [], [], 1.0)
        assert time.monotonic() < limit, f"it hangs after {self.events[-3:]}: {self.text}"
        if self.heard in ready:
            with contextlib.suppress(OSError):  # a terminal that nobody has open any more
                self.output += os.read(self.heard, 65536)
        if self.told not in ready:
            return True
        got = os.read(self.told, 65536)
        *lines, self._unread = (self._unread + got).split(b"\n")
        self.events += [line.decode() for line in lines]
        return bool(got)


@dataclass(slots=True)
class Place:
    """Where a user runs the command: a folder of its own, a home, and the cache."""

    folder: Path
    user: int | None

    def environment(self) -> dict[str, str]:
        own = {"HOME": str(self.folder), "INGEST_BENCH_CACHE": str(cache.folder()), "COLUMNS": "100"}
        return {**{key: value for key, value in os.environ.items() if not key.startswith("XDG_")}, **own}

    @contextlib.contextmanager
    def command(self, *arguments: str, terminal: bool = False) -> Iterator[Command]:
        """The command at its beginning; it is killed if it still runs at the end of the block."""
        ours, theirs = pty.openpty() if terminal else os.pipe()
        told, tell = os.pipe()
        driver = self.folder / "run_driver.py"
        shutil.copy(Path(__file__).with_name("run_driver.py"), driver)

        def take_terminal() -> None:
            fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)

        popen = subprocess.Popen(
            [*as_user(self.user), sys.executable, str(driver), str(tell), *arguments],
            stdin=theirs if terminal else subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            pass_fds=(tell,),
            cwd=self.folder,
            env=self.environment(),
            start_new_session=True,
            preexec_fn=take_terminal if terminal else None,  # noqa: PLW1509 - a test has one thread
        )
        os.close(theirs)
        os.close(tell)
        command = Command(popen, told, ours)
        try:
            yield command
        finally:
            popen.kill()
            popen.wait()
            for descriptor in (told, command.heard):
                if descriptor >= 0:
                    os.close(descriptor)

    @property
    def results(self) -> list[Path]:
        return sorted(path.parent for path in self.folder.glob("out/*/*/plan.json"))


def as_user(user: int | None) -> tuple[str, ...]:
    return () if user is None else (*ordinary_user.before(), "--")


@contextlib.contextmanager
def place(user: int | None = None) -> Iterator[Place]:
    """A folder that the user has for itself; a skip when it cannot read this Python."""
    # pytest's own temporary folders are closed to other users.
    folder = Path(tempfile.mkdtemp(prefix="ingest-bench-", dir="/var/tmp"))
    try:
        if user is not None:
            os.chown(folder, user, user)
            as_user(user)
        yield Place(folder, user)
    finally:
        shutil.rmtree(folder)


@contextlib.contextmanager
def nothing_left() -> Iterator[None]:
    """A check that every process that the block starts, directly or not, has ended soon after it.

    Whoever loses its parent becomes our child: none can hide, whenever it was started.
    """
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    before = set(psutil.Process().children(recursive=True))
    try:
        yield
        limit = time.monotonic() + LIMIT_S
        while left := [child for child in psutil.Process().children(recursive=True) if child not in before]:
            alive = [said for child in left if (said := _alive(child))]
            assert not alive or time.monotonic() < limit, alive
            time.sleep(0.02)
    finally:
        for child in psutil.Process().children(recursive=True):
            if child not in before:
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 0)


def _alive(process: psutil.Process) -> str:
    """What it is; empty for one that has ended, which is reaped."""
    try:
        if process.status() != psutil.STATUS_ZOMBIE:
            return " ".join(process.cmdline()) or process.name()
    except psutil.NoSuchProcess:
        return ""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(process.pid, os.WNOHANG)
    return ""


def running(command: Command) -> str:
    """The command lines of everything that the command has running now."""
    lines = []
    for child in psutil.Process(command.popen.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            lines.append(" ".join(child.cmdline()))
    return "\n".join(lines)


def report(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit code and output of `ingest-bench report FOLDER`."""
    capsys.readouterr()
    code = app.run(["report", str(folder)])
    out, errors = capsys.readouterr()
    return code, out + errors


def fill_cache() -> None:
    """The cache has what a run of the sink needs, also for somebody who may only read it."""
    recording.reader(targets.fetch(targets.named("sink").requirements(TargetOptions(name="sink"))))


USERS = (None, NOBODY) if system.is_root() else (None,)
CTRL_C = b"\x03"
SIGNALS = {number.name: number for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)}
