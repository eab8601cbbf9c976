"""A Locust user on one keep-alive connection over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from locust import User

from ingest_bench.errors import RunFailed
from ingest_bench.protocols.http1 import tls
from ingest_bench.protocols.http1.framing import HttpResponseReader
from ingest_bench.protocols.pumped import PumpedConnection

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingest_bench.documents.body import Body
    from ingest_bench.protocols.verdict import Response
    from ingest_bench.protocols.way import Address, Upstream

_KNOWN_HEADS = 4096


class Http1User(User):
    """Posts bodies to one path and has the answers. The first exchange opens its connection."""

    abstract = True
    upstream: Upstream
    path = "/"
    method = "POST"
    protocol_headers: Mapping[str, str] = {}
    """Of its protocol, beside those that lead to the server."""
    timeout_ns = 60 * 10**9
    pumps = True

    def on_start(self) -> None:
        """A connection of its own."""
        way = self.upstream
        self.connection = (tls.TlsConnection if way.is_tls else PumpedConnection)(way, HttpResponseReader())
        way.deadlines.watch(self.connection)
        self._head_for(self.connection.address)

    def on_stop(self) -> None:
        """No connection."""
        self.connection.close()

    def exchange(self, body: Body) -> Response:
        """The answer to one request; ConnectionBrokenError without one. `connection` knows what was sent, and when."""
        self.connection.close_if_ended()
        if self.connection.address is not self._address:
            self._head_for(self.connection.address)
        return self.connection.exchange(*self.request(body), self.timeout_ns)

    def request(self, body: Body) -> tuple[bytes, bytes | bytearray]:
        """The head and the body that go to the address of the connection."""
        data = body.data
        return self._heads.get(len(data)) or self._whole_head(len(data)), data

    @property
    def can_pump(self) -> bool:
        """Whether `pump` sends: on an open connection that is not encrypted."""
        self.connection.close_if_ended()
        return isinstance(self.connection, PumpedConnection) and self.connection.is_open

    def pump(self, body: Body, follow: Callable[[Response, int], tuple[bytes, bytes | bytearray] | None]) -> None:
        """As `PumpedConnection.pump`, beginning with this body."""
        assert isinstance(self.connection, PumpedConnection)  # noqa: S101 - as `can_pump` said
        self.connection.pump(*self.request(body), self.timeout_ns, follow)

    def finish(self, body: Body) -> Response:
        """The answer to the request in whose middle `pump` came back; ConnectionBrokenError without one."""
        return self.connection.finish(*self.request(body))

    def _head_for(self, address: Address) -> None:
        self._address = address
        self._head = request_head(
            address.path_prefix + self.path, address, {**self.protocol_headers, **self.upstream.headers}, self.method
        )
        self._heads: dict[int, bytes] = {}

    def _whole_head(self, size_bytes: int) -> bytes:
        if len(self._heads) >= _KNOWN_HEADS:
            self._heads.clear()
        self._heads[size_bytes] = self._head + b"%d\r\n\r\n" % size_bytes
        return self._heads[size_bytes]


def request_head(path: str, address: Address, headers: Mapping[str, str], method: str) -> bytes:
    """The head of each request, up to and with "content-length: "."""
    named = {"host": address.name, **headers}
    if set("".join((path, *named, *named.values()))) & set("\r\n") or " " in path:
        raise RunFailed(f"{path!r}: no request can have this path and these headers, with a blank or a line feed")
    lines = "".join(f"{name}: {value}\r\n" for name, value in named.items())
    return f"{method} {path} HTTP/1.1\r\n{lines}content-length: ".encode()
