"""What the faults of a run act on, and the flush of its server."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ingest_bench.faults import FAULTS, each
from ingest_bench.faults.links import forgers
from ingest_bench.faults.stage import Node, Stage
from ingest_bench.jvm.attach import ours
from ingest_bench.lab.server.running_server import RunningServer
from ingest_bench.model.experiment import Fault
from ingest_bench.network.act.link import End
from ingest_bench.network.act.links import Links
from ingest_bench.results.run_folder import RunFolder


def flush(server: RunningServer, indices: Sequence[str]) -> None:
    """What a server of ours has in memory of these indices is written to files, all of it at once."""
    assert server.target.flush is not None, server.target.name  # noqa: S101 - `steps` and `checks` refused it
    server.target.flush(server.nodes, [ours(pid, server.java) for pid in server.jvm_pids], indices)


@contextmanager
def hit_by_faults(
    faults: Sequence[Fault], server: RunningServer, folder: RunFolder, indices: Sequence[str]
) -> Iterator[Stage]:
    """What these faults act on, with what they need of it prepared: nothing of a server that runs already."""
    if not server.is_ours:
        yield Stage()
        return

    def jcmd(pid: int, command: Sequence[str]) -> str:
        return ours(pid, server.java).ask(*command)

    limit_s = server.target.listens(server.asked).within_s
    homes = [node.home for node in folder.nodes(len(server.processes))]
    with forgers.prepared(_forging_ends(faults, server.links)) as prepared:
        yield Stage(
            links=server.links,
            names=server.names,
            forgers=prepared,
            nodes=tuple(
                Node(number=number, process=one, home=home, jcmd=jcmd, boot_limit_s=limit_s, resources=share)
                for number, (one, home, share) in enumerate(zip(server.processes, homes, server.shares, strict=True), 1)
            ),
            flush=functools.partial(flush, server, indices),
        )


def _forging_ends(faults: Sequence[Fault], links: Links | None) -> list[End]:
    """The ends of links at which these faults forge packets, one for each: they may last at once."""
    found: list[End] = []
    for fault in faults:
        for name, link in links.by_name.items() if links is not None else ():
            if each.concerns(fault, name):
                found += FAULTS[fault.kind].forged_at(fault, link, each.directions(fault, name))
    return found
