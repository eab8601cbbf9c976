"""A plain socket to one of the addresses of a server: how it is opened, waited for and closed.

It is the C socket itself: gevent's own adds a Python layer to each call. The hub is asked only after EAGAIN, and no
timer is made for a request: `Deadlines` looks at all connections a few times a second.
"""

from __future__ import annotations

import _socket
import errno
import os
import select
from typing import TYPE_CHECKING, Any

from gevent import Greenlet, getcurrent
from gevent.hub import Waiter, get_hub
from gevent.monkey import get_original

from ingest_bench.protocols.lookups import looked_up
from ingest_bench.protocols.verdict import ConnectionBrokenError

if TYPE_CHECKING:
    from ingest_bench.model.target import Endpoint
    from ingest_bench.protocols.way import Upstream

# Not gevent's own, which switches to the hub. Before each request on an idle connection it is asked whether there is
# something to read: 0.9 us, and 2.9 us by a recv that ends in EAGAIN.
_poll = get_original("select", "poll")

READ, WRITE = 1, 2  # libev's EV_READ and EV_WRITE, as `hub.loop.io` takes them


class Channel:
    """One socket at a time; after each failure the next one goes to the next address of the server."""

    def __init__(self, way: Upstream) -> None:
        self._way = way
        self._traffic = way.traffic
        self.address = way.next_address()
        """Where the socket leads, or the next one will."""
        self.last_address = self.address
        """Where the socket leads, or the last one did or should have."""
        self._hub = get_hub()
        self._sock: _socket.socket | None = None
        self._looking: Greenlet | None = None
        self._expired = ""
        self.deadline_ns = 0
        """CLOCK_MONOTONIC; 0: nothing is being waited for."""
        self.local_port = 0
        """Of the socket by which the last request went; 0: there was none."""

    def expire(self, outcome: str) -> None:
        """Ends what the connection waits for, from another greenlet; its request fails with that outcome."""
        self._expired = outcome
        if self._looking is not None:
            self._looking.kill(block=False)
        if self._sock is not None:
            try:
                self._sock.shutdown(_socket.SHUT_RDWR)
            except OSError:
                return

    def close(self) -> None:
        """No connection; the next request makes a new one."""
        if self._sock is not None:
            self._drop()
            self.address = self._way.next_address()

    def _drop(self) -> None:
        sock, self._sock = self._sock, None
        if sock is not None:
            for watcher in (self._readable, self._writable, self._either):
                watcher.close()
            sock.close()

    def _connect(self) -> _socket.socket:
        """An open connection; ConnectionBrokenError when nobody at that address takes it."""
        self._expired = ""
        self.last_address = self.address
        failed = 0
        sockets = self.address.sockets if self.address.resolver is None else self._looked_up(self.address.resolver)
        *_, last = sockets
        for family, there in sockets:
            try:
                sock = self._opened(family)
            except OSError as error:
                if error.errno != errno.EAFNOSUPPORT:
                    raise
                failed = error.errno
                continue
            failed = sock.connect_ex(there)
            if failed == errno.EINPROGRESS:
                self._wait(self._writable)
                failed = sock.getsockopt(_socket.SOL_SOCKET, _socket.SO_ERROR)
            if not failed and not self._expired:
                self.local_port = sock.getsockname()[1]
                self._traffic.local_ports.add(self.local_port)
                self._traffic.connects += 1
                return sock
            if self._expired or (family, there) == last:
                break
            self._drop()
        raise self._broken(f"connect to {self.address.name}: {os.strerror(failed)}")

    def _looked_up(self, resolver: Endpoint) -> tuple[tuple[int, Any], ...]:
        """Where the address is; ConnectionBrokenError when its name server does not say it."""
        asked = self.address
        self._looking = Greenlet.spawn(looked_up, asked.endpoint, resolver)
        try:
            found = self._looking.get()
        finally:
            self._looking = None
        if isinstance(found, tuple) and not self._expired:
            return found
        self.address = self._way.next_address()
        raise self._broken(f"look up {asked.endpoint.host}: {found}")

    def _opened(self, family: int) -> _socket.socket:
        sock = _socket.socket(family, _socket.SOCK_STREAM | _socket.SOCK_NONBLOCK | _socket.SOCK_CLOEXEC, 0)
        self._sock = sock
        sock.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
        self._readable = self._hub.loop.io(sock.fileno(), READ)
        self._writable = self._hub.loop.io(sock.fileno(), WRITE)
        self._either = self._hub.loop.io(sock.fileno(), READ | WRITE)
        poll = _poll()
        poll.register(sock.fileno(), select.POLLIN)
        self._readable_now = poll.poll
        return sock

    def _wait(self, watcher: Any) -> None:
        """Returns when the socket can be read or written, as the watcher says."""
        # As `hub.wait`, without the Waiter that it makes each time: 2.1 us in place of 2.6, the system calls included.
        watcher.start(getcurrent().switch, watcher)
        try:
            while self._hub.switch() is not watcher:
                """Somebody else switched here."""
        finally:
            watcher.stop()

    def _wait_for_either(self) -> int:
        """Which of `READ` and `WRITE` can be done, as soon as one can."""
        waiter = Waiter(self._hub)
        self._either.start(waiter.switch, pass_events=True)
        try:
            return int(waiter.get())
        finally:
            self._either.stop()

    def _broken(self, said: str) -> ConnectionBrokenError:
        self.close()
        if self._expired:
            return ConnectionBrokenError(self._expired, "no answer in time")
        return ConnectionBrokenError("connection-error", said)
