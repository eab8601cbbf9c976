"""Write-ahead undo journal for changes that outlive a process: real interfaces, sysctls, files below /sys.

A session is one file of JSON lines: a header, then one line for each step with its undo and the OLD value. Each line is
on disk before its change is made. An undo replays the lines backwards, and undoing what is already undone succeeds. So
it does not matter where a session was cut off, or how often it is undone.

A process holds a lock on the file while it makes a change, and so does the command that it started. An undo takes the
same lock first and marks the session as closed, so that no change can follow. If a program is killed in the middle of
`tc`, the lock is released only when `tc` has exited.
"""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ingest_bench.errors import RunFailed
from ingest_bench.inputs.records import from_json, to_json
from ingest_bench.ledger import namespaces
from ingest_bench.ledger.namespaces import Namespace, NamespaceKind
from ingest_bench.ledger.steps import Step, Undo

OnStage = Callable[[str], None]

SCHEMA = 1
# A change is one netlink message and takes milliseconds. Only a stopped process holds the lock for longer.
_LOCK_TIMEOUT_S = 10.0
# The mode of a journal, and its bits for "closed" and "undone". Setting a bit needs no room on a full disk, and works
# on a deleted file.
_OPEN = 0o600
_CLOSED = 0o100
_UNDONE = 0o010


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """First line of a journal: which process changes what, and until when."""

    description: str
    pid: int
    boot_id: str
    deadline_realtime_ns: int
    deadline_boottime_ns: int
    """CLOCK_BOOTTIME: it includes the machine's sleep, and cannot be set."""
    namespaces: tuple[Namespace, ...] = ()
    """The undo works only in these; empty: anywhere on this machine."""
    resources: tuple[str, ...] = ()
    """What other sessions must not change in the meantime: see `sessions.acquire_locks`."""
    schema: int = SCHEMA


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalLine:
    """One line of a journal: the header, or a step. `header` and `undo` are parsed separately."""

    header: Any = None
    step: str = ""
    undo: tuple[Any, ...] = ()


