"""The bulk API of Elasticsearch and OpenSearch: an action line before each document, an answer for each item."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlencode

import numpy as np

from ingest_bench.documents import corpus
from ingest_bench.documents.body import DIGITS, Body, BodyTemplate, draw_reused
from ingest_bench.errors import SpecError
from ingest_bench.inputs import records
from ingest_bench.model.load import BulkAction
from ingest_bench.model.values import UrlPath
from ingest_bench.protocols.verdict import (
    BROKEN_RESPONSE,
    HTTP_ERROR,
    MESSAGE_BYTES,
    NOT_RETRIED,
    OK,
    PARTIAL,
    REJECTED,
    Verdict,
    acknowledge_all,
    parse_json_body,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ingest_bench.model.load import LoadOptions, ProtocolOptions
    from ingest_bench.protocols.http1.http_user import Http1User
    from ingest_bench.protocols.verdict import Response

# "errors" is the second or third member of the answer (after "took" and "ingest_took"): no need to read on.
_ERRORS_WITHIN_BYTES = 256
_DONE = {"created": 1, "deleted": -1}


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkKeys:
    """The keys of the protocol `bulk`."""

    path: UrlPath
    """Where bulks are posted to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bulk:
    """An action line before each document, and an answer for each: Elasticsearch, OpenSearch, the sink."""

    picks_nodes: ClassVar[bool] = False
    max_documents: ClassVar[None] = None

    path: str
    action: BulkAction
    gzip: bool = False
    indices: tuple[str, ...] = ()
    """The indices that action lines name in turn; none: the request's path says the only one."""
    has_action_lines: bool = False
    """The documents are items with action lines of their own."""

    @classmethod
    def from_wire(cls, wire: ProtocolOptions, index: str, options: LoadOptions) -> Bulk:
        """The same for a server that takes bulks there; SpecError for a key that it has not."""
        return cls.for_path(records.from_toml(BulkKeys, wire.keys, wire.toml_key).path, index, options)

    @classmethod
    def for_path(cls, path: str, index: str, options: LoadOptions) -> Bulk:
        """The protocol for a load with these options."""
        action = options.action
        targets = () if action.indices == 1 else action.index_names(index)
        return cls(path=path, action=action, gzip=options.gzip, indices=targets)

    def for_file(self, path: Path, *, has_action_lines: bool, index: str | None, is_data_stream: bool = False) -> Bulk:
        """The same for the documents of a file, for a data stream, or for items that have their own ids and indices."""
        if has_action_lines and (self._has_ids or self.action.indices != 1):
            raise SpecError(f"{path}: ready bulk bodies have their own ids and indices; take out conflicts and indices")
        targets = self.indices if index is None or self.indices else (index,)
        action = replace(self.action, operation="create") if is_data_stream else self.action
        return replace(self, has_action_lines=has_action_lines, indices=targets, action=action)

    @property
    def overhead_bytes(self) -> int:
        """What an item has at most beside its document."""
        if self.has_action_lines:
            return 1
        lines = [_action_line(self.action.operation, target, ids=self._has_ids) for target in self.indices or ("",)]
        if self.action.on_conflict == "update" and self._has_ids:
            lines = [_action_line("update", target, ids=True) + b'{"doc": }' for target in self.indices or ("",)]
        return max(map(len, lines)) + 1

    @property
    def _has_ids(self) -> bool:
        return self.action.conflicts != "none"

    def build_body(self, documents: Sequence[bytes], seed: int) -> Body | BodyTemplate:
        """These documents as a body, or with gaps where a user writes ids. The seed says which ids are old."""
        if self._has_ids:
            return self._template(documents, draw_reused(len(documents), self.action.conflict_probability_ppm, seed))
        body = _as_it_is(documents) if self.has_action_lines else self._without_ids(documents)
        return body.compress() if self.gzip else body

    def user_class(self) -> type[Http1User]:
        """A Locust user that posts bulks."""
        # Locust must not be loaded where bodies are made and nothing is sent.
        from ingest_bench.protocols.http1.http_user import Http1User  # noqa: PLC0415

        own = {"abstract": True, "path": self.url_path, "protocol_headers": self.headers}
        return type("BulkPoster", (Http1User,), own)

    @property
    def headers(self) -> dict[str, str]:
        """What each request says of its body."""
        return {"content-type": "application/x-ndjson"} | ({"content-encoding": "gzip"} if self.gzip else {})

    @property
    def url_path(self) -> str:
        """Where bulks are posted to, with what is asked of the server in the query string."""
        asked = {"pipeline": self.action.pipeline, "refresh": self.action.refresh}
        text = urlencode({key: value for key, value in asked.items() if value is not None})
        return self.path + (f"{'&' if '?' in self.path else '?'}{text}" if text else "")

    def judge(self, answer: Response, body: Body, is_unsure: bool = False) -> Verdict:
        """What became of each document. What the answer says at its beginning is enough when no item failed."""
        if is_unsure:
            return _judged(answer, body, is_unsure)
        near = answer.start + _ERRORS_WITHIN_BYTES
        if answer.status == 200 and 0 <= answer.raw.find(b'"errors":false', answer.start, answer.end) < near:
            if body.adds is None:
                return acknowledge_all(body.documents)
            return Verdict(outcome=OK, acked=body.documents, added=count_added(answer, body.documents))
        return _judged(answer, body, is_unsure)

    def _without_ids(self, documents: Sequence[bytes]) -> Body:
        if not self.indices:
            line = _action_line(self.action.operation, "", ids=False)
            data = b"".join((line, (b"\n" + line).join(documents), b"\n"))
        else:
            own = [_action_line(self.action.operation, target, ids=False) for target in self.indices]
            lines = itertools.cycle(own)
            data = b"".join(itertools.chain.from_iterable(zip(lines, documents, itertools.repeat(b"\n"))))
        return Body(data, len(documents), lines_per_item=2)

    def _template(self, documents: Sequence[bytes], old: np.ndarray[Any, np.dtype[np.bool_]]) -> BodyTemplate:
        targets = itertools.cycle(self.indices or ("",))
        data = bytearray()
        places = []
        for document, target, is_old in zip(documents, targets, old.tolist(), strict=False):
            update = is_old and self.action.on_conflict == "update"
            data += _action_line("update" if update else self.action.operation, target, ids=True)
            # The gap stands before the quote, both braces and the line feed.
            places.append(len(data) - 4 - DIGITS)
            data += b'{"doc": %s}\n' % document if update else document + b"\n"
        return BodyTemplate(data, np.array(places, dtype=np.int64), old, lines_per_item=2, compress=self.gzip)


