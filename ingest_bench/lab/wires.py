"""What is seen of a run's links while its load runs: samples of frames, and the last headers for whoever asks why.

Whether a run is valid is known only from its samples, when its links are gone. So the last headers are written whenever
the load ends, however it ends, and those of a run that turns out well are deleted (`forget`). They are for who asks:
to look at each frame took 5 to 15% of the CPU of two programs that only send and receive.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ingest_bench.errors import RunFailed
from ingest_bench.model.experiment import RunState
from ingest_bench.model.results import Remark
from ingest_bench.network.measure import capture, readings
from ingest_bench.network.measure import wire as wire_module
from ingest_bench.units import format_bytes

if TYPE_CHECKING:
    from ingest_bench.lab.server.running_server import RunningServer
    from ingest_bench.network.act.link import Link
    from ingest_bench.network.act.links import Links
    from ingest_bench.results.run_folder import NodeFolder, RunFolder

# Of a node. 140,000 segments of TCP: 0.9 s of 1 Gbit/s, 9 s of 100 Mbit/s.
MOST_BYTES = 16 << 20
# Whose last headers are kept.
_ASKED_ABOUT: tuple[RunState, ...] = ("failed", "aborted", "invalid")


@contextlib.contextmanager
def watched(links: Links | None, folder: RunFolder, *, keeps_last: bool) -> Iterator[None]:
    """Each link is watched while the block lasts; with `keeps_last` the last headers of the clients' stay."""
    with contextlib.ExitStack() as stack:
        if links is not None:
            for name, link in links.by_name.items():
                stack.enter_context(wire_module.watch_wire(link, folder.wire(name)))
            if keeps_last:
                for node, link in zip(folder.nodes(len(links.clients)), links.clients, strict=True):
                    stack.enter_context(_last(link, node))
        yield


@contextlib.contextmanager
def _last(link: Link, node: NodeFolder) -> Iterator[None]:
    client, _ = link.ends
    enter = client.namespace.command
    with capture.capturing(enter, client.device, node.last_frames, MOST_BYTES, keeps_last=True) as frames:
        try:
            yield
        finally:
            # They help to understand a run; without them it is as good or bad as it is.
            with contextlib.suppress(RunFailed):
                frames.keep()


def counted(server: RunningServer, folder: RunFolder) -> dict[str, Any]:
    """What the clients' links counted: all together, and where there are several the one to each node."""
    if server.path is not None:
        return {"link": server.path.readings(), "promises": (*server.promises, *server.path.of_load())}
    if server.links is None:
        return {}
    links = server.links.clients
    seen = [node.raw / wire_module.WIRE for node in folder.nodes(len(links))]
    each = [readings.readings(link, wires=(wire,), clients=False) for link, wire in zip(links, seen, strict=True)]
    return {"link": readings.readings(*links, wires=seen), "node_links": tuple(each) if len(each) > 1 else ()}


def remarks(folder: RunFolder, nodes: int, state: RunState) -> tuple[Remark, ...]:
    """Where the last headers of a run are that did not go well."""
    if state not in _ASKED_ABOUT:
        return ()
    sizes = {node: node.last_frames.stat().st_size for node in folder.nodes(nodes) if node.last_frames.is_file()}
    names = ", ".join(
        f"{node.last_frames.relative_to(folder.path)} ({format_bytes(size)})" for node, size in sizes.items()
    )
    said = f"what crossed the clients' link last, headers alone: {names}, in the folder of the run"
    return (Remark(probe="load", text=said),) if sizes else ()


def forget(folder: RunFolder, nodes: int, state: RunState) -> None:
    """The last headers of a run that went well are of no use."""
    if state not in _ASKED_ABOUT:
        for node in folder.nodes(nodes):
            node.last_frames.unlink(missing_ok=True)
