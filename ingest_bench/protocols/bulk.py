"""The bulk API of Elasticsearch and OpenSearch, and queries: an action line before each document, a result for each."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self
from urllib.parse import urlencode

import numpy as np

from ingest_bench.documents.body import DIGITS, Body, BodyTemplate, draw_reused, item_sizes
from ingest_bench.documents.corpus import item_effects
from ingest_bench.errors import SpecError
from ingest_bench.inputs import records
from ingest_bench.model.load import BulkAction
from ingest_bench.model.values import UrlPath
from ingest_bench.protocols.response import (
    HTTP_ERROR,
    INVALID_RESPONSE,
    MESSAGE_BYTES,
    NOT_RETRIED,
    OK,
    PARTIAL,
    REJECTED,
    Verdict,
    acknowledge_all,
    describe_error,
    fail_all,
    parse_json_body,
    reject_all,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ingest_bench.model.load import Http2Windows, LoadOptions, ProtocolOptions, TrackFile
    from ingest_bench.protocols.response import Response
    from ingest_bench.protocols.users import Http1User

# "errors" is the second or third member of a bulk response (after "took" and "ingest_took"); "timed_out" and "_shards"
# of a query come before the hits. So the beginning is enough.
_BEGINNING_BYTES = 256
_ADDED_BY_RESULT = {"created": 1, "deleted": -1}
_PARSE_ERRORS = (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError)
_QUERY_OK = Verdict(outcome=OK)


def make_user_class(
    path: str, headers: Mapping[str, str], windows: Http2Windows | None, method: str = "POST"
) -> type[Http1User]:
    """Return a Locust user class that sends bodies to a URL path; *windows*: over HTTP/2."""
    # Locust must not be loaded in a process that only builds bodies.
    from ingest_bench.protocols.users import Http1User, Http2User  # noqa: PLC0415

    fields = {"path": path, "protocol_headers": headers, "method": method, "windows": windows}
    return type("HttpUser", (Http1User if windows is None else Http2User,), {"abstract": True, **fields})


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkKeys:
    """The keys of the protocol `bulk`."""

    path: UrlPath
    """URL path of bulk requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bulk:
    """Protocol `bulk`: an action line before each document, a result for each (Elasticsearch, OpenSearch, sink)."""

    picks_nodes: ClassVar[bool] = False
    max_documents: ClassVar[None] = None

    path: str
    action: BulkAction
    gzip: bool = False
    indices: tuple[str, ...] = ()
    """The indices that action lines name in turn; empty: the path of the request names the only one."""
    has_action_lines: bool = False
    """The documents are items with action lines of their own."""
    windows: Http2Windows | None = None
    """None: over HTTP/1.1."""

    @classmethod
    def from_options(cls, protocol_options: ProtocolOptions, index: str, options: LoadOptions) -> Bulk:
        """Create the protocol; SpecError for an unknown key."""
        keys = records.from_toml(BulkKeys, protocol_options.keys, protocol_options.toml_key)
        return cls.for_path(keys.path, index, options)

    @classmethod
    def for_path(cls, path: str, index: str, options: LoadOptions) -> Bulk:
        """Create the protocol for a URL path and load options."""
        action = options.action
        indices = () if action.indices == 1 else action.index_names(index)
        return cls(path=path, action=action, gzip=options.gzip, indices=indices, windows=options.http2_windows)

    def for_file(self, file: TrackFile) -> Self:
        """Return the protocol for the documents of a file; a data stream only takes `create`."""
        if file.is_text:
            raise SpecError(f"{file.path}: lines of text cannot be sent with bulk, which takes JSON objects")
        if file.has_action_lines and (self._has_ids or self.action.indices != 1):
            raise SpecError(
                f"{file.path}: conflicts and indices cannot be combined with bulk bodies, which have their own"
            )
        indices = self.indices or ((file.index,) if file.index else ())
        action = replace(self.action, operation="create") if file.is_data_stream else self.action
        return replace(self, has_action_lines=file.has_action_lines, indices=indices, action=action)

    envelope_bytes: ClassVar[int] = 0
    measure = staticmethod(len)

    @property
    def overhead_bytes(self) -> int:
        """Most bytes that an item has in addition to its document."""
        if self.has_action_lines:
            return 1
        operations = {self.action.operation, self.action.on_conflict if self._has_ids else self.action.operation}
        indices = self.indices or ("",)
        return max(len(self.encode_item(b"", operation, index)[0]) for operation in operations for index in indices)

    @property
    def _has_ids(self) -> bool:
        return self.action.conflicts != "none"

    def build_body(self, documents: Sequence[bytes], seed: int) -> Body | BodyTemplate:
        """Build a body, or a template if users assign ids. The seed decides which documents reuse one."""
        if self._has_ids:
            reuses_id = draw_reused(len(documents), self.action.conflict_probability_ppm, seed)
            return self._build_template(documents, reuses_id)
        body = _join_ready_items(documents) if self.has_action_lines else self._build_without_ids(documents)
        return body.compress() if self.gzip else body

    def user_class(self) -> type[Http1User]:
        """Return a Locust user class that posts bulks."""
        return make_user_class(self.url_path, self.headers, self.windows)

    @property
    def headers(self) -> dict[str, str]:
        """The headers that describe the body."""
        return {"content-type": "application/x-ndjson"} | ({"content-encoding": "gzip"} if self.gzip else {})

    @property
    def url_path(self) -> str:
        """URL path of bulk requests with their query string."""
        query = {"pipeline": self.action.pipeline, "refresh": self.action.refresh}
        text = urlencode({key: value for key, value in query.items() if value is not None})
        return self.path + (f"{'&' if '?' in self.path else '?'}{text}" if text else "")

    def judge(self, response: Response, body: Body, may_be_stored: bool = False) -> Verdict:
        """Decide for each document; the beginning of the response is enough if no item failed."""
        if may_be_stored:
            return _judge_whole(response, body, may_be_stored)
        limit = response.start + _BEGINNING_BYTES
        if response.status == 200 and 0 <= response.raw.find(b'"errors":false', response.start, response.end) < limit:
            if body.adds is None:
                return acknowledge_all(body.documents)
            return Verdict(outcome=OK, acked=body.documents, added=count_added(response, body.documents))
        return _judge_whole(response, body, may_be_stored)

    def _build_without_ids(self, documents: Sequence[bytes]) -> Body:
        lines = [_action_line(self.action.operation, index, has_id=False) for index in self.indices or ("",)]
        if len(lines) == 1:
            data = b"".join((lines[0], (b"\n" + lines[0]).join(documents), b"\n"))
        else:
            parts = zip(itertools.cycle(lines), documents, itertools.repeat(b"\n"))
            data = b"".join(itertools.chain.from_iterable(parts))
        sizes = item_sizes(documents) + np.resize([len(line) + 1 for line in lines], len(documents))
        return Body(data, len(documents), sizes)

    def _build_template(self, documents: Sequence[bytes], reuses_id: NDArray[np.bool_]) -> BodyTemplate:
        indices = itertools.cycle(self.indices or ("",))
        data = bytearray()
        id_offsets, ends = [], [0]
        for document, index, reuses in zip(documents, indices, reuses_id.tolist(), strict=False):
            update = reuses and self.action.on_conflict == "update"
            item, id_offset = self.encode_item(document, "update" if update else self.action.operation, index)
            id_offsets.append(len(data) + id_offset)
            data += item
            ends.append(len(data))
        offsets = np.array(id_offsets, dtype=np.int64)
        return BodyTemplate(data, offsets, reuses_id, sizes=np.diff(ends), compress=self.gzip)

    def encode_item(self, document: bytes, operation: str, index: str) -> tuple[bytes, int]:
        """Return an item, and the offset of the gap for its id if it has one."""
        line = _action_line(operation, index, has_id=self._has_ids)
        text = b'{"doc": %s}' % document if operation == "update" else document
        # The gap is before the quote, both braces and the line feed.
        return line + text + b"\n", len(line) - 4 - DIGITS


