"""Scratch folder of an attached JVM, in the file system that the JVM sees.

    python -m ingest_bench.jvm.scratch make ROOT PATH UID GID SETTINGS      run by the ledger
    python -m ingest_bench.jvm.scratch remove ROOT PATH UID GID FD

The JVM may be in a container, whose users can replace a folder by a link at any moment, or mount a folder of this
machine there. So each folder on the way is opened without following links, and the scratch folder is made and removed
with the rights of the JVM's user. Root of a user namespace that does not map root could not make it anyway.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ingest_bench import system
from ingest_bench.errors import MissingCapability
from ingest_bench.ledger.steps import Action, Step, Undo
from ingest_bench.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ingest_bench.jvm.attach import AttachedJvm

SETTINGS = "settings.jfc"
# A JVM opens its attach socket in /tmp, so the JVM can write there. /var/tmp is rarely memory.
_USUAL_FOLDERS = ("/var/tmp", "/tmp")  # noqa: S108 - without links, and under a name that cannot be guessed
# If a disk is full where the flight recorder writes, or where its recording is copied to, it ends the JVM (Java 17: "An
# irrecoverable error in Jfr. Shutting down VM").
_FREE_BYTES = 64 << 20
# O_PATH: the right to search a folder is enough.
_WAY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True, kw_only=True)
class Scratch:
    """A scratch folder of a JVM, which `make_step` makes."""

    path: Path
    """As the JVM sees it."""
    root: Path
    """Folder below which `path` leads there: / if we see the same folder, else that of the running JVM."""
    uid: int
    gid: int
    parent: int
    """Descriptor of the folder that has it, for the watchdog too. With the JVM its mount namespace may go, not this."""

    def make_step(self, settings: Path | None) -> Step:
        """Return the step that makes the folder, with a copy of the file *settings* as `SETTINGS`."""
        make = self._argv("make", "" if settings is None else str(settings))
        remove = self._argv("remove", str(self.parent))
        return Step(name=str(self.path), action=Action(argv=make), undo=(Undo(action=Action(argv=remove)),))

    def open(self) -> int:
        """Return a descriptor of the folder."""
        return os.open(self.path.name, _FOLDER, dir_fd=self.parent)

    def _argv(self, verb: str, detail: str) -> tuple[str, ...]:
        words = (verb, str(self.root), str(self.path), str(self.uid), str(self.gid), detail)
        return system.build_module_argv("ingest_bench.jvm.scratch", *words)


@contextmanager
def choose(jvm: AttachedJvm, name: str) -> Iterator[Scratch]:
    """Yield a scratch folder of that name for the JVM; MissingCapability if its user can write in none.

    MissingCapability, too, if the disk of its flight recorder is nearly full.
    """
    temporary = _read_temporary_folder(jvm)
    _check_recorder_space(jvm, temporary)
    refusals = []
    for folder in dict.fromkeys((*map(Path, _USUAL_FOLDERS), temporary)):
        try:
            parent = open_folder(jvm.root, folder)
        except OSError as error:
            refusals.append(f"{folder}: {error.strerror}")
            continue
        try:
            if refusal := explain_refusal(parent, jvm) or _explain_lack(parent):
                refusals.append(f"{folder}: {refusal}")
                continue
            root = Path("/") if _is_ours(folder, parent) else jvm.root
            yield Scratch(path=folder / name, root=root, uid=jvm.uid, gid=jvm.gid, parent=parent)
        finally:
            os.close(parent)
        return
    raise MissingCapability(
        f"attach: pid {jvm.pid}: its user has no folder for the recording ({'; '.join(refusals)}). Mount a tmpfs "
        "at /tmp in its container, or start the JVM with -Djava.io.tmpdir=FOLDER."
    )


def open_folder(root: Path, folder: Path) -> int:
    """Return a descriptor (O_PATH) of *folder* below *root*, opened without following links; OSError if that fails."""
    descriptor = os.open(root, _WAY)
    for name in folder.parts[1:]:
        outer = descriptor
        try:
            descriptor = os.open(name, _WAY | os.O_NOFOLLOW, dir_fd=outer)
        finally:
            os.close(outer)
    return descriptor


def explain_refusal(folder: int, jvm: AttachedJvm) -> str:
    """Return the reason for which the JVM's user cannot make files in the open folder; "" if it can."""
    if os.statvfs(f"/proc/self/fd/{folder}").f_flag & os.ST_RDONLY:
        return "read-only file system"
    state = os.fstat(folder)
    bits = 0o300 if state.st_uid == jvm.uid else 0o030 if state.st_gid == jvm.gid else 0o003
    can_write = jvm.uid == 0 or state.st_mode & bits == bits
    return "" if can_write else f"uid {jvm.uid} may not write there"


