"""Response of a server, how a connection reads one, and the verdict about each document, for all protocols."""

from __future__ import annotations

import functools
import json
from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

OK, PARTIAL, REJECTED, HTTP_ERROR, INVALID_RESPONSE = "ok", "partial", "rejected", "http-error", "invalid-response"
# Bytes of a response that a message quotes.
MESSAGE_BYTES = 300
NOT_RETRIED = "not retried: without own ids its documents could be stored twice"


@dataclass(slots=True)
class Response:
    """The response to one request: its body is `raw[start:end]`, valid until the connection's next request."""

    status: int
    """HTTP status (RFC 9110, 15), for all protocols."""
    raw: bytes | bytearray
    start: int
    end: int
    retry_after_s: int = 0
    """Seconds that the server asks to wait; 0: it does not."""

    @property
    def body(self) -> bytes:
        """A permanent copy of the body."""
        return bytes(memoryview(self.raw)[self.start : self.end])

    @property
    def text(self) -> str:
        """The beginning of the body as text, for messages."""
        return self.body[:MESSAGE_BYTES].decode("utf-8", "replace").strip() or "(empty)"


def parse_json_body(body: bytes) -> Any:
    """Parse a response body as JSON; ValueError for anything else."""
    try:
        return json.loads(body)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def describe_error(error: Any) -> str:
    """Return the reason in an error object of Elasticsearch with that of its innermost cause; "" without one."""
    reasons = []
    # A hostile server may nest it as deeply as a parser allows.
    while isinstance(error, dict):
        reasons.append(str(error.get("reason") or ""))
        error = error.get("caused_by")
    texts = [text[:MESSAGE_BYTES] for text in dict.fromkeys((*reasons[:1], *reasons[-1:])) if text]
    return ": ".join(texts)


class ConnectionBrokenError(Exception):
    """A request without a response: `outcome` is one of OUTCOMES.

    `may_be_stored`: the server may have processed some of it; None: if a byte was sent.
    """

    def __init__(self, outcome: str, message: str, *, may_be_stored: bool | None = None) -> None:
        super().__init__(message)
        self.outcome = outcome
        self.may_be_stored = may_be_stored


class InvalidResponseError(ValueError):
    """Bytes that are not an unambiguous response of the protocol."""


class ResponseHead(NamedTuple):
    """The beginning of a response: its status, and how long its body is."""

    status: int
    """HTTP status, for all protocols."""
    close: bool = False
    """True if the server accepts no more requests on this connection."""
    retry_after_s: int = 0
    """Seconds that the server asks to wait; 0: it does not, or as a date."""
    length_bytes: int | None = 0
    """None: chunked, or until the server closes."""
    chunked: bool = False


class ResponseReader(ABC):
    """Reader of a response: bytes are received into `free_space()`, then passed on by `feed` or `feed_eof`.

    Once it `is_complete`, the body is `buffer[start:end]`. The methods raise InvalidResponseError.
    """

    def __init__(self, buffer_bytes: int) -> None:
        self.buffer = bytearray(buffer_bytes)
        self.view = memoryview(self.buffer)
        self.reset()

    @property
    def is_silent(self) -> bool:
        """True if the next request has no response: the reader is complete once it is reset."""
        return False

    def reset(self) -> None:
        """Start with the next response."""
        self.head: ResponseHead | None = None
        """None until it is complete. Never the head of an interim response."""
        self.is_complete = False
        self.start = self.end = self.filled = 0

    @property
    @abstractmethod
    def comparable_bytes(self) -> int | None:
        """Length of a prefix that identifies this response: one of the same length and prefix means the same.

        None: a response must be parsed to know.
        """

    @abstractmethod
    def feed(self, size_bytes: int) -> None:
        """Parse more received bytes."""

    def feed_eof(self) -> None:  # noqa: B027 - only some bodies end with the connection
        """Handle that the server closed: this completes a body without a length."""

    def free_space(self) -> memoryview:
        """Return the buffer for the next bytes."""
        return self.view[self.filled :]

    def grow(self, size_bytes: int) -> None:
        """Make the buffer at least this large."""
        if size_bytes > len(self.buffer):
            larger = bytearray(size_bytes)
            larger[: self.filled] = self.view[: self.filled]
            self.buffer, self.view = larger, memoryview(larger)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Result of the documents of one request: acknowledged, failed, or to be retried."""

    outcome: str
    acked: int = 0
    failed: int = 0
    """Without the rejected items, until `without_retries`."""
    in_doubt: int = 0
    """Failed items that may be stored nevertheless."""
    failures: Mapping[str, int] = field(default_factory=dict)
    """Number of failed items by "status type"."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """The server's reason for the first failed or rejected item of each "status type"."""
    rejected_items: tuple[int, ...] = ()
    """Positions in the body of items that may be retried."""
    may_be_stored: bool = False
    """True if some of these may be stored."""
    failed_items: tuple[int, ...] = ()
    """Positions of items that failed permanently."""
    added: int | None = None
    """Documents that the index gained; None: the response does not tell it for each acknowledged item."""
    created_items: tuple[int, ...] = ()
    """Positions of items that created a document although their id was expected to exist."""
    rejections: Mapping[str, int] = field(default_factory=dict)
    """Number of rejected items by "status type"."""
    message: str = ""

    @property
    def unacknowledged_items(self) -> tuple[int, ...]:
        """Positions of all items that were not acknowledged."""
        return self.failed_items + self.rejected_items

    def without_retries(self) -> Verdict:
        """Return the verdict if nothing is retried: the rejected items have failed."""
        return replace(
            self,
            failed=self.failed + len(self.rejected_items),
            in_doubt=self.in_doubt + (len(self.rejected_items) if self.may_be_stored else 0),
            failures=Counter(self.failures) + Counter(self.rejections),
            failed_items=self.unacknowledged_items,
            rejected_items=(),
            rejections={},
        )


@functools.lru_cache(maxsize=4096)
def acknowledge_all(documents: int) -> Verdict:
    """Return the verdict that all documents are acknowledged; cached, because it is the usual one."""
    return Verdict(outcome=OK, acked=documents)


def reject_all(documents: int, kind: str, message: str, *, may_be_stored: bool = False) -> Verdict:
    """Return the verdict that all documents may be retried; *may_be_stored*: some may be stored already."""
    return Verdict(
        outcome=HTTP_ERROR if may_be_stored else REJECTED,
        rejected_items=tuple(range(documents)),
        rejections={kind: documents},
        may_be_stored=may_be_stored,
        message=message,
    )


def fail_all(documents: int, kind: str, message: str, *, in_doubt: bool) -> Verdict:
    """Return the verdict that all documents failed; *in_doubt*: they may be stored nevertheless."""
    in_doubt_count = documents if in_doubt else 0
    failures = {kind: documents}
    return Verdict(outcome=HTTP_ERROR, failed=documents, in_doubt=in_doubt_count, failures=failures, message=message)
