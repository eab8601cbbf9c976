"""A Locust user with a producer of its own, and so with its own connection to the broker."""

from __future__ import annotations

import functools
import itertools
import json
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import gevent
from confluent_kafka import KafkaException, Producer
from gevent.lock import RLock
from gevent.threadpool import ThreadPool
from locust import User

from ingest_bench.errors import RunFailed
from ingest_bench.protocols.held import LibraryConnections
from ingest_bench.protocols.kafka import combine_errors
from ingest_bench.protocols.verdict import ConnectionBrokenError, Response

if TYPE_CHECKING:
    from ingest_bench.documents.body import Body
    from ingest_bench.protocols.way import Upstream

# Reports come sooner; so long is waited for the next ones before somebody looks whether the time is over.
_POLL_S = 0.1
_CONNECT_S = 10.0
_CLOSE_S = 5.0
# The library connects 50 ms later, unless a record comes first.
_LOOKS, _LOOK_S = 20, 0.01
_CONNECTING = RLock()
# The library's own limit for a record, as long as ours: it may see it first.
_TIMED_OUT = "_MSG_TIMED_OUT"


class _Request:
    """The records of one request that nobody has heard of yet. The library's reports come in another thread."""

    def __init__(self, records: int) -> None:
        self.left = records
        self.errors: dict[int, str] = {}
        self.first_ns = 0
        self.last_ns = 0

    def report(self, item: int, error: Any, _record: Any = None) -> None:
        """What became of one record."""
        self.last_ns = time.monotonic_ns()
        self.first_ns = self.first_ns or self.last_ns
        if error is not None:
            self.errors[item] = error.name()
        self.left -= 1


class ProducerConnection:
    """A producer, and what a sample takes from it."""

    def __init__(self, way: Upstream, config: Mapping[str, str | float | bool]) -> None:
        self.last_address = way.any_address()
        brokers = [there[:2] for _, there in self.last_address.sockets]
        self._held = LibraryConnections(brokers, way.traffic)
        self._config = {**config, "bootstrap.servers": ",".join(f"{_host(host)}:{port}" for host, port in brokers)}
        self._producer: Producer | None = None
        # What waits in the library waits in a thread: the event loop goes on.
        self._pool = ThreadPool(1)
        self._expired = ""
        self.deadline_ns = 0
        """CLOCK_MONOTONIC; 0: nothing is being waited for."""
        self.sent_ns = self.written_ns = self.first_byte_ns = self.done_ns = 0
        self.bytes_sent = 0
        self.local_port = 0

    @property
    def is_open(self) -> bool:
        """Whether there is a producer: a broker that refuses a record has read it, and the connections stay."""
        return self._producer is not None

    def note_refused(self) -> None:
        """A broker that refuses a record has read it."""

    def open(self) -> Producer:
        """The producer, connected if its broker answers."""
        if self._producer is None:
            # One after the other: a new connection of this process is then that of the one who connects.
            with _CONNECTING:
                self._producer = Producer(self._config)
                try:
                    self._pool.apply(self._producer.list_topics, kwds={"timeout": _CONNECT_S})
                except KafkaException:
                    """Its records will say it."""
                else:
                    self._find()
        return self._producer

    def _find(self) -> None:
        """The connections for records, soon after that which asked where the brokers are, and which is closed now."""
        for _ in range(_LOOKS):
            gevent.sleep(_LOOK_S)
            self._held.discover()
            if self._held.reaches_all:
                return

    def exchange(self, topic: str, values: Sequence[bytes], timeout_ns: int) -> Response:
        """The answer to one request: what became of each record; ConnectionBrokenError when nothing is known of any."""
        producer = self.open()
        self._expired = ""
        self.first_byte_ns = self.bytes_sent = 0
        self.sent_ns = time.monotonic_ns()
        self.deadline_ns = self.sent_ns + timeout_ns
        request = _Request(len(values))
        try:
            for item, value in enumerate(values):
                try:
                    producer.produce(topic, value, on_delivery=functools.partial(request.report, item))
                except BufferError:
                    request.report(item, _Full)
                except KafkaException as error:
                    request.report(item, error.args[0])
            while request.left:
                self._pool.apply(producer.poll, (_POLL_S,))
        finally:
            self.deadline_ns = 0
            self.bytes_sent = self._held.count_sent_bytes()
            self.local_port = self._held.local_port
            self.first_byte_ns, self.done_ns = request.first_ns, request.last_ns or time.monotonic_ns()
            if request.left:
                producer.purge()
        return self._answer(request, len(values))

    def _answer(self, request: _Request, records: int) -> Response:
        errors = request.errors
        if not errors:
            return Response(200, b"", 0, 0)
        # What broke may have been a connection, and the next one has another port.
        self._held.discover()
        if len(errors) == records and combine_errors(errors) == 503:
            names = sorted(set(errors.values()))
            ended = self._expired or ("timeout" if _TIMED_OUT in names else "connection-error")
            # The connection that it went over may be gone before anybody saw it: no bytes do not mean that none went.
            raise ConnectionBrokenError(ended, f"no record was acknowledged: {', '.join(names)}", is_unsure=True)
        said = json.dumps(errors).encode()
        return Response(combine_errors(errors), said, 0, len(said))

    def expire(self, outcome: str) -> None:
        """Ends what the connection waits for, from another greenlet; its request fails with that outcome."""
        self._expired = outcome
        if self._producer is not None:
            self._producer.purge()

    def close(self) -> None:
        """No producer; all that it sent is counted."""
        producer, self._producer = self._producer, None
        if producer is None:
            return
        self._held.discover()
        producer.purge()
        self._pool.apply(producer.close, (_CLOSE_S,))
        self._held.close()
        self._pool.kill()


class _Full:
    """The library's own queue is full, as an error of a record."""

    @staticmethod
    def name() -> str:
        """As the library calls it."""
        return "_QUEUE_FULL"


class KafkaUser(User):
    """Sends the documents of a body as records, and has the answer once each of them has one."""

    abstract = True
    pumps = False
    upstream: Upstream
    topic = ""
    config: Mapping[str, str | float | bool] = {}
    timeout_ns = 60 * 10**9

    def on_start(self) -> None:
        """A producer of its own."""
        if self.upstream.is_tls:
            raise RunFailed("kafka: this protocol has no TLS here; the URL is http://")
        self.connection = ProducerConnection(self.upstream, self.config)
        self.upstream.deadlines.watch(self.connection)
        self.connection.open()

    def on_stop(self) -> None:
        """No producer."""
        self.connection.close()

    def exchange(self, body: Body) -> Response:
        """The answer to one request; ConnectionBrokenError without one. `connection` knows what was sent, and when."""
        edges, data = body.item_offsets().tolist(), body.data
        values = [bytes(data[start:end]) for start, end in itertools.pairwise(edges)]
        return self.connection.exchange(self.topic, values, self.timeout_ns)


def _host(host: str) -> str:
    return f"[{host}]" if ":" in host else host
