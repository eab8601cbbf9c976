"""What an HTTP answer to a bulk says. Pure: bytes in, verdicts out."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

_STATUS_LINE = re.compile(rb"HTTP/1\.[01] ([0-9]{3})(?: [^\r\n]*)?")
_SAID_BYTES = 300
# "errors" is the second or third member of the answer (after "took" and "ingest_took"): no need to read on.
_ERRORS_WITHIN_BYTES = 256

OK, PARTIAL, REJECTED, HTTP_ERROR, BROKEN_ANSWER = "ok", "partial", "rejected", "http-error", "broken-answer"


class BrokenAnswerError(ValueError):
    """An answer that is not HTTP, or not the answer to a bulk."""


class Head(NamedTuple):
    """The part of an HTTP answer that says how long its body is."""

    status: int
    length_bytes: int | None
    """None: chunked, or until the server closes."""
    chunked: bool
    close: bool


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
    rejections: Mapping[str, int] = field(default_factory=dict)
    said: str = ""

    def final(self) -> Verdict:
        """The same, when nothing is sent again: what was rejected has failed."""
        failures = Counter(self.failures) + Counter(self.rejections)
        return replace(self, failed=self.failed + len(self.rejected), failures=failures, rejected=(), rejections={})


def parse_head(raw: bytes) -> Head:
    """The head of an answer, given up to and without its blank line; BrokenAnswerError says what was found instead."""
    status_line, _, rest = raw.partition(b"\r\n")
    match = _STATUS_LINE.fullmatch(status_line)
    if match is None:
        raise BrokenAnswerError(f"not an HTTP answer: it began with {raw[:40]!r}")
    headers: dict[bytes, bytes] = {}
    for line in rest.split(b"\r\n") if rest else ():
        name, colon, value = line.partition(b":")
        if not colon or not name.strip():
            raise BrokenAnswerError(f"broken HTTP: the header line {line[:60]!r} has no colon")
        headers[name.strip().lower()] = value.strip().lower()
    status = int(match[1])
    chunked = b"chunked" in headers.get(b"transfer-encoding", b"")
    length = headers.get(b"content-length")
    if length is not None and not length.isdigit():
        raise BrokenAnswerError(f"broken HTTP: content-length is {length[:40]!r}")
    bodiless = status in (204, 304) or 100 <= status < 200
    return Head(
        status=status,
        length_bytes=0 if bodiless else None if chunked or length is None else int(length),
        chunked=chunked and not bodiless,
        close=b"close" in headers.get(b"connection", b"") or status_line.startswith(b"HTTP/1.0"),
    )


def dechunk(raw: bytes | bytearray, start: int, end: int) -> tuple[bytes, int] | None:
    """The body of a chunked answer and where it ends in `raw`; None while bytes are still missing."""
    parts: list[bytes] = []
    while True:
        line_end = raw.find(b"\r\n", start, end)
        if line_end < 0:
            if end - start > 1000:
                raise BrokenAnswerError("broken HTTP: a chunk size without an end")
            return None
        size_text = bytes(raw[start:line_end]).partition(b";")[0].strip()
        try:
            size_bytes = int(size_text, 16)
        except ValueError:
            raise BrokenAnswerError(f"broken HTTP: the chunk size is {size_text[:40]!r}") from None
        start = line_end + 2
        if size_bytes == 0:
            return _trailer(raw, start, end, parts)
        if start + size_bytes + 2 > end:
            return None
        parts.append(bytes(raw[start : start + size_bytes]))
        start += size_bytes + 2
        if raw[start - 2 : start] != b"\r\n":
            raise BrokenAnswerError("broken HTTP: a chunk is longer than it said")


def _trailer(raw: bytes | bytearray, start: int, end: int, parts: list[bytes]) -> tuple[bytes, int] | None:
    while True:
        line_end = raw.find(b"\r\n", start, end)
        if line_end < 0:
            return None
        if line_end == start:
            return b"".join(parts), start + 2
        start = line_end + 2


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
            return Verdict(outcome=OK, acked=documents)
        return _judge_items(answer["items"], documents)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        said = f"a {status} answer that is not the answer to a bulk: {body[:_SAID_BYTES]!r}"
        return Verdict(outcome=BROKEN_ANSWER, said=said)


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
    rejected = []
    for index, item in enumerate(items):
        (result,) = item.values()
        status = int(result["status"])
        if 200 <= status < 300:
            continue
        error = result.get("error", "")
        name = f"{status} {error['type'] if isinstance(error, dict) else error}".strip()
        if status == 429:
            rejections[name] += 1
            rejected.append(index)
        else:
            failures[name] += 1
    acked = documents - failures.total() - len(rejected)
    return Verdict(
        outcome=OK if acked == documents else PARTIAL,
        acked=acked,
        failed=failures.total(),
        failures=failures,
        rejected=tuple(rejected),
        rejections=rejections,
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
