"""The HTTP client against real sockets on loopback: plain, and what holds over TLS as well."""

from __future__ import annotations

import dataclasses
import gc
import select
import socket
import ssl
import subprocess
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import certificates
import gevent
import pytest
from bulk_server import BulkServer, Reply, accept_all, answer, bulk_server
from certificates import Certificates

from ingest_bench.model.target import Endpoint, ServerAddress, Tls
from ingest_bench.protocols.connection import Connection
from ingest_bench.protocols.http1 import HttpResponseReader
from ingest_bench.protocols.response import ConnectionBrokenError
from ingest_bench.protocols.tls import TlsConnection
from ingest_bench.protocols.upstream import Deadlines, Traffic, Upstream, resolve_upstream

BODY = b'{"index":{}}\n{"a":1}\n' * 10
LONG_NS = 60 * 10**9
VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


def head(body: bytes) -> bytes:
    return b"POST /i/_bulk HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)


@dataclass(frozen=True, slots=True)
class Transport:
    """Plain TCP, or one version of TLS."""

    tls: ssl.SSLContext | None = None
    ca: str = ""

    def connect(self, address: Endpoint, traffic: Traffic) -> Connection:
        options = None if self.tls is None else Tls(name="localhost", ca_pem=self.ca)
        return new_connection(resolve_upstream(ServerAddress(endpoint=address, tls=options), traffic=traffic))

    def server(self, reply: Reply = accept_all, **more: Any) -> AbstractContextManager[BulkServer]:
        return bulk_server(reply, tls=self.tls, **more)


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return certificates.create_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(params=["plain", *(pytest.param(version, marks=pytest.mark.processes) for version in VERSIONS)])
def transport(request: pytest.FixtureRequest) -> Transport:
    if request.param == "plain":
        return Transport()
    certs: Certificates = request.getfixturevalue("certs")
    return Transport(server_context(certs, request.param), certs.ca.read_text())


@pytest.fixture(params=[pytest.param(version, marks=pytest.mark.processes) for version in VERSIONS])
def server_side(request: pytest.FixtureRequest, certs: Certificates) -> ssl.SSLContext:
    return server_context(certs, request.param)


@pytest.fixture
def traffic() -> Traffic:
    return Traffic()


def server_context(certs: Certificates, version: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certs.server)
    context.minimum_version = context.maximum_version = VERSIONS[version]
    return context


def new_connection(upstream: Upstream) -> Connection:
    return (TlsConnection if upstream.is_tls else Connection)(upstream, HttpResponseReader())


def connect_over_tls(address: Endpoint, traffic: Traffic, ca: Path | None, name: str = "localhost") -> Connection:
    verify = Tls(name=name, ca_pem=ca.read_text() if ca else "")
    return new_connection(resolve_upstream(ServerAddress(endpoint=address, tls=verify), traffic=traffic))


def connect_to(listener: socket.socket, traffic: Traffic) -> Connection:
    return Transport().connect(Endpoint(*listener.getsockname()), traffic)


def exchange(connection: Connection, body: bytes = BODY) -> tuple[int, bytes]:
    response = connection.exchange(head(body), body, LONG_NS)
    return response.status, response.body


def test_requests_of_any_size_share_one_connection_and_all_bytes_are_counted(
    transport: Transport, traffic: Traffic
) -> None:
    large = b'{"index":{}}\n{"a":"%s"}\n' % (b"0123456789" * 1_000_000)
    bodies = [*[BODY] * 10, large, BODY, large]
    with transport.server() as server:
        server.keep_bodies = True
        connection = transport.connect(server.address, traffic)
        for body in bodies:
            assert exchange(connection, body)[0] == 200
        assert connection.bytes_sent == len(head(large) + large)
        connection.close()
        assert server.bodies == bodies
        assert server.connections == traffic.connects == 1
        assert server.bytes_read == traffic.bytes_written == sum(len(head(body) + body) for body in bodies)
        assert server.ports == traffic.local_ports


@pytest.mark.parametrize("size_bytes", [16_384, 256 * 1024 - 45, 1_000_000])
def test_response_of_any_size_is_read_completely(transport: Transport, traffic: Traffic, size_bytes: int) -> None:
    content = (b"0123456789" * 100_000)[:size_bytes]
    with transport.server(lambda _body, _number: answer(content)) as server:
        connection = transport.connect(server.address, traffic)
        for _ in range(3):
            assert exchange(connection) == (200, content)
        connection.close()


