"""Cache folder of the user. Its entries are complete, verified and never changed."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import platformdirs

from ingest_bench import system
from ingest_bench.errors import MissingCapability
from ingest_bench.inputs import untrusted

# A server that root starts runs as another uid and must read its archive; /root is closed to it.
ROOT_FOLDER = Path("/var/cache/ingest-bench")


def folder() -> Path:
    """Return the cache folder; the environment variable INGEST_BENCH_CACHE overrides it."""
    override = os.environ.get("INGEST_BENCH_CACHE")
    if override:
        return Path(override).absolute()
    return ROOT_FOLDER if system.is_root() else Path(platformdirs.user_cache_dir("ingest-bench"))


def has(name: str) -> bool:
    """Return True if the cache has an entry; MissingCapability if the folder cannot be read or trusted."""
    try:
        _refuse_writable_by_others(folder())
        (folder() / name).stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise MissingCapability(
            f"cache: {folder()} cannot be read ({error.strerror})\nSet INGEST_BENCH_CACHE to a folder of your own."
        ) from None
    return True


def get_or_make(name: str, make: Callable[[Path], None]) -> Path:
    """Return the file or folder of an entry, made by `make` if it is missing.

    `make` gets a path in an empty working folder. The result is renamed when it is complete: a crash leaves nothing
    that looks complete, and the next process clears it away. A lock lets one process at a time make an entry.
    """
    path = folder() / name
    if has(name):
        return path
    work = path.parent / f".{path.name}.partial"
    try:
        with lock(path):
            try:
                remove(work)
                work.mkdir()
                if not path.exists():
                    make(work / path.name)
                    _make_readable(work / path.name)
                    (work / path.name).rename(path)
            finally:
                remove(work)
    except OSError as error:
        raise MissingCapability(
            f"cache: {folder()} cannot be filled ({error}). Free space there, or set INGEST_BENCH_CACHE to another one."
        ) from None
    return path


def _refuse_writable_by_others(path: Path) -> None:
    """Raise MissingCapability if root would execute what another user can replace."""
    if system.is_root() and (writable := untrusted.find_writable_folder(path)):
        raise MissingCapability(
            f"cache: {writable}: other users can write there, and root runs its content; set INGEST_BENCH_CACHE to a "
            "folder that only root can write."
        )


def remove(path: Path) -> None:
    """Delete a file or folder, if it exists."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def lock(path: Path) -> Iterator[None]:
    """Hold the lock of an entry, waiting for other processes. Its folders are made, readable by all users."""
    for parent in reversed([parent for parent in path.parents if not parent.exists()]):
        parent.mkdir(exist_ok=True)
        parent.chmod(0o755)
    # Another user may have been faster.
    _refuse_writable_by_others(path.parent)
    descriptor = os.open(path.parent / f".{path.name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _make_readable(path: Path) -> None:
    """Let all users read `path`, and protect its files from accidental writes."""
    for item in (path, *path.rglob("*")) if path.is_dir() else (path,):
        if item.is_symlink():
            continue
        is_executable = item.is_dir() or item.stat().st_mode & 0o111
        item.chmod((0o755 if item.is_dir() else 0o555) if is_executable else 0o444)
