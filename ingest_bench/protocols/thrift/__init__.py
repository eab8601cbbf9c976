"""Thrift, as Cassandra 0.7 speaks it: each document is a row with one column, many rows a call (batch_mutate).

thrift_frames.py   where an answer begins and ends, and what it says
thrift_user.py     a Locust user on one connection

Bodies are made ahead: of a call only the keys of its rows change, which are written in place. So a call that is sent
costs no encoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ingest_bench import idl
from ingest_bench.documents.body import DIGITS, BodyTemplate
from ingest_bench.inputs import records
from ingest_bench.protocols.rows import RowKeys, RowProtocol

if TYPE_CHECKING:
    from ingest_bench.model.load import LoadOptions, ProtocolOptions
    from ingest_bench.protocols.thrift.thrift_user import Caller

COLUMN = b"document"
# Of every column: a row that is sent again is the same row, and of two with one key the greater document stays.
_TIMESTAMP = 1
_ONE = 1
# A field's type, its number and its 32 bits (the consistency level), and the end of the struct.
_AFTER_ROWS_BYTES = 8
# No part of a row beside the document has these bytes.
_MARK = b"\xff\xfe\xfd"


@dataclass(frozen=True, slots=True, kw_only=True)
class Thrift(RowProtocol):
    """Rows for column families of Cassandra 0.7, in turn; an answer for all. A row has an id of ours as its key."""

    protocol: ClassVar[str] = "thrift"
    table: ClassVar[str] = "column family"

    keyspace: str
    families: tuple[str, ...]

    @classmethod
    def from_wire(cls, wire: ProtocolOptions, index: str, options: LoadOptions) -> Thrift:
        """The protocol for a load with these options; SpecError for a key that it has not, or that cannot be."""
        keys = records.from_toml(RowKeys, wire.keys, wire.toml_key)
        cls.check(options)
        families = tuple(map(idl.table_name, options.action.index_names(index)))
        return cls(keyspace=keys.keyspace, families=families, action=options.action)

    @property
    def overhead_bytes(self) -> int:
        """What an item has at most beside its document: the beginning and the end of a call, if it is the only one."""
        return max(len(_call((family, b""))) for family in self.families)

    def build_body(self, documents: Sequence[bytes], seed: int) -> BodyTemplate:
        """These documents as a call, with gaps for the keys of their rows. The seed says which ones are old."""
        first, last = _ends(len(documents))
        sides = [_sides(family) for family in self.families]
        data = bytearray(first)
        places, sizes = [], []
        for number, document in enumerate(documents):
            before, after = sides[number % len(sides)]
            start = len(data)
            # A row begins with the length of its key.
            places.append(len(data) + idl.LENGTH.size)
            data += before
            data += idl.LENGTH.pack(len(document))
            data += document
            data += after
            sizes.append(len(data) - start)
        data += last
        # The items are all of it: the first one has the beginning, the last one the end.
        sizes[0] += len(first)
        sizes[-1] += len(last)
        idl.LENGTH.pack_into(data, 0, len(data) - idl.LENGTH.size)
        old = self.old(len(documents), seed)
        return BodyTemplate(data, np.array(places, dtype=np.int64), old, sizes=np.array(sizes, dtype=np.int64))

    def user_class(self) -> type[Caller]:
        """A Locust user that sends such calls."""
        # Locust must not be loaded where bodies are made and nothing is sent.
        from ingest_bench.protocols.thrift.thrift_user import Caller  # noqa: PLC0415

        own = {"abstract": True, "greeting": idl.encode_call("set_keyspace", keyspace=self.keyspace)}
        return type("ThriftCaller", (Caller,), own)


def _call(*rows: tuple[str, bytes]) -> bytes:
    """A call with these rows, by their column families and documents; the first row's key is zeros."""
    cassandra = idl.interface()

    def mutation(document: bytes) -> object:
        column = cassandra.Column(name=COLUMN, value=document, timestamp=_TIMESTAMP)
        return cassandra.Mutation(column_or_supercolumn=cassandra.ColumnOrSuperColumn(column=column))

    mutations = {
        b"%0*d" % (DIGITS, number): {family: [mutation(document)]} for number, (family, document) in enumerate(rows)
    }
    return idl.encode_call("batch_mutate", mutation_map=mutations, consistency_level=_ONE)


def _ends(rows: int) -> tuple[bytes, bytes]:
    """What stands before the rows of a call with so many of them, its frame included, and after them."""
    # The map of rows begins with their number. Behind it stand the consistency level and the end of the struct.
    empty, number = _call(), idl.LENGTH.size
    return empty[: -_AFTER_ROWS_BYTES - number] + idl.LENGTH.pack(rows), empty[-_AFTER_ROWS_BYTES:]


def _sides(family: str) -> tuple[bytes, bytes]:
    """What stands before the length of a row's document and after the document; the row begins with its key."""
    first, _ = _ends(1)
    row = _call((family, _MARK))[len(first) : -_AFTER_ROWS_BYTES]
    before, after = row.split(idl.LENGTH.pack(len(_MARK)) + _MARK)
    return before, after
