"""The child process that asks a node of Cassandra 0.7 inside a namespace: one question on stdin, its answer on stdout.

Both are JSON; an answer with "error" or "unanswered" is none.

Started by its path, so that it imports little and is there soon.
"""

from __future__ import annotations

import json
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

from ingest_bench import idl

# A page of rows: so many at first, then as many as have about so many bytes. An answer of Cassandra 0.7 is made in the
# heap, and its frame may have 15 MB (thrift_framed_transport_size_in_mb).
_FIRST_ROWS = 100
_PAGE_BYTES = 2 * 1024**2
_MOST_ROWS = 5000
# A full collection may take longer than rpc_timeout_in_ms.
_TRIES = 5


class Node:
    """A node, asked over one connection."""

    def __init__(self, host: str, port: int) -> None:
        self._sock = socket.create_connection((host, port))
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self._sock.makefile("rb")
        self.answer_bytes = 0
        """Of the last answer."""

    def call(self, name: str, **arguments: Any) -> Any:
        """What it returned."""
        self._sock.sendall(idl.call(name, **arguments))
        (length,) = idl.LENGTH.unpack(self._read(idl.LENGTH.size))
        self.answer_bytes = length
        return idl.answer(name, self._read(length))

    def close(self) -> None:
        """No connection."""
        self._file.close()
        self._sock.close()

    def _read(self, size_bytes: int) -> bytes:
        data = self._file.read(size_bytes)
        if len(data) < size_bytes:
            raise ConnectionError("the node closed the connection")
        return data


def main(host: str, port: int, limit_s: float) -> None:
    """Answer the question on stdin."""
    question = json.loads(sys.stdin.read())
    signal.signal(signal.SIGALRM, _over)
    try:
        # For all of it: a socket's own timeout begins anew with each read.
        signal.setitimer(signal.ITIMER_REAL, limit_s)
        answer = QUESTIONS[question["ask"]](Node(host, port), question)
    except TimeoutError as error:
        answer = {"unanswered": f"TimeoutError: {error}"}
    except (OSError, idl.RaisedError, idl.BrokenMessageError) as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    signal.setitimer(signal.ITIMER_REAL, 0)
    sys.stdout.write(json.dumps(answer))


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


def _over(_signal: int, _frame: FrameType | None) -> None:
    raise TimeoutError("timed out")


QUESTIONS: Mapping[str, Callable[[Node, Mapping[str, Any]], dict[str, Any]]] = {
    "describe": describe,
    "create": create,
    "count": count,
}

if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
