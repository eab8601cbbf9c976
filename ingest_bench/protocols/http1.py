"""HTTP/1.1 framing: heads of requests, and the length of responses as llhttp (`httptools`) decides it.

A response that could be read in two ways is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from ingest_bench.errors import RunFailed
from ingest_bench.protocols.response import InvalidResponseError, ResponseHead, ResponseReader

if TYPE_CHECKING:
    from ingest_bench.protocols.upstream import Address

# Most bytes of the heads of a response (with interim ones), of the size of a chunk with its extension, of a trailer.
_HEAD_LIMIT_BYTES = 64 * 1024
RESPONSE_LIMIT_BYTES = 256 * 1024**2
_BUFFER_BYTES = 256 * 1024
_CACHED_HEADS = 256


def build_request_head(path: str, address: Address, headers: Mapping[str, str], method: str) -> bytes:
    """Return the head of each request, up to and including "content-length: "."""
    all_headers = {"host": address.name, **headers}
    if set("".join((path, *all_headers, *all_headers.values()))) & set("\r\n") or " " in path:
        raise RunFailed(f"{path!r}: invalid path or headers: a blank or a line feed")
    lines = "".join(f"{name}: {value}\r\n" for name, value in all_headers.items())
    return f"{method} {path} HTTP/1.1\r\n{lines}content-length: ".encode()


def parse_response_head(raw: bytes) -> ResponseHead:
    """Parse the head of a response with its blank line; InvalidResponseError tells what is wrong."""
    if not raw.startswith((b"HTTP/1.1 ", b"HTTP/1.0 ")):
        raise InvalidResponseError(f"not an HTTP/1 response: it begins with {raw[:40]!r}")
    handler = _HeadHandler()
    handler.parser = parser = HttpResponseParser(handler)
    try:
        parser.feed_data(raw)
    except HttpParserUpgrade:
        raise InvalidResponseError("invalid HTTP: an unrequested protocol upgrade") from None
    except HttpParserError as error:
        raise InvalidResponseError(f"invalid HTTP: {_describe(error)}; the response begins with {raw[:40]!r}") from None
    status = parser.get_status_code()
    if not 100 <= status < 600:
        raise InvalidResponseError(f"invalid HTTP: the status is {status}")
    coding = handler.headers.get(b"transfer-encoding")
    if coding is not None and coding.lower() != b"chunked":
        raise InvalidResponseError(f"invalid HTTP: unrequested transfer-encoding {coding[:40]!r}")
    length = handler.headers.get(b"content-length")
    has_no_body = status < 200 or status in (204, 304)
    retry_after = handler.headers.get(b"retry-after", b"")[:9]
    return ResponseHead(
        status=status,
        length_bytes=0 if has_no_body else None if length is None else int(length),
        chunked=coding is not None and not has_no_body,
        close=not handler.keeps_alive,
        retry_after_s=int(retry_after) if retry_after.isdigit() else 0,
    )


class HttpResponseReader(ResponseReader):
    """Reader of HTTP/1.1 responses."""

    def __init__(self) -> None:
        self._heads: dict[bytes, ResponseHead] = {}
        super().__init__(_BUFFER_BYTES)

    @property
    def comparable_bytes(self) -> int | None:
        """The head, if the body has a length."""
        return None if self._chunks is not None else self.start

    def reset(self) -> None:
        """Start with the next response."""
        super().reset()
        self._interim_bytes = 0
        self._chunks: _ChunkHandler | None = None
        """None: the body is not chunked."""

    def feed(self, size_bytes: int) -> None:
        """Parse more received bytes."""
        self.filled += size_bytes
        if self.head is None:
            self.head = self._parse_final_head()
            if self.head is None:
                return
            self._start_body(self.head)
        if self._chunks is not None:
            self._decode(self._chunks)
        elif self.head.length_bytes is None:
            self._reserve()
        elif self.filled > self.end:
            raise InvalidResponseError(
                f"invalid HTTP: {self.filled - self.end} bytes more than the response's content-length"
            )
        else:
            self.is_complete = self.filled == self.end

    def feed_eof(self) -> None:
        """Handle that the server closed: this completes a body without a length."""
        if self.head is not None and self.head.length_bytes is None and self._chunks is None:
            self.end, self.is_complete = self.filled, True

    def _parse_final_head(self) -> ResponseHead | None:
        """Return the head once it is complete; interim responses before it are removed from the buffer."""
        while (start := self.buffer.find(b"\r\n\r\n", 0, self.filled) + 4) >= 4:
            raw = bytes(self.view[:start])
            head = self._heads.get(raw)
            if head is None:
                if len(self._heads) >= _CACHED_HEADS:
                    self._heads.clear()
                head = self._heads[raw] = parse_response_head(raw)
            if head.status >= 200:
                self.start = start
                return head
            self._interim_bytes += start
            self.filled -= start
            self.buffer[: self.filled] = self.buffer[start : start + self.filled]
        if self._interim_bytes + self.filled > _HEAD_LIMIT_BYTES:
            raise InvalidResponseError(f"invalid HTTP: the head is longer than {_HEAD_LIMIT_BYTES} bytes")
        return None

    def _start_body(self, head: ResponseHead) -> None:
        if head.chunked:
            self._chunks = _ChunkHandler()
            self._parser = HttpResponseParser(self._chunks)
            self._parser.feed_data(bytes(self.view[: self.start]))
        elif head.length_bytes is not None:
            self.end = self.start + head.length_bytes
            # Space for a surplus byte, which must be detected.
            self._grow_limited(self.end + 1)

    def _decode(self, chunks: _ChunkHandler) -> None:
        """Decode received bytes in place: the decoded body begins where the buffer does."""
        chunks.pieces = []
        try:
            self._parser.feed_data(self.view[self.start : self.filled])
        except HttpParserError as error:
            if not chunks.has_surplus:
                raise InvalidResponseError(f"invalid HTTP in a chunked response: {_describe(error)}") from None
        if chunks.has_surplus:
            raise InvalidResponseError("invalid HTTP: more bytes after the last chunk")
        chunks.bytes_without_body += self.filled - self.start
        if chunks.pieces:
            chunks.bytes_without_body = 0
        if chunks.bytes_without_body > _HEAD_LIMIT_BYTES:
            raise InvalidResponseError(
                f"invalid HTTP: a chunk's size or trailer of more than {_HEAD_LIMIT_BYTES} bytes"
            )
        for piece in chunks.pieces:
            self.buffer[self.end : self.end + len(piece)] = piece
            self.end += len(piece)
        self.is_complete = chunks.is_complete
        self.filled = self.end
        self.start = 0 if chunks.is_complete else self.end
        if not chunks.is_complete:
            self._reserve()

    def _reserve(self) -> None:
        """Reserve enough space to be worth a read."""
        if len(self.buffer) - self.filled < _BUFFER_BYTES // 2:
            self._grow_limited(2 * len(self.buffer))

    def _grow_limited(self, size_bytes: int) -> None:
        if size_bytes > RESPONSE_LIMIT_BYTES:
            raise InvalidResponseError(f"the response is larger than the limit of {RESPONSE_LIMIT_BYTES} bytes")
        self.grow(size_bytes)


class _HeadHandler:
    """Callbacks of the parser for a head."""

    parser: HttpResponseParser

    def __init__(self) -> None:
        self.headers: dict[bytes, bytes] = {}
        self.keeps_alive = False

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        self.headers[name] = self.headers[name] + b", " + value if name in self.headers else value.strip()

    def on_headers_complete(self) -> None:
        # Later is too late: a response of length 0 is complete then, and for a complete one the parser returns False.
        self.keeps_alive = self.parser.should_keep_alive()


class _ChunkHandler:
    """Callbacks of the parser for a chunked body."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        """The pieces of the body in the bytes that were received last."""
        self.is_complete = self.has_surplus = False
        self.bytes_without_body = 0

    def on_message_begin(self) -> None:
        self.has_surplus = self.is_complete

    def on_body(self, piece: bytes) -> None:
        self.pieces.append(piece)

    def on_message_complete(self) -> None:
        self.is_complete = True


def _describe(error: HttpParserError) -> str:
    return str(error) or type(error).__name__
