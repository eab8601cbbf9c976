"""Folders that another user can write: find one on a path, read files in it, take or give its ownership.

A server that root starts runs as another user and writes its logs and recording itself. A user who can write a folder
can put a link or a named pipe there at any moment, also between a check and an open.
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
# O_NONBLOCK: opening a named pipe would wait for its writer.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# MAXSYMLINKS of the kernel.
_MAX_LINKS = 40
# Largest ratio of file size to bytes on disk (stat(2) counts blocks of 512). File systems that compress need at least a
# block of 4,096 for 128 KiB of text.
_BLOCK_BYTES, _MAX_SIZE_RATIO, _SMALL_BYTES = 512, 100, 1 << 20
_NAME = re.compile(r"[A-Za-z0-9_.-]+(?:/[A-Za-z0-9_.-]+)*")


def find_writable_folder(path: Path) -> Path | None:
    """Return the folder on the way to *path*, or *path* itself, whose content another user can replace; None if none.

    Links on the way count too. In a sticky folder of root, such as /tmp, users can replace only their own entries.
    Folders that do not exist yet must be checked again after they were made.
    """
    # In the user namespace of an ordinary user, root has another uid: that of /.
    trusted_uids = {0, os.geteuid(), Path("/").lstat().st_uid}
    for folder, entry in _lookup_steps(path.absolute()):
        state, exists = folder.lstat(), os.path.lexists(entry)
        is_protected = not state.st_mode & 0o022 or (
            state.st_mode & stat.S_ISVTX and (not exists or entry.lstat().st_uid in trusted_uids)
        )
        if state.st_uid not in trusted_uids or not is_protected:
            return folder
        if not exists:
            return None
    resolved = path.resolve()
    return None if is_own(resolved) else resolved


def is_own(path: Path) -> bool:
    """Return True if *path* belongs to this process's user and no other user may write it."""
    state = path.lstat()
    return state.st_uid == os.geteuid() and not state.st_mode & 0o022


def borrows_our_rights(path: Path) -> bool:
    """Return True if another user's link leads to the file *path*, which that user may be unable to read.

    Group permissions are not considered: a file counts as readable if it is public or belongs to the link's owner.
    """
    link_owners = {entry.lstat().st_uid for _, entry in _lookup_steps(path.absolute()) if entry.is_symlink()}
    real = path.resolve()
    state = real.stat()
    is_public = state.st_mode & 0o004 and all(folder.stat().st_mode & 0o001 for folder in real.parents)
    return not is_public and not link_owners <= {0, os.geteuid(), state.st_uid}


def _lookup_steps(path: Path) -> Iterator[tuple[Path, Path]]:
    """Yield each entry that the kernel looks up on the way to *path*, with the folder that it is in."""
    folder, links = Path("/"), 0
    remaining = [*reversed(path.parts[1:])]
    while remaining:
        name = remaining.pop()
        if name == "..":
            folder = folder.parent
            continue
        entry = folder / name
        yield folder, entry
        if not entry.is_symlink():
            folder = entry
            continue
        if (links := links + 1) > _MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        target = entry.readlink()
        folder = Path("/") if target.is_absolute() else folder
        remaining += [part for part in reversed(target.parts) if part != "/"]


def open_file(path: Path) -> BufferedReader:
    """Open a plain file in a folder that another user can write; OSError for a link and for anything but a file.

    OSError, too, for a sparse file. The folder itself must be in one that only this process's user can write.
    """
    folder = os.open(path.parent, _FOLDER)
    try:
        file = os.fdopen(os.open(path.name, _FILE, dir_fd=folder), "rb")
    finally:
        os.close(folder)
    state = os.fstat(file.fileno())
    if not _is_plain(state) or _is_sparse(state):
        file.close()
        raise OSError(errno.EINVAL, "not a plain file", str(path))
    return file