def count_added(answer: Response, documents: int) -> int | None:
    """How many documents the index has more after a bulk without a failure; None when the answer does not say it.

    The server knows best: which id it had, whether an update made a document, and whether there was one to delete.
    """
    raw, start, end = answer.raw, answer.start, answer.end
    if raw.count(b'"result":"', start, end) != documents:
        return None
    return raw.count(b'"result":"created"', start, end) - raw.count(b'"result":"deleted"', start, end)


def error_type(body: bytes) -> str:
    """What Elasticsearch calls the error, or nothing."""
    try:
        error = parse_json_body(body)["error"]
        return str(error["type"] if isinstance(error, dict) else error)[:100]
    except (ValueError, KeyError, TypeError):
        return ""


def describe_error(status: int, body: bytes) -> str:
    """An answer that is no success, as a person reads it."""
    words = body[:MESSAGE_BYTES].decode("utf-8", "replace").strip() or "nothing more"
    if status == 413:
        return (
            "413: the bulk is larger than the server takes (http.max_content_length, 100 MB unless set): "
            f"use smaller bulks or raise the setting. The server said: {words}"
        )
    return f"{status}: {words}"


def _action_line(name: str, target: str, *, ids: bool) -> bytes:
    meta = [f'"_index":{json.dumps(target, ensure_ascii=False)}'] if target else []
    meta += [f'"_id":"{"0" * DIGITS}"'] if ids else []
    return f'{{"{name}":{{{",".join(meta)}}}}}\n'.encode()


