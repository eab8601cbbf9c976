"""The bulk API of OpenSearch over gRPC: documents in protobuf messages, a result for each.

Items have the options and the results of `bulk`; `grpc_user` sends them.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence, Sized
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from google.protobuf.message import DecodeError

from ingest_bench.documents.body import DIGITS, Body, item_sizes
from ingest_bench.errors import SpecError
from ingest_bench.protocols.bulk import Bulk, judge_error, judge_items
from ingest_bench.protocols.response import INVALID_RESPONSE, Verdict, acknowledge_all

if TYPE_CHECKING:
    from ingest_bench.model.load import LoadOptions, ProtocolOptions, TrackFile
    from ingest_bench.protocols.grpc_user import GrpcUser
    from ingest_bench.protocols.response import Response

_METHOD = "/org.opensearch.protobufs.services.DocumentService/Bulk"
# The HTTP status of each gRPC status (google/rpc/code.proto, "HTTP Mapping").
_HTTP_STATUSES = (200, 499, 500, 400, 504, 404, 409, 403, 429, 400, 409, 400, 501, 500, 503, 500, 401)
_GAP = "0" * DIGITS
# Three lengths of an item have up to 5 bytes each (protobuf's varints), and 1 byte for an empty document.
_LENGTHS_BYTES = 12
_TOO_LARGE = (
    "the bulk is larger than the server accepts (grpc.netty.max_msg_size, 10 MB by default). Use smaller bulks or "
    "raise the setting"
)


@functools.cache
def _schema() -> Any:
    """Return OpenSearch's messages."""
    # Only loads with this protocol need it.
    from opensearch.protobufs.schemas import common_pb2  # noqa: PLC0415

    return common_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSearchGrpc(Bulk):
    """Protocol `opensearch-grpc`: bulks of OpenSearch 3 over gRPC, with the load options of `bulk`."""

    index: str
    """The index of the documents, unless `indices` has several."""

    @classmethod
    def from_options(cls, protocol_options: ProtocolOptions, index: str, options: LoadOptions) -> OpenSearchGrpc:
        """Create the protocol, which has no keys; SpecError for one, or an unsupported option."""
        for key in protocol_options.keys:
            raise SpecError(f'{protocol_options.toml_key}: unknown key "{key}"; opensearch-grpc has none')
        if options.gzip:
            raise SpecError("load.gzip: opensearch-grpc does not support compressed bodies")
        indices = () if options.action.indices == 1 else options.action.index_names(index)
        windows = replace(options, http_version="2").http2_windows
        return cls(path=_METHOD, index=index, action=options.action, indices=indices, windows=windows)

    def for_file(self, file: TrackFile) -> Self:
        """Return the protocol for the documents of a file; SpecError for text and for bulk bodies."""
        if file.has_action_lines:
            raise SpecError(
                f"{file.path}: a file of bulk bodies cannot be sent with opensearch-grpc, which takes documents alone"
            )
        return Bulk.for_file(self, file)

    def measure(self, document: Sized, /) -> int:
        """Return the most bytes of a document within its item."""
        return len(document) + _LENGTHS_BYTES

    def user_class(self) -> type[GrpcUser]:
        """Return a Locust user class that sends bulks."""
        # Locust must not be loaded in a process that only builds bodies.
        from ingest_bench.protocols.grpc_user import GrpcUser  # noqa: PLC0415

        fields = {"path": self.path, "windows": self.windows, "fields": self.encode_fields()}
        return type("BulkCallUser", (GrpcUser,), {"abstract": True, **fields})

    def encode_fields(self) -> bytes:
        """Return the fields of a message besides its items, which can follow: protobuf allows any order."""
        action, request = self.action, _schema().BulkRequest
        refresh = f"REFRESH_{action.refresh.upper()}" if action.refresh else None
        message = request(index=None if self.indices else self.index, pipeline=action.pipeline, refresh=refresh)
        return bytes(message.SerializeToString())

    def encode_item(self, document: bytes, operation: str, index: str) -> tuple[bytes, int]:
        """Return an item, and the offset of the gap for its id if it has one."""
        schema = _schema()
        meta = {"x_id": _GAP if self._has_ids else None, "x_index": index or None}
        item = schema.BulkRequestBody(operation_container=schema.OperationContainer(**{operation: meta}))
        if operation == "update":
            item.update_action.doc = document
        else:
            item.object = document
        encoded = schema.BulkRequest(bulk_request_body=[item]).SerializeToString()
        # The id is the first text of an item.
        return encoded, encoded.find(_GAP.encode())

    def judge(self, response: Response, body: Body, may_be_stored: bool = False) -> Verdict:
        """Decide for each document."""
        status = response.status
        if status != 200:
            return judge_error(status, str(status), f"{status}: {_TOO_LARGE if status == 413 else response.text}", body)
        try:
            result = _schema().BulkResponse.FromString(response.body)
        except DecodeError:
            return Verdict(outcome=INVALID_RESPONSE, message=f"not the response to a bulk: {response.text!r}")
        if result.errors or may_be_stored or body.adds is not None or len(result.items) != body.documents:
            return judge_items([_convert_item(item) for item in result.items], body, may_be_stored)
        return acknowledge_all(body.documents)

    def _build_without_ids(self, documents: Sequence[bytes]) -> Body:
        indices = itertools.cycle(self.indices or ("",))
        items = [self.encode_item(document, self.action.operation, next(indices))[0] for document in documents]
        return Body(b"".join(items), len(items), item_sizes(items))


def to_http_status(grpc_status: int) -> int:
    """Return the HTTP status that means the same."""
    return _HTTP_STATUSES[grpc_status] if 0 <= grpc_status < len(_HTTP_STATUSES) else 500


def _convert_item(item: Any) -> dict[str, dict[str, Any]]:
    """Return an item of a response as in the JSON of the bulk API."""
    operation = item.WhichOneof("item")
    result = getattr(item, operation) if operation else _schema().ResponseItem(status=2)
    values: dict[str, Any] = {"status": to_http_status(result.status)}
    if result.HasField("result"):
        values["result"] = result.result
    if result.HasField("error"):
        values["error"] = _convert_error(result.error)
    return {operation or "": values}


def _convert_error(error: Any) -> dict[str, Any]:
    cause = _convert_error(error.caused_by) if error.HasField("caused_by") else None
    return {"type": error.type, "reason": error.reason, "caused_by": cause}
