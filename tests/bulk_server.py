"""A small server on loopback that implements the bulk API, and misbehaves on demand."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, suppress

from ingest_bench.model.target import Endpoint

Reply = Callable[[bytes, int], bytes | None]
"""Returns the response for a request's body and number; None closes the connection."""


def answer(body: bytes, status: str = "200 OK", *, headers: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\n{headers}content-length: {len(body)}\r\n\r\n".encode() + body


def bulk_answer(statuses: list[int]) -> bytes:
    items = [
        {"index": {"status": status} | ({} if status < 300 else {"error": {"type": f"kind_{status}"}})}
        for status in statuses
    ]
    errors = any(status >= 300 for status in statuses)
    return json.dumps({"took": 1, "errors": errors, "items": items}, separators=(",", ":")).encode()


def documents_in(body: bytes) -> int:
    return body.count(b"\n") // 2


def accept_all(body: bytes, number: int) -> bytes:  # noqa: ARG001 - a Reply
    return answer(bulk_answer([201] * documents_in(body)))


class ThreadedServer:
    """TCP server on loopback with one thread per connection."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.connections = 0
        self.ports: set[int] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.address = Endpoint(*self._listener.getsockname())
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def serve(self, connection: socket.socket) -> None:
        """Serve a connection until its end."""
        raise NotImplementedError

    def close(self) -> None:
        """Stop responding; has no effect on a closed server."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self.lock:
            opened = list(self._open)
        for connection in opened:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in list(self._threads):
            thread.join(10)

    def _accept(self) -> None:
        while True:
            try:
                connection, peer = self._listener.accept()
            except OSError:
                return
            with self.lock:
                self.connections += 1
                self.ports.add(peer[1])
                self._open.append(connection)
            thread = threading.Thread(target=self.serve, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()


class BulkServer(ThreadedServer):
    """Bulk server that counts what it reads."""

    def __init__(
        self,
        reply: Reply = accept_all,
        *,
        stop_reading_after_bytes: int | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.reply = reply
        self.tls = tls
        self.stop_reading_after_bytes = stop_reading_after_bytes
        self.bytes_read = self.documents = self.requests = 0
        self.heads: list[bytes] = []
        self.bodies: list[bytes] = []
        self.keep_bodies = False
        super().__init__()

    def send(self, data: bytes) -> None:
        """Send bytes on the newest connection in addition to its replies."""
        self._open[-1].sendall(data)

    def end_connections(self) -> None:
        """Close all connections; new ones are accepted."""
        with self.lock:
            opened, self._open[:] = list(self._open), []
        for connection in opened:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError), self._secured(connection) as secured:
            while self._serve_one(secured):
                pass

    def _secured(self, plain: socket.socket) -> socket.socket:
        """Return the connection with TLS if configured."""
        if self.tls is None:
            return plain
        secured = self.tls.wrap_socket(plain, server_side=True)
        with self.lock:
            self._open[self._open.index(plain)] = secured
        return secured

    def _serve_one(self, connection: socket.socket) -> bool:
        data = b""
        while b"\r\n\r\n" not in data:
            got = self._read(connection)
            if not got:
                return False
            data += got
            if self.stop_reading_after_bytes is not None and len(data) >= self.stop_reading_after_bytes:
                early = self.reply(data, 0)
                if early is not None:
                    connection.sendall(early)
                return False
        head, _, body = data.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        parts = [body]
        missing = length - len(body)
        while missing:
            got = self._read(connection)
            if not got:
                return False
            parts.append(got)
            missing -= len(got)
        body = b"".join(parts)
        with self.lock:
            self.requests += 1
            number = self.requests
            self.documents += documents_in(body)
            self.heads.append(head)
            if self.keep_bodies:
                self.bodies.append(body)
        reply = self.reply(body, number)
        if reply is None:
            return False
        connection.sendall(reply)
        return True

    def _exactly(self, connection: socket.socket, size: int) -> bytes:
        data = b""
        while len(data) < size and (got := connection.recv(size - len(data))):
            with self.lock:
                self.bytes_read += len(got)
            data += got
        return data if len(data) == size else b""

    def _read(self, connection: socket.socket) -> bytes:
        got = connection.recv(65536)
        with self.lock:
            self.bytes_read += len(got)
        return got


def bulk_server(
    reply: Reply = accept_all, *, stop_reading_after_bytes: int | None = None, tls: ssl.SSLContext | None = None
) -> AbstractContextManager[BulkServer]:
    return closing(BulkServer(reply, stop_reading_after_bytes=stop_reading_after_bytes, tls=tls))
