"""Child process at one end of a link that forges packets with scapy: resets, and the ICMP of a router.

    python -m ingest_bench.faults.forged_packets       in the namespace of that end

It imports scapy, which takes 0.5 to 1.2 s, and prints "ready". Then each line of its standard input is a task as JSON:

| task | output |
|---|---|
| {"reset": [DEVICE, ADDRESS, PEER, TIMEOUT_S, [PEER_PORT, …]]} | {"ports": [40312], "left": 0} |
| {"hop": [DEVICE, MTU, FILTER]} | "ready"; after the next line the number of ICMP messages sent |

Rejected for resets: `ss -K`, which needs a kernel with INET_DIAG_DESTROY and aborts the socket itself. A reset is
accepted only with the exact sequence number that the victim expects next (RFC 5961). A forged SYN reveals it: the
victim answers with a challenge ACK that has that number.
"""

from __future__ import annotations

import json
import select
import socket
import sys
import time
from typing import TYPE_CHECKING, Any

from ingest_bench.network import classic_bpf as bpf
from ingest_bench.network.measure import capture, tcp_info

with capture.without_home_folders():
    from scapy.layers.inet import ICMP, IP, TCP
    from scapy.layers.l2 import Ether

if TYPE_CHECKING:
    from collections.abc import Callable, Set

_ETH_P_ALL, _PACKET_OUTGOING = 0x0003, 4
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


def forge_segment(source: str, destination: str, ports: Ports, flags: str, number: int) -> bytes:
    """Return an IPv4 packet with a TCP header and no data."""
    return bytes(IP(src=source, dst=destination) / TCP(sport=ports[0], dport=ports[1], flags=flags, seq=number))


def parse_expected_number(frame: bytes, source: str) -> tuple[Ports, int] | None:
    """Return the ports of a segment from *source*, and the number that it expects next; None for other frames."""
    packet = Ether(frame).payload
    if not isinstance(packet, IP) or packet.src != source or not isinstance(packet.payload, TCP):
        return None
    segment = packet.payload
    return ((segment.sport, segment.dport), segment.ack) if segment.flags.A and not segment.flags.R else None


def forge_fragmentation_needed(packet: bytes, mtu_bytes: int) -> bytes:
    """Return the ICMP message about an IPv4 packet that is too large (RFC 1191, 4)."""
    quoted = packet[: IP(packet).ihl * 4 + _QUOTED_BYTES]
    return bytes(ICMP(type="dest-unreach", code="fragmentation-needed", nexthopmtu=mtu_bytes) / quoted)


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
                    forger.sendto(forge_segment(peer, address, (remote, local), "S", 0), (address, 0))
            poll_until_s = time.monotonic() + _POLL_S
            while (left_s := poll_until_s - time.monotonic()) > 0 and select.select([sniffer], [], [], left_s)[0]:
                for (local, remote), number in _read_expected_numbers(sniffer, address).items():
                    if (local, remote) in standing:
                        forger.sendto(forge_segment(peer, address, (remote, local), "R", number), (address, 0))
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
    return {
        (connection.local_port, connection.remote_port)
        for connection in tcp_info.list_connections()
        if connection.remote_address == peer
    }


def send_icmp(device: str, mtu_bytes: int, packet_filter: str, write: Callable[[object], None]) -> int:
    """Send ICMP about each packet that is too large, until the next line of input; return the number of messages.

    *packet_filter*: classic BPF, as tc takes it, that keeps the headers of such packets.
    """
    program = bpf.parse_tc_format(packet_filter)
    sent_at_s: dict[Any, float] = {}
    count = 0
    with (
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as sniffer,
        socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as forger,
    ):
        bpf.attach(sniffer, program)
        sniffer.bind((device, _ETH_P_ALL))
        write("ready")
        while True:
            readable, _, _ = select.select([sys.stdin, sniffer], [], [])
            if sys.stdin in readable:
                return count
            packet = bytes(Ether(sniffer.recv(_HEADERS_BYTES)).payload)
            lost = IP(packet)
            connection, now_s = (lost.src, lost.sport, lost.dport), time.monotonic()
            if now_s - sent_at_s.get(connection, -_ICMP_INTERVAL_S) >= _ICMP_INTERVAL_S:
                sent_at_s[connection] = now_s
                forger.sendto(forge_fragmentation_needed(packet, mtu_bytes), (lost.src, 0))
                count += 1


def _write(line: object) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    """Carry out tasks until the standard input ends."""
    _write("ready")
    while line := sys.stdin.readline():
        task = json.loads(line)
        if "hop" in task:
            device, mtu_bytes, packet_filter = task["hop"]
            count = send_icmp(device, mtu_bytes, packet_filter, _write)
            sys.stdin.readline()
            _write(count)
        else:
            device, address, peer, timeout_s, peer_ports = task["reset"]
            victims, standing = reset_connections(device, address, peer, timeout_s, set(peer_ports))
            _write(json.dumps({"ports": sorted(local for local, _ in victims), "left": len(standing)}))


if __name__ == "__main__":
    main()
