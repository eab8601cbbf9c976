"""`slow-fsync`: what a node writes is on the disk `delay` later: each fsync, fdatasync, msync and syncfs of it waits.

The disk itself is as fast as ever, for everybody and for all else that the node does. Of several the longest counts.
"""

from __future__ import annotations

from ingest_bench.errors import RunFailed
from ingest_bench.faults import each
from ingest_bench.faults.kind import Begun, FaultKind
from ingest_bench.faults.stage import Node, Stage
from ingest_bench.model.experiment import Cell, Fault


def _complaint(cell: Cell, fault: Fault) -> str:
    del cell
    return "" if fault.delay_ns else 'how long does each wait? Add delay = "50ms"'


def _begin(fault: Fault, stage: Stage) -> Begun:
    assert fault.delay_ns is not None  # noqa: S101 - `_complaint` refused it
    delay_ns = fault.delay_ns
    return each.watched(fault, stage, lambda node: _slow(node, delay_ns))


def _slow(node: Node, delay_ns: int) -> each.End:
    syncs = node.resources.syncs
    assert syncs is not None, node.name  # noqa: S101 - this kind needs it
    before, before_ns = syncs.held()
    end = syncs.delay(delay_ns)

    def ended() -> str:
        after, after_ns = syncs.held()
        held, held_ns = after - before, after_ns - before_ns
        end()
        if not held:
            raise RunFailed(f"slow-fsync: {node.name} synced no file, so that nothing was slow; let it last longer")
        return f"{held:,} syncs waited, {held_ns / held / 1e6:.1f} ms each on average"

    return ended


SLOW_FSYNC = FaultKind(
    hits="node",
    begin=_begin,
    lasts=True,
    takes=frozenset({"delay_ns"}),
    needs=lambda _: frozenset({"syncs"}),
    complaint=_complaint,
)
