"""Fault `cpu`: give a node a CPU quota, or busy neighbours on its CPUs.

With `cores`, its threads stop for the rest of each period of 100 ms (the quota of a cgroup, as in containers). If
several quotas overlap, the smallest applies. With `neighbours`, that many busy processes run on its CPUs and its
threads queue behind them. The neighbours of several faults add up.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack

from ingest_bench.errors import RunFailed
from ingest_bench.faults.apply import begin_on_nodes
from ingest_bench.faults.kind import ActiveFault, FaultKind, Node, Stage
from ingest_bench.host import cgroups, cpu
from ingest_bench.model.experiment import Cell, Fault

# The default of containers (Documentation/scheduler/sched-bwc.rst).
_PERIOD_US = 100_000


def _find_error(cell: Cell, fault: Fault) -> str:
    del cell
    if fault.cores is None:
        return "requires cores = 0.5, or neighbours = 2" if fault.neighbours is None else ""
    return "" if fault.neighbours is None else "cores cannot be combined with neighbours. Let two faults overlap."


def _begin(fault: Fault, stage: Stage) -> ActiveFault:
    begin = _limit_cores if fault.neighbours is None else _add_neighbours
    return begin_on_nodes(fault, stage, lambda node: begin(fault, node))


def _limit_cores(fault: Fault, node: Node) -> ActiveFault:
    cores = fault.cores
    assert cores is not None  # noqa: S101 - `_find_error` refused it
    assert node.resources.cgroups is not None, node.name  # noqa: S101 - see `needs` below
    stat = node.resources.cgroups.by_controller["cpu"].folder / "cpu.stat"
    before, start_s = cgroups.read_counters(stat), time.monotonic()
    end_limit = node.resources.cgroups.limit("cpu", cores, _write_quota)

    def end() -> str:
        end_limit()
        after = cgroups.read_counters(stat)
        throttled_periods = after["nr_throttled"] - before["nr_throttled"]
        if not throttled_periods:
            raise RunFailed(
                f"cpu: {node.name} never wanted more than {cores:g} cores within {time.monotonic() - start_s:.1f} s. "
                "Give it fewer cores, or more load."
            )
        # Version 1 counts nanoseconds, version 2 microseconds.
        name, per_s = ("throttled_time", 1e9) if "throttled_time" in after else ("throttled_usec", 1e6)
        throttled_s = (after[name] - before[name]) / per_s
        periods = after["nr_periods"] - before["nr_periods"]
        return f"throttled in {throttled_periods} of {periods} periods of 100 ms, its CPUs {throttled_s:.2f} s in total"

    return ActiveFault(end_fault=end)


def _write_quota(cgroup: cgroups.Cgroup, cores: float | None) -> None:
    quota_us = None if cores is None else round(cores * _PERIOD_US)
    if cgroup.version == 1:
        if quota_us is not None:
            cgroups.write_file(cgroup.folder / "cpu.cfs_period_us", _PERIOD_US)
        cgroups.write_file(cgroup.folder / "cpu.cfs_quota_us", -1 if quota_us is None else quota_us)
    else:
        cgroups.write_file(cgroup.folder / "cpu.max", f"{'max' if quota_us is None else quota_us} {_PERIOD_US}")


def _add_neighbours(fault: Fault, node: Node) -> ActiveFault:
    count = fault.neighbours
    assert count is not None  # noqa: S101 - see `_begin`
    # A node that is down will be restarted on our CPUs.
    pid = None if node.is_down else node.process.jvm_pid
    with ExitStack() as stack:
        neighbours = stack.enter_context(cpu.start_neighbours(count, pid or os.getpid()))
        start_s, delay_before = time.monotonic(), None if pid is None else cpu.compute_mean_run_delay(pid)
        delays_before_ns = {} if pid is None else cpu.read_run_delays_ns(pid)
        running = stack.pop_all()

    def end() -> str:
        with running:
            duration_s = time.monotonic() - start_s
            neighbours_s = sum(map(cpu.read_cpu_s, neighbours))
            present_pid = None if node.is_down else node.process.jvm_pid
            delays_after_ns = {} if present_pid is None else cpu.read_run_delays_ns(present_pid)
        waited_s = cpu.sum_added_delays_s(delays_before_ns if present_pid == pid else {}, delays_after_ns)
        if not waited_s:
            raise RunFailed(
                f"cpu: {node.name} never waited for a CPU within {duration_s:.1f} s next to {count} busy neighbours. "
                "Give it more neighbours, or more load."
            )
        earlier = "" if delay_before is None else f", and {delay_before:.3f} s before"
        return (
            f"{count} neighbours used {neighbours_s:.2f} s of CPU within {duration_s:.1f} s; its threads waited "
            f"{waited_s / duration_s:.3f} s for a CPU in each second{earlier}"
        )

    return ActiveFault(end_fault=end)


CPU = FaultKind(
    scope="node",
    begin=_begin,
    keys=frozenset({"cores", "neighbours"}),
    find_error=_find_error,
    needs=lambda fault: frozenset({"cpu"} if fault.cores is not None else ()),
)
