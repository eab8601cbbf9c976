"""How long an HTTP answer is. llhttp decides (`httptools`): what could be read in two ways is refused."""

from __future__ import annotations

from typing import NamedTuple

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from ingest_bench.protocols.verdict import BrokenResponseError

# The heads of an answer, interim ones too; the size of a chunk with its extension; a trailer: none may be longer.
_LIMIT_BYTES = 64 * 1024
_ANSWER_LIMIT_BYTES = 256 * 1024**2
_BUFFER_BYTES = 256 * 1024
_KNOWN_HEADS = 256


class Head(NamedTuple):
    """The part of an HTTP answer that says how long its body is."""

    status: int
    length_bytes: int | None
    """None: chunked, or until the server closes."""
    chunked: bool
    close: bool
    retry_after_s: int = 0
    """How long the server wants to be left alone; 0: it does not say it, or as a date."""


def parse_response_head(raw: bytes) -> Head:
    """The head of an answer, given with its blank line; BrokenAnswerError says what is wrong with it."""
    if not raw.startswith((b"HTTP/1.1 ", b"HTTP/1.0 ")):
        raise BrokenResponseError(f"not an HTTP answer of version 1: it begins with {raw[:40]!r}")
    seen = _Headers()
    seen.parser = parser = HttpResponseParser(seen)
    try:
        parser.feed_data(raw)
    except HttpParserUpgrade:
        raise BrokenResponseError("broken HTTP: the server changes the protocol, which nobody asked for") from None
    except HttpParserError as error:
        raise BrokenResponseError(f"broken HTTP: {_said(error)}; the answer begins with {raw[:40]!r}") from None
    status = parser.get_status_code()
    if not 100 <= status < 600:
        raise BrokenResponseError(f"broken HTTP: the status is {status}")
    coding = seen.headers.get(b"transfer-encoding")
    if coding is not None and coding.lower() != b"chunked":
        raise BrokenResponseError(f"broken HTTP: transfer-encoding is {coding[:40]!r}, which nobody asked for")
    length = seen.headers.get(b"content-length")
    bodiless = status < 200 or status in (204, 304)
    return Head(
        status=status,
        length_bytes=0 if bodiless else None if length is None else int(length),
        chunked=coding is not None and not bodiless,
        close=not seen.keeps_alive,
        retry_after_s=int(later) if (later := seen.headers.get(b"retry-after", b"")[:9]).isdigit() else 0,
    )


class Chunks:
    """The body of a chunked answer, decoded as it comes."""

    def __init__(self, head: bytes) -> None:
        self._seen = _Pieces()
        self._parser = HttpResponseParser(self._seen)
        self._parser.feed_data(head)
        self._without_body_bytes = 0

    @property
    def complete(self) -> bool:
        """Whether the last chunk and its trailer have come."""
        return self._seen.complete

    def decoded(self, raw: memoryview) -> list[bytes]:
        """What the answer's next bytes add to its body; BrokenAnswerError says what is wrong with them."""
        self._seen.pieces = []
        try:
            self._parser.feed_data(raw)
        except HttpParserError as error:
            if not self._seen.surplus:
                raise BrokenResponseError(f"broken HTTP in a chunked answer: {_said(error)}") from None
        if self._seen.surplus:
            raise BrokenResponseError("broken HTTP: more bytes after the last chunk")
        self._without_body_bytes = 0 if self._seen.pieces else self._without_body_bytes + len(raw)
        if self._without_body_bytes > _LIMIT_BYTES:
            raise BrokenResponseError(f"broken HTTP: a chunk's size or trailer of more than {_LIMIT_BYTES} bytes")
        return self._seen.pieces


