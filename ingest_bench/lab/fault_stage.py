"""What the faults of a run act on, and the flush of its server."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from ingest_bench.faults.stage import Node, Stage
from ingest_bench.jvm.attach import ours
from ingest_bench.lab.server.running_server import RunningServer
from ingest_bench.results.run_folder import RunFolder


def flush(server: RunningServer, indices: Sequence[str]) -> None:
    """What a server of ours has in memory of these indices is written to files, all of it at once."""
    assert server.target.flush is not None, server.target.name  # noqa: S101 - `procedure.check` refused it
    server.target.flush(server.nodes, [ours(pid, server.java) for pid in server.jvm_pids], indices)


def hit_by_faults(server: RunningServer, folder: RunFolder, indices: Sequence[str]) -> Stage:
    """What faults act on: nothing of a server that runs already."""
    if not server.is_ours:
        return Stage()

    def jcmd(pid: int, command: Sequence[str]) -> str:
        return ours(pid, server.java).ask(*command)

    limit_s = server.target.listens(server.asked).within_s
    homes = [node.home for node in folder.nodes(len(server.processes))]
    return Stage(
        links=server.links,
        names=server.names,
        nodes=tuple(
            Node(number=number, process=one, home=home, jcmd=jcmd, boot_limit_s=limit_s, share=share)
            for number, (one, home, share) in enumerate(zip(server.processes, homes, server.shares, strict=True), 1)
        ),
        flush=functools.partial(flush, server, indices),
    )
