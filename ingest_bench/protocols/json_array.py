"""Documents over HTTP without action lines: an array, lines, or one per request, in an envelope. One status for all."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

import numpy as np

from ingest_bench.documents.body import DIGITS, Body, BodyTemplate, item_sizes
from ingest_bench.errors import SpecError
from ingest_bench.inputs import records
from ingest_bench.model.load import BulkAction
from ingest_bench.model.values import Length, Pattern, UrlPath
from ingest_bench.protocols.bulk import make_user_class
from ingest_bench.protocols.response import INVALID_RESPONSE, Verdict, acknowledge_all, fail_all, reject_all

if TYPE_CHECKING:
    from ingest_bench.model.load import Http2Windows, LoadOptions, ProtocolOptions, TrackFile
    from ingest_bench.protocols.response import Response
    from ingest_bench.protocols.users import Http1User

# RFC 9110, 15: a status has three digits, the first of them from 1 to 5. An interim response (1xx) is not a result.
Status = Annotated[
    str, Pattern("[2-5](?:xx|[0-9][0-9])", 'a status: three digits such as 429, or a class such as "4xx"')
]
Meaning = Literal["acknowledged", "retry", "refused"]
# RFC 9110, 5.6.2: a token.
HeaderName = Annotated[str, Pattern(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}", "the name of a header")]
HeaderValue = Annotated[str, Pattern(r"[ -~]{0,4000}", "the value of a header: one line of printable ASCII")]
Text = Annotated[str, Pattern(r"[^\x00\ud800-\udfff]{0,4000}", "a text: at most 4,000 characters")]
_DOCUMENT = "{document}"
_OTHER = rf"(?:(?!{re.escape(_DOCUMENT)})[^\x00\ud800-\udfff]){{0,2000}}"
Envelope = Annotated[
    str,
    Pattern(
        f"{_OTHER}{re.escape(_DOCUMENT)}{_OTHER}", "a text that contains {document} once: at most 4,000 characters"
    ),
]
# These delimit the request or control the connection; ingest-bench sets them.
_RESERVED = ("host", "content-length", "content-type", "content-encoding", "transfer-encoding", "connection", "expect")
# These would be visible in plans and results.
_SECRET = ("authorization", "proxy-authorization", "cookie")
# Bytes before all documents, between two of them, and after the last one.
_LISTS = {"array": (b"[", b",", b"]"), "lines": (b"", b"\n", b"\n"), "single": (b"", b"", b"")}
_CONTENT_TYPES = {"array": "application/json", "lines": "application/x-ndjson", "single": "application/json"}
# Stands for a number until a user of the load writes it.
_GAP = b"0" * DIGITS
_quote = json.JSONEncoder(ensure_ascii=False).encode
_ALTERNATIVES = {"content-type": "; use content_type = …", "content-encoding": "; use load.gzip = true"}


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonArrayKeys:
    """The keys of the protocol `json-array`."""

    path: UrlPath
    """URL path of the requests."""
    method: Literal["POST", "PUT"] = "POST"
    """The HTTP method."""
    format: Literal["array", "lines", "single"] = "array"
    """`array`: `[{…},{…}]`. `lines`: a document per line. `single`: one document per request, for any bulk size."""
    before: Text = ""
    """Text before all documents of a request, and before the bracket of an array: '{"records":'."""
    after: Text = ""
    """Text after all documents of a request: '}'."""
    each: Envelope = _DOCUMENT
    """Text of each document, in which {document} stands for it: '{"value":{document}}'."""
    as_text: bool = False
    """Whether {document} is the document as a JSON string, in quotes and escaped."""
    content_type: HeaderValue | None = None
    """None: application/json, and application/x-ndjson for lines."""
    headers: Annotated[dict[HeaderName, HeaderValue], Length(0, 100)] = field(default_factory=dict)
    """Additional headers of each request."""
    acknowledged: Annotated[tuple[Status, ...], Length(1, 100)] = ("2xx",)
    """Statuses that acknowledge all documents of the request."""
    sequence: Annotated[str, Pattern("|[A-Za-z_][A-Za-z0-9_]{0,99}", "the name of a field")] = ""
    """A field that is inserted first into each document: ten digits, a number unique in the run. With it, a server that
    can be read back shows which documents it has. Empty: documents are sent unchanged."""
    retry: Annotated[tuple[Status, ...], Length(0, 100)] = ("429",)
    """Statuses that mean that no document was processed, and that the request may be retried."""
    refused: Annotated[tuple[Status, ...], Length(0, 100)] = ("4xx",)
    """Statuses that mean that no document was stored, permanently. After any other status it is unknown."""


class DocumentsOnly:
    """Base of protocols whose requests consist of documents, without the action lines of the bulk API."""

    __slots__ = ()

    protocol: ClassVar[str]
    """Key in PROTOCOLS."""

    @property
    def envelope_bytes(self) -> int:
        """Bytes of a request in addition to its items."""
        return 0

    def measure(self, document: bytes) -> int:
        """Return the bytes of a document within its item."""
        return len(document)

    @classmethod
    def check_action(cls, options: LoadOptions) -> None:
        """Raise SpecError for options of the bulk API."""
        if options.action != BulkAction():
            raise SpecError(
                f"load.action: {cls.protocol} has no ids, indices, pipelines or refresh; these belong to the bulk API"
            )

    def for_file(self, file: TrackFile) -> Self:
        """Return this protocol; SpecError for a file of bulk bodies."""
        if file.has_action_lines:
            raise SpecError(
                f"{file.path}: a file of bulk bodies cannot be sent with {self.protocol}, which takes documents alone"
            )
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonArray(DocumentsOnly):
    """Protocol `json-array`: documents in an array, in lines or one per request; one status for all.

    Documents have no ids from ingest-bench, so a document that is sent twice may be stored twice.
    """

    protocol: ClassVar[str] = "json-array"
    picks_nodes: ClassVar[bool] = False

    keys: JsonArrayKeys
    meanings: Mapping[int, Meaning]
    """Meaning of each status that has one."""
    gzip: bool = False
    windows: Http2Windows | None = None
    """None: over HTTP/1.1."""

    @classmethod
    def from_options(cls, protocol_options: ProtocolOptions, index: str, options: LoadOptions) -> JsonArray:
        """Create the protocol; SpecError for an unknown or invalid key."""
        del index
        keys = records.from_toml(JsonArrayKeys, protocol_options.keys, protocol_options.toml_key)
        _check_keys(keys, protocol_options.toml_key)
        cls.check_action(options)
        return cls(keys=keys, meanings=_list_meanings(keys), gzip=options.gzip, windows=options.http2_windows)

    def for_file(self, file: TrackFile) -> Self:
        """Return this protocol; SpecError for a file of bulk bodies, and for text where JSON is required."""
        if file.is_text and self.keys.sequence:
            raise SpecError(f'{file.path}: lines of text have no fields, so the key "sequence" cannot be used')
        if file.is_text and self.keys.format == "array" and not self.keys.as_text:
            raise SpecError(
                f'{file.path}: lines of text are not JSON. Use format = "lines", or as_text = true in the protocol.'
            )
        return DocumentsOnly.for_file(self, file)

    @property
    def max_documents(self) -> int | None:
        """Most documents in one request; None: no limit."""
        return 1 if self.keys.format == "single" else None

    @property
    def envelope_bytes(self) -> int:
        """Bytes of a request in addition to its items."""
        start, _, end = self._list
        return len(start) + len(end)

    @property
    def overhead_bytes(self) -> int:
        """Most bytes that an item has in addition to its document: the text around it, its number and a comma."""
        return len(self.keys.each.encode()) - len(_DOCUMENT) + len(self._encode(self._sequence_field)) + 1

    def measure(self, document: bytes) -> int:
        """Return the bytes of a document within its item."""
        return len(self._encode(document))

    @property
    def _sequence_field(self) -> bytes:
        """The first field of each document, with a gap for the number."""
        return b'"%s":"%s",' % (self.keys.sequence.encode(), _GAP) if self.keys.sequence else b""

    @property
    def _list(self) -> tuple[bytes, bytes, bytes]:
        """Bytes before all items, between two of them, and after the last one."""
        start, separator, end = _LISTS[self.keys.format]
        return self.keys.before.encode() + start, separator, end + self.keys.after.encode()

    def _encode(self, document: bytes) -> bytes:
        """Return what stands for {document}."""
        if not self.keys.as_text:
            return document
        # A byte that is not UTF-8 stays as it is.
        return _quote(document.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")

    def build_body(self, documents: Sequence[bytes], seed: int) -> Body | BodyTemplate:
        """Build a body; a template with gaps for the numbers if documents have a `sequence`."""
        del seed
        before, after = self.keys.each.encode().split(_DOCUMENT.encode())
        if self.keys.sequence:
            documents = [*map(self._number, documents)]
        items = [before + self._encode(document) + after for document in documents]
        start, separator, end = self._list
        data = b"".join((start, separator.join(items), end))
        sizes = item_sizes(items) + len(separator)
        sizes[-1] += len(end) - len(separator)
        offsets = len(start) + np.cumsum(sizes) - sizes
        # Items cover the whole request.
        sizes[0] += len(start)
        if not self.keys.sequence:
            body = Body(data, len(items), sizes=sizes)
            return body.compress() if self.gzip else body
        return BodyTemplate(
            bytearray(data),
            offsets + (before + self._encode(b"{" + self._sequence_field)).rindex(_GAP),
            np.zeros(len(items), dtype=np.bool_),
            sizes=sizes,
            compress=self.gzip,
            is_idempotent=False,
        )

    def _number(self, document: bytes) -> bytes:
        """Insert the first field; SpecError if the document already has it."""
        name, inserted = self.keys.sequence, self._sequence_field
        # Of duplicate fields a reader takes the last one: the number would be lost, and with it the document.
        if b'"%s"' % name.encode() in document and _has_field(document, name):
            raise SpecError(f'documents already have a field "{name}". Use another one for `sequence`.')
        fields = document.strip()[1:].lstrip()
        return b"{" + (inserted if fields != b"}" else inserted[:-1]) + fields

    def user_class(self) -> type[Http1User]:
        """Return a Locust user class that sends such bodies."""
        return make_user_class(self.keys.path, self.headers, self.windows, self.keys.method)

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the protocol."""
        headers = {"content-type": self.keys.content_type or _CONTENT_TYPES[self.keys.format], **self.keys.headers}
        return headers | ({"content-encoding": "gzip"} if self.gzip else {})

    def judge(self, response: Response, body: Body, may_be_stored: bool = False) -> Verdict:
        """Decide for all documents at once by the status."""
        del may_be_stored
        status = response.status
        meaning = self.meanings.get(status)
        if meaning == "acknowledged":
            return acknowledge_all(body.documents)
        message = f"{status}: {response.text}"
        if meaning == "retry":
            return reject_all(body.documents, str(status), message)
        if meaning is None and status < 500:
            return Verdict(outcome=INVALID_RESPONSE, message=f"{message} (neither acknowledged nor refused)")
        return fail_all(body.documents, str(status), message, in_doubt=meaning is None)


