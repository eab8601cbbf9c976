"""All sessions of this machine: where their files are, who has which lock, and what was left behind."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import platformdirs

from ingest_bench import system
from ingest_bench.errors import RunFailed, SpecError
from ingest_bench.inputs import untrusted
from ingest_bench.ledger import namespaces
from ingest_bench.ledger.book import Header, boot_id, finish, header_of, is_forgotten, lines_of, lock_within

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ingest_bench.ledger.namespaces import Kind

# How long a lock may be held by somebody who only looks at it, or is about to end.
_PATIENCE_S = 0.2
# Of who has a lock.
_SAID_BYTES = 200
_ROOTS = Path("/run/ingest-bench")
_NAMES = {"net": "network namespace", "mnt": "mount namespace", "pid": "pid namespace"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """A session as `net show` shows it."""

    what: str
    pid: int
    alive: bool
    """Whether somebody still looks after it. If not, it was left behind: `ingest-bench net restore`."""
    here: bool
    """Whether it can be undone from here: it is the whole machine's, or in our namespaces."""
    until_realtime_ns: int
    steps: tuple[str, ...]


def state_folder() -> Path:
    """Where the files of sessions are: INGEST_BENCH_STATE, /run/ingest-bench for root, else the user's own.

    They hold commands that we run later, as root too: a folder that others can write is refused.
    """
    given = os.environ.get("INGEST_BENCH_STATE")
    folder = Path(given).absolute() if given else _default_state_folder()
    return _own_folder(folder, "set INGEST_BENCH_STATE to a folder that you alone can write")


def file_of(key: str, within: Sequence[Kind] = ()) -> Path:
    """A session's file; one for each network namespace, where the key names another thing in each."""
    place = f"-{namespaces.own('net').inode}" if "net" in within else ""
    return state_folder() / f"{key}{place}.jsonl"


@contextlib.contextmanager
def locked(
    key: str, what: str = "", resources: Sequence[str] = (), within: Sequence[Kind] = ()
) -> Iterator[tuple[int, ...]]:
    """The descriptors of the locks on what `key` names and on resources; RunFailed when somebody else has one.

    The key's lock is a file beside the session's. A resource is what sessions of different keys and folders may meet
    at, such as an interface or a file below /proc/sys: one for the whole machine, or one in each namespace of the kinds
    `within`. `what` tells others who has it.

    Who inherits the descriptors shares the locks: they are free when the last of them has ended.
    """
    with contextlib.ExitStack() as stack:
        stack.callback(_remove_free_locks)
        descriptors = [stack.enter_context(_file_lock(file_of(key, within)))]
        for resource in resources:
            place = "".join(f"{one.kind}:[{one.inode}]/{one.cookie} " for one in map(namespaces.own, within))
            descriptors.append(stack.enter_context(_claim(resource, place, what)))
        yield tuple(descriptors)


def finish_leftovers(key: str, resources: Sequence[str] = (), within: Sequence[Kind] = ()) -> None:
    """Put back what dead sessions left behind of what we have the locks on.

    RunFailed when one of the same key did so where it cannot be put back from here.
    """
    own = file_of(key, within)
    header = header_of(own)
    if header and (elsewhere := _elsewhere(header)):
        raise RunFailed(f"{header.what}: what pid {header.pid} left of it must be put back first, {elsewhere}")
    finish(own)
    for path in _files():
        header = _known(path)
        if header and _is_here(header) and set(resources) & {*header.resources}:
            with _file_lock(path):
                finish(path)


@contextlib.contextmanager
def _file_lock(session: Path) -> Iterator[int]:
    with _lock(_lock_of(session)) as (descriptor, is_ours):
        if not is_ours:
            raise RunFailed(f"{_in_use(session)}; see `ingest-bench net show`")
        yield descriptor