@dataclass(slots=True)
class Journal:
    """The file of one session, open for appending."""

    path: Path
    descriptor: int
    expected_content: bytes = b""
    """All lines that this process wrote. They count if another program deletes or changes the file."""
    deadline_boottime_ns: float = math.inf
    """See `Header`."""

    @classmethod
    def create(cls, path: Path, header: Header) -> Journal:
        """Write the header to disk, into a new file or the watchdog's empty one."""
        journal = cls(path, open_journal(path), deadline_boottime_ns=header.deadline_boottime_ns)
        try:
            journal._append({"header": to_json(header)})
        except BaseException:
            journal.close()
            path.unlink()
            raise
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        return journal

    def apply(self, step: Step, on_stage: OnStage) -> None:
        """Write the undo to disk, then make the change.

        Raise RunFailed if the session is closed or expired, its journal lost, or the undo cannot be written: then
        nothing is changed.
        """
        fcntl.flock(self.descriptor, fcntl.LOCK_EX)
        try:
            # If the journal was deleted, an expired watchdog has found nothing to undo and has exited.
            if self.is_expired():
                raise RunFailed(f"{step.name}: not changed: the time limit expired and the session was undone")
            if self.is_lost():
                raise RunFailed(f"{step.name}: not changed: another program deleted or changed {self.path}")
            if step.undo:
                self._append({"step": step.name, "undo": to_json(step.undo)})
            on_stage(f"{step.name}: noted")
            step.action.execute(inherited_fds=(self.descriptor,))
            on_stage(f"{step.name}: done")
        finally:
            fcntl.flock(self.descriptor, fcntl.LOCK_UN)

    def is_expired(self) -> bool:
        """Return True if the time limit is reached, or the undo of the session has begun."""
        return self.is_closed() or time.clock_gettime_ns(time.CLOCK_BOOTTIME) >= self.deadline_boottime_ns

    def is_closed(self) -> bool:
        """Return True if the undo of the session has begun."""
        return bool(os.fstat(self.descriptor).st_mode & _CLOSED)

    def is_undone(self) -> bool:
        """Return True if every change that this process knows of was undone."""
        return bool(os.fstat(self.descriptor).st_mode & _UNDONE) and not self._is_changed()

    def is_lost(self) -> bool:
        """Return True if another program deleted, moved, replaced or changed the file of an open session."""
        # In this order: the watchdog closes a session before it removes the file.
        is_at_path = is_at(self.path, self.descriptor)
        return not self.is_closed() and (not is_at_path or self._is_changed())

    def mark_closed(self) -> None:
        """Reject all further changes."""
        os.fchmod(self.descriptor, _OPEN | _CLOSED)

    def remove(self) -> None:
        """Mark the session as undone, and remove the file if it is still at its path."""
        os.fchmod(self.descriptor, _OPEN | _CLOSED | _UNDONE)
        if is_at(self.path, self.descriptor):
            self.path.unlink()

    def read_lines(self) -> list[JournalLine]:
        """Return the journal's complete lines, as the function `read_lines`."""
        return _parse(self.path, self.expected_content or self._read())

    def close(self) -> None:
        """Close the descriptor; the file stays."""
        os.close(self.descriptor)

    def _is_changed(self) -> bool:
        return bool(self.expected_content) and self._read() != self.expected_content

    def _read(self) -> bytes:
        return os.pread(self.descriptor, os.fstat(self.descriptor).st_size, 0)

    def _append(self, line: dict[str, Any]) -> None:
        """Write the whole line to disk; raise RunFailed if that fails, with nothing of it left in the file."""
        text, size_before_bytes = f"{json.dumps(line)}\n".encode(), os.fstat(self.descriptor).st_size
        failure = ""
        try:
            if os.write(self.descriptor, text) < len(text):
                failure = os.strerror(errno.ENOSPC)
            os.fsync(self.descriptor)
        except OSError as error:
            failure = error.strerror or str(error)
        if failure:
            os.ftruncate(self.descriptor, size_before_bytes)
            raise RunFailed(f"{self.path}: the undo cannot be written: {failure}. The change was not made.")
        self.expected_content += text


