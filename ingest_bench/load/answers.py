"""What an HTTP answer to a bulk says. Pure: bytes in, verdicts out."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_SAID_BYTES = 300
# "errors" is the second or third member of the answer (after "took" and "ingest_took"): no need to read on.
_ERRORS_WITHIN_BYTES = 256

OK, PARTIAL, REJECTED, HTTP_ERROR, BROKEN_ANSWER = "ok", "partial", "rejected", "http-error", "broken-answer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of the documents of one bulk: acknowledged, failed for good, or rejected with 429."""

    outcome: str
    acked: int = 0
    failed: int = 0
    """Without the rejected ones, until they are `final`."""
    failures: Mapping[str, int] = field(default_factory=dict)
    """Failed items by "status type"."""
    rejected: tuple[int, ...] = ()
    """The items (their index in the bulk) that may be sent again."""
    refused: tuple[int, ...] = ()
    """The items that have failed for good."""
    added: int | None = None
    """How many documents the index has more; None: the answer does not say it of each acknowledged item."""
    rejections: Mapping[str, int] = field(default_factory=dict)
    said: str = ""

    @property
    def lost(self) -> tuple[int, ...]:
        """The items that were not acknowledged."""
        return self.refused + self.rejected

    def final(self) -> Verdict:
        """The same, when nothing is sent again: what was rejected has failed."""
        failures = Counter(self.failures) + Counter(self.rejections)
        failed = self.failed + len(self.rejected)
        return replace(self, failed=failed, failures=failures, refused=self.lost, rejected=(), rejections={})


def all_acked(status: int, raw: bytes | bytearray, start: int, end: int) -> bool:
    """Whether the answer says at its beginning that no item failed: the case that must be cheap."""
    return status == 200 and raw.find(b'"errors":false', start, min(end, start + _ERRORS_WITHIN_BYTES)) >= 0


def judge(status: int, body: bytes, documents: int) -> Verdict:
    """What became of the `documents` of a bulk, from its whole answer."""
    if status == 429:
        return Verdict(
            outcome=REJECTED,
            rejected=tuple(range(documents)),
            rejections={f"429 {_error_type(body)}": documents},
            said=_said(status, body),
        )
    if not 200 <= status < 300:
        return Verdict(
            outcome=HTTP_ERROR,
            failed=documents,
            failures={f"{status} {_error_type(body)}": documents},
            said=_said(status, body),
        )
    try:
        answer = json.loads(body)
        if answer["errors"] is False:
            return Verdict(outcome=OK, acked=documents, added=told_added(body, 0, len(body), documents))
        return _judge_items(answer["items"], documents)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        said = f"a {status} answer that is not the answer to a bulk: {body[:_SAID_BYTES]!r}"
        return Verdict(outcome=BROKEN_ANSWER, said=said)


def told_added(raw: bytes | bytearray, start: int, end: int, documents: int) -> int | None:
    """How many documents the index has more after a bulk without a failure; None when the answer does not say it.

    The server knows best: which id it had, whether an update made a document, and whether there was one to delete.
    """
    if raw.count(b'"result":"', start, end) != documents:
        return None
    return raw.count(b'"result":"created"', start, end) - raw.count(b'"result":"deleted"', start, end)


def all_found(status: int, raw: bytes | bytearray, start: int, end: int) -> bool:
    """Whether a query was answered in time and by every shard: both are told before the hits, which are not read."""
    near = min(end, start + _ERRORS_WITHIN_BYTES)
    in_time = status == 200 and raw.find(b'"timed_out":false', start, near) >= 0
    return in_time and raw.find(b'"failed":0', start, near) >= 0


def judge_search(status: int, body: bytes) -> Verdict:
    """What became of a query, from its whole answer."""
    if status == 429:
        return Verdict(outcome=REJECTED, said=_said(status, body))
    if not 200 <= status < 300:
        return Verdict(outcome=HTTP_ERROR, said=_said(status, body))
    try:
        answer = json.loads(body)
        whole = answer["timed_out"] is False and answer["_shards"]["failed"] == 0
    except (ValueError, KeyError, TypeError):
        said = f"a {status} answer that is not the answer to a query: {body[:_SAID_BYTES]!r}"
        return Verdict(outcome=BROKEN_ANSWER, said=said)
    if whole:
        return Verdict(outcome=OK)
    return Verdict(outcome=PARTIAL, said=f"a query was answered in part: {body[:_SAID_BYTES]!r}")


def _judge_items(items: list[dict[str, dict[str, Any]]], documents: int) -> Verdict:
    if len(items) != documents:
        said = f"the answer has {len(items)} items, the bulk had {documents} documents"
        return Verdict(outcome=BROKEN_ANSWER, said=said)
    failures: Counter[str] = Counter()
    rejections: Counter[str] = Counter()
    results: Counter[str] = Counter()
    rejected, refused = [], []
    for index, item in enumerate(items):
        (result,) = item.values()
        status = int(result["status"])
        # A deletion that found nothing is a 404 without an error: "errors" does not count it either.
        if 200 <= status < 300 or result.get("result") == "not_found":
            results[str(result.get("result", ""))] += 1
            continue
        error = result.get("error", "")
        name = f"{status} {error['type'] if isinstance(error, dict) else error}".strip()
        if status == 429:
            rejections[name] += 1
            rejected.append(index)
        else:
            failures[name] += 1
            refused.append(index)
    acked = results.total()
    return Verdict(
        outcome=OK if acked == documents else PARTIAL,
        acked=acked,
        failed=failures.total(),
        failures=failures,
        rejected=tuple(rejected),
        rejections=rejections,
        refused=tuple(refused),
        added=None if results[""] else results["created"] - results["deleted"],
    )


def _error_type(body: bytes) -> str:
    """What Elasticsearch calls the error, or nothing."""
    try:
        error = json.loads(body)["error"]
        return str(error["type"] if isinstance(error, dict) else error)[:100]
    except (ValueError, KeyError, TypeError):
        return ""


def _said(status: int, body: bytes) -> str:
    said = body[:_SAID_BYTES].decode("utf-8", "replace").strip() or "nothing more"
    if status == 413:
        return (
            "413: the bulk is larger than the server takes (http.max_content_length, 100 MB unless set): "
            f"use smaller bulks or raise the setting. The server said: {said}"
        )
    return f"{status}: {said}"
