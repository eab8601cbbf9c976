"""Cassandra's native protocol, version 4: requests to frames, and frames to what a server answered.

As native_protocol_v4.spec of Cassandra has it; 4.0 and 5.0 speak it. Version 5 puts frames into pieces of 128 kB with
sums of their own: a request could not be made ahead then, and be changed in place.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from typing import NamedTuple

from ingest_bench.idl import BrokenMessageError, RaisedError

# Version, flags, stream, opcode, and the length of what follows.
HEAD = struct.Struct(">BBhBi")
_REQUEST, _RESPONSE = 0x04, 0x84
# Opcodes.
ERROR, STARTUP, READY, AUTHENTICATE, QUERY, RESULT, PREPARE, BATCH = 0x00, 0x01, 0x02, 0x03, 0x07, 0x08, 0x09, 0x0D
# Kinds of RESULT.
VOID, ROWS, PREPARED = 1, 2, 4
ALL = 0x0005
"""A consistency: each replica has it."""
_UNLOGGED = 1
# Flags of a response's frame, in the order in which what they announce stands before its body.
_TRACING, _WARNING = 0x02, 0x08
# Flags of a query, and of the metadata of rows.
_SKIP_METADATA, _PAGE_SIZE, _PAGING_STATE = 0x02, 0x04, 0x08
_MORE_PAGES, _NO_METADATA = 0x02, 0x04
_ERRORS: Mapping[int, str] = {
    0x0000: "ServerError",
    0x000A: "ProtocolError",
    0x0100: "AuthenticationError",
    0x1000: "Unavailable",
    0x1001: "Overloaded",
    0x1002: "IsBootstrapping",
    0x1003: "TruncateError",
    0x1100: "WriteTimeout",
    0x1200: "ReadTimeout",
    0x1300: "ReadFailure",
    0x1400: "FunctionFailure",
    0x1500: "WriteFailure",
    0x2000: "SyntaxError",
    0x2100: "Unauthorized",
    0x2200: "Invalid",
    0x2300: "ConfigError",
    0x2400: "AlreadyExists",
    0x2500: "Unprepared",
}
_SHORT, _INT = struct.Struct(">H"), struct.Struct(">i")


class CqlResponse(NamedTuple):
    """What a server answered that is no error."""

    opcode: int
    body: bytes
    """Without warnings."""
    stream: int
    """That of the request."""


class Rows(NamedTuple):
    """A page of rows, and where the next one begins; None: it was the last one."""

    rows: list[tuple[bytes | None, ...]]
    next_page: bytes | None


def encode_startup() -> bytes:
    """The first request of each connection."""
    return _frame(STARTUP, _SHORT.pack(1) + _string("CQL_VERSION") + _string("3.0.0"))


def encode_query(text: str, page_rows: int = 5000, page: bytes | None = None) -> bytes:
    """A statement without values; of its rows so many, from that page on, as each replica has them."""
    flags = _SKIP_METADATA | _PAGE_SIZE | (0 if page is None else _PAGING_STATE)
    return _frame(
        QUERY,
        _long_string(text) + struct.pack(">HBi", ALL, flags, page_rows) + (b"" if page is None else _bytes(page)),
    )


def encode_prepare(text: str, stream: int = 0) -> bytes:
    """A statement that is to be known by its id."""
    return _frame(PREPARE, _long_string(text), stream)


def prepared_prefix(text: str) -> bytes:
    """What the body of the answer to that begins with: the id of a statement is the MD5 of its text.

    So it is where the text names its keyspace (QueryProcessor.computeId of Cassandra).
    """
    return _INT.pack(PREPARED) + _short_bytes(_id(text))


def encode_batch(rows: bytes, count: int) -> bytes:
    """So many statements, of which each replica has to have what they write, each on its own."""
    return _frame(BATCH, struct.pack(">BH", _UNLOGGED, count) + rows + BATCH_SUFFIX)


# The consistency, and no flags.
BATCH_SUFFIX = struct.pack(">HB", ALL, 0)


def encode_row(text: str, *values: bytes) -> bytes:
    """A prepared statement in a batch, with its values."""
    return b"\1" + _short_bytes(_id(text)) + _SHORT.pack(len(values)) + b"".join(map(_bytes, values))


def frame_length(head: bytes | bytearray | memoryview, place: int = 0) -> int:
    """The length of the frame that begins there; BrokenMessageError for what is no head of a response."""
    version, _, _, _, body_bytes = HEAD.unpack_from(head, place)
    if version != _RESPONSE or body_bytes < 0:
        begins = bytes(head[place : place + HEAD.size])
        raise BrokenMessageError(f"{begins!r} does not begin a response of version 4")
    return HEAD.size + int(body_bytes)


def parse_response(frame: bytes) -> CqlResponse:
    """What this frame says; RaisedError for what the server raised, BrokenMessageError for what is no frame."""
    _, flags, stream, opcode, _ = HEAD.unpack_from(frame)
    reader = _Reader(frame, HEAD.size)
    if flags & ~(_TRACING | _WARNING):
        raise BrokenMessageError(f"flags {flags:#04x}, and nothing was asked for that has such")
    if flags & _TRACING:
        reader.take(16)
    if flags & _WARNING:
        for _ in range(reader.short()):
            reader.take(reader.short())
    if opcode == ERROR:
        code = reader.number()
        name = _ERRORS.get(code, f"Error {code:#06x}")
        raise RaisedError(name, reader.take(reader.short()).decode("utf-8", "replace"))
    return CqlResponse(opcode, reader.rest(), stream)


def parse_rows(body: bytes) -> Rows:
    """The rows of a RESULT; none where it has none."""
    reader = _Reader(body)
    if reader.number() != ROWS:
        return Rows([], None)
    flags, columns = reader.number(), reader.number()
    next_page = reader.value() if flags & _MORE_PAGES else None
    if not flags & _NO_METADATA:
        raise BrokenMessageError("rows with a description, and none was asked for")
    count = reader.number()
    # A value has at least its length: bytes can say that they are more rows than they have room for.
    if columns < 1 or not 0 <= count <= len(body) // (_INT.size * columns):
        raise BrokenMessageError(f"{count} rows of {columns} values in {len(body)} bytes")
    return Rows([tuple([reader.value() for _ in range(columns)]) for _ in range(count)], next_page)


class _Reader:
    """Values one behind the other; BrokenMessageError where they end too soon."""

    def __init__(self, data: bytes, place: int = 0) -> None:
        self._data, self._place = data, place

    def take(self, size_bytes: int) -> bytes:
        """So many bytes."""
        start, self._place = self._place, self._place + size_bytes
        if size_bytes < 0 or self._place > len(self._data):
            raise BrokenMessageError("a value is longer than what it is in")
        return self._data[start : self._place]

    def short(self) -> int:
        """Two bytes."""
        return int(_SHORT.unpack(self.take(_SHORT.size))[0])

    def number(self) -> int:
        """Four bytes."""
        return int(_INT.unpack(self.take(_INT.size))[0])

    def value(self) -> bytes | None:
        """A value with its length; None: null."""
        size_bytes = self.number()
        return None if size_bytes < 0 else self.take(size_bytes)

    def rest(self) -> bytes:
        """All that is left."""
        return self._data[self._place :]


def _frame(opcode: int, body: bytes, stream: int = 0) -> bytes:
    return HEAD.pack(_REQUEST, 0, stream, opcode, len(body)) + body


def _id(text: str) -> bytes:
    return hashlib.md5(text.encode(), usedforsecurity=False).digest()


def _string(text: str) -> bytes:
    return _short_bytes(text.encode())


def _long_string(text: str) -> bytes:
    return _bytes(text.encode())


def _short_bytes(value: bytes) -> bytes:
    return _SHORT.pack(len(value)) + value


def _bytes(value: bytes) -> bytes:
    return _INT.pack(len(value)) + value
