"""A proxy on loopback that lets every n-th request hang, resets it, and times all requests."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

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


class HangingProxy:
    """Proxy to a server, with one thread per connection."""

    def __init__(self, server: Endpoint, every: int, hang_s: float) -> None:
        self.requests: list[Request] = []
        self._server = (server.host, server.port)
        self._every, self._hang_s = every, hang_s
        self._lock = threading.Lock()
        self._requests = 0
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = Endpoint(*self._listener.getsockname())
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def resets(self) -> int:
        return sum(request.reset for request in self.requests)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            opened = list(self._open)
        for connection in opened:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in list(self._threads):
            thread.join(10)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self._open.append(client)
            thread = threading.Thread(target=self._serve, args=(client,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(self._server) as server, suppress(OSError):
            while message := _message(client):
                request, began_ns = message
                with self._lock:
                    self._requests += 1
                    hangs = self._requests % self._every == 0
                if hangs:
                    time.sleep(self._hang_s)
                    self._note(began_ns, reset=True)
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
                    return
                server.sendall(request)
                answer = _message(server)
                if answer is None:
                    return
                self._note(began_ns, reset=False)
                client.sendall(answer[0])

    def _note(self, began_ns: int, *, reset: bool) -> None:
        with self._lock:
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


@contextmanager
def hanging_proxy(server: Endpoint, *, every: int, hang_s: float) -> Iterator[HangingProxy]:
    proxy = HangingProxy(server, every, hang_s)
    try:
        yield proxy
    finally:
        proxy.close()
