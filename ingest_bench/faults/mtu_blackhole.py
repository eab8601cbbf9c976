"""Fault `mtu-blackhole`: a router on the path has a smaller MTU, silently, as where ICMP is filtered (RFC 2923, 2.1).

Handshakes and small packets pass, full ones are lost: a connection opens, and hangs once it sends a full segment. With
`icmp = "sent"` the router sends "fragmentation needed" (RFC 1191), and TCP sends smaller segments. The learned MTU is
flushed at the end; Linux would keep it for ten minutes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from ingest_bench.faults.apply import begin_on_links
from ingest_bench.faults.blackhole import build_filter, drop_packets, order_ends, verify_drops
from ingest_bench.faults.forgers import Forgers
from ingest_bench.faults.kind import ActiveFault, FaultKind, Stage
from ingest_bench.model.experiment import Cell, Fault
from ingest_bench.network.act.link import End, Link
from ingest_bench.network.plan.link_plan import Direction
from ingest_bench.system import Child

# net.ipv4.route.min_pmtu: a sender that is told less sends fragments of this size.
_MIN_LEARNED_BYTES = 552
_TIMEOUT_S = 60.0
# The Ethernet header, the longest IP header, and a TCP header: the part of a packet that the router keeps.
_SNAP_BYTES = 14 + 60 + 20


def _find_error(cell: Cell, fault: Fault) -> str:
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


def answer_by_icmp(
    stack: ExitStack,
    link: Link,
    directions: Sequence[Direction],
    mtu_bytes: int,
    effects: list[str],
    forgers: Forgers,
) -> None:
    """Let a router send ICMP to the senders of these directions; at the end append its effect to *effects*."""
    for direction in directions:
        sender, receiver = order_ends(link, direction)
        forger = stack.enter_context(forgers.take(receiver))
        stack.enter_context(_run_router(forger, sender, receiver, mtu_bytes, effects, direction))


@contextmanager
def _run_router(
    forger: Child, sender: End, receiver: End, mtu_bytes: int, effects: list[str], direction: Direction
) -> Iterator[None]:
    packet_filter = build_filter(receiver.address, mtu_bytes, match_result=_SNAP_BYTES, other_result=0)
    forger.request(json.dumps({"hop": [receiver.device, mtu_bytes, packet_filter]}), _TIMEOUT_S)
    try:
        try:
            yield
        finally:
            # Also after a failure: the forger must be idle for its next task.
            count = int(forger.request("end", _TIMEOUT_S))
        # Before the flush.
        output = sender.namespace.run(("ss", "-Htin", "state", "established", "dst", sender.peer))
        learned = sum(int(size) <= mtu_bytes for size in re.findall(r"\bpmtu:(\d+)", output))
    finally:
        sender.namespace.run(("ip", "route", "flush", "cache"))
    effects.append(f"{direction}: {count} ICMP messages, {learned} connections have a path MTU of at most {mtu_bytes}")


def _begin(fault: Fault, stage: Stage) -> ActiveFault:
    assert fault.mtu_bytes is not None  # noqa: S101 - `_find_error` refused it
    mtu_bytes = fault.mtu_bytes
    effects: list[str] = []

    def lower_mtu(stack: ExitStack, link: Link, directions: Sequence[Direction]) -> None:
        if fault.icmp == "sent":
            answer_by_icmp(stack, link, directions, mtu_bytes, effects, stage.forgers)
        drop_packets(stack, link, directions, mtu_bytes)

    active = begin_on_links(fault, stage, lower_mtu, lambda link, directions: verify_drops(link, directions, mtu_bytes))

    def end() -> str:
        active.end()
        return "; ".join(effects)

    return ActiveFault(active.effect, end)


MTU_BLACKHOLE = FaultKind(
    scope="link",
    begin=_begin,
    keys=frozenset({"direction", "mtu_bytes", "icmp"}),
    find_error=_find_error,
    find_forging_ends=lambda fault, link, directions: (
        tuple(order_ends(link, direction)[1] for direction in directions) if fault.icmp == "sent" else ()
    ),
)
