"""Clients that misbehave beside the load, which goes on being exact: other connections have no part in its numbers.

| fault | what so many more clients do |
|---|---|
| `slow-bodies` | begin a request and send its body a byte at a time |
| `garbage` | send bytes that are no request, each time on a new connection |
| `connection-flood` | open a connection and end it, ten times a second each |
| `oversized` | send a request above the server's limit |
| `zero-window` | send requests and do not read the answers |
| `half-open` | open a connection and are gone without a word |
| `syn-flood` | begin a handshake and do not end it |

Half-open ones are sockets of the kernel whose filter takes all that comes. Segments forged by scapy were rejected:
the kernel answers a SYN-ACK that is for no socket by a reset, and the server is rid of the connection.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack

from ingest_bench import system
from ingest_bench.errors import RunFailed
from ingest_bench.faults import each
from ingest_bench.faults.clients import rude_clients
from ingest_bench.faults.kind import Begun, FaultKind
from ingest_bench.faults.stage import Node, Stage
from ingest_bench.model.experiment import Fault
from ingest_bench.network.act.link import Link

# A busy machine takes its time to end some thousand connections.
_END_LIMIT_S = 30.0
CONNECTIONS = 20
_OF_ANY_PROTOCOL = ("garbage", "connection-flood", "half-open", "syn-flood")
# What the server holds of them, as `ss` calls it.
_HELD = {"half-open": "established", "syn-flood": "syn-recv"}
_WORDS = {"refused": "refused", "ended_by_server": "ended by the server", "closed_windows": "closed windows at a time"}


def _begin(fault: Fault, stage: Stage) -> Begun:
    assert stage.links is not None  # noqa: S101 - a server of ours has one
    links = stage.links.clients

    def begin(node: Node) -> tuple[Node, Link, system.Child]:
        link = links[node.number - 1]
        return node, link, _start(fault, node, link)

    def end(children: Sequence[tuple[Node, Link, system.Child]]) -> str:
        with ExitStack() as stack:
            # All are gone, whatever one says.
            for *_, child in children:
                stack.enter_context(child)
            # What the servers hold, before the clients let go.
            held = [_held(fault.kind, node, link) for node, link, _ in children]
            said = [_ended(fault.kind, child) for _, _, child in children]
        return "; ".join(
            f"{node.name}: {words}{more}" for (node, *_), words, more in zip(children, said, held, strict=True)
        )

    return each.together(fault, stage, begin, end)


def _start(fault: Fault, node: Node, link: Link) -> system.Child:
    listen = node.process.listen
    argv = system.script(
        rude_clients.__file__, fault.kind, listen.host, str(listen.port), str(fault.connections or CONNECTIONS)
    )
    # It dies with the thread of the faults, which outlives every fault.
    return system.Child(link.client.command(argv), name=f"{fault.kind}: its clients")


def _held(kind: str, node: Node, link: Link) -> str:
    """How many of such clients' connections the server has. RunFailed for handshakes that it knows nothing of."""
    if kind not in _HELD:
        return ""
    first, last = rude_clients.OWN_PORTS[0], rude_clients.OWN_PORTS[-1]
    those = f"sport = :{node.process.listen.port} and dport >= :{first} and dport <= :{last}"
    found = len(link.server.run(("ss", "-Htn", "state", _HELD[kind], those)).splitlines())
    if not found and kind == "syn-flood" and not node.is_down:
        raise RunFailed(f"{kind}: {node.name} has no handshake that is under way")
    return f", {found} of them held by the server at the end"


def _ended(kind: str, child: system.Child) -> str:
    """What they saw. RunFailed when not one of them had a connection."""
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
