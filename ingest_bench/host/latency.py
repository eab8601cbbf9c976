"""A device below a node's file system in which each read and write waits: the target `delay` of the device-mapper.

It lies on a loop device of the file, and lets all pass at once while nobody slows it. What waits in the queue of a disk
is in no limit of a cgroup: io.latency is a goal for others, and a number of operations a second lets those that come
one by one pass at once. System calls that wait, as those of `syncs` do, were rejected: a read that finds its page in
memory would wait too.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ingest_bench import system
from ingest_bench.errors import MissingCapability, RunFailed, undone
from ingest_bench.ledger.steps import Action, Step, Undo
from ingest_bench.model.capability import Capability
from ingest_bench.trials import Trial, tried

# The loop device goes with the device on it: it is detached as soon as that one has it.
_MAKE = """set -e
loop=$(losetup --find --show "$1")
dmsetup create "$2" --table "0 $(blockdev --getsz "$loop") delay $loop 0 0" || { losetup --detach "$loop"; exit 1; }
losetup --detach "$loop"
"""
# For who was killed between the two.
_DETACH = 'for loop in $(losetup --noheadings --output NAME --associated "$1" 2>&-); do losetup --detach "$loop"; done'
# Its table is "0 SECTORS delay DEVICE OFFSET MILLISECONDS". What waits goes on when another table takes its place.
_SET = """set -e
new=$2
set -- "$1" $(dmsetup table "$1")
dmsetup load "$1" --table "$2 $3 $4 $5 $6 $new"
dmsetup resume --noflush --nolockfs "$1"
"""
# By the number that the kernel gave it: without udev it has no name below /dev/mapper.
_MOUNT = 'mount -t ext4 -o "$3" "/dev/$(dmsetup info --columns --noheadings --options blkdevname "$1")" "$2"'


@dataclass(slots=True)
class Latency:
    """What the reads and writes of one node wait: of several that last the longest time counts."""

    name: str
    """Of its device, as dmsetup knows it."""
    lasting: list[int] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def delay(self, delay_ms: int) -> Callable[[], None]:
        """Each read and write waits so long; what is returned ends it, and those that wait go on at once."""

        def end() -> None:
            with self.lock:
                self.lasting.remove(delay_ms)
                self._write()

        with self.lock, undone(end):
            self.lasting.append(delay_ms)
            self._write()
        return end

    def _write(self) -> None:
        most = str(max(self.lasting, default=0))
        _to_set(self.name, most).carry_out()
        if (found := system.run(("dmsetup", "table", self.name)).split()[5:]) != [most]:
            raise RunFailed(f"latency: the delay of {self.name} was set to {most} ms and is {' '.join(found)}")


def name_for(home: Path) -> str:
    """What the device of a node is called."""
    return f"ingest-bench-{hashlib.sha256(str(home).encode()).hexdigest()[:16]}"


def making(image: Path, name: str) -> Step:
    """The device of that name on that file."""
    look, shows = ("dmsetup", "info", "--columns", "--noheadings", "--options", "name"), name
    return Step(
        name=f"device {name} on {image}",
        do=Action(argv=("sh", "-c", _MAKE, "sh", str(image), name)),
        undo=(
            # First of all nothing waits there any more; it is gone when the last file on it is closed.
            Undo(action=_to_set(name, "0"), look=look, shows=shows),
            Undo(action=Action(argv=("dmsetup", "remove", "--deferred", name)), look=look, shows=shows),
            Undo(action=Action(argv=("sh", "-c", _DETACH, "sh", str(image)))),
        ),
    )


def mounting(name: str, home: Path, options: str) -> Action:
    """The file system on the device of that name, mounted."""
    return Action(argv=("sh", "-c", _MOUNT, "sh", name, str(home), options))


def _to_set(name: str, milliseconds: str) -> Action:
    return Action(argv=("sh", "-c", _SET, "sh", name, milliseconds))


def require() -> None:
    """MissingCapability where there can be no such device; nothing is changed."""
    if system.which("dmsetup") is None:
        raise MissingCapability("latency: there is no dmsetup here.\nInstall dmsetup.")
    if "delay" not in _targets() and not _has_module():
        raise MissingCapability(
            "latency: this kernel has no device-mapper with the target delay (CONFIG_DM_DELAY), neither loaded nor as "
            "a module, and nothing else lets each read and write of a disk wait"
        )


def _targets() -> list[str]:
    """What the device-mapper has now; where it is not there at all, nobody loads it for this question."""
    if "device-mapper" not in Path("/proc/misc").read_text(encoding="ascii").split():
        return []
    return [line.split()[0] for line in system.run(("dmsetup", "targets")).splitlines() if line]


def _has_module() -> bool:
    if system.which("modprobe") is None:
        return False
    try:
        system.run(("modprobe", "--dry-run", "--quiet", "dm-delay"))
    except RunFailed:
        return False
    return True


def capability() -> Capability:
    """Whether the disk of a node can be late."""
    return tried(Trial(name="latency", attempt=_usable, remedy="Everything but slow-disk with a delay is as ever."))


def _usable() -> str:
    require()
    return "the device-mapper's target delay"
