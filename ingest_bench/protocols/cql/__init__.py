"""CQL over Cassandra's native protocol: each document is a row, many rows an unlogged batch of a prepared INSERT.

cql_frames.py   what an answer says        cql_user.py   a Locust user on one connection

Bodies are made ahead: of a batch only the keys of its rows change, which are written in place. So a batch that is sent
costs no encoding, and a user has a connection of its own whose bytes are counted. With the public library it has
neither, and a row costs 26 us of CPU here in batches of 50, 206 us with 100 single rows in flight, 453 us one by one
(cassandra-driver 3.30.1 on libev, rows of 490 bytes).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ingest_bench import idl
from ingest_bench.documents.body import DIGITS, BodyTemplate
from ingest_bench.errors import SpecError
from ingest_bench.idl import cql
from ingest_bench.inputs import records
from ingest_bench.protocols.rows import RowKeys, RowProtocol

if TYPE_CHECKING:
    from ingest_bench.model.load import LoadOptions, ProtocolOptions
    from ingest_bench.protocols.cql.cql_user import Batching

# A batch counts its rows in 16 bits.
_MOST_ROWS = 2**16 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Cql(RowProtocol):
    """Rows for tables of Cassandra, in turn; an answer for all. A row has an id of ours as its key."""

    protocol: ClassVar[str] = "cql"
    table: ClassVar[str] = "table"

    statements: tuple[str, ...]
    """The INSERT of each table."""

    @classmethod
    def from_wire(cls, wire: ProtocolOptions, index: str, options: LoadOptions) -> Cql:
        """The protocol for a load with these options; SpecError for a key that it has not, or that cannot be."""
        keys = records.from_toml(RowKeys, wire.keys, wire.toml_key)
        cls.check(options)
        _check_rows(options.bulk_documents or 0)
        tables = map(idl.table_name, options.action.index_names(index))
        return cls(statements=tuple(insert_statement(keys.keyspace, table) for table in tables), action=options.action)

    @property
    def overhead_bytes(self) -> int:
        """What an item has at most beside its document: the beginning and the end of a batch, if it is the only one."""
        return max(len(cql.encode_batch(_row(statement, b""), 1)) for statement in self.statements)

    def build_body(self, documents: Sequence[bytes], seed: int) -> BodyTemplate:
        """These documents as a batch, with gaps for the keys of their rows. The seed says which ones are old."""
        _check_rows(len(documents))
        statements = [self.statements[number % len(self.statements)] for number in range(len(documents))]
        rows = [*map(_row, statements, documents)]
        data = bytearray(cql.encode_batch(b"".join(rows), len(rows)))
        sizes = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
        first = len(data) - len(cql.BATCH_SUFFIX) - int(sizes.sum())
        before_key = _row(statements[0], b"").index(_KEY)
        places = first + before_key + np.cumsum(sizes) - sizes
        # The items are all of it: the first one has the beginning, the last one the end.
        sizes[0] += first
        sizes[-1] += len(cql.BATCH_SUFFIX)
        return BodyTemplate(data, places, self.old(len(documents), seed), sizes=sizes)

    def user_class(self) -> type[Batching]:
        """A Locust user that sends such batches."""
        # Locust must not be loaded where bodies are made and nothing is sent.
        from ingest_bench.protocols.cql.cql_user import Batching  # noqa: PLC0415

        return type("CqlBatching", (Batching,), {"abstract": True, "statements": self.statements})


def insert_statement(keyspace: str, table: str) -> str:
    """The statement that writes a row: with its keyspace, so that its id does not depend on a connection's."""
    return f'INSERT INTO "{keyspace}"."{table}" (key, document) VALUES (?, ?)'  # noqa: S608 - two names that were parsed


_KEY = b"0" * DIGITS


def _row(statement: str, document: bytes) -> bytes:
    return cql.encode_row(statement, _KEY, document)


def _check_rows(rows: int) -> None:
    if rows > _MOST_ROWS:
        raise SpecError(f"load.bulk_documents: a batch of cql has at most {_MOST_ROWS:,} rows, and these are {rows:,}")
