"""A cgroup of its own for each node, so that a fault may take CPU or memory from it: of version 1 and 2 of cgroups.

A server begins its life inside: memory is charged where it was first touched, and a server that is started again has
the limits that last. The folders are made below our own cgroup, whose limits go on to hold, and removed through the
ledger, however we end.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Literal, get_args

from ingest_bench import system
from ingest_bench.errors import MissingCapability, RunFailed, undone
from ingest_bench.ledger.steps import Action, Step, Undo
from ingest_bench.ledger.watchdog import session
from ingest_bench.model.capability import Capability
from ingest_bench.model.load import LONGEST_LOAD_S
from ingest_bench.trials import Trial, tried

Controller = Literal["cpu", "memory", "io"]
CONTROLLERS: tuple[Controller, ...] = get_args(Controller)
# Those that faults limit of both versions; io has no group of a node's own of version 1 (`throttle`).
_OF_BOTH: tuple[Controller, ...] = ("cpu", "memory")
# What shows that a controller of that version is there and takes limits.
_SHOWN_BY: Mapping[tuple[Controller, int], str] = {
    ("cpu", 1): "cpu.cfs_quota_us",
    ("memory", 1): "memory.limit_in_bytes",
}
# Each folder's list of processes, then a word, then the command: 0 is who writes.
_JOIN = 'while [ "$1" != in ]; do echo 0 > "$1" || exit 1; shift; done; shift; exec "$@"'
# Who is killed leaves it within a moment, and who lives on goes where it came from.
_REMOVE = """tries=0
while [ -d "$1" ]; do
  while read -r pid; do echo "$pid" > "$2/cgroup.procs"; done < "$1/cgroup.procs"
  rmdir "$1" && exit
  tries=$((tries + 1))
  [ "$tries" -lt 20 ] || exit 1
  sleep 0.1
