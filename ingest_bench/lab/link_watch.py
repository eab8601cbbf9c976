"""Recording of a run's links during its load: samples of frames, and optionally the last headers.

A run is known to be valid only after its samples are read, when its links are gone. So the last headers are written
whenever the load ends, and deleted if the run turns out well (`drop_last_frames`). They are optional: reading each
frame took 5 to 15% of the CPU of two programs that only send and receive.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from ingest_bench.errors import RunFailed
from ingest_bench.lab.server.running_server import RunningServer
from ingest_bench.model.experiment import RunState
from ingest_bench.model.results import Note
from ingest_bench.network.act.link import Link, Links
from ingest_bench.network.measure import capture, readings
from ingest_bench.network.measure import wire as wire_module
from ingest_bench.results.layout import NodeFolder, RunFolder
from ingest_bench.units import format_bytes

# Per node: 140,000 TCP segments, which are 0.9 s of 1 Gbit/s or 9 s of 100 Mbit/s.
MAX_CAPTURE_BYTES = 16 << 20
_CAPTURED_STATES: tuple[RunState, ...] = ("failed", "aborted", "invalid")


@contextlib.contextmanager
def watch_links(links: Links | None, folder: RunFolder, *, keeps_last: bool) -> Iterator[None]:
    """Sample the frames of each link during the block; with *keeps_last* keep the last headers of clients' links."""
    with contextlib.ExitStack() as stack:
        if links is not None:
            for name, link in links.by_name.items():
                stack.enter_context(wire_module.watch_wire(link, folder.wire_file(name)))
            if keeps_last:
                for node, link in zip(folder.nodes(len(links.clients)), links.clients, strict=True):
                    stack.enter_context(_capture_last_frames(link, node))
        yield


@contextlib.contextmanager
def _capture_last_frames(link: Link, node: NodeFolder) -> Iterator[None]:
    client, _ = link.ends
    enter = client.namespace.command
    with capture.start_capture(enter, client.device, node.last_frames, MAX_CAPTURE_BYTES, keeps_last=True) as frames:
        try:
            yield
        finally:
            # They only help to understand a run: their loss does not make it invalid.
            with contextlib.suppress(RunFailed):
                frames.keep()


def link_counts(server: RunningServer, folder: RunFolder) -> dict[str, Any]:
    """Return record fields with the counters of the clients' links: all together, and for several nodes each link."""
    if server.links is None:
        # Nodes that the run attached to have no links of their own.
        node_count = server.options.node_count
        fields: dict[str, Any] = {"node_links": ({},) * node_count if node_count > 1 else ()}
        if (path := server.real_path) is not None:
            fields |= {"link": path.columns(), "link_checks": (*server.link_checks, *path.check_load())}
        return fields | server.remote_link_fields()
    links = server.links.clients
    wires = [node.raw / wire_module.WIRE_FILE for node in folder.nodes(len(links))]
    columns = [
        readings.link_columns(link, wires=(wire,), clients=False) for link, wire in zip(links, wires, strict=True)
    ]
    return {
        "link": readings.link_columns(*links, wires=wires),
        "node_links": tuple(columns) if len(columns) > 1 else (),
    }


def last_frames_notes(folder: RunFolder, nodes: int, state: RunState) -> tuple[Note, ...]:
    """Return a note with the files of last headers of a failed, aborted or invalid run."""
    if state not in _CAPTURED_STATES:
        return ()
    sizes = {node: node.last_frames.stat().st_size for node in folder.nodes(nodes) if node.last_frames.is_file()}
    names = ", ".join(
        f"{node.last_frames.relative_to(folder.path)} ({format_bytes(size)})" for node, size in sizes.items()
    )
    text = f"headers of the last frames on the clients' link: {names}, in the folder of the run"
    return (Note(source="load", text=text),) if sizes else ()


def drop_last_frames(folder: RunFolder, nodes: int, state: RunState) -> None:
    """Delete the last headers of a run that went well."""
    if state not in _CAPTURED_STATES:
        for node in folder.nodes(nodes):
            node.last_frames.unlink(missing_ok=True)
