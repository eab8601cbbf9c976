"""The child process that asks a node of Cassandra 0.7 inside a namespace. `idl.cassandra_node` says how."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ingest_bench import idl
from ingest_bench.idl.cassandra_node import Connection, answer_question

# A page of rows: so many at first, then as many as have about so many bytes. An answer of Cassandra 0.7 is made in the
# heap, and its frame may have 15 MB (thrift_framed_transport_size_in_mb).
_FIRST_ROWS = 100
_PAGE_BYTES = 2 * 1024**2
_MOST_ROWS = 5000
# A full collection may take longer than rpc_timeout_in_ms.
_TRIES = 5


class Node(Connection):
    """A node, asked in its own protocol."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(host, port)
        self.answer_bytes = 0
        """Of the last answer."""

    def call(self, name: str, **arguments: Any) -> Any:
        """What it returned."""
        self.send(idl.call(name, **arguments))
        (length,) = idl.LENGTH.unpack(self.read(idl.LENGTH.size))
        self.answer_bytes = length
        return idl.answer(name, self.read(length))


def describe(node: Node, _question: Mapping[str, Any]) -> dict[str, Any]:
    """What it says about itself."""
    return {
        "interface": node.call("describe_version").decode(),
        "cluster": node.call("describe_cluster_name").decode(),
    }


def create(node: Node, question: Mapping[str, Any]) -> dict[str, Any]:
    """A keyspace with its column families."""
    thrift, keyspace = idl.cassandra(), question["keyspace"]
    families = [thrift.CfDef(keyspace=keyspace, name=name, **question["memtables"]) for name in question["tables"]]
    made = thrift.KsDef(
        name=keyspace,
        strategy_class="org.apache.cassandra.locator.SimpleStrategy",
        replication_factor=1,
        cf_defs=families,
    )
    node.call("system_add_keyspace", ks_def=made)
    return {}


def count(node: Node, question: Mapping[str, Any]) -> dict[str, Any]:
    """The rows of each column family that have their document, read page by page; none without the keyspace."""
    try:
        node.call("set_keyspace", keyspace=question["keyspace"])
    except idl.RaisedError as error:
        if "does not exist" not in str(error):
            raise
        return {"rows": {}}
    return {"rows": {name: _rows(node, name) for name in question["tables"]}}


def _rows(node: Node, family: str) -> int:
    total, start, page = 0, b"", _FIRST_ROWS
    while True:
        found = _page(node, family, start, page)
        # Each page but the first begins with the last row of the one before.
        fresh = found[1:] if start else found
        total += sum(len(row.columns) > 0 for row in fresh)
        if len(found) < page:
            return total
        start = found[-1].key
        page = max(2, min(_MOST_ROWS, _PAGE_BYTES * len(found) // max(node.answer_bytes, 1)))


def _page(node: Node, family: str, start: bytes, rows: int) -> list[Any]:
    thrift = idl.cassandra()
    one = thrift.SliceRange(start=b"", finish=b"", reversed=False, count=1)
    for attempt in range(_TRIES):
        try:
            found: list[Any] = node.call(
                "get_range_slices",
                column_parent=thrift.ColumnParent(column_family=family),
                predicate=thrift.SlicePredicate(slice_range=one),
                range=thrift.KeyRange(start_key=start, end_key=b"", count=rows),
                consistency_level=thrift.ConsistencyLevel.ONE,
            )
        except idl.RaisedError as error:
            if error.name != "TimedOutException" or attempt == _TRIES - 1:
                raise
        else:
            return found
    raise AssertionError("the last try returned or raised")


QUESTIONS: Mapping[str, Callable[[Node, Mapping[str, Any]], dict[str, Any]]] = {
    "describe": describe,
    "create": create,
    "count": count,
}

if __name__ == "__main__":
    answer_question(Node, QUESTIONS)
