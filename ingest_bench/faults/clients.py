"""Clients that misbehave beside the load, which goes on being exact: other connections have no part in its numbers.

| fault | what so many more clients do |
|---|---|
| `slow-bodies` | begin a request and send its body a byte at a time |
| `garbage` | send bytes that are no request, each time on a new connection |
| `connection-flood` | open a connection and end it, ten times a second each |
| `oversized` | send a request above the server's limit |
| `zero-window` | send requests and do not read the answers |
"""

from __future__ import annotations

import json

from ingest_bench import system
from ingest_bench.errors import RunFailed
from ingest_bench.faults import each, rude_clients
from ingest_bench.faults.kind import Begun, FaultKind
from ingest_bench.faults.stage import Node, Stage
from ingest_bench.model.experiment import Fault
from ingest_bench.network import Link

# A busy machine takes its time to end some thousand connections.
_END_LIMIT_S = 30.0
CONNECTIONS = 20
_OF_ANY_PROTOCOL = ("garbage", "connection-flood")
_WORDS = {"refused": "refused", "ended_by_server": "ended by the server", "closed_windows": "closed windows at a time"}


def _begin(fault: Fault, stage: Stage) -> Begun:
    assert stage.links is not None  # noqa: S101 - a server of ours has one
    nodes = each.nodes(fault, stage)
    children = [(node, _start(fault, node, stage.links.clients[node.number - 1])) for node in nodes]

    def end() -> str:
        return "; ".join(f"{node.name}: {_ended(fault.kind, child)}" for node, child in children)

    return Begun("", end)


def _start(fault: Fault, node: Node, link: Link) -> system.Child:
    listen = node.process.listen
    argv = system.script(
        rude_clients.__file__, fault.kind, listen.host, str(listen.port), str(fault.connections or CONNECTIONS)
    )
    # It dies with the thread of the faults, which outlives every fault.
    return system.Child(link.client.command(argv), name=f"{fault.kind}: its clients")


def _ended(kind: str, child: system.Child) -> str:
    """What they saw. RunFailed when not one of them had a connection."""
    with child:
        try:
            seen = json.loads(child.rest(_END_LIMIT_S))
        except ValueError:
            raise RunFailed(f"{child.name} broke, they said: {child.said()}") from None
    if not seen["opened"]:
        raise RunFailed(f"{kind}: none of its clients had a connection, {seen['refused']} were refused")
    told = [f"{seen['opened']} connections"]
    told += [f"{seen[name]} {words}" for name, words in _WORDS.items() if seen[name]]
    told += [f"{count} answers {status}" for status, count in sorted(seen["answers"].items())]
    return ", ".join(told)


CLIENTS = {
    name: FaultKind(
        hits="node",
        begin=_begin,
        lasts=True,
        takes=frozenset({"connections"}),
        needs_http=name not in _OF_ANY_PROTOCOL,
    )
    for name in rude_clients.KINDS
}
