"""Locust user with its own Kafka producer, and so with its own connections to the brokers."""

from __future__ import annotations

import functools
import itertools
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import gevent
from confluent_kafka import KafkaError, KafkaException, Producer
from gevent.lock import RLock
from gevent.threadpool import ThreadPool

from ingest_bench.errors import RunFailed
from ingest_bench.protocols.kafka import LibraryConnections, combine_errors
from ingest_bench.protocols.response import ConnectionBrokenError, Response
from ingest_bench.protocols.upstream import UserConnection
from ingest_bench.protocols.users import ProtocolUser

if TYPE_CHECKING:
    from ingest_bench.documents.body import Body
    from ingest_bench.protocols.upstream import Upstream

# Reports arrive sooner; this is the longest wait for the next ones.
_POLL_S = 0.1
_CONNECT_S = 10.0
_CLOSE_S = 5.0
# The library connects for records 50 ms later, unless a record comes first.
_DISCOVERIES, _DISCOVERY_S = 20, 0.01
_CONNECTING = RLock()
# The library's limit for a record is as long as that of the request, and may expire first.
_TIMED_OUT = "_MSG_TIMED_OUT"


class _PendingRequest:
    """Records of a request without a delivery report. The library reports in another thread."""

    def __init__(self, records: int) -> None:
        self.pending = records
        self.errors: dict[int, str] = {}
        self.first_ns = 0
        self.last_ns = 0

    def report(self, item: int, error: Any, _record: Any = None) -> None:
        """Record the delivery or the error of one record."""
        self.last_ns = time.monotonic_ns()
        self.first_ns = self.first_ns or self.last_ns
        if error is not None:
            self.errors[item] = error.name()
        self.pending -= 1


class ProducerConnection(UserConnection):
    """A producer with its connections."""

    def __init__(self, upstream: Upstream, config: Mapping[str, str | float | bool]) -> None:
        address = upstream.addresses[0]
        if len(upstream.addresses) > 1:
            # The library picks the node for each record.
            address = replace(address, index=-1, name=", ".join(address.name for address in upstream.addresses))
        super().__init__(address)
        brokers = [socket_address[:2] for address in upstream.addresses for _, socket_address in address.sockets]
        self._connections = LibraryConnections(brokers, upstream.traffic)
        servers = ",".join(f"{f'[{host}]' if ':' in host else host}:{port}" for host, port in brokers)
        self._config = {**config, "bootstrap.servers": servers}
        self._producer: Producer | None = None
        # Blocking calls of the library run in a thread, so that the event loop continues.
        self._pool = ThreadPool(1)
        self._expired = ""

    @property
    def is_open(self) -> bool:
        """True if there is a producer: a broker that refuses a record keeps the connection."""
        return self._producer is not None

    def note_refused(self) -> None:
        """Do nothing: a broker that refuses a record has read it."""

    def open(self) -> Producer:
        """Return the producer, connected if a broker responds."""
        if self._producer is None:
            # One user at a time: a new connection of this process then belongs to it.
            with _CONNECTING:
                self._producer = Producer(self._config)
                try:
                    self._pool.apply(self._producer.list_topics, kwds={"timeout": _CONNECT_S})
                except KafkaException:
                    """Its records will report it."""
                else:
                    self._discover()
        return self._producer

    def _discover(self) -> None:
        """Discover the connections for records; the one that requested the brokers' addresses is closed by now."""
        for _ in range(_DISCOVERIES):
            gevent.sleep(_DISCOVERY_S)
            self._connections.discover()
            if self._connections.reaches_all:
                return

    def exchange(self, topic: str, values: Sequence[bytes], timeout_ns: int) -> Response:
        """Send records and return the result of each; ConnectionBrokenError if no result is known."""
        producer = self.open()
        self._expired = ""
        self.first_byte_ns = self.bytes_sent = 0
        self.sent_ns = time.monotonic_ns()
        self.deadline_ns = self.sent_ns + timeout_ns
        request = _PendingRequest(len(values))
        try:
            for item, value in enumerate(values):
                try:
                    producer.produce(topic, value, on_delivery=functools.partial(request.report, item))
                except BufferError:
                    request.report(item, KafkaError(KafkaError._QUEUE_FULL))  # noqa: SLF001 - the library's name
                except KafkaException as error:
                    request.report(item, error.args[0])
            while request.pending:
                self._pool.apply(producer.poll, (_POLL_S,))
        finally:
            self.deadline_ns = 0
            self.bytes_sent = self._connections.count_sent_bytes()
            self.local_port = self._connections.local_port
            self.first_byte_ns, self.done_ns = request.first_ns, request.last_ns or time.monotonic_ns()
            if request.pending:
                producer.purge()
        return self._build_response(request.errors, len(values))

    def _build_response(self, errors: dict[int, str], records: int) -> Response:
        if not errors:
            return Response(200, b"", 0, 0)
        # A connection may have broken, and the next one has another port.
        self._connections.discover()
        status = combine_errors(errors)
        if len(errors) == records and status == 503:
            names = sorted(set(errors.values()))
            outcome = self._expired or ("timeout" if _TIMED_OUT in names else "connection-error")
            # Its connection may have closed before it was counted: 0 bytes do not prove that nothing was sent.
            message = f"no record was acknowledged: {', '.join(names)}"
            raise ConnectionBrokenError(outcome, message, may_be_stored=True)
        body = json.dumps(errors).encode()
        return Response(status, body, 0, len(body))

    def expire(self, outcome: str) -> None:
        """End the pending request with that outcome, from another greenlet."""
        self._expired = outcome
        if self._producer is not None:
            self._producer.purge()

    def close(self) -> None:
        """Close the producer and count the bytes that it sent last."""
        producer, self._producer = self._producer, None
        if producer is None:
            return
        self._connections.discover()
        producer.purge()
        self._pool.apply(producer.close, (_CLOSE_S,))
        self._connections.close()
        self._pool.kill()


class KafkaUser(ProtocolUser):
    """Sends the documents of a body as records; the response is complete once each has a result."""

    abstract = True
    topic = ""
    config: Mapping[str, str | float | bool] = {}
    connection: ProducerConnection

    def on_start(self) -> None:
        """Create the producer."""
        if self.upstream.is_tls:
            raise RunFailed("kafka: TLS is not supported. Use a URL with http://.")
        self.connection = ProducerConnection(self.upstream, self.config)
        self.upstream.deadlines.watch(self.connection)
        self.connection.open()

    def exchange(self, body: Body) -> Response:
        """Return the response to one request; ConnectionBrokenError without one."""
        offsets, data = body.item_offsets().tolist(), body.data
        values = [bytes(data[start:end]) for start, end in itertools.pairwise(offsets)]
        return self.connection.exchange(self.topic, values, self.timeout_ns)
