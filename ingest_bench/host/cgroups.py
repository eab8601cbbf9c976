"""Cgroups of nodes, versions 1 and 2: limits of CPU and memory, and of the reads and writes of a volume.

A server starts inside its cgroup: memory is charged where it was first touched, and a restarted server keeps the active
limits. The folders are made below our own cgroup, whose limits still apply, and removed through the ledger.

Limits of reads and writes (bytes or operations per second) act before the queue of the volume's loop device, so that
writeback waits there like direct writes.

| version | where the limits are | reason |
|---|---|---|
| 1 | in blkio's root, where the node then runs | children inherit no limits; writeback is charged to the root |
| 2 | in the node's own group | the kernel charges it writeback, but not the file system's journal |

A limit outlives its device. It is undone before the mount, by the same session of the ledger.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar, get_args

from ingest_bench import system
from ingest_bench.errors import MissingCapability, RunFailed, undo_on_error
from ingest_bench.host import volume as volumes
from ingest_bench.host.cgroup_files import Cgroup, find_cgroup, find_process_cgroup
from ingest_bench.host.volume import Volume
from ingest_bench.ledger.steps import Action, Step, Undo
from ingest_bench.ledger.watchdog import open_session
from ingest_bench.model.load import MAX_LOAD_S

T = TypeVar("T")
Controller = Literal["cpu", "memory", "io"]
CONTROLLERS: tuple[Controller, ...] = get_args(Controller)
# A file that exists only if the controller accepts limits in version 1. There is no such file for io: see `IoThrottle`.
_VERSION_1_FILES: Mapping[Controller, str] = {"cpu": "cpu.cfs_quota_us", "memory": "memory.limit_in_bytes"}
# Arguments: the process list of each folder, "in", the command. Writing 0 moves the writer.
_JOIN = 'while [ "$1" != in ]; do echo 0 > "$1" || exit 1; shift; done; shift; exec "$@"'
# A killed process leaves its cgroup within a moment; a surviving one is moved back to where it came from.
_REMOVE = """tries=0
while [ -d "$1" ]; do
  while read -r pid; do echo "$pid" > "$2/cgroup.procs"; done < "$1/cgroup.procs"
  rmdir "$1" && exit
  tries=$((tries + 1))
  [ "$tries" -lt 20 ] || exit 1
  sleep 0.1
