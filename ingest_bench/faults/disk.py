"""Faults of a node's disk: `full-disk`, `slow-disk` and `slow-fsync`.

`full-disk` takes every free block, and those that the node frees meanwhile. `slow-disk` limits the bits or operations
per second of reads, and of writes; writeback waits like a sync. If several limits overlap, the lowest applies. For both
the node's home is its own volume, so no other disk is hit.

`slow-fsync` delays every fsync, fdatasync, msync and syncfs call of a node by `delay`. Only sync calls of this node are
delayed; the disk and other processes keep their speed. If several such faults overlap, the longest delay applies.
"""

from __future__ import annotations

import time
from functools import partial

from ingest_bench.errors import RunFailed
from ingest_bench.faults.apply import begin_on_nodes
from ingest_bench.faults.kind import ActiveFault, FaultKind, Node, hold_effect
from ingest_bench.host.cgroups import IoLimit
from ingest_bench.host.volume import DiskFiller
from ingest_bench.model.experiment import Cell, Fault


def _find_preloading_error(cell: Cell, _fault: Fault) -> str:
    return "preloaded documents are on another file system" if cell.target.preloaded_documents else ""


def _fill_disk(node: Node) -> ActiveFault:
    """Fill the disk with the first of several faults, and free it with the last."""
    with node.lock:
        filler = node.resources.disk_filler or DiskFiller(node.home)
        release = hold_effect(node.lock, node.counts, "full-disk", filler.fill, filler.free)
        node.resources.disk_filler = filler

    def end() -> str:
        with node.lock:
            release()
            if not node.counts["full-disk"]:
                node.resources.disk_filler = None
        return filler.describe()

    return ActiveFault(end_fault=end)


FULL_DISK = FaultKind(
    scope="node",
    begin=lambda fault, stage: begin_on_nodes(fault, stage, _fill_disk),
    needs=lambda _: frozenset({"disk"}),
    find_error=_find_preloading_error,
)


def _find_slow_disk_error(cell: Cell, fault: Fault) -> str:
    if fault.rate_bps is None and fault.iops is None:
        return 'requires rate = "80mbit" or iops = 100'
    return _find_preloading_error(cell, fault)


def _limit_disk(fault: Fault, node: Node) -> ActiveFault:
    max_per_s: dict[IoLimit, int] = {}
    if fault.rate_bps is not None:
        max_per_s["bytes"] = fault.rate_bps // 8
    if fault.iops is not None:
        max_per_s["operations"] = fault.iops
    volume, throttle = node.resources.volume, node.resources.io_throttle
    assert volume is not None, node.name  # noqa: S101 - see `needs` below
    assert throttle is not None, node.name  # noqa: S101 - the same
    end_limit = throttle.limit(max_per_s)
    # Only after the limit is set: the disk is used meanwhile.
    before, start_s = volume.read_counters(), time.monotonic()

    def end() -> str:
        moved, duration_s = volume.read_counters().subtract(before), time.monotonic() - start_s
        end_limit()
        # Requests that waited have continued by now.
        total = volume.read_counters().subtract(before)
        if not total.reads and not total.writes:
            raise RunFailed(
                f"slow-disk: the disk of {node.name} neither read nor wrote within {duration_s:.1f} s. Make the fault "
                "last longer, or give the node more load."
            )
        maximum = {limit: per_s * duration_s for limit, per_s in max_per_s.items()}
        limits = [f"{maximum['bytes'] / 1e6:.2f} MB"] if "bytes" in maximum else []
        limits += [f"{maximum['operations']:,.0f} operations"] if "operations" in maximum else []
        return (
            f"wrote {moved.written_bytes / 1e6:.2f} MB in {moved.writes:,} writes and read "
            f"{moved.read_bytes / 1e6:.2f} MB in {moved.reads:,} reads within {duration_s:.1f} s, each of at most "
            f"{' and '.join(limits)}"
        )

    return ActiveFault(end_fault=end)


SLOW_DISK = FaultKind(
    scope="node",
    begin=lambda fault, stage: begin_on_nodes(fault, stage, partial(_limit_disk, fault)),
    keys=frozenset({"rate_bps", "iops"}),
    needs=lambda _: frozenset({"disk", "throttle"}),
    find_error=_find_slow_disk_error,
)


def _delay_syncs(fault: Fault, node: Node) -> ActiveFault:
    supervisor = node.resources.sync_supervisor
    assert supervisor is not None, node.name  # noqa: S101 - see `needs` below
    calls_before, waited_before_ns = supervisor.delayed_calls()
    assert fault.delay_ns is not None  # noqa: S101 - see `find_error` below
    stop_delaying = supervisor.delay(fault.delay_ns)

    def end() -> str:
        calls_after, waited_after_ns = supervisor.delayed_calls()
        stop_delaying()
        calls = calls_after - calls_before
        if not calls:
            raise RunFailed(f"slow-fsync: {node.name} made no sync call during the fault. Make the fault last longer.")
        mean_ms = (waited_after_ns - waited_before_ns) / calls / 1e6
        return f"{calls:,} sync calls delayed, {mean_ms:.1f} ms each on average"

    return ActiveFault(end_fault=end)


SLOW_FSYNC = FaultKind(
    scope="node",
    begin=lambda fault, stage: begin_on_nodes(fault, stage, partial(_delay_syncs, fault)),
    keys=frozenset({"delay_ns"}),
    needs=lambda _: frozenset({"syncs"}),
    find_error=lambda _cell, fault: "" if fault.delay_ns else 'requires delay = "50ms"',
)
