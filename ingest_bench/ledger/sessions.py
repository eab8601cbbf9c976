"""All sessions of this machine: their journals, their locks, and how leftovers are undone."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from ingest_bench import system
from ingest_bench.errors import RunFailed, SpecError
from ingest_bench.inputs import untrusted
from ingest_bench.ledger import namespaces
from ingest_bench.ledger.journal import (
    Header,
    is_at,
    is_undone_by_kernel,
    read_boot_id,
    read_header,
    read_lines,
    try_lock,
    undo_session,
)
from ingest_bench.ledger.namespaces import NamespaceKind

# `net show` holds a lock for a moment, and an ending program for a little longer.
_LOCK_TIMEOUT_S = 0.2
# Size limit of the owner's description in a lock file.
_OWNER_BYTES = 200
_ROOT_FOLDER = Path("/run/ingest-bench")
_KIND_NAMES = {"net": "network namespace", "mnt": "mount namespace", "pid": "pid namespace"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStatus:
    """A session as `net show` shows it."""

    description: str
    pid: int
    is_watched: bool
    """False: it was left behind, and `ingest-bench net restore` undoes it."""
    is_undoable_here: bool
    """True if it changed the whole machine or our namespaces."""
    deadline_realtime_ns: int
    steps: tuple[str, ...]


def ensure_state_folder() -> Path:
    """Return the folder of the journals: INGEST_BENCH_STATE, /run/ingest-bench for root, else the user's state folder.

    Not the user's runtime folder: that is removed at logout, and there may be none. The journals hold commands that are
    executed later, also as root: a folder that others can write is refused.
    """
    user_folder = os.environ.get("INGEST_BENCH_STATE")
    default = _ROOT_FOLDER if system.is_root() else platformdirs.user_state_path("ingest-bench")
    folder = Path(user_folder).absolute() if user_folder else default
    return _ensure_private(folder, "Set INGEST_BENCH_STATE to a folder that only you can write.")


def locate_journal(key: str, namespace_kinds: Sequence[NamespaceKind] = ()) -> Path:
    """Return the path of a session's journal. Where *key* differs by network namespace, so does the path."""
    suffix = f"-{namespaces.get_current('net').inode}" if "net" in namespace_kinds else ""
    return ensure_state_folder() / f"{key}{suffix}.jsonl"


@contextlib.contextmanager
def acquire_locks(
    key: str,
    description: str = "",
    resources: Sequence[str] = (),
    namespace_kinds: Sequence[NamespaceKind] = (),
) -> Iterator[tuple[int, ...]]:
    """Lock *key* and *resources* and yield the locks' descriptors; raise RunFailed if another process has one.

    The lock of the key is a file next to the journal. A resource is an object that sessions with different keys and
    state folders can share, such as an interface or a file below /proc/sys: one per machine, or one in each namespace
    of these kinds. Other processes see *description* as the owner.

    A child that inherits the descriptors shares the locks: they are free when the last process has closed them.
    """
    with contextlib.ExitStack() as stack:
        stack.callback(_remove_free_locks)
        descriptors = [stack.enter_context(_lock_session(locate_journal(key, namespace_kinds)))]
        for resource in resources:
            current = map(namespaces.get_current, namespace_kinds)
            place = "".join(f"{namespace.kind}:[{namespace.inode}]/{namespace.cookie} " for namespace in current)
            descriptors.append(stack.enter_context(_lock_resource(resource, place, description)))
        yield tuple(descriptors)


