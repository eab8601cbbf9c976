"""The TCP connections that a library holds itself: what went over them, as the kernel counted it."""

from __future__ import annotations

import _socket
import contextlib
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from ingest_bench.protocols.way import Traffic

# struct tcp_info (include/uapi/linux/tcp.h): tcpi_bytes_sent and tcpi_bytes_retrans, since Linux 4.19, and
# tcpi_bytes_acked, in which the beginning and the end of a connection are a byte each.
_SENT = struct.Struct("=QQ")
_SENT_AT = 200
_ACKED = struct.Struct("=Q")
_ACKED_AT = 120
_ENDS = 2
_ROOM_BYTES = 256
_ESTABLISHED = 1  # TCP_ESTABLISHED, include/net/tcp_states.h


@dataclass(frozen=True, slots=True)
class _Connection:
    sock: _socket.socket
    """A descriptor of our own: it can be asked after the library has closed its."""
    local_port: int
    there: tuple[str, int]

    def asked(self) -> tuple[bool, int]:
        """Whether it is open, and what was given to the network, each byte once.

        What the other end has acknowledged was given to it, also where the kernel counted a byte as sent again that
        it had no memory to send (net/ipv4/tcp_output.c, `__tcp_retransmit_skb`).
        """
        info = self.sock.getsockopt(_socket.IPPROTO_TCP, _socket.TCP_INFO, _ROOM_BYTES)
        sent, again = _SENT.unpack_from(info, _SENT_AT)
        (acked,) = _ACKED.unpack_from(info, _ACKED_AT)
        return info[0] == _ESTABLISHED, max(int(sent) - int(again), int(acked) - _ENDS)


class HeldConnections:
    """The connections of one client of a library to these addresses, each with what went over it.

    `find` takes those that nobody has taken yet: clients that connect one after the other have each their own. A
    connection that was never found is none of the load's: neither what was sent on it nor what a server read counts.
    """

    _taken: set[str] = set()  # noqa: RUF012 - of all clients in this process

    def __init__(self, addresses: Collection[tuple[str, int]], traffic: Traffic) -> None:
        self._addresses = frozenset(addresses)
        self._traffic = traffic
        self._found: dict[str, _Connection] = {}
        self._told_bytes = 0

    @property
    def local_port(self) -> int:
        """Of the connection that was found last; 0: there is none."""
        return next((one.local_port for one in reversed(self._found.values())), 0)

    @property
    def reaches_all(self) -> bool:
        """Whether one to each address is open."""
        return {one.there for one in self._found.values() if one.asked()[0]} == self._addresses

    def find(self) -> None:
        """Connections that are new are counted from now on, with all that went over them before."""
        for entry in os.scandir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                name = str(Path(entry.path).readlink())
                if name.startswith("socket:") and name not in self._taken:
                    self._take(name, _socket.socket(fileno=os.dup(int(entry.name))))

    def _take(self, name: str, sock: _socket.socket) -> None:
        try:
            there = sock.getpeername()[:2]
        except OSError:
            there = None
        if there not in self._addresses:
            sock.close()
            return
        port = int(sock.getsockname()[1])
        self._taken.add(name)
        self._found[name] = _Connection(sock, port, there)
        self._traffic.local_ports.add(port)
        self._traffic.connects += 1

    def sent_bytes(self) -> int:
        """What went over all of them since this was asked last; it is in the traffic's account too."""
        if not self.reaches_all:
            self.find()
        total = sum(one.asked()[1] for one in self._found.values())
        more, self._told_bytes = total - self._told_bytes, total
        self._traffic.bytes_written += more
        return more

    def close(self) -> None:
        """What went over them at last is counted. The library must have closed them."""
        self.sent_bytes()
        for name, one in self._found.items():
            one.sock.close()
            self._taken.discard(name)
        self._found.clear()
        self._told_bytes = 0
