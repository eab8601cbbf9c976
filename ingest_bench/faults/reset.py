"""Fault `reset`: reset each established connection of a link at both ends."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack

from ingest_bench.errors import RunFailed
from ingest_bench.faults.apply import select_links
from ingest_bench.faults.blackhole import drop_packets
from ingest_bench.faults.forgers import Forgers
from ingest_bench.faults.kind import ActiveFault, FaultKind, Stage
from ingest_bench.model.experiment import Fault
from ingest_bench.network.act.link import End, Link

# A busy machine may take this long for what is answered twice a second.
_TIMEOUT_S = 20


def reset_link(link: Link, forgers: Forgers) -> int:
    """Reset each connection from the client to the server, at the client's end first; return their number.

    Meanwhile the data that arrive at that end are dropped: a fast connection would expect another sequence number by
    the time that its reset arrives. A connection that opens meanwhile is exempt, and retransmits what it lost. Raise
    RunFailed if a connection still stands.
    """
    client, server = link.ends
    with ExitStack() as stack:
        drop_packets(stack, link, ("to-client",), "data")
        ports = _reset_end(client, forgers, peer_ports=())
    if ports:
        with ExitStack() as stack:
            drop_packets(stack, link, ("to-server",), "data")
            _reset_end(server, forgers, peer_ports=ports)
    return len(ports)


def _reset_end(end: End, forgers: Forgers, peer_ports: Sequence[int]) -> list[int]:
    task = {"reset": [end.device, end.address, end.peer, _TIMEOUT_S, [*peer_ports]]}
    with forgers.take(end) as forger:
        reply = json.loads(forger.request(json.dumps(task), 2 * _TIMEOUT_S))
    ports: list[int] = reply["ports"]
    if reply["left"]:
        raise RunFailed(
            f"reset: {reply['left']} of {len(ports)} connections of {end.address} with {end.peer} still stand "
            f"after {_TIMEOUT_S} s of forged resets"
        )
    return ports


def _begin(fault: Fault, stage: Stage) -> ActiveFault:
    down = {node.number: node.name for node in stage.nodes if node.is_down}
    links = dict(select_links(fault, stage))
    count = sum(reset_link(link, stage.forgers) for link in links.values())
    if not count and all(down.keys() & set(name.nodes) for name in links):
        return ActiveFault(f"skipped: {' and '.join(down.values())} is down")
    if not count:
        raise RunFailed("reset: there was no connection to reset")
    return ActiveFault(f"{count} connections")


RESET = FaultKind(
    scope="link", has_duration=False, begin=_begin, find_forging_ends=lambda _fault, link, _directions: link.ends
)
