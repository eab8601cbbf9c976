"""Rules of the kernel for the reads and writes of a node's file system: so many bytes, or operations, a second.

They stand before the queue of its loop device, so that what the kernel writes back later waits there like what is
written at once. Of version 1 of cgroups each group has rules of its own that its children do not inherit, and what is
written back is the root group's: there the rules are, and there the node lives. Of version 2 they are those of the
node's own group, to which the kernel charges what it writes back for it; the journal of the file system is nobody's.

A rule outlives its device: it is taken back with the mount, through the same session of the ledger.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ingest_bench import system
from ingest_bench.errors import MissingCapability, undone
from ingest_bench.host import cgroups, disk
from ingest_bench.host.cgroups import Controller, Parent
from ingest_bench.ledger.steps import Action, Step, Undo
from ingest_bench.model.capability import Capability
from ingest_bench.trials import Trial, tried

if TYPE_CHECKING:
    from ingest_bench.host.cgroups import Group
    from ingest_bench.host.disk import Own

Rule = Literal["bytes", "operations"]
# Of both versions, for reads and for writes (block/blk-throttle.c).
_FILES: Mapping[Rule, tuple[str, str]] = {
    "bytes": ("blkio.throttle.read_bps_device", "blkio.throttle.write_bps_device"),
    "operations": ("blkio.throttle.read_iops_device", "blkio.throttle.write_iops_device"),
}
_KEYS: Mapping[Rule, tuple[str, str]] = {"bytes": ("rbps", "wbps"), "operations": ("riops", "wiops")}
_WRITE = 'echo "$1" > "$2"'


@dataclass(slots=True)
class Throttle:
    """The rules for the device of one node: of several that last the tightest of each kind counts."""

    device: str
    """As the kernel writes it: "7:0"."""
    place: Parent
    lasting: dict[Rule, list[int]] = field(default_factory=lambda: {rule: [] for rule in _FILES})
    lock: threading.RLock = field(default_factory=threading.RLock)

    def command(self, argv: Sequence[str]) -> tuple[str, ...]:
        """The argv that runs `argv` where the rules are."""
        return cgroups.joining((self.place.folder,), argv) if self.place.version == 1 else tuple(argv)

    def limit(self, most_per_s: Mapping[Rule, int]) -> Callable[[], None]:
        """No more than so much a second, of reads and as much of writes; what is returned ends it."""

        def end() -> None:
            with self.lock:
                for rule, most in most_per_s.items():
                    self.lasting[rule].remove(most)
                self._write()

        with self.lock, undone(end):
            for rule, most in most_per_s.items():
                self.lasting[rule].append(most)
            self._write()
        return end

    def _write(self) -> None:
        most = {rule: min(lasting, default=None) for rule, lasting in self.lasting.items()}
        if self.place.version == 1:
            for rule, files in _FILES.items():
                for name in files:
                    cgroups.put(self.place.folder / name, f"{self.device} {most[rule] or 0}")
            return
        cgroups.put(self.place.folder / "io.max", f"{self.device} {_line(most)}")


def made(own: Own, group: Group | None) -> Throttle:
    """The rules for that file system, without any yet; they are gone before it is."""
    if group is not None and "io" in group.places:
        # Its rules go with it, but not what waits because of them (Linux 6.1).
        place = group.places["io"]
        path, no_rule = place.folder / "io.max", _line(dict.fromkeys(_KEYS))
        steps = [_step(own.device, path, no_rule, no_rule, must_be=path)]
    else:
        # Somebody may have had a rule for a device of that number: it is there again at the end.
        place = _root()
        paths = [place.folder / name for files in _FILES.values() for name in files]
        device = Path(f"/sys/dev/block/{own.device}")
        steps = [_step(own.device, path, "0", _rule(own.device, path), must_be=device) for path in paths]
    own.session.change(steps)
    return Throttle(own.device, place)


def _rule(device: str, path: Path) -> str:
    """What such a file of version 1 has for that device; "0": nothing."""
    lines = (line.split() for line in path.read_text(encoding="ascii").splitlines())
    return next((value for name, value in lines if name == device), "0")


def _line(most_per_s: Mapping[Rule, int | None]) -> str:
    """The rules of version 2, but for their device."""
    return " ".join(f"{key}={most_per_s[rule] or 'max'}" for rule, keys in _KEYS.items() for key in keys)


def _step(device: str, path: Path, value: str, before: str, *, must_be: Path) -> Step:
    undo = Undo(action=_to_write(device, before, path), exists=str(must_be))
    return Step(name=f"{path.name} of {device}", do=_to_write(device, value, path), undo=(undo,))


def _to_write(device: str, value: str, path: Path) -> Action:
    """A command and not a value of a file: others may write rules for other devices there at the same time."""
    return Action(argv=("sh", "-c", _WRITE, "sh", f"{device} {value}", str(path)))


def controllers() -> frozenset[Controller]:
    """What the group of a node has to have, so that the rules can be in it: nothing of version 1.

    Of version 2 what is written back is charged to a node only in a cgroup that has io and memory.
    """
    return frozenset() if _is_version_1() else frozenset({"io", "memory"})


def require() -> None:
    """MissingCapability unless there can be such rules here; nothing is changed."""
    disk.require()
    if _is_version_1():
        _root()
    else:
        cgroups.require(controllers())


def capability() -> Capability:
    """Whether a node's disk can be slow."""
    return tried(Trial(name="throttle", attempt=_usable, remedy="Everything but the fault slow-disk is as ever."))


def _usable() -> str:
    require()
    return f"rules of {'blkio, version 1' if _is_version_1() else 'io, version 2'}"


def _is_version_1() -> bool:
    return any(
        "blkio" in line.split(":", 2)[1].split(",")
        for line in Path("/proc/self/cgroup").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    )


def _root() -> Parent:
    """The root group of blkio, of version 1."""
    if not system.is_root():
        raise MissingCapability("throttle: only root may write rules for a disk; run as root")
    mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    found = cgroups.own(mounts, "1:blkio:/", "blkio")
    # Only the root has it: in a container our own group may look like one (cgroup_namespaces(7)).
    if not (found.folder / "release_agent").exists():
        raise MissingCapability(
            f"throttle: {found.folder} is not the root of the controller blkio, as in a container; what is written "
            "back later has its rules in the root alone"
        )
    for files in _FILES.values():
        for name in files:
            if not os.access(found.folder / name, os.W_OK):
                raise MissingCapability(f"throttle: {found.folder / name} is not there or read-only here")
    return found