def test_next_response_is_read_after_a_truncated_large_one(traffic: Traffic) -> None:
    def reply(_body: bytes, number: int) -> bytes | None:
        if number == 2:
            server.send(answer(b"x" * 600_000)[:400_000])
            return None
        return answer(b"sent %d times" % 10**number)

    with bulk_server(reply) as server:
        connection = Transport().connect(server.address, traffic)
        assert exchange(connection) == (200, b"sent 10 times")
        with pytest.raises(ConnectionBrokenError, match="in the middle of its response"):
            exchange(connection)
        with gevent.Timeout(10):
            assert exchange(connection) == (200, b"sent 1000 times")
        connection.close()


@pytest.mark.parametrize(
    "large_response",
    [
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n%x\r\n" % 600_000 + b"x" * 600_000 + b"\r\n0\r\n\r\n",
        answer(b"x" * 600_000, headers="connection: close\r\n"),
    ],
    ids=["in chunks", "the last one"],
)
def test_usual_response_is_read_after_one_that_outgrew_the_buffer(traffic: Traffic, large_response: bytes) -> None:
    replies = {1: answer(b"first"), 2: large_response, 3: answer(b"third")}
    with bulk_server(lambda _body, number: replies[number]) as server:
        connection = Transport().connect(server.address, traffic)
        assert [exchange(connection)[1][:5] for _ in range(3)] == [b"first", b"xxxxx", b"third"]
        connection.close()


