"""The user's cache folder: what is in it is whole, verified and never changed."""

from __future__ import annotations

import fcntl
import os
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import platformdirs

from ingest_bench import system
from ingest_bench.errors import MissingCapability
from ingest_bench.inputs import untrusted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# A root's server runs as another uid and must read its archive; /root is closed to it.
ROOTS_FOLDER = Path("/var/cache/ingest-bench")


def folder() -> Path:
    """The cache folder; the environment variable INGEST_BENCH_CACHE overrides."""
    chosen = os.environ.get("INGEST_BENCH_CACHE")
    if chosen:
        return Path(chosen).absolute()
    return ROOTS_FOLDER if system.is_root() else Path(platformdirs.user_cache_dir("ingest-bench"))


def has(name: str) -> bool:
    """Whether the cache has the file or folder of that name; MissingCapability where we may not look, or trust it."""
    try:
        _refuse_anybodys(folder())
        (folder() / name).stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise MissingCapability(
            f"cache: {folder()} cannot be read ({error.strerror})\nSet INGEST_BENCH_CACHE to a folder of your own."
        ) from None
    return True


def filled(name: str, fill: Callable[[Path], None]) -> Path:
    """The file or folder of that name below the cache, made by `fill` once.

    `fill` gets a path to make, in a working folder of its own. What it made is renamed when it is whole, so a crash
    leaves nothing that looks whole, and the next one to come clears it away. A lock lets one at a time fill a name.
    """
    place = folder() / name
    if has(name):
        return place
    try:
        with _working_folder(place) as work:
            if not place.exists():
                fill(work / place.name)
                _open_to_read(work / place.name)
                (work / place.name).rename(place)
    except OSError as error:
        raise MissingCapability(
            f"cache: {folder()} cannot be filled ({error}). Make room there, or set INGEST_BENCH_CACHE to another one."
        ) from None
    return place


def _refuse_anybodys(place: Path) -> None:
    """MissingCapability where root would run what somebody else can put there."""
    if system.is_root() and (trouble := untrusted.swappable(place)):
        raise MissingCapability(
            f"cache: {trouble}: others can write there, and what is in it runs as root; set INGEST_BENCH_CACHE to a "
            "folder that is root's alone."
        )


def remove(path: Path) -> None:
    """No file or folder there any more."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def alone(place: Path) -> Iterator[None]:
    """While nobody else makes what is at `place`, in a folder that exists; who comes second waits."""
    _make_folders(place.parent)
    # Another user may have been faster.
    _refuse_anybodys(place.parent)
    lock = os.open(place.parent / f".{place.name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


@contextmanager
def _working_folder(place: Path) -> Iterator[Path]:
    """An empty folder beside `place`, while nobody else has it."""
    with alone(place):
        work = place.parent / f".{place.name}.partial"
        remove(work)
        work.mkdir()
        try:
            yield work
        finally:
            remove(work)


def _make_folders(path: Path) -> None:
    """`path` exists; what had to be made is readable for everybody, whatever the umask."""
    missing = [parent for parent in (path, *path.parents) if not parent.exists()]
    for parent in reversed(missing):
        parent.mkdir(exist_ok=True)
        parent.chmod(0o755)


def _open_to_read(path: Path) -> None:
    """Everybody may read what is at `path`, and its files may not be written by accident."""
    for item in (path, *path.rglob("*")) if path.is_dir() else (path,):
        if item.is_symlink():
            continue
        runs = item.is_dir() or item.stat().st_mode & 0o111
        item.chmod((0o755 if item.is_dir() else 0o555) if runs else 0o444)
