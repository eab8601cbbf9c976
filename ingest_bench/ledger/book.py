"""Write-ahead undo for what outlives a process: real interfaces, sysctls, files below /sys.

A session is one file of JSON lines: a header that says who changes what until when, then one line for each step with
the undo and the OLD value in it, on disk before the change is made. Undoing replays the lines backwards, and an undo
that finds nothing to undo is a success; so it does not matter where a session was cut off, or how often it is undone.

Who changes something holds a lock on that file while doing so, and so does the command that it started. Who undoes
takes the same lock first, marks the session as closed, and no change can follow. A program that is killed in the
middle of `tc` lets go of the lock only when `tc` has ended.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingest_bench.errors import RunFailed
from ingest_bench.inputs.records import from_json, to_json
from ingest_bench.ledger import namespaces
from ingest_bench.ledger.namespaces import Namespace
from ingest_bench.ledger.steps import Step, Undo

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingest_bench.ledger.namespaces import Kind

    Stage = Callable[[str], None]

SCHEMA = 1
# A change is one netlink message and takes milliseconds. Only a stopped process holds the lock for longer.
_PATIENCE_S = 10.0
# The mode of a journal, and its bits for "no change may follow" and "everything was put back": to set a bit needs no
# room on a full disk, and works on a deleted file.
_OPEN = 0o600
_CLOSED = 0o100
_PUT_BACK = 0o010


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """Who changes what until when: the first line of a session's file."""

    what: str
    pid: int
    boot_id: str
    until_realtime_ns: int
    until_boottime_ns: int
    """CLOCK_BOOTTIME: it goes on while the machine sleeps, and nobody can set it."""
    within: tuple[Namespace, ...] = ()
    """Where alone the undo works; empty: anywhere on this machine."""
    resources: tuple[str, ...] = ()
    """What nobody else may change in the meantime: see `sessions.locked`."""
    schema: int = SCHEMA


@dataclass(frozen=True, slots=True, kw_only=True)
class Noted:
    """One line of a session's file: its header, or a step. What stands in these two is read by itself."""

    header: Any = None
    step: str = ""
    undo: tuple[Any, ...] = ()


@dataclass(slots=True)
class Ledger:
    """One session's file, open for appending."""

    path: Path
    descriptor: int
    text: bytes = b""
    """All lines that this process wrote. They count if another program deletes or changes the file."""

    @classmethod
    def create(cls, path: Path, header: Header) -> Ledger:
        """Write a journal's header to disk, into a new file or the watchdog's empty one."""
        ledger = cls(path, open_file(path))
        try:
            ledger._append({"header": to_json(header)})
        except BaseException:
            ledger.close()
            path.unlink()
            raise
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        return ledger

    def change(self, step: Step, on_stage: Stage) -> None:
        """Note the undo, then make the change.

        RunFailed when the session was closed, its journal lost or its time is over, and when the undo cannot be noted:
        nothing is changed then.
        """
        fcntl.flock(self.descriptor, fcntl.LOCK_EX)
        try:
            # Without a session's file a watchdog whose time has come finds nothing to undo, and has ended.
            if self.is_closed() or self._is_late():
                raise RunFailed(f"{step.name}: not done, the time is over and everything was put back")
            if self.is_lost():
                raise RunFailed(f"{step.name}: not done, another program deleted or changed {self.path}")
            if step.undo:
                self._append({"step": step.name, "undo": to_json(step.undo)})
            on_stage(f"{step.name}: noted")
            step.do.carry_out(held=(self.descriptor,))
            on_stage(f"{step.name}: done")
        finally:
            fcntl.flock(self.descriptor, fcntl.LOCK_UN)

    def is_closed(self) -> bool:
        """Whether somebody put everything back, or began to."""
        return bool(os.fstat(self.descriptor).st_mode & _CLOSED)

    def is_put_back(self) -> bool:
        """Return True if everything that this process knows of was put back."""
        return bool(os.fstat(self.descriptor).st_mode & _PUT_BACK) and not self._is_changed()

    def is_lost(self) -> bool:
        """Return True if another program deleted, moved, replaced or changed the file of an open session."""
        is_there = self.is_at_its_path()
        return not self.is_closed() and (not is_there or self._is_changed())

    def mark_closed(self) -> None:
        """Let no change follow."""
        os.fchmod(self.descriptor, _OPEN | _CLOSED)

    def remove(self) -> None:
        """Mark everything as put back, and remove the file if it is still at its path."""
        os.fchmod(self.descriptor, _OPEN | _CLOSED | _PUT_BACK)
        if self.is_at_its_path():
            self.path.unlink()

    def advice(self) -> str:
        """Return what to do about an undo that failed."""
        if self.is_at_its_path():
            return "Try again: ingest-bench net restore"
        return f"Put it back by hand: {self.path} was deleted, so `ingest-bench net restore` does not know of it"

    def lines(self) -> list[Noted]:
        """Return the journal's whole lines, as `lines_of`."""
        return _parsed(self.path, self.text or self._content())

    def close(self) -> None:
        """Give the descriptor back; the file stays."""
        os.close(self.descriptor)

    def _is_late(self) -> bool:
        header = _header(self.path, self.lines())
        return header is not None and time.clock_gettime_ns(time.CLOCK_BOOTTIME) >= header.until_boottime_ns

    def is_at_its_path(self) -> bool:
        """Return True if the open file is the one at its path."""
        try:
            return os.path.samestat(self.path.stat(), os.fstat(self.descriptor))
        except OSError:
            return False

    def _is_changed(self) -> bool:
        return bool(self.text) and self._content() != self.text

    def _content(self) -> bytes:
        return os.pread(self.descriptor, os.fstat(self.descriptor).st_size, 0)

    def _append(self, line: dict[str, Any]) -> None:
        """The whole line is on disk; RunFailed when it is not, and then nothing of it."""
        text, before_bytes = f"{json.dumps(line)}\n".encode(), os.fstat(self.descriptor).st_size
        failed = ""
        try:
            if os.write(self.descriptor, text) < len(text):
                failed = os.strerror(errno.ENOSPC)
            os.fsync(self.descriptor)
        except OSError as error:
            failed = error.strerror or str(error)
        if failed:
            os.ftruncate(self.descriptor, before_bytes)
            raise RunFailed(f"{self.path}: how to undo it cannot be noted ({failed}); it was not done")
        self.text += text


