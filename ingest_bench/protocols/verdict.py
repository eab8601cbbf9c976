"""What came back of a request, and what it means for each document, whatever the protocol."""

from __future__ import annotations

import functools
import json
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

OK, PARTIAL, REJECTED, HTTP_ERROR, BROKEN_RESPONSE = "ok", "partial", "rejected", "http-error", "invalid-response"
MESSAGE_BYTES = 300
NOT_RETRIED = "not sent again: without ids of their own its documents could be stored twice"


@dataclass(slots=True)
class Response:
    """The answer to one request: its body is `raw[start:end]`, until the connection's next request."""

    status: int
    raw: bytes | bytearray
    start: int
    end: int
    retry_after_s: int = 0
    """How long the server wants to be left alone, as it says; 0: it does not."""

    @property
    def body(self) -> bytes:
        """A copy of the body, which stays."""
        return bytes(memoryview(self.raw)[self.start : self.end])


def parse_json_body(body: bytes) -> Any:
    """The body of an answer as JSON; ValueError for anything else."""
    try:
        return json.loads(body)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


class ConnectionBrokenError(Exception):
    """A request without an answer: `outcome` is one of OUTCOMES.

    `is_unsure`: some of it may have been carried out, also when it is not known that a byte was sent.
    """

    def __init__(self, outcome: str, said: str, *, is_unsure: bool = False) -> None:
        super().__init__(said)
        self.outcome = outcome
        self.may_be_stored = is_unsure


class BrokenResponseError(ValueError):
    """An answer that is none of the protocol, or not plainly so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of the documents of one request: acknowledged, failed for good, or to be sent again."""

    outcome: str
    acked: int = 0
    failed: int = 0
    """Without the rejected ones, until they are `final`."""
    in_doubt: int = 0
    """Of these, how many may have been carried out, without that we heard of it."""
    failures: Mapping[str, int] = field(default_factory=dict)
    """Failed items by "status type"."""
    rejected_items: tuple[int, ...] = ()
    """The items (their place in the body) that may be sent again."""
    may_be_stored: bool = False
    """The same of these: whether some may have been."""
    failed_items: tuple[int, ...] = ()
    """The items that have failed for good."""
    added: int | None = None
    """How many documents the index has more; None: the answer does not say it of each acknowledged item."""
    created_items: tuple[int, ...] = ()
    """The items that made a document of an id that should have been there before."""
    rejections: Mapping[str, int] = field(default_factory=dict)
    message: str = ""

    @property
    def unacknowledged_items(self) -> tuple[int, ...]:
        """The items that were not acknowledged."""
        return self.failed_items + self.rejected_items

    def without_retries(self) -> Verdict:
        """The same, when nothing is sent again: what was rejected has failed."""
        failures = Counter(self.failures) + Counter(self.rejections)
        return replace(
            self,
            failed=self.failed + len(self.rejected_items),
            in_doubt=self.in_doubt + (len(self.rejected_items) if self.may_be_stored else 0),
            failures=failures,
            failed_items=self.unacknowledged_items,
            rejected_items=(),
            rejections={},
        )


@functools.lru_cache(maxsize=4096)
def acknowledge_all(documents: int) -> Verdict:
    """The verdict that every document was acknowledged: the case that must be cheap."""
    return Verdict(outcome=OK, acked=documents)