done
"""

IoLimit = Literal["bytes", "operations"]
# For reads and for writes (block/blk-throttle.c): the file of version 1, and the key of io.max of version 2.
_IO_LIMITS: tuple[tuple[IoLimit, str, str], ...] = (
    ("bytes", "blkio.throttle.read_bps_device", "rbps"),
    ("bytes", "blkio.throttle.write_bps_device", "wbps"),
    ("operations", "blkio.throttle.read_iops_device", "riops"),
    ("operations", "blkio.throttle.write_iops_device", "wiops"),
)


def add_limit(lock: threading.RLock, active: list[T], limit: T, apply: Callable[[], None]) -> Callable[[], None]:
    """Add a limit to the active ones and call `apply`; return the function that ends it and calls `apply` again."""

    def end() -> None:
        with lock:
            active.remove(limit)
            apply()

    with lock, undo_on_error(end):
        active.append(limit)
        apply()
    return end


@dataclass(slots=True)
class NodeCgroups:
    """The cgroups of one node, with the active limits. If several limits overlap, the lowest applies."""

    by_controller: Mapping[Controller, Cgroup]
    limits: dict[Controller, list[float]] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def wrap(self, argv: Sequence[str]) -> tuple[str, ...]:
        """Return the argv that runs *argv* inside; requires root."""
        return wrap_in_cgroups([cgroup.folder for cgroup in self.by_controller.values()], argv)

    def limit(
        self, controller: Controller, maximum: float, write: Callable[[Cgroup, float | None], None]
    ) -> Callable[[], None]:
        """Add a limit and return the function that ends it. `write(cgroup, None)` must remove the limit."""
        active, cgroup = self.limits.setdefault(controller, []), self.by_controller[controller]
        return add_limit(self.lock, active, maximum, lambda: write(cgroup, min(active, default=None)))


def wrap_in_cgroups(folders: Sequence[Path], argv: Sequence[str]) -> tuple[str, ...]:
    """Return the argv that runs *argv* inside the cgroups of these folders."""
    return ("sh", "-c", _JOIN, "sh", *dict.fromkeys(str(folder / "cgroup.procs") for folder in folders), "in", *argv)


def write_file(path: Path, value: object) -> None:
    """Write a value to a file of a cgroup; raise RunFailed if the kernel rejects it."""
    try:
        path.write_text(str(value), encoding="ascii")
    except OSError as error:
        raise RunFailed(f"{path}: {value} was rejected: {error.strerror}") from None


@contextmanager
def create_node_cgroups(controllers: Set[Controller], nodes: int) -> Iterator[tuple[NodeCgroups, ...]]:
    """Create cgroups with these controllers for *nodes* nodes. They are removed after the block and after `kill -9`."""
    parents = find_parents(controllers)
    if not parents:
        yield tuple(NodeCgroups({}) for _ in range(nodes))
        return
    name = f"ingest-bench-{os.getpid()}-{secrets.token_hex(4)}"
    cgroups = [
        NodeCgroups(
            {
                controller: Cgroup(parent.folder / f"{name}-{node}", parent.version, parent.own_folder)
                for controller, parent in parents.items()
            }
        )
        for node in range(1, nodes + 1)
    ]
    own_folders = {cgroup.folder: cgroup.own_folder for node in cgroups for cgroup in node.by_controller.values()}
    with open_session(
        f"cgroups-{name}", "cgroups of a run", time_limit_s=MAX_LOAD_S, namespace_kinds=("mnt",)
    ) as session:
        for folder, own_folder in own_folders.items():
            path = str(folder)
            remove = Action(argv=("sh", "-c", _REMOVE, "sh", path, str(own_folder)))
            undo = Undo(action=remove, existing_path=path)
            session.apply((Step(name=path, action=Action(argv=("mkdir", path)), undo=(undo,)),))
        yield tuple(cgroups)


def find_parents(controllers: Set[Controller]) -> dict[Controller, Cgroup]:
    """Return for each controller where a cgroup can be created; raise MissingCapability if it cannot.

    In version 2 that is one place for all, because a process is in one cgroup only. Nothing is changed.
    """
    wanted = [name for name in CONTROLLERS if name in controllers]
    if wanted and not system.is_root():
        raise MissingCapability(f"cgroups: only root can give a server its own cgroup for {wanted[0]}. Run as root.")
    parents = {name: find_process_cgroup("self", name) for name in wanted}
    version_2 = [name for name, cgroup in parents.items() if cgroup.version == 2]
    for name, cgroup in parents.items():
        version_1_file = cgroup.folder / _VERSION_1_FILES.get(name, "")
        if cgroup.version == 2:
            parents[name] = find_delegating_parent(cgroup, version_2)
        elif not version_1_file.exists():
            raise MissingCapability(f"cgroups: this kernel has no {version_1_file}")
        if not os.access(parents[name].folder, os.W_OK):
            raise MissingCapability(f"cgroups: {parents[name].folder} is read-only, as in a container")
    return parents


def find_delegating_parent(own: Cgroup, controllers: Sequence[Controller]) -> Cgroup:
    """Return the nearest cgroup at or above *own* whose children have all these controllers."""
    for folder in (own.folder, *own.folder.parents):
        if set(controllers) <= set((system.read_text(folder / "cgroup.subtree_control") or "").split()):
            return Cgroup(folder, 2, own.folder)
        if not (folder.parent / "cgroup.subtree_control").exists():
            break
    names, command = " and ".join(controllers), " ".join(f"+{name}" for name in controllers)
    raise MissingCapability(
        f"cgroups: no cgroup at or above {own.folder} gives its children the controller {names}.\n"
        f'As root: echo "{command}" > {folder}/cgroup.subtree_control'
    )


@dataclass(slots=True)
class IoThrottle:
    """Limits of the reads and writes of one volume. If several limits overlap, the lowest of each kind applies."""

    device: str
    """As the kernel writes it: "7:0"."""
    cgroup: Cgroup
    active: list[Mapping[IoLimit, int]] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def wrap(self, argv: Sequence[str]) -> tuple[str, ...]:
        """Return the argv that runs *argv* in the cgroup that has the limits."""
        return wrap_in_cgroups((self.cgroup.folder,), argv) if self.cgroup.version == 1 else tuple(argv)

    def limit(self, max_per_s: Mapping[IoLimit, int]) -> Callable[[], None]:
        """Limit the reads per second, and also the writes; return the function that ends it."""
        return add_limit(self.lock, self.active, max_per_s, self._write)

    def _write(self) -> None:
        lowest: dict[IoLimit, int] = {}
        for limit, maximum in (item for active in self.active for item in active.items()):
            lowest[limit] = min(maximum, lowest.get(limit, maximum))
        if self.cgroup.version == 2:
            write_file(self.cgroup.folder / "io.max", f"{self.device} {_format_io_max(lowest)}")
        else:
            for limit, name, _ in _IO_LIMITS:
                write_file(self.cgroup.folder / name, f"{self.device} {lowest.get(limit, 0)}")


def create_io_throttle(volume: Volume, cgroups: NodeCgroups | None) -> IoThrottle:
    """Return the throttle of a volume, without limits yet. Its limits are removed before the volume is."""
    if cgroups is not None and "io" in cgroups.by_controller:
        # Limits vanish with their cgroup, but requests that wait because of them do not (Linux 6.1).
        cgroup = cgroups.by_controller["io"]
        path, unlimited = cgroup.folder / "io.max", _format_io_max({})
        steps = [_make_limit_step(volume.device, path, unlimited, unlimited, existing_path=path)]
    else:
        # Another program may have a limit for a device of that number: it is restored at the end.
        cgroup = _find_blkio_root()
        device = Path(f"/sys/dev/block/{volume.device}")
        steps = []
        for path in [cgroup.folder / name for _, name, _ in _IO_LIMITS]:
            limits = dict(line.split() for line in path.read_text(encoding="ascii").splitlines())
            old_value = limits.get(volume.device, "0")
            steps.append(_make_limit_step(volume.device, path, "0", old_value, existing_path=device))
    volume.session.apply(steps)
    return IoThrottle(volume.device, cgroup)


def _make_limit_step(device: str, path: Path, value: str, old_value: str, *, existing_path: Path) -> Step:
    """Return a step of commands, not of a file's value: other programs write limits of other devices to the file."""
    write, undo_write = (
        Action(argv=("sh", "-c", 'echo "$1" > "$2"', "sh", f"{device} {text}", str(path)))
        for text in (value, old_value)
    )
    undo = Undo(action=undo_write, existing_path=str(existing_path))
    return Step(name=f"{path.name} of {device}", action=write, undo=(undo,))


