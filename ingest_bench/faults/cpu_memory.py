"""Faults of CPU and memory: `cpu`, `memory` and `fragmented-memory`.

`cpu` with `cores`: the threads of a node stop for the rest of each period of 100 ms (the quota of a cgroup, as in
containers). If several quotas overlap, the smallest applies. With `neighbours`, that many busy processes run on its
CPUs and its threads queue behind them. The neighbours of several faults add up.

`memory` limits a node's memory, so that the kernel reclaims its page cache. The limit of a cgroup is the memory that
the node uses at the begin, without pages of files, plus `headroom`. A node that needs more waits until the end: none of
its processes is killed. If several limits overlap, the lowest applies.

`fragmented-memory` splits much of the machine's free memory into single pages. A huge page then requires compaction.
The fault has begun when the memory is split, which takes as long as touching it; its effect says how long.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from ingest_bench import system
from ingest_bench.errors import RunFailed
from ingest_bench.faults.apply import begin_on_nodes
from ingest_bench.faults.kind import ActiveFault, FaultKind, Node, Stage
from ingest_bench.host import cgroup_files, cgroups, cpu, fragments
from ingest_bench.model.experiment import Cell, Fault
from ingest_bench.units import format_bytes

# The default of containers (Documentation/scheduler/sched-bwc.rst).
_PERIOD_US = 100_000


def _find_cpu_error(cell: Cell, fault: Fault) -> str:
    del cell
    if fault.cores is None:
        return "requires cores = 0.5, or neighbours = 2" if fault.neighbours is None else ""
    return "" if fault.neighbours is None else "cores cannot be combined with neighbours. Let two faults overlap."


def _begin_cpu(fault: Fault, stage: Stage) -> ActiveFault:
    begin = _limit_cores if fault.neighbours is None else _add_neighbours
    return begin_on_nodes(fault, stage, lambda node: begin(fault, node))


def _limit_cores(fault: Fault, node: Node) -> ActiveFault:
    cores = fault.cores
    assert cores is not None  # noqa: S101 - `_find_cpu_error` refused it
    assert node.resources.cgroups is not None, node.name  # noqa: S101 - see `needs` below
    stat = node.resources.cgroups.by_controller["cpu"].folder / "cpu.stat"
    before, start_s = cgroup_files.read_counters(stat), time.monotonic()
    end_limit = node.resources.cgroups.limit("cpu", cores, _write_quota)

    def end() -> str:
        end_limit()
        after = cgroup_files.read_counters(stat)
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


def _write_quota(cgroup: cgroup_files.Cgroup, cores: float | None) -> None:
    quota_us = None if cores is None else round(cores * _PERIOD_US)
    if cgroup.version == 1:
        if quota_us is not None:
            cgroups.write_file(cgroup.folder / "cpu.cfs_period_us", _PERIOD_US)
        cgroups.write_file(cgroup.folder / "cpu.cfs_quota_us", -1 if quota_us is None else quota_us)
    else:
        cgroups.write_file(cgroup.folder / "cpu.max", f"{'max' if quota_us is None else quota_us} {_PERIOD_US}")


def _add_neighbours(fault: Fault, node: Node) -> ActiveFault:
    count = fault.neighbours
    assert count is not None  # noqa: S101 - see `_begin_cpu`
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
    begin=_begin_cpu,
    keys=frozenset({"cores", "neighbours"}),
    find_error=_find_cpu_error,
    needs=lambda fault: frozenset({"cpu"} if fault.cores is not None else ()),
)

_DEFAULT_HEADROOM_BYTES = 16 << 20
_LIMIT_TRIES = 16
_LIMIT_STEP_BYTES = 8 << 20


def _limit_memory(fault: Fault, node: Node) -> ActiveFault:
    headroom_bytes = _DEFAULT_HEADROOM_BYTES if fault.headroom_bytes is None else fault.headroom_bytes
    assert node.resources.cgroups is not None, node.name  # noqa: S101 - see `needs` below
    cgroup = node.resources.cgroups.by_controller["memory"]
    used_bytes, cache_bytes = cgroup_files.read_usage(cgroup)
    reclaims_before = _count_reclaims(cgroup)
    end_limit = node.resources.cgroups.limit("memory", used_bytes + headroom_bytes, _write_limit)

    def end() -> str:
        control = cgroup.folder / "memory.oom_control"
        is_stopped = cgroup.version == 1 and cgroup_files.read_counters(control)["under_oom"]
        limit = cgroup.folder / ("memory.limit_in_bytes" if cgroup.version == 1 else "memory.high")
        limit_mb = int(limit.read_text(encoding="ascii")) / 1e6
        _, cache_left_bytes = cgroup_files.read_usage(cgroup)
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


def _count_reclaims(cgroup: cgroup_files.Cgroup) -> int:
    """Return how often the cgroup reached its limit, so that the kernel reclaimed memory."""
    if cgroup.version == 1:
        return int((cgroup.folder / "memory.failcnt").read_text(encoding="ascii"))
    return cgroup_files.read_counters(cgroup.folder / "memory.events")["high"]


def _write_limit(cgroup: cgroup_files.Cgroup, max_bytes: float | None) -> None:
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
    for attempt in range(_LIMIT_TRIES):
        try:
            cgroups.write_file(path, max_bytes if max_bytes < 0 else max_bytes + attempt * _LIMIT_STEP_BYTES)
        except RunFailed:
            if attempt == _LIMIT_TRIES - 1:
                raise
        else:
            return


MEMORY = FaultKind(
    scope="node",
    begin=lambda fault, stage: begin_on_nodes(fault, stage, partial(_limit_memory, fault)),
    keys=frozenset({"headroom_bytes"}),
    needs=lambda _: frozenset({"memory"}),
)

_DEFAULT_SHARE_PPM = 500_000
# Stays free while memory is taken: half of that is freed again once it is split. With 2 GiB a server that grew by half
# of one got its huge pages from the rest: none of 805 waited for compaction.
_MIN_FREE_BYTES = 256 << 20
# The kernel must free some gigabytes.
_FRAGMENTS_END_TIMEOUT_S = 30.0
_FRAGMENTS_POLL_S = 0.05


def _fragment_memory(fault: Fault, stage: Stage) -> ActiveFault:
    share_ppm = _DEFAULT_SHARE_PPM if fault.share_ppm is None else fault.share_ppm
    argv = system.build_script_argv(fragments.__file__, str(share_ppm), str(_MIN_FREE_BYTES))
    with ExitStack() as stack:
        # It dies with the thread that begins this fault, which also ends it.
        child = stack.enter_context(system.Child(argv, name="fragmented-memory: its process"))
        poll = select.poll()
        poll.register(child.stdout, select.POLLIN)
        while not poll.poll(_FRAGMENTS_POLL_S * 1000):
            if stage.load_ended.is_set():
                raise RunFailed(
                    "fragmented-memory: the load ended before memory was split. Measure longer, or take a smaller "
                    "share."
                )
        try:
            line = child.read_line()
        except RunFailed:
            _check_not_killed(child)
            raise
        effect, applied = _judge_fragments(json.loads(line)), stack.pop_all()

    def end() -> None:
        with applied:
            child.read_until_exit(_FRAGMENTS_END_TIMEOUT_S)
            _check_not_killed(child)
            if (exit_text := child.describe_exit()) != "exited with code 0":
                raise RunFailed(f"{child.name} {exit_text}")

    return ActiveFault(effect, end)


def _check_not_killed(child: system.Child) -> None:
    """Raise RunFailed if the kernel killed the child: then no memory is split any more."""
    if child.describe_exit() == f"was killed by signal {signal.SIGKILL}":
        raise RunFailed(f"{child.name} was killed, as the first one when memory runs out. Take a smaller share.")


def _judge_fragments(result: dict[str, float]) -> str:
    """Return the effect; raise RunFailed if no memory was taken, or as many large blocks are free as before."""
    before_mb, after_mb, taken_mb, free_mb, min_free_mb = (
        result[name] / 1e6 for name in ("before_bytes", "after_bytes", "taken_bytes", "free_bytes", "min_free_bytes")
    )
    if not taken_mb and free_mb - fragments.STEP_BYTES / 1e6 <= min_free_mb:
        raise RunFailed(
            f"fragmented-memory: no memory was taken: {free_mb:,.0f} MB of the machine's memory are free, and "
            f"{min_free_mb:,.0f} MB stay free. Free some memory: as root, `echo 1 > /proc/sys/vm/drop_caches` frees "
            "unused page cache."
        )
    effect = f"free in blocks of a huge page: {before_mb:,.0f} MB before, {after_mb:,.0f} MB after "
    effect += f"{result['duration_s']:.1f} s"
    if not taken_mb or after_mb >= before_mb:
        raise RunFailed(
            f"fragmented-memory: {effect}: the {taken_mb:,.0f} MB that it took were split already, or too little. Take "
            "a larger share, or free some memory."
        )
    return f"{effect}; every second page of {taken_mb:,.0f} MB is held"


FRAGMENTED_MEMORY = FaultKind(
    scope="server", begin=_fragment_memory, is_slow_to_begin=True, keys=frozenset({"share_ppm"})
)
