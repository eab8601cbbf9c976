"""Thrift as Cassandra 0.7 speaks it: each document is a row with one column, many rows are one call (batch_mutate).

Bodies are built ahead: only the keys of a call's rows change, which are written in place. So sending a call costs no
encoding.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ingest_bench.documents.body import DIGITS
from ingest_bench.protocols import thrift_wire
from ingest_bench.protocols.cassandra import MAX_FRAME_BYTES, FrameReader, FrameSummary, RowProtocol
from ingest_bench.protocols.response import InvalidResponseError

if TYPE_CHECKING:
    from ingest_bench.documents.body import BodyTemplate

COLUMN = b"document"
# Of every column: a row that is sent again is the same row, and of two with one key the greater document remains.
_TIMESTAMP = 1
_CONSISTENCY_ONE = 1
# After the rows: type, number and 32 bits of the consistency level, and the end of the struct.
_SUFFIX_BYTES = 8
# These bytes occur in no part of a row other than the document.
_MARK = b"\xff\xfe\xfd"
# Cassandra's exceptions by their meaning for a request; any other one is a server error.
_STATUS = {"InvalidRequestException": 400, "UnavailableException": 503, "TimedOutException": 504}


class ThriftReader(FrameReader):
    """Reader of the responses to some calls, whose names are `expected` in order."""

    encoding = "Thrift"
    head_bytes = thrift_wire.LENGTH.size

    def frame_length(self, offset: int) -> int:
        """Return the length of a frame with its head."""
        (length,) = thrift_wire.LENGTH.unpack_from(self.buffer, offset)
        if not 0 < length <= MAX_FRAME_BYTES:
            start = bytes(self.view[offset : min(self.filled, offset + 40)])
            raise InvalidResponseError(f"a frame of {length} bytes; the response begins with {start!r}")
        return thrift_wire.LENGTH.size + int(length)

    def summarize(self, frames: list[bytes]) -> FrameSummary:
        """Return the first exception, otherwise status 200."""
        for name, frame in zip(self.expected, frames, strict=True):
            try:
                thrift_wire.decode_result(name, frame[thrift_wire.LENGTH.size :], is_plain=True)
            except thrift_wire.ServerError as error:
                return FrameSummary(_STATUS.get(error.name, 500), str(error).encode())
        return FrameSummary(200)


@dataclass(frozen=True, slots=True, kw_only=True)
class Thrift(RowProtocol):
    """Protocol `thrift`: rows for column families of Cassandra 0.7, in turn; one response for all."""

    protocol: ClassVar[str] = "thrift"
    table: ClassVar[str] = "column family"
    reader_class: ClassVar[type[FrameReader]] = ThriftReader
    expected: ClassVar[tuple[str, ...]] = ("batch_mutate",)

    @property
    def handshake(self) -> Sequence[tuple[bytes, Sequence[str]]]:
        """The name of the keyspace: one round trip."""
        return ((thrift_wire.encode_call("set_keyspace", keyspace=self.keyspace), ("set_keyspace",)),)

    @property
    def overhead_bytes(self) -> int:
        """Most bytes that an item has in addition to its document: start and end of the call."""
        return max(len(_encode_call((family, b""))) for family in self.tables)

    def build_body(self, documents: Sequence[bytes], seed: int) -> BodyTemplate:
        """Build a call with gaps for the keys of its rows. The seed decides which ones reuse a key."""
        before, after = _call_ends(len(documents))
        row_ends = itertools.cycle([_row_ends(family) for family in self.tables])
        rows = [
            b"".join((start, thrift_wire.LENGTH.pack(len(document)), document, end))
            for document, (start, end) in zip(documents, row_ends, strict=False)
        ]
        frame_bytes = len(before) + sum(map(len, rows)) + len(after) - thrift_wire.LENGTH.size
        before = thrift_wire.LENGTH.pack(frame_bytes) + before[thrift_wire.LENGTH.size :]
        # A row begins with the length of its key.
        return self.build_template(before, rows, after, thrift_wire.LENGTH.size, seed)


def _encode_call(*rows: tuple[str, bytes]) -> bytes:
    """Encode a call with rows of (column family, document); the first row's key is zeros."""
    interface = thrift_wire.interface()

    def mutation(document: bytes) -> object:
        column = interface.Column(name=COLUMN, value=document, timestamp=_TIMESTAMP)
        return interface.Mutation(column_or_supercolumn=interface.ColumnOrSuperColumn(column=column))

    mutations = {
        b"%0*d" % (DIGITS, number): {family: [mutation(document)]} for number, (family, document) in enumerate(rows)
    }
    return thrift_wire.encode_call("batch_mutate", mutation_map=mutations, consistency_level=_CONSISTENCY_ONE)


def _call_ends(rows: int) -> tuple[bytes, bytes]:
    """Return the bytes before the rows of a call, its frame included, and the bytes after them."""
    # The map of rows begins with their number, and is followed by the consistency level and the end of the struct.
    empty, number_bytes = _encode_call(), thrift_wire.LENGTH.size
    return empty[: -_SUFFIX_BYTES - number_bytes] + thrift_wire.LENGTH.pack(rows), empty[-_SUFFIX_BYTES:]


def _row_ends(family: str) -> tuple[bytes, bytes]:
    """Return the bytes of a row before the length of its document, and after the document."""
    prefix, _ = _call_ends(1)
    row = _encode_call((family, _MARK))[len(prefix) : -_SUFFIX_BYTES]
    before, after = row.split(thrift_wire.LENGTH.pack(len(_MARK)) + _MARK)
    return before, after
