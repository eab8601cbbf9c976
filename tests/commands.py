"""Run the command as a process whose output, phases and child processes a test can observe."""

from __future__ import annotations

import contextlib
import csv
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
# Generous for a busy machine; a hanging command fails the test.
LIMIT_S = 120
ORDINARY_UID = ordinary_user.UID


@dataclass(slots=True)
class Command:
    """A running `ingest-bench`: its output, and its events as reported by run_driver.py."""

    popen: subprocess.Popen[bytes]
    event_fd: int
    output_fd: int
    """A pipe, or the other end of a terminal."""
    output: bytearray = field(default_factory=bytearray)
    events: list[str] = field(default_factory=list)
    _checked: int = 0
    _unread: bytes = b""

    def until(self, *parts: str) -> None:
        """Wait for the next event that contains all these parts."""
        limit = time.monotonic() + LIMIT_S
        while True:
            while self._checked < len(self.events):
                self._checked += 1
                if all(part in self.events[self._checked - 1] for part in parts):
                    return
            assert self._read(limit), f"it ended before {parts}: {self.events[-3:]} {self.text}"

    def end(self) -> int:
        """Wait until it exits; return its exit status."""
        limit = time.monotonic() + LIMIT_S
        while self._read(limit):
            pass
        return self.popen.wait(LIMIT_S)

    def close_terminal(self) -> None:
        os.close(self.output_fd)
        self.output_fd = -1

    @property
    def text(self) -> str:
        return self.output.decode("utf-8", "replace")

    @property
    def stages(self) -> list[str]:
        return [event.removeprefix("stage ") for event in self.events if event.startswith("stage ")]

    def _read(self, limit: float) -> bool:
        """Read output and events; return False after the last event."""
        ready, _, _ = select.select([self.event_fd, *([self.output_fd] if self.output_fd >= 0 else [])], [], [], 1.0)
        assert time.monotonic() < limit, f"it hangs after {self.events[-3:]}: {self.text}"
        if self.output_fd in ready:
            with contextlib.suppress(OSError):  # the terminal is closed
                self.output += os.read(self.output_fd, 65536)
        if self.event_fd not in ready:
            return True
        chunk = os.read(self.event_fd, 65536)
        *lines, self._unread = (self._unread + chunk).split(b"\n")
        self.events += [line.decode() for line in lines]
        return bool(chunk)


@dataclass(slots=True)
class Place:
    """Where a user runs the command: an empty folder that is also the home, and the cache."""

    folder: Path
    user: int | None

    def environment(self) -> dict[str, str]:
        variables = {"HOME": str(self.folder), "INGEST_BENCH_CACHE": str(cache.folder()), "COLUMNS": "100"}
        return {**{key: value for key, value in os.environ.items() if not key.startswith("XDG_")}, **variables}

    @contextlib.contextmanager
    def command(self, *arguments: str, terminal: bool = False) -> Iterator[Command]:
        """Start the command; kill it if it still runs at the end of the block."""
        ours, theirs = pty.openpty() if terminal else os.pipe()
        event_fd, write_fd = os.pipe()
        driver = self.folder / "run_driver.py"
        shutil.copy(Path(__file__).with_name("run_driver.py"), driver)

        def take_terminal() -> None:
            fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)

        popen = subprocess.Popen(
            [*as_user(self.user), sys.executable, str(driver), str(write_fd), *arguments],
            stdin=theirs if terminal else subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            pass_fds=(write_fd,),
            cwd=self.folder,
            env=self.environment(),
            start_new_session=True,
            preexec_fn=take_terminal if terminal else None,  # noqa: PLW1509 - a test has one thread
        )
        os.close(theirs)
        os.close(write_fd)
        command = Command(popen, event_fd, ours)
        try:
            yield command
        finally:
            popen.kill()
            popen.wait()
            for descriptor in (event_fd, command.output_fd):
                if descriptor >= 0:
                    os.close(descriptor)

    def run(self, *arguments: str, exit_code: int = 0) -> str:
        """Run `ingest-bench run` to its end, with no process left; return its output in one line."""
        with nothing_left(), self.command("run", *arguments) as command:
            code, output = command.end(), " ".join(command.text.split())
        assert (code, "Traceback" in output) == (exit_code, False), f"{arguments}: {output}"
        return output

    def read_row(self) -> dict[str, str]:
        """Return the only row of the newest results."""
        newest = max(self.results, key=lambda path: path.name)
        with (newest / "summary.csv").open(encoding="utf-8") as file:
            (values,) = csv.DictReader(file)
        return values

    @property
    def results(self) -> list[Path]:
        return sorted(path.parent for path in self.folder.glob("out/*/20*/plan.json"))


def as_user(user: int | None) -> tuple[str, ...]:
    return () if user is None else (*ordinary_user.before(), "--")


@contextlib.contextmanager
def place(user: int | None = None) -> Iterator[Place]:
    """Create a folder for the user; skip the test if the user cannot read this Python."""
    # Temporary folders of pytest are not readable by other users.
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
    """Check that every process that the block starts, directly or not, ends soon after it.

    We are the subreaper: processes that lose their parent become our children.
    """
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    before = set(psutil.Process().children(recursive=True))
    try:
        yield
        limit = time.monotonic() + LIMIT_S
        while left := [child for child in psutil.Process().children(recursive=True) if child not in before]:
            alive = [line for child in left if (line := _alive(child))]
            assert not alive or time.monotonic() < limit, alive
            time.sleep(0.02)
    finally:
        for child in psutil.Process().children(recursive=True):
            if child not in before:
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 0)


def _alive(process: psutil.Process) -> str:
    """Return its command line; reap it and return "" if it has ended."""
    try:
        if process.status() != psutil.STATUS_ZOMBIE:
            return " ".join(process.cmdline()) or process.name()
    except psutil.NoSuchProcess:
        return ""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(process.pid, os.WNOHANG)
    return ""


def running(command: Command) -> str:
    """Return the command lines of all descendants of the command."""
    lines = []
    for child in psutil.Process(command.popen.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            lines.append(" ".join(child.cmdline()))
    return "\n".join(lines)


def report(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Run `ingest-bench report FOLDER`; return exit code and output."""
    capsys.readouterr()
    code = app.run(["report", str(folder)])
    output = capsys.readouterr()
    return code, output.out + output.err


def fill_cache() -> None:
    """Fill the cache with what a run of the sink needs, also for a user who can only read it."""
    recording.reader_command(targets.fetch(targets.find_target("sink").requirements(TargetOptions(name="sink"))))


USERS = (None, ORDINARY_UID) if system.is_root() else (None,)
CTRL_C = b"\x03"
SIGNALS = {number.name: number for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)}
