"""The HTTP client against real sockets on loopback."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Iterator

import gevent
import pytest
from bulk_server import BulkServer, answer, bulk_server

from ingest_bench.model.target import Endpoint, ServerAddress
from ingest_bench.protocols.connection import Connection
from ingest_bench.protocols.deadlines import Deadlines
from ingest_bench.protocols.http1.framing import HttpResponseReader
from ingest_bench.protocols.verdict import ConnectionBrokenError
from ingest_bench.protocols.way import Traffic, Upstream, resolve_upstream

BODY = b'{"index":{}}\n{"a":1}\n' * 10
LONG_NS = 60 * 10**9


def head(body: bytes) -> bytes:
    return b"POST /i/_bulk HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)


@pytest.fixture(name="server")
def started_server() -> Iterator[BulkServer]:
    with bulk_server() as started:
        yield started


@pytest.fixture
def traffic() -> Traffic:
    return Traffic()


def opened(way: Upstream) -> Connection:
    return Connection(way, HttpResponseReader())


def connected(server: BulkServer, traffic: Traffic) -> Connection:
    return opened(resolve_upstream(ServerAddress(endpoint=server.address), traffic=traffic))


def exchanged(connection: Connection, body: bytes = BODY) -> tuple[int, bytes]:
    answer = connection.exchange(head(body), body, LONG_NS)
    return answer.status, answer.body


def test_requests_share_one_connection_and_every_byte_is_counted(server: BulkServer, traffic: Traffic) -> None:
    connection = connected(server, traffic)
    for _ in range(20):
        assert exchanged(connection)[0] == 200
    connection.close()
    assert server.requests == 20
    assert server.connections == traffic.connects == 1
    assert server.bytes_read == traffic.bytes_written == 20 * len(head(BODY) + BODY)
    assert server.ports == traffic.local_ports


def test_a_body_larger_than_any_socket_buffer_arrives_whole(server: BulkServer, traffic: Traffic) -> None:
    server.keep_bodies = True
    body = b'{"index":{}}\n{"a":"%s"}\n' % (b"0123456789" * 2_000_000)
    connection = connected(server, traffic)
    assert exchanged(connection, body)[0] == 200
    connection.close()
    assert server.bodies == [body]
    assert traffic.bytes_written == server.bytes_read == connection.bytes_sent


def test_an_answer_longer_than_the_buffer_is_read_whole(traffic: Traffic) -> None:
    said = b"0123456789" * 100_000
    with bulk_server(lambda _body, _number: answer(said)) as server:
        connection = connected(server, traffic)
        assert exchanged(connection) == (200, said)
        connection.close()


def test_after_an_answer_that_outgrew_the_buffer_and_broke_off_the_next_one_is_read(traffic: Traffic) -> None:
    def reply(_body: bytes, number: int) -> bytes | None:
        if number == 2:
            server.send(answer(b"x" * 600_000)[:400_000])
            return None
        return answer(b"said %d times" % 10**number)

    with bulk_server(reply) as server:
        connection = connected(server, traffic)
        assert exchanged(connection) == (200, b"said 10 times")
        with pytest.raises(ConnectionBrokenError, match="in the middle of its answer"):
            exchanged(connection)
        with gevent.Timeout(10):
            assert exchanged(connection) == (200, b"said 1000 times")
        connection.close()


@pytest.mark.parametrize(
    "outgrows",
    [
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n%x\r\n" % 600_000 + b"x" * 600_000 + b"\r\n0\r\n\r\n",
        answer(b"x" * 600_000, headers="connection: close\r\n"),
    ],
    ids=["in chunks", "the last one"],
)
def test_an_answer_like_the_usual_one_is_itself_after_one_that_outgrew_the_buffer(
    traffic: Traffic, outgrows: bytes
) -> None:
    replies = {1: answer(b"first"), 2: outgrows, 3: answer(b"third")}
    with bulk_server(lambda _body, number: replies[number]) as server:
        connection = connected(server, traffic)
        assert [exchanged(connection)[1][:5] for _ in range(3)] == [b"first", b"xxxxx", b"third"]
        connection.close()


def test_a_chunked_answer_is_put_together(traffic: Traffic) -> None:
    chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nabcd\r\n186a0\r\n" + b"x" * 100_000
    with bulk_server(lambda _body, _number: chunked + b"\r\n0\r\n\r\n") as server:
        connection = connected(server, traffic)
        assert exchanged(connection) == (200, b"abcd" + b"x" * 100_000)
        assert exchanged(connection)[0] == 200
        connection.close()
        assert server.connections == 1


def test_an_answer_that_ends_with_the_connection_is_read_and_the_next_request_connects_again(traffic: Traffic) -> None:
    def reply(_body: bytes, number: int) -> bytes | None:
        if number > 1:
            return answer(b"later")
        server.send(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nall of it")
        return None

    with bulk_server(reply) as server:
        connection = connected(server, traffic)
        assert exchanged(connection) == (200, b"all of it")
        assert exchanged(connection) == (200, b"later")
        connection.close()
        assert server.connections == 2


def test_a_server_that_says_close_is_connected_to_again(traffic: Traffic) -> None:
    with bulk_server(lambda _body, _number: answer(b"{}", headers="Connection: close\r\n")) as server:
        connection = connected(server, traffic)
        assert [exchanged(connection)[0] for _ in range(3)] == [200, 200, 200]
        assert server.connections == 3


@pytest.mark.parametrize(
    ("reply", "outcome", "said"),
    [
        (None, "connection-error", "closed the connection before it answered"),
        (b"SSH-2.0-OpenSSH_9\r\n\r\n", "invalid-response", "not an HTTP answer"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nabcd", "invalid-response", "2 bytes more"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: four\r\n\r\nabcd", "invalid-response", "content-length"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", "invalid-response", "chunk size"),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000, "invalid-response", "has no end"),
    ],
)
def test_each_broken_answer_has_its_outcome_and_the_next_request_works(
    traffic: Traffic, reply: bytes | None, outcome: str, said: str
) -> None:
    with bulk_server(lambda _body, number: reply if number == 1 else answer(b"{}")) as server:
        connection = connected(server, traffic)
        with pytest.raises(ConnectionBrokenError, match=said) as raised:
            exchanged(connection)
        assert raised.value.outcome == outcome
        assert exchanged(connection) == (200, b"{}")
        connection.close()


def test_a_server_that_closes_in_the_middle_of_its_answer_is_a_connection_error(traffic: Traffic) -> None:
    def reply(_body: bytes, _number: int) -> None:
        server.send(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nabc")

    with bulk_server(reply) as server, pytest.raises(ConnectionBrokenError, match="in the middle of its answer"):
        exchanged(connected(server, traffic))


def test_a_server_that_closes_in_the_middle_of_the_body_is_a_connection_error(traffic: Traffic) -> None:
    with bulk_server(lambda _body, _number: None, stop_reading_after_bytes=1) as server:
        connection = connected(server, traffic)
        with pytest.raises(ConnectionBrokenError) as raised:
            exchanged(connection, b"x" * 50_000_000)
        assert raised.value.outcome == "connection-error"
        assert connection.bytes_sent < 50_000_000


def test_an_answer_before_the_whole_body_was_taken_is_read(traffic: Traffic) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    connection = opened(resolve_upstream(ServerAddress(endpoint=Endpoint(*listener.getsockname())), traffic=traffic))
    sender = gevent.spawn(exchanged, connection, b"x" * 50_000_000)
    gevent.sleep(0)
    accepted = listener.accept()[0]
    accepted.sendall(answer(b"too large", "413 Request Entity Too Large"))
    assert sender.get(timeout=60) == (413, b"too large")
    assert connection.bytes_sent < 50_000_000
    accepted.close()
    listener.close()


def test_a_success_before_the_whole_body_was_taken_is_not_believed(traffic: Traffic) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    connection = opened(resolve_upstream(ServerAddress(endpoint=Endpoint(*listener.getsockname())), traffic=traffic))
    sender = gevent.spawn(exchanged, connection, b"x" * 50_000_000)
    gevent.sleep(0)
    accepted = listener.accept()[0]
    accepted.sendall(answer(b'{"errors":false}'))
    with pytest.raises(ConnectionBrokenError, match="before it had the whole request"):
        sender.get(timeout=60)
    accepted.close()
    listener.close()


class ByHand:
    """A server whose every byte the test sends, and one request to it that is under way."""

    def __init__(self, traffic: Traffic, body: bytes = BODY) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._opened: list[socket.socket] = []
        self.connection = opened(
            resolve_upstream(ServerAddress(endpoint=Endpoint(*self._listener.getsockname())), traffic=traffic)
        )
        self.ask(body)

    def ask(self, body: bytes = BODY) -> None:
        self.request = gevent.spawn(exchanged, self.connection, body)
        gevent.sleep(0)
        with gevent.Timeout(60):
            while not self.connection.bytes_sent:
                gevent.sleep(0)
        self.accepted = self._listener.accept()[0]
        self._opened.append(self.accepted)

    def say(self, data: bytes) -> None:
        """Bytes that are in the client's kernel when this comes back: nothing else had its turn."""
        self.accepted.sendall(data)

    def is_read(self) -> None:
        """The client has taken everything that was said, and waits again."""
        sock = self.connection._sock
        assert sock is not None
        with gevent.Timeout(60):
            while select.select([sock], [], [], 0)[0]:
                gevent.sleep(0)

    def close(self) -> None:
        self.connection.close()
        for one in (*self._opened, self._listener):
            one.close()


