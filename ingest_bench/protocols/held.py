"""The TCP connections that a library holds itself: what went over them, as the kernel counted it."""

from __future__ import annotations

import _socket
import contextlib
import fcntl
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

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
# include/net/tcp_states.h: TCP_ESTABLISHED; TCP_FIN_WAIT1, TCP_FIN_WAIT2, TCP_TIME_WAIT, TCP_LAST_ACK and TCP_CLOSING,
# in which our end is written; TCP_CLOSE, which tells nothing of how it came about.
_ESTABLISHED, _ENDED, _CLOSED = 1, frozenset((4, 5, 6, 9, 11)), 7
# include/uapi/linux/sockios.h: bytes that are not acknowledged, and those of them that were not sent either.
_SIOCOUTQ, _SIOCOUTQNSD = 0x5411, 0x894B
_QUEUED = struct.Struct("=i")


class _Seen(NamedTuple):
    """A connection at one moment."""

    is_over: bool
    """Nothing more will be given to the network."""
    given: int
    """Bytes that were given to the network, each once."""
    unsent: int
    """Bytes that wait in this machine, and will be given to it."""
    unknown: int
    """So many of those that were given may be its end, which is no byte for the server."""


@dataclass(slots=True)
class _Connection:
    sock: _socket.socket
    """A descriptor of our own: it can be asked after the library has closed its."""
    name: str
    theirs: int
    """The library's descriptor."""
    there: tuple[str, int]
    local_port: int
    told_bytes: int = 0
    has_ended: bool = False
    """Our end was seen among what is written."""

    @property
    def is_held(self) -> bool:
        """Whether the library has not closed it."""
        try:
            return os.readlink(f"/proc/self/fd/{self.theirs}") == self.name  # noqa: PTH115 - once a request
        except OSError:
            return False

    @property
    def is_open(self) -> bool:
        """Whether neither the library nor the other end has ended it."""
        return self.is_held and self._info()[0] == _ESTABLISHED

    def asked(self) -> _Seen:
        """What the kernel says of it.

        What was given to the network is what was acknowledged and what is on its way. The kernel's own count has a
        byte once more each time that a queue of this machine refuses it (net/ipv4/tcp_output.c,
        `__tcp_transmit_skb`), and without one that it had no memory to send again (`__tcp_retransmit_skb`): where
        nothing of that was, it tells whether our end is in it.
        """
        info = self._info()
        while True:
            # In this order: what is written in between was not sent, and counts the next time.
            queued, unsent, before = self._queued(_SIOCOUTQ), self._queued(_SIOCOUTQNSD), info
            info = self._info()
            (acked,) = _ACKED.unpack_from(info, _ACKED_AT)
            if info[0] == before[0] and _ACKED.unpack_from(before, _ACKED_AT) == (acked,):
                break
        state, given, unknown = info[0], int(acked) + queued - unsent - 1, 0
        self.has_ended = self.has_ended or state in _ENDED
        if state == _CLOSED and not unsent and not self.has_ended:
            sent, again = _SENT.unpack_from(info, _SENT_AT)
            unknown = int(sent - again != given)
            self.has_ended = sent - again == given - 1
        if self.has_ended and unsent:
            unsent -= 1
        elif self.has_ended:
            given, unknown = given - 1, 0
        is_over = state == _CLOSED
        return _Seen(is_over, given, 0 if is_over else unsent, unknown)

    def end(self) -> None:
        """As if this descriptor had closed with the library's: ours alone kept the other end waiting."""
        self.asked()
        with contextlib.suppress(OSError):
            self.sock.shutdown(_socket.SHUT_WR)

    def _info(self) -> bytes:
        return self.sock.getsockopt(_socket.IPPROTO_TCP, _socket.TCP_INFO, _ROOM_BYTES)

    def _queued(self, which: int) -> int:
        found: int = _QUEUED.unpack(fcntl.ioctl(self.sock.fileno(), which, bytes(_QUEUED.size)))[0]
        return found


class LibraryConnections:
    """The connections of one client of a library to these addresses, each with what went over it.

    `find` takes those that nobody has taken yet: clients that connect one after the other have each their own. Of
    clients that connect again at the same time one may take another's. It leaves that to the others when it closes, at
    the count where it is.
    A connection that was never found is none of the load's: neither what was sent on it nor what a server read counts.
    """

    _taken: set[str] = set()  # noqa: RUF012 - of all clients in this process
    _left: dict[str, _Connection] = {}  # noqa: RUF012 - those of them whose client has closed, and whose library has not

    def __init__(self, addresses: Collection[tuple[str, int]], traffic: Traffic) -> None:
        self._addresses = frozenset(addresses)
        self._traffic = traffic
        self._found: dict[str, _Connection] = {}
        self.local_port = 0
        """Of the connection that was found last; 0: there was none."""

    @property
    def reaches_all(self) -> bool:
        """Whether one to each address is open."""
        return {one.there for one in self._found.values() if one.is_open} == self._addresses

    def discover(self) -> None:
        """Connections that are new are counted from now on, with all that went over them before."""
        for name, one in list(self._left.items()):
            if one.there in self._addresses:
                self._found[name] = self._left.pop(name)
                self.local_port = one.local_port
        for entry in os.scandir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                name = str(Path(entry.path).readlink())
                if name.startswith("socket:") and name not in self._taken:
                    self._take(name, int(entry.name))

    def _take(self, name: str, theirs: int) -> None:
        ours = os.dup(theirs)
        if os.readlink(f"/proc/self/fd/{ours}") != name:  # noqa: PTH115 - as above
            # The library closed it meanwhile. What has its number now is found by its own name.
            os.close(ours)
            return
        sock = _socket.socket(fileno=ours)
        try:
            there = sock.getpeername()[:2]
        except OSError:
            there = None
        if there not in self._addresses:
            sock.close()
            return
        port = int(sock.getsockname()[1])
        self._taken.add(name)
        self._found[name] = _Connection(sock, name, theirs, there, port)
        self.local_port = port
        self._traffic.local_ports.add(port)
        self._traffic.connects += 1

    def count_sent_bytes(self) -> int:
        """What went over all of them since this was asked last; it is in the traffic's account too."""
        if not self.reaches_all:
            self.discover()
        return sum(map(self._more, list(self._found.values())))

    def _more(self, one: _Connection) -> int:
        if not (is_held := one.is_held):
            one.end()
        seen = one.asked()
        more = self._counted(one, seen.given)
        if not is_held:
            # The rest of what was given up before: no answer shows that it was read.
            self._traffic.bytes_unread += more
            if seen.is_over:
                self._forget(one, seen)
        return more

    def _counted(self, one: _Connection, total: int) -> int:
        more = max(0, total - one.told_bytes)
        one.told_bytes += more
        self._traffic.bytes_written += more
        return more

    def _forget(self, one: _Connection, last: _Seen) -> None:
        self._traffic.bytes_unread += self._counted(one, last.given + last.unsent) + last.unknown
        one.sock.close()
        self._taken.discard(one.name)
        del self._found[one.name]

    def close(self) -> None:
        """What went over them at last is counted, and what will. The library must have closed them."""
        self.count_sent_bytes()
        for name, one in list(self._found.items()):
            if one.is_held:
                self._left[name] = self._found.pop(name)
            else:
                self._forget(one, one.asked())
