"""Files of the user, the data files of the package, and files that are replaced atomically.

Only plain files are read: opening a pipe or a device could wait forever or act on it. Every problem is an OSError or
a UnicodeDecodeError, with a message that reads like those of the kernel.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import io
import itertools
import json
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ingest_bench.errors import SpecError
from ingest_bench.model.results import SCHEMAS

# Limit of a text that is read at once; /proc/kcore claims to have 128 TiB.
_MAX_TEXT_BYTES = 1 << 30
# A hundred times the longest line in a JVM's log.
_MAX_LINE_CHARACTERS = 1 << 16
# 146 years: sums and differences of two such times fit into 64 bits.
_LATEST_NS = 1 << 62
_SPECIAL_FILES = (
    (stat.S_ISFIFO, "it is a named pipe, not a file"),
    (stat.S_ISCHR, "it is a device, not a file"),
    (stat.S_ISBLK, "it is a disk, not a file"),
    (stat.S_ISSOCK, "it is a socket, not a file"),
)
_PACKAGE = Path(__file__).parent.parent


def data_folder(name: str) -> Path:
    """Return a folder of shipped TOML files, such as "netem" or "workloads/experiments".

    In a wheel they are below `ingest_bench/data`, in a checkout at its top.
    """
    shipped = _PACKAGE / "data" / name
    return shipped if shipped.is_dir() else _PACKAGE.parent / name


def data_files(name: str) -> dict[str, Path]:
    """Return the TOML files of a data folder by their names without ".toml"."""
    return {path.stem: path for path in sorted(data_folder(name).glob("*.toml"))}


def expand_pattern(folder: Path | str, pattern: str) -> list[Path]:
    """Return the files in a folder that match `*`, `?` or `[…]`, sorted; the path itself without a match."""
    path = Path(folder, pattern)
    matches = () if path.exists() else sorted(glob.glob(pattern, root_dir=folder))  # noqa: PTH207
    return [Path(folder, match) for match in matches] or [path]


def why_not_plain(file: Path | int) -> str:
    """Return which special file is at a path or open as a descriptor; empty for a plain file or a folder."""
    mode = os.stat(file).st_mode  # noqa: PTH116 - also of a descriptor
    return next((description for is_kind, description in _SPECIAL_FILES if is_kind(mode)), "")


def is_special(path: Path) -> bool:
    """Return True for a device, pipe or socket: it is written to, never replaced."""
    return path.exists() and bool(why_not_plain(path))


def resolve_links(path: Path) -> Path:
    """Return the file to replace, so that a link keeps pointing to it; IsADirectoryError for a folder."""
    resolved = path.resolve()
    if resolved.is_dir():
        raise IsADirectoryError(errno.EISDIR, "it is a folder", str(path))
    return resolved


def check_plain(path: Path) -> None:
    """Raise OSError unless a plain file is at a path. Call it before opening: an open may wait, or act."""
    if problem := why_not_plain(path):
        raise OSError(errno.EINVAL, problem, str(path))


def open_plain(path: Path) -> io.BufferedReader:
    """Open a plain file for reading; OSError for anything else, also if it is replaced meanwhile."""
    check_plain(path)
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    if problem := why_not_plain(file.fileno()):
        file.close()
        raise OSError(errno.EINVAL, problem, str(path))
    return file


def read_text(path: Path) -> str:
    """Return the text of a UTF-8 file."""
    with open_plain(path) as file:
        size_bytes = os.fstat(file.fileno()).st_size
        if size_bytes > _MAX_TEXT_BYTES:
            raise OSError(errno.EFBIG, f"it has {size_bytes:,} bytes; the limit is {_MAX_TEXT_BYTES:,}", str(path))
        with io.TextIOWrapper(file, encoding="utf-8") as text:
            return text.read()


def read_user_text(path: Path, where: str) -> str:
    """Return the text of a UTF-8 file; SpecError begins with *where* if it cannot be read."""
    try:
        return read_text(path)
    except OSError as error:
        raise SpecError(f"{where}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SpecError(f"{where}: cannot be read: it is not UTF-8") from None


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file of any length, as hexadecimal digits."""
    with open_plain(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_lines(path: Path) -> Iterator[str]:
    """Yield each line of a log of any length, with its end; OSError for a line that is too long for a log.

    The hole of a sparse file is one line of zeros.
    """
    for line in read_pieces(path):
        if len(line) == _MAX_LINE_CHARACTERS:
            raise OSError(errno.EFBIG, f"it has a line of {_MAX_LINE_CHARACTERS:,} characters or more", str(path))
        yield line


def read_pieces(path: Path) -> Iterator[str]:
    """Yield the lines of a log that other users can write; a line that is too long for memory comes in pieces."""
    with open_plain(path) as file:
        yield from iter_pieces(file)


def iter_pieces(file: io.BufferedReader) -> Iterator[str]:
    """Yield the pieces of an open log, as `read_pieces` does."""
    with io.TextIOWrapper(file, encoding="utf-8", errors="replace") as text:
        while line := text.readline(_MAX_LINE_CHARACTERS):
            yield line


def read_records(
    path: Path, record_type: np.dtype[Any], start: int = 0, max_count: int | None = None
) -> np.ndarray[Any, np.dtype[Any]]:
    """Return binary records of a file from number `start` on, at most `max_count`, without a truncated last one.

    SpecError if the file cannot be read, or a field whose name ends with `_ns` holds no possible time.
    """
    try:
        check_plain(path)
        count = max(0, path.stat().st_size // record_type.itemsize - start)
        count = count if max_count is None else min(max_count, count)
        records = np.fromfile(path, dtype=record_type, count=count, offset=start * record_type.itemsize)
    except OSError as error:
        raise SpecError(f"{path}: this file cannot be read ({error.strerror})") from None
    for name in record_type.names or ():
        times_ns = records[name]
        if name.endswith("_ns") and ((times_ns > _LATEST_NS) | (times_ns < -_LATEST_NS)).any():
            raise SpecError(f"{path}: this file is damaged: {name} holds an impossible time")
    return records


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Replace a JSON file atomically, with its schema number if it has one."""
    if path.name in SCHEMAS:
        value = {"schema": SCHEMAS[path.name], **value}
    write_atomically(path, (json.dumps(value, indent=1, ensure_ascii=False, default=str) + "\n").encode())


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file, completely or not at all."""
    # The pid: `report` may write while `run` does.
    new = path.with_name(f".{os.getpid()}.new")
    # A leftover of a killed process, or another user's link to some file.
    new.unlink(missing_ok=True)
    try:
        with new.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except BaseException:
        # On a full disk the partial file takes the missing space.
        new.unlink(missing_ok=True)
        raise


def track_name(path: Path) -> str:
    """Return the name of a track: that of its folder, or of its only file without ".json"."""
    return path.name.removesuffix(".json") if path.is_file() else path.name


def find_track_files(path: Path) -> Iterator[Path]:
    """Yield the files that a track may read.

    A track in one file may be in a home folder: only JSON files next to it and one folder deeper are yielded, and no
    hidden ones, which belong to other programs.
    """
    if not path.is_file():
        return path.rglob("*")
    return itertools.chain(path.parent.glob("[!.]*.json*"), path.parent.glob("[!.]*/[!.]*.json*"))