def _format_io_max(max_per_s: Mapping[IoLimit, int]) -> str:
    """Return the limits as version 2 writes them, without the device."""
    return " ".join(f"{key}={max_per_s.get(limit, 'max')}" for limit, _, key in _IO_LIMITS)


def io_controllers() -> frozenset[Controller]:
    """Return the controllers that a node's cgroup needs for an IoThrottle: none in version 1.

    In version 2 writeback is charged to a node only if its cgroup has io and memory.
    """
    return frozenset() if _is_blkio_version_1() else frozenset({"io", "memory"})


def require_io_throttle() -> str:
    """Return how reads and writes are limited here; MissingCapability if they cannot be. Nothing is changed."""
    volumes.require_volume()
    if _is_blkio_version_1():
        _find_blkio_root()
        return "limits of blkio, version 1"
    find_parents(io_controllers())
    return "limits of io, version 2"


def _is_blkio_version_1() -> bool:
    memberships = system.read_text("/proc/self/cgroup") or ""
    return any("blkio" in line.split(":", 2)[1].split(",") for line in memberships.splitlines())


def _find_blkio_root() -> Cgroup:
    """Return the root group of blkio, of version 1."""
    if not system.is_root():
        raise MissingCapability("throttle: only root can limit a disk. Run as root.")
    root = find_cgroup(system.read_text("/proc/self/mountinfo") or "", "1:blkio:/", "blkio")
    # Only the root has this file: in a container our own group may look like the root (cgroup_namespaces(7)).
    if not (root.folder / "release_agent").exists():
        raise MissingCapability(
            f"throttle: {root.folder} is not the root of the controller blkio, as in a container. Only limits in the "
            "root apply to writeback."
        )
    for _, name, _ in _IO_LIMITS:
        if not os.access(root.folder / name, os.W_OK):
            raise MissingCapability(f"throttle: {root.folder / name} is missing or read-only")
    return root


def require_cgroups() -> str:
    """Return the versions of a node's cgroups here; MissingCapability if it cannot have its own. Nothing is changed."""
    parents = find_parents(frozenset({"cpu", "memory"}))
    return ", ".join(f"{name} of version {cgroup.version}" for name, cgroup in parents.items())
