"""`cpu`: a node has no more than so many cores, or busy neighbours on those that it has.

With `cores` its threads stand still for the rest of each period of 100 ms: the quota of a cgroup, as containers have
it. Of several that last the smallest counts. With `neighbours` that many busy processes run on its CPUs, and its
threads wait in the queue behind them. Those of several are all there.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack

from ingest_bench.errors import RunFailed
from ingest_bench.faults import each
from ingest_bench.faults.kind import Begun, FaultKind
from ingest_bench.faults.stage import Node, Stage
from ingest_bench.host import cgroups, neighbours
from ingest_bench.model.experiment import Cell, Fault

# As containers have it (Documentation/scheduler/sched-bwc.rst).
_PERIOD_US = 100_000


def _complaint(cell: Cell, fault: Fault) -> str:
    del cell
    if fault.cores is None and fault.neighbours is None:
        return "how many may it have? Add cores = 0.5, or neighbours = 2 that want them too"
    if fault.cores is not None and fault.neighbours is not None:
        return "it has cores or neighbours; for both let two faults overlap"
    return ""


def _begin(fault: Fault, stage: Stage) -> Begun:
    if fault.neighbours is not None:
        count = fault.neighbours
        return each.watched(fault, stage, lambda node: _beside(node, count))
    assert fault.cores is not None  # noqa: S101 - `_complaint` refused it
    cores = fault.cores
    return each.watched(fault, stage, lambda node: _limited(node, cores))


def _limited(node: Node, cores: float) -> each.End:
    group = node.resources.group
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


def _beside(node: Node, count: int) -> each.End:
    """A node that is down has our CPUs: it will be started on them."""
    pid = None if node.is_down else node.process.jvm_pid
    with ExitStack() as stack:
        children = stack.enter_context(neighbours.busy(count, pid or os.getpid()))
        began, a_second = time.monotonic(), None if pid is None else neighbours.waited_a_second(pid)
        before = {} if pid is None else neighbours.waited_ns(pid)
        kept = stack.pop_all()

    def ended() -> str:
        with kept:
            lasted_s = time.monotonic() - began
            had_s = sum(map(neighbours.ran_s, children))
            now = None if node.is_down else node.process.jvm_pid
            after = {} if now is None else neighbours.waited_ns(now)
        waited_s = neighbours.more_s(before if now == pid else {}, after)
        if not waited_s:
            raise RunFailed(
                f"cpu: {node.name} never waited for a CPU within {lasted_s:.1f} s beside {count} busy neighbours; give "
                "it more of them, or more load"
            )
        earlier = "" if a_second is None else f", and {a_second:.3f} s before"
        return (
            f"{count} neighbours had {had_s:.2f} s of CPU within {lasted_s:.1f} s; its threads waited "
            f"{waited_s / lasted_s:.3f} s for a CPU in each second{earlier}"
        )

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
    hits="node",
    begin=_begin,
    lasts=True,
    takes=frozenset({"cores", "neighbours"}),
    complaint=_complaint,
    needs=lambda fault: frozenset({"cpu"} if fault.cores is not None else ()),
)
