"""Volumes: a file system of its own for the home of a node, so that a fault can fill or slow it, but no other disk.

It is ext4 in a sparse file below the mount. The file's name is removed once it is mounted, so the loop device and the
file vanish with the mount. The ledger undoes the file and the mount.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path

from ingest_bench import system
from ingest_bench.errors import MissingCapability, RunFailed
from ingest_bench.ledger.steps import Action, Step, Undo
from ingest_bench.ledger.watchdog import Session, open_session
from ingest_bench.model.load import MAX_LOAD_S

_PACKAGES = {"mkfs.ext4": "e2fsprogs", "mount": "mount", "umount": "mount", "findmnt": "util-linux"}
_LOOP_CONTROL = Path("/dev/loop-control")
# As large as the disk below has room for. The file is sparse, so it takes only what the server writes.
_MAX_BYTES = 16 << 30
_MIN_BYTES = 256 << 20
_IMAGE = ".disk"
_FILL_INTERVAL_S = 0.02
# No blocks reserved for root, few inodes, none of them written before use: the file stays sparse.
_MKFS = ("mkfs.ext4", "-q", "-F", "-m0", "-i", "65536", "-J", "size=64", "-E", "lazy_itable_init=1,nodiscard")
_MOUNT = ("mount", "-t", "ext4", "-o", "loop,noinit_itable,nodev,nosuid")
_SECTOR_BYTES = 512


@dataclass(frozen=True, slots=True)
class DiskCounters:
    """Reads and writes of a device (Documentation/admin-guide/iostats.rst)."""

    reads: int
    read_bytes: int
    writes: int
    written_bytes: int

    def subtract(self, before: DiskCounters) -> DiskCounters:
        """Return the difference to earlier counters."""
        return DiskCounters(*(now - then for now, then in zip(astuple(self), astuple(before), strict=True)))


@dataclass(frozen=True, slots=True)
class Volume:
    """The file system of one node."""

    device: str
    """Its loop device, as the kernel writes it: "7:0"."""
    session: Session
    """Undoes changes of the device before the mount."""

    def read_counters(self) -> DiskCounters:
        """Return the reads and writes of the device so far."""
        counts = [*map(int, Path(f"/sys/dev/block/{self.device}/stat").read_text(encoding="ascii").split())]
        reads, _, read_sectors, _, writes, _, written_sectors, *_ = counts
        return DiskCounters(reads, read_sectors * _SECTOR_BYTES, writes, written_sectors * _SECTOR_BYTES)


@contextmanager
def create_volume(home: Path) -> Iterator[Volume]:
    """Mount a new file system on the empty folder *home* for the block.

    Raise MissingCapability if this machine cannot do it, or its disk has less than 256 MiB of free space.
    """
    require_volume()
    home = home.resolve()
    below = os.open(home, os.O_RDONLY | os.O_DIRECTORY)
    try:
        space = os.fstatvfs(below)
        size_bytes = min(_MAX_BYTES, space.f_bavail * space.f_frsize)
        if size_bytes < _MIN_BYTES:
            raise MissingCapability(f"{home}: a file system of its own needs 256 MiB; {size_bytes:,} bytes are free")
        image = str(home / _IMAGE)
        make = Step(
            name=f"make {image}",
            action=Action(argv=(*_MKFS, image, f"{size_bytes >> 10}k")),
            undo=(Undo(action=Action(argv=("rm", "--force", image))),),
        )
        # Lazy: a process that still uses it, such as a dying server, does not block the unmount.
        unmount = Undo(action=Action(argv=("umount", "--lazy", str(home))), mount_point=str(home))
        mount = Step(name=f"mount {home}", action=Action(argv=(*_MOUNT, image, str(home))), undo=(unmount,))
        key = f"disk-{hashlib.sha256(str(home).encode()).hexdigest()[:16]}"
        with open_session(key, f"file system of {home}", time_limit_s=MAX_LOAD_S, namespace_kinds=("mnt",)) as session:
            session.apply((make, mount))
            os.unlink(_IMAGE, dir_fd=below)
            # The server would take it for a folder of its own.
            (home / "lost+found").rmdir()
            number = home.stat().st_dev
            yield Volume(f"{os.major(number)}:{os.minor(number)}", session)
    finally:
        os.close(below)


def require_volume() -> str:
    """Return what a volume is made of; MissingCapability if a file system cannot be made and mounted here."""
    if not system.is_root():
        raise MissingCapability("disk: only root can give a server its own file system. Run as root.")
    if missing := [name for name in _PACKAGES if system.which(name) is None]:
        packages = " ".join(sorted({_PACKAGES[name] for name in missing}))
        raise MissingCapability(f"disk: {', '.join(missing)} is not installed.\nInstall {packages}.")
    if not os.access(_LOOP_CONTROL, os.W_OK):
        raise MissingCapability(f"disk: {_LOOP_CONTROL} cannot be used: there are no loop devices, as in a container")
    if "ext4" not in Path("/proc/filesystems").read_text(encoding="ascii").split():
        raise MissingCapability("disk: this kernel has no ext4")
    return "ext4 on a loop device"


class DiskFiller:
    """A file that takes every free block of a file system, also those that are freed later."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / f".full-{secrets.token_hex(4)}"
        self._stopped = threading.Event()
        self._size_bytes = self._initial_bytes = 0
        self._descriptor: int | None = None
        self._thread: threading.Thread | None = None
        self._error: OSError | None = None

    def fill(self) -> None:
        """Return when no block is free; raise RunFailed if that fails. `free` releases what was taken until then."""
        if self._folder.stat().st_dev == self._folder.parent.stat().st_dev:
            raise RunFailed(f"full-disk: {self._folder} is not a file system of its own, so it is not filled")
        self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            self._take_free_blocks(self._descriptor)
        except OSError as error:
            raise RunFailed(f"full-disk: {self._path}: {error.strerror}") from None
        self._initial_bytes = self._size_bytes
        self._thread = threading.Thread(target=self._keep_full, args=(self._descriptor,), name="full-disk", daemon=True)
        self._thread.start()

    def free(self) -> None:
        """Release every block; raise RunFailed if the filler failed meanwhile."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
        if self._descriptor is not None:
            self._path.unlink()
            os.close(self._descriptor)
            # Blocks are free only when the journal has them.
            folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        if self._error is not None:
            raise RunFailed(f"full-disk: {self._path}: {self._error.strerror}")

    def describe(self) -> str:
        """Return how much was taken, and how much the server freed meanwhile."""
        retaken_bytes = self._size_bytes - self._initial_bytes
        return f"filled with {self._initial_bytes / 1e6:,.0f} MB, {retaken_bytes / 1e6:.1f} MB freed and taken again"

    def _keep_full(self, descriptor: int) -> None:
        while not self._stopped.wait(_FILL_INTERVAL_S):
            try:
                self._take_free_blocks(descriptor)
            except OSError as error:
                self._error = error
                return

    def _take_free_blocks(self, descriptor: int) -> None:
        """Allocate ever smaller pieces until the kernel refuses a single block (ENOSPC)."""
        space = os.fstatvfs(descriptor)
        piece_bytes = max(space.f_bavail, 1) * space.f_frsize
        while piece_bytes:
            try:
                os.posix_fallocate(descriptor, self._size_bytes, piece_bytes)
                self._size_bytes += piece_bytes
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                piece_bytes = piece_bytes // 2 // space.f_frsize * space.f_frsize
