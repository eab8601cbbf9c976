"""A file system of its own for the home of a node, so that a fault may fill it and nobody else's disk.

It is ext4 in a sparse file below the mount, which has no name any more once it is mounted: the loop device and the
file go with the mount. The file and the mount are taken back through the ledger, however we end.
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
from ingest_bench.host import latency
from ingest_bench.host.latency import Latency
from ingest_bench.ledger.steps import Action, Step, Undo
from ingest_bench.ledger.watchdog import Session, session
from ingest_bench.model.capability import Capability
from ingest_bench.model.load import LONGEST_LOAD_S
from ingest_bench.trials import Trial, tried

_PROGRAMS = {"mkfs.ext4": "e2fsprogs", "mount": "mount", "umount": "mount", "findmnt": "util-linux"}
_LOOPS = Path("/dev/loop-control")
# As large as the disk has room for; sparse, so that it takes only what the server writes.
_LARGEST_BYTES = 16 << 30
_SMALLEST_BYTES = 256 << 20
_IMAGE = ".disk"
_LOOK_S = 0.02
# No blocks for root alone, few inodes, and none of them written before it is used: the file stays sparse.
_MAKE = ("mkfs.ext4", "-q", "-F", "-m0", "-i", "65536", "-J", "size=64", "-E", "lazy_itable_init=1,nodiscard")
_OPTIONS = "noinit_itable,nodev,nosuid"
_SECTOR_BYTES = 512


@dataclass(frozen=True, slots=True)
class Moved:
    """What a device has read and written, and how long that took (Documentation/admin-guide/iostats.rst)."""

    reads: int
    read_bytes: int
    read_ms: int
    writes: int
    written_bytes: int
    write_ms: int

    def since(self, before: Moved) -> Moved:
        """What was added to it."""
        return Moved(*(now - then for now, then in zip(astuple(self), astuple(before), strict=True)))


@dataclass(frozen=True, slots=True)
class Own:
    """The file system of one node."""

    device: str
    """Its loop device, as the kernel writes it: "7:0"."""
    session: Session
    """What is changed of the device is put back by it, before the mount is."""
    latency: Latency | None = None
    """What lets its reads and writes wait, where that was asked for."""

    def moved(self) -> Moved:
        """What its device has read and written until now."""
        counts = [*map(int, Path(f"/sys/dev/block/{self.device}/stat").read_text(encoding="ascii").split())]
        reads, _, read, read_ms, writes, _, written, write_ms, *_ = counts
        return Moved(reads, read * _SECTOR_BYTES, read_ms, writes, written * _SECTOR_BYTES, write_ms)


@contextmanager
def own(home: Path, *, may_wait: bool = False) -> Iterator[Own]:
    """The folder, which is empty, is a file system of its own for the block's time.

    `may_wait`: its reads and writes can be made to wait. RunFailed when the disk below it has no room for the smallest.
    """
    require()
    home = home.resolve()
    below = os.open(home, os.O_RDONLY | os.O_DIRECTORY)
    try:
        room = os.fstatvfs(below)
        size_bytes = min(_LARGEST_BYTES, room.f_bavail * room.f_frsize)
        if size_bytes < _SMALLEST_BYTES:
            raise MissingCapability(f"{home}: a file system of its own needs 256 MiB, {size_bytes:,} bytes are free")
        image = home / _IMAGE
        key = f"disk-{hashlib.sha256(str(home).encode()).hexdigest()[:16]}"
        with session(key, f"file system of {home}", time_limit_s=LONGEST_LOAD_S, within=("mnt",)) as opened:
            late = Latency(latency.name_for(home)) if may_wait else None
            opened.change((_making(image, size_bytes), *_mounting(image, home, late)))
            os.unlink(_IMAGE, dir_fd=below)
            # The server's programs would take it for one of theirs.
            (home / "lost+found").rmdir()
            number = home.stat().st_dev
            yield Own(f"{os.major(number)}:{os.minor(number)}", opened, late)
    finally:
        os.close(below)


def _making(image: Path, size_bytes: int) -> Step:
    return Step(
        name=f"make {image}",
        do=Action(argv=(*_MAKE, str(image), f"{size_bytes >> 10}k")),
        undo=(Undo(action=Action(argv=("rm", "--force", str(image)))),),
    )


def _mounting(image: Path, home: Path, late: Latency | None) -> tuple[Step, ...]:
    undo = Undo(
        # Lazy: what still runs there, such as a server that is dying, keeps nobody waiting.
        action=Action(argv=("umount", "--lazy", str(home))),
        mounted=str(home),
    )
    name = f"mount {home}"
    if late is not None:
        mount = Step(name=name, do=latency.mounting(late.name, home, _OPTIONS), undo=(undo,))
        return latency.making(image, late.name), mount
    do = Action(argv=("mount", "-t", "ext4", "-o", f"loop,{_OPTIONS}", str(image), str(home)))
    return (Step(name=name, do=do, undo=(undo,)),)


def require() -> None:
    """MissingCapability unless a file system can be made and mounted here."""
    if not system.is_root():
        raise MissingCapability("disk: only root may give a server a file system of its own; run as root")
    if missing := [name for name in _PROGRAMS if system.which(name) is None]:
        packages = " ".join(sorted({_PROGRAMS[name] for name in missing}))
        raise MissingCapability(f"disk: there is no {', '.join(missing)} here.\nInstall {packages}.")
    if not os.access(_LOOPS, os.W_OK):
        raise MissingCapability(f"disk: {_LOOPS} cannot be used: there are no loop devices here, as in a container")
    if "ext4" not in Path("/proc/filesystems").read_text(encoding="ascii").split():
        raise MissingCapability("disk: this kernel has no ext4")


def capability() -> Capability:
    """Whether a node's home can be a file system of its own."""
    return tried(Trial(name="disk", attempt=_usable, remedy="Everything but the fault full-disk is as ever."))


