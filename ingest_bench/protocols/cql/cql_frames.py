"""How long an answer over the native protocol is, and what it says: a status as HTTP has it, as all samples do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ingest_bench import idl
from ingest_bench.idl import cql
from ingest_bench.protocols import incoming
from ingest_bench.protocols.incoming import Said
from ingest_bench.protocols.verdict import BrokenResponseError

# An answer to these calls has some dozens of bytes, or the words of an error and warnings of at most 64 kB each.
_LIMIT_BYTES = 1024**2
# Cassandra's errors, by what they mean for a batch; any other one is an error of the server. A part of a batch may be
# under way when a replica of one of its rows is found missing (StorageProxy.mutate asks row by row).
_STATUS = {
    "ProtocolError": 400,
    "AuthenticationError": 401,
    "Unavailable": 504,
    "Overloaded": 503,
    "IsBootstrapping": 503,
    "WriteTimeout": 504,
    "SyntaxError": 400,
    "Unauthorized": 403,
    "Invalid": 400,
    "ConfigError": 400,
    "Unprepared": 503,
}
# The one overload that is found when rows are under way (StorageProxy.checkHintOverload).
_HINTS = "Too many in flight hints"


class Wanted(NamedTuple):
    """A success: its opcode, what its body begins with, and the stream of the request."""

    opcode: int
    begins: bytes = b""
    stream: int = 0


READY = Wanted(cql.READY)
VOID = Wanted(cql.RESULT, cql.VOID.to_bytes(4, "big"))


def known(stream: int, statement: str) -> Wanted:
    """The answer that this statement has been prepared, as it was asked for on that stream."""
    return Wanted(cql.RESULT, cql.prepared_prefix(statement), stream)


class Frames(incoming.Frames):
    """The answers to some requests of the native protocol, in any order."""

    head_bytes = cql.HEAD.size

    def __init__(self) -> None:
        super().__init__()
        self.wanted: Sequence[Wanted] = (VOID,)
        """What they are when all went well."""

    @property
    def awaited(self) -> int:
        """One for each request."""
        return len(self.wanted)

    def length(self, place: int) -> int:
        """Of a frame, its head included."""
        try:
            length = cql.frame_length(self.view, place)
        except idl.BrokenMessageError as error:
            raise BrokenResponseError(f"broken CQL: {error}") from None
        if length > _LIMIT_BYTES:
            raise BrokenResponseError(f"broken CQL: a frame of {length} bytes, where some dozens belong")
        return length

    def said(self, frames: list[bytes]) -> Said:
        """What the first answer says that is no success; else that all is well."""
        left = list(self.wanted)
        for frame in frames:
            try:
                answer = cql.parse_response(frame)
            except idl.BrokenMessageError as error:
                raise BrokenResponseError(f"broken CQL: {error}") from None
            except idl.RaisedError as error:
                return _raised(error)
            if answer.opcode == cql.AUTHENTICATE:
                return Said(401, b"Authenticate: the server wants a name and a password, and this protocol sends none")
            found = [one for one in left if (answer.opcode, answer.body[: len(one.begins)], answer.stream) == one]
            if not found:
                raise BrokenResponseError(
                    f"broken CQL: {answer.body[:40]!r} (opcode {answer.opcode}, stream {answer.stream}) is no answer "
                    "to this"
                )
            left.remove(found[0])
        return Said(200)


def _raised(error: idl.RaisedError) -> Said:
    status = _STATUS.get(error.name, 500)
    if error.name == "Overloaded" and _HINTS in str(error):
        status = 504
    # The next connection prepares its statements again.
    return Said(status, str(error).encode(), close=error.name == "Unprepared")
