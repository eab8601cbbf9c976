"""The child process that asks a node of Cassandra 5 inside a namespace. `idl.cassandra_node` says how."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ingest_bench import idl
from ingest_bench.idl import cql
from ingest_bench.idl.cassandra_node import Connection, answer_question

# Of rows that are read as twelve bytes each, however long their documents are.
_PAGE_ROWS = 5000
# A full collection, or a machine that is busy, may take longer than range_request_timeout. Of the replica's own timeout
# the answer is a failure, and of a queue's an overload.
_AGAIN = ("ReadTimeout", "ReadFailure", "Overloaded")
_TRIES = 5
_AGAIN_S = 0.05


class Node(Connection):
    """A node, asked in its own protocol."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(host, port)
        self._answer(cql.startup())

    def rows(self, text: str) -> Iterator[tuple[bytes | None, ...]]:
        """The rows that a statement gives, read page by page."""
        page: bytes | None = None
        while True:
            found = self._page(text, page)
            yield from found.rows
            page = found.next_page
            if page is None:
                return

    def do(self, text: str) -> None:
        """Carries out a statement without rows."""
        self._answer(cql.query(text))

    def _page(self, text: str, page: bytes | None) -> cql.Rows:
        for attempt in range(_TRIES):
            try:
                return cql.rows(self._answer(cql.query(text, _PAGE_ROWS, page)))
            except idl.RaisedError as error:
                if error.name not in _AGAIN or attempt == _TRIES - 1:
                    raise
                time.sleep(_AGAIN_S)
        raise AssertionError("the last try returned or raised")

    def _answer(self, request: bytes) -> bytes:
        self.send(request)
        head = self.read(cql.HEAD.size)
        answer = cql.answer(head + self.read(cql.length(head) - cql.HEAD.size))
        if answer.opcode not in (cql.READY, cql.RESULT):
            raise idl.BrokenMessageError(f"opcode {answer.opcode} is no answer to this")
        return answer.body


def describe(node: Node, _question: Mapping[str, Any]) -> dict[str, Any]:
    """What it says about itself."""
    ((version, interface),) = node.rows("SELECT release_version, cql_version FROM system.local")
    return {"version": _text(version), "interface": _text(interface)}


def create(node: Node, question: Mapping[str, Any]) -> dict[str, Any]:
    """A keyspace with its tables, once all nodes have them."""
    keyspace = question["keyspace"]
    copies = f"{{'class': 'SimpleStrategy', 'replication_factor': {int(question['copies'])}}}"
    node.do(f'CREATE KEYSPACE "{keyspace}" WITH replication = {copies}')
    for table in question["tables"]:
        node.do(f'CREATE TABLE "{keyspace}"."{table}" (key text PRIMARY KEY, document blob)')
    while True:
        local = set(node.rows("SELECT schema_version FROM system.local"))
        if local >= set(node.rows("SELECT schema_version FROM system.peers_v2")):
            return {}
        time.sleep(_AGAIN_S)


def count(node: Node, question: Mapping[str, Any]) -> dict[str, Any]:
    """The rows of each table that have their document, read page by page; none without the table."""
    there = {
        _text(name)
        for (name,) in node.rows(
            f"SELECT table_name FROM system_schema.tables WHERE keyspace_name = '{question['keyspace']}'"  # noqa: S608 - a name of ours
        )
    }
    return {"rows": {name: _rows(node, question["keyspace"], name) for name in question["tables"] if name in there}}


def _rows(node: Node, keyspace: str, table: str) -> int:
    # When the document was written, which is null where there is none.
    rows = node.rows(f'SELECT writetime(document) FROM "{keyspace}"."{table}"')  # noqa: S608 - names of ours
    return sum(written is not None for (written,) in rows)


def _text(value: bytes | None) -> str:
    return "" if value is None else value.decode()


QUESTIONS: Mapping[str, Callable[[Node, Mapping[str, Any]], dict[str, Any]]] = {
    "describe": describe,
    "create": create,
    "count": count,
}

if __name__ == "__main__":
    answer_question(Node, QUESTIONS)
