"""Kafka's protocol, by librdkafka: each document is a record with its own acknowledgement. Bytes of its connections.

The library batches records across its partitions; a request is done once all of its records are. Its bytes are those
that the kernel counted on the producer's connections (`LibraryConnections`).
"""

from __future__ import annotations

import _socket
import contextlib
import fcntl
import json
import os
import struct
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, NamedTuple

from ingest_bench.documents.body import Body, item_sizes
from ingest_bench.errors import SpecError
from ingest_bench.inputs import records
from ingest_bench.model.values import HOUR, MIB, MS, Between
from ingest_bench.protocols.json_array import DocumentsOnly
from ingest_bench.protocols.response import HTTP_ERROR, MESSAGE_BYTES, PARTIAL, REJECTED, Verdict, acknowledge_all

if TYPE_CHECKING:
    from ingest_bench.model.load import LoadOptions, ProtocolOptions
    from ingest_bench.protocols.kafka_user import KafkaUser
    from ingest_bench.protocols.response import Response
    from ingest_bench.protocols.upstream import Traffic

# Errors after which the record was not stored and may be retried (rd_kafka_resp_err_t of librdkafka 2.16, by the names
# of confluent_kafka).
RETRIABLE = frozenset(
    ("NOT_LEADER_FOR_PARTITION", "LEADER_NOT_AVAILABLE", "NOT_ENOUGH_REPLICAS", "UNKNOWN_TOPIC_OR_PART", "_QUEUE_FULL")
)
# Errors after which the record was not stored, permanently. After any other error it may be stored.
REFUSED = frozenset(
    (
        "MSG_SIZE_TOO_LARGE",
        "INVALID_MSG_SIZE",
        "RECORD_LIST_TOO_LARGE",
        "TOPIC_AUTHORIZATION_FAILED",
        "CLUSTER_AUTHORIZATION_FAILED",
        "INVALID_REQUIRED_ACKS",
        "INVALID_RECORD",
        "POLICY_VIOLATION",
        "TOPIC_EXCEPTION",
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaKeys:
    """The keys of the protocol `kafka`: options of a librdkafka producer, with its defaults."""

    acks: Literal["0", "1", "all"] = "all"
    """Replicas that must have a record before it is acknowledged: none, the leader, all in sync."""
    linger_ns: Annotated[int, Between(0, HOUR // 4, "the library's limit is 15 minutes")] = 5 * MS
    """How long a record waits for others of its batch."""
    batch_size_bytes: Annotated[int, Between(1, 2**31 - 1, "the library's limit is 31 bits")] = 1_000_000
    """Most bytes of a batch."""
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = "none"
    """Compression of a batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kafka(DocumentsOnly):
    """Protocol `kafka`: records for one topic, named as the index. They have no ids from ingest-bench."""

    protocol: ClassVar[str] = "kafka"
    picks_nodes: ClassVar[bool] = True
    max_documents: ClassVar[None] = None
    overhead_bytes: ClassVar[int] = 0

    topic: str
    config: Mapping[str, str | float | bool]
    """Configuration of the library, without the addresses of the brokers."""

    @classmethod
    def from_options(cls, protocol_options: ProtocolOptions, index: str, options: LoadOptions) -> Kafka:
        """Create the protocol; SpecError for an unknown key or an unsupported option."""
        keys = records.from_toml(KafkaKeys, protocol_options.keys, protocol_options.toml_key)
        if options.gzip:
            raise SpecError('load.gzip: kafka compresses batches, not requests. Use compression = "gzip".')
        if options.nodes != "all":
            raise SpecError(f'load.nodes: must be "all", not {options.nodes}: kafka sends to the leader of a partition')
        cls.check_action(options)
        return cls(topic=index, config=_build_config(keys, options.timeout_ns))

    def build_body(self, documents: Sequence[bytes], seed: int) -> Body:
        """Concatenate the documents."""
        del seed
        return Body(b"".join(documents), len(documents), item_sizes(documents))

    def user_class(self) -> type[KafkaUser]:
        """Return a Locust user class that sends records."""
        # Locust must not be loaded in a process that only builds bodies.
        from ingest_bench.protocols.kafka_user import KafkaUser  # noqa: PLC0415

        return type("TopicUser", (KafkaUser,), {"abstract": True, "topic": self.topic, "config": self.config})

    def judge(self, response: Response, body: Body, may_be_stored: bool = False) -> Verdict:
        """Decide for each record; the response has the errors of those that were not acknowledged."""
        del may_be_stored
        if response.status == 200:
            return acknowledge_all(body.documents)
        errors = {int(item): name for item, name in json.loads(response.body).items()}
        kinds = Counter(f"{response.status} {name}" for name in errors.values())
        acked = body.documents - len(errors)
        counts = ", ".join(f"{count} x {kind}" for kind, count in kinds.most_common(3))
        message = f"{response.status}: {counts}"[:MESSAGE_BYTES]
        retriable = tuple(item for item, name in errors.items() if name in RETRIABLE)
        if response.status == 429:
            return Verdict(outcome=REJECTED, acked=acked, rejected_items=retriable, rejections=kinds, message=message)
        # If others are in doubt or refused, nothing is retried: one arrival has one outcome.
        return Verdict(
            outcome=PARTIAL if acked and response.status < 500 else HTTP_ERROR,
            acked=acked,
            failed=len(errors),
            in_doubt=sum(name not in RETRIABLE | REFUSED for name in errors.values()),
            failures=kinds,
            message=message,
        )


def combine_errors(errors: Mapping[int, str]) -> int:
    """Return the HTTP status for the errors of a request's records: 200, 429, 400 or 503."""
    names = set(errors.values())
    if not names:
        return 200
    if names <= RETRIABLE:
        return 429
    return 400 if names <= RETRIABLE | REFUSED else 503


def _build_config(keys: KafkaKeys, timeout_ns: int) -> dict[str, str | float | bool]:
    timeout_ms = max(1, timeout_ns // 10**6)
    return {
        "acks": keys.acks,
        "linger.ms": keys.linger_ns / 10**6,
        "batch.size": keys.batch_size_bytes,
        "compression.type": keys.compression,
        # ingest-bench retries requests itself, and counts it.
        "message.send.max.retries": 0,
        "enable.idempotence": False,
        # Connect to each broker at the start: later, the connections of several users could not be told apart.
        "enable.sparse.connections": False,
        "message.timeout.ms": timeout_ms,
        "request.timeout.ms": timeout_ms,
        "message.max.bytes": 64 * MIB,
        # The library's maximum: a body is queued at once.
        "queue.buffering.max.messages": 10**7,
        "queue.buffering.max.kbytes": 2**21,
        "socket.nagle.disable": True,
        # Failures are reported by the records that fail.
        "log_level": 0,
    }


# struct tcp_info (include/uapi/linux/tcp.h): tcpi_bytes_sent and tcpi_bytes_retrans, since Linux 4.19, and
# tcpi_bytes_acked, in which SYN and FIN count as one byte each.
_SENT = struct.Struct("=QQ")
_SENT_OFFSET = 200
_ACKED = struct.Struct("=Q")
_ACKED_OFFSET = 120
_TCP_INFO_BYTES = 256
# include/net/tcp_states.h: TCP_ESTABLISHED; TCP_SYN_SENT and TCP_SYN_RECV, in which no FIN is queued; TCP_FIN_WAIT1,
# TCP_FIN_WAIT2, TCP_TIME_WAIT, TCP_LAST_ACK and TCP_CLOSING, in which our FIN was queued; TCP_CLOSE, from which it
# cannot be concluded.
_ESTABLISHED, _CONNECTING, _FIN_QUEUED, _CLOSED = 1, frozenset((2, 3)), frozenset((4, 5, 6, 9, 11)), 7
# include/uapi/linux/sockios.h: unacknowledged bytes, and the unsent ones of them.
_SIOCOUTQ, _SIOCOUTQNSD = 0x5411, 0x894B
_QUEUED = struct.Struct("=i")


class _SocketState(NamedTuple):
    is_closed: bool
    """Nothing more will be sent."""
    sent_bytes: int
    """Bytes that were passed to the network, each counted once."""
    unsent_bytes: int
    """Bytes that wait on this machine and will be sent."""
    uncertain_bytes: int
    """How many of `sent_bytes` may be the FIN, which is no data for the server."""


@dataclass(slots=True)
class _LibraryConnection:
    sock: _socket.socket
    """A duplicated descriptor: it can be read after the library has closed its own."""
    name: str
    library_fd: int
    peer: tuple[str, int]
    local_port: int
    counted_bytes: int = 0
    has_fin: bool = False
    """The FIN is among the written bytes."""

    @property
    def is_held(self) -> bool:
        """True if the library has not closed it."""
        try:
            return os.readlink(f"/proc/self/fd/{self.library_fd}") == self.name  # noqa: PTH115 - once per request
        except OSError:
            return False

    @property
    def is_open(self) -> bool:
        """True if neither the library nor the peer has closed it."""
        return self.is_held and self._tcp_info()[0] == _ESTABLISHED

    def read_state(self) -> _SocketState:
        """Read the byte counts of the kernel.

        Sent bytes are those acknowledged and those in flight. The kernel's own counter has a byte more each time a
        queue of this machine refuses a segment (net/ipv4/tcp_output.c, `__tcp_transmit_skb`), and a retransmission
        less if it had no memory for it (`__tcp_retransmit_skb`): without such events it tells whether the FIN is
        included.
        """
        info = self._tcp_info()
        while True:
            # In this order: bytes written in between count as unsent now, and the next time as sent.
            queued, unsent, previous = self._read_queue(_SIOCOUTQ), self._read_queue(_SIOCOUTQNSD), info
            info = self._tcp_info()
            (acked,) = _ACKED.unpack_from(info, _ACKED_OFFSET)
            if info[0] == previous[0] and _ACKED.unpack_from(previous, _ACKED_OFFSET) == (acked,):
                break
        state, total, uncertain = info[0], int(acked) + queued - unsent - 1, 0
        self.has_fin = self.has_fin or state in _FIN_QUEUED
        if state == _CLOSED and not unsent and not self.has_fin:
            sent, resent = _SENT.unpack_from(info, _SENT_OFFSET)
            uncertain = int(sent - resent != total)
            self.has_fin = sent - resent == total - 1
        if self.has_fin and unsent:
            unsent -= 1
        elif self.has_fin:
            total, uncertain = total - 1, 0
        is_closed = state == _CLOSED
        return _SocketState(is_closed, total, 0 if is_closed else unsent, uncertain)

    def end(self) -> None:
        """Send the FIN that is pending since the library closed its descriptor: ours alone keeps the peer waiting."""
        is_connected = self._tcp_info()[0] not in _CONNECTING
        # Once the peer answers, the state is TCP_CLOSE, which does not tell of the FIN.
        with contextlib.suppress(OSError):
            self.sock.shutdown(_socket.SHUT_WR)
            self.has_fin |= is_connected

    def _tcp_info(self) -> bytes:
        return self.sock.getsockopt(_socket.IPPROTO_TCP, _socket.TCP_INFO, _TCP_INFO_BYTES)

    def _read_queue(self, request: int) -> int:
        size: int = _QUEUED.unpack(fcntl.ioctl(self.sock.fileno(), request, bytes(_QUEUED.size)))[0]
        return size


class LibraryConnections:
    """The TCP connections of one client of a library to these addresses, with the bytes sent on each.

    `discover` takes connections that no client has taken yet: clients that connect one after the other get their own.
    Of clients that reconnect at the same time, one may take another's. When it closes, it leaves that one to the others
    with its present count. A connection that was never discovered is not part of the load: neither its sent nor its
    received bytes count.
    """

    _taken: set[str] = set()  # noqa: RUF012 - of all clients in this process
    # Connections whose client has closed, but whose library has not.
    _abandoned: dict[str, _LibraryConnection] = {}  # noqa: RUF012 - of all clients in this process

    def __init__(self, addresses: Collection[tuple[str, int]], traffic: Traffic) -> None:
        self._addresses = frozenset(addresses)
        self._traffic = traffic
        self._connections: dict[str, _LibraryConnection] = {}
        self.local_port = 0
        """Of the connection that was discovered last; 0: none."""

    @property
    def reaches_all(self) -> bool:
        """True if a connection to each address is open."""
        return {connection.peer for connection in self._connections.values() if connection.is_open} == self._addresses

    def discover(self) -> None:
        """Take new connections; all bytes sent on them before count too."""
        for name, connection in list(self._abandoned.items()):
            if connection.peer in self._addresses:
                self._connections[name] = self._abandoned.pop(name)
                self.local_port = connection.local_port
        for entry in os.scandir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                name = str(Path(entry.path).readlink())
                if name.startswith("socket:") and name not in self._taken:
                    self._take(name, int(entry.name))

    def _take(self, name: str, library_fd: int) -> None:
        own_fd = os.dup(library_fd)
        if os.readlink(f"/proc/self/fd/{own_fd}") != name:  # noqa: PTH115 - as above
            # The library closed it meanwhile. The new owner of its number is discovered by its own name.
            os.close(own_fd)
            return
        sock = _socket.socket(fileno=own_fd)
        try:
            peer = sock.getpeername()[:2]
        except OSError:
            peer = None
        if peer not in self._addresses:
            sock.close()
            return
        port = int(sock.getsockname()[1])
        self._taken.add(name)
        self._connections[name] = _LibraryConnection(sock, name, library_fd, peer, port)
        self.local_port = port
        self._traffic.local_ports.add(port)
        self._traffic.connects += 1

    def count_sent_bytes(self) -> int:
        """Return the bytes sent on all connections since the last call, and add them to the traffic counters."""
        if not self.reaches_all:
            self.discover()
        return sum(map(self._count_more, list(self._connections.values())))

    def _count_more(self, connection: _LibraryConnection) -> int:
        if not (is_held := connection.is_held):
            connection.end()
        state = connection.read_state()
        more_bytes = self._add_to_traffic(connection, state.sent_bytes)
        if not is_held:
            # The remaining bytes of an abandoned connection: no response proves that the server read them.
            self._traffic.bytes_unread += more_bytes
            if state.is_closed:
                self._forget(connection, state)
        return more_bytes

    def _add_to_traffic(self, connection: _LibraryConnection, total_bytes: int) -> int:
        more_bytes = max(0, total_bytes - connection.counted_bytes)
        connection.counted_bytes += more_bytes
        self._traffic.bytes_written += more_bytes
        return more_bytes

    def _forget(self, connection: _LibraryConnection, state: _SocketState) -> None:
        more_bytes = self._add_to_traffic(connection, state.sent_bytes + state.unsent_bytes)
        self._traffic.bytes_unread += more_bytes + state.uncertain_bytes
        connection.sock.close()
        self._taken.discard(connection.name)
        del self._connections[connection.name]

    def close(self) -> None:
        """Count the last bytes, sent or to be sent. The library must have closed its connections."""
        self.count_sent_bytes()
        for name, connection in list(self._connections.items()):
            if connection.is_held:
                self._abandoned[name] = self._connections.pop(name)
            else:
                self._forget(connection, connection.read_state())
