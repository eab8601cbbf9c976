"""Common part of Cassandra's protocols: a document is a row, a row has a generated key, one response for all rows.

The key makes a request idempotent: a row that is sent twice is stored once.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple, Self

import numpy as np

from ingest_bench.documents.body import BodyTemplate, draw_reused, item_sizes
from ingest_bench.errors import SpecError
from ingest_bench.inputs import records
from ingest_bench.model.load import BulkAction
from ingest_bench.model.values import Pattern
from ingest_bench.protocols.json_array import DocumentsOnly
from ingest_bench.protocols.response import (
    MESSAGE_BYTES,
    InvalidResponseError,
    ResponseHead,
    ResponseReader,
    Verdict,
    acknowledge_all,
    fail_all,
    reject_all,
)
from ingest_bench.protocols.thrift_wire import table_name

if TYPE_CHECKING:
    from ingest_bench.documents.body import Body
    from ingest_bench.model.load import LoadOptions, ProtocolOptions
    from ingest_bench.protocols.response import Response
    from ingest_bench.protocols.users import HandshakeUser

# DatabaseDescriptor of Cassandra 0.7 and SchemaConstants of 4 and 5: \w+, at most 48 characters.
Keyspace = Annotated[str, Pattern(r"[A-Za-z0-9_]{1,48}", "a keyspace's name: A-Z, a-z, 0-9 and underscore")]
_BUFFER_BYTES = 64 * 1024
# A response frame has some dozens of bytes, or an error message and warnings of at most 64 kB each.
MAX_FRAME_BYTES = 1024**2


@dataclass(frozen=True, slots=True, kw_only=True)
class RowKeys:
    """The keys of the protocols `cql` and `thrift`."""

    keyspace: Keyspace
    """Keyspace of the tables (column families), which are named as the indices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowProtocol(DocumentsOnly):
    """Documents as rows of tables, in turn."""

    picks_nodes: ClassVar[bool] = False
    max_documents: ClassVar[None] = None
    table: ClassVar[str]
    """The protocol's word for a table."""
    max_rows: ClassVar[int] = 2**31 - 1
    """Most rows of a request: their number has 32 bits."""
    reader_class: ClassVar[type[FrameReader]]
    expected: ClassVar[tuple[Any, ...]]
    """The frames of a successful response to a body (`FrameReader.expected`)."""

    keyspace: str
    tables: tuple[str, ...]
    action: BulkAction

    @classmethod
    def from_options(cls, protocol_options: ProtocolOptions, index: str, options: LoadOptions) -> Self:
        """Create the protocol; SpecError for an unknown key or an unsupported option."""
        keys = records.from_toml(RowKeys, protocol_options.keys, protocol_options.toml_key)
        action = options.action
        if options.gzip:
            raise SpecError(f"load.gzip: {cls.protocol} does not support compressed bodies")
        if action.pipeline is not None or action.refresh is not None or action.operation == "create":
            raise SpecError(
                f"load.action: {cls.protocol} has no pipelines, no refresh and no create; these belong to the bulk API"
            )
        if action.conflicts != "none" and action.indices != 1:
            raise SpecError(
                f"load.action: conflicts cannot be combined with indices: a reused key may go to another {cls.table}, "
                f"and {cls.protocol} does not tell which rows are new"
            )
        cls.check_rows(options.bulk_documents or 0)
        return cls(keyspace=keys.keyspace, tables=tuple(map(table_name, action.index_names(index))), action=action)

    @classmethod
    def check_rows(cls, rows: int) -> None:
        """Raise SpecError for more rows than one request can have."""
        if rows > cls.max_rows:
            raise SpecError(
                f"load.bulk_documents: a request of {cls.protocol} has at most {cls.max_rows:,} rows, not {rows:,}"
            )

    @property
    def handshake(self) -> Sequence[tuple[bytes, Sequence[Any]]]:
        """Requests that open a connection, each with the frames of its successful response."""
        raise NotImplementedError

    def user_class(self) -> type[HandshakeUser]:
        """Return a Locust user class that sends rows. The handshake is part of a connection's first request."""
        # Locust must not be loaded in a process that only builds bodies.
        from ingest_bench.protocols.users import HandshakeUser  # noqa: PLC0415

        fields = {name: getattr(self, name) for name in ("protocol", "reader_class", "handshake", "expected")}
        return type("RowUser", (HandshakeUser,), {"abstract": True, **fields})

    def build_template(
        self, before: bytes, rows: list[bytes], after: bytes, key_offset: int, seed: int
    ) -> BodyTemplate:
        """Return a request with gaps for the keys of its rows; the seed decides which rows reuse a key."""
        sizes = item_sizes(rows)
        id_offsets = len(before) + key_offset + np.cumsum(sizes) - sizes
        # Items cover the whole request: the first one includes its start, the last one its end.
        sizes[0] += len(before)
        sizes[-1] += len(after)
        probability_ppm = 0 if self.action.conflicts == "none" else self.action.conflict_probability_ppm
        data = bytearray(b"".join((before, *rows, after)))
        return BodyTemplate(data, id_offsets, draw_reused(len(rows), probability_ppm, seed), sizes=sizes)

    def judge(self, response: Response, body: Body, may_be_stored: bool = False) -> Verdict:
        """Decide for all documents at once. Each row has a key, so all may be retried."""
        del may_be_stored
        status = response.status
        if status == 200:
            return acknowledge_all(body.documents)
        message = response.body[:MESSAGE_BYTES].decode("utf-8", "replace")
        kind = f"{status} {message.partition(':')[0]}"
        if status in (503, 504):
            # 503: no replica got the request. 504: one may have stored some of it.
            return reject_all(body.documents, kind, message, may_be_stored=status == 504)
        return fail_all(body.documents, kind, message, in_doubt=status >= 500)


