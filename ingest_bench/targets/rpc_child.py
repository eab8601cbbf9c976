"""RPC child: asks one question to a server that does not speak HTTP, from inside a namespace.

The arguments are the protocol (kafka, cql or thrift), host, port and a limit in seconds; the question is on stdin, its
answer on stdout, both JSON. An answer with "error" or "unanswered" is a failure. Started by its path, so that it
imports little and starts soon. Each protocol answers the questions `describe`, `create` and `count`.
"""

from __future__ import annotations

import json
import signal
import socket
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from types import FrameType
from typing import Any, TypeVar

from ingest_bench.protocols import cql_wire, thrift_wire
from ingest_bench.protocols.response import InvalidResponseError

Answer = dict[str, Any]
Question = Mapping[str, Any]
T = TypeVar("T")

_POLL_S = 0.05
# A full collection, or a busy machine, may take longer than the server's own timeout for a page of rows.
_TRIES = 5


def main(protocol: str, host: str, port: str, limit_s: str) -> None:
    """Answer the question on stdin."""
    question = json.loads(sys.stdin.read())
    signal.signal(signal.SIGALRM, _time_out)
    try:
        # One limit for everything: a socket's own timeout starts again with each read.
        signal.setitimer(signal.ITIMER_REAL, float(limit_s))
        answer = ask(protocol, host, int(port), float(limit_s), question)
    except TimeoutError as error:
        answer = {"unanswered": f"TimeoutError: {error}"}
    except (OSError, thrift_wire.ServerError, InvalidResponseError) as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    signal.setitimer(signal.ITIMER_REAL, 0)
    sys.stdout.write(json.dumps(answer))


def _time_out(_signal: int, _frame: FrameType | None) -> None:
    raise TimeoutError("timed out")


def ask(protocol: str, host: str, port: int, limit_s: float, question: Question) -> Answer:
    """Return the server's answer: that of the client's method with the question's name."""
    if protocol == "kafka":
        return ask_kafka(host, port, limit_s, question)
    node = CqlNode(host, port) if protocol == "cql" else ThriftNode(host, port)
    answer: Answer = getattr(node, question["ask"])(question)
    return answer


class KafkaBroker:
    """A Kafka broker."""

    def __init__(self, host: str, port: int, limit_s: float) -> None:
        from confluent_kafka import admin  # noqa: PLC0415 - the other protocols do not need it

        self.library: Any = admin
        self.config: dict[str, Any] = {
            "bootstrap.servers": f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
            "log_level": 0,
        }
        self.client: Any = self.library.AdminClient(self.config)
        self._address = (host, port)
        self._deadline = time.monotonic() + limit_s

    @property
    def remaining_s(self) -> float:
        """Return the seconds until the limit."""
        return max(0.001, self._deadline - time.monotonic())

    def describe(self, _question: Question) -> Answer:
        """Return the cluster's id, its brokers, and the broker's own settings."""
        metadata = self.client.list_topics(timeout=self.remaining_s)
        # The library does not know the broker's own id before it knows the other brokers.
        same = (broker.id for broker in metadata.brokers.values() if (broker.host, broker.port) == self._address)
        broker_id = str(next(same, metadata.orig_broker_id))
        resource = self.library.ConfigResource(self.library.ConfigResource.Type.BROKER, broker_id)
        configs = self.client.describe_configs([resource], request_timeout=self.remaining_s)
        settings = {name: entry.value for name, entry in configs[resource].result(self.remaining_s).items()}
        return {"cluster": metadata.cluster_id, "brokers": sorted(metadata.brokers), "settings": settings}

    def create(self, question: Question) -> Answer:
        """Create a topic with the server's defaults, and wait until all its partitions have a leader."""
        topic = question["topic"]
        new_topic = self.library.NewTopic(topic, num_partitions=-1, replication_factor=-1)
        self.client.create_topics([new_topic])[topic].result(self.remaining_s)
        # Not all brokers know the topic at once.
        while self.remaining_s > _POLL_S:
            metadata = self.client.list_topics(topic, timeout=self.remaining_s).topics[topic]
            leaders = [partition.leader for partition in metadata.partitions.values()]
            if metadata.error is None and leaders and min(leaders) >= 0:
                return {}
            time.sleep(_POLL_S)
        return {"error": f"topic {topic}: a partition has no leader"}

    def count(self, question: Question) -> Answer:
        """Return the number of records in topics: without transactions and compaction, each offset is one."""
        from confluent_kafka import Consumer, TopicPartition  # noqa: PLC0415 - as above

        consumer = Consumer({**self.config, "group.id": "ingest-bench"})
        records = 0
        for topic in question["topics"]:
            metadata = self.client.list_topics(topic, timeout=self.remaining_s).topics[topic]
            if metadata.error is not None or not metadata.partitions:
                return {"error": f"topic {topic}: its partitions are unknown ({metadata.error or 'there are none'})"}
            for partition in metadata.partitions:
                place = TopicPartition(topic, partition)
                first, end = consumer.get_watermark_offsets(place, timeout=self.remaining_s)
                records += end - first
        consumer.close()
        return {"records": records}