def finish(
    path: Path, on_stage: Stage = lambda _: None, *, opened: Ledger | None = None, patience_s: float = _PATIENCE_S
) -> list[str]:
    """What was put back. The session is closed, undone backwards, and its file removed.

    With the journal *opened* by this process, everything is put back though another program deleted the file.
    RunFailed when something could not be put back; all the rest was, and the file stays for `net restore`.
    """
    if opened is not None and opened.is_put_back():
        opened.remove()
        return []
    try:
        # A lock belongs to an open file: this one is opened anew. A deleted file is opened by the link in /proc.
        name = f"/proc/self/fd/{opened.descriptor}" if opened and not opened.is_at_its_path() else path
        descriptor = os.open(name, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
    except FileNotFoundError:
        return []
    book = Ledger(path, descriptor, b"" if opened is None else opened.text)
    try:
        in_time = lock_within(descriptor, patience_s)
        undone: list[str] = []
        if not book.is_put_back():
            book.mark_closed()
            on_stage("closed")
            undone, failed = _undo_all(book, on_stage)
            if not in_time:
                # A process is stopped in the middle of a change. Everything else is restored. Wait, then undo that one.
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                undone, failed = _undo_all(book, on_stage)
            if failed:
                raise RunFailed("not put back:\n" + "\n".join(failed) + f"\n{book.advice()}")
        book.remove()
        on_stage("removed")
    finally:
        book.close()
    return undone


def open_file(path: Path) -> int:
    """Open the journal at *path*, made if there is none."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, _OPEN)


def header_of(path: Path) -> Header | None:
    """The header of a session's file; None when it was cut off before that: nothing was changed then.

    RunFailed for a file of another version, or one in which something else stands.
    """
    return _header(path, lines_of(path))


def _header(path: Path, lines: list[Noted]) -> Header | None:
    try:
        header = from_json(Header, lines[0].header) if lines else None
    except ValueError as error:
        raise _unreadable(path, error) from None
    if header is not None and header.schema != SCHEMA:
        raise _unreadable(path, f"schema {header.schema}, known is {SCHEMA}")
    return header


def new_header(
    what: str, time_limit_s: float, resources: tuple[str, ...] = (), within: tuple[Kind, ...] = ()
) -> Header:
    """A header that begins now, in our namespaces of these kinds."""
    limit_ns = int(time_limit_s * 10**9)
    return Header(
        what=what,
        pid=os.getpid(),
        boot_id=boot_id(),
        until_realtime_ns=time.time_ns() + limit_ns,
        until_boottime_ns=time.clock_gettime_ns(time.CLOCK_BOOTTIME) + limit_ns,
        within=tuple(map(namespaces.own, within)),
        resources=resources,
    )


def boot_id() -> str:
    """What the kernel drew at this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def is_forgotten(namespace: Namespace) -> bool:
    """Whether the kernel took everything back with that namespace; not with a mount namespace: others see its files."""
    return namespace.kind != "mnt" and namespace.is_gone()


def lines_of(path: Path) -> list[Noted]:
    """The whole lines of a session's file. A line that was cut off was not on disk, so its change was not made.

    RunFailed for a file in which something else stands.
    """
    try:
        return _parsed(path, path.read_bytes())
    except FileNotFoundError:
        return []


def _parsed(path: Path, text: bytes) -> list[Noted]:
    try:
        complete_lines, _, _ = text.rpartition(b"\n")
        return [from_json(Noted, json.loads(line)) for line in complete_lines.splitlines()]
    except (ValueError, RecursionError) as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, why: object) -> RunFailed:
    return RunFailed(
        f"{path}: what a session has changed cannot be read ({why}); use the version of ingest-bench that wrote it, or "
        "put back by hand what stands in it and remove it"
    )


def _undo_all(book: Ledger, on_stage: Stage) -> tuple[list[str], list[str]]:
    """What was undone and what could not be.

    After a reboot the kernel has forgotten everything by itself, and of a namespace that is gone likewise.
    """
    undone: list[str] = []
    failed: list[str] = []
    lines = book.lines()
    header = _header(book.path, lines)
    if header is None or header.boot_id != boot_id() or any(map(is_forgotten, header.within)):
        return undone, failed
    for line in reversed(lines):
        for table in line.undo:
            on_stage(f"undo {line.step}: before")
            try:
                named = from_json(Undo, table).named()
                if named is not None and named.is_needed():
                    named.action.carry_out()
                    undone.append(str(named.action))
            except RunFailed as error:
                failed.append(str(error))
            except (OSError, ValueError) as error:
                # Such as: this user may not start one process more.
                failed.append(f"{line.step}: {error}")
            on_stage(f"undo {line.step}: after")
    return undone, failed


def lock_within(descriptor: int, patience_s: float) -> bool:
    """Whether the lock was free within that time; then it is ours."""
    until = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                return False
            time.sleep(0.02)
        else:
            return True
