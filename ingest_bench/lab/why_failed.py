"""What ended a server's run: an OutOfMemoryError of one of its nodes, or that nodes have ended, and what they said."""

from __future__ import annotations

from pathlib import Path

from ingest_bench.errors import RunFailed
from ingest_bench.jvm import process
from ingest_bench.lab.server.running_server import RunningServer
from ingest_bench.probes import oom
from ingest_bench.probes.oom import OutOfMemory
from ingest_bench.results.run_folder import NodeFolder, RunFolder


def out_of_memory(folder: RunFolder, server: RunningServer, *, lived_on: bool = False) -> OutOfMemory | None:
    """The first OutOfMemoryError that any of its nodes had; None without one."""
    nodes = folder.nodes(len(server.nodes))
    # The files of a JVM that the run started move to the raw files once it has ended.
    folders = [node.jvm if server.is_ours else node.raw for node in nodes]
    logs = (_log(node, jvm_folder, lived_on=lived_on) for node, jvm_folder in zip(nodes, folders, strict=True))
    kills = filter(None, map(oom.find_oom, folders, logs))
    return min(kills, key=lambda kill: kill.at_ns, default=None)


def reason(folder: RunFolder, server: RunningServer, error: RunFailed) -> str:
    """The failure, behind the end of the log of each node that has ended."""
    nodes = folder.nodes(len(server.nodes))
    reason = str(error)
    for place in server.ended():
        which = "the server" if len(nodes) == 1 else f"node {place + 1}"
        log = f"; its log ends:\n{process.last_lines(nodes[place].log)}" if server.is_ours else ""
        reason = f"{which} ended during the run{log}\n{reason}"
    return reason


def _log(node: NodeFolder, folder: Path, *, lived_on: bool) -> Path | None:
    """Its own log, where that is to be believed: of a JVM that lives on the exceptions log has every exception.

    What a server writes is anybody's words, a document's too. An exceptions log that was rotated may have lost one.
    """
    exceptions = list(folder.glob("exceptions.log*"))
    return None if lived_on and len(exceptions) == 1 else node.log
