"""A proxy on loopback that lets every n-th request hang, resets it, and times all requests."""

from __future__ import annotations

import socket
import struct
import time
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import dataclass

from bulk_server import ThreadedServer

from ingest_bench.model.target import Endpoint

# SO_LINGER with 0 s: close() sends a reset.
_AT_ONCE = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True)
class Request:
    """One request on CLOCK_MONOTONIC, from its first byte to the response or the reset."""

    began_ns: int
    ended_ns: int
    reset: bool

    @property
    def took_ns(self) -> int:
        return self.ended_ns - self.began_ns


class HangingProxy(ThreadedServer):
    """Proxy to a server."""

    def __init__(self, server: Endpoint, every: int, hang_s: float) -> None:
        self.requests: list[Request] = []
        self._server = (server.host, server.port)
        self._every, self._hang_s = every, hang_s
        self._requests = 0
        super().__init__()

    @property
    def resets(self) -> int:
        return sum(request.reset for request in self.requests)

    def serve(self, connection: socket.socket) -> None:
        with connection, socket.create_connection(self._server) as server, suppress(OSError):
            while message := _message(connection):
                request, began_ns = message
                with self.lock:
                    self._requests += 1
                    hangs = self._requests % self._every == 0
                if hangs:
                    time.sleep(self._hang_s)
                    self._note(began_ns, reset=True)
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
                    return
                server.sendall(request)
                answer = _message(server)
                if answer is None:
                    return
                self._note(began_ns, reset=False)
                connection.sendall(answer[0])

    def _note(self, began_ns: int, *, reset: bool) -> None:
        with self.lock:
            self.requests.append(Request(began_ns, time.monotonic_ns(), reset))


def _message(connection: socket.socket) -> tuple[bytes, int] | None:
    """Return the next complete message and the time of its first byte; None at the end."""
    data = connection.recv(65536)
    began_ns = time.monotonic_ns()
    while data and b"\r\n\r\n" not in data:
        data += connection.recv(65536)
    if not data:
        return None
    head, _, body = data.partition(b"\r\n\r\n")
    missing = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]) - len(body)
    parts = [data]
    while missing:
        parts.append(connection.recv(65536))
        missing -= len(parts[-1])
    return b"".join(parts), began_ns


def hanging_proxy(server: Endpoint, *, every: int, hang_s: float) -> AbstractContextManager[HangingProxy]:
    return closing(HangingProxy(server, every, hang_s))
