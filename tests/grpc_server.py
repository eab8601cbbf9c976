"""Server on loopback with the bulk call of OpenSearch over gRPC and configurable results."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

from bulk_server import Reply
from h2.connection import H2Connection
from http2_server import Http2Server
from opensearch.protobufs.schemas import common_pb2

pb: Any = common_pb2
OK, INVALID_ARGUMENT, RESOURCE_EXHAUSTED, UNAVAILABLE = 0, 3, 8, 14


def encode_items(statuses: Sequence[int], **result: Any) -> bytes:
    """Return a reply: the gRPC status of each item."""
    items = []
    for status in statuses:
        item = pb.ResponseItem(x_index="i", status=status, **({"result": "created"} | result))
        if status != OK:
            cause = pb.ErrorCause(type="cause", reason="because")
            item = pb.ResponseItem(status=status, error=pb.ErrorCause(type="kind", reason="why", caused_by=cause))
        items.append(pb.Item(index=item))
    return encode_message(pb.BulkResponse(errors=any(statuses), items=items, took=1).SerializeToString())


def encode_message(message: bytes) -> bytes:
    """Return a reply: a successful call with this message."""
    return bytes((OK,)) + b"\0" + len(message).to_bytes(4) + message


def encode_error(status: int, text: str) -> bytes:
    """Return a reply: the status of a call without a message."""
    return bytes((status,)) + text.encode()


def parse_documents(message: bytes) -> list[Any]:
    """Return the documents of a request, or of its items alone."""
    items = pb.BulkRequest.FromString(message).bulk_request_body
    return [json.loads(item.object or item.update_action.doc) for item in items]


class GrpcServer(Http2Server):
    """The reply function gets a message without its prefix. `requests` and `bodies` are those of calls."""

    def _reply(self, session: H2Connection, stream: int, body: bytes, unsent: dict[int, bytes]) -> bool:
        del unsent
        request = self.heads.pop()
        assert request.startswith(b"POST /org.opensearch.protobufs.services.DocumentService/Bulk HTTP/2\r\n")
        assert b"\r\ncontent-type: application/grpc\r\nte: trailers\r\n" in request
        assert (body[0], int.from_bytes(body[1:5])) == (0, len(body) - 5)
        with self.lock:
            self.requests += 1
            number = self.requests
            if self.keep_bodies:
                self.bodies.append(body[5:])
        reply = self.reply(body[5:], number)
        if reply is None:
            return False
        status, content = reply[0], reply[1:]
        head = [(":status", "200"), ("content-type", "application/grpc")]
        end = [("grpc-status", str(status))]
        if status == OK:
            session.send_headers(stream, head)
            session.send_data(stream, content)
            session.send_headers(stream, end, end_stream=True)
        else:
            session.send_headers(stream, [*head, *end, ("grpc-message", quote(content))], end_stream=True)
        return True


@contextmanager
def grpc_server(reply: Reply, **options: Any) -> Iterator[GrpcServer]:
    server = GrpcServer(reply, **options)
    try:
        yield server
    finally:
        server.close()
