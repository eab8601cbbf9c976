"""HTTP child: kept connections, time limits and large responses."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import pytest

from ingest_bench.model.target import Endpoint, ServerAddress
from ingest_bench.targets.http import Http, NoResponse, open_http

pytestmark = pytest.mark.processes

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


def enter(argv: object) -> tuple[str, ...]:
    assert isinstance(argv, tuple)
    assert argv[0] == sys.executable
    return tuple(map(str, argv))


@contextmanager
def open_listener() -> Iterator[tuple[socket.socket, Http, ThreadPoolExecutor]]:
    """Yield a listening socket, its client, and threads for the server's side."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        open_http(ServerAddress(endpoint=Endpoint(*listener.getsockname()[:2])), enter) as http,
        ThreadPoolExecutor() as threads,
    ):
        yield listener, http, threads


def respond(listener: socket.socket, responses: list[bytes]) -> int:
    """Accept a connection per response and close it without notice; return the number of requests."""
    for response in responses:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(response)
    return len(responses)


def test_a_dead_kept_connection_is_replaced() -> None:
    with open_listener() as (listener, http, threads):
        server = threads.submit(respond, listener, [OK] * 3)
        assert [http.request("GET", "/", timeout_s=30).json() for _ in range(3)] == [{}] * 3
        assert server.result(60) == 3


def test_a_new_connection_that_dies_is_not_retried() -> None:
    with open_listener() as (listener, http, threads):
        server = threads.submit(respond, listener, [b"", OK])
        with pytest.raises(NoResponse, match="RemoteDisconnected"):
            http.request("GET", "/", timeout_s=30)
        assert http.request("GET", "/", timeout_s=30).status == 200
        server.result(60)


def test_a_time_limit_is_for_the_whole_request() -> None:
    with open_listener() as (listener, http, threads):
        dripping = threads.submit(drip, listener)
        start = time.monotonic()
        with pytest.raises(NoResponse, match="timed out"):
            http.request("GET", "/", timeout_s=0.6)
        assert time.monotonic() - start < 3
        dripping.result()
        # A server that is silent, and then one that responds.
        with pytest.raises(NoResponse, match="timed out"):
            http.with_deadline(0.3).request("GET", "/")
        server = threads.submit(respond, listener, [b"", OK])
        assert http.request("GET", "/").status == 200
        server.result()


def drip(listener: socket.socket) -> None:
    """Send a response one byte at a time, until the client closes the connection."""
    connection, _ = listener.accept()
    with connection, suppress(OSError):
        for letter in b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n":
            connection.sendall(bytes([letter]))
            time.sleep(0.02)
        connection.recv(65536)
        assert connection.recv(1) == b"", "the client waits too long"


def test_no_request_is_sent_after_the_deadline() -> None:
    with open_listener() as (listener, http, _):
        listener.settimeout(0.2)
        with pytest.raises(NoResponse, match="not sent, the time limit has passed"):
            http.with_deadline(0).request("GET", "/")
        with pytest.raises(TimeoutError):
            listener.accept()


@pytest.mark.parametrize("header", [b"Content-Length: 99999999999\r\n", b""])
def test_an_endless_response_is_cut_off(header: bytes) -> None:
    def flood(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection, suppress(OSError):
            connection.sendall(b"HTTP/1.1 200 OK\r\n" + header + b"\r\n")
            while True:
                connection.sendall(bytes(1 << 20))

    with open_listener() as (listener, http, threads):
        flooding = threads.submit(flood, listener)
        with pytest.raises(NoResponse, match="the response is longer than 67108864 bytes"):
            http.request("GET", "/")
        flooding.result()


def test_each_thread_gets_the_response_to_its_own_request() -> None:
    def echo(listener: socket.socket) -> None:
        for _ in range(40):
            connection, _ = listener.accept()
            with connection:
                path = connection.recv(65536).split()[1]
                time.sleep(0.005)
                head = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(path)
                connection.sendall(head + path)

    with open_listener() as (listener, http, _), ThreadPoolExecutor(4) as clients:
        serving = threading.Thread(target=echo, args=(listener,))
        serving.start()
        paths = [f"/{number}" for number in range(40)]
        bodies = list(clients.map(lambda path: http.request("GET", path).body.decode(), paths))
        serving.join(60)
    assert bodies == paths
