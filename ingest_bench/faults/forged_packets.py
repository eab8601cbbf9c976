"""Program at one end of a link that forges packets: resets, and the ICMP of a router.

It runs in the namespace of that end, and prints "ready". Then each line of its standard input is a task as JSON:

| task | output |
|---|---|
| {"reset": [DEVICE, ADDRESS, PEER, TIMEOUT_S, [PEER_PORT, …]]} | {"ports": [40312], "left": 0} |
| {"icmp": [DEVICE, MTU, FILTER]} | "ready"; after the next line the number of messages sent |

Rejected for resets: `ss -K`, which needs a kernel with INET_DIAG_DESTROY and aborts the socket itself. A reset is
accepted only with the exact sequence number that the victim expects next (RFC 5961). A forged SYN reveals it: the
victim answers with a challenge ACK that has that number. Rejected for the headers: scapy, whose import takes 0.5 to
1.2 s.
"""

from __future__ import annotations

import json
import select
import socket
import struct
import sys
import time
from collections.abc import Set

from ingest_bench.network import classic_bpf as bpf
from ingest_bench.network.measure import tcp_info

_ETH_P_ALL, _PACKET_OUTGOING = 0x0003, 4
_ETHERNET_BYTES = 14
# RFC 791, 3.1, and RFC 9293, 3.1, without options.
_IP, _TCP = struct.Struct(">BBHHHBBH8s"), struct.Struct(">HHIIBBHHH")
SYN, RST, ACK = 0x02, 0x04, 0x10
# Only the newest of the queued frames count: what older ones expected has arrived since.
_MAX_FRAMES, _HEADERS_BYTES = 64, 128
# A socket answers at most two invalid segments per second (net.ipv4.tcp_invalid_ratelimit).
_SYN_INTERVAL_S = 0.5
_POLL_S = 0.02
# ICMP quotes these bytes of a packet after its IP header (RFC 792).
_QUOTED_BYTES = 8
# Routers limit the rate of ICMP too. All packets of one window are lost for the same reason.
_ICMP_INTERVAL_S = 0.01

Ports = tuple[int, int]


def forge_segment(source: str, destination: str, ports: Ports, flags: int, number: int) -> bytes:
    """Return an IPv4 packet with a TCP header and no data. The kernel adds the checksum of the IP header."""
    addresses = socket.inet_aton(source) + socket.inet_aton(destination)
    header = _TCP.pack(*ports, number, 0, _TCP.size // 4 << 4, flags, 8192, 0, 0)
    pseudo_header = addresses + struct.pack(">HH", socket.IPPROTO_TCP, _TCP.size)
    ip_header = _IP.pack(0x45, 0, _IP.size + _TCP.size, 1, 0, 64, socket.IPPROTO_TCP, 0, addresses)
    return ip_header + _add_checksum(header, 16, pseudo_header)


def parse_expected_number(frame: bytes, source: str) -> tuple[Ports, int] | None:
    """Return the ports of a segment from *source*, and the number that it expects next; None for other frames."""
    packet = frame[_ETHERNET_BYTES:]
    if frame[12:14] != b"\x08\x00" or len(packet) < _IP.size:
        return None
    start = _ip_header_bytes(packet)
    if packet[9] != socket.IPPROTO_TCP or packet[12:16] != socket.inet_aton(source) or len(packet) < start + _TCP.size:
        return None
    own_port, peer_port, _, number, _, flags, *_ = _TCP.unpack_from(packet, start)
    return ((own_port, peer_port), number) if flags & (ACK | RST) == ACK else None


def forge_fragmentation_needed(packet: bytes, mtu_bytes: int) -> bytes:
    """Return the ICMP message about an IPv4 packet that is too large (RFC 1191, 4)."""
    message = struct.pack(">BBHHH", 3, 4, 0, 0, mtu_bytes) + packet[: _ip_header_bytes(packet) + _QUOTED_BYTES]
    return _add_checksum(message, 2)


def _ip_header_bytes(packet: bytes) -> int:
    return (packet[0] & 0x0F) * 4


def _add_checksum(message: bytes, offset: int, pseudo_header: bytes = b"") -> bytes:
    """Return a message of an even number of bytes with its checksum, which is 0 so far (RFC 1071)."""
    data = pseudo_header + message
    total: int = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return message[:offset] + (total ^ 0xFFFF).to_bytes(2, "big") + message[offset + 2 :]


def reset_connections(
    device: str, address: str, peer: str, timeout_s: float, peer_ports: Set[int]
) -> tuple[set[Ports], set[Ports]]:
    """Reset the connections to *peer*; return them, and those that still stand after *timeout_s*.

    *peer_ports*: only connections to these ports of the peer; empty: to any.
    """
    victims = standing = {ports for ports in _list_connections(peer) if not peer_ports or ports[1] in peer_ports}
    deadline = time.monotonic() + timeout_s
    next_syn_s = 0.0
    with (
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as sniffer,
        socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW) as forger,
    ):
        sniffer.bind((device, _ETH_P_ALL))
        sniffer.setblocking(False)
        while standing and time.monotonic() < deadline:
            if time.monotonic() >= next_syn_s:
                next_syn_s = time.monotonic() + _SYN_INTERVAL_S
                for local, remote in standing:
                    forger.sendto(forge_segment(peer, address, (remote, local), SYN, 0), (address, 0))
            poll_until_s = time.monotonic() + _POLL_S
            while (left_s := poll_until_s - time.monotonic()) > 0 and select.select([sniffer], [], [], left_s)[0]:
                for (local, remote), number in _read_expected_numbers(sniffer, address).items():
                    if (local, remote) in standing:
                        forger.sendto(forge_segment(peer, address, (remote, local), RST, number), (address, 0))
            standing = victims & _list_connections(peer)
    return victims, standing


