"""Documents alone over HTTP: a JSON array of them, a line for each, or one a request. A status answers for all."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np

from ingest_bench.documents.body import DIGITS, Body, BodyTemplate
from ingest_bench.errors import SpecError
from ingest_bench.inputs import records
from ingest_bench.model.load import BulkAction
from ingest_bench.model.values import Length, Pattern, UrlPath
from ingest_bench.protocols.verdict import (
    BROKEN_RESPONSE,
    HTTP_ERROR,
    MESSAGE_BYTES,
    REJECTED,
    Verdict,
    acknowledge_all,
)

if TYPE_CHECKING:
    from ingest_bench.model.load import LoadOptions, ProtocolOptions
    from ingest_bench.protocols.http1.http_user import Http1User
    from ingest_bench.protocols.verdict import Response

# RFC 9110, 15: a status has three digits, the first of them from 1 to 5. An interim answer (1xx) is none.
Status = Annotated[
    str, Pattern("[2-5](?:xx|[0-9][0-9])", 'a status: three digits such as 429, or a class such as "4xx"')
]
Meaning = Literal["acknowledged", "retry", "refused"]
# RFC 9110, 5.6.2: a token.
HeaderName = Annotated[str, Pattern(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}", "the name of a header")]
HeaderValue = Annotated[str, Pattern(r"[ -~]{0,4000}", "the value of a header: one line of printable ASCII")]
# What says where a request ends, and what the connection is for: that is ours.
_OURS = ("host", "content-length", "content-type", "content-encoding", "transfer-encoding", "connection", "expect")
# They would stand in plans and results.
_SECRET = ("authorization", "proxy-authorization", "cookie")
_CONTENT_TYPES = {"array": "application/json", "lines": "application/x-ndjson", "single": "application/json"}


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonArrayKeys:
    """The keys of the protocol `json-array`."""

    path: UrlPath
    """Where documents are sent to."""
    method: Literal["POST", "PUT"] = "POST"
    """The HTTP method."""
    format: Literal["array", "lines", "single"] = "array"
    """`array`: `[{…},{…}]`. `lines`: a document a line. `single`: one document a request, whatever the bulk's size."""
    content_type: HeaderValue | None = None
    """None: application/json, and application/x-ndjson for lines."""
    headers: Annotated[dict[HeaderName, HeaderValue], Length(0, 100)] = field(default_factory=dict)
    """More headers of each request."""
    acknowledged: Annotated[tuple[Status, ...], Length(1, 100)] = ("2xx",)
    """The statuses that acknowledge all documents of the request."""
    sequence: Annotated[str, Pattern("|[A-Za-z_][A-Za-z0-9_]{0,99}", "the name of a field")] = ""
    """A field that each document gets in front: ten digits, a number that no other document of the run has. With it a
    server that can be read back tells which of them it has. Empty: documents go as they are."""
    retry: Annotated[tuple[Status, ...], Length(0, 100)] = ("429",)
    """Those that say that nothing was done with any of them, and that the request may be tried again."""
    refused: Annotated[tuple[Status, ...], Length(0, 100)] = ("4xx",)
    """Those that say that none of the documents was stored, for good. After any other status it is unknown."""

    @property
    def meanings(self) -> Mapping[str, Meaning]:
        """What each status says that has a meaning; one that is named goes before its class."""
        lists: tuple[Meaning, ...] = ("acknowledged", "retry", "refused")
        return {status: name for name in lists for status in getattr(self, name)}


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonArray:
    """Documents alone over HTTP, in an array, in lines or one a request; a status answers for all.

    They have no ids of ours, so that one that is sent twice may be stored twice.
    """

    picks_nodes: ClassVar[bool] = False

    keys: JsonArrayKeys
    acknowledged: frozenset[int]
    gzip: bool = False

    @classmethod
    def from_wire(cls, wire: ProtocolOptions, index: str, options: LoadOptions) -> JsonArray:
        """The protocol for a load with these options; SpecError for a key that it has not, or that cannot be."""
        del index
        keys = records.from_toml(JsonArrayKeys, wire.keys, wire.toml_key)
        for complaint in _complaints(keys):
            raise SpecError(f"{wire.toml_key}: {complaint}")
        if options.action != BulkAction():
            raise SpecError(
                "load.action: json-array has no ids, indices, pipelines or refresh; these are of the bulk API"
            )
        acknowledged = frozenset(status for status in range(200, 600) if _meaning(keys, status) == "acknowledged")
        return cls(keys=keys, acknowledged=acknowledged, gzip=options.gzip)

    def for_file(
        self, path: Path, *, has_action_lines: bool, index: str | None, is_data_stream: bool = False
    ) -> JsonArray:
        """The same for the documents of a file; SpecError for ready bulk bodies."""
        del index, is_data_stream
        if has_action_lines:
            raise SpecError(f"{path}: these are ready bulk bodies, and this server takes documents alone (json-array)")
        return self

    @property
    def max_documents(self) -> int | None:
        """How many documents go into one request at most; None: as many as are asked for."""
        return 1 if self.keys.format == "single" else None

    @property
    def overhead_bytes(self) -> int:
        """What an item has at most beside its document: the first and last one of an array, if it is the only one."""
        return 2 + len(self._gap)

    @property
    def _gap(self) -> bytes:
        """What stands before a document's own fields; the number is written into it."""
        return b'"%s":"%s",' % (self.keys.sequence.encode(), b"0" * DIGITS) if self.keys.sequence else b""

    def build_body(self, documents: Sequence[bytes], seed: int) -> Body | BodyTemplate:
        """These documents as a body; with gaps for their numbers where they have any."""
        del seed
        if not self.keys.sequence:
            body = self._whole(documents)
            return body.compress() if self.gzip else body
        name, gap, found = self.keys.sequence, self._gap, []
        quoted = b'"%s"' % name.encode()
        for document in documents:
            # Of two fields of one name a reader takes the last one: the number would be lost, and with it the document.
            if quoted in document and _has_field(document, name):
                raise SpecError(f'documents have a field "{name}" of their own; number them in another one (sequence)')
            own = document.strip()[1:].lstrip()
            found.append(b"{" + (gap if own != b"}" else gap[:-1]) + own)
        whole = self._whole(found)
        # Of an array each item has a bracket or a comma before it; of the others only the number's own field is there.
        before = (self.keys.format == "array") + 1 + len(gap) - len('",') - DIGITS
        return BodyTemplate(
            bytearray(whole.data),
            whole.item_offsets()[:-1] + before,
            np.zeros(len(documents), dtype=np.bool_),
            sizes=whole.sizes,
            compress=self.gzip,
            is_idempotent=False,
        )

    def _whole(self, documents: Sequence[bytes]) -> Body:
        sizes = np.fromiter(map(len, documents), dtype=np.int64, count=len(documents))
        if self.keys.format == "array":
            data = b"[" + b",".join(documents) + b"]"
            sizes += 1
            sizes[-1] += 1
        elif self.keys.format == "lines":
            data = b"\n".join((*documents, b""))
            sizes += 1
        else:
            (data,) = documents
        return Body(data, len(documents), sizes=sizes)

    def user_class(self) -> type[Http1User]:
        """A Locust user that sends such bodies."""
        # Locust must not be loaded where bodies are made and nothing is sent.
        from ingest_bench.protocols.http1.http_user import Http1User  # noqa: PLC0415

        own = {
            "abstract": True,
            "path": self.keys.path,
            "method": self.keys.method,
            "protocol_headers": self.headers,
        }
        return type("JsonPoster", (Http1User,), own)

    @property
    def headers(self) -> dict[str, str]:
        """What each request has beside what leads to the server."""
        said = {"content-type": self.keys.content_type or _CONTENT_TYPES[self.keys.format], **self.keys.headers}
        return said | ({"content-encoding": "gzip"} if self.gzip else {})

    def judge(self, answer: Response, body: Body, is_unsure: bool = False) -> Verdict:
        """What became of all documents at once: the status says it, whatever the answer holds."""
        del is_unsure
        status = answer.status
        if status in self.acknowledged:
            return acknowledge_all(body.documents)
        meaning = _meaning(self.keys, status)
        kinds = {str(status): body.documents}
        words = f"{status}: {answer.body[:MESSAGE_BYTES].decode('utf-8', 'replace').strip() or 'nothing more'}"
        if meaning == "retry":
            everything = tuple(range(body.documents))
            return Verdict(outcome=REJECTED, rejected_items=everything, rejections=kinds, message=words)
        if meaning is None and status < 500:
            return Verdict(outcome=BROKEN_RESPONSE, message=f"{words} (neither acknowledged nor refused)")
        in_doubt = body.documents if meaning is None else 0
        return Verdict(outcome=HTTP_ERROR, failed=body.documents, in_doubt=in_doubt, failures=kinds, message=words)