@pytest.fixture
def by_hand(traffic: Traffic) -> Iterator[ByHand]:
    made = ByHand(traffic)
    yield made
    made.close()


def test_an_answer_and_its_expiry_in_one_turn_leave_the_next_request_alone(by_hand: ByHand) -> None:
    by_hand.say(answer(b"in time"))
    by_hand.connection.expire("timeout")
    assert by_hand.request.get(timeout=60) == (200, b"in time")
    by_hand.ask()
    by_hand.say(answer(b"and the next"))
    assert by_hand.request.get(timeout=60) == (200, b"and the next")


def test_the_first_byte_of_an_answer_is_not_its_last(by_hand: ByHand) -> None:
    assert by_hand.connection.first_byte_ns == 0
    first, rest = answer(b"hello")[:1], answer(b"hello")[1:]
    by_hand.say(first)
    by_hand.is_read()
    between_ns = time.monotonic_ns()
    by_hand.say(rest)
    assert by_hand.request.get(timeout=60) == (200, b"hello")
    assert by_hand.connection.sent_ns < by_hand.connection.first_byte_ns < between_ns


def test_a_request_is_written_when_the_kernel_has_its_last_byte(traffic: Traffic) -> None:
    body = b"x" * 20_000_000
    by_hand = ByHand(traffic, body)
    gevent.sleep(0.05)
    assert by_hand.connection.sent_ns > 0
    assert by_hand.connection.written_ns == 0
    before_ns = time.monotonic_ns()
    missing = len(head(body) + body)
    with gevent.Timeout(60):
        while missing:
            gevent.sleep(0)
            if select.select([by_hand.accepted], [], [], 0)[0]:
                missing -= len(by_hand.accepted.recv(1 << 20))
    by_hand.say(answer(b"hello"))
    assert by_hand.request.get(timeout=60) == (200, b"hello")
    by_hand.close()
    assert before_ns < by_hand.connection.written_ns <= by_hand.connection.first_byte_ns


