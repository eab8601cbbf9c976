"""The reset of TCP connections at one end of a link, the way a box on the path does it: by forged segments.

`ss -K` was rejected: it needs a kernel with INET_DIAG_DESTROY, and its victim sees an abort of its own, not a reset.

    python -m ingest_bench.faults.links.forged_resets DEVICE ADDRESS PEER LIMIT_S [PEER_PORT…]    in ADDRESS's namespace

A reset counts only with the exact number that the victim awaits next (RFC 5961). A forged SYN makes it tell: it
answers with a challenge that has that number.
"""

from __future__ import annotations

import json
import select
import socket
import struct
import sys
import time
from typing import TYPE_CHECKING

from ingest_bench.network.measure import diag

if TYPE_CHECKING:
    from collections.abc import Set

_ETH_P_ALL, _ETHER_TYPE_AT = 0x0003, 12
_IPV4 = b"\x08\x00"
_IP_AT = 14
_SYN, _RST, _ACK = 0x02, 0x04, 0x10
# A socket answers two strange segments a second at most (net.ipv4.tcp_invalid_ratelimit).
_ASK_EVERY_S = 0.5
_LOOK_EVERY_S = 0.02

Ports = tuple[int, int]


def forged(source: str, destination: str, ports: Ports, flags: int, sequence: int) -> bytes:
    """A whole IPv4 packet with a bare TCP header; the kernel fills in IP's own checksum and length.

    Not by scapy: its import takes 0.6 s, and twice that on a busy machine. A reset at 500 ms of a measurement of 1.5 s
    then found nobody.
    """
    addresses = socket.inet_aton(source) + socket.inet_aton(destination)
    header = struct.pack(">HHIIBBHHH", *ports, sequence, 0, 5 << 4, flags, 0, 0, 0)
    checksum = ones_complement(addresses + struct.pack(">HH", socket.IPPROTO_TCP, len(header)) + header)
    header = header[:16] + struct.pack(">H", checksum) + header[18:]
    return struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(header), 0, 0, 64, socket.IPPROTO_TCP, 0) + addresses + header


def ones_complement(data: bytes) -> int:
    """The Internet checksum of an even number of bytes (RFC 1071)."""
    total: int = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def awaited(frame: bytes, source: str) -> tuple[Ports, int] | None:
    """The ports of a segment that this end sent, and the number that it awaits next; None for any other frame."""
    at = _IP_AT + (frame[_IP_AT] & 0xF) * 4 if len(frame) > _IP_AT else 0
    if len(frame) < at + 14 or frame[_ETHER_TYPE_AT:_IP_AT] != _IPV4 or frame[_IP_AT + 9] != socket.IPPROTO_TCP:
        return None
    if frame[_IP_AT + 12 : _IP_AT + 16] != socket.inet_aton(source):
        return None
    local, remote, _, acknowledged, _, flags = struct.unpack_from(">HHIIBB", frame, at)
    return ((local, remote), acknowledged) if flags & _ACK and not flags & _RST else None


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
                    forger.sendto(forged(peer, address, (remote, local), _SYN, 0), (address, 0))
            look_at = time.monotonic() + _LOOK_EVERY_S
            while (left_s := look_at - time.monotonic()) > 0 and select.select([sniffed], [], [], left_s)[0]:
                found = awaited(sniffed.recv(128), address)
                if found is not None and found[0] in standing:
                    (local, remote), number = found
                    forger.sendto(forged(peer, address, (remote, local), _RST, number), (address, 0))
            standing = victims & _connections(peer)
    return victims, standing


def _connections(peer: str) -> set[Ports]:
    return {(one.local_port, one.remote_port) for one in diag.connections() if one.remote_address == peer}


def main() -> None:
    """The child: the local ports of the connections, and how many stand: {"ports": [40312], "left": 0}."""
    device, address, peer, limit_s, *among = sys.argv[1:]
    found, left = reset(device, address, peer, float(limit_s), {int(port) for port in among})
    sys.stdout.write(json.dumps({"ports": sorted(local for local, _ in found), "left": len(left)}))


if __name__ == "__main__":
    main()
