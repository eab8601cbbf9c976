"""A program that becomes another one, which then has a packet socket for each of some devices.

    python packet_sockets.py DEVICE… -- ARGV…       each "fd=@N" in ARGV has the socket's number of the Nth device then

It runs by itself inside a namespace, so it imports nothing of ours.
"""

from __future__ import annotations

import os
import re
import socket
import sys

# linux/socket.h, linux/if_packet.h, linux/if_ether.h and asm-generic/socket.h; Python 3.11 names none of them.
SOL_PACKET = 263
PACKET_IGNORE_OUTGOING = 23
ETH_P_ALL = 0x0003
FORCED = {socket.SO_RCVBUF: 33, socket.SO_SNDBUF: 32}

# Frames that wait while the reader is not scheduled: 32 MiB are a quarter of a second at 1 Gbit/s. At the default of
# 208 KiB a reader on two busy cores lost up to 1% of the packets of a stream of 50 to 300 Mbit/s, here none.
BUFFER_BYTES = 1 << 25


def packet_socket(device: str) -> socket.socket:
    """A socket that takes each whole frame that comes in on the device, and sends such frames."""
    made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    made.bind((device, ETH_P_ALL))
    made.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    for option, forced in FORCED.items():
        try:
            made.setsockopt(socket.SOL_SOCKET, forced, BUFFER_BYTES)
        except PermissionError:
            # An ordinary user gets what net.core.rmem_max and wmem_max allow.
            made.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)
    return made


def with_numbers(argv: list[str], numbers: list[int]) -> list[str]:
    """The argv with each "fd=@N" replaced; a path may have an "@3.11" of its own."""
    return [re.sub(r"\bfd=@(\d+)", lambda found: f"fd={numbers[int(found[1])]}", word) for word in argv]


def main() -> None:
    """Does not return."""
    split = sys.argv.index("--")
    sockets = [packet_socket(device) for device in sys.argv[1:split]]
    for made in sockets:
        made.setblocking(False)
        made.set_inheritable(True)
    argv = with_numbers(sys.argv[split + 1 :], [made.fileno() for made in sockets])
    os.execvp(argv[0], argv)  # noqa: S606 - an argv that we built


if __name__ == "__main__":
    main()