def test_interim_answers_are_skipped_and_are_not_the_first_byte(by_hand: ByHand) -> None:
    for interim in (b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"):
        by_hand.say(interim)
        by_hand.is_read()
    between_ns = time.monotonic_ns()
    by_hand.say(answer(b"hello"))
    assert by_hand.request.get(timeout=60) == (200, b"hello")
    assert by_hand.connection.first_byte_ns > between_ns


def test_an_interim_answer_does_not_end_the_sending_of_a_request(traffic: Traffic) -> None:
    body = b"x" * 20_000_000
    by_hand = ByHand(traffic, body)
    by_hand.say(b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Ear")
    by_hand.is_read()
    by_hand.say(b"ly Hints\r\n\r\n")
    by_hand.is_read()
    missing = len(head(body) + body)
    with gevent.Timeout(60):
        while missing:
            gevent.sleep(0)
            if select.select([by_hand.accepted], [], [], 0)[0]:
                missing -= len(by_hand.accepted.recv(1 << 20))
    by_hand.say(answer(b"all of it"))
    assert by_hand.request.get(timeout=60) == (200, b"all of it")
    assert by_hand.connection.bytes_sent == len(head(body) + body)
    by_hand.close()


def test_a_server_that_drips_is_given_the_time_of_one_exchange(traffic: Traffic) -> None:
    over = threading.Event()

    def drip(_body: bytes, _number: int) -> None:
        for byte in answer(b"x" * 1000):
            if over.wait(0.01):
                return
            server.send(bytes([byte]))

    with bulk_server(drip) as server:
        assert expired(Deadlines(), connected(server, traffic)) == "timeout"
        over.set()


def test_nobody_listening_is_a_connection_error(traffic: Traffic) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        connection = opened(resolve_upstream(ServerAddress(endpoint=Endpoint(*unused.getsockname())), traffic=traffic))
        with pytest.raises(ConnectionBrokenError, match=r"connect to .*refused"):
            connection.exchange(head(BODY), BODY, LONG_NS)
    assert connection.sent_ns == 0


def expired(deadlines: Deadlines, connection: Connection) -> str:
    deadlines.watch(connection)
    try:
        with pytest.raises(ConnectionBrokenError) as raised:
            connection.exchange(head(BODY), BODY, 50_000_000)
    finally:
        deadlines.close()
    return raised.value.outcome


def test_a_server_that_never_answers_times_out(traffic: Traffic) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connection = opened(
            resolve_upstream(ServerAddress(endpoint=Endpoint(*listener.getsockname())), traffic=traffic)
        )
        assert expired(Deadlines(), connection) == "timeout"
        assert connection.bytes_sent == len(head(BODY) + BODY)


def test_a_server_that_never_takes_the_connection_times_out(traffic: Traffic) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        waiting = []
        for _ in range(3):  # a full backlog: the kernel drops the SYN of one more
            one = socket.socket()
            one.setblocking(False)
            one.connect_ex(listener.getsockname())
            waiting.append(one)
        connection = opened(
            resolve_upstream(ServerAddress(endpoint=Endpoint(*listener.getsockname())), traffic=traffic)
        )
        assert expired(Deadlines(), connection) == "timeout"
        assert connection.sent_ns == 0
        for one in waiting:
            one.close()


def test_at_the_end_only_requests_that_wait_are_cut_off(traffic: Traffic) -> None:
    deadlines = Deadlines()
    with socket.create_server(("127.0.0.1", 0)) as listener, bulk_server() as server:
        idle = connected(server, traffic)
        deadlines.watch(idle)
        assert exchanged(idle)[0] == 200
        stuck = opened(resolve_upstream(ServerAddress(endpoint=Endpoint(*listener.getsockname())), traffic=traffic))
        deadlines.watch(stuck)
        sender = gevent.spawn(exchanged, stuck)
        sender.link_exception(lambda _: None)
        gevent.sleep(0)
        deadlines.cut_off()
        gevent.wait([sender], timeout=60)
        assert isinstance(sender.exception, ConnectionBrokenError)
        assert sender.exception.outcome == "cut-off"
        assert exchanged(idle)[0] == 200
        assert server.connections == 1
        deadlines.close()
