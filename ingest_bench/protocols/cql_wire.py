"""Encoding of Cassandra's native protocol, version 4 (native_protocol_v4.spec), which 4.0 and 5.0 speak.

Version 5 splits frames into segments of 128 kB with checksums, so that a request could not be built ahead and changed
in place. Imports little: processes that send no load use it too.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from typing import NamedTuple

from ingest_bench.protocols.response import InvalidResponseError
from ingest_bench.protocols.thrift_wire import ServerError

# Version, flags, stream, opcode, and length of the body.
HEAD = struct.Struct(">BBhBi")
_REQUEST, _RESPONSE = 0x04, 0x84
# Opcodes.
ERROR, STARTUP, READY, AUTHENTICATE, QUERY, RESULT, PREPARE, BATCH = 0x00, 0x01, 0x02, 0x03, 0x07, 0x08, 0x09, 0x0D
# Kinds of RESULT.
VOID, ROWS, PREPARED = 1, 2, 4
ALL = 0x0005
"""Consistency level: every replica has it."""
_UNLOGGED = 1
# Flags of a response frame, in the order of the parts that they announce before its body.
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
    """A response that is not an error."""

    opcode: int
    body: bytes
    """Without warnings."""
    stream: int
    """Stream of the request."""


class Rows(NamedTuple):
    """A page of rows, and the state that requests the next one; None: it was the last one."""

    rows: list[tuple[bytes | None, ...]]
    next_page: bytes | None


def encode_startup() -> bytes:
    """Encode the first request of each connection."""
    return _frame(STARTUP, _SHORT.pack(1) + _short_bytes(b"CQL_VERSION") + _short_bytes(b"3.0.0"))


def encode_query(text: str, page_rows: int = 5000, page: bytes | None = None) -> bytes:
    """Encode a query without values: its page size, and the state of the page (None: the first)."""
    flags = _SKIP_METADATA | _PAGE_SIZE | (0 if page is None else _PAGING_STATE)
    body = _bytes(text.encode()) + struct.pack(">HBi", ALL, flags, page_rows)
    return _frame(QUERY, body if page is None else body + _bytes(page))


def encode_prepare(text: str, stream: int = 0) -> bytes:
    """Encode the preparation of a statement."""
    return _frame(PREPARE, _bytes(text.encode()), stream)


def prepared_prefix(text: str) -> bytes:
    """Return the start of the response body to a preparation: the id of a statement is the MD5 of its text.

    This holds for a text that names its keyspace (QueryProcessor.computeId of Cassandra).
    """
    return _INT.pack(PREPARED) + _short_bytes(_statement_id(text))


def encode_batch(rows: bytes, count: int) -> bytes:
    """Encode a batch of *count* statements, independent of each other, that every replica must have."""
    return _frame(BATCH, struct.pack(">BH", _UNLOGGED, count) + rows + BATCH_SUFFIX)


# Consistency level, and no flags.
BATCH_SUFFIX = struct.pack(">HB", ALL, 0)


def encode_row(text: str, *values: bytes) -> bytes:
    """Encode a prepared statement of a batch with its values."""
    return b"\1" + _short_bytes(_statement_id(text)) + _SHORT.pack(len(values)) + b"".join(map(_bytes, values))


def frame_length(head: bytes | bytearray | memoryview, offset: int = 0) -> int:
    """Return the length of the frame at an offset, with its head; InvalidResponseError if it is not a response."""
    version, _, _, _, body_bytes = HEAD.unpack_from(head, offset)
    if version != _RESPONSE or body_bytes < 0:
        start = bytes(head[offset : offset + HEAD.size])
        raise InvalidResponseError(f"{start!r} does not begin a response of version 4")
    return HEAD.size + int(body_bytes)


def parse_response(frame: bytes) -> CqlResponse:
    """Parse a frame; ServerError for an error of the server, InvalidResponseError for an invalid frame."""
    _, flags, stream, opcode, _ = HEAD.unpack_from(frame)
    reader = _Reader(frame, HEAD.size)
    if flags & ~(_TRACING | _WARNING):
        raise InvalidResponseError(f"unexpected flags {flags:#04x}")
    if flags & _TRACING:
        reader.take(16)
    if flags & _WARNING:
        for _ in range(reader.short()):
            reader.take(reader.short())
    if opcode == ERROR:
        code = reader.number()
        name = _ERRORS.get(code, f"Error {code:#06x}")
        raise ServerError(name, reader.take(reader.short()).decode("utf-8", "replace"))
    return CqlResponse(opcode, reader.remaining(), stream)


def parse_rows(body: bytes) -> Rows:
    """Parse the rows of a RESULT; empty for other results."""
    reader = _Reader(body)
    if reader.number() != ROWS:
        return Rows([], None)
    flags, columns = reader.number(), reader.number()
    next_page = reader.value() if flags & _MORE_PAGES else None
    if not flags & _NO_METADATA:
        raise InvalidResponseError("rows with metadata, which was not requested")
    count = reader.number()
    # A value has at least its length field: refuse more rows than the body has space for.
    if columns < 1 or not 0 <= count <= len(body) // (_INT.size * columns):
        raise InvalidResponseError(f"{count} rows of {columns} values in {len(body)} bytes")
    return Rows([tuple([reader.value() for _ in range(columns)]) for _ in range(count)], next_page)


class _Reader:
    """Reader of consecutive values; InvalidResponseError if the data end too soon."""

    def __init__(self, data: bytes, offset: int = 0) -> None:
        self._data, self._offset = data, offset

    def take(self, size_bytes: int) -> bytes:
        """Read *size_bytes* bytes."""
        start, self._offset = self._offset, self._offset + size_bytes
        if size_bytes < 0 or self._offset > len(self._data):
            raise InvalidResponseError("a value is longer than the rest of the message")
        return self._data[start : self._offset]

    def short(self) -> int:
        """Read two bytes."""
        return int(_SHORT.unpack(self.take(_SHORT.size))[0])

    def number(self) -> int:
        """Read four bytes."""
        return int(_INT.unpack(self.take(_INT.size))[0])

    def value(self) -> bytes | None:
        """Read a value with its length; None: null."""
        size_bytes = self.number()
        return None if size_bytes < 0 else self.take(size_bytes)

    def remaining(self) -> bytes:
        """Return all unread bytes."""
        return self._data[self._offset :]


def _frame(opcode: int, body: bytes, stream: int = 0) -> bytes:
    return HEAD.pack(_REQUEST, 0, stream, opcode, len(body)) + body


def _statement_id(text: str) -> bytes:
    return hashlib.md5(text.encode(), usedforsecurity=False).digest()


def _short_bytes(value: bytes) -> bytes:
    return _SHORT.pack(len(value)) + value


def _bytes(value: bytes) -> bytes:
    return _INT.pack(len(value)) + value
