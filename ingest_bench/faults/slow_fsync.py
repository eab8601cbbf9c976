"""Fault `slow-fsync`: delay every fsync, fdatasync, msync and syncfs call of a node by `delay`.

Only sync calls of this node are delayed; the disk and other processes keep their speed. If several such faults overlap,
the longest delay applies.
"""

from __future__ import annotations

from ingest_bench.errors import RunFailed
from ingest_bench.faults.apply import begin_on_nodes
from ingest_bench.faults.kind import ActiveFault, FaultKind, Node, Stage
from ingest_bench.model.experiment import Cell, Fault


def _find_error(cell: Cell, fault: Fault) -> str:
    del cell
    return "" if fault.delay_ns else 'requires delay = "50ms"'


def _begin(fault: Fault, stage: Stage) -> ActiveFault:
    assert fault.delay_ns is not None  # noqa: S101 - `_find_error` refused it
    delay_ns = fault.delay_ns
    return begin_on_nodes(fault, stage, lambda node: _delay_syncs(node, delay_ns))


def _delay_syncs(node: Node, delay_ns: int) -> ActiveFault:
    supervisor = node.resources.sync_supervisor
    assert supervisor is not None, node.name  # noqa: S101 - see `needs` below
    calls_before, waited_before_ns = supervisor.delayed_calls()
    stop_delaying = supervisor.delay(delay_ns)

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
    begin=_begin,
    has_duration=True,
    keys=frozenset({"delay_ns"}),
    needs=lambda _: frozenset({"syncs"}),
    find_error=_find_error,
)
