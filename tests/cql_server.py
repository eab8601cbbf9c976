"""A small real server on loopback that speaks just enough of Cassandra's native protocol, and misbehaves when told."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from bulk_server import BulkServer, Reply

from ingest_bench.idl import cql
from ingest_bench.protocols.cql import insert_statement

INDICES = ("i", "tiny", "nyc_taxis", "nyc_taxis_0", "nyc_taxis_1", "nyc_taxis_2")
TABLES = {cql.prepared_prefix(insert_statement("k", name))[4:]: name for name in INDICES}


def frame(opcode: int, body: bytes, flags: int = 0, stream: int = 0) -> bytes:
    """A response."""
    return cql.HEAD.pack(0x84, flags, stream, opcode, len(body)) + body


def done() -> bytes:
    """All went well."""
    return frame(cql.RESULT, cql.VOID.to_bytes(4, "big"))


def raised(code: int, words: str = "", more: bytes = b"") -> bytes:
    """An error, with what some of them say behind their words."""
    return frame(cql.ERROR, struct.pack(">iH", code, len(words.encode())) + words.encode() + more)


def rows(request: bytes) -> dict[bytes, tuple[str, bytes]]:
    """The rows of a batch: by their keys, the table and the document of each."""
    version, flags, _, opcode, length = cql.HEAD.unpack_from(request)
    assert (version, flags, opcode, length) == (4, 0, cql.BATCH, len(request) - cql.HEAD.size)
    kind, count = struct.unpack_from(">BH", request, cql.HEAD.size)
    assert kind == 1, "unlogged"
    place, found = cql.HEAD.size + 3, {}
    for _ in range(count):
        assert request[place] == 1, "prepared"
        table = TABLES[request[place + 1 : place + 19]]
        (values,) = struct.unpack_from(">H", request, place + 19)
        assert values == 2
        place += 21
        row = []
        for _ in range(2):
            (size,) = struct.unpack_from(">i", request, place)
            row.append(request[place + 4 : place + 4 + size])
            place += 4 + size
        found[row[0]] = table, row[1]
    assert request[place:] == struct.pack(">HB", 5, 0), "ALL, and no flags"
    return found


class CqlServer(BulkServer):
    """Greets by itself, as `greetings` say; a reply gets a whole batch, its head too."""

    ready = frame(cql.READY, b"")
    prepared: bytes | None = None
    """In the place of what it prepares."""

    def _serve_one(self, connection: socket.socket) -> bool:
        head = self._exactly(connection, cql.HEAD.size)
        if not head:
            return False
        _, _, stream, opcode, length = cql.HEAD.unpack(head)
        body = self._exactly(connection, length)
        if len(body) < length:
            return False
        if opcode == cql.STARTUP:
            connection.sendall(self.ready)
            return True
        if opcode == cql.PREPARE:
            text = body[4:].decode()
            told = cql.prepared_prefix(text) + b"metadata" if self.prepared is None else self.prepared
            connection.sendall(frame(cql.RESULT, told, stream=stream))
            return True
        with self.lock:
            self.requests += 1
            number = self.requests
            if self.keep_bodies:
                self.bodies.append(head + body)
        reply = self.reply(head + body, number)
        if reply is None:
            return False
        connection.sendall(reply)
        return True


@contextmanager
def cql_server(reply: Reply, **told: bytes) -> Iterator[CqlServer]:
    """`told`: what it says as `ready` and `prepared`."""
    server = CqlServer(reply)
    for name, said in told.items():
        setattr(server, name, said)
    try:
        yield server
    finally:
        server.close()
