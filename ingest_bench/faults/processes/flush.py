"""`flush`: the server writes to files what it has in memory, all of it at once. It has no length."""

from __future__ import annotations

from ingest_bench.errors import SpecError
from ingest_bench.faults.kind import Begun, FaultKind
from ingest_bench.faults.stage import Stage
from ingest_bench.model.experiment import Fault


def _begin(_: Fault, stage: Stage) -> Begun:
    if stage.flush is None:
        raise SpecError("fault flush: it needs a server of ours")
    down = [node.name for node in stage.nodes if node.is_down]
    if down:
        return Begun(f"not done, {' and '.join(down)} is down")
    stage.flush()
    return Begun()


FLUSH = FaultKind(hits="server", begin=_begin)
