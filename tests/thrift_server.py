"""Server on loopback with a minimal part of Cassandra's Thrift interface and configurable responses."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bulk_server import BulkServer, Reply
from thriftpy2.protocol import TCyBinaryProtocol
from thriftpy2.thrift import TApplicationException, TMessageType
from thriftpy2.transport import TCyMemoryBuffer

from ingest_bench.protocols import thrift_wire

THRIFT = thrift_wire.interface()


def encode_message(name: str, kind: int, struct: Any) -> bytes:
    """Encode a message with its frame."""
    buffer = TCyMemoryBuffer()
    protocol = TCyBinaryProtocol(buffer)
    protocol.write_message_begin(name, kind, 0)
    protocol.write_struct(struct)
    data: bytes = buffer.getvalue()
    return thrift_wire.LENGTH.pack(len(data)) + data


def encode_result(name: str = "batch_mutate", **result: Any) -> bytes:
    """Encode the response to a call: its result (`success`), or an exception by its field."""
    return encode_message(name, TMessageType.REPLY, getattr(THRIFT.Cassandra, f"{name}_result")(**result))


def encode_exception(message_text: str) -> bytes:
    """Encode the response to an unknown call."""
    return encode_message("batch_mutate", TMessageType.EXCEPTION, TApplicationException(type=1, message=message_text))


def parse_call(call: bytes) -> dict[bytes, tuple[str, bytes]]:
    """Return column family and document of each row of a call, by key."""
    (length,) = thrift_wire.LENGTH.unpack_from(call)
    assert length == len(call) - thrift_wire.LENGTH.size
    protocol = TCyBinaryProtocol(TCyMemoryBuffer(call[thrift_wire.LENGTH.size :]), decode_response=False)
    name, kind, _ = protocol.read_message_begin()
    assert (name, kind) == ("batch_mutate", TMessageType.CALL)
    arguments = THRIFT.Cassandra.batch_mutate_args()
    protocol.read_struct(arguments)
    assert arguments.consistency_level == THRIFT.ConsistencyLevel.ONE
    documents = {}
    for key, families in arguments.mutation_map.items():
        ((family, (mutation,)),) = families.items()
        column = mutation.column_or_supercolumn.column
        assert column.name == b"document"
        documents[key] = family.decode(), column.value
    return documents


class FramedServer(BulkServer):
    """Server of binary requests: the reply function gets each one with its head."""

    def _frame(self, connection: socket.socket) -> bytes:
        head = self._exactly(connection, thrift_wire.LENGTH.size)
        return head + self._exactly(connection, thrift_wire.LENGTH.unpack(head)[0]) if head else b""

    def _respond(self, connection: socket.socket, request: bytes) -> bool:
        with self.lock:
            self.requests += 1
            number = self.requests
            if self.keep_bodies:
                self.bodies.append(request)
        reply = self.reply(request, number)
        if reply is not None:
            connection.sendall(reply)
        return reply is not None


class ThriftServer(FramedServer):
    """Responds to set_keyspace with `greeting`; the reply function gets a batch_mutate call with its frame."""

    greeting = encode_result("set_keyspace")

    def _serve_one(self, connection: socket.socket) -> bool:
        call = self._frame(connection)
        if not call:
            return False
        if b"set_keyspace" in call[:40]:
            connection.sendall(self.greeting)
            return True
        return self._respond(connection, call)


@contextmanager
def thrift_server(reply: Reply, greeting: bytes = ThriftServer.greeting) -> Iterator[ThriftServer]:
    server = ThriftServer(reply)
    server.greeting = greeting
    try:
        yield server
    finally:
        server.close()


class StoreServer(ThriftServer):
    """Has rows, and gives them page by page, as a node does: from a key on, which is the first of the page."""

    def __init__(self, stored: dict[str, list[bytes]]) -> None:
        self.stored = stored
        self.times_out = 0
        """How many pages are answered with a timeout before the next one is given."""
        self.page_sizes: list[int] = []
        super().__init__(lambda _body, _number: None)

    def _serve_one(self, connection: socket.socket) -> bool:
        call = self._frame(connection)
        if not call:
            return False
        protocol = TCyBinaryProtocol(TCyMemoryBuffer(call[thrift_wire.LENGTH.size :]), decode_response=False)
        name, _, _ = protocol.read_message_begin()
        arguments = getattr(THRIFT.Cassandra, f"{name}_args")()
        protocol.read_struct(arguments)
        connection.sendall(getattr(self, name)(arguments))
        return True

    def set_keyspace(self, arguments: Any) -> bytes:
        if arguments.keyspace == b"k":
            return encode_result("set_keyspace")
        return encode_result("set_keyspace", ire=THRIFT.InvalidRequestException(why="Keyspace none does not exist"))

    def get_range_slices(self, arguments: Any) -> bytes:
        if self.times_out:
            self.times_out -= 1
            return encode_result("get_range_slices", te=THRIFT.TimedOutException())
        keys = sorted(self.stored[arguments.column_parent.column_family.decode()])
        self.page_sizes.append(arguments.range.count)
        page = [key for key in keys if key >= arguments.range.start_key][: arguments.range.count]
        column = THRIFT.ColumnOrSuperColumn(column=THRIFT.Column(name=b"document", value=b"x" * 100, timestamp=1))
        documents = [THRIFT.KeySlice(key=key, columns=[] if key.endswith(b"-") else [column]) for key in page]
        return encode_result("get_range_slices", success=documents)
