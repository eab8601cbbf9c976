"""How long an answer over framed Thrift is, and what it says: a status as HTTP has it, so that all samples have one."""

from __future__ import annotations

from ingest_bench import idl
from ingest_bench.protocols import incoming
from ingest_bench.protocols.incoming import Said
from ingest_bench.protocols.verdict import BrokenResponseError

# An answer to these calls has some dozens of bytes, or the words of an exception.
_LIMIT_BYTES = 1024**2
# Cassandra's exceptions, by what they mean for a request. Any other one is an error of the server.
_STATUS = {"InvalidRequestException": 400, "UnavailableException": 503, "TimedOutException": 504}


class Frames(incoming.Frames):
    """The answers to some calls of Thrift."""

    head_bytes = idl.LENGTH.size

    def __init__(self) -> None:
        super().__init__()
        self.calls: tuple[str, ...] = ()
        """What was called, in order."""

    @property
    def awaited(self) -> int:
        """One for each call."""
        return len(self.calls)

    def length(self, place: int) -> int:
        """Of a frame, with its length before it."""
        (length,) = idl.LENGTH.unpack_from(self.buffer, place)
        if not 0 < length <= _LIMIT_BYTES:
            begins = bytes(self.view[place : min(self.filled, place + 40)])
            raise BrokenResponseError(f"broken Thrift: a frame of {length} bytes; the answer begins with {begins!r}")
        return idl.LENGTH.size + int(length)

    def said(self, frames: list[bytes]) -> Said:
        """What the first answer says that is no success; else that all is well."""
        for number, (name, frame) in enumerate(zip(self.calls, frames, strict=True), 1):
            try:
                idl.decode_result(name, frame[idl.LENGTH.size :], is_plain=True)
            except idl.BrokenMessageError as error:
                raise BrokenResponseError(f"broken Thrift: {error}") from None
            except idl.RaisedError as error:
                # A connection without its keyspace takes no rows, and would never name it again.
                return Said(_STATUS.get(error.name, 500), str(error).encode(), close=number < len(frames))
        return Said(200)
