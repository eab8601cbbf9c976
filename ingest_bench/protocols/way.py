"""The way to the server, which the users of one worker share, and what all of them did on it."""

from __future__ import annotations

import functools
import itertools
import socket
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from ingest_bench.errors import RunFailed
from ingest_bench.inputs import credentials
from ingest_bench.protocols.deadlines import Deadlines

if TYPE_CHECKING:
    from ingest_bench.model.target import Endpoint, ServerAddress, Tls


class Traffic:
    """What all connections of a process did together."""

    def __init__(self) -> None:
        self.bytes_written = 0
        self.bytes_unread = 0
        """Of requests that were refused, each as the last one on its connection: nothing shows that they were read."""
        self.local_ports: set[int] = set()
        self.connects = 0


class Verifying(NamedTuple):
    """How a server is verified, and what it may verify of us."""

    name: str
    """The host that its certificate must be for."""
    context: ssl.SSLContext


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Address:
    """One of the addresses of the server."""

    index: int
    """Its place among them, as samples have it."""
    name: str
    """Host and port, as it was given: in the Host header and in errors."""
    tls: Verifying | None
    """None: plain TCP."""
    sockets: tuple[tuple[int, Any], ...]
    """Family and address of all that the host stands for. They are tried in turn. Empty: they are looked up."""
    endpoint: Endpoint
    """Host and port as they are looked up."""
    resolver: Endpoint | None = None
    """The name server that is asked for the host, anew for each connection; None: it was asked once."""
    path_prefix: str = ""
    """Before the path of every request."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Upstream:
    """Where the server is, who we are to it, and the connections that lead there."""

    addresses: tuple[Address, ...]
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """More headers of each request."""
    traffic: Traffic = field(default_factory=Traffic)
    deadlines: Deadlines = field(default_factory=Deadlines)
    _turns: Iterator[int] = field(default_factory=itertools.count)

    @property
    def is_tls(self) -> bool:
        """Whether all of it is encrypted: no part of it is, or all are."""
        return self.addresses[0].tls is not None

    def next_address(self) -> Address:
        """Where the next connection goes: round robin."""
        return self.addresses[next(self._turns) % len(self.addresses)]

    def any_address(self) -> Address:
        """All addresses as one, for a library that picks the node itself; of several its index is -1."""
        sockets = tuple(one for address in self.addresses for one in address.sockets)
        name = ", ".join(address.name for address in self.addresses)
        return Address(
            index=-1 if len(self.addresses) > 1 else 0,
            name=name,
            tls=self.addresses[0].tls,
            sockets=sockets,
            endpoint=self.addresses[0].endpoint,
        )


def resolve_upstream(
    *places: ServerAddress, headers: Mapping[str, str] | None = None, traffic: Traffic | None = None, first: int = 0
) -> Upstream:
    """The way to a server with these addresses. Names are looked up now, and never again, unless a place says where.

    `first` is where the first connection goes: workers that begin with different ones spread over all from the start.
    """
    return Upstream(
        addresses=tuple(_address(index, place) for index, place in enumerate(places)),
        headers=headers or {},
        traffic=traffic or Traffic(),
        _turns=itertools.count(first),
    )


def _address(index: int, place: ServerAddress) -> Address:
    host, port = place.endpoint.host, place.endpoint.port
    name = place.host_header or str(place.endpoint)
    verifying = None if place.tls is None else Verifying(place.tls.name, _context(place.tls))
    if place.resolver is not None:
        return Address(
            index=index,
            name=name,
            tls=verifying,
            sockets=(),
            endpoint=place.endpoint,
            resolver=place.resolver,
            path_prefix=place.path_prefix,
        )
    try:
        # Under Locust this is gevent's own, which does not hold up the loop.
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise RunFailed(f"{name}: there is no host of this name ({error.strerror}). Is it written right?") from None
    sockets = dict.fromkeys((int(family), address) for family, *_, address in found)
    return Address(
        index=index,
        name=name,
        tls=verifying,
        sockets=tuple(sockets),
        endpoint=place.endpoint,
        path_prefix=place.path_prefix,
    )


@functools.cache
def _context(tls: Tls) -> ssl.SSLContext:
    # Made before the load begins: it takes 20 ms, and reads files.
    made = ssl.create_default_context(cadata=tls.ca_pem or None)
    if tls.client_cert:
        credentials.load_client_certificate(made, tls.client_cert, tls.client_key)
    return made
