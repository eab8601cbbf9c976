"""A child at one end of a link that forges packets with scapy: resets, and the ICMP of a hop.

    python -m ingest_bench.faults.links.forged_packets       in the namespace of that end

It imports scapy, which takes 0.5 to 1.2 s, and says "ready". Then each line tells it to do one thing, in JSON:

    {"reset": [DEVICE, ADDRESS, PEER, LIMIT_S, [PEER_PORT…]]}    it answers {"ports": [40312], "left": 0}
    {"hop": [DEVICE, MTU, PROGRAM]}                              it answers "ready"; at the next line, how often it told

`ss -K` was rejected for resets: it needs a kernel with INET_DIAG_DESTROY, and its victim sees an abort of its own. A
reset counts only with the exact number that the victim awaits next (RFC 5961). A forged SYN makes it tell: it answers
with a challenge that has that number.
"""

from __future__ import annotations

import ctypes
import json
import select
import socket
import struct
import sys
import time
from typing import TYPE_CHECKING, Any

from ingest_bench.network.measure import capture, diag

with capture.without_folders():
    from scapy.layers.inet import ICMP, IP, TCP
    from scapy.layers.l2 import Ether

if TYPE_CHECKING:
    from collections.abc import Callable, Set

_ETH_P_ALL, _PACKET_OUTGOING = 0x0003, 4
# asm-generic/socket.h; Python has no name for it.
_ATTACH_FILTER = 26
# Of the frames that wait, so many of the newest are looked at: what older ones awaited has come since.
_NEWEST, _HEADERS_BYTES = 64, 128
# A socket answers two strange segments a second at most (net.ipv4.tcp_invalid_ratelimit).
_ASK_EVERY_S = 0.5
_LOOK_EVERY_S = 0.02
# What ICMP gives back of a packet behind its IP header (RFC 792).
_GIVEN_BACK_BYTES = 8
# A hop limits its ICMP as well: all packets of one window are lost to one cause.
_TELL_EVERY_S = 0.01

Ports = tuple[int, int]


def segment(source: str, destination: str, ports: Ports, flags: str, number: int) -> bytes:
    """A whole IPv4 packet with a bare TCP header."""
    return bytes(IP(src=source, dst=destination) / TCP(sport=ports[0], dport=ports[1], flags=flags, seq=number))


def awaited(frame: bytes, source: str) -> tuple[Ports, int] | None:
    """The ports of a segment that this end sent, and the number that it awaits next; None for any other frame."""
    packet = Ether(frame).payload
    if not isinstance(packet, IP) or packet.src != source or not isinstance(packet.payload, TCP):
        return None
    sent = packet.payload
    return ((sent.sport, sent.dport), sent.ack) if sent.flags.A and not sent.flags.R else None


def fragmentation_needed(packet: bytes, mtu_bytes: int) -> bytes:
    """The ICMP message about an IPv4 packet (RFC 1191, 4)."""
    given_back = packet[: IP(packet).ihl * 4 + _GIVEN_BACK_BYTES]
    return bytes(ICMP(type="dest-unreach", code="fragmentation-needed", nexthopmtu=mtu_bytes) / given_back)


def reset(device: str, address: str, peer: str, limit_s: float, among: Set[int]) -> tuple[set[Ports], set[Ports]]:
    """The connections to the peer, and those of them that were left when the time was over.

    `among`: only those to these ports of the peer; empty: to any.
    """
    victims = standing = {ports for ports in _connections(peer) if not among or ports[1] in among}
    until = time.monotonic() + limit_s
    ask_at = 0.0
    with (
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as sniffed,
        socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW) as forger,
    ):
        sniffed.bind((device, _ETH_P_ALL))
        sniffed.setblocking(False)
        while standing and time.monotonic() < until:
            if time.monotonic() >= ask_at:
                ask_at = time.monotonic() + _ASK_EVERY_S
                for local, remote in standing:
                    forger.sendto(segment(peer, address, (remote, local), "S", 0), (address, 0))
            look_at = time.monotonic() + _LOOK_EVERY_S
            while (left_s := look_at - time.monotonic()) > 0 and select.select([sniffed], [], [], left_s)[0]:
                for (local, remote), number in _awaited_now(sniffed, address).items():
                    if (local, remote) in standing:
                        forger.sendto(segment(peer, address, (remote, local), "R", number), (address, 0))
            standing = victims & _connections(peer)
    return victims, standing


def _awaited_now(sniffed: socket.socket, address: str) -> dict[Ports, int]:
    """The number that each connection awaits by the newest frames that wait there."""
    frames: list[bytes] = []
    while len(frames) < _NEWEST:
        try:
            frame, sender = sniffed.recvfrom(_HEADERS_BYTES)
        except BlockingIOError:
            break
        if sender[2] == _PACKET_OUTGOING:
            frames.append(frame)
    return dict(found for frame in frames if (found := awaited(frame, address)) is not None)


def _connections(peer: str) -> set[Ports]:
    return {(one.local_port, one.remote_port) for one in diag.connections() if one.remote_address == peer}


def hop(device: str, mtu_bytes: int, code: str, say: Callable[[object], None]) -> int:
    """How often it told senders that a packet was too large, until the next line came.

    `code` is classic BPF, as tc takes it, that keeps the headers of those packets.
    """
    steps = [tuple(map(int, step.split())) for step in code.split(",")[1:]]
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    told_s: dict[Any, float] = {}
    count = 0
    with (
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as seen,
        socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as forger,
    ):
        seen.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, struct.pack("HP", len(steps), ctypes.addressof(program)))
        seen.bind((device, _ETH_P_ALL))
        say("ready")
        while True:
            readable, _, _ = select.select([sys.stdin, seen], [], [])
            if sys.stdin in readable:
                return count
            packet = bytes(Ether(seen.recv(_HEADERS_BYTES)).payload)
            lost = IP(packet)
            connection, now_s = (lost.src, lost.sport, lost.dport), time.monotonic()
            if now_s - told_s.get(connection, -_TELL_EVERY_S) >= _TELL_EVERY_S:
                told_s[connection] = now_s
                forger.sendto(fragmentation_needed(packet, mtu_bytes), (lost.src, 0))
                count += 1


def _say(line: object) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    """The child, until its standard input ends."""
    _say("ready")
    while line := sys.stdin.readline():
        asked = json.loads(line)
        if "hop" in asked:
            device, mtu_bytes, code = asked["hop"]
            told = hop(device, mtu_bytes, code, _say)
            sys.stdin.readline()
            _say(told)
        else:
            device, address, peer, limit_s, among = asked["reset"]
            found, left = reset(device, address, peer, limit_s, set(among))
            _say(json.dumps({"ports": sorted(local for local, _ in found), "left": len(left)}))


if __name__ == "__main__":
    main()
