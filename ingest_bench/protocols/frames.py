"""Frames: each document over TCP behind its length, as Netty's LengthFieldBasedFrameDecoder reads them.

A frame has no status, so the server either acknowledges each with some bytes, or does not respond at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from ingest_bench.documents.body import Body, item_sizes
from ingest_bench.errors import SpecError
from ingest_bench.inputs import records
from ingest_bench.model.values import Between
from ingest_bench.protocols.json_array import DocumentsOnly
from ingest_bench.protocols.response import (
    InvalidResponseError,
    ResponseHead,
    ResponseReader,
    Verdict,
    acknowledge_all,
)

if TYPE_CHECKING:
    from ingest_bench.model.load import LoadOptions, ProtocolOptions
    from ingest_bench.protocols.response import Response
    from ingest_bench.protocols.users import FramesUser

_BUFFER_BYTES = 64 * 1024
_QUOTED_BYTES = 40
_ACKNOWLEDGED = ResponseHead(200)
# As in samples of other requests without a response.
_SILENCE = ResponseHead(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class FramesKeys:
    """The keys of the protocol `frames`."""

    length_size: Literal[1, 2, 4, 8] = 4
    """Bytes of the length before each document."""
    byte_order: Literal["big", "little"] = "big"
    """Byte order of the length."""
    length_includes_itself: bool = False
    """Whether the length counts its own bytes too."""
    acknowledgement_size: Annotated[int, Between(0, 1024, "an acknowledgement is short")] = 0
    """Bytes of the server's response to each frame; their content is not interpreted. 0: it does not respond, and a
    document is acknowledged when the kernel has accepted it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frames(DocumentsOnly):
    """Protocol `frames`: each document over TCP behind its length; an acknowledgement for each, or none."""

    protocol: ClassVar[str] = "frames"
    picks_nodes: ClassVar[bool] = False
    max_documents: ClassVar[None] = None

    keys: FramesKeys

    @classmethod
    def from_options(cls, protocol_options: ProtocolOptions, index: str, options: LoadOptions) -> Frames:
        """Create the protocol; SpecError for an unknown or invalid key."""
        del index
        keys = records.from_toml(FramesKeys, protocol_options.keys, protocol_options.toml_key)
        cls.check_action(options)
        if options.gzip:
            raise SpecError(f"load.gzip: {cls.protocol} does not support compressed bodies")
        return cls(keys=keys)

    @property
    def overhead_bytes(self) -> int:
        """Bytes that an item has in addition to its document."""
        return self.keys.length_size

    def build_body(self, documents: Sequence[bytes], seed: int) -> Body:
        """Build a request: one frame for each document. SpecError for a document that is too long for the length."""
        del seed
        keys = self.keys
        included = keys.length_size if keys.length_includes_itself else 0
        longest, limit = max(map(len, documents)) + included, 256**keys.length_size - 1
        if longest > limit:
            raise SpecError(
                f"a frame of {longest:,} bytes does not fit a length of {keys.length_size} bytes, which is at most "
                f"{limit:,}. Set length_size in the protocol, or send shorter documents."
            )
        heads = [(len(document) + included).to_bytes(keys.length_size, keys.byte_order) for document in documents]
        data = b"".join(part for frame in zip(heads, documents, strict=True) for part in frame)
        return Body(data, len(documents), sizes=item_sizes(documents) + keys.length_size)

    def user_class(self) -> type[FramesUser]:
        """Return a Locust user class that sends frames."""
        # Locust must not be loaded in a process that only builds bodies.
        from ingest_bench.protocols.users import FramesUser  # noqa: PLC0415

        fields = {"protocol": self.protocol, "acknowledgement_bytes": self.keys.acknowledgement_size}
        return type("FramesUser", (FramesUser,), {"abstract": True, **fields})

    def judge(self, response: Response, body: Body, may_be_stored: bool = False) -> Verdict:
        """Acknowledge all documents: the reader accepts only a response that acknowledges each."""
        del response, may_be_stored
        return acknowledge_all(body.documents)


class AcknowledgementReader(ResponseReader):
    """Reader of `expected_bytes` of any content, which are not kept."""

    def __init__(self) -> None:
        self.expected_bytes = 0
        """Length of the response to the next request; 0: there is none."""
        super().__init__(_BUFFER_BYTES)

    def reset(self) -> None:
        """Start with the next response."""
        super().reset()
        if self.is_silent:
            self.head, self.is_complete = _SILENCE, True

    @property
    def is_silent(self) -> bool:
        """True if the next request has no response."""
        return not self.expected_bytes

    @property
    def comparable_bytes(self) -> int | None:
        """None: the length depends on the request."""
        return None

    def free_space(self) -> memoryview:
        """Return the buffer for the next bytes."""
        return self.view

    def feed(self, size_bytes: int) -> None:
        """Count more received bytes."""
        self.filled += size_bytes
        if self.filled > self.expected_bytes:
            start = bytes(self.view[: min(size_bytes, _QUOTED_BYTES)])
            raise InvalidResponseError(
                f"{self.filled} bytes instead of {self.expected_bytes} acknowledge the frames; "
                f"the last ones begin with {start!r}. Set acknowledgement_size in the protocol."
            )
        if self.filled == self.expected_bytes:
            self.head, self.is_complete, self.end = _ACKNOWLEDGED, True, self.filled

    def feed_eof(self) -> None:
        """Handle that the server closed: a request that is still being sent is not acknowledged."""
        self.is_complete = False