def _as_it_is(parts: Sequence[bytes]) -> Body:
    """An item with an id replaces itself when it is sent once more.

    Two with the same id are not noticed here, that would take a table of all ids: the server's answers tell.
    """
    does = corpus.item_effects(parts)
    sizes = np.fromiter(map(len, parts), dtype=np.int64, count=len(parts)) + 1
    return Body(
        b"\n".join((*parts, b"")),
        len(parts),
        sizes=sizes,
        adds=does.adds,
        adds_when_resent=does.adds_when_resent,
        is_idempotent=does.is_idempotent,
    )


def _judged(answer: Response, body: Body, is_unsure: bool) -> Verdict:
    """What became of the documents of a bulk, from its whole answer."""
    status, text, documents = answer.status, answer.body, body.documents
    if status == 429 or (status == 503 and body.is_idempotent):
        return Verdict(
            outcome=REJECTED if status == 429 else HTTP_ERROR,
            rejected_items=tuple(range(documents)),
            may_be_stored=status == 503,
            rejections={f"{status} {error_type(text)}": documents},
            message=describe_error(status, text),
        )
    if not 200 <= status < 300:
        return Verdict(
            outcome=HTTP_ERROR,
            failed=documents,
            in_doubt=documents if status >= 500 else 0,
            failures={f"{status} {error_type(text)}": documents},
            message=describe_error(status, text) + (f" ({NOT_RETRIED})" if status == 503 else ""),
        )
    try:
        found = parse_json_body(text)
        if found["errors"] is False and not is_unsure:
            return Verdict(outcome=OK, acked=documents, added=count_added(answer, documents))
        return _judged_items(found["items"], body, is_unsure)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError):
        words = f"a {status} answer that is not the answer to a bulk: {text[:MESSAGE_BYTES]!r}"
        return Verdict(outcome=BROKEN_RESPONSE, message=words)


def _judged_items(items: list[dict[str, dict[str, Any]]], body: Body, is_unsure: bool) -> Verdict:
    if len(items) != body.documents:
        words = f"the answer has {len(items)} items, the bulk had {body.documents} documents"
        return Verdict(outcome=BROKEN_RESPONSE, message=words)
    failures: Counter[str] = Counter()
    rejections: Counter[str] = Counter()
    rejected, refused, made = [], [], []
    added: int | None = 0
    in_doubt, has_503, words = 0, False, ""
    for index, item in enumerate(items):
        (result,) = item.values()
        status = int(result["status"])
        # A deletion that found nothing is a 404 without an error: "errors" does not count it either.
        if 200 <= status < 300 or result.get("result") == "not_found":
            one = _added(result.get("result"), body.adds, index, is_unsure)
            added = None if added is None or one is None else added + one
            if one == 1 and body.adds is not None and body.adds[index] != 1:
                made.append(index)
            continue
        error = result.get("error", "")
        name = f"{status} {error['type'] if isinstance(error, dict) else error}".strip()
        if status == 429 or (status == 503 and body.is_idempotent):
            rejections[name] += 1
            rejected.append(index)
            has_503 = has_503 or status == 503
        else:
            failures[name] += 1
            refused.append(index)
            if status == 503:
                in_doubt, words = in_doubt + 1, f"items with 503 were {NOT_RETRIED}"
    acked = body.documents - len(rejected) - len(refused)
    return Verdict(
        outcome=OK if acked == body.documents else PARTIAL,
        acked=acked,
        failed=failures.total(),
        in_doubt=in_doubt,
        failures=failures,
        rejected_items=tuple(rejected),
        may_be_stored=has_503,
        rejections=rejections,
        failed_items=tuple(refused),
        created_items=tuple(made),
        added=added,
        message=words,
    )


def _added(result: str | None, adds: NDArray[np.int8] | None, item: int, is_unsure: bool) -> int | None:
    """What the index has more by an item that was carried out; None: the answer does not say it.

    What was there already may be there by an earlier attempt of which we did not hear: then the body's own ids say it.
    """
    if result in _DONE:
        return _DONE[result]
    if result is None or not is_unsure or adds is None:
        return None if result is None else 0
    return min(0, int(adds[item])) if result == "not_found" else max(0, int(adds[item]))
