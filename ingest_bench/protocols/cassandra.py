"""Common part of Cassandra's protocols: a document is a row, a row has a generated key, one response for all rows.

The key makes a request idempotent: a row that is sent twice is stored once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple, Self

from ingest_bench.documents.body import draw_reused
from ingest_bench.errors import SpecError
from ingest_bench.model.load import BulkAction
from ingest_bench.model.values import Pattern
from ingest_bench.protocols.json_array import refuse_action_lines
from ingest_bench.protocols.response import (
    HTTP_ERROR,
    MESSAGE_BYTES,
    REJECTED,
    InvalidResponseError,
    Verdict,
    acknowledge_all,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ingest_bench.documents.body import Body
    from ingest_bench.model.load import LoadOptions
    from ingest_bench.protocols.response import Response

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
class RowProtocol:
    """Documents as rows of tables, in turn."""

    picks_nodes: ClassVar[bool] = False
    max_documents: ClassVar[None] = None
    protocol: ClassVar[str]
    """Key in PROTOCOLS."""
    table: ClassVar[str]
    """The protocol's word for a table."""

    action: BulkAction

    @classmethod
    def check(cls, options: LoadOptions) -> None:
        """Raise SpecError for load options that the protocol does not support."""
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

    def for_file(self, path: Path, *, has_action_lines: bool, index: str | None, is_data_stream: bool = False) -> Self:
        """Return this protocol; SpecError for bulk bodies."""
        del index, is_data_stream
        refuse_action_lines(path, self.protocol, has_action_lines=has_action_lines)
        return self

    def draw_reused_keys(self, rows: int, seed: int) -> NDArray[np.bool_]:
        """Draw which rows reuse a key; a seed always gives the same ones."""
        has_conflicts = self.action.conflicts != "none"
        return draw_reused(rows, self.action.conflict_probability_ppm if has_conflicts else 0, seed)

    def judge(self, response: Response, body: Body, may_be_stored: bool = False) -> Verdict:
        """Decide for all documents at once. Each row has a key, so all may be retried."""
        del may_be_stored
        status = response.status
        if status == 200:
            return acknowledge_all(body.documents)
        message = response.body[:MESSAGE_BYTES].decode("utf-8", "replace")
        kinds = {f"{status} {message.partition(':')[0]}": body.documents}
        if status in (503, 504):
            # 503: no replica got the request. 504: one may have stored some of it.
            return Verdict(
                outcome=REJECTED if status == 503 else HTTP_ERROR,
                rejected_items=tuple(range(body.documents)),
                rejections=kinds,
                may_be_stored=status == 504,
                message=message,
            )
        in_doubt = body.documents if status >= 500 else 0
        return Verdict(outcome=HTTP_ERROR, failed=body.documents, in_doubt=in_doubt, failures=kinds, message=message)


class FrameSummary(NamedTuple):
    """Combined result of the response frames of one request, as an HTTP status."""

    status: int
    message: bytes = b""
    close: bool = False
    retry_after_s: int = 0


class FrameReader(ABC):
    """`ResponseReader` for responses of several frames, each of which begins with its length.

    Once they are complete, the body is the error message of the server, or empty.
    """

    head_bytes: ClassVar[int]
    """Bytes of a frame from which its length is known."""

    def __init__(self) -> None:
        self.expected: Sequence[Any] = ()
        """The expected frames of a success, one per request frame."""
        self.is_handshake = False
        """True while a connection is set up: no later request has such a response."""
        self.buffer = bytearray(_BUFFER_BYTES)
        self.view = memoryview(self.buffer)
        self.reset()

    @abstractmethod
    def frame_length(self, offset: int) -> int:
        """Return the length of the frame at an offset of the buffer, with its head; InvalidResponseError if invalid."""

    @abstractmethod
    def summarize(self, frames: list[bytes]) -> FrameSummary:
        """Return the combined result of all frames; InvalidResponseError for an unexpected one."""

    def reset(self) -> None:
        """Start with the next response."""
        self.head: FrameSummary | None = None
        self.is_complete = False
        self.start = self.end = self.filled = 0

    @property
    def comparable_bytes(self) -> int | None:
        """The whole response, if it is a success."""
        return self.filled if self.head is not None and self.head.status == 200 and not self.is_handshake else None

    def free_space(self) -> memoryview:
        """Return the buffer for the next bytes."""
        return self.view[self.filled :]

    def feed(self, size_bytes: int) -> None:
        """Parse more received bytes."""
        self.filled += size_bytes
        frames: list[bytes] = []
        offset = 0
        while len(frames) < len(self.expected) and self.filled - offset >= self.head_bytes:
            start, offset = offset, offset + self.frame_length(offset)
            if offset > self.filled:
                break
            frames.append(bytes(self.view[start:offset]))
        if len(frames) < len(self.expected):
            # Space for a surplus byte, which must be detected, and enough to be worth a read.
            self._reserve(max(offset, self.filled) + 4096)
            return
        if self.filled > offset:
            raise InvalidResponseError(f"{self.filled - offset} bytes more than the expected frames")
        self.head = self.summarize(frames)
        self.is_complete = True
        # The body is the message. Of a success the frames stay in the buffer, to compare the next response.
        self.start = self.end = self.filled
        if message := self.head.message:
            self.start, self.end = 0, len(message)
            self._reserve(self.end)
            self.buffer[: self.end] = message

    def feed_eof(self) -> None:  # noqa: B027 - nothing to do
        """Do nothing: a frame has a length, so the end of the connection completes none."""

    def _reserve(self, size_bytes: int) -> None:
        if size_bytes > len(self.buffer):
            larger = bytearray(size_bytes)
            larger[: self.filled] = self.view[: self.filled]
            self.buffer, self.view = larger, memoryview(larger)