class FrameSummary(NamedTuple):
    """Combined result of the response frames of one request, as an HTTP status."""

    status: int
    message: bytes = b""
    close: bool = False


class FrameReader(ResponseReader):
    """Reader of responses of several frames, each of which begins with its length.

    Once they are complete, the body is the error message of the server, or empty.
    """

    encoding: ClassVar[str]
    """Its name in messages."""
    head_bytes: ClassVar[int]
    """Bytes of a frame from which its length is known."""

    def __init__(self) -> None:
        self.expected: Sequence[Any] = ()
        """The expected frames of a success, one per request frame."""
        self.is_handshake = False
        """True while a connection is set up: no later request has such a response."""
        super().__init__(_BUFFER_BYTES)

    @abstractmethod
    def frame_length(self, offset: int) -> int:
        """Return the length of the frame at an offset of the buffer, with its head; InvalidResponseError if invalid."""

    @abstractmethod
    def summarize(self, frames: list[bytes]) -> FrameSummary:
        """Return the combined result of all frames; InvalidResponseError for an unexpected one."""

    @property
    def comparable_bytes(self) -> int | None:
        """The whole response, if it is a success."""
        return self.filled if self.head is not None and self.head.status == 200 and not self.is_handshake else None

    def feed(self, size_bytes: int) -> None:
        """Parse more received bytes."""
        self.filled += size_bytes
        try:
            self._parse()
        except InvalidResponseError as error:
            raise InvalidResponseError(f"invalid {self.encoding}: {error}") from None

    def _parse(self) -> None:
        frames: list[bytes] = []
        offset = 0
        while len(frames) < len(self.expected) and self.filled - offset >= self.head_bytes:
            start, offset = offset, offset + self.frame_length(offset)
            if offset > self.filled:
                break
            frames.append(bytes(self.view[start:offset]))
        if len(frames) < len(self.expected):
            # Space for a surplus byte, which must be detected, and enough to be worth a read.
            self.grow(max(offset, self.filled) + 4096)
            return
        if self.filled > offset:
            raise InvalidResponseError(f"{self.filled - offset} bytes more than the expected frames")
        status, message, close = self.summarize(frames)
        self.head = ResponseHead(status, close=close)
        self.is_complete = True
        # The body is the message. Of a success the frames stay in the buffer, to compare the next response.
        self.start = self.end = self.filled
        if message:
            self.start, self.end = 0, len(message)
            self.grow(self.end)
            self.buffer[: self.end] = message
