"""`slow-disk`: the disk of a node reads, and writes, no more than so many bits or operations a second.

Its home is a file system of its own, so nobody else's disk is slow. What is written back later waits like a sync of
it. Of several that last the tightest counts.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from ingest_bench.errors import RunFailed
from ingest_bench.faults import each
from ingest_bench.faults.kind import Begun, FaultKind
from ingest_bench.faults.stage import Node, Stage
from ingest_bench.host.throttle import Rule
from ingest_bench.model.experiment import Cell, Fault


def _complaint(cell: Cell, fault: Fault) -> str:
    if fault.rate_bps is None and fault.iops is None:
        return 'how slow? Add rate = "80mbit" or iops = 100'
    if cell.target.earlier_documents:
        return "documents of an earlier run lie on another file system than the one that is slow"
    return ""


def _begin(fault: Fault, stage: Stage) -> Begun:
    given: Mapping[Rule, int | None] = {
        "bytes": None if fault.rate_bps is None else fault.rate_bps // 8,
        "operations": fault.iops,
    }
    most_per_s = {rule: most for rule, most in given.items() if most is not None}
    return each.watched(fault, stage, lambda node: _slow(node, most_per_s))


def _slow(node: Node, most_per_s: Mapping[Rule, int]) -> each.End:
    throttle = node.share.throttle
    assert throttle is not None, node.name  # noqa: S101 - this kind needs it
    before = throttle.moved()
    began, end = time.monotonic(), throttle.limit(most_per_s)

    def ended() -> str:
        moved, lasted_s = throttle.moved().since(before), time.monotonic() - began
        end()
        if not moved.reads and not moved.writes:
            raise RunFailed(
                f"slow-disk: the disk of {node.name} neither read nor wrote within {lasted_s:.1f} s, so that nothing "
                "was slow; let it last longer, or give it more load"
            )
        return (
            f"wrote {moved.written_bytes / 1e6:.2f} MB in {moved.writes:,} writes and read "
            f"{moved.read_bytes / 1e6:.2f} MB in {moved.reads:,} reads within {lasted_s:.1f} s, "
            f"each of at most {_most(most_per_s, lasted_s)}"
        )

    return ended


def _most(most_per_s: Mapping[Rule, int], lasted_s: float) -> str:
    """What the rules allow in that time."""
    most = {rule: a_second * lasted_s for rule, a_second in most_per_s.items()}
    words = [f"{most['bytes'] / 1e6:.2f} MB"] if "bytes" in most else []
    return " and ".join([*words, *([f"{most['operations']:,.0f} operations"] if "operations" in most else [])])


SLOW_DISK = FaultKind(
    hits="node",
    begin=_begin,
    lasts=True,
    takes=frozenset({"rate_bps", "iops"}),
    needs=frozenset({"disk", "throttle"}),
    complaint=_complaint,
)
