"""`kill`: a node is killed, and after `for` it is started again on the files that it left.

It is SIGKILL: nothing is written on the way out, and nobody is told. What the server acknowledged before must be there
when it is back: `lost_documents` says how many are not.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from ingest_bench.faults import each
from ingest_bench.faults.kind import Begun, FaultKind
from ingest_bench.faults.stage import Act, Node, Stage
from ingest_bench.model.experiment import Cell, Fault


def _complaint(cell: Cell, fault: Fault) -> str:
    del fault
    if cell.load.measure_documents is not None:
        return "how often a server is started again must be known before; give the measurement a length"
    if cell.probes:
        return f"a JVM that is killed leaves no recording; leave out the probes ({', '.join(cell.probes)})"
    return ""


def _begin(fault: Fault, stage: Stage) -> Begun:
    said: list[str] = []

    def end(ends: Sequence[Act]) -> str:
        # All at once: a node may need the others to be ready.
        with ThreadPoolExecutor(max(1, len(ends))) as pool:
            for ended in [pool.submit(let_go) for let_go in ends]:
                ended.result()
        return "; ".join(said)

    return each.together(fault, stage, lambda node: _killed(node, stage, said), end)


def _killed(node: Node, stage: Stage, said: list[str]) -> Act:
    with node.starting, node.lock:
        if stage.over.is_set():
            said.append(f"{node.name}: not done, the load was over by then")
            return lambda: None
        if not node.counts["kill"]:
            node.is_down = True
            node.process.kill()
        node.counts["kill"] += 1

    def let_go() -> None:
        with node.starting:
            with node.lock:
                node.counts["kill"] -= 1
                if node.counts["kill"]:
                    return
            began = time.monotonic()
            node.process.start_again(node.boot_limit_s)
            with node.lock:
                node.is_down = False
                for begin, _ in node.lasting.values():
                    begin()
            said.append(f"{node.name}: ready again {time.monotonic() - began:.1f} s after its start")

    return let_go


# It waits for a node that still starts.
KILL = FaultKind(hits="node", begin=_begin, lasts=True, begins_slowly=True, complaint=_complaint)