def test_response_that_ends_with_the_connection_is_read(transport: Transport, traffic: Traffic) -> None:
    def reply(_body: bytes, number: int) -> bytes | None:
        if number > 1:
            return answer(b"later")
        server.send(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nall of it")
        if isinstance(server._open[-1], ssl.SSLSocket):
            with suppress(OSError):
                server._open[-1].unwrap()
        return None

    with transport.server(reply) as server:
        connection = transport.connect(server.address, traffic)
        assert exchange(connection) == (200, b"all of it")
        assert exchange(connection) == (200, b"later")
        connection.close()
        assert server.connections == 2


@pytest.mark.parametrize(
    ("reply", "outcome", "message"),
    [
        (None, "connection-error", "closed the connection before it responded"),
        (b"SSH-2.0-OpenSSH_9\r\n\r\n", "invalid-response", "not an HTTP/1 response"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nabcd", "invalid-response", "2 bytes more"),
    ],
)
def test_invalid_response_has_an_outcome_and_the_next_request_works(
    transport: Transport, traffic: Traffic, reply: bytes | None, outcome: str, message: str
) -> None:
    with transport.server(lambda _body, number: reply if number == 1 else answer(b"{}")) as server:
        connection = transport.connect(server.address, traffic)
        with pytest.raises(ConnectionBrokenError, match=message) as raised:
            exchange(connection)
        assert raised.value.outcome == outcome
        assert exchange(connection) == (200, b"{}")
        connection.close()


def test_connection_that_the_server_ended_while_idle_is_replaced(transport: Transport, traffic: Traffic) -> None:
    with transport.server() as server:
        connection = transport.connect(server.address, traffic)
        exchange(connection)
        # Session tickets after a TLS handshake are not an end of the connection.
        connection.close_if_ended()
        assert connection.is_open
        server.end_connections()
        connection.close_if_ended()
        assert not connection.is_open
        assert exchange(connection)[0] == 200
        connection.close()
    assert traffic.connects == 2


def test_server_that_closes_during_the_request_is_a_connection_error(traffic: Traffic) -> None:
    with bulk_server(lambda _body, _number: None, stop_reading_after_bytes=1) as server:
        connection = Transport().connect(server.address, traffic)
        with pytest.raises(ConnectionBrokenError) as raised:
            exchange(connection, b"x" * 50_000_000)
        assert raised.value.outcome == "connection-error"
        assert connection.bytes_sent < 50_000_000


class ManualServer:
    """Server whose bytes the test sends, and one pending request to it."""

    def __init__(self, traffic: Traffic, body: bytes = BODY) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._opened: list[socket.socket] = []
        self.connection = connect_to(self._listener, traffic)
        self.start_request(body)

    def start_request(self, body: bytes = BODY) -> None:
        self.request = gevent.spawn(exchange, self.connection, body)
        gevent.sleep(0)
        with gevent.Timeout(60):
            while not self.connection.bytes_sent:
                gevent.sleep(0)
        self.accepted = self._listener.accept()[0]
        self._opened.append(self.accepted)

    def send(self, data: bytes) -> None:
        """Send bytes; on return they are in the client's kernel, and no greenlet has run."""
        self.accepted.sendall(data)

    def wait_until_read(self) -> None:
        """Wait until the client has read all sent bytes and waits again."""
        sock = self.connection._sock
        assert sock is not None
        with gevent.Timeout(60):
            while select.select([sock], [], [], 0)[0]:
                gevent.sleep(0)

    def read_request(self, body: bytes) -> None:
        """Read a whole request while the client sends it."""
        missing = len(head(body) + body)
        with gevent.Timeout(60):
            while missing:
                gevent.sleep(0)
                if select.select([self.accepted], [], [], 0)[0]:
                    missing -= len(self.accepted.recv(1 << 20))

    def close(self) -> None:
        self.connection.close()
        for sock in (*self._opened, self._listener):
            sock.close()


@pytest.mark.parametrize(
    ("response", "error"),
    [
        (answer(b"too large", "413 Request Entity Too Large"), ""),
        (answer(b'{"errors":false}'), "before it had the whole request"),
    ],
    ids=["error", "success"],
)
def test_only_an_error_response_before_the_end_of_the_request_is_accepted(
    traffic: Traffic, response: bytes, error: str
) -> None:
    manual = ManualServer(traffic, b"x" * 50_000_000)
    manual.send(response)
    if error:
        with pytest.raises(ConnectionBrokenError, match=error):
            manual.request.get(timeout=60)
    else:
        assert manual.request.get(timeout=60) == (413, b"too large")
        assert manual.connection.bytes_sent < 50_000_000
    manual.close()


@pytest.fixture
def manual(traffic: Traffic) -> Iterator[ManualServer]:
    manual_server = ManualServer(traffic)
    yield manual_server
    manual_server.close()


def test_expiry_right_after_a_response_does_not_affect_the_next_request(manual: ManualServer) -> None:
    manual.send(answer(b"in time"))
    manual.connection.expire("timeout")
    assert manual.request.get(timeout=60) == (200, b"in time")
    manual.start_request()
    manual.send(answer(b"and the next"))
    assert manual.request.get(timeout=60) == (200, b"and the next")


def test_first_byte_time_is_that_of_the_first_byte_after_interim_responses(manual: ManualServer) -> None:
    for interim in (b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"):
        manual.send(interim)
        manual.wait_until_read()
    assert manual.connection.first_byte_ns == 0
    before_ns = time.monotonic_ns()
    manual.send(answer(b"hello")[:1])
    manual.wait_until_read()
    between_ns = time.monotonic_ns()
    manual.send(answer(b"hello")[1:])
    assert manual.request.get(timeout=60) == (200, b"hello")
    assert manual.connection.sent_ns < before_ns < manual.connection.first_byte_ns < between_ns


def test_written_time_is_when_the_kernel_has_the_last_byte(traffic: Traffic) -> None:
    body = b"x" * 20_000_000
    manual = ManualServer(traffic, body)
    gevent.sleep(0.05)
    assert manual.connection.sent_ns > 0
    assert manual.connection.written_ns == 0
    before_ns = time.monotonic_ns()
    manual.read_request(body)
    manual.send(answer(b"hello"))
    assert manual.request.get(timeout=60) == (200, b"hello")
    manual.close()
    assert before_ns < manual.connection.written_ns <= manual.connection.first_byte_ns


def test_interim_response_does_not_stop_the_sending_of_a_request(traffic: Traffic) -> None:
    body = b"x" * 20_000_000
    manual = ManualServer(traffic, body)
    manual.send(b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Ear")
    manual.wait_until_read()
    manual.send(b"ly Hints\r\n\r\n")
    manual.wait_until_read()
    manual.read_request(body)
    manual.send(answer(b"all of it"))
    assert manual.request.get(timeout=60) == (200, b"all of it")
    assert manual.connection.bytes_sent == len(head(body) + body)
    manual.close()


def test_slow_response_times_out_after_the_time_of_one_exchange(traffic: Traffic) -> None:
    over = threading.Event()

    def drip(_body: bytes, _number: int) -> None:
        for byte in answer(b"x" * 1000):
            if over.wait(0.01):
                return
            server.send(bytes([byte]))

    with bulk_server(drip) as server:
        assert wait_for_expiry(Deadlines(), Transport().connect(server.address, traffic)) == "timeout"
        over.set()


def test_refused_connection_is_a_connection_error(traffic: Traffic) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        connection = connect_to(unused, traffic)
        with pytest.raises(ConnectionBrokenError, match=r"connect to .*refused"):
            connection.exchange(head(BODY), BODY, LONG_NS)
    assert connection.sent_ns == 0


def wait_for_expiry(deadlines: Deadlines, connection: Connection, timeout_ns: int = 50_000_000) -> str:
    deadlines.watch(connection)
    try:
        with pytest.raises(ConnectionBrokenError) as raised:
            connection.exchange(head(BODY), BODY, timeout_ns)
    finally:
        deadlines.close()
    return raised.value.outcome


def test_missing_response_times_out(traffic: Traffic) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connection = connect_to(listener, traffic)
        assert wait_for_expiry(Deadlines(), connection) == "timeout"
        assert connection.bytes_sent == len(head(BODY) + BODY)


def test_unaccepted_connection_times_out(traffic: Traffic) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        waiting = []
        for _ in range(3):  # a full backlog: the kernel drops the SYN of one more
            sock = socket.socket()
            sock.setblocking(False)
            sock.connect_ex(listener.getsockname())
            waiting.append(sock)
        connection = connect_to(listener, traffic)
        assert wait_for_expiry(Deadlines(), connection) == "timeout"
        assert connection.sent_ns == 0
        for sock in waiting:
            sock.close()


def test_cut_off_ends_only_pending_requests(traffic: Traffic) -> None:
    deadlines = Deadlines()
    with socket.create_server(("127.0.0.1", 0)) as listener, bulk_server() as server:
        idle = Transport().connect(server.address, traffic)
        deadlines.watch(idle)
        assert exchange(idle)[0] == 200
        stuck = connect_to(listener, traffic)
        deadlines.watch(stuck)
        sender = gevent.spawn(exchange, stuck)
        sender.link_exception(lambda _: None)
        gevent.sleep(0)
        deadlines.cut_off()
        gevent.wait([sender], timeout=60)
        assert isinstance(sender.exception, ConnectionBrokenError)
        assert sender.exception.outcome == "cut-off"
        assert exchange(idle)[0] == 200
        assert server.connections == 1
        deadlines.close()


def test_early_error_response_is_read_over_tls(
    certs: Certificates, server_side: ssl.SSLContext, traffic: Traffic
) -> None:
    early = answer(b"too large", "413 Request Entity Too Large")

    def reply(_body: bytes, _number: int) -> bytes | None:
        server.send(early)
        time.sleep(0.5)  # unread bytes would make the kernel reset the connection
        return None

    with bulk_server(reply, stop_reading_after_bytes=1, tls=server_side) as server:
        connection = connect_over_tls(server.address, traffic, certs.ca)
        assert exchange(connection, b"x" * 50_000_000) == (413, b"too large")
        assert connection.bytes_sent < 50_000_000


@pytest.mark.parametrize(
    ("trusted", "name", "message"),
    [
        (False, "localhost", "certificate of localhost is not verified"),
        (True, "elsewhere.example", "elsewhere.example"),
    ],
)
def test_nothing_is_sent_without_a_verified_certificate(
    certs: Certificates, server_side: ssl.SSLContext, traffic: Traffic, trusted: bool, name: str, message: str
) -> None:
    with bulk_server(tls=server_side) as server:
        connection = connect_over_tls(server.address, traffic, certs.ca if trusted else None, name)
        with pytest.raises(ConnectionBrokenError, match=message) as raised:
            exchange(connection)
        assert raised.value.outcome == "connection-error"
        assert server.bytes_read == traffic.bytes_written == 0
        assert connection.sent_ns == 0


@pytest.mark.processes
def test_nothing_is_sent_with_an_expired_certificate(tmp_path: Path, traffic: Traffic) -> None:
    expired = certificates.create_certificates(tmp_path, days=-1)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(expired.server)
    with bulk_server(tls=context) as server:
        with pytest.raises(ConnectionBrokenError, match="has expired"):
            exchange(connect_over_tls(server.address, traffic, expired.ca))
        assert server.bytes_read == traffic.bytes_written == 0


@pytest.mark.processes
@pytest.mark.parametrize(
    ("version", "command"),
    [("-tls1_2", b"r\n"), ("-tls1_3", b"k\n"), ("-tls1_3", b"K\n")],
    ids=["renegotiation", "new keys", "new keys on both sides"],
)
def test_tls_messages_between_responses_are_handled(
    certs: Certificates, traffic: Traffic, version: str, command: bytes
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = Endpoint(*free.getsockname())
    argv = ["openssl", "s_server", version, "-accept", f"{address.host}:{address.port}", "-cert", str(certs.server)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        while server.stdout.readline().strip() != b"ACCEPT":
            pass
        connection = connect_over_tls(address, traffic, certs.ca)
        for body in (BODY + b"the end", b"x" * 300_000 + b"the end"):
            request = gevent.spawn(exchange, connection, body)
            received = b""
            while not received.endswith(b"the end"):
                gevent.sleep(0)
                assert not request.dead
                if select.select([server.stdout], [], [], 0)[0]:
                    received += server.stdout.read1(65536)  # type: ignore[attr-defined] # as subprocess opens pipes
            for data in (command, answer(b"hello").replace(b"content", b"Content")):
                server.stdin.write(data)
                server.stdin.flush()
                # Each command must be read separately.
                deadline_ns = time.monotonic_ns() + 200_000_000
                while time.monotonic_ns() < deadline_ns:
                    gevent.sleep(0.01)
            assert request.get(timeout=30) == (200, b"hello")
        connection.close()
        server.kill()
    assert traffic.connects == 1


def test_unreferenced_connection_is_freed_at_once(
    certs: Certificates, server_side: ssl.SSLContext, traffic: Traffic
) -> None:
    gc.disable()
    try:
        with bulk_server(tls=server_side) as server:
            connection = connect_over_tls(server.address, traffic, certs.ca)
            assert exchange(connection)[0] == 200
            connection.close()
            reference = weakref.ref(connection)
            del connection
            assert reference() is None
    finally:
        gc.enable()


def require_certificate(certs: Certificates, version: str) -> ssl.SSLContext:
    context = server_context(certs, version)
    context.load_verify_locations(certs.ca)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


@pytest.mark.processes
@pytest.mark.parametrize("version", VERSIONS)
def test_client_certificate_is_sent_on_request(certs: Certificates, traffic: Traffic, version: str) -> None:
    cert, key = map(str, certs.client())
    old, old_key = map(str, certs.client("old", days=-1))
    base_options = Tls(name="localhost", ca_pem=certs.ca.read_text())
    with bulk_server(tls=require_certificate(certs, version)) as server:
        for client, is_accepted in (((cert, key), True), (("", ""), False), ((old, old_key), False)):
            options = dataclasses.replace(base_options, client_cert=client[0], client_key=client[1])
            connection = new_connection(
                resolve_upstream(ServerAddress(endpoint=server.address, tls=options), traffic=traffic)
            )
            if is_accepted:
                assert exchange(connection)[0] == 200
            else:
                with pytest.raises(ConnectionBrokenError) as raised:
                    exchange(connection)
                assert raised.value.outcome == "connection-error"
            connection.close()
    assert server.requests == 1


@pytest.mark.processes
def test_server_without_tls_is_a_connection_error(certs: Certificates, traffic: Traffic) -> None:
    with bulk_server(lambda _body, _number: answer(b"plain")) as server:
        server.stop_reading_after_bytes = 1
        with pytest.raises(ConnectionBrokenError, match="TLS with localhost"):
            exchange(connect_over_tls(server.address, traffic, certs.ca))


@pytest.mark.parametrize("shakes_hands", [False, True])
def test_silent_tls_server_times_out(
    certs: Certificates, server_side: ssl.SSLContext, traffic: Traffic, shakes_hands: bool
) -> None:
    is_over = threading.Event()

    def reply(_body: bytes, _number: int) -> None:
        is_over.wait(30)

    with (
        bulk_server(reply, tls=server_side) as silent,
        socket.create_server(("127.0.0.1", 0)) as listener,
    ):
        address = silent.address if shakes_hands else Endpoint(*listener.getsockname())
        connection = connect_over_tls(address, traffic, certs.ca)
        assert wait_for_expiry(Deadlines(), connection, 2_000_000_000) == "timeout"
        assert bool(connection.sent_ns) == shakes_hands
        is_over.set()