def _read_expected_numbers(sniffer: socket.socket, address: str) -> dict[Ports, int]:
    """Return the number that each connection expects, from the queued frames."""
    frames: list[bytes] = []
    while len(frames) < _MAX_FRAMES:
        try:
            frame, sender = sniffer.recvfrom(_HEADERS_BYTES)
        except BlockingIOError:
            break
        if sender[2] == _PACKET_OUTGOING:
            frames.append(frame)
    return dict(number for frame in frames if (number := parse_expected_number(frame, address)) is not None)


def _list_connections(peer: str) -> set[Ports]:
    return {connection.ports for connection in tcp_info.list_connections() if connection.remote_address == peer}


def send_icmp(device: str, mtu_bytes: int, packet_filter: str) -> int:
    """Send ICMP about each packet that is too large, until the next line of input; return the number of messages.

    *packet_filter*: classic BPF, as tc takes it, that keeps the headers of such packets.
    """
    sent_at_s: dict[bytes, float] = {}
    count = 0
    with (
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as sniffer,
        socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as forger,
    ):
        bpf.attach(sniffer, bpf.parse_tc_format(packet_filter))
        sniffer.bind((device, _ETH_P_ALL))
        _write("ready")
        while True:
            readable, _, _ = select.select([sys.stdin, sniffer], [], [])
            if sys.stdin in readable:
                return count
            packet = sniffer.recv(_HEADERS_BYTES)[_ETHERNET_BYTES:]
            source, start = packet[12:16], _ip_header_bytes(packet)
            connection, now_s = source + packet[start : start + 4], time.monotonic()
            if now_s - sent_at_s.get(connection, -_ICMP_INTERVAL_S) >= _ICMP_INTERVAL_S:
                sent_at_s[connection] = now_s
                forger.sendto(forge_fragmentation_needed(packet, mtu_bytes), (socket.inet_ntoa(source), 0))
                count += 1


def _write(line: object) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    """Carry out tasks until the standard input ends."""
    _write("ready")
    while line := sys.stdin.readline():
        task = json.loads(line)
        if "icmp" in task:
            device, mtu_bytes, packet_filter = task["icmp"]
            count = send_icmp(device, mtu_bytes, packet_filter)
            sys.stdin.readline()
            _write(count)
        else:
            device, address, peer, timeout_s, peer_ports = task["reset"]
            victims, standing = reset_connections(device, address, peer, timeout_s, frozenset(peer_ports))
            _write(json.dumps({"ports": sorted(local for local, _ in victims), "left": len(standing)}))


if __name__ == "__main__":
    main()
