"""The TCP connections that a library holds itself: what went over them, as the kernel counted it."""

from __future__ import annotations

import _socket
import contextlib
import fcntl
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from ingest_bench.protocols.way import Traffic

# struct tcp_info (include/uapi/linux/tcp.h): tcpi_bytes_sent and tcpi_bytes_retrans, since Linux 4.19, and
# tcpi_bytes_acked, in which the beginning of a connection is a byte, and its end, too.
_SENT = struct.Struct("=QQ")
_SENT_AT = 200
_ACKED = struct.Struct("=Q")
_ACKED_AT = 120
_ROOM_BYTES = 256
# include/net/tcp_states.h: TCP_ESTABLISHED, and TCP_CLOSE_WAIT, in which the other end alone has ended.
_ESTABLISHED, _CLOSE_WAIT = 1, 8
# include/uapi/linux/sockios.h: bytes that are not acknowledged, and those of them that were not sent either.
_SIOCOUTQ, _SIOCOUTQNSD = 0x5411, 0x894B
_QUEUED = struct.Struct("=i")


@dataclass(frozen=True, slots=True)
class _Connection:
    sock: _socket.socket
    """A descriptor of our own: it can be asked after the library has closed its."""
    local_port: int
    there: tuple[str, int]

    def asked(self) -> tuple[bool, int]:
        """Whether it is open, and what was given to the network, each byte once.

        It is what was acknowledged and what is on its way. The kernel's own count has a byte once more each time that
        a queue of this machine refuses it (net/ipv4/tcp_output.c, `__tcp_transmit_skb`), and without one that it had
        no memory to send again (`__tcp_retransmit_skb`): where nothing of that was, it tells whether our end is in it.
        """
        info = self.sock.getsockopt(_socket.IPPROTO_TCP, _socket.TCP_INFO, _ROOM_BYTES)
        sent, again = _SENT.unpack_from(info, _SENT_AT)
        (acked,) = _ACKED.unpack_from(info, _ACKED_AT)
        # Asked for later: what is acknowledged meanwhile is missing until it is asked again, and nothing is twice.
        under_way = self._queued(_SIOCOUTQ) - self._queued(_SIOCOUTQNSD)
        given = int(acked) + under_way - 1
        has_no_end = info[0] in (_ESTABLISHED, _CLOSE_WAIT) or int(sent) - int(again) == given
        return info[0] == _ESTABLISHED, given if has_no_end else given - 1

    def _queued(self, which: int) -> int:
        found: int = _QUEUED.unpack(fcntl.ioctl(self.sock.fileno(), which, bytes(_QUEUED.size)))[0]
        return found


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
        total = max(self._told_bytes, sum(one.asked()[1] for one in self._found.values()))
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
