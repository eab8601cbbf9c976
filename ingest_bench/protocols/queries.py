"""Queries beside the indexing: a query is a body without documents, answered whole, in part, or not."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ingest_bench.documents.body import Body
from ingest_bench.protocols.bulk import describe_error
from ingest_bench.protocols.verdict import (
    BROKEN_RESPONSE,
    HTTP_ERROR,
    MESSAGE_BYTES,
    OK,
    PARTIAL,
    REJECTED,
    Verdict,
    parse_json_body,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ingest_bench.protocols.http1.http_user import Http1User
    from ingest_bench.protocols.verdict import Response

# "timed_out" and "_shards" come before the hits, which are not read.
_WITHIN_BYTES = 256
_ANSWERED = Verdict(outcome=OK)


@dataclass(frozen=True, slots=True)
class Search:
    """The queries of a workload, posted there."""

    path: str

    def build_body(self, query: Mapping[str, Any]) -> Body:
        """One query."""
        return Body(json.dumps(query).encode(), 0)

    def user_class(self) -> type[Http1User]:
        """A Locust user that posts queries."""
        from ingest_bench.protocols.http1.http_user import Http1User  # noqa: PLC0415 - as in `bulk`

        own = {"abstract": True, "path": self.path, "protocol_headers": {"content-type": "application/json"}}
        return type("QueryPoster", (Http1User,), own)

    def judge(self, answer: Response, body: Body, is_unsure: bool = False) -> Verdict:
        """Whether the query was answered in time and by every shard."""
        del body, is_unsure
        status, raw, start = answer.status, answer.raw, answer.start
        near = min(answer.end, start + _WITHIN_BYTES)
        in_time = status == 200 and raw.find(b'"timed_out":false', start, near) >= 0
        if in_time and raw.find(b'"failed":0', start, near) >= 0:
            return _ANSWERED
        return _judged(status, answer.body)


def _judged(status: int, body: bytes) -> Verdict:
    """What became of a query, from its whole answer."""
    if status == 429:
        return Verdict(outcome=REJECTED, message=describe_error(status, body))
    if not 200 <= status < 300:
        return Verdict(outcome=HTTP_ERROR, message=describe_error(status, body))
    try:
        found = parse_json_body(body)
        whole = found["timed_out"] is False and found["_shards"]["failed"] == 0
    except (ValueError, KeyError, TypeError):
        words = f"a {status} answer that is not the answer to a query: {body[:MESSAGE_BYTES]!r}"
        return Verdict(outcome=BROKEN_RESPONSE, message=words)
    if whole:
        return _ANSWERED
    return Verdict(outcome=PARTIAL, message=f"a query was answered in part: {body[:MESSAGE_BYTES]!r}")
