"""Locust user that makes gRPC calls of one message each, as streams of its own HTTP/2 connection.

A call is a message behind five bytes in a stream (github.com/grpc/grpc, doc/PROTOCOL-HTTP2.md). The library grpcio
would hide when a call was sent and how many bytes it had.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote

from h2.events import ResponseReceived, StreamEnded, TrailersReceived

from ingest_bench.protocols.http2 import StreamReader
from ingest_bench.protocols.opensearch_grpc import to_http_status
from ingest_bench.protocols.response import MESSAGE_BYTES, InvalidResponseError, ResponseHead
from ingest_bench.protocols.users import Http2User

if TYPE_CHECKING:
    from h2.events import Event

    from ingest_bench.documents.body import Body
    from ingest_bench.protocols.users import Request

# No compression; the length of the message follows.
_PLAIN = b"\0"
_PREFIX_BYTES = 5
# grpc-java refuses a message above its limit with the status of a full queue (RESOURCE_EXHAUSTED), and this text.
_TOO_LARGE = "gRPC message exceeds maximum size"


class CallReader(StreamReader):
    """Reader of the result of a call: its message, or the text of its error. The status is that of HTTP."""

    def reset(self) -> None:
        """Start with the next result."""
        super().reset()
        self._fields: dict[bytes, bytes] = {}
        """Of the first and the last headers of the response."""

    def _handle(self, event: Event) -> None:
        super()._handle(event)
        if getattr(event, "stream_id", 0) != self.stream_id:
            return
        if isinstance(event, ResponseReceived | TrailersReceived):
            self._fields |= dict(event.headers or ())
        elif isinstance(event, StreamEnded):
            self.head = ResponseHead(self._read_result())

    def _read_result(self) -> int:
        """Return the status of the complete response; its body is then the message, or the text of the error."""
        grpc_status = self._fields.get(b"grpc-status", b"")
        if not grpc_status.isdigit():
            http_status = self._fields[b":status"].decode()
            text = bytes(self.buffer[:MESSAGE_BYTES]).decode("utf-8", "replace")
            raise InvalidResponseError(f"HTTP without gRPC, status {http_status}: {text!r}. Send to the port of gRPC.")
        status = to_http_status(int(grpc_status[:4]))
        if status == 200:
            self.start = _PREFIX_BYTES
            if self.buffer[:_PREFIX_BYTES] != _PLAIN + max(0, self.end - _PREFIX_BYTES).to_bytes(4):
                raise InvalidResponseError(f"invalid gRPC: {self.end} bytes are not one uncompressed message")
            return status
        text = unquote(self._fields.get(b"grpc-message", b"").decode("ascii", "replace"))
        self.start, self.buffer = 0, bytearray(text.encode())
        self.end = len(self.buffer)
        return 413 if text.startswith(_TOO_LARGE) else status


class GrpcUser(Http2User):
    """Makes a call for each body. `path` is the method that is called."""

    abstract = True
    protocol_headers = {"content-type": "application/grpc", "te": "trailers"}  # noqa: RUF012 - never changed
    reader_class = CallReader
    fields = b""
    """Fields of each message besides the items of a body, which may follow: protobuf allows any order."""

    def request(self, body: Body) -> Request:
        """Return no head, because the connection has the headers, and the message."""
        size_bytes = len(self.fields) + len(body.data)
        return b"", b"".join((_PLAIN, size_bytes.to_bytes(4), self.fields, body.data))
