"""Scratch folder of an attached JVM, in the file system that the JVM sees.

    python -m ingest_bench.jvm.scratch make|remove ROOT PATH UID GID [SETTINGS]      run by the ledger

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

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ingest_bench.jvm.attach import AttachedJvm

SETTINGS = "settings.jfc"
# A JVM opens its attach socket in /tmp, so the JVM can write there. /var/tmp is rarely memory.
_USUAL_FOLDERS = ("/var/tmp", "/tmp")  # noqa: S108 - without links, and under a name that cannot be guessed
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
    """Descriptor of the folder that has it. It stays valid if the JVM exits and its mount namespace is gone."""

    def make_step(self, settings: Path | None) -> Step:
        """Return the step that makes the folder, with a copy of the file *settings* as `SETTINGS`."""
        options = () if settings is None else (str(settings),)
        return Step(
            name=str(self.path),
            action=Action(argv=self._argv("make", self.root, self.path, *options)),
            undo=(
                Undo(
                    action=Action(argv=self._argv("remove", self.root, self.path)),
                    existing_path=str(self.root / self.path.relative_to("/")),
                ),
            ),
        )

    def open(self) -> int:
        """Return a descriptor of the folder."""
        return os.open(self.path.name, _FOLDER, dir_fd=self.parent)

    def remove(self) -> None:
        """Remove the folder of a JVM that has exited; RunFailed if that fails."""
        argv = self._argv("remove", Path(f"/proc/self/fd/{self.parent}"), Path("/", self.path.name))
        system.run(argv, pass_fds=(self.parent,))

    def _argv(self, verb: str, root: Path, path: Path, *options: str) -> tuple[str, ...]:
        words = (verb, str(root), str(path), str(self.uid), str(self.gid), *options)
        return system.build_module_argv("ingest_bench.jvm.scratch", *words)


@contextmanager
def choose(jvm: AttachedJvm, name: str) -> Iterator[Scratch]:
    """Yield a scratch folder of that name for the JVM; MissingCapability if its user can write in none."""
    refusals = []
    for folder in _list_candidates(jvm):
        try:
            parent = open_folder(jvm.root, folder)
        except OSError as error:
            refusals.append(f"{folder}: {error.strerror}")
            continue
        try:
            if refusal := explain_refusal(parent, jvm):
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


def _list_candidates(jvm: AttachedJvm) -> Iterator[Path]:
    """Yield folders that JVMs can usually write, at last that of its temporary files."""
    yield from map(Path, _USUAL_FOLDERS)
    reported = re.search(r"^java\.io\.tmpdir=(/.*)$", jvm.run_jcmd("VM.system_properties"), re.MULTILINE)
    if reported:
        # As in a properties file. Normal: ".." would lead out of a root that is a plain folder (chroot).
        yield Path(os.path.normpath(re.sub(r"\\(.)", r"\1", reported[1])))


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


def main(verb: str, root: str, path: str, uid: str, gid: str, settings: str = "") -> None:
    """Make or remove the scratch folder *path* below *root* as this user; OSError if that fails."""
    folder = Path(path)
    content = Path(settings).read_bytes() if settings else b""
    parent = open_folder(Path(root), folder.parent)
    if int(uid) != os.geteuid():
        os.setgroups([])
        os.setresgid(int(gid), int(gid), int(gid))
        os.setresuid(int(uid), int(uid), int(uid))
    if verb == "remove":
        _remove(folder.name, parent)
        return
    os.mkdir(folder.name, 0o700, dir_fd=parent)
    if settings:
        inner = os.open(folder.name, _FOLDER, dir_fd=parent)
        file = os.open(SETTINGS, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=inner)
        with os.fdopen(file, "wb") as output:
            output.write(content)


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
