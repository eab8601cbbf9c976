"""`heap-dump`: a JVM writes its live objects to a file and stands still meanwhile. It has no length."""

from __future__ import annotations

import secrets
import time

from ingest_bench.errors import RunFailed
from ingest_bench.faults import each
from ingest_bench.faults.kind import Begun, FaultKind
from ingest_bench.faults.stage import Node, Stage
from ingest_bench.model.experiment import Fault


def _begin(fault: Fault, stage: Stage) -> Begun:
    return each.at_nodes(fault, stage, _dump)


def _dump(node: Node) -> str:
    """The file is in the server's own folder, where the server may write, and nobody needs it afterwards.

    Two may be asked for at once.
    """
    path = node.home / f"heap-dump-{secrets.token_hex(4)}.hprof"
    began = time.monotonic()
    try:
        # In quotes: of NAME=VALUE, as folders of cells are called, a JVM takes the NAME alone.
        said = node.ask("GC.heap_dump", f'"{path}"')
        if not path.is_file():
            raise RunFailed(f"heap-dump: {node.name} wrote none, it said: {said.strip()}")
        return f"{path.stat().st_size / 1e6:.0f} MB within {time.monotonic() - began:.2f} s"
    finally:
        path.unlink(missing_ok=True)


HEAP_DUMP = FaultKind(hits="node", begin=_begin)
