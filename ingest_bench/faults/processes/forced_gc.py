"""`gc`: a collection of the whole heap, as `System.gc()` asks for it. It has no length."""

from __future__ import annotations

import re
import time

from ingest_bench.errors import RunFailed
from ingest_bench.faults import each
from ingest_bench.faults.kind import Begun, FaultKind
from ingest_bench.faults.stage import Node, Stage
from ingest_bench.model.experiment import Fault

# In the history of the heap, which holds the last collections.
_IN_HISTORY = re.compile(r"GC invocations=(\d+)")


def _begin(fault: Fault, stage: Stage) -> Begun:
    return each.at_nodes(fault, stage, _collect)


def _collect(node: Node) -> str:
    """RunFailed when it collected nothing: -XX:+DisableExplicitGC makes the command a success without any effect."""
    if "-XX:+DisableExplicitGC" in node.ask("VM.flags").split():
        raise RunFailed(f"gc: {node.name} has -XX:+DisableExplicitGC, it would not collect; start it without")
    before, began = _collections(node), time.monotonic()
    node.ask("GC.run")
    if _collections(node) <= before:
        raise RunFailed(f"gc: {node.name} was told to collect and did not")
    return f"collected within {time.monotonic() - began:.2f} s"


def _collections(node: Node) -> int:
    """Return how often any of its collectors ran, by its history: it shares no counters (-XX:+PerfDisableSharedMem)."""
    return max(map(int, _IN_HISTORY.findall(node.ask("VM.info"))), default=0)


GC = FaultKind(hits="node", begin=_begin)
