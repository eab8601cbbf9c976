"""Faults of additional clients that misbehave next to the load. The load's numbers do not include their connections.

What each of them does is in `misbehaving_clients`. Half-open connections are sockets of the kernel whose filter drops
all incoming packets. Rejected: forged segments, because the kernel answers a SYN-ACK that belongs to no socket by a
reset, which closes the server's connection.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from ingest_bench import system
from ingest_bench.errors import RunFailed
from ingest_bench.faults import misbehaving_clients
from ingest_bench.faults.apply import begin_on_nodes
from ingest_bench.faults.kind import ActiveFault, FaultKind, Node, Stage
from ingest_bench.model.experiment import Fault
from ingest_bench.network.act.link import Link

# A busy machine needs time to close some thousand connections.
_END_TIMEOUT_S = 30.0
DEFAULT_CONNECTIONS = 20
_FOR_ANY_PROTOCOL = ("garbage", "connection-flood", "half-open", "syn-flood")
# The state of such connections at the server, as `ss` names it.
_SERVER_STATES = {"half-open": "established", "syn-flood": "syn-recv"}
_COUNTER_TEXTS = {
    "refused": "refused",
    "ended_by_server": "closed by the server",
    "closed_windows": "closed windows at a time",
}


def _begin(fault: Fault, stage: Stage) -> ActiveFault:
    assert stage.links is not None  # noqa: S101 - a launched server has one
    links = stage.links.clients
    return begin_on_nodes(fault, stage, lambda node: _start_clients(fault, node, links[node.number - 1]))


def _start_clients(fault: Fault, node: Node, link: Link) -> ActiveFault:
    server, count = node.process.listen, fault.connections or DEFAULT_CONNECTIONS
    argv = system.build_script_argv(misbehaving_clients.__file__, fault.kind, server.host, str(server.port), str(count))
    # It dies with the thread of this fault.
    child = system.Child(link.client.command(argv), name=f"{fault.kind}: its clients")

    def end() -> str:
        with child:
            # Count the server's connections before the clients close them.
            held_text = _count_server_connections(fault.kind, node, link)
            return _read_result(fault.kind, child) + held_text

    return ActiveFault(end_fault=end)


def _count_server_connections(kind: str, node: Node, link: Link) -> str:
    """Return how many of the clients' connections the server has; raise RunFailed if it has no handshake of a flood."""
    if kind not in _SERVER_STATES:
        return ""
    first, last = misbehaving_clients.OWN_PORTS[0], misbehaving_clients.OWN_PORTS[-1]
    clients_filter = f"sport = :{node.process.listen.port} and dport >= :{first} and dport <= :{last}"
    count = len(link.server.run(("ss", "-Htn", "state", _SERVER_STATES[kind], clients_filter)).splitlines())
    if not count and kind == "syn-flood" and not node.is_down:
        raise RunFailed(f"{kind}: {node.name} has no pending handshake")
    return f", {count} of them held by the server at the end"


def _read_result(kind: str, child: system.Child) -> str:
    """Return the clients' counters as text; raise RunFailed if none of them had a connection."""
    try:
        result = json.loads(child.read_until_exit(_END_TIMEOUT_S))
    except ValueError:
        raise RunFailed(f"{child.name} failed. Their output: {child.read_stderr_tail()}") from None
    if not result["opened"]:
        raise RunFailed(f"{kind}: none of its clients had a connection, {result['refused']} were refused")
    texts = [f"{result['opened']} connections"]
    texts += [f"{result[name]} {text}" for name, text in _COUNTER_TEXTS.items() if result[name]]
    texts += [f"{count} responses {status}" for status, count in sorted(result["responses"].items())]
    return ", ".join(texts)


MISBEHAVING_CLIENTS: Mapping[str, FaultKind] = {
    name: FaultKind(
        scope="node",
        begin=_begin,
        keys=frozenset({"connections"}),
        needs_http=name not in _FOR_ANY_PROTOCOL,
    )
    for name in misbehaving_clients.KINDS
}
