"""What a file of the user's holds. What stands in the place of a file (a pipe, a device) would be waited for for ever.

Every trouble is an OSError or a UnicodeDecodeError, whose words fit where those of the kernel do.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import stat
from collections.abc import Iterator
from pathlib import Path

# No text that is read at once is longer; /proc/kcore says that it has 128 TiB.
_MOST_BYTES = 1 << 30
# A hundred times what a JVM's log has in a line.
_LONGEST_LINE = 1 << 16
_KINDS = (
    (stat.S_ISFIFO, "it is a named pipe, and no file"),
    (stat.S_ISCHR, "it is a device, and no file"),
    (stat.S_ISBLK, "it is a disk, and no file"),
    (stat.S_ISSOCK, "it is a socket, and no file"),
)


def trouble(path: Path) -> str:
    """What it is, where it is no file; empty for a file or a folder."""
    return _trouble(path.stat().st_mode)


def _trouble(mode: int) -> str:
    return next((what for is_kind, what in _KINDS if is_kind(mode)), "")


def is_special(path: Path) -> bool:
    """Whether a device, a pipe or a socket is there: what is written goes to it, and never takes its place."""
    return path.exists() and bool(trouble(path))


def behind_links(path: Path) -> Path:
    """Where a file is that shall be replaced: a link goes on leading to it. IsADirectoryError for a folder."""
    found = path.resolve()
    if found.is_dir():
        raise IsADirectoryError(errno.EISDIR, "it is a folder", str(path))
    return found


def check(path: Path) -> None:
    """OSError for what is not a plain file, before it is opened: opening a device or a pipe may wait, or act."""
    _check(path.stat().st_mode, path)


def _check(mode: int, path: Path) -> None:
    if what := _trouble(mode):
        raise OSError(errno.EINVAL, what, str(path))


def opened(path: Path) -> io.BufferedReader:
    """Open a plain file to read it; OSError for anything else, also when it takes the place of a file meanwhile."""
    # Here too: to open a device may act on it.
    check(path)
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    try:
        _check(os.fstat(file.fileno()).st_mode, path)
    except OSError:
        file.close()
        raise
    return file


def text(path: Path) -> str:
    """The whole text of a file, which is UTF-8."""
    with opened(path) as file:
        size_bytes = os.fstat(file.fileno()).st_size
        if size_bytes > _MOST_BYTES:
            raise OSError(errno.EFBIG, f"it has {size_bytes:,} bytes, and at most {_MOST_BYTES:,} are read", str(path))
        with io.TextIOWrapper(file, encoding="utf-8") as text:
            return text.read()


def sha256(path: Path) -> str:
    """The checksum of a file of any length, in hexadecimal digits."""
    with opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def lines(path: Path) -> Iterator[str]:
    """Each line of a log of any length, with its end; OSError for one that is too long to be a log's.

    A file with a hole in it is one line of so many zeros.
    """
    for line in pieces(path):
        if len(line) == _LONGEST_LINE:
            raise OSError(errno.EFBIG, f"it has a line of {_LONGEST_LINE:,} characters or more", str(path))
        yield line


def pieces(path: Path) -> Iterator[str]:
    """The same of a log that anybody may write to: a line that is too long for memory comes in pieces."""
    with opened(path) as file:
        yield from pieces_of(file)


def pieces_of(file: io.BufferedReader) -> Iterator[str]:
    """Yield the pieces of an open log, as `pieces` does."""
    with io.TextIOWrapper(file, encoding="utf-8", errors="replace") as text:
        while line := text.readline(_LONGEST_LINE):
            yield line
