"""`memory`: a node has hardly more memory than it cannot give back: the kernel takes the files that it has read away.

The limit of a cgroup is what the node holds when it begins, without the pages of files, and `room` beside it. What it
cannot have it waits for until the end: no process of it is killed. Of several that last the smallest limit counts.
"""

from __future__ import annotations

from pathlib import Path

from ingest_bench.errors import RunFailed
from ingest_bench.faults import each
from ingest_bench.faults.kind import Begun, FaultKind
from ingest_bench.faults.stage import Node, Stage
from ingest_bench.host import cgroups
from ingest_bench.model.experiment import Fault
from ingest_bench.units import format_bytes

ROOM_BYTES = 16 << 20
_TRIES = 16
_STEP_BYTES = 8 << 20


def _begin(fault: Fault, stage: Stage) -> Begun:
    room_bytes = ROOM_BYTES if fault.room_bytes is None else fault.room_bytes
    return each.watched(fault, stage, lambda node: _limited(node, room_bytes))


def _limited(node: Node, room_bytes: int) -> each.End:
    group = node.resources.group
    assert group is not None, node.name  # noqa: S101 - this kind needs it
    place = group.places["memory"]
    held_bytes, files_bytes = _held(place)
    before = _reclaims(place)
    end = group.limit("memory", held_bytes + room_bytes, _set)

    def ended() -> str:
        stands = _stands_still(place)
        limit = place.folder / ("memory.limit_in_bytes" if place.version == 1 else "memory.high")
        limit_mb = int(limit.read_text(encoding="ascii")) / 1e6
        _, left_bytes = _held(place)
        end()
        hits = _reclaims(place) - before
        if not hits:
            raise RunFailed(
                f"memory: {node.name} was never at its limit; it held {format_bytes(held_bytes)} and "
                f"{format_bytes(files_bytes)} of files when that began. Give it less room"
            )
        told = f"at its limit of {limit_mb:.0f} MB {hits:,} times, of files it had "
        told += f"{files_bytes / 1e6:.0f} MB before and {left_bytes / 1e6:.0f} MB at the end"
        return told + ("; it stood still for want of memory" if stands else "")

    return ended


def _held(place: cgroups.Parent) -> tuple[int, int]:
    """What it holds that cannot be taken from it, and the pages of files, which can; in bytes."""
    stat = cgroups.numbers(place.folder / "memory.stat")
    usage = place.folder / ("memory.usage_in_bytes" if place.version == 1 else "memory.current")
    prefix = "total_" if place.version == 1 else ""
    files_bytes = stat[f"{prefix}inactive_file"] + stat[f"{prefix}active_file"]
    return max(0, int(usage.read_text(encoding="ascii")) - files_bytes), files_bytes


def _reclaims(place: cgroups.Parent) -> int:
    """How often it was at its limit, and the kernel had to take something away."""
    if place.version == 1:
        return int((place.folder / "memory.failcnt").read_text(encoding="ascii"))
    return cgroups.numbers(place.folder / "memory.events")["high"]


def _stands_still(place: cgroups.Parent) -> bool:
    """Whether a thread of it waits for memory that it cannot have."""
    return place.version == 1 and bool(cgroups.numbers(place.folder / "memory.oom_control")["under_oom"])


def _set(place: cgroups.Parent, most_bytes: float | None) -> None:
    """Version 1 kills at its limit unless told to wait; version 2 slows down above `memory.high`."""
    if place.version == 1:
        cgroups.put(place.folder / "memory.oom_control", 1)
        _set_limit(place.folder / "memory.limit_in_bytes", -1 if most_bytes is None else int(most_bytes))
    else:
        cgroups.put(place.folder / "memory.high", "max" if most_bytes is None else int(most_bytes))


def _set_limit(path: Path, most_bytes: int) -> None:
    """The kernel takes away what it must, and refuses a limit that it cannot get down to: then a little more is asked.

    What the files of a node take is known to two seconds (mm/memcontrol.c, FLUSH_TIME), and it reads on meanwhile.
    """
    for more in range(_TRIES):
        try:
            cgroups.put(path, most_bytes if most_bytes < 0 else most_bytes + more * _STEP_BYTES)
        except RunFailed:
            if more == _TRIES - 1:
                raise
        else:
            return


MEMORY = FaultKind(
    hits="node", begin=_begin, lasts=True, takes=frozenset({"room_bytes"}), needs=lambda _: frozenset({"memory"})
)