def count_added(response: Response, documents: int) -> int | None:
    """Return how many documents the index gained by a bulk without failures; None if the response does not tell it.

    Only the server knows which ids existed, whether an update created a document, and whether a deletion found one.
    """
    raw, start, end = response.raw, response.start, response.end
    if raw.count(b'"result":"', start, end) != documents:
        return None
    return raw.count(b'"result":"created"', start, end) - raw.count(b'"result":"deleted"', start, end)


def _error_type(body: bytes) -> str:
    """Return the error type in an error response of Elasticsearch; empty without one."""
    try:
        error = parse_json_body(body)["error"]
        return str(error["type"] if isinstance(error, dict) else error)[:100]
    except (ValueError, KeyError, TypeError):
        return ""


def _describe_error(response: Response) -> str:
    if response.status == 413:
        return (
            "413: the bulk is larger than the server accepts (http.max_content_length, 100 MB by default). Use smaller "
            f"bulks or raise the setting. Response: {response.text}"
        )
    return f"{response.status}: {response.text}"


def _action_line(action: str, index: str, *, has_id: bool) -> bytes:
    meta = [f'"_index":{json.dumps(index, ensure_ascii=False)}'] if index else []
    meta += [f'"_id":"{"0" * DIGITS}"'] if has_id else []
    return f'{{"{action}":{{{",".join(meta)}}}}}\n'.encode()


def _join_ready_items(items: Sequence[bytes]) -> Body:
    """Build a body of bulk items. An item with an id replaces itself when it is sent again.

    Duplicate ids are not detected here, which would take a table of all ids: the responses of the server tell.
    """
    return Body(b"\n".join((*items, b"")), len(items), item_sizes(items) + 1, **item_effects(items))


def judge_error(status: int, kind: str, message: str, body: Body) -> Verdict:
    """Judge a bulk without results of its items, by the HTTP status."""
    if status == 429 or (status == 503 and body.is_idempotent):
        return reject_all(body.documents, kind, message, may_be_stored=status == 503)
    note = f" ({NOT_RETRIED})" if status == 503 else ""
    return fail_all(body.documents, kind, message + note, in_doubt=status >= 500)


