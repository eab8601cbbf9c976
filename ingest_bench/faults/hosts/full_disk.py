"""`full-disk`: the file system of a node has no block left; what the node gives back is taken at once.

Its home is a file system of its own, so nobody else's disk is full.
"""

from __future__ import annotations

from ingest_bench.faults import each
from ingest_bench.faults.kind import Begun, FaultKind
from ingest_bench.faults.stage import Node, Stage, hold
from ingest_bench.host.disk import Filler
from ingest_bench.model.experiment import Cell, Fault


def _complaint(cell: Cell, fault: Fault) -> str:
    del fault
    if cell.target.earlier_documents:
        return "documents of an earlier run lie on another file system than the one that is filled"
    return ""


def _begin(fault: Fault, stage: Stage) -> Begun:
    return each.watched(fault, stage, _filled)


def _filled(node: Node) -> each.End:
    """Of several faults the first one fills it, and it has room again after the last one."""
    with node.lock:
        filler = node.resources.filler or Filler(node.home)
        let_go = hold(node.counts, "full-disk", filler.begin, filler.end)
        node.resources.filler = filler

    def ended() -> str:
        with node.lock:
            let_go()
            if not node.counts["full-disk"]:
                node.resources.filler = None
        return filler.seen()

    return ended


# Its end waits for the journal, and a disk that is slow besides would be slow for as long.
FULL_DISK = FaultKind(
    hits="node", begin=_begin, lasts=True, is_slow=True, needs=lambda _: frozenset({"disk"}), complaint=_complaint
)