def _usable() -> str:
    require()
    return "ext4 on a loop device"


class Filler:
    """A file that takes every block of a file system that is free."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / f".full-{secrets.token_hex(4)}"
        self._over = threading.Event()
        self._size_bytes = self._first_bytes = 0
        self._descriptor: int | None = None
        self._thread: threading.Thread | None = None
        self._error: OSError | None = None

    def begin(self) -> None:
        """Return when there is no block left; RunFailed when there is, and `end` gives back what it took until then."""
        if self._folder.stat().st_dev == self._folder.parent.stat().st_dev:
            raise RunFailed(f"full-disk: {self._folder} is no file system of its own, it is not filled")
        self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            self._take(self._descriptor)
        except OSError as error:
            raise RunFailed(f"full-disk: {self._path}: {error.strerror}") from None
        self._first_bytes = self._size_bytes
        self._thread = threading.Thread(target=self._go_on, args=(self._descriptor,), name="full-disk", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Every block is free again."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        if self._descriptor is not None:
            self._give_back(self._descriptor)
        if self._error is not None:
            raise RunFailed(f"full-disk: {self._path}: {self._error.strerror}")

    def seen(self) -> str:
        """How much was taken, and how much the server gave back meanwhile."""
        again_bytes = self._size_bytes - self._first_bytes
        return f"full by {self._first_bytes / 1e6:,.0f} MB, {again_bytes / 1e6:.1f} MB that were freed were taken again"

    def _go_on(self, descriptor: int) -> None:
        while not self._over.wait(_LOOK_S):
            try:
                self._take(descriptor)
            except OSError as error:
                self._error = error
                return

    def _take(self, descriptor: int) -> None:
        """Take what is free, in pieces that become smaller, until the kernel refuses a single block (ENOSPC)."""
        room = os.fstatvfs(descriptor)
        piece_bytes = max(room.f_bavail, 1) * room.f_frsize
        while piece_bytes:
            try:
                os.posix_fallocate(descriptor, self._size_bytes, piece_bytes)
                self._size_bytes += piece_bytes
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                piece_bytes = piece_bytes // 2 // room.f_frsize * room.f_frsize

    def _give_back(self, descriptor: int) -> None:
        """Blocks are free when the journal has them: an fsync waits for that."""
        self._path.unlink()
        os.close(descriptor)
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
