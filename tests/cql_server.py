"""Server on loopback with a minimal part of Cassandra's native protocol and configurable responses."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from bulk_server import Reply
from thrift_server import FramedServer

from ingest_bench.protocols import cql_wire
from ingest_bench.protocols.cql import insert_statement

INDICES = ("i", "tiny", "nyc_taxis", "nyc_taxis_0", "nyc_taxis_1", "nyc_taxis_2")
TABLES = {cql_wire.prepared_prefix(insert_statement("k", name))[4:]: name for name in INDICES}


def encode_response(opcode: int, body: bytes, flags: int = 0, stream: int = 0) -> bytes:
    """Encode a response frame."""
    return cql_wire.HEAD.pack(0x84, flags, stream, opcode, len(body)) + body


def encode_success() -> bytes:
    """Encode the response to a successful batch."""
    return encode_response(cql_wire.RESULT, cql_wire.VOID.to_bytes(4, "big"))


def encode_error(code: int, message: str = "", more: bytes = b"") -> bytes:
    """Encode an error, with the additional fields that some have."""
    return encode_response(cql_wire.ERROR, struct.pack(">iH", code, len(message.encode())) + message.encode() + more)


def parse_batch(request: bytes) -> dict[bytes, tuple[str, bytes]]:
    """Return table and document of each row of a batch, by key."""
    version, flags, _, opcode, length = cql_wire.HEAD.unpack_from(request)
    assert (version, flags, opcode, length) == (4, 0, cql_wire.BATCH, len(request) - cql_wire.HEAD.size)
    kind, count = struct.unpack_from(">BH", request, cql_wire.HEAD.size)
    assert kind == 1, "unlogged"
    offset, documents = cql_wire.HEAD.size + 3, {}
    for _ in range(count):
        assert request[offset] == 1, "prepared"
        table = TABLES[request[offset + 1 : offset + 19]]
        (values,) = struct.unpack_from(">H", request, offset + 19)
        assert values == 2
        offset += 21
        row = []
        for _ in range(2):
            (size,) = struct.unpack_from(">i", request, offset)
            row.append(request[offset + 4 : offset + 4 + size])
            offset += 4 + size
        documents[row[0]] = table, row[1]
    assert request[offset:] == struct.pack(">HB", 5, 0), "ALL, and no flags"
    return documents


class CqlServer(FramedServer):
    """Handles the handshake itself; the reply function gets a batch with its head."""

    ready = encode_response(cql_wire.READY, b"")
    prepared: bytes | None = None
    """Response body to PREPARE; None: the correct one."""

    def _serve_one(self, connection: socket.socket) -> bool:
        head = self._exactly(connection, cql_wire.HEAD.size)
        if not head:
            return False
        _, _, stream, opcode, length = cql_wire.HEAD.unpack(head)
        body = self._exactly(connection, length)
        if len(body) < length:
            return False
        if opcode == cql_wire.STARTUP:
            connection.sendall(self.ready)
            return True
        if opcode == cql_wire.PREPARE:
            text = body[4:].decode()
            prepared = cql_wire.prepared_prefix(text) + b"metadata" if self.prepared is None else self.prepared
            connection.sendall(encode_response(cql_wire.RESULT, prepared, stream=stream))
            return True
        return self._respond(connection, head + body)


@contextmanager
def cql_server(reply: Reply, **responses: bytes) -> Iterator[CqlServer]:
    """Start a server; *responses* are those to the handshake: `ready` and `prepared`."""
    server = CqlServer(reply)
    for name, response in responses.items():
        setattr(server, name, response)
    try:
        yield server
    finally:
        server.close()
