"""Queries beside the indexing: a query is a body without documents, answered whole, in part, or not."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ingest_bench.documents.body import Body
from ingest_bench.protocols.bulk import said
from ingest_bench.protocols.verdict import (
    BROKEN_ANSWER,
    HTTP_ERROR,
    OK,
    PARTIAL,
    REJECTED,
    SAID_BYTES,
    Verdict,
    decoded,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ingest_bench.protocols.http1.http_user import Poster
    from ingest_bench.protocols.verdict import Answer

# "timed_out" and "_shards" come before the hits, which are not read.
_WITHIN_BYTES = 256
_ANSWERED = Verdict(outcome=OK)


@dataclass(frozen=True, slots=True)
class Search:
    """The queries of a workload, posted there."""

    path: str

    def body(self, query: Mapping[str, Any]) -> Body:
        """One query."""
        return Body(json.dumps(query).encode(), 0)

    def user(self) -> type[Poster]:
        """A Locust user that posts queries."""
        from ingest_bench.protocols.http1.http_user import Poster  # noqa: PLC0415 - as in `bulk`

        own = {"abstract": True, "path": self.path, "own_headers": {"content-type": "application/json"}}
        return type("QueryPoster", (Poster,), own)

    def judge(self, answer: Answer, body: Body, is_unsure: bool = False) -> Verdict:
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
        return Verdict(outcome=REJECTED, said=said(status, body))
    if not 200 <= status < 300:
        return Verdict(outcome=HTTP_ERROR, said=said(status, body))
    try:
        found = decoded(body)
        whole = found["timed_out"] is False and found["_shards"]["failed"] == 0
    except (ValueError, KeyError, TypeError):
        words = f"a {status} answer that is not the answer to a query: {body[:SAID_BYTES]!r}"
        return Verdict(outcome=BROKEN_ANSWER, said=words)
    if whole:
        return _ANSWERED
    return Verdict(outcome=PARTIAL, said=f"a query was answered in part: {body[:SAID_BYTES]!r}")