def undo_session(path: Path, on_stage: OnStage = lambda _: None, *, journal: Journal | None = None) -> list[str]:
    """Close the session, undo its steps backwards, remove its file, and return the undo actions.

    With the *journal* that this process opened, everything is undone even if another program deleted the file.
    Raise RunFailed if an undo failed; the others were done, and the file stays for `net restore`.
    """
    if journal is not None and journal.is_undone():
        journal.remove()
        return []
    try:
        # A lock belongs to an open file, so open it anew. A deleted file is opened by its link in /proc.
        name = f"/proc/self/fd/{journal.descriptor}" if journal and not is_at(path, journal.descriptor) else path
        descriptor = os.open(name, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
    except FileNotFoundError:
        return []
    reopened = Journal(path, descriptor, b"" if journal is None else journal.expected_content)
    try:
        is_locked = try_lock(descriptor, _LOCK_TIMEOUT_S)
        undone: list[str] = []
        if not reopened.is_undone():
            reopened.mark_closed()
            on_stage("closed")
            undone, failed = _undo_steps(reopened, on_stage)
            if not is_locked:
                # A process is stopped in the middle of a change. Everything else is restored. Wait, then undo that one.
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                undone, failed = _undo_steps(reopened, on_stage)
            if failed:
                advice = "Try again: ingest-bench net restore"
                if not is_at(path, descriptor):
                    advice = (
                        f"Restore it by hand: {path} was deleted, so `ingest-bench net restore` does not know of it."
                    )
                raise RunFailed("\n".join(("not restored:", *failed, advice)))
        reopened.remove()
        on_stage("removed")
    finally:
        reopened.close()
    return undone


def _undo_steps(journal: Journal, on_stage: OnStage) -> tuple[list[str], list[str]]:
    """Undo all steps backwards; return the actions taken and the failures.

    After a reboot, or when a session's namespace is gone, the kernel has undone everything itself.
    """
    undone: list[str] = []
    failed: list[str] = []
    lines = journal.read_lines()
    header = _parse_header(journal.path, lines)
    if header is None or header.boot_id != read_boot_id() or any(map(is_undone_by_kernel, header.namespaces)):
        return undone, failed
    for line in reversed(lines):
        for table in line.undo:
            on_stage(f"undo {line.step}: before")
            try:
                undo = from_json(Undo, table).resolve()
                if undo is not None and undo.is_needed():
                    undo.action.execute()
                    undone.append(str(undo.action))
            except RunFailed as error:
                failed.append(str(error))
            except (OSError, ValueError) as error:
                # For example: the user's process limit is reached.
                failed.append(f"{line.step}: {error}")
            on_stage(f"undo {line.step}: after")
    return undone, failed


def open_journal(path: Path) -> int:
    """Open the journal at *path*; create it if there is none."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, _OPEN)


def create_header(
    description: str,
    time_limit_s: float,
    resources: tuple[str, ...] = (),
    namespace_kinds: tuple[NamespaceKind, ...] = (),
) -> Header:
    """Return the header of a session that begins now, in our namespaces of these kinds."""
    limit_ns = int(time_limit_s * 10**9)
    return Header(
        description=description,
        pid=os.getpid(),
        boot_id=read_boot_id(),
        deadline_realtime_ns=time.time_ns() + limit_ns,
        deadline_boottime_ns=time.clock_gettime_ns(time.CLOCK_BOOTTIME) + limit_ns,
        namespaces=tuple(map(namespaces.get_current, namespace_kinds)),
        resources=resources,
    )


def read_header(path: Path) -> Header | None:
    """Return the header of a journal; None if it was cut off before that, so that nothing was changed.

    Raise RunFailed if the file has another schema or is not a journal.
    """
    return _parse_header(path, read_lines(path))


def read_lines(path: Path) -> list[JournalLine]:
    """Return the complete lines of a journal. A line that was cut off was not on disk, so its change was not made.

    Raise RunFailed if the file is not a journal.
    """
    try:
        return _parse(path, path.read_bytes())
    except FileNotFoundError:
        return []


def read_boot_id() -> str:
    """Return the random number that the kernel drew at this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def is_undone_by_kernel(namespace: Namespace) -> bool:
    """Return True if the kernel undid the changes with their namespace; files of a mount may be seen elsewhere."""
    return namespace.kind != "mnt" and namespace.is_gone()


def is_at(path: Path, descriptor: int) -> bool:
    """Return True if the open file is the one at that path."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except OSError:
        return False


def try_lock(descriptor: int, timeout_s: float) -> bool:
    """Return True if the lock was acquired within *timeout_s*."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        else:
            return True


def _parse(path: Path, text: bytes) -> list[JournalLine]:
    try:
        complete_lines, _, _ = text.rpartition(b"\n")
        return [from_json(JournalLine, json.loads(line)) for line in complete_lines.splitlines()]
    except (ValueError, RecursionError) as error:
        raise _unreadable(path, error) from None


def _parse_header(path: Path, lines: list[JournalLine]) -> Header | None:
    try:
        header = from_json(Header, lines[0].header) if lines else None
    except ValueError as error:
        raise _unreadable(path, error) from None
    if header is not None and header.schema != SCHEMA:
        raise _unreadable(path, f"schema {header.schema} instead of {SCHEMA}")
    return header


def _unreadable(path: Path, reason: object) -> RunFailed:
    return RunFailed(
        f"{path}: this session's changes cannot be read: {reason}. Use the version of ingest-bench that wrote it, or "
        "undo by hand what stands in it and remove it."
    )
