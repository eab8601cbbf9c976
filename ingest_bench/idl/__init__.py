"""Interfaces of servers that speak Thrift (`*.thrift`): calls to bytes, and bytes to what a server answered.

cql.py   the same for Cassandra's native protocol

Encoding and decoding are thriftpy2's. What a call goes through (a socket of the load, a question of a target) is the
caller's.
"""

from __future__ import annotations

import functools
import re
import struct
from pathlib import Path
from typing import Any

# Beside a message stands its length (TFramedTransport), in four bytes.
LENGTH = struct.Struct(">i")
# TType of Thrift: types of fields, and the bytes of those that are always as long.
_STOP, _STRING, _STRUCT = 0, 11, 12
_NOTHING = bytes([_STOP])
_SIZES = {2: 1, 3: 1, 4: 8, 6: 2, 8: 4, 10: 8}


class BrokenMessageError(ValueError):
    """Bytes that are no answer of this interface."""


class RaisedError(Exception):
    """What a server raised: one of its own exceptions, or TApplicationException."""

    def __init__(self, name: str, words: str) -> None:
        super().__init__(f"{name}: {words}" if words else name)
        self.name = name


@functools.cache
def interface() -> Any:
    """The interface of Cassandra 0.7, as thriftpy2 makes it of `cassandra.thrift`."""
    import thriftpy2  # noqa: PLC0415 - it takes 0.1 s, and most commands speak no Thrift

    return thriftpy2.load(str(Path(__file__).with_name("cassandra.thrift")), module_name="cassandra_thrift")


def encode_call(name: str, **arguments: Any) -> bytes:
    """A call of that name with its frame, as it goes over the wire. All have the number 0: one waits at a time."""
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
    """What the server returned; RaisedError for what it raised, BrokenMessageError for what is no answer to this.

    The message comes without its frame. Keys, values and words are bytes. `is_plain`: the answer has no lists, so that
    one that says that it has one of 2^31 things, which takes minutes to read, is not read.
    """
    from thriftpy2.protocol import TCyBinaryProtocol  # noqa: PLC0415 - as above
    from thriftpy2.thrift import TApplicationException, TMessageType  # noqa: PLC0415
    from thriftpy2.transport import TCyMemoryBuffer  # noqa: PLC0415

    protocol = TCyBinaryProtocol(TCyMemoryBuffer(message), decode_response=False)
    refused = TApplicationException()
    result = getattr(interface().Cassandra, f"{name}_result")()
    try:
        said, kind, number = protocol.read_message_begin()
        # Before its fields: version, length and text of the name, number.
        start = 3 * LENGTH.size + len(said)
        if is_plain:
            _check_plain(message, start)
        protocol.read_struct(refused if kind == TMessageType.EXCEPTION else result)
    except Exception as error:  # noqa: BLE001 - the decoder has half a dozen kinds, and one class is not public
        raise BrokenMessageError(f"{type(error).__name__}: {error}") from None
    if kind == TMessageType.EXCEPTION:
        raise _raised(refused)
    if kind != TMessageType.REPLY or said not in (name, name.encode()) or number:
        raise BrokenMessageError(f"it answers {said!r} (kind {kind}, number {number}), and {name} was called")
    for _, field, *_ in result.thrift_spec.values():
        if field != "success" and (raised := getattr(result, field)) is not None:
            raise _raised(raised)
    returned, is_void = getattr(result, "success", None), not hasattr(result, "success")
    # An exception that this interface does not have is a field that the decoder leaves out.
    if returned is None and not (is_void and message[start:] == _NOTHING):
        raise BrokenMessageError(f"neither a result of {name} nor one of its exceptions")
    return returned


def _check_plain(message: bytes, place: int) -> int:
    """Where a struct ends that begins there and has only plain values and such structs; ValueError for another one."""
    while (kind := message[place]) != _STOP:
        place += 3
        if kind == _STRUCT:
            place = _check_plain(message, place)
        elif kind == _STRING:
            (length,) = LENGTH.unpack_from(message, place)
            place += LENGTH.size + max(0, length)
        elif kind in _SIZES:
            place += _SIZES[kind]
        else:
            raise ValueError(f"a field of type {kind}, where only plain values belong")
    return place + 1


def _raised(error: Exception) -> RaisedError:
    words = getattr(error, "why", None) or getattr(error, "message", None) or b""
    return RaisedError(type(error).__name__, words.decode("utf-8", "replace") if isinstance(words, bytes) else words)


def table_name(index: str) -> str:
    """What the column family of an index is called: Cassandra 0.7 takes letters, digits and underscores in a name."""
    return re.sub(r"\W", "_", index, flags=re.ASCII)
