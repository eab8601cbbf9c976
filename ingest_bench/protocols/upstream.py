"""Addresses of the server, shared by the users of one worker, with traffic counters and request deadlines."""

from __future__ import annotations

import functools
import itertools
import socket
import ssl
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import gevent
from gevent.resolver.ares import Resolver

from ingest_bench.errors import RunFailed
from ingest_bench.inputs import credentials

if TYPE_CHECKING:
    from ingest_bench.model.target import Endpoint, ServerAddress, Tls

_SWEEP_S = 0.05
# resolv.conf(5): RES_TIMEOUT and RES_DFLRETRY.
_LOOKUP_TIMEOUT_S, _LOOKUP_TRIES = 5.0, 2


class UserConnection(ABC):
    """A user's connection: the deadline of its pending request, and what a sample records of the last one."""

    def __init__(self, address: Address) -> None:
        self.last_address = address
        """Address of the last request, or that it should have been sent to."""
        self.deadline_ns = 0
        """CLOCK_MONOTONIC; 0: no request is pending."""
        self.local_port = 0
        """Local port of the last request's socket; 0: there was none."""
        self.sent_ns = 0
        """When the first byte of the last request was passed to the kernel; 0: never."""
        self.written_ns = 0
        """When the kernel had accepted its last byte; 0: never, or unknown."""
        self.first_byte_ns = 0
        """When the first byte of the last response arrived, interim responses aside; 0: never."""
        self.done_ns = 0
        """When the last byte of the last response arrived."""
        self.bytes_sent = 0
        """Bytes of the last request that the kernel accepted."""

    @property
    @abstractmethod
    def is_open(self) -> bool:
        """True if the next request uses the present connection."""

    @abstractmethod
    def note_refused(self) -> None:
        """Record that the last request was refused while the connection remains open."""

    @abstractmethod
    def expire(self, outcome: str) -> None:
        """End the pending request with that outcome, from another greenlet."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection; the next request opens a new one."""


class Deadlines:
    """Ends requests that exceed their deadline, at most 0.05 s late. One greenlet for all connections."""

    def __init__(self) -> None:
        # Weak references: users come and go during a load, and the buffers of their connections must go with them.
        self._connections: WeakSet[UserConnection] = WeakSet()
        self._sweeper: gevent.Greenlet | None = None

    def watch(self, connection: UserConnection) -> None:
        """Enforce the connection's `deadline_ns` from now on."""
        self._connections.add(connection)
        if self._sweeper is None:
            self._sweeper = gevent.spawn(self._sweep)

    def cut_off(self) -> None:
        """End all pending requests now."""
        for connection in self._connections:
            if connection.deadline_ns:
                connection.expire("cut-off")

    def pending(self) -> list[int]:
        """Return the deadline of each pending request."""
        return [connection.deadline_ns for connection in self._connections if connection.deadline_ns]

    def close(self) -> None:
        """Stop the sweeper and close all connections."""
        if self._sweeper is not None:
            self._sweeper.kill()
        for connection in self._connections:
            connection.close()

    def _sweep(self) -> None:
        while True:
            gevent.sleep(_SWEEP_S)
            self._expire_late_requests()

    def _expire_late_requests(self) -> None:
        # In a function of its own: during the sleep no variable keeps a connection alive.
        now_ns = time.monotonic_ns()
        for connection in self._connections:
            if 0 < connection.deadline_ns < now_ns:
                connection.expire("timeout")