@contextlib.contextmanager
def _claim(resource: str, place: str, what: str) -> Iterator[int]:
    """A lock that holds for all state folders and all network namespaces of this machine.

    It is a file that nobody else can open, so nobody else can hold it, and the kernel frees it with the last process
    that has it open. The file of the setting itself was rejected: each mount of /proc or /sys, such as that of
    `ip netns exec`, has another inode for it, and every user can open and lock it. So was a name of Unix sockets, of
    which there is one in each network namespace, for every user.
    """
    name = hashlib.sha256(f"{place}{resource}".encode()).hexdigest()[:16]
    with _lock(_locks_folder() / f"{name}.lock") as (descriptor, is_ours):
        if not is_ours:
            owner = os.pread(descriptor, _SAID_BYTES, 0).decode(errors="replace") or "another program"
            raise RunFailed(f"{resource}: in use by {owner}; try again when that is over")
        # On a full disk the lock holds all the same.
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"pid {os.getpid()}: {what}".encode()[:_SAID_BYTES], 0)
        yield descriptor


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[tuple[int, bool]]:
    """Open a lock file for the time of the block, and try to lock it. A file that was removed meanwhile is no lock."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # `show` looks at locks by taking them for a moment: hence a little patience.
            is_ours = lock_within(descriptor, _PATIENCE_S)
            if not is_ours or _is_at(path, descriptor):
                yield descriptor, is_ours
                return
        finally:
            os.close(descriptor)


def _remove_free_locks() -> None:
    """Remove the lock files that no process holds: each is removed while it is locked here."""
    for path in (*state_folder().glob("*.lock"), *_locks_folder().glob("*.lock")):
        with contextlib.suppress(OSError), path.open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(path, lock.fileno()):
                path.unlink()


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _locks_folder() -> Path:
    """Where the locks on resources are, whatever INGEST_BENCH_STATE says.

    Root's own in /run. Who is root in a user namespace of his own may not write there, and changes nothing that is
    outside of it.
    """
    is_ours = system.is_root() and os.access("/run", os.W_OK)
    folder = (_ROOTS if is_ours else platformdirs.user_state_path("ingest-bench")) / "locks"
    return _own_folder(folder, "it has the locks on what is changed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What became of all sessions."""

    undone: tuple[str, ...]
    left: tuple[str, ...]
    """What cannot be put back from here, and from where it can."""


def restore() -> Restored:
    """What was put back, of every session that can be undone from here, finished or not, ours or another program's.

    RunFailed when something could not be put back, though it is here; all the rest was.
    """
    undone, left, failed = [], [], []
    for path in _files():
        try:
            header = header_of(path)
            if header is not None and (elsewhere := _elsewhere(header)):
                left.append(f"{header.what} (pid {header.pid}): {elsewhere}")
            else:
                undone += finish(path)
        except (RunFailed, OSError) as error:
            failed.append(str(error))
    _remove_free_locks()
    if failed:
        raise RunFailed("\n".join([*failed, *left]))
    return Restored(undone=tuple(undone), left=tuple(left))


def _known(path: Path) -> Header | None:
    """Its header; None where there is none, or it cannot be read: `restore` and `unreadable` say so."""
    try:
        return header_of(path)
    except (RunFailed, OSError):
        return None


def _is_here(header: Header) -> bool:
    return not _elsewhere(header)


def _elsewhere(header: Header) -> str:
    """From where it can be undone, in words; empty: from here, or the kernel has undone it."""
    others = [one for one in header.within if not one.is_ours()]
    if not others or header.boot_id != boot_id() or any(map(is_forgotten, others)):
        return ""
    # Its files may still be seen from here.
    others = [one for one in others if not one.is_gone()]
    ways = [one.entrance() for one in others]
    names = " and ".join(f"{_NAMES[one.kind]} {one.kind}:[{one.inode}]" for one in others)
    if not others:
        return ""
    if None in ways:
        return f"in the {names}, to which no way is seen; try as root, outside of any container"
    return f"in the {names}: nsenter {' '.join(map(str, ways))} ingest-bench net restore"


def show() -> list[Applied]:
    """Every session that is applied now, or was left behind; without those of `unreadable`."""
    return [_applied(path, header) for path in _files() if (header := _known(path)) is not None]


def unreadable() -> list[str]:
    """The sessions whose file cannot be read: of each the file, why, and what to do."""
    found = []
    for path in _files():
        try:
            header_of(path)
        except (RunFailed, OSError) as error:
            found.append(str(error))
    return found


def _files() -> list[Path]:
    """The file of each session, in the order of their names."""
    return sorted(state_folder().glob("*.jsonl"))


def _lock_of(session: Path) -> Path:
    """The file that says whether somebody looks after it."""
    return session.with_suffix(".lock")


def _default_state_folder() -> Path:
    """The user's state folder and not the runtime folder: that one goes at logout, and there may be none."""
    return _ROOTS if system.is_root() else platformdirs.user_state_path("ingest-bench")


def _own_folder(folder: Path, what: str) -> Path:
    """The folder, made if need be; SpecError where it cannot be made or others can write there."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
        trouble = untrusted.swappable(folder) if system.is_root() else None
    except OSError as error:
        raise SpecError(f"{folder}: {error.strerror}; {what}") from None
    if trouble or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise SpecError(f"{trouble or folder}: others can write here; {what}")
    return folder


def _applied(path: Path, header: Header) -> Applied:
    return Applied(
        what=header.what,
        pid=header.pid,
        alive=_is_held(_lock_of(path)),
        here=_is_here(header),
        until_realtime_ns=header.until_realtime_ns,
        steps=tuple(line.step for line in lines_of(path) if line.step),
    )


def _is_held(lock: Path) -> bool:
    """Whether somebody has this lock, without taking it for longer than a moment."""
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


def _in_use(session: Path) -> str:
    header = _known(session)
    return f"{session.stem} is in use" if header is None else f"in use by pid {header.pid}: {header.what}"
