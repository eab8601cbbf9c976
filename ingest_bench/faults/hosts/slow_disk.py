"""`slow-disk`: the disk of a node reads, and writes, no more than so many bits or operations a second, or each is late.

Its home is a file system of its own, so nobody else's disk is slow. What is written back later waits like a sync of
it. Of several that last the tightest counts.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack

from ingest_bench.errors import RunFailed
from ingest_bench.faults import each
from ingest_bench.faults.kind import Begun, FaultKind
from ingest_bench.faults.stage import Node, Stage
from ingest_bench.host.disk import Moved
from ingest_bench.host.io_limits import Rule
from ingest_bench.host.node_resources import Need
from ingest_bench.model.experiment import Cell, Fault

_MS = 10**6


def _complaint(cell: Cell, fault: Fault) -> str:
    if fault.rate_bps is None and fault.iops is None and fault.delay_ns is None:
        return 'how slow? Add rate = "80mbit", iops = 100 or delay = "20ms"'
    if fault.delay_ns is not None and (fault.delay_ns == 0 or fault.delay_ns % _MS):
        return "the kernel counts the delay of a disk in milliseconds; take a whole number of them"
    if cell.target.earlier_documents:
        return "documents of an earlier run lie on another file system than the one that is slow"
    return ""


def _needs(fault: Fault) -> frozenset[Need]:
    found: set[Need] = {"disk"}
    if _rules(fault):
        found.add("throttle")
    if fault.delay_ns is not None:
        found.add("latency")
    return frozenset(found)


def _rules(fault: Fault) -> dict[Rule, int]:
    given: Mapping[Rule, int | None] = {
        "bytes": None if fault.rate_bps is None else fault.rate_bps // 8,
        "operations": fault.iops,
    }
    return {rule: most for rule, most in given.items() if most is not None}


def _begin(fault: Fault, stage: Stage) -> Begun:
    return each.watched(fault, stage, lambda node: _slow(node, _rules(fault), fault.delay_ns))


def _slow(node: Node, most_per_s: Mapping[Rule, int], delay_ns: int | None) -> each.End:
    disk, throttle = node.resources.disk, node.resources.throttle
    assert disk is not None, node.name  # noqa: S101 - this kind needs it
    with ExitStack() as stack:
        if most_per_s:
            assert throttle is not None, node.name  # noqa: S101 - the same
            stack.callback(throttle.limit(most_per_s))
        if delay_ns is not None:
            assert disk.latency is not None, node.name  # noqa: S101 - the same
            stack.callback(disk.latency.delay(delay_ns // _MS))
        # Once all of it is slow: the disk is written and read while it becomes so.
        before, began = disk.moved(), time.monotonic()
        kept = stack.pop_all()

    def ended() -> str:
        moved, lasted_s = disk.moved().since(before), time.monotonic() - began
        kept.close()
        # What waited has gone on by now.
        let_go = disk.moved().since(before)
        if not let_go.reads and not let_go.writes:
            raise RunFailed(
                f"slow-disk: the disk of {node.name} neither read nor wrote within {lasted_s:.1f} s, so that nothing "
                "was slow; let it last longer, or give it more load"
            )
        return (
            f"wrote {moved.written_bytes / 1e6:.2f} MB in {moved.writes:,} writes and read "
            f"{moved.read_bytes / 1e6:.2f} MB in {moved.reads:,} reads within {lasted_s:.1f} s"
            + (f", each of at most {_most(most_per_s, lasted_s)}" if most_per_s else "")
            + ("" if delay_ns is None else f"; {_took(let_go)}")
        )

    return ended


def _most(most_per_s: Mapping[Rule, int], lasted_s: float) -> str:
    """What the rules allow in that time."""
    most = {rule: a_second * lasted_s for rule, a_second in most_per_s.items()}
    words = [f"{most['bytes'] / 1e6:.2f} MB"] if "bytes" in most else []
    return " and ".join([*words, *([f"{most['operations']:,.0f} operations"] if "operations" in most else [])])


def _took(moved: Moved) -> str:
    """What the kernel says of how long they took."""
    each_ms = {"write": (moved.write_ms, moved.writes), "read": (moved.read_ms, moved.reads)}
    words = [f"a {name} took {all_ms / count:.1f} ms" for name, (all_ms, count) in each_ms.items() if count]
    return f"{' and '.join(words)} on average"


SLOW_DISK = FaultKind(
    hits="node",
    begin=_begin,
    lasts=True,
    takes=frozenset({"rate_bps", "iops", "delay_ns"}),
    needs=_needs,
    complaint=_complaint,
)