class Traffic:
    """Counters of all connections of a process."""

    def __init__(self) -> None:
        self.bytes_written = 0
        self.bytes_unread = 0
        """Bytes of refused requests, each the last one on its connection: nothing proves that the server read them."""
        self.local_ports: set[int] = set()
        self.connects = 0
        self.window_stalls = 0
        """HTTP/2: how often a sender waited because it had used up the server's window of a stream or connection."""
        self.window_stalled_ns = 0
        """Time of these waits."""
        self.stream_window_bytes = 0
        """HTTP/2: the server's window of each new stream; 0: unknown."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Address:
    """One of the addresses of the server."""

    index: int
    """Its number, as in samples."""
    name: str
    """Host and port as configured, for the Host header and errors."""
    server: ServerAddress
    tls_context: ssl.SSLContext | None
    """Verifies the server, with the client certificate; None: plain TCP."""
    sockets: tuple[tuple[int, Any], ...]
    """Family and socket address of all addresses of the host, tried in turn. Empty: resolved per connection."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Upstream:
    """The server's addresses, our headers, and the state shared by the connections to it."""

    addresses: tuple[Address, ...]
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Additional headers of each request, with credentials."""
    secrets: tuple[bytes, ...] = field(default=(), repr=False)
    """The texts of the headers that no result may repeat."""
    traffic: Traffic = field(default_factory=Traffic)
    deadlines: Deadlines = field(default_factory=Deadlines)
    _turns: Iterator[int] = field(default_factory=itertools.count)

    @property
    def is_tls(self) -> bool:
        """True if the connections are encrypted: all are, or none."""
        return self.addresses[0].tls_context is not None

    def next_address(self) -> Address:
        """Return the address for the next connection: round robin."""
        return self.addresses[next(self._turns) % len(self.addresses)]


def resolve_upstream(
    *addresses: ServerAddress,
    headers: Mapping[str, str] | None = None,
    traffic: Traffic | None = None,
    first: int = 0,
    alpn: str = "",
) -> Upstream:
    """Resolve the server's host names, now and only once, except for addresses with a resolver of their own.

    *first* is the address of the first connection: workers with different ones spread over all from the start.
    *alpn*: the protocol that TLS offers; "": none.
    """
    return Upstream(
        addresses=tuple(_resolve_address(index, address, alpn) for index, address in enumerate(addresses)),
        headers=headers or {},
        secrets=credentials.list_secrets(headers or {}),
        traffic=traffic or Traffic(),
        _turns=itertools.count(first),
    )


def _resolve_address(index: int, server: ServerAddress, alpn: str) -> Address:
    sockets: Mapping[tuple[int, Any], None] = {}
    if server.resolver is None:
        try:
            # Locust patches this to gevent's own, which does not block the event loop.
            entries = socket.getaddrinfo(server.endpoint.host, server.endpoint.port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise RunFailed(f"{server}: unknown host ({error.strerror}). Check its spelling.") from None
        sockets = dict.fromkeys((int(family), socket_address) for family, *_, socket_address in entries)
    context = None if server.tls is None else _ssl_context(server.tls, alpn)
    return Address(index=index, name=str(server), server=server, tls_context=context, sockets=tuple(sockets))


@functools.cache
def _ssl_context(tls: Tls, alpn: str) -> ssl.SSLContext:
    # Created before the load begins: it takes 20 ms and reads files.
    context = ssl.create_default_context(cadata=tls.ca_pem or None)
    if tls.client_cert:
        credentials.load_client_certificate(context, tls.client_cert, tls.client_key)
    if alpn:
        context.set_alpn_protocols([alpn])
    return context


def resolve_host(endpoint: Endpoint, name_server: Endpoint) -> tuple[tuple[int, Any], ...] | OSError:
    """Return family and socket address of all addresses of a host, or why it cannot be resolved.

    Queries one name server each time with c-ares, as curl and many other clients do. Each call has its own channel, so
    that nothing is cached, and does not block the event loop.
    """
    resolver = Resolver(
        use_environ=False,
        servers=[name_server.host],
        udp_port=name_server.port,
        tcp_port=name_server.port,
        timeout=_LOOKUP_TIMEOUT_S,
        tries=_LOOKUP_TRIES,
    )
    try:
        entries = resolver.getaddrinfo(endpoint.host, endpoint.port, socket.AF_INET, socket.SOCK_STREAM)
    except OSError as error:
        return error
    finally:
        resolver.close()
    return tuple(dict.fromkeys((int(family), socket_address) for family, *_, socket_address in entries))