def _judge_whole(response: Response, body: Body, may_be_stored: bool) -> Verdict:
    """Judge a bulk by its whole response."""
    status, content = response.status, response.body
    if not 200 <= status < 300:
        return judge_error(status, f"{status} {_error_type(content)}", _describe_error(response), body)
    try:
        result = parse_json_body(content)
        if result["errors"] is False and not may_be_stored:
            return Verdict(outcome=OK, acked=body.documents, added=count_added(response, body.documents))
        return judge_items(result["items"], body, may_be_stored)
    except _PARSE_ERRORS:
        message = f"a {status} response that is not the response to a bulk: {content[:MESSAGE_BYTES]!r}"
        return Verdict(outcome=INVALID_RESPONSE, message=message)


def judge_items(items: Sequence[Mapping[str, dict[str, Any]]], body: Body, may_be_stored: bool) -> Verdict:
    """Judge each document by its item in the response to a bulk (its JSON)."""
    if len(items) != body.documents:
        message = f"the response has {len(items)} items, the bulk had {body.documents} documents"
        return Verdict(outcome=INVALID_RESPONSE, message=message)
    failures: Counter[str] = Counter()
    rejections: Counter[str] = Counter()
    reasons: dict[str, str] = {}
    rejected_items, failed_items, created_items = [], [], []
    added: int | None = 0
    in_doubt, has_503, message = 0, False, ""
    for number, item in enumerate(items):
        (result,) = item.values()
        status = int(result["status"])
        # A deletion that found nothing is a 404 without an error: "errors" does not count it either.
        if 200 <= status < 300 or result.get("result") == "not_found":
            item_added = _item_added(result.get("result"), body.adds, number, may_be_stored)
            added = None if added is None or item_added is None else added + item_added
            if item_added == 1 and body.adds is not None and body.adds[number] != 1:
                created_items.append(number)
            continue
        error = result.get("error", "")
        kind = f"{status} {error['type'] if isinstance(error, dict) else error}".strip()
        if kind not in reasons:
            reasons[kind] = describe_error(error)
        if status == 429 or (status == 503 and body.is_idempotent):
            rejections[kind] += 1
            rejected_items.append(number)
            has_503 = has_503 or status == 503
        else:
            failures[kind] += 1
            failed_items.append(number)
            if status == 503:
                in_doubt, message = in_doubt + 1, f"items with 503 were {NOT_RETRIED}"
    acked = body.documents - len(rejected_items) - len(failed_items)
    return Verdict(
        outcome=OK if acked == body.documents else PARTIAL,
        acked=acked,
        failed=failures.total(),
        in_doubt=in_doubt,
        failures=failures,
        reasons=reasons,
        rejected_items=tuple(rejected_items),
        may_be_stored=has_503,
        rejections=rejections,
        failed_items=tuple(failed_items),
        created_items=tuple(created_items),
        added=added,
        message=message,
    )


def _item_added(result: str | None, adds: NDArray[np.int8] | None, item: int, may_be_stored: bool) -> int | None:
    """Return the documents that the index gained by an item; None: the response does not tell it.

    If an earlier attempt without a response may have stored the item, the body's own ids decide.
    """
    if result in _ADDED_BY_RESULT:
        return _ADDED_BY_RESULT[result]
    if result is None or not may_be_stored or adds is None:
        return None if result is None else 0
    return min(0, int(adds[item])) if result == "not_found" else max(0, int(adds[item]))


@dataclass(frozen=True, slots=True)
class Search:
    """Queries of a workload. A query is a body without documents."""

    path: str
    windows: Http2Windows | None = None
    """None: over HTTP/1.1."""

    def build_body(self, query: Mapping[str, Any]) -> Body:
        """Build the body of one query."""
        return Body(json.dumps(query).encode(), 0)

    def user_class(self) -> type[Http1User]:
        """Return a Locust user class that posts queries."""
        return make_user_class(self.path, {"content-type": "application/json"}, self.windows)

    def judge(self, response: Response, body: Body, may_be_stored: bool = False) -> Verdict:
        """Decide whether the query was answered in time and by every shard."""
        del body, may_be_stored
        status, raw, start = response.status, response.raw, response.start
        limit = min(response.end, start + _BEGINNING_BYTES)
        in_time = status == 200 and raw.find(b'"timed_out":false', start, limit) >= 0
        if in_time and raw.find(b'"failed":0', start, limit) >= 0:
            return _QUERY_OK
        if not 200 <= status < 300:
            return Verdict(outcome=REJECTED if status == 429 else HTTP_ERROR, message=_describe_error(response))
        content = response.body
        try:
            result = parse_json_body(content)
            is_complete = result["timed_out"] is False and result["_shards"]["failed"] == 0
        except (ValueError, KeyError, TypeError):
            message = f"a {status} response that is not the response to a query: {content[:MESSAGE_BYTES]!r}"
            return Verdict(outcome=INVALID_RESPONSE, message=message)
        if is_complete:
            return _QUERY_OK
        return Verdict(outcome=PARTIAL, message=f"a query was answered in part: {content[:MESSAGE_BYTES]!r}")