def _read_temporary_folder(jvm: AttachedJvm) -> Path:
    """Return the folder of its temporary files, where its flight recorder writes; usually /tmp."""
    reported = re.search(r"^java\.io\.tmpdir=(/.*)$", jvm.run_jcmd("VM.system_properties"), re.MULTILINE)
    # As in a properties file. Normal: ".." would lead out of a root that is a plain folder (chroot).
    return Path(os.path.normpath(re.sub(r"\\(.)", r"\1", reported[1] if reported else _USUAL_FOLDERS[-1])))


def _check_recorder_space(jvm: AttachedJvm, folder: Path) -> None:
    try:
        descriptor = open_folder(jvm.root, folder)
    except OSError:
        return  # The JVM reports that itself.
    try:
        lack = _explain_lack(descriptor)
    finally:
        os.close(descriptor)
    if lack:
        raise MissingCapability(
            f"attach: pid {jvm.pid}: its flight recorder writes to {folder}: {lack}, and a full disk ends the JVM. "
            f"Free {format_bytes(_FREE_BYTES)} there."
        )


def _explain_lack(folder: int) -> str:
    """Return how little space the file system of the open folder has; "" if it has enough, or no limit."""
    state = os.statvfs(f"/proc/self/fd/{folder}")
    free_bytes = state.f_bavail * state.f_frsize
    return f"only {format_bytes(free_bytes)} free" if state.f_blocks and free_bytes < _FREE_BYTES else ""


def _is_ours(folder: Path, descriptor: int) -> bool:
    """Return True if the open folder is the one that we have at that path."""
    try:
        own = open_folder(Path("/"), folder)
    except OSError:
        return False
    try:
        return os.path.sameopenfile(own, descriptor)
    finally:
        os.close(own)


def main(verb: str, root: str, path: str, uid: str, gid: str, detail: str) -> None:
    """Make or remove the scratch folder *path* below *root* as this user; OSError if that fails."""
    name = Path(path).name
    if verb == "make":
        settings = Path(detail).read_bytes() if detail else b""
        parent = open_folder(Path(root), Path(path).parent)
        _become(int(uid), int(gid))
        _make(name, parent, settings)
    elif (holder := _find_holder(Path(root), Path(path), detail)) is not None:
        _become(int(uid), int(gid))
        _remove(name, holder)


def _become(uid: int, gid: int) -> None:
    """Give up the rights of root."""
    if uid != os.geteuid():
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)


def _make(name: str, parent: int, settings: bytes) -> None:
    os.mkdir(name, 0o700, dir_fd=parent)
    if settings:
        folder = os.open(name, _FOLDER, dir_fd=parent)
        file = os.open(SETTINGS, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
        with os.fdopen(file, "wb") as output:
            output.write(settings)


def _find_holder(root: Path, path: Path, descriptor: str) -> int | None:
    """Return a descriptor of the folder that has *path*; None if the way there is gone with the JVM.

    First try the one that our parent inherited, because a path can lead elsewhere by now. `net restore` has none.
    """
    try:
        holder = os.open(f"/proc/{os.getppid()}/fd/{descriptor}", _WAY)
        os.stat(path.name, dir_fd=holder, follow_symlinks=False)
    except OSError:
        try:
            holder = open_folder(root, path.parent)
        except FileNotFoundError:
            return None
    return holder


def _remove(name: str, parent: int) -> None:
    try:
        if stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            shutil.rmtree(name, dir_fd=parent)
        else:
            os.unlink(name, dir_fd=parent)
    except FileNotFoundError:
        pass


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except OSError as error:
        sys.exit(str(error))
