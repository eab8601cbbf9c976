"""Faults that forge packets at an end of a link: `reset` and `mtu-blackhole`.

`reset` resets each established connection of a link at both ends.

`mtu-blackhole`: a router on the path has a smaller MTU, silently, as where ICMP is filtered (RFC 2923, 2.1). Handshakes
and small packets pass, full ones are lost: a connection opens, and hangs once it sends a full segment. With
`icmp = "sent"` the router sends "fragmentation needed" (RFC 1191), and TCP sends smaller segments. The learned MTU is
flushed at the end; Linux would keep it for ten minutes.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext

from ingest_bench import system
from ingest_bench.errors import RunFailed
from ingest_bench.faults import forged_packets
from ingest_bench.faults.apply import begin_on_links, select_directions, select_links
from ingest_bench.faults.blackhole import build_filter, drop_packets, order_ends, verify_drops
from ingest_bench.faults.kind import ActiveFault, FaultKind, Forgers, Stage
from ingest_bench.model.experiment import Cell, Fault
from ingest_bench.model.network import LinkName
from ingest_bench.network.act.link import End, Link
from ingest_bench.network.plan.link_plan import Direction

# A busy machine may take this long for what is answered twice a second.
_RESET_TIMEOUT_S = 20
# net.ipv4.route.min_pmtu: a sender that is told less sends fragments of this size.
_MIN_LEARNED_BYTES = 552
_TIMEOUT_S = 60.0
# The Ethernet header, the longest IP header, and a TCP header: the part of a packet that the router keeps.
_SNAP_BYTES = 14 + 60 + 20


@contextmanager
def _start_forgers(ends: Iterable[End]) -> Iterator[Forgers]:
    """Yield programs at these ends that are ready to forge packets. They die with our thread, which outlives the block.

    Each takes 0.2 to 1 s to start.
    """
    argv = system.build_program_argv(forged_packets.__file__)
    with ExitStack() as stack:
        forgers: dict[tuple[str, str], system.Child] = {}
        for end in ends:
            child = system.Child(end.namespace.command(argv), name=f"forged packets at {end.address}")
            forgers[end.address, end.peer] = stack.enter_context(child)
        for forger in forgers.values():
            forger.read_line()
        yield forgers


def _use_forgers(prepared: Forgers, *ends: End) -> AbstractContextManager[Forgers]:
    """Return the prepared programs, for the block; new ones if there are none."""
    return nullcontext(prepared) if prepared else _start_forgers(ends)


@contextmanager
def _prepare(fault: Fault, stage: Stage) -> Iterator[Stage]:
    """Start the programs of a fault before its time comes: its record would otherwise begin before its effect."""
    ends = (end for name, link in select_links(fault, stage) for end in _find_forging_ends(fault, name, link))
    with _start_forgers(ends) as forgers:
        yield dataclasses.replace(stage, forgers=forgers)


def _find_forging_ends(fault: Fault, name: LinkName, link: Link) -> tuple[End, ...]:
    if fault.kind == "reset":
        return link.ends
    directions = select_directions(fault, name) if fault.icmp == "sent" else ()
    return tuple(order_ends(link, direction)[1] for direction in directions)


def reset_link(link: Link, prepared: Forgers) -> int:
    """Reset each connection from the client to the server, at the client's end first; return their number.

    Meanwhile the data that arrive at that end are dropped: a fast connection would expect another sequence number by
    the time that its reset arrives. A connection that opens meanwhile is exempt, and retransmits what it lost. Raise
    RunFailed if a connection still stands.
    """
    client, server = link.ends
    # All programs start before data are dropped.
    with _use_forgers(prepared, client, server) as forgers:
        with ExitStack() as stack:
            drop_packets(stack, link, ("to-client",), "data")
            ports = _reset_end(client, forgers, peer_ports=())
        if ports:
            with ExitStack() as stack:
                drop_packets(stack, link, ("to-server",), "data")
                _reset_end(server, forgers, peer_ports=ports)
    return len(ports)


def _reset_end(end: End, forgers: Forgers, peer_ports: Sequence[int]) -> list[int]:
    task = {"reset": [end.device, end.address, end.peer, _RESET_TIMEOUT_S, [*peer_ports]]}
    reply = json.loads(forgers[end.address, end.peer].request(json.dumps(task), 2 * _RESET_TIMEOUT_S))
    ports: list[int] = reply["ports"]
    if reply["left"]:
        raise RunFailed(
            f"reset: {reply['left']} of {len(ports)} connections of {end.address} with {end.peer} still stand "
            f"after {_RESET_TIMEOUT_S} s of forged resets"
        )
    return ports


def _begin_reset(fault: Fault, stage: Stage) -> ActiveFault:
    down = {node.number: node.name for node in stage.nodes if node.is_down}
    links = dict(select_links(fault, stage))
    count = sum(reset_link(link, stage.forgers) for link in links.values())
    if not count and all(down.keys() & set(name.nodes) for name in links):
        return ActiveFault(f"skipped: {' and '.join(down.values())} is down")
    if not count:
        raise RunFailed("reset: there was no connection to reset")
    return ActiveFault(f"{count} connections")


RESET = FaultKind(scope="link", has_duration=False, begin=_begin_reset, prepare=_prepare)


def _find_mtu_error(cell: Cell, fault: Fault) -> str:
    if fault.mtu_bytes is None:
        return "requires mtu = 1400"
    profile = cell.network if fault.link == "clients" else cell.peers
    if profile is None:
        return ""
    if fault.mtu_bytes >= profile.mtu_bytes:
        return f'no packet of profile "{profile.name}" is larger than {profile.mtu_bytes} bytes. Take a smaller mtu.'
    if profile.gso_max_segs != 1:
        return (
            f'profile "{profile.name}" has super-packets of many segments, whose own sizes are not visible. Take one '
            "with gso_max_segs = 1."
        )
    if fault.icmp == "sent" and fault.mtu_bytes < _MIN_LEARNED_BYTES:
        return f"senders ignore ICMP with a path MTU below {_MIN_LEARNED_BYTES}. Take a larger mtu."
    return ""


@contextmanager
def _answer_by_icmp(
    link: Link, direction: Direction, mtu_bytes: int, effects: list[str], prepared: Forgers
) -> Iterator[None]:
    """Let a router send ICMP to the senders of a direction for the block; then append its effect to *effects*."""
    sender, receiver = order_ends(link, direction)
    packet_filter = build_filter(receiver.address, mtu_bytes, match_result=_SNAP_BYTES, other_result=0)
    try:
        with _use_forgers(prepared, receiver) as forgers:
            forger = forgers[receiver.address, receiver.peer]
            forger.request(json.dumps({"icmp": [receiver.device, mtu_bytes, packet_filter]}), _TIMEOUT_S)
            yield
            count = int(forger.request("end", _TIMEOUT_S))
        # Before the flush.
        output = sender.namespace.run(("ss", "-Htin", "state", "established", "dst", sender.peer))
        learned = sum(int(size) <= mtu_bytes for size in re.findall(r"\bpmtu:(\d+)", output))
    finally:
        sender.namespace.run(("ip", "route", "flush", "cache"))
    effects.append(f"{direction}: {count} ICMP messages, {learned} connections have a path MTU of at most {mtu_bytes}")


def _begin_mtu_blackhole(fault: Fault, stage: Stage) -> ActiveFault:
    assert fault.mtu_bytes is not None  # noqa: S101 - `_find_mtu_error` refused it
    mtu_bytes = fault.mtu_bytes
    effects: list[str] = []

    def lower_mtu(stack: ExitStack, link: Link, directions: Sequence[Direction]) -> None:
        for direction in directions if fault.icmp == "sent" else ():
            stack.enter_context(_answer_by_icmp(link, direction, mtu_bytes, effects, stage.forgers))
        drop_packets(stack, link, directions, mtu_bytes)

    return begin_on_links(
        fault,
        stage,
        lower_mtu,
        lambda link, directions: verify_drops(link, directions, mtu_bytes),
        lambda: "; ".join(effects),
    )


MTU_BLACKHOLE = FaultKind(
    scope="link",
    begin=_begin_mtu_blackhole,
    prepare=_prepare,
    keys=frozenset({"direction", "mtu_bytes", "icmp"}),
    find_error=_find_mtu_error,
)
