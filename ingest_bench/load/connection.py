"""One keep-alive HTTP/1.1 connection on a non-blocking socket, as cheap as a bare loop of sendmsg and recv.

The socket is the plain C one: gevent's own adds a Python layer to each call. The hub is asked only after EAGAIN, and
no timer is made for a request: `Deadlines` looks at all connections a few times a second.
"""

from __future__ import annotations

import _socket
import errno
import os
import time
from typing import TYPE_CHECKING

from gevent.hub import get_hub

from ingest_bench.load.answers import BrokenAnswerError, Head, dechunk, parse_head

if TYPE_CHECKING:
    from ingest_bench.model.target import Endpoint

_READ, _WRITE = 1, 2  # libev's EV_READ and EV_WRITE, as `hub.loop.io` takes them
_BUFFER_BYTES = 256 * 1024
_ANSWER_LIMIT_BYTES = 256 * 1024**2
_HEAD_LIMIT_BYTES = 64 * 1024
_KNOWN_HEADS = 256


class ConnectionBrokenError(Exception):
    """A request without an answer: `outcome` is one of OUTCOMES."""

    def __init__(self, outcome: str, said: str) -> None:
        super().__init__(said)
        self.outcome = outcome


class Traffic:
    """What all connections of a process did together."""

    def __init__(self) -> None:
        self.bytes_written = 0
        self.local_ports: set[int] = set()
        self.connects = 0


