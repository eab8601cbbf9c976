"""CQL over Cassandra's native protocol: each document is a row, many rows an unlogged batch of a prepared INSERT.

frames.py   what an answer says        user.py   a Locust user on one connection

Bodies are made ahead: of a batch only the keys of its rows change, which are written in place. So a batch that is sent
costs no encoding, and a user has a connection of its own whose bytes are counted. With the public library it has
neither, and a row costs 26 us of CPU here in batches of 50, 206 us with 100 single rows in flight, 453 us one by one
(cassandra-driver 3.30.1 on libev, rows of 490 bytes).
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
from ingest_bench.idl import cql
from ingest_bench.model.values import Form
from ingest_bench.protocols.verdict import HTTP_ERROR, REJECTED, SAID_BYTES, Verdict, all_acked

if TYPE_CHECKING:
    from ingest_bench.documents.body import Body
    from ingest_bench.model.load import LoadOptions, Wire
    from ingest_bench.model.workload import BulkAction
    from ingest_bench.protocols.cql.user import Batching
    from ingest_bench.protocols.verdict import Answer

# SchemaConstants of Cassandra 4 and 5: \w+ and at most 48 of them.
Keyspace = Annotated[str, Form(r"[A-Za-z0-9_]{1,48}", "a keyspace's name: A-Z, a-z, 0-9 and underscore")]
# A batch counts its rows in 16 bits.
_MOST_ROWS = 2**16 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CqlKeys:
    """The keys of the protocol `cql`."""

    keyspace: Keyspace
    """Where the tables are, which are called as the indices: "key" text as the primary key, "document" blob."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cql:
    """Rows for tables of Cassandra, in turn; an answer for all. A row has an id of ours as its key."""

    picks_nodes: ClassVar[bool] = False
    most_documents: ClassVar[None] = None

    statements: tuple[str, ...]
    """The INSERT of each table."""
    action: BulkAction

    @classmethod
    def on(cls, wire: Wire, index: str, options: LoadOptions) -> Cql:
        """The protocol for a load with these options; SpecError for a key that it has not, or that cannot be."""
        keys = records.from_toml(CqlKeys, wire.keys, wire.written)
        action = options.action
        if options.gzip:
            raise SpecError("load.gzip: cql sends no compressed bodies")
        if action.pipeline is not None or action.refresh is not None or action.operation == "create":
            raise SpecError("load.action: cql has no pipelines, no refresh and no create; these are of the bulk API")
        if action.conflicts != "none" and action.indices != 1:
            raise SpecError(
                "load.action: a key that comes again may come to another table, and cql does not say which rows are "
                "new; take out conflicts or indices"
            )
        _check_rows(options.bulk_documents or 0)
        tables = map(idl.column_family, action.index_names(index))
        return cls(statements=tuple(insert(keys.keyspace, table) for table in tables), action=action)

    def of_file(self, path: Path, *, ready: bool, index: str | None, stream: bool = False) -> Cql:
        """The same for the documents of a file; SpecError for ready bulk bodies."""
        del index, stream
        if ready:
            raise SpecError(f"{path}: these are ready bulk bodies, and this server takes documents alone (cql)")
        return self

    @property
    def overhead_bytes(self) -> int:
        """What an item has at most beside its document: the beginning and the end of a batch, if it is the only one."""
        return max(len(cql.batch(_row(statement, b""), 1)) for statement in self.statements)

    def body(self, documents: Sequence[bytes], seed: int) -> Template:
        """These documents as a batch, with gaps for the keys of their rows. The seed says which ones are old."""
        _check_rows(len(documents))
        statements = [self.statements[number % len(self.statements)] for number in range(len(documents))]
        rows = [*map(_row, statements, documents)]
        data = bytearray(cql.batch(b"".join(rows), len(rows)))
        sizes = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
        first = len(data) - len(cql.BATCH_END) - int(sizes.sum())
        before_key = _row(statements[0], b"").index(_KEY)
        places = first + before_key + np.cumsum(sizes) - sizes
        # The items are all of it: the first one has the beginning, the last one the end.
        sizes[0] += first
        sizes[-1] += len(cql.BATCH_END)
        conflicts = self.action.conflicts != "none"
        old = drawn_old(len(documents), self.action.conflict_probability_ppm if conflicts else 0, seed)
        return Template(data, places, old, sizes=sizes)

    def user(self) -> type[Batching]:
        """A Locust user that sends such batches."""
        # Locust must not be loaded where bodies are made and nothing is sent.
        from ingest_bench.protocols.cql.user import Batching  # noqa: PLC0415

        return type("CqlBatching", (Batching,), {"abstract": True, "statements": self.statements})

    def judge(self, answer: Answer, body: Body, is_unsure: bool = False) -> Verdict:
        """What became of each document: the answer is about all. Each row has a key of ours, so all may go again."""
        del is_unsure
        status, words = answer.status, answer.body[:SAID_BYTES].decode("utf-8", "replace")
        if status == 200:
            return all_acked(body.documents)
        kinds = {f"{status} {words.partition(':')[0]}": body.documents}
        if status in (503, 504):
            everything = tuple(range(body.documents))
            # 504: some of it may have been written.
            outcome = REJECTED if status == 503 else HTTP_ERROR
            return Verdict(outcome=outcome, rejected=everything, rejections=kinds, is_unsure=status == 504, said=words)
        in_doubt = body.documents if status >= 500 else 0
        return Verdict(outcome=HTTP_ERROR, failed=body.documents, in_doubt=in_doubt, failures=kinds, said=words)


def insert(keyspace: str, table: str) -> str:
    """The statement that writes a row: with its keyspace, so that its id does not depend on a connection's."""
    return f'INSERT INTO "{keyspace}"."{table}" (key, document) VALUES (?, ?)'  # noqa: S608 - two names that were parsed


_KEY = b"0" * DIGITS


def _row(statement: str, document: bytes) -> bytes:
    return cql.row(statement, _KEY, document)


def _check_rows(rows: int) -> None:
    if rows > _MOST_ROWS:
        raise SpecError(f"load.bulk_documents: a batch of cql has at most {_MOST_ROWS:,} rows, and these are {rows:,}")