def undo_leftovers(key: str, resources: Sequence[str] = (), namespace_kinds: Sequence[NamespaceKind] = ()) -> None:
    """Undo sessions of dead processes on *key* or *resources*, whose locks the caller holds.

    Raise RunFailed if a session of this key can only be undone in another namespace.
    """
    path = locate_journal(key, namespace_kinds)
    header = read_header(path)
    if header and (other_place := _find_other_place(header)):
        raise RunFailed(f"{header.description}: first undo what pid {header.pid} left behind {other_place}")
    undo_session(path)
    for path in _list_journals():
        header, _ = _try_read_header(path)
        if header and not _find_other_place(header) and set(resources) & {*header.resources}:
            with _lock_session(path):
                undo_session(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreResult:
    """Outcome of `net restore`."""

    undone: tuple[str, ...]
    remaining: tuple[str, ...]
    """Sessions that cannot be undone here, each with where they can."""


def restore_all() -> RestoreResult:
    """Undo every session that can be undone here, finished or not; RunFailed if an undo failed, after all others."""
    undone, remaining, failed = [], [], []
    for path in _list_journals():
        try:
            header = read_header(path)
            if header is not None and (other_place := _find_other_place(header)):
                remaining.append(f"{header.description} (pid {header.pid}): {other_place}")
            else:
                undone += undo_session(path)
        except (RunFailed, OSError) as error:
            failed.append(str(error))
    _remove_free_locks()
    if failed:
        raise RunFailed("\n".join([*failed, *remaining]))
    return RestoreResult(undone=tuple(undone), remaining=tuple(remaining))


def list_sessions() -> list[SessionStatus]:
    """Return every session that is active or was left behind, except those of `find_unreadable`."""
    return [
        SessionStatus(
            description=header.description,
            pid=header.pid,
            is_watched=_is_locked(_locate_lock(path)),
            is_undoable_here=not _find_other_place(header),
            deadline_realtime_ns=header.deadline_realtime_ns,
            steps=tuple(line.step for line in read_lines(path) if line.step),
        )
        for path in _list_journals()
        if (header := _try_read_header(path)[0]) is not None
    ]


def find_unreadable() -> list[str]:
    """Return for each journal that cannot be read its path, the reason, and what to do."""
    return [error for path in _list_journals() if (error := _try_read_header(path)[1])]


@contextlib.contextmanager
def _lock_session(journal: Path) -> Iterator[int]:
    with _open_lock(_locate_lock(journal)) as (descriptor, is_acquired):
        if not is_acquired:
            header, _ = _try_read_header(journal)
            owner = f"in use by pid {header.pid}: {header.description}" if header else f"{journal.stem} is in use"
            raise RunFailed(f"{owner}. See `ingest-bench net show`.")
        yield descriptor


@contextlib.contextmanager
def _lock_resource(resource: str, place: str, description: str) -> Iterator[int]:
    """Hold a lock that is valid for all state folders and network namespaces of this machine.

    It is a file that other users cannot open, so only we can lock it, and the kernel frees it with the last process
    that has it open. Rejected: a lock on the setting's own file, because each mount of /proc or /sys (such as that of
    `ip netns exec`) gives it another inode, and every user can lock it; and the name of a Unix socket, because each
    network namespace has its own, for every user.
    """
    name = hashlib.sha256(f"{place}{resource}".encode()).hexdigest()[:16]
    with _open_lock(_ensure_locks_folder() / f"{name}.lock") as (descriptor, is_acquired):
        if not is_acquired:
            owner = os.pread(descriptor, _OWNER_BYTES, 0).decode(errors="replace") or "another program"
            raise RunFailed(f"{resource}: in use by {owner}. Try again when that is over.")
        # The lock is valid even if the owner cannot be written on a full disk.
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"pid {os.getpid()}: {description}".encode()[:_OWNER_BYTES], 0)
        yield descriptor


@contextlib.contextmanager
def _open_lock(path: Path) -> Iterator[tuple[int, bool]]:
    """Open a lock file for the block and try to lock it. A file that was removed meanwhile does not count."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            is_acquired = try_lock(descriptor, _LOCK_TIMEOUT_S)
            if not is_acquired or is_at(path, descriptor):
                yield descriptor, is_acquired
                return
        finally:
            os.close(descriptor)


def _remove_free_locks() -> None:
    """Remove the lock files that no process holds: each is removed while it is locked here."""
    for path in (*ensure_state_folder().glob("*.lock"), *_ensure_locks_folder().glob("*.lock")):
        with contextlib.suppress(OSError), path.open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if is_at(path, lock.fileno()):
                path.unlink()


def _is_locked(lock: Path) -> bool:
    """Return True if a process holds this lock; take it for a moment only."""
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _ensure_locks_folder() -> Path:
    """Return the folder of the locks on resources, independent of INGEST_BENCH_STATE.

    Root has one in /run. Root of a user namespace of their own cannot write there, and cannot change anything outside.
    """
    is_real_root = system.is_root() and os.access("/run", os.W_OK)
    folder = (_ROOT_FOLDER if is_real_root else platformdirs.user_state_path("ingest-bench")) / "locks"
    return _ensure_private(folder, "It holds the locks on resources that are changed.")


def _ensure_private(folder: Path, advice: str) -> Path:
    """Create the folder if needed; raise SpecError if that fails or if others can write there."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
        writable_folder = untrusted.find_writable_folder(folder) if system.is_root() else None
    except OSError as error:
        raise SpecError(f"{folder}: {error.strerror}. {advice}") from None
    if writable_folder or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise SpecError(f"{writable_folder or folder}: others can write here. {advice}")
    return folder


def _find_other_place(header: Header) -> str:
    """Return the namespaces in which the session must be undone; "" if here, or if the kernel has undone it."""
    others = [namespace for namespace in header.namespaces if not namespace.is_current()]
    if not others or header.boot_id != read_boot_id() or any(map(is_undone_by_kernel, others)):
        return ""
    # A mount namespace that is gone: its files may still be visible from here.
    others = [namespace for namespace in others if not namespace.is_gone()]
    options = [namespace.find_nsenter_option() for namespace in others]
    names = " and ".join(f"{_KIND_NAMES[other.kind]} {other.kind}:[{other.inode}]" for other in others)
    if not others:
        return ""
    if None in options:
        return f"in the {names}, which cannot be entered from here. Try as root, outside of any container."
    return f"in the {names}: nsenter {' '.join(map(str, options))} ingest-bench net restore"


def _list_journals() -> list[Path]:
    return sorted(ensure_state_folder().glob("*.jsonl"))


def _locate_lock(journal: Path) -> Path:
    """Return the lock file that shows whether a process looks after the session."""
    return journal.with_suffix(".lock")


def _try_read_header(path: Path) -> tuple[Header | None, str]:
    """Return the header; None if there is none, or if it cannot be read, with the reason."""
    try:
        return read_header(path), ""
    except (RunFailed, OSError) as error:
        return None, str(error)
