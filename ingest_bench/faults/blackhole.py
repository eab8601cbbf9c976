"""Faults `blackhole` and `partition`, and the packet filters that drop packets silently.

`blackhole`: handshakes and acknowledgements pass, TCP segments with data are dropped. `partition`: all packets of a
direction are lost, and TCP retransmits them after the end.

Filters are at the receiving end, because a drop on the sender's own egress is reported to the sender. They are classic
BPF, which an ordinary user may load, and which works in a kernel without cls_matchall or act_gact.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Literal

from ingest_bench.errors import MissingCapability, RunFailed
from ingest_bench.faults.apply import begin_on_links
from ingest_bench.faults.kind import FaultKind, hold_effect
from ingest_bench.network import classic_bpf as bpf
from ingest_bench.network.act.link import End, Link
from ingest_bench.network.measure import check
from ingest_bench.network.plan.link_plan import DIRECTIONS, Direction, batch_text

Dropped = Literal["all", "data"] | int
"""The packets that a filter drops: all; TCP segments with data; or IP packets above a number of bytes."""

# linux/pkt_cls.h: TC_ACT_SHOT drops, TC_ACT_UNSPEC (-1) asks the next filter.
_SHOT, _UNSPECIFIED = 2, 0xFFFFFFFF
_IPV4, _TCP = 0x0800, 6
# Offsets in an Ethernet frame with IPv4 in it.
_ETHER_TYPE_AT, _IP_AT = 12, 14
_TOTAL_LENGTH_AT, _PROTOCOL_AT, _DESTINATION_AT = _IP_AT + 2, _IP_AT + 9, _IP_AT + 16
_TCP_HEADER_LENGTH_AT = _IP_AT + 12  # after the IP header, whose length is in X


def build_filter(address: str, dropped: Dropped, *, match_result: int = _SHOT, other_result: int = _UNSPECIFIED) -> str:
    """Return a classic BPF program for tc, with its result for the *dropped* packets to *address* and for others."""
    number = int.from_bytes(socket.inet_aton(address), "big")
    steps: list[bpf.LabelledInstruction] = [
        (bpf.LOAD_HALF, 0, 0, _ETHER_TYPE_AT),
        (bpf.JUMP_EQUAL, 0, "pass", _IPV4),
        (bpf.LOAD_WORD, 0, 0, _DESTINATION_AT),
        (bpf.JUMP_EQUAL, 0, "pass", number),
    ]
    if isinstance(dropped, int):
        steps += [(bpf.LOAD_HALF, 0, 0, _TOTAL_LENGTH_AT), (bpf.JUMP_ABOVE, "drop", "pass", dropped)]
    elif dropped == "data":
        steps += [
            (bpf.LOAD_BYTE, 0, 0, _PROTOCOL_AT),
            (bpf.JUMP_EQUAL, 0, "pass", _TCP),
            (bpf.LOAD_X_IP_HEADER_LENGTH, 0, 0, _IP_AT),
            (bpf.LOAD_BYTE_X, 0, 0, _TCP_HEADER_LENGTH_AT),
            (bpf.AND, 0, 0, 0xF0),
            (bpf.SHIFT_RIGHT, 0, 0, 2),
            (bpf.ADD_X, 0, 0, 0),
            (bpf.COPY_TO_X, 0, 0, 0),
            (bpf.LOAD_HALF, 0, 0, _TOTAL_LENGTH_AT),
            # A super-packet above 64 KiB has length 0 here (BIG TCP), and has data.
            (bpf.JUMP_EQUAL, "drop", 0, 0),
            (bpf.SUBTRACT_X, 0, 0, 0),
            (bpf.JUMP_EQUAL, "pass", 0, 0),
        ]
    ends = {"drop": [(bpf.RETURN, 0, 0, match_result)], "pass": [(bpf.RETURN, 0, 0, other_result)]}
    return bpf.format_for_tc(bpf.assemble({"": steps, **ends}))


def drop_packets(stack: ExitStack, link: Link, directions: Sequence[Direction], dropped: Dropped) -> None:
    """Drop packets of these directions at the receiver until *stack* is closed."""
    for direction in directions:
        _drop_in_direction(stack, link, direction, dropped)


def _drop_in_direction(stack: ExitStack, link: Link, direction: Direction, dropped: Dropped) -> None:
    _, receiver = order_ends(link, direction)
    device, namespace, preference = receiver.device, receiver.namespace, _choose_preference(direction, dropped)

    def add_filter() -> None:
        # Another filter may have made the qdisc; without a filter it has no effect.
        namespace.run(("tc", "qdisc", "add", "dev", device, "clsact"), check=False)
        code = build_filter(receiver.address, dropped)
        line = f"filter add dev {device} ingress pref {preference} protocol ip bpf da bytecode '{code}'"
        try:
            namespace.run(("tc", "-batch", "-"), stdin=batch_text((line,)))
        except RunFailed as error:
            raise MissingCapability(
                f"fault: packets cannot be dropped here, which requires a kernel with sch_ingress and cls_bpf: {error}"
            ) from None

    def remove_filter() -> None:
        line = f"filter del dev {device} ingress pref {preference}"
        namespace.run(("tc", "-batch", "-"), stdin=batch_text((line,)))
        if not namespace.run(("tc", "filter", "show", "dev", device, "ingress")).strip():
            namespace.run(("tc", "qdisc", "del", "dev", device, "clsact"))

    effect = f"drop {dropped}", direction
    stack.callback(hold_effect(link.lock, link.active_faults, effect, add_filter, remove_filter))


def verify_drops(link: Link, directions: Sequence[Direction], dropped: Dropped) -> str:
    """Return a text about the filters of these directions; raise RunFailed if the kernel does not show them."""
    for direction in directions:
        _, receiver = order_ends(link, direction)
        output = receiver.namespace.run(("tc", "filter", "show", "dev", receiver.device, "ingress"))
        if f" pref {_choose_preference(direction, dropped)} bpf " not in f"{output} ":
            raise RunFailed(f"{direction}: the filter that drops packets is gone; another program removed it")
    packets = {"all": "packets", "data": "segments with data"}.get(str(dropped), f"packets above {dropped} bytes")
    return f"{packets} {' and '.join(directions)} are dropped at the receiver"


def order_ends(link: Link, direction: Direction) -> tuple[End, End]:
    """Return sender and receiver."""
    client, server = link.ends
    return (client, server) if direction == "to-server" else (server, client)


def _choose_preference(direction: Direction, dropped: Dropped) -> int:
    """Return a filter preference that is unique by direction and dropped packets, so that faults may overlap."""
    order = {"all": 0, "data": 1}.get(str(dropped), dropped)
    return 1 + 2 * int(order) + DIRECTIONS.index(direction)


BLACKHOLE = FaultKind(
    scope="link",
    begin=lambda fault, stage: begin_on_links(
        fault,
        stage,
        lambda stack, link, directions: drop_packets(stack, link, directions, "data"),
        lambda link, directions: verify_drops(link, directions, "data"),
    ),
    keys=frozenset({"direction"}),
)


def partition(stack: ExitStack, link: Link, directions: Sequence[Direction]) -> None:
    """Lose all packets of these directions: by a wrong receiver address, or on a loopback link by a filter."""
    if link.profile.medium == "loopback":
        drop_packets(stack, link, directions, "all")
        return
    for direction in directions:
        cut, restore = (partial(link.set_cut, direction, is_cut=is_cut) for is_cut in (True, False))
        stack.callback(hold_effect(link.lock, link.active_faults, ("cut", direction), cut, restore))


def _verify_partition(link: Link, directions: Sequence[Direction]) -> str:
    if link.profile.medium == "loopback":
        return verify_drops(link, directions, "all")
    for direction in directions:
        if not check.is_cut(link, direction):
            raise RunFailed(f"{direction}: frames have a receiver again; another program changed the neighbour entry")
    return f"frames {' and '.join(directions)} have no receiver"


PARTITION = FaultKind(
    scope="link",
    begin=lambda fault, stage: begin_on_links(fault, stage, partition, _verify_partition),
    keys=frozenset({"direction"}),
)