def take_ownership(folder: Path) -> tuple[list[Path], list[Path]]:
    """Take ownership of *folder*, which another user could write; return its plain files and its other entries.

    Other entries are links, pipes, devices, sockets and files with a second name. The order is top-down: nothing can be
    replaced in a folder that is already taken.
    """
    files: list[Path] = []
    others: list[Path] = []
    folders = [folder]
    for current in folders:
        descriptor = os.open(current, _FOLDER)
        try:
            # Owner before mode: the old owner could restore its right to write.
            os.fchown(descriptor, os.geteuid(), os.getegid())
            os.fchmod(descriptor, os.fstat(descriptor).st_mode & 0o755 | 0o700)
            for name in sorted(os.listdir(descriptor)):  # noqa: PTH208 - pathlib cannot list a descriptor
                state = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                if stat.S_ISDIR(state.st_mode):
                    folders.append(current / name)
                elif _is_plain(state):
                    os.chown(name, os.geteuid(), os.getegid(), dir_fd=descriptor, follow_symlinks=False)
                    os.chmod(name, state.st_mode & 0o755 | 0o600, dir_fd=descriptor)
                    files.append(current / name)
                else:
                    others.append(current / name)
        finally:
            os.close(descriptor)
    return files, others


def move_files(folder: Path, into: Path, *, depth: int = 1) -> list[Path]:
    """Take ownership of *folder* and move its files into *into*; return the entries that were not moved.

    Not moved are: anything but a plain file; sparse files; files deeper than *depth*; names that no JVM gives; names
    that exist in *into*. Empty files are skipped without being returned.
    """
    files, refused = take_ownership(folder)
    existing = {path.name for path in into.iterdir()}
    for file in files:
        name, state = file.relative_to(folder), file.stat()
        if len(name.parts) > depth or name.parts[0] in existing or not _NAME.fullmatch(str(name)) or _is_sparse(state):
            refused.append(file)
        elif state.st_size:
            destination = into / name
            destination.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(file, destination)
    return refused


def copy_files(folder: int, into: Path, owner: int) -> list[str]:
    """Copy the files in the open *folder* into *into*; return the names of the entries that were not copied.

    Not copied are: anything but a plain file of the user *owner*, who can mount other files there in a user namespace;
    sparse files; names that no JVM gives; names that exist in *into*. Empty files are skipped without being returned.
    """
    refused = []
    for name in sorted(os.listdir(folder)):
        try:
            file = os.open(name, _FILE, dir_fd=folder)
        except OSError:
            refused.append(name)
            continue
        try:
            state, destination = os.fstat(file), into / name
            is_file = _is_plain(state) and state.st_uid == owner and not _is_sparse(state)
            if not is_file or not _NAME.fullmatch(name) or os.path.lexists(destination):
                refused.append(name)
            elif left_bytes := state.st_size:
                with destination.open("xb") as output:
                    os.fchmod(output.fileno(), state.st_mode & 0o755 | 0o600)
                    while copied := os.sendfile(output.fileno(), file, None, left_bytes):
                        left_bytes -= copied
        finally:
            os.close(file)
    return refused


def give_ownership(folder: Path, uid: int) -> None:
    """Give *folder*, which only this process's user can write, and its content to *uid*.

    The order is bottom-up: nothing can be replaced in a folder whose content has not been given yet.
    """
    folders = [folder]
    for current in folders:
        with os.scandir(current) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(Path(entry.path))
                else:
                    os.chown(entry.path, uid, uid, follow_symlinks=False)
    for current in reversed(folders):
        os.chown(current, uid, uid, follow_symlinks=False)


def _is_plain(state: os.stat_result) -> bool:
    """Return True for a file with one name; a hard link may lead to a file of another user."""
    return stat.S_ISREG(state.st_mode) and state.st_nlink == 1


def _is_sparse(state: os.stat_result) -> bool:
    """Return True if nearly all of a file is a hole: free to write, and hours to read."""
    return state.st_size > max(_SMALL_BYTES, state.st_blocks * _BLOCK_BYTES * _MAX_SIZE_RATIO)
