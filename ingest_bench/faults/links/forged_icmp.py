"""A hop that says "fragmentation needed": a program that runs where packets vanish, until its standard input ends.

    python forged_icmp.py DEVICE MTU PROGRAM

PROGRAM is classic BPF, as tc takes it, that keeps the packets which are too large. At its end it says how often it told
a sender. It imports nothing of ours, and not scapy either, whose import takes 0.6 to 1.2 s: the first packets of the
fault would hear nothing.
"""

from __future__ import annotations

import ctypes
import select
import socket
import struct
import sys
import time

# The Ethernet header, the longest IP header, and what ICMP gives back of the segment (RFC 792).
SNAP_BYTES = 14 + 60 + 8
_ETH_P_ALL, _IP_AT = 0x0003, 14
# asm-generic/socket.h; Python has no name for it.
_ATTACH_FILTER = 26
_UNREACHABLE, _FRAGMENTATION_NEEDED = 3, 4
# A hop limits its ICMP as well: all packets of one window are lost to one cause.
_TELL_EVERY_S = 0.01


def fragmentation_needed(packet: bytes, mtu_bytes: int) -> bytes:
    """The ICMP message about an IPv4 packet (RFC 1191, 4)."""
    given_back = packet[: (packet[0] & 0xF) * 4 + 8]
    given_back += bytes(len(given_back) % 2)
    total = sum(struct.unpack(f">{len(given_back) // 2}H", given_back)) + (_UNREACHABLE << 8) + _FRAGMENTATION_NEEDED
    total += mtu_bytes
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return struct.pack(">BBHHH", _UNREACHABLE, _FRAGMENTATION_NEEDED, ~total & 0xFFFF, 0, mtu_bytes) + given_back


def tell(device: str, mtu_bytes: int, code: str) -> int:
    """How often senders were told, until the standard input ended."""
    steps = [tuple(map(int, step.split())) for step in code.split(",")[1:]]
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    told_s: dict[bytes, float] = {}
    count = 0
    with (
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as seen,
        socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as forger,
    ):
        seen.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, struct.pack("HP", len(steps), ctypes.addressof(program)))
        seen.bind((device, _ETH_P_ALL))
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while True:
            readable, _, _ = select.select([sys.stdin, seen], [], [])
            if sys.stdin in readable:
                return count
            packet = seen.recv(SNAP_BYTES)[_IP_AT:]
            header_bytes = (packet[0] & 0xF) * 4
            connection = packet[12:20] + packet[header_bytes : header_bytes + 4]
            now_s = time.monotonic()
            if now_s - told_s.get(connection, -_TELL_EVERY_S) >= _TELL_EVERY_S:
                told_s[connection] = now_s
                forger.sendto(fragmentation_needed(packet, mtu_bytes), (socket.inet_ntoa(packet[12:16]), 0))
                count += 1


if __name__ == "__main__":
    sys.stdout.write(str(tell(sys.argv[1], int(sys.argv[2]), sys.argv[3])))