def ask_kafka(host: str, port: int, limit_s: float, question: Question) -> Answer:
    """Ask a broker; errors of the connection are "unanswered"."""
    from confluent_kafka import KafkaError, KafkaException  # noqa: PLC0415 - the other protocols do not need it

    try:
        answer: Answer = getattr(KafkaBroker(host, port, limit_s), question["ask"])(question)
    except KafkaException as error:
        reason = error.args[0]
        connection_errors = (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT)  # noqa: SLF001 - their names
        kind = "unanswered" if reason.code() in connection_errors else "error"
        return {kind: f"{reason.name()}: {reason.str()}"}
    return answer


def retry(call: Callable[[], T], errors: Collection[str]) -> T:
    """Return the result of a call, which is repeated after the server's errors of these names."""
    for _ in range(_TRIES - 1):
        try:
            return call()
        except thrift_wire.ServerError as error:
            if error.name not in errors:
                raise
        time.sleep(_POLL_S)
    return call()


class _Connection:
    """One TCP connection to a node."""

    def __init__(self, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self._socket.makefile("rb")

    def close(self) -> None:
        """Close the connection."""
        self._file.close()
        self._socket.close()

    def send(self, request: bytes) -> None:
        """Send the whole request."""
        self._socket.sendall(request)

    def read(self, size_bytes: int) -> bytes:
        """Return that many bytes of the response."""
        data = self._file.read(size_bytes)
        if len(data) < size_bytes:
            raise ConnectionError("the node closed the connection")
        return data


class CqlNode(_Connection):
    """A node of Cassandra 4 or later."""

    # Counting reads twelve bytes per row, however long the documents are.
    _PAGE_ROWS = 5000
    # Overloaded comes from a full queue, ReadFailure from the replica's own timeout.
    _RETRIED = ("ReadTimeout", "ReadFailure", "Overloaded")

    def __init__(self, host: str, port: int) -> None:
        super().__init__(host, port)
        self._exchange(cql_wire.encode_startup())

    def describe(self, _question: Question) -> Answer:
        """Return the versions of the server and of CQL, and the cluster's name."""
        ((version, interface, cluster),) = self._query(
            "SELECT release_version, cql_version, cluster_name FROM system.local"
        )
        # Cassandra 3 lacks this table, which `create` needs.
        list(self._query("SELECT peer FROM system.peers_v2"))
        return {"version": _decode(version), "interface": _decode(interface), "cluster": _decode(cluster)}

    def create(self, question: Question) -> Answer:
        """Create a keyspace with its tables, and wait until all nodes have them."""
        keyspace = question["keyspace"]
        replication = f"{{'class': 'SimpleStrategy', 'replication_factor': {int(question['copies'])}}}"
        self._exchange(cql_wire.encode_query(f'CREATE KEYSPACE "{keyspace}" WITH replication = {replication}'))
        for table in question["tables"]:
            columns = "(key text PRIMARY KEY, document blob)"
            self._exchange(cql_wire.encode_query(f'CREATE TABLE "{keyspace}"."{table}" {columns}'))
        while True:
            own = set(self._query("SELECT schema_version FROM system.local"))
            if own >= set(self._query("SELECT schema_version FROM system.peers_v2")):
                return {}
            time.sleep(_POLL_S)

    def drop(self, question: Question) -> Answer:
        """Drop a keyspace with its tables, if it exists."""
        self._exchange(cql_wire.encode_query(f'DROP KEYSPACE IF EXISTS "{question["keyspace"]}"'))
        return {}

    def count(self, question: Question) -> Answer:
        """Return the rows with a document in each table that exists, read page by page."""
        keyspace = question["keyspace"]
        names = self._query(f"SELECT table_name FROM system_schema.tables WHERE keyspace_name = '{keyspace}'")  # noqa: S608 - our own name
        existing = {_decode(name) for (name,) in names}
        return {"rows": {table: self._count_rows(keyspace, table) for table in question["tables"] if table in existing}}

    def _count_rows(self, keyspace: str, table: str) -> int:
        # The write time of the document is null where there is none.
        rows = self._query(f'SELECT writetime(document) FROM "{keyspace}"."{table}"')  # noqa: S608 - our own names
        return sum(written is not None for (written,) in rows)

    def _query(self, text: str) -> Iterator[tuple[bytes | None, ...]]:
        """Yield the rows of a statement, read page by page."""
        next_page: bytes | None = None
        while True:
            query = partial(self._exchange, cql_wire.encode_query(text, self._PAGE_ROWS, next_page))
            page = cql_wire.parse_rows(retry(query, self._RETRIED))
            yield from page.rows
            next_page = page.next_page
            if next_page is None:
                return

    def _exchange(self, request: bytes) -> bytes:
        self.send(request)
        head = self.read(cql_wire.HEAD.size)
        response = cql_wire.parse_response(head + self.read(cql_wire.frame_length(head) - cql_wire.HEAD.size))
        if response.opcode == cql_wire.AUTHENTICATE:
            raise InvalidResponseError("the server requires a user and password, which are unsupported")
        if response.opcode not in (cql_wire.READY, cql_wire.RESULT):
            raise InvalidResponseError(f"opcode {response.opcode} is not a response to this request")
        return response.body


class ThriftNode(_Connection):
    """A node of Cassandra 0.7."""

    # The size of a page: the first, and then as many rows as have about this many bytes. Cassandra 0.7 builds a
    # response in the heap, and a frame may have 15 MB (thrift_framed_transport_size_in_mb).
    _FIRST_ROWS = 100
    _PAGE_BYTES = 2 * 1024**2
    _MAX_ROWS = 5000

    def __init__(self, host: str, port: int) -> None:
        super().__init__(host, port)
        self.response_bytes = 0
        """Size of the last response."""

    def describe(self, _question: Question) -> Answer:
        """Return the version of the interface and the cluster's name."""
        interface = self._call("describe_version").decode()
        return {"interface": interface, "cluster": self._call("describe_cluster_name").decode()}

    def create(self, question: Question) -> Answer:
        """Create a keyspace with its column families."""
        thrift, keyspace = thrift_wire.interface(), question["keyspace"]
        families = [thrift.CfDef(keyspace=keyspace, name=name, **question["memtables"]) for name in question["tables"]]
        definition = thrift.KsDef(
            name=keyspace,
            strategy_class="org.apache.cassandra.locator.SimpleStrategy",
            replication_factor=1,
            cf_defs=families,
        )
        self._call("system_add_keyspace", ks_def=definition)
        return {}

    def count(self, question: Question) -> Answer:
        """Return the rows with a document in each column family, read page by page; none without the keyspace."""
        try:
            self._call("set_keyspace", keyspace=question["keyspace"])
        except thrift_wire.ServerError as error:
            if "does not exist" not in str(error):
                raise
            return {"rows": {}}
        return {"rows": {name: self._count_rows(name) for name in question["tables"]}}

    def _count_rows(self, family: str) -> int:
        thrift = thrift_wire.interface()
        first_column = thrift.SliceRange(start=b"", finish=b"", reversed=False, count=1)
        total, start, page_rows = 0, b"", self._FIRST_ROWS
        while True:
            request = partial(
                self._call,
                "get_range_slices",
                column_parent=thrift.ColumnParent(column_family=family),
                predicate=thrift.SlicePredicate(slice_range=first_column),
                range=thrift.KeyRange(start_key=start, end_key=b"", count=page_rows),
                consistency_level=thrift.ConsistencyLevel.ONE,
            )
            rows: list[Any] = retry(request, ("TimedOutException",))
            # Each page but the first begins with the last row of the one before.
            new_rows = rows[1:] if start else rows
            total += sum(len(row.columns) > 0 for row in new_rows)
            if len(rows) < page_rows:
                return total
            start = rows[-1].key
            fitting_rows = self._PAGE_BYTES * len(rows) // max(self.response_bytes, 1)
            page_rows = max(2, min(self._MAX_ROWS, fitting_rows))

    def _call(self, name: str, **arguments: Any) -> Any:
        self.send(thrift_wire.encode_call(name, **arguments))
        (length,) = thrift_wire.LENGTH.unpack(self.read(thrift_wire.LENGTH.size))
        self.response_bytes = length
        return thrift_wire.decode_result(name, self.read(length))


def _decode(value: bytes | None) -> str:
    return "" if value is None else value.decode()


if __name__ == "__main__":
    main(*sys.argv[1:])
