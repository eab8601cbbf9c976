"""Thrift, as Cassandra 0.7 speaks it: each document is a row with one column, many rows a call (batch_mutate).

frames.py   where an answer begins and ends, and what it says        user.py   a Locust user on one connection

Bodies are made ahead: of a call only the keys of its rows change, which are written in place. So a call that is sent
costs no encoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np

from ingest_bench import idl, records
from ingest_bench.documents.ids import DIGITS, Template, drawn_old
from ingest_bench.errors import SpecError
from ingest_bench.model.values import Form
from ingest_bench.protocols.verdict import HTTP_ERROR, REJECTED, SAID_BYTES, Verdict, all_acked

if TYPE_CHECKING:
    from ingest_bench.documents.body import Body
    from ingest_bench.model.load import LoadOptions, Wire
    from ingest_bench.model.workload import BulkAction
    from ingest_bench.protocols.thrift.user import Caller
    from ingest_bench.protocols.verdict import Answer

# DatabaseDescriptor of Cassandra 0.7 takes \w+ as a keyspace's name.
Keyspace = Annotated[str, Form(r"[A-Za-z0-9_]{1,48}", "a keyspace's name: A-Z, a-z, 0-9 and underscore")]
COLUMN = b"document"
# Of every column: a row that is sent again is the same row, and of two with one key the greater document stays.
_TIMESTAMP = 1
_ONE = 1
# A field's type, its number and its 32 bits (the consistency level), and the end of the struct.
_AFTER_ROWS_BYTES = 8
# No part of a row beside the document has these bytes.
_MARK = b"\xff\xfe\xfd"


@dataclass(frozen=True, slots=True, kw_only=True)
class ThriftKeys:
    """The keys of the protocol `thrift`."""

    keyspace: Keyspace
    """Where the column families are, which are called as the indices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Thrift:
    """Rows for column families of Cassandra 0.7, in turn; an answer for all. A row has an id of ours as its key."""

    picks_nodes: ClassVar[bool] = False
    most_documents: ClassVar[None] = None

    keyspace: str
    families: tuple[str, ...]
    action: BulkAction

    @classmethod
    def on(cls, wire: Wire, index: str, options: LoadOptions) -> Thrift:
        """The protocol for a load with these options; SpecError for a key that it has not, or that cannot be."""
        keys = records.from_toml(ThriftKeys, wire.keys, wire.written)
        action = options.action
        if options.gzip:
            raise SpecError("load.gzip: thrift sends no compressed bodies")
        if action.pipeline is not None or action.refresh is not None or action.operation == "create":
            raise SpecError("load.action: thrift has no pipelines, no refresh and no create; these are of the bulk API")
        if action.conflicts != "none" and action.indices != 1:
            raise SpecError(
                "load.action: a key that comes again may come to another column family, and thrift does not say which "
                "rows are new; take out conflicts or indices"
            )
        families = tuple(map(idl.column_family, action.index_names(index)))
        return cls(keyspace=keys.keyspace, families=families, action=action)

    def of_file(self, path: Path, *, ready: bool, index: str | None, stream: bool = False) -> Thrift:
        """The same for the documents of a file; SpecError for ready bulk bodies."""
        del index, stream
        if ready:
            raise SpecError(f"{path}: these are ready bulk bodies, and this server takes documents alone (thrift)")
        return self

    @property
    def overhead_bytes(self) -> int:
        """What an item has at most beside its document: the beginning and the end of a call, if it is the only one."""
        return max(len(_call((family, b""))) for family in self.families)

    def body(self, documents: Sequence[bytes], seed: int) -> Template:
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
        conflicts = self.action.conflicts != "none"
        old = drawn_old(len(documents), self.action.conflict_probability_ppm if conflicts else 0, seed)
        return Template(data, np.array(places, dtype=np.int64), old, sizes=np.array(sizes, dtype=np.int64))

    def user(self) -> type[Caller]:
        """A Locust user that sends such calls."""
        # Locust must not be loaded where bodies are made and nothing is sent.
        from ingest_bench.protocols.thrift.user import Caller  # noqa: PLC0415

        own = {"abstract": True, "greeting": idl.call("set_keyspace", keyspace=self.keyspace)}
        return type("ThriftCaller", (Caller,), own)

    def judge(self, answer: Answer, body: Body, is_unsure: bool = False) -> Verdict:
        """What became of each document: the answer is about all. Each row has a key of ours, so all may go again."""
        del is_unsure
        status, words = answer.status, answer.body[:SAID_BYTES].decode("utf-8", "replace")
        if status == 200:
            return all_acked(body.documents)
        kinds = {f"{status} {words.partition(':')[0]}": body.documents}
        if status in (503, 504):
            everything = tuple(range(body.documents))
            # UnavailableException: no replica was asked. TimedOutException: one may have written it.
            outcome = REJECTED if status == 503 else HTTP_ERROR
            return Verdict(outcome=outcome, rejected=everything, rejections=kinds, is_unsure=status == 504, said=words)
        in_doubt = body.documents if status >= 500 else 0
        return Verdict(outcome=HTTP_ERROR, failed=body.documents, in_doubt=in_doubt, failures=kinds, said=words)


def _call(*rows: tuple[str, bytes]) -> bytes:
    """A call with these rows, by their column families and documents; the first row's key is zeros."""
    cassandra = idl.cassandra()

    def mutation(document: bytes) -> object:
        column = cassandra.Column(name=COLUMN, value=document, timestamp=_TIMESTAMP)
        return cassandra.Mutation(column_or_supercolumn=cassandra.ColumnOrSuperColumn(column=column))

    mutations = {
        b"%0*d" % (DIGITS, number): {family: [mutation(document)]} for number, (family, document) in enumerate(rows)
    }
    return idl.call("batch_mutate", mutation_map=mutations, consistency_level=_ONE)


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
