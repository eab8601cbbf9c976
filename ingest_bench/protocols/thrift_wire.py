"""Encoding of Cassandra 0.7's Thrift interface (`cassandra.thrift`) by thriftpy2, and errors shared with `cql_wire`.

Imports little: processes that send no load use it too.
"""

from __future__ import annotations

import functools
import re
import struct
from pathlib import Path
from typing import Any

from ingest_bench.protocols.response import InvalidResponseError

# Length of a message, before it (TFramedTransport).
LENGTH = struct.Struct(">i")
# TType of Thrift: types of fields, and the size of those with a fixed one.
_STOP, _STRING, _STRUCT = 0, 11, 12
_EMPTY_STRUCT = bytes([_STOP])
_FIXED_SIZES = {2: 1, 3: 1, 4: 8, 6: 2, 8: 4, 10: 8}


class ServerError(Exception):
    """An error in a response: one of the server's own exceptions, or TApplicationException."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}" if message else name)
        self.name = name


@functools.cache
def interface() -> Any:
    """Return the interface of Cassandra 0.7, which thriftpy2 generates from `cassandra.thrift`."""
    import thriftpy2  # noqa: PLC0415 - takes 0.1 s, and few commands need Thrift

    return thriftpy2.load(str(Path(__file__).with_name("cassandra.thrift")), module_name="cassandra_thrift")


def encode_call(name: str, **arguments: Any) -> bytes:
    """Encode a call with its frame. All have the number 0, because one is pending at a time."""
    from thriftpy2.protocol import TCyBinaryProtocol  # noqa: PLC0415 - as above
    from thriftpy2.thrift import TMessageType  # noqa: PLC0415
    from thriftpy2.transport import TCyMemoryBuffer  # noqa: PLC0415

    buffer = TCyMemoryBuffer()
    protocol = TCyBinaryProtocol(buffer)
    protocol.write_message_begin(name, TMessageType.CALL, 0)
    protocol.write_struct(getattr(interface().Cassandra, f"{name}_args")(**arguments))
    protocol.write_message_end()
    message: bytes = buffer.getvalue()
    return LENGTH.pack(len(message)) + message


def decode_result(name: str, message: bytes, *, is_plain: bool = False) -> Any:
    """Decode the response to a call and return its result; ServerError for an exception of the server.

    InvalidResponseError for anything else. *message* has no frame. Keys, values and texts are bytes. *is_plain*: the
    response has no lists, so that one that announces a list of 2^31 items, which takes minutes to read, is refused.
    """
    from thriftpy2.protocol import TCyBinaryProtocol  # noqa: PLC0415 - as above
    from thriftpy2.thrift import TApplicationException, TMessageType  # noqa: PLC0415
    from thriftpy2.transport import TCyMemoryBuffer  # noqa: PLC0415

    protocol = TCyBinaryProtocol(TCyMemoryBuffer(message), decode_response=False)
    exception = TApplicationException()
    result = getattr(interface().Cassandra, f"{name}_result")()
    try:
        reply_name, kind, number = protocol.read_message_begin()
        # Before its fields are version, length and text of the name, and number.
        start = 3 * LENGTH.size + len(reply_name)
        if is_plain:
            _check_plain(message, start)
        protocol.read_struct(exception if kind == TMessageType.EXCEPTION else result)
    except Exception as error:  # noqa: BLE001 - the decoder raises six classes, one of which is not public
        raise InvalidResponseError(f"{type(error).__name__}: {error}") from None
    if kind == TMessageType.EXCEPTION:
        raise _server_error(exception)
    if kind != TMessageType.REPLY or reply_name not in (name, name.encode()) or number:
        raise InvalidResponseError(f"response to {reply_name!r} (kind {kind}, number {number}) instead of {name}")
    for _, field, *_ in result.thrift_spec.values():
        if field != "success" and (raised := getattr(result, field)) is not None:
            raise _server_error(raised)
    returned, is_void = getattr(result, "success", None), not hasattr(result, "success")
    # The decoder skips the field of an exception that this interface does not declare.
    if returned is None and not (is_void and message[start:] == _EMPTY_STRUCT):
        raise InvalidResponseError(f"neither a result of {name} nor one of its exceptions")
    return returned


def _check_plain(message: bytes, offset: int) -> int:
    """Return the end of a struct at an offset; ValueError if it has more than plain values and such structs."""
    while (kind := message[offset]) != _STOP:
        offset += 3
        if kind == _STRUCT:
            offset = _check_plain(message, offset)
        elif kind == _STRING:
            (length,) = LENGTH.unpack_from(message, offset)
            offset += LENGTH.size + max(0, length)
        elif kind in _FIXED_SIZES:
            offset += _FIXED_SIZES[kind]
        else:
            raise ValueError(f"a field of type {kind}, instead of a plain value")
    return offset + 1


def _server_error(error: Exception) -> ServerError:
    message = getattr(error, "why", None) or getattr(error, "message", None) or b""
    text = message.decode("utf-8", "replace") if isinstance(message, bytes) else message
    return ServerError(type(error).__name__, text)


def table_name(index: str) -> str:
    """Return the name of an index's table: Cassandra 0.7 allows letters, digits and underscores."""
    return re.sub(r"\W", "_", index, flags=re.ASCII)