def _has_field(document: bytes, name: str) -> bool:
    """Whether an object has a field of that name. A corpus may have lines that only the server finds wrong."""
    try:
        return name in json.loads(document)
    except (ValueError, RecursionError):
        return False


def _meaning(keys: JsonArrayKeys, status: int) -> Meaning | None:
    return keys.meanings.get(str(status)) or keys.meanings.get(f"{status // 100}xx")


def _complaints(keys: JsonArrayKeys) -> Iterator[str]:
    """What no request can have."""
    for name in keys.headers:
        if name.lower() in _OURS:
            yield f"headers: {name}: ingest-bench says it itself{_instead(name)}"
        if name.lower() in _SECRET:
            yield (
                f"headers: {name}: it would stand in plans and results; credentials come from the environment, "
                "INGEST_BENCH_USER and INGEST_BENCH_PASSWORD, or INGEST_BENCH_API_KEY"
            )
    named = (*keys.acknowledged, *keys.retry, *keys.refused)
    for status in dict.fromkeys(named):
        if named.count(status) > 1:
            yield f"acknowledged, again and refused: {status} stands there twice; a status means one thing"


def _instead(name: str) -> str:
    keys: Mapping[str, str] = {"content-type": "content_type = …", "content-encoding": "load.gzip = true"}
    return f"; write {keys[name.lower()]}" if name.lower() in keys else ""
