"""The child that asks a server over HTTP, against a server that drops kept connections."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import pytest

from ingest_bench.model.target import Endpoint
from ingest_bench.targets.http import NoAnswer, ask

pytestmark = pytest.mark.processes

GOOD = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


class Server:
    """Answers each question as it is told to; a connection that it ends it ends without having said so."""

    def __init__(self, answers: list[bytes]) -> None:
        self.questions = 0
        self._answers = iter(answers)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = Endpoint(*self._listener.getsockname()[:2])
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        for answer in self._answers:
            connection, _ = self._listener.accept()
            with connection:
                connection.recv(65536)
                self.questions += 1
                connection.sendall(answer)

    def close(self) -> None:
        self._thread.join(timeout=60)
        self._listener.close()


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    made = Server(request.param)
    yield made
    made.close()


def outside(argv: object) -> tuple[str, ...]:
    assert isinstance(argv, tuple)
    assert argv[0] == sys.executable
    return tuple(map(str, argv))


@pytest.mark.parametrize("server", [[GOOD, GOOD, GOOD]], indirect=True)
def test_a_kept_connection_that_died_is_replaced_without_a_word(server: Server) -> None:
    with ask(outside, server.endpoint) as http:
        for _ in range(3):
            assert http.request("GET", "/", timeout_s=30).json() == {}
    assert server.questions == 3


@pytest.mark.parametrize("server", [[b"", GOOD]], indirect=True)
def test_a_new_connection_that_dies_is_no_answer(server: Server) -> None:
    with ask(outside, server.endpoint) as http:
        with pytest.raises(NoAnswer, match="RemoteDisconnected"):
            http.request("GET", "/", timeout_s=30)
        assert http.request("GET", "/", timeout_s=30).status == 200


DRIPS = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"


def test_the_time_for_a_question_is_for_all_of_it_and_the_next_one_is_asked_anew() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = Endpoint(*listener.getsockname()[:2])
        with ask(outside, endpoint) as http, ThreadPoolExecutor() as others:
            # Three servers in turn: one drips, one says nothing, one is as it should be.
            dripping = others.submit(drip, listener)
            began = time.monotonic()
            with pytest.raises(NoAnswer, match="timed out"):
                http.request("GET", "/", timeout_s=0.6)
            assert time.monotonic() - began < 3
            dripping.result()
            with pytest.raises(NoAnswer, match="timed out"):
                http.within(0.3).request("GET", "/")
            answering = others.submit(answer_second, listener)
            assert http.request("GET", "/").status == 200
            answering.result()


def drip(listener: socket.socket) -> None:
    connection, _ = listener.accept()
    with connection, suppress(OSError):
        for letter in DRIPS:
            connection.sendall(bytes([letter]))
            time.sleep(0.02)
        connection.recv(65536)
        assert connection.recv(1) == b"", "it waits for more than it should"


def answer_second(listener: socket.socket) -> None:
    given_up, _ = listener.accept()
    connection, _ = listener.accept()
    with given_up, connection:
        connection.recv(65536)
        connection.sendall(GOOD)


def test_what_is_asked_after_the_time_is_not_asked() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.2)
        with ask(outside, Endpoint(*listener.getsockname()[:2])) as http:
            with pytest.raises(NoAnswer, match="the time for it was over"):
                http.within(0).request("GET", "/")
            with pytest.raises(TimeoutError):
                listener.accept()


@pytest.mark.parametrize(
    "head", [b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n"]
)
def test_an_answer_without_an_end_is_broken_off(head: bytes) -> None:
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        others = stack.enter_context(ThreadPoolExecutor())
        http = stack.enter_context(ask(outside, Endpoint(*listener.getsockname()[:2])))
        flooding = others.submit(flood, listener, head)
        with pytest.raises(NoAnswer, match="the answer is longer than 67108864 bytes"):
            http.request("GET", "/")
        flooding.result()


def flood(listener: socket.socket, head: bytes) -> None:
    connection, _ = listener.accept()
    with connection, suppress(OSError):
        connection.sendall(head)
        while True:
            connection.sendall(bytes(1 << 20))


def test_each_of_several_threads_gets_the_answer_to_its_own_question() -> None:
    def answer(listener: socket.socket) -> None:
        for _ in range(40):
            connection, _ = listener.accept()
            with connection:
                path = connection.recv(65536).split()[1]
                time.sleep(0.005)
                head = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(path)
                connection.sendall(head + path)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = threading.Thread(target=answer, args=(listener,))
        serving.start()
        with ask(outside, Endpoint(*listener.getsockname()[:2])) as http, ThreadPoolExecutor(4) as pool:
            paths = [f"/{number}" for number in range(40)]
            bodies = list(pool.map(lambda path: http.request("GET", path).body.decode(), paths))
        serving.join(60)
    assert bodies == paths