class HttpResponseReader:
    """An answer as it comes: bytes go into `room()`, and `came` and `closed` tell what they are.

    Once it `is_whole`, its body is `buffer[start:end]`. Each of the three raises BrokenAnswerError.
    """

    def __init__(self) -> None:
        self.buffer = bytearray(_BUFFER_BYTES)
        self.view = memoryview(self.buffer)
        self._heads: dict[bytes, Head] = {}
        self.reset()

    @property
    def same_bytes(self) -> int | None:
        """The head of a body with a length."""
        return None if self._chunks is not None else self.start

    def reset(self) -> None:
        """Nothing has come of the next answer."""
        self.head: Head | None = None
        """The answer's own, not an interim answer's."""
        self.is_complete = False
        self.start = self.end = self.filled = 0
        self._interim_bytes = 0
        self._chunks: Chunks | None = None

    def free_space(self) -> memoryview:
        """Where the next bytes go."""
        return self.view[self.filled :]

    def feed(self, size_bytes: int) -> None:
        """So many bytes more are in the room."""
        self.filled += size_bytes
        if self.head is None:
            self.head = self._final_head()
            if self.head is None:
                return
            self._begin_body(self.head)
        if self._chunks is not None:
            self._decode(self._chunks)
        elif self.head.length_bytes is None:
            self._make_room()
        elif self.filled > self.end:
            raise BrokenResponseError(
                f"broken HTTP: {self.filled - self.end} bytes more than the answer's content-length"
            )
        else:
            self.is_complete = self.filled == self.end

    def feed_eof(self) -> None:
        """The server has closed: the answer is whole if that is how its body ends."""
        if self.head is not None and self.head.length_bytes is None and self._chunks is None:
            self.end, self.is_complete = self.filled, True

    def _final_head(self) -> Head | None:
        """The head when it is whole. Interim answers before it leave the buffer."""
        while (start := self.buffer.find(b"\r\n\r\n", 0, self.filled) + 4) >= 4:
            raw = bytes(self.view[:start])
            head = self._heads.get(raw) or self._learn(raw)
            if head.status >= 200:
                self.start = start
                return head
            self._interim_bytes += start
            self.filled -= start
            self.buffer[: self.filled] = self.buffer[start : start + self.filled]
        if self._interim_bytes + self.filled > _LIMIT_BYTES:
            raise BrokenResponseError(f"broken HTTP: the head of the answer has no end within {_LIMIT_BYTES} bytes")
        return None

    def _learn(self, raw: bytes) -> Head:
        if len(self._heads) >= _KNOWN_HEADS:
            self._heads.clear()
        head = self._heads[raw] = parse_response_head(raw)
        return head

    def _begin_body(self, head: Head) -> None:
        if head.chunked:
            self._chunks = Chunks(bytes(self.view[: self.start]))
        elif head.length_bytes is not None:
            self.end = self.start + head.length_bytes
            # Room for a byte too much: it has to be seen.
            if self.end >= len(self.buffer):
                self._grow(self.end + 1)

    def _decode(self, chunks: Chunks) -> None:
        """Decoded, the body begins where the buffer does: it takes the place of what it was decoded from."""
        for piece in chunks.decoded(self.view[self.start : self.filled]):
            self.buffer[self.end : self.end + len(piece)] = piece
            self.end += len(piece)
        self.is_complete = chunks.complete
        self.filled = self.end
        self.start = 0 if chunks.complete else self.end
        if not chunks.complete:
            self._make_room()

    def _make_room(self) -> None:
        """Room for so much that it is worth a read."""
        if len(self.buffer) - self.filled < _BUFFER_BYTES // 2:
            self._grow(2 * len(self.buffer))

    def _grow(self, size_bytes: int) -> None:
        if size_bytes > _ANSWER_LIMIT_BYTES:
            raise BrokenResponseError(f"an answer of more than {_ANSWER_LIMIT_BYTES} bytes: so much is not read")
        grown = bytearray(size_bytes)
        grown[: self.filled] = self.view[: self.filled]
        self.buffer, self.view = grown, memoryview(grown)


class _Headers:
    """What the parser tells of a head."""

    parser: HttpResponseParser

    def __init__(self) -> None:
        self.headers: dict[bytes, bytes] = {}
        self.keeps_alive = False

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        self.headers[name] = self.headers[name] + b", " + value if name in self.headers else value.strip()

    def on_headers_complete(self) -> None:
        # Later is too late: an answer whose length is 0 is complete, and of a complete one the parser says no.
        self.keeps_alive = self.parser.should_keep_alive()


class _Pieces:
    """What the parser tells of a body."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.complete = self.surplus = False

    def on_message_begin(self) -> None:
        self.surplus = self.complete

    def on_body(self, piece: bytes) -> None:
        self.pieces.append(piece)

    def on_message_complete(self) -> None:
        self.complete = True


def _said(error: HttpParserError) -> str:
    return str(error) or type(error).__name__