class Connection:
    """One connection at a time to one server; it is made again after each failure.

    After `exchange`, the answer's body is `buffer[start:end]`, until the next one.
    """

    def __init__(self, address: Endpoint, traffic: Traffic) -> None:
        self._address = (address.host, address.port)
        self._family = _socket.AF_INET6 if ":" in address.host else _socket.AF_INET
        self._traffic = traffic
        self._hub = get_hub()
        self._wait = self._hub.wait
        self._sock: _socket.socket | None = None
        self._expired = ""
        self._heads: dict[bytes, Head] = {}
        self._usual = b"", 0, 0, -1
        """The last answer's head, status, start and end: most answers begin with the same bytes."""
        self.buffer = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self.buffer)
        self.deadline_ns = 0
        """CLOCK_MONOTONIC; 0: nothing is being waited for."""
        self.sent_ns = 0
        """When the first byte of the last request was given to the kernel; 0: never."""
        self.bytes_sent = 0
        """How much of the last request the kernel took."""

    def exchange(self, head: bytes, body: bytes | bytearray, timeout_ns: int) -> tuple[int, int, int]:
        """Status, start and end of the answer to one request; ConnectionBrokenError without one.

        After `timeout_ns`, connecting included, `Deadlines` ends it.
        """
        now_ns = time.monotonic_ns()
        self.deadline_ns = now_ns + timeout_ns
        self.bytes_sent = 0
        try:
            sock = self._sock
            if sock is None:
                self.sent_ns = 0
                sock = self._connect()
                now_ns = time.monotonic_ns()
            self.sent_ns = now_ns
            try:
                sent_bytes = sock.sendmsg((head, body))
            except BlockingIOError:
                sent_bytes = 0
            except OSError as error:
                self._hung_up(error)
                return self._receive_early()
            self.bytes_sent = sent_bytes
            self._traffic.bytes_written += sent_bytes
            if sent_bytes != len(head) + len(body) and not self._send_rest(sock, head, body):
                return self._receive_early()
            # Asked before the first try: an answer is never there at once, and EAGAIN costs an exception.
            self._wait(self._readable)
            try:
                filled = sock.recv_into(self._view)
            except OSError:
                filled = 0
            usual_head, status, start, end = self._usual
            if filled == end and self.buffer.startswith(usual_head):
                return status, start, end
            return self._receive(filled)
        finally:
            self.deadline_ns = 0

    def _connect(self) -> _socket.socket:
        """An open connection; ConnectionBrokenError when the server does not take it."""
        sock = _socket.socket(self._family, _socket.SOCK_STREAM | _socket.SOCK_NONBLOCK | _socket.SOCK_CLOEXEC, 0)
        self._sock = sock
        self._expired = ""
        sock.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
        self._readable = self._hub.loop.io(sock.fileno(), _READ)
        self._writable = self._hub.loop.io(sock.fileno(), _WRITE)
        self._either = self._hub.loop.io(sock.fileno(), _READ | _WRITE)
        failed = sock.connect_ex(self._address)
        if failed == errno.EINPROGRESS:
            self._wait(self._writable)
            failed = sock.getsockopt(_socket.SOL_SOCKET, _socket.SO_ERROR)
        if self._expired or failed:
            raise self._broken(f"connect to {self._address[0]}:{self._address[1]}: {os.strerror(failed)}")
        self._traffic.local_ports.add(sock.getsockname()[1])
        self._traffic.connects += 1
        return sock

    def _receive_early(self) -> tuple[int, int, int]:
        """The answer of a server that did not take the whole request: no more can be sent on this connection."""
        answer = self._receive(0)
        self.close()
        if answer[0] < 400:
            raise self._nonsense(f"the server answered {answer[0]} before it had the whole request")
        return answer

    def expire(self, outcome: str) -> None:
        """Ends what the connection waits for, from another greenlet; its request fails with that outcome."""
        self._expired = outcome
        if self._sock is not None:
            try:
                self._sock.shutdown(_socket.SHUT_RDWR)
            except OSError:
                return

    def close(self) -> None:
        """No connection; the next request makes a new one."""
        sock, self._sock = self._sock, None
        if sock is not None:
            for watcher in (self._readable, self._writable, self._either):
                watcher.close()
            sock.close()

    def _send_rest(self, sock: _socket.socket, head: bytes, body: bytes | bytearray) -> bool:
        """Whether the kernel took the rest too; False when the server answered or hung up before."""
        missing_head = head[self.bytes_sent :]
        view = memoryview(missing_head + body if missing_head else body)
        view = view[max(0, self.bytes_sent - len(head)) :]
        traffic, wait, either = self._traffic, self._wait, self._either
        while True:
            try:
                sent_bytes = sock.send(view)
            except BlockingIOError:
                if self._has_answer(sock):
                    return False
                wait(either)
                continue
            except OSError as error:
                self._hung_up(error)
                return False
            traffic.bytes_written += sent_bytes
            self.bytes_sent += sent_bytes
            if sent_bytes == len(view):
                return True
            view = view[sent_bytes:]

    def _has_answer(self, sock: _socket.socket) -> bool:
        """Whether bytes of an answer, or the end of the connection, can be read already."""
        try:
            sock.recv(1, _socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True

    def _hung_up(self, error: OSError) -> None:
        """Nothing when an answer can still be read after the server closed; otherwise the failure is raised."""
        if not self._expired and error.errno in (errno.EPIPE, errno.ECONNRESET):
            try:
                if self._sock is not None and self._sock.recv(1, _socket.MSG_PEEK):
                    return
            except OSError:
                pass
        raise self._broken(f"{os.strerror(error.errno or 0)} in the middle of the request")

    def _receive(self, filled: int) -> tuple[int, int, int]:
        """The answer's status and where its body is, when the buffer holds so many bytes of it already."""
        while (head_end := self.buffer.find(b"\r\n\r\n", 0, filled)) < 0:
            if filled > _HEAD_LIMIT_BYTES:
                raise self._nonsense("broken HTTP: the answer's head has no end")
            filled = self._fill(filled)
        raw = bytes(self._view[:head_end])
        head = self._heads.get(raw) or self._learn(raw)
        start = head_end + 4
        if head.status < 200:
            raise self._nonsense(f"an interim answer ({head.status}) that nobody asked for")
        if head.length_bytes is None:
            return self._receive_long(head, start, filled)
        end = start + head.length_bytes
        if end > len(self.buffer):
            self._grow(end)
        while filled < end:
            filled = self._fill(filled)
        if filled > end:
            raise self._nonsense(f"broken HTTP: {filled - end} bytes more than the answer's content-length")
        if head.close:
            self.close()
        else:
            self._usual = bytes(self._view[:start]), head.status, start, end
        return head.status, start, end

    def _receive_long(self, head: Head, start: int, filled: int) -> tuple[int, int, int]:
        """An answer in chunks, or one that ends with the connection."""
        while not head.chunked:
            more = self._read(filled)
            if more == filled:
                self.close()
                return head.status, start, filled
            filled = more
        while True:
            try:
                found = dechunk(self.buffer, start, filled)
            except BrokenAnswerError as error:
                raise self._nonsense(str(error)) from None
            if found is not None:
                break
            filled = self._fill(filled)
        body, end = found
        if end != filled:
            raise self._nonsense(f"broken HTTP: {filled - end} bytes after the last chunk")
        self.buffer[: len(body)] = body
        if head.close:
            self.close()
        return head.status, 0, len(body)

    def _fill(self, filled: int) -> int:
        """How many bytes the buffer holds after at least one more."""
        more = self._read(filled)
        if more == filled:
            moment = "in the middle of its answer" if filled else "before it answered"
            raise self._broken(f"the server closed the connection {moment}")
        return more

    def _read(self, filled: int) -> int:
        """How many bytes the buffer holds now; as many as before: the server closed."""
        sock = self._sock
        assert sock is not None  # noqa: S101 - an answer is only read on an open connection
        if filled == len(self.buffer):
            self._grow(2 * filled)
        while True:
            self._wait(self._readable)
            try:
                return filled + sock.recv_into(self._view[filled:])
            except BlockingIOError:
                continue
            except OSError as error:
                moment = "in the middle of its answer" if filled else "before it answered"
                raise self._broken(f"{os.strerror(error.errno or 0)} {moment}") from None

    def _grow(self, size_bytes: int) -> None:
        if size_bytes > _ANSWER_LIMIT_BYTES:
            raise self._nonsense(f"an answer of {size_bytes} bytes: more than {_ANSWER_LIMIT_BYTES} are not read")
        grown = bytearray(size_bytes)
        grown[: len(self.buffer)] = self.buffer
        self.buffer, self._view = grown, memoryview(grown)

    def _learn(self, raw: bytes) -> Head:
        try:
            head = parse_head(raw)
        except BrokenAnswerError as error:
            raise self._nonsense(str(error)) from None
        if len(self._heads) >= _KNOWN_HEADS:
            self._heads.clear()
        self._heads[raw] = head
        return head

    def _broken(self, said: str) -> ConnectionBrokenError:
        self.close()
        if self._expired:
            return ConnectionBrokenError(self._expired, "no answer in time")
        return ConnectionBrokenError("connection-error", said)

    def _nonsense(self, said: str) -> ConnectionBrokenError:
        self.close()
        return ConnectionBrokenError("broken-answer", said)
