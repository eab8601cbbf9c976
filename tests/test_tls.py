"""HTTP client of the load over TLS, against real sockets on loopback."""

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
from pathlib import Path

import certificates
import gevent
import pytest
from bulk_server import BulkServer, answer, bulk_server
from certificates import Certificates
from test_connection import BODY, VERSIONS, certs, exchange, head, server_context, traffic

from ingest_bench.model.target import Endpoint, ServerAddress, Tls
from ingest_bench.protocols import tls
from ingest_bench.protocols.http1 import HttpResponseReader
from ingest_bench.protocols.response import ConnectionBrokenError
from ingest_bench.protocols.upstream import Deadlines, Traffic, resolve_upstream

pytestmark = pytest.mark.processes
__all__ = ["certs", "traffic"]


@pytest.fixture(params=VERSIONS)
def server_side(request: pytest.FixtureRequest, certs: Certificates) -> ssl.SSLContext:
    return server_context(certs, request.param)


def connection_to(address: Endpoint, traffic: Traffic, ca: Path | None, name: str = "localhost") -> tls.TlsConnection:
    verify = Tls(name=name, ca_pem=ca.read_text() if ca else "")
    return tls.TlsConnection(
        resolve_upstream(ServerAddress(endpoint=address, tls=verify), traffic=traffic), HttpResponseReader()
    )


def test_early_error_response_is_read_over_tls(
    certs: Certificates, server_side: ssl.SSLContext, traffic: Traffic
) -> None:
    early = answer(b"too large", "413 Request Entity Too Large")

    def reply(_body: bytes, _number: int) -> bytes | None:
        server.send(early)
        time.sleep(0.5)  # unread bytes would make the kernel reset the connection
        return None

    with bulk_server(reply, stop_reading_after_bytes=1, tls=server_side) as server:
        connection = connection_to(server.address, traffic, certs.ca)
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
        connection = connection_to(server.address, traffic, certs.ca if trusted else None, name)
        with pytest.raises(ConnectionBrokenError, match=message) as raised:
            exchange(connection)
        assert raised.value.outcome == "connection-error"
        assert server.bytes_read == traffic.bytes_written == 0
        assert connection.sent_ns == 0


def test_nothing_is_sent_with_an_expired_certificate(tmp_path: Path, traffic: Traffic) -> None:
    expired = certificates.create_certificates(tmp_path, days=-1)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(expired.server)
    with bulk_server(tls=context) as server:
        with pytest.raises(ConnectionBrokenError, match="has expired"):
            exchange(connection_to(server.address, traffic, expired.ca))
        assert server.bytes_read == traffic.bytes_written == 0


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
        connection = connection_to(address, traffic, certs.ca)
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
            connection = connection_to(server.address, traffic, certs.ca)
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


@pytest.mark.parametrize("version", VERSIONS)
def test_client_certificate_is_sent_on_request(certs: Certificates, traffic: Traffic, version: str) -> None:
    cert, key = map(str, certs.client())
    old, old_key = map(str, certs.client("old", days=-1))
    base_options = Tls(name="localhost", ca_pem=certs.ca.read_text())
    with bulk_server(tls=require_certificate(certs, version)) as server:
        for client, is_accepted in (((cert, key), True), (("", ""), False), ((old, old_key), False)):
            options = dataclasses.replace(base_options, client_cert=client[0], client_key=client[1])
            upstream = resolve_upstream(ServerAddress(endpoint=server.address, tls=options), traffic=traffic)
            connection = tls.TlsConnection(upstream, HttpResponseReader())
            if is_accepted:
                assert exchange(connection)[0] == 200
            else:
                with pytest.raises(ConnectionBrokenError) as raised:
                    exchange(connection)
                assert raised.value.outcome == "connection-error"
            connection.close()
    assert server.requests == 1


def test_server_without_tls_is_a_connection_error(certs: Certificates, traffic: Traffic) -> None:
    with bulk_server(lambda _body, _number: answer(b"plain")) as server:
        server.stop_reading_after_bytes = 1
        with pytest.raises(ConnectionBrokenError, match="TLS with localhost"):
            exchange(connection_to(server.address, traffic, certs.ca))


@pytest.mark.parametrize("shakes_hands", [False, True])
def test_silent_tls_server_times_out(
    certs: Certificates, server_side: ssl.SSLContext, traffic: Traffic, shakes_hands: bool
) -> None:
    deadlines, test_is_over = Deadlines(), threading.Event()

    def reply(_body: bytes, _number: int) -> None:
        test_is_over.wait(30)

    silent = BulkServer(reply, tls=server_side)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = silent.address if shakes_hands else Endpoint(*listener.getsockname())
        connection = connection_to(address, traffic, certs.ca)
        deadlines.watch(connection)
        with pytest.raises(ConnectionBrokenError) as raised:
            connection.exchange(head(BODY), BODY, 2_000_000_000)
        assert raised.value.outcome == "timeout"
        assert bool(connection.sent_ns) == shakes_hands
    deadlines.close()
    test_is_over.set()
    silent.close()
