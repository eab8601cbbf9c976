"""Find the cgroup of a process, version 1 or 2, and read its memory. Imports little: probe `host` starts with it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Literal

from ingest_bench import system
from ingest_bench.errors import MissingCapability, RunFailed

# Version 1 writes a number near 2**63 for no limit, version 2 writes "max".
_NO_LIMIT_BYTES = 1 << 60


@dataclass(frozen=True, slots=True)
class Cgroup:
    """A folder of the cgroup file system."""

    folder: Path
    version: Literal[1, 2]
    own_folder: Path
    """The process's own cgroup. In version 2 it differs from a parent of cgroups, which has no processes itself."""


def find_cgroup(mounts: str, memberships: str, controller: str) -> Cgroup:
    """Return a process's cgroup of a controller, from the texts of mountinfo and cgroup (man 5 proc, man 7 cgroups).

    MissingCapability if it is not mounted here.
    """
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
        root, mount_point = before.split()[3:5]
        kind, _, options = after.split(" ", 2)
        if kind != ("cgroup" if version == 1 else "cgroup2") or not PurePosixPath(path).is_relative_to(root):
            continue
        # Of a process outside of our cgroup namespace.
        if ".." not in PurePosixPath(path).parts and (version == 2 or controller in options.split(",")):
            folder = Path(mount_point) / PurePosixPath(path).relative_to(root)
            return Cgroup(folder, version, folder)
    raise MissingCapability(f"cgroups: the controller {controller} is not mounted here")


def find_process_cgroup(pid: int | Literal["self"], controller: str) -> Cgroup:
    """Return a process's cgroup of a controller; MissingCapability if it is not mounted here."""
    memberships = system.read_text(f"/proc/{pid}/cgroup") or ""
    return find_cgroup(system.read_text("/proc/self/mountinfo") or "", memberships, controller)


def read_counters(path: Path) -> dict[str, int]:
    """Return the counters in a file of a cgroup: lines of a name and a number."""
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except OSError as error:
        raise RunFailed(f"{path}: {error.strerror}") from None
    return {name: int(value) for name, _, value in (line.partition(" ") for line in lines)}


def read_memory_bytes(cgroup: Cgroup) -> int:
    """Return the memory of a cgroup other than the root, page cache included."""
    usage = cgroup.folder / ("memory.usage_in_bytes" if cgroup.version == 1 else "memory.current")
    return int(usage.read_text(encoding="ascii"))


def read_usage(cgroup: Cgroup) -> tuple[int, int]:
    """Return the bytes that cannot be reclaimed, and those of the page cache."""
    stat = read_counters(cgroup.folder / "memory.stat")
    prefix = "total_" if cgroup.version == 1 else ""
    cache_bytes = stat[f"{prefix}inactive_file"] + stat[f"{prefix}active_file"]
    return max(0, read_memory_bytes(cgroup) - cache_bytes), cache_bytes


def read_sock_bytes(cgroup: Cgroup) -> int | None:
    """Return the memory of its sockets' buffers; None if the kernel does not count it here.

    Version 1 counts that of TCP, once `memory.kmem.tcp.limit_in_bytes` was written. Version 2 does not count it in the
    root.
    """
    if cgroup.version == 1:
        usage = system.read_text(cgroup.folder / "memory.kmem.tcp.usage_in_bytes")
        was_counted = int(system.read_text(cgroup.folder / "memory.kmem.tcp.max_usage_in_bytes") or 0) > 0
        return int(usage) if usage is not None and was_counted else None
    if system.read_text(cgroup.folder / "memory.current") is None:
        return None
    return read_counters(cgroup.folder / "memory.stat").get("sock")


def read_headroom(cgroup: Cgroup) -> int | None:
    """Return the bytes left below the nearest limit of this cgroup and those around it; None without a limit.

    The page cache counts as free: the kernel reclaims it first.
    """
    return min(_headrooms(cgroup), default=None)


def _headrooms(cgroup: Cgroup) -> Iterator[int]:
    name = "memory.limit_in_bytes" if cgroup.version == 1 else "memory.max"
    for folder in (cgroup.folder, *cgroup.folder.parents):
        if (limit := system.read_text(folder / name)) is None:
            return
        if limit != "max" and int(limit) < _NO_LIMIT_BYTES:
            yield int(limit) - read_usage(replace(cgroup, folder=folder))[0]
