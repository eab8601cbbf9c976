"""All sessions of this machine: where their files are, who has which lock, and what was left behind."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import platformdirs

from ingest_bench import system
from ingest_bench.errors import RunFailed, SpecError
from ingest_bench.ledger.book import boot_id, finish, header_of, lines_of, lock_within, own_netns

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# How long a lock may be held by somebody who only looks at it, or is about to end.
_PATIENCE_S = 0.2
# What a name of a Unix socket has room for (man 7 unix).
_NAME_BYTES = 107


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """A session as `net show` shows it."""

    what: str
    pid: int
    alive: bool
    """Whether somebody still looks after it. If not, it was left behind: `ingest-bench net restore`."""
    here: bool
    """Whether it is in our network namespace; only from there can it be undone."""
    until_realtime_ns: int
    steps: tuple[str, ...]


def state_folder() -> Path:
    """Where the files of sessions are: INGEST_BENCH_STATE, /run/ingest-bench for root, else the user's own.

    They hold commands that we run later, as root too: a folder that others can write is refused.
    """
    given = os.environ.get("INGEST_BENCH_STATE")
    folder = Path(given).absolute() if given else _default_state_folder()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError as error:
        raise SpecError(f"{folder}: {error.strerror}; set INGEST_BENCH_STATE to a folder that you can write") from None
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise SpecError(f"{folder}: others can write here; `chmod 700` it, or set INGEST_BENCH_STATE to another folder")
    return folder


@contextlib.contextmanager
def locked(key: str, what: str = "", resources: Sequence[str] = ()) -> Iterator[tuple[int, ...]]:
    """The descriptors of the locks on what `key` names and on resources; RunFailed when somebody else has one.

    The key's lock is a file of our state folder. A resource is what sessions of different keys, users and folders may
    meet at, such as an interface or a file below /proc/sys; `what` tells others who has it.

    Who inherits the descriptors shares the locks: they are free when the last of them has ended.
    """
    with contextlib.ExitStack() as stack:
        descriptors = [stack.enter_context(_file_lock(key))]
        for resource in resources:
            descriptors += stack.enter_context(_claim(resource, what))
        yield tuple(descriptors)


def finish_leftovers(key: str, resources: Sequence[str]) -> None:
    """Put back what dead sessions left behind of what we have the locks on."""
    finish(state_folder() / f"{key}.jsonl")
    for path in sorted(state_folder().glob("*.jsonl")):
        header = header_of(path)
        if header and header.netns == own_netns() and path.stem != key and set(resources) & {*header.resources}:
            with _file_lock(path.stem):
                finish(path)


@contextlib.contextmanager
def _file_lock(key: str) -> Iterator[int]:
    folder = state_folder()
    descriptor = os.open(folder / f"{key}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        # `show` looks at locks by taking them for a moment: hence a little patience.
        if not lock_within(descriptor, _PATIENCE_S):
            raise RunFailed(f"{_in_use(folder / f'{key}.jsonl', key)}; see `ingest-bench net show`")
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _claim(resource: str, what: str) -> Iterator[tuple[int, int]]:
    """A lock that holds for all users and folders: a name of Unix sockets, which only one can have.

    The kernel has one list of them for each network namespace, and takes a name off it with the last process that
    holds it. A second name, with the first one in front, says who we are.
    """
    name = f"\0ingest-bench/{hashlib.sha256(resource.encode()).hexdigest()[:16]}"
    said = f"{name}/pid {os.getpid()}: {what}".encode("ascii", "replace")[:_NAME_BYTES]
    with socket.socket(socket.AF_UNIX) as lock, socket.socket(socket.AF_UNIX) as owner:
        until = time.monotonic() + _PATIENCE_S
        while True:
            try:
                lock.bind(name)
                break
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise RunFailed(f"{resource}: no lock on it ({error.strerror})") from None
            if time.monotonic() > until:
                raise RunFailed(f"{resource}: in use by {_owner(name)}; try again when that is over")
            time.sleep(0.02)
        owner.bind(said)
        yield lock.fileno(), owner.fileno()


def _owner(name: str) -> str:
    """Who has the lock of that name, in the words of who has it (/proc/net/unix shows a NUL as @)."""
    mark = f" @{name[1:]}/"
    lines = Path("/proc/net/unix").read_text(encoding="ascii", errors="replace").splitlines()
    return next((line.partition(mark)[2] for line in lines if mark in line), "another program")


def restore() -> list[str]:
    """What was put back, of every session of this network namespace, finished or not, ours or another program's."""
    undone, failed = [], []
    for path in sorted(state_folder().glob("*.jsonl")):
        header = header_of(path)
        if header is not None and header.boot_id == boot_id() and header.netns != own_netns():
            continue
        try:
            undone += finish(path)
        except RunFailed as error:
            failed.append(str(error))
    if failed:
        raise RunFailed("\n".join(failed))
    return undone


def show() -> list[Applied]:
    """Every session that is applied now, or was left behind."""
    return [applied for path in sorted(state_folder().glob("*.jsonl")) if (applied := _applied(path)) is not None]


def _default_state_folder() -> Path:
    """The user's state folder and not the runtime folder: that one goes at logout, and there may be none."""
    return Path("/run/ingest-bench") if system.is_root() else platformdirs.user_state_path("ingest-bench")


def _applied(path: Path) -> Applied | None:
    header = header_of(path)
    if header is None:
        return None
    return Applied(
        what=header.what,
        pid=header.pid,
        alive=_is_held(path.with_suffix(".lock")),
        here=header.netns == own_netns(),
        until_realtime_ns=header.until_realtime_ns,
        steps=tuple(line["step"] for line in lines_of(path) if "step" in line),
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


def _in_use(path: Path, key: str) -> str:
    header = header_of(path)
    return f"{key} is in use" if header is None else f"in use by pid {header.pid}: {header.what}"
