"""Fault `memory`: limit a node's memory, so that the kernel reclaims its page cache.

The limit of a cgroup is the memory that the node uses at the begin, without pages of files, plus `headroom`. A node
that needs more waits until the end: none of its processes is killed. If several limits overlap, the lowest applies.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from ingest_bench.errors import RunFailed
from ingest_bench.faults.apply import begin_on_nodes
from ingest_bench.faults.kind import ActiveFault, FaultKind, Node
from ingest_bench.host import cgroups
from ingest_bench.model.experiment import Fault
from ingest_bench.units import format_bytes

DEFAULT_HEADROOM_BYTES = 16 << 20
_TRIES = 16
_STEP_BYTES = 8 << 20


def _limit_memory(fault: Fault, node: Node) -> ActiveFault:
    headroom_bytes = DEFAULT_HEADROOM_BYTES if fault.headroom_bytes is None else fault.headroom_bytes
    assert node.resources.cgroups is not None, node.name  # noqa: S101 - see `needs` below
    cgroup = node.resources.cgroups.by_controller["memory"]
    used_bytes, cache_bytes = _read_usage(cgroup)
    reclaims_before = _count_reclaims(cgroup)
    end_limit = node.resources.cgroups.limit("memory", used_bytes + headroom_bytes, _write_limit)

    def end() -> str:
        is_stopped = cgroup.version == 1 and cgroups.read_counters(cgroup.folder / "memory.oom_control")["under_oom"]
        limit = cgroup.folder / ("memory.limit_in_bytes" if cgroup.version == 1 else "memory.high")
        limit_mb = int(limit.read_text(encoding="ascii")) / 1e6
        _, cache_left_bytes = _read_usage(cgroup)
        end_limit()
        reclaims = _count_reclaims(cgroup) - reclaims_before
        if not reclaims:
            raise RunFailed(
                f"memory: {node.name} never reached its limit. At the begin it used {format_bytes(used_bytes)} and "
                f"{format_bytes(cache_bytes)} of page cache. Give it less headroom."
            )
        text = f"reached its limit of {limit_mb:.0f} MB {reclaims:,} times; its page cache fell from "
        text += f"{cache_bytes / 1e6:.0f} MB to {cache_left_bytes / 1e6:.0f} MB"
        return text + ("; at the end a thread waited for memory" if is_stopped else "")

    return ActiveFault(end_fault=end)


def _read_usage(cgroup: cgroups.Cgroup) -> tuple[int, int]:
    """Return the bytes that cannot be reclaimed, and those of the page cache."""
    stat = cgroups.read_counters(cgroup.folder / "memory.stat")
    usage = cgroup.folder / ("memory.usage_in_bytes" if cgroup.version == 1 else "memory.current")
    prefix = "total_" if cgroup.version == 1 else ""
    cache_bytes = stat[f"{prefix}inactive_file"] + stat[f"{prefix}active_file"]
    return max(0, int(usage.read_text(encoding="ascii")) - cache_bytes), cache_bytes


def _count_reclaims(cgroup: cgroups.Cgroup) -> int:
    """Return how often the cgroup reached its limit, so that the kernel reclaimed memory."""
    if cgroup.version == 1:
        return int((cgroup.folder / "memory.failcnt").read_text(encoding="ascii"))
    return cgroups.read_counters(cgroup.folder / "memory.events")["high"]


def _write_limit(cgroup: cgroups.Cgroup, max_bytes: float | None) -> None:
    """Write the limit. Version 1 kills at it unless the OOM killer is off; version 2 throttles above `memory.high`."""
    if cgroup.version == 1:
        cgroups.write_file(cgroup.folder / "memory.oom_control", 1)
        _write_version_1_limit(cgroup.folder / "memory.limit_in_bytes", -1 if max_bytes is None else int(max_bytes))
    else:
        cgroups.write_file(cgroup.folder / "memory.high", "max" if max_bytes is None else int(max_bytes))


def _write_version_1_limit(path: Path, max_bytes: int) -> None:
    """Write the limit, in steps of 8 MiB higher if the kernel cannot reclaim enough and rejects it.

    The page cache's size is known to two seconds (mm/memcontrol.c, FLUSH_TIME), and the node reads on meanwhile.
    """
    for attempt in range(_TRIES):
        try:
            cgroups.write_file(path, max_bytes if max_bytes < 0 else max_bytes + attempt * _STEP_BYTES)
        except RunFailed:
            if attempt == _TRIES - 1:
                raise
        else:
            return


MEMORY = FaultKind(
    scope="node",
    begin=lambda fault, stage: begin_on_nodes(fault, stage, partial(_limit_memory, fault)),
    keys=frozenset({"headroom_bytes"}),
    needs=lambda _: frozenset({"memory"}),
)