done
"""


@dataclass(frozen=True, slots=True)
class Parent:
    """Where cgroups of ours are made."""

    folder: Path
    version: Literal[1, 2]
    own: Path
    """Our own cgroup. Of version 2, one whose children have controllers has no processes itself."""


@dataclass(slots=True)
class Group:
    """The cgroup of a node, with the limits that last on it: the tightest of each kind counts."""

    places: Mapping[Controller, Parent]
    """Its own folders."""
    limits: dict[Controller, list[float]] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def command(self, argv: Sequence[str]) -> tuple[str, ...]:
        """The argv that runs `argv` inside; root alone can do that."""
        return joining([place.folder for place in self.places.values()], argv)

    def limit(
        self, controller: Controller, most: float, write: Callable[[Parent, float | None], None]
    ) -> Callable[[], None]:
        """No more than so much, for as long as it lasts; what is returned ends it. None is written for no limit."""
        lasting, place = self.limits.setdefault(controller, []), self.places[controller]

        def end() -> None:
            with self.lock:
                lasting.remove(most)
                write(place, min(lasting, default=None))

        with self.lock, undone(end):
            lasting.append(most)
            write(place, min(lasting))
        return end


def joining(folders: Sequence[Path], argv: Sequence[str]) -> tuple[str, ...]:
    """The argv that runs `argv` inside these cgroups."""
    return ("sh", "-c", _JOIN, "sh", *dict.fromkeys(str(folder / "cgroup.procs") for folder in folders), "in", *argv)


def put(path: Path, value: object) -> None:
    """Write it to a file of a cgroup; RunFailed when the kernel does not take it."""
    try:
        path.write_text(str(value), encoding="ascii")
    except OSError as error:
        raise RunFailed(f"{path}: {value} was not taken ({error.strerror})") from None


def numbers(path: Path) -> dict[str, int]:
    """What a file of a cgroup counts: lines of a name and a number."""
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except OSError as error:
        raise RunFailed(f"{path}: {error.strerror}") from None
    return {name: int(value) for name, _, value in (line.partition(" ") for line in lines)}


@contextmanager
def groups(controllers: Set[Controller], nodes: int) -> Iterator[tuple[Group, ...]]:
    """A group for each of so many nodes with these controllers; they are gone after the block, and after `kill -9`."""
    found = parents(controllers)
    if not found:
        yield tuple(Group({}) for _ in range(nodes))
        return
    name = f"ingest-bench-{os.getpid()}-{secrets.token_hex(4)}"
    made = [
        Group({key: Parent(its.folder / f"{name}-{node}", its.version, its.own) for key, its in found.items()})
        for node in range(1, nodes + 1)
    ]
    folders = {place.folder: place.own for group in made for place in group.places.values()}
    with session(f"cgroups-{name}", "cgroups of a run", time_limit_s=LONGEST_LOAD_S, within=("mnt",)) as opened:
        opened.change([_making(folder, own) for folder, own in folders.items()])
        yield tuple(made)


def _making(folder: Path, own: Path) -> Step:
    path = str(folder)
    undo = Undo(action=Action(argv=("sh", "-c", _REMOVE, "sh", path, str(own))), exists=path)
    return Step(name=path, do=Action(argv=("mkdir", path)), undo=(undo,))


def require(controllers: Set[Controller]) -> None:
    """MissingCapability unless groups with these controllers can be made here; nothing is changed."""
    parents(controllers)


def capability() -> Capability:
    """Whether a node can have a cgroup of its own."""
    return tried(Trial(name="cgroups", attempt=_usable, remedy="Everything but the faults cpu and memory is as ever."))


def _usable() -> str:
    return ", ".join(f"{name} of version {place.version}" for name, place in parents(frozenset(_OF_BOTH)).items())


def parents(controllers: Set[Controller]) -> dict[Controller, Parent]:
    """Where a group with each of them can be made; MissingCapability where one cannot be.

    Of version 2 that is one place for all: a process is in no second cgroup.
    """
    wanted = [name for name in CONTROLLERS if name in controllers]
    if wanted and not system.is_root():
        raise MissingCapability(f"cgroups: only root may give a server its own for {wanted[0]}; run as root")
    mounts, memberships = _read("/proc/self/mountinfo"), _read("/proc/self/cgroup")
    found = {name: own(mounts, memberships, name) for name in wanted}
    of_version_2 = [name for name, place in found.items() if place.version == 2]
    for name, place in found.items():
        shown = _SHOWN_BY.get((name, place.version), "")
        if place.version == 2:
            found[name] = with_children(place, of_version_2)
        elif not (place.folder / shown).exists():
            raise MissingCapability(f"cgroups: this kernel has no {place.folder / shown}")
        if not os.access(found[name].folder, os.W_OK):
            raise MissingCapability(f"cgroups: {found[name].folder} is read-only here, as it is in a container")
    return found


def with_children(own: Parent, controllers: Sequence[Controller]) -> Parent:
    """The nearest one at or above whose children have all these controllers."""
    for folder in (own.folder, *own.folder.parents):
        if set(controllers) <= set(_read(folder / "cgroup.subtree_control").split()):
            return Parent(folder, 2, own.folder)
        if not (folder.parent / "cgroup.subtree_control").exists():
            break
    named, asked = " and ".join(controllers), " ".join(f"+{name}" for name in controllers)
    raise MissingCapability(
        f"cgroups: no cgroup at or above {own.folder} gives its children the controller {named}.\n"
        f'As root: echo "{asked}" > {folder}/cgroup.subtree_control'
    )


def own(mounts: str, memberships: str, controller: str) -> Parent:
    """Our own cgroup of that controller, from the texts of mountinfo and cgroup (man 5 proc, man 7 cgroups)."""
    for line in memberships.splitlines():
        number, controllers, path = line.split(":", 2)
        version: Literal[1, 2] = 2 if number == "0" else 1
        if controller in controllers.split(","):
            break
    else:
        path = next((line[3:] for line in memberships.splitlines() if line.startswith("0::")), "")
        version = 2
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        root, place = before.split()[3:5]
        kind, _, options = after.split(" ", 2)
        if kind != ("cgroup" if version == 1 else "cgroup2") or not PurePosixPath(path).is_relative_to(root):
            continue
        if version == 2 or controller in options.split(","):
            folder = Path(place) / PurePosixPath(path).relative_to(root)
            return Parent(folder, version, folder)
    raise MissingCapability(f"cgroups: the controller {controller} is not mounted here")


def _read(path: str | Path) -> str:
    """What stands there: a path in it may be of any bytes. Empty where it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""
