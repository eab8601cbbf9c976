"""The child that asks a server over HTTP, against a server that drops kept connections."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Iterator

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
