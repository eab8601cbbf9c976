"""Folders that another user can write: find one on a path; read, take and hand over the files in one.

A server of root's runs as another user and writes its logs and its recording itself. A user who can write a
folder can put a link or a named pipe there at any moment, also between a check and an open.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: to open a named pipe would wait for its writer.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# As the kernel (MAXSYMLINKS).
_MOST_LINKS = 40
# Of what a file says to have, for each byte on disk (stat(2) counts blocks of 512). File systems that compress store at
# least a block of 4,096 for 128 KiB of text.
_BLOCK_BYTES, _MOST_FOR_A_BYTE, _SMALL_BYTES = 512, 100, 1 << 20
_NAME = re.compile(r"[A-Za-z0-9_.-]+(?:/[A-Za-z0-9_.-]+)*")


def swappable(path: Path) -> Path | None:
    """Return the folder on the way to *path*, or *path* itself, whose content another user can replace; None if none.

    Links on the way count too. In a sticky folder of root's, such as /tmp, users can replace only their own entries.
    What is missing is for us to make: check it again then.
    """
    # In a user namespace of an ordinary user root has another uid, which is that of /.
    ours = {0, os.geteuid(), Path("/").lstat().st_uid}
    for folder, entry in _steps(path.absolute()):
        state, is_there = folder.lstat(), os.path.lexists(entry)
        is_kept = not state.st_mode & 0o022 or (
            state.st_mode & stat.S_ISVTX and (not is_there or entry.lstat().st_uid in ours)
        )
        if state.st_uid not in ours or not is_kept:
            return folder
        if not is_there:
            return None
    place = path.resolve()
    return None if is_own(place) else place


def is_own(path: Path) -> bool:
    """Return whether *path* is ours and no other user may write it."""
    state = path.lstat()
    return state.st_uid == os.geteuid() and not state.st_mode & 0o022


def borrows_our_rights(path: Path) -> bool:
    """Return whether a link of another user leads to the file *path*, and this user may be unable to read it.

    Everybody can, or its owner, who made the link: of groups nothing is known here.
    """
    others = {entry.lstat().st_uid for _, entry in _steps(path.absolute()) if entry.is_symlink()} - {0, os.geteuid()}
    real = path.resolve()
    state = real.stat()
    is_public = state.st_mode & 0o004 and all(folder.stat().st_mode & 0o001 for folder in real.parents)
    return not is_public and not others <= {state.st_uid}


def _steps(path: Path) -> Iterator[tuple[Path, Path]]:
    """Yield each entry that the kernel looks up on the way to *path*, with the folder that it is in."""
    here, links = Path("/"), 0
    left = [*reversed(path.parts[1:])]
    while left:
        name = left.pop()
        if name == "..":
            here = here.parent
            continue
        entry = here / name
        yield here, entry
        if not entry.is_symlink():
            here = entry
            continue
        if (links := links + 1) > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        target = entry.readlink()
        here = Path("/") if target.is_absolute() else here
        left += [part for part in reversed(target.parts) if part != "/"]


def open_file(path: Path) -> BufferedReader:
    """Open a plain file in a folder that another user can write; OSError for a link and for anything but a file.

    OSError, too, for a file of holes. The folder itself must be in one that only we can write.
    """
    folder = os.open(path.parent, _FOLDER)
    try:
        file = os.fdopen(os.open(path.name, _FILE, dir_fd=folder), "rb")
    finally:
        os.close(folder)
    state = os.fstat(file.fileno())
    if not _is_plain(state) or _is_hollow(state):
        file.close()
        raise OSError(errno.EINVAL, "not a plain file", str(path))
    return file


def take(folder: Path) -> tuple[list[Path], list[Path]]:
    """Make *folder*, which another user could write, our own with all that is in it; return its files and the rest.

    The rest are links, pipes, devices, sockets and files with a second name. From the top down: nothing can be replaced
    in a folder that is already ours.
    """
    files: list[Path] = []
    others: list[Path] = []
    folders = [folder]
    for here in folders:
        descriptor = os.open(here, _FOLDER)
        try:
            # First the owner: the old one could give itself the right to write again.
            os.fchown(descriptor, os.geteuid(), os.getegid())
            os.fchmod(descriptor, os.fstat(descriptor).st_mode & 0o755 | 0o700)
            for name in sorted(os.listdir(descriptor)):  # noqa: PTH208 - pathlib cannot list a descriptor
                state = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                if stat.S_ISDIR(state.st_mode):
                    folders.append(here / name)
                elif _is_plain(state):
                    os.chown(name, os.geteuid(), os.getegid(), dir_fd=descriptor, follow_symlinks=False)
                    os.chmod(name, state.st_mode & 0o755 | 0o600, dir_fd=descriptor)
                    files.append(here / name)
                else:
                    others.append(here / name)
        finally:
            os.close(descriptor)
    return files, others


def move_files(folder: Path, into: Path, *, depth: int = 1) -> list[Path]:
    """Take *folder* and move its files into *into*, which is ours; return what was left there.

    Left are: anything but a plain file; files of holes; what lies deeper than *depth*; a name that no JVM gives;
    the name of something that is already in *into*. Empty files are not moved: they say nothing.
    """
    files, left = take(folder)
    there = {path.name for path in into.iterdir()}
    for file in files:
        name, state = file.relative_to(folder), file.stat()
        if len(name.parts) > depth or name.parts[0] in there or not _NAME.fullmatch(str(name)) or _is_hollow(state):
            left.append(file)
        elif state.st_size:
            place = into / name
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(file, place)
    return left


def give(folder: Path, uid: int) -> None:
    """Let *uid* own *folder*, which is ours alone, with all that is in it.

    From the bottom up: nothing can be replaced in a folder whose content is still to be given.
    """
    folders = [folder]
    for here in folders:
        with os.scandir(here) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(Path(entry.path))
                else:
                    os.chown(entry.path, uid, uid, follow_symlinks=False)
    for here in reversed(folders):
        os.chown(here, uid, uid, follow_symlinks=False)


def _is_plain(state: os.stat_result) -> bool:
    """Return whether it is a file with one name: a second one may be that of another user's file."""
    return stat.S_ISREG(state.st_mode) and state.st_nlink == 1


def _is_hollow(state: os.stat_result) -> bool:
    """Return True if nearly all of a file is a hole: it costs its writer nothing, and hours to read."""
    return state.st_size > max(_SMALL_BYTES, state.st_blocks * _BLOCK_BYTES * _MOST_FOR_A_BYTE)