def _has_field(document: bytes, name: str) -> bool:
    """Return True if a document has a field; invalid documents are left to the server."""
    try:
        return name in json.loads(document)
    except (ValueError, RecursionError):
        return False


def _list_meanings(keys: JsonArrayKeys) -> dict[int, Meaning]:
    """Return the meaning of each status; a status has priority over its class."""
    names: tuple[Meaning, ...] = ("acknowledged", "retry", "refused")
    meanings = {text: name for name in names for text in getattr(keys, name)}
    by_status = {status: meanings.get(str(status)) or meanings.get(f"{status // 100}xx") for status in range(200, 600)}
    return {status: meaning for status, meaning in by_status.items() if meaning is not None}


def _check_keys(keys: JsonArrayKeys, where: str) -> None:
    for name in keys.headers:
        if name.lower() in _RESERVED:
            raise SpecError(f"{where}: headers: {name}: is set by ingest-bench{_ALTERNATIVES.get(name.lower(), '')}")
        if name.lower() in _SECRET:
            raise SpecError(
                f"{where}: headers: {name}: would be visible in plans and results. Set credentials in the environment: "
                "INGEST_BENCH_USER and INGEST_BENCH_PASSWORD, or INGEST_BENCH_API_KEY."
            )
    counts = Counter((*keys.acknowledged, *keys.retry, *keys.refused))
    for status, count in counts.items():
        if count > 1:
            raise SpecError(
                f"{where}: acknowledged, retry and refused: {status} occurs twice; a status has one meaning"
            )
