"""Locust users with one connection: over HTTP/1.1, and for protocols of binary frames."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from locust import User

from ingest_bench.errors import RunFailed
from ingest_bench.protocols import tls
from ingest_bench.protocols.connection import Connection
from ingest_bench.protocols.frames import AcknowledgementReader
from ingest_bench.protocols.http1 import HttpResponseReader, build_request_head
from ingest_bench.protocols.http2 import Http2Connection, Http2TlsConnection, StreamReader, build_request_headers
from ingest_bench.protocols.response import INVALID_RESPONSE, ConnectionBrokenError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingest_bench.documents.body import Body
    from ingest_bench.model.load import Http2Windows
    from ingest_bench.protocols.cassandra import FrameReader
    from ingest_bench.protocols.response import Response, ResponseReader
    from ingest_bench.protocols.upstream import Address, Upstream, UserConnection

    Request = tuple[bytes, bytes | bytearray]

_CACHED_HEADS = 4096
# Of connections that end between two requests, although the kernel accepted all frames.
_CLOSED = "the server closed the connection: frames that it had not read are lost"
_SURPLUS = "the server sent more than its acknowledgements. Set acknowledgement_size in the protocol."


class ProtocolUser(User):
    """User with one connection, used by `load.users`."""

    abstract = True
    upstream: Upstream
    timeout_ns = 60 * 10**9
    pumps = False
    """True if it has `pump`, as in `load.users.PumpingUser`."""
    connection: UserConnection
    """Created by `on_start`."""

    def exchange(self, body: Body) -> Response:
        """Return the response to one request; ConnectionBrokenError without one."""
        raise NotImplementedError

    def on_stop(self) -> None:
        """Close the connection."""
        self.connection.close()


class ConnectionUser(ProtocolUser):
    """User whose connection is a socket, which the first exchange opens."""

    abstract = True
    pumps = True
    connection: Connection

    def request(self, body: Body) -> Request:
        """Return head and body as they go over an open connection."""
        return b"", body.data

    @property
    def can_pump(self) -> bool:
        """True if `pump` can send now: over an open connection without TLS."""
        self.connection.close_if_ended()
        return self.connection.is_open and not self.upstream.is_tls

    def pump(self, body: Body, follow: Callable[[Response, int], Request | None]) -> None:
        """Send *body*, and after each response the request that *follow* returns (`Connection.pump`)."""
        self.connection.pump(*self.request(body), self.timeout_ns, follow)

    def finish(self, body: Body) -> Response:
        """Return the response to the request during which `pump` returned; ConnectionBrokenError without one."""
        return self.connection.finish(*self.request(body))


class Http1User(ConnectionUser):
    """Posts bodies to one path over a keep-alive connection."""

    abstract = True
    path = "/"
    method = "POST"
    protocol_headers: Mapping[str, str] = {}

    def on_start(self) -> None:
        """Create the connection."""
        self.connection = self._create_connection()
        self.upstream.deadlines.watch(self.connection)
        self._use_address(self.connection.address)

    def exchange(self, body: Body) -> Response:
        """Return the response to one request; ConnectionBrokenError without one."""
        self.connection.close_if_ended()
        if self.connection.address is not self._address:
            self._use_address(self.connection.address)
        return self.connection.exchange(*self.request(body), self.timeout_ns)

    def request(self, body: Body) -> Request:
        """Return head and body as they go over the wire."""
        data = body.data
        return self._heads.get(len(data)) or self._build_head(len(data)), data

    def _create_connection(self) -> Connection:
        connection_class = tls.TlsConnection if self.upstream.is_tls else Connection
        return connection_class(self.upstream, HttpResponseReader())

    def _use_address(self, address: Address) -> None:
        self._address = address
        headers = {**self.protocol_headers, **self.upstream.headers}
        self._head = build_request_head(address.server.path_prefix + self.path, address, headers, self.method)
        self._heads: dict[int, bytes] = {}

    def _build_head(self, size_bytes: int) -> bytes:
        if len(self._heads) >= _CACHED_HEADS:
            self._heads.clear()
        self._heads[size_bytes] = self._head + b"%d\r\n\r\n" % size_bytes
        return self._heads[size_bytes]


class Http2User(Http1User):
    """Posts bodies to one path, as streams of a connection of HTTP/2."""

    abstract = True
    pumps = False
    windows: Http2Windows
    reader_class = StreamReader
    connection: Http2Connection

    def request(self, body: Body) -> Request:
        """Return no head, because the connection has the headers, and the body."""
        return b"", body.data

    def _create_connection(self) -> Http2Connection:
        connection_class = Http2TlsConnection if self.upstream.is_tls else Http2Connection
        return connection_class(self.upstream, self.reader_class(self.windows))

    def _use_address(self, address: Address) -> None:
        self._address = address
        headers = {**self.protocol_headers, **self.upstream.headers}
        path = address.server.path_prefix + self.path
        self.connection.headers = build_request_headers(path, address, headers, self.method)


class BinaryUser(ConnectionUser):
    """Sends binary frames over TCP."""

    abstract = True
    protocol = ""
    """Key in PROTOCOLS."""
    reader_class: type[Any]
    _reader: ResponseReader

    def on_start(self) -> None:
        """Create the connection."""
        if self.upstream.is_tls:
            raise RunFailed(f"{self.protocol}: TLS is not supported. Use a URL with http://, or remove start.tls.")
        self._reader = self.reader_class()
        self.connection = Connection(self.upstream, self._reader)
        self.upstream.deadlines.watch(self.connection)


class FramesUser(BinaryUser):
    """Sends documents as frames (`protocols.frames`)."""

    abstract = True
    # The length of a response depends on its request, and there may be none.
    pumps = False
    reader_class = AcknowledgementReader
    _reader: AcknowledgementReader
    acknowledgement_bytes = 0
    """Bytes of the response to each document."""

    def exchange(self, body: Body) -> Response:
        """Return the response to one request; ConnectionBrokenError without one."""
        connection = self.connection
        self._reader.expected_bytes = body.documents * self.acknowledgement_bytes
        unexpected_bytes = connection.close_if_ended()
        if unexpected_bytes or (unexpected_bytes == 0 and self._reader.is_silent):
            # Nothing of this request is sent.
            connection.bytes_sent = connection.sent_ns = connection.written_ns = connection.first_byte_ns = 0
            if unexpected_bytes:
                raise ConnectionBrokenError(INVALID_RESPONSE, _SURPLUS)
            # A retry would hide that earlier requests were lost.
            raise ConnectionBrokenError("connection-error", _CLOSED, may_be_stored=True)
        response = connection.exchange(b"", body.data, self.timeout_ns)
        # The first acknowledgement comes while the server still reads: it is not the response to the request.
        connection.first_byte_ns = connection.done_ns
        return response


class HandshakeUser(BinaryUser):
    """Sends frames of a protocol with a handshake, by which the first exchange opens the connection."""

    abstract = True
    reader_class: type[FrameReader]
    _reader: FrameReader
    handshake: tuple[tuple[bytes, Sequence[Any]], ...] = ()
    """Requests that open a connection, each with the frames of its successful response (`FrameReader.expected`)."""
    expected: Sequence[Any] = ()
    """The frames of a successful response to a body."""

    def exchange(self, body: Body) -> Response:
        """Return the response to one request; ConnectionBrokenError without one."""
        connection, reader = self.connection, self._reader
        connection.close_if_ended()
        if connection.is_open:
            return connection.exchange(b"", body.data, self.timeout_ns)
        until_ns, handshake_bytes = time.monotonic_ns() + self.timeout_ns, 0
        reader.is_handshake = True
        try:
            for request, expected in self.handshake:
                reader.expected = expected
                response = connection.exchange(b"", request, until_ns - time.monotonic_ns())
                if response.status != 200:
                    connection.close()
                    return response
                handshake_bytes += connection.bytes_sent
            reader.expected, reader.is_handshake = self.expected, False
            return connection.exchange(b"", body.data, until_ns - time.monotonic_ns())
        finally:
            connection.bytes_sent += handshake_bytes
