"""`cpu`: a node has no more than so many cores: its threads stand still for the rest of each period of 100 ms.

It is the quota of a cgroup, as containers have it. Of several that last the smallest counts.
"""

from __future__ import annotations

import time

from ingest_bench.errors import RunFailed
from ingest_bench.faults import each
from ingest_bench.faults.kind import Begun, FaultKind
from ingest_bench.faults.stage import Node, Stage
from ingest_bench.host import cgroups
from ingest_bench.model.experiment import Cell, Fault

# As containers have it (Documentation/scheduler/sched-bwc.rst).
_PERIOD_US = 100_000


def _complaint(cell: Cell, fault: Fault) -> str:
    del cell
    return "" if fault.cores is not None else "how many may it have? Add cores = 0.5"


def _begin(fault: Fault, stage: Stage) -> Begun:
    assert fault.cores is not None  # noqa: S101 - `_complaint` refused it
    cores = fault.cores
    return each.watched(fault, stage, lambda node: _limited(node, cores))


def _limited(node: Node, cores: float) -> each.End:
    group = node.share.group
    assert group is not None, node.name  # noqa: S101 - this kind needs it
    place = group.places["cpu"]
    before = cgroups.numbers(place.folder / "cpu.stat")
    began, end = time.monotonic(), group.limit("cpu", cores, _set)

    def ended() -> str:
        end()
        after = cgroups.numbers(place.folder / "cpu.stat")
        held = after["nr_throttled"] - before["nr_throttled"]
        if not held:
            raise RunFailed(
                f"cpu: {node.name} never wanted more than {cores:g} cores within {time.monotonic() - began:.1f} s; "
                "give it fewer, or more load"
            )
        waited_s = _throttled_s(after) - _throttled_s(before)
        periods = after["nr_periods"] - before["nr_periods"]
        return f"held back in {held} of {periods} periods of 100 ms, its CPUs for {waited_s:.2f} s together"

    return ended


def _throttled_s(counts: dict[str, int]) -> float:
    """Version 1 has nanoseconds, version 2 microseconds."""
    return counts["throttled_time"] / 1e9 if "throttled_time" in counts else counts["throttled_usec"] / 1e6


def _set(place: cgroups.Parent, cores: float | None) -> None:
    quota_us = None if cores is None else round(cores * _PERIOD_US)
    if place.version == 1:
        if quota_us is not None:
            cgroups.put(place.folder / "cpu.cfs_period_us", _PERIOD_US)
        cgroups.put(place.folder / "cpu.cfs_quota_us", -1 if quota_us is None else quota_us)
    else:
        cgroups.put(place.folder / "cpu.max", f"{'max' if quota_us is None else quota_us} {_PERIOD_US}")


CPU = FaultKind(
    hits="node", begin=_begin, lasts=True, takes=frozenset({"cores"}), complaint=_complaint, needs=frozenset({"cpu"})
)
