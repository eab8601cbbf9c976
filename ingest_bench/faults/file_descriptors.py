"""`file-descriptors`: a JVM has few file descriptors left, so that it can open hardly any file or connection."""

from __future__ import annotations

import contextlib
import resource
from pathlib import Path

from ingest_bench.faults import each
from ingest_bench.faults.kind import Begun, FaultKind
from ingest_bench.faults.stage import Act, Node, Stage
from ingest_bench.model.experiment import Fault

# A connection or two, and a file of a segment or two.
LEFT = 4


def _begin(fault: Fault, stage: Stage) -> Begun:
    return each.on_nodes(fault, stage, _few)


def _few(node: Node) -> tuple[str, Act]:
    """The limit is that of the process (prlimit(2)): what is open stays open, and a higher number is refused."""
    usual: dict[int, int] = {}

    def begin() -> None:
        pid = node.process.jvm_pid
        usual[pid], hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (_open(pid) + LEFT, hard))

    def end() -> None:
        pid = node.process.jvm_pid
        with contextlib.suppress(ProcessLookupError):
            _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (usual[pid], hard))

    let_go = node.hold("file-descriptors", begin, end)
    return "" if node.is_down else f"{LEFT} left beside the {_open(node.process.jvm_pid)} that are open", let_go


def _open(pid: int) -> int:
    """The number behind the highest that is open: the limit is one of numbers, not of how many there are."""
    return max((int(entry.name) for entry in Path(f"/proc/{pid}/fd").iterdir()), default=0) + 1


FILE_DESCRIPTORS = FaultKind(hits="node", begin=_begin, lasts=True)
