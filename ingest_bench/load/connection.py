"""One keep-alive HTTP/1.1 connection on a non-blocking socket, as cheap as a bare loop of sendmsg and recv.

The socket is the plain C one: gevent's own adds a Python layer to each call. The hub is asked only after EAGAIN, and
no timer is made for a request: `Deadlines` looks at all connections a few times a second.
"""

from __future__ import annotations

import _socket
import contextlib
import errno
import os
import time
from typing import TYPE_CHECKING

from gevent.hub import Waiter, get_hub

from ingest_bench.load.framing import AnswerBuffer, BrokenAnswerError

if TYPE_CHECKING:
    from ingest_bench.model.target import Endpoint

READ, WRITE = 1, 2  # libev's EV_READ and EV_WRITE, as `hub.loop.io` takes them


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
        self._usual = b"", 0, 0, -1
        """The last answer's head, status, start and end: most answers begin with the same bytes."""
        self._answer = AnswerBuffer()
        self.buffer, self._view = self._answer.buffer, self._answer.view
        self.deadline_ns = 0
        """CLOCK_MONOTONIC; 0: nothing is being waited for."""
        self.sent_ns = 0
        """When the first byte of the last request was given to the kernel; 0: never."""
        self.first_byte_ns = 0
        """When the first byte of the last answer had come, those of interim answers aside; 0: never."""
        self.bytes_sent = 0
        """How much of the last request the kernel took."""

    def exchange(self, head: bytes, body: bytes | bytearray, timeout_ns: int) -> tuple[int, int, int]:
        """Status, start and end of the answer to one request; ConnectionBrokenError without one.

        The time is that of all of it, from connecting to the answer's last byte; `Deadlines` holds it.
        """
        now_ns = time.monotonic_ns()
        self.deadline_ns = now_ns + timeout_ns
        self.bytes_sent = self.first_byte_ns = 0
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
                self._answer.begin()
                return self._hung_up(sock, error)
            self.bytes_sent = sent_bytes
            self._traffic.bytes_written += sent_bytes
            if sent_bytes != len(head) + len(body):
                return self._send_rest(sock, head, body)
            # Asked before the first try: an answer is never there at once, and EAGAIN costs an exception.
            self._wait(self._readable)
            try:
                filled = sock.recv_into(self._view)
            except BlockingIOError:
                self._answer.begin()
                return self._receive()
            except OSError as error:
                raise self._lost(error) from None
            usual_head, status, start, end = self._usual
            if filled == end and self.buffer.startswith(usual_head):
                self.first_byte_ns = time.monotonic_ns()
                return status, start, end
            self._answer.begin()
            self._came(filled)
            return self._receive()
        finally:
            self.deadline_ns = 0
            if self._expired:
                # It may have come after the answer: nothing more can be sent.
                self.close()

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

    def _connect(self) -> _socket.socket:
        """An open connection; ConnectionBrokenError when the server does not take it."""
        sock = _socket.socket(self._family, _socket.SOCK_STREAM | _socket.SOCK_NONBLOCK | _socket.SOCK_CLOEXEC, 0)
        self._sock = sock
        self._expired = ""
        sock.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
        self._readable = self._hub.loop.io(sock.fileno(), READ)
        self._writable = self._hub.loop.io(sock.fileno(), WRITE)
        self._either = self._hub.loop.io(sock.fileno(), READ | WRITE)
        failed = sock.connect_ex(self._address)
        if failed == errno.EINPROGRESS:
            self._wait(self._writable)
            failed = sock.getsockopt(_socket.SOL_SOCKET, _socket.SO_ERROR)
        if self._expired or failed:
            raise self._broken(f"connect to {self._address[0]}:{self._address[1]}: {os.strerror(failed)}")
        self._traffic.local_ports.add(sock.getsockname()[1])
        self._traffic.connects += 1
        return sock

    def _send_rest(self, sock: _socket.socket, head: bytes, body: bytes | bytearray) -> tuple[int, int, int]:
        """The answer to a request of which the kernel did not take everything at once."""
        missing_head = head[self.bytes_sent :]
        view = memoryview(missing_head + body if missing_head else body)
        view = view[max(0, self.bytes_sent - len(head)) :]
        self._answer.begin()
        while view:
            if self._wait_for_either() & READ and self._is_answering(sock):
                return self._receive_early()
            try:
                sent_bytes = sock.send(view)
            except BlockingIOError:
                continue
            except OSError as error:
                return self._hung_up(sock, error)
            self._traffic.bytes_written += sent_bytes
            self.bytes_sent += sent_bytes
            view = view[sent_bytes:]
        return self._receive()

    def _wait_for_either(self) -> int:
        """Which of `READ` and `WRITE` can be done, as soon as one can."""
        waiter = Waiter(self._hub)
        self._either.start(waiter.switch, pass_events=True)
        try:
            return int(waiter.get())
        finally:
            self._either.stop()

    def _is_answering(self, sock: _socket.socket) -> bool:
        """Whether what can be read is more than interim answers."""
        try:
            got = sock.recv_into(self._answer.room())
        except BlockingIOError:
            return False
        except OSError as error:
            raise self._lost(error) from None
        self._came(got)
        return self._answer.head is not None

    def _receive_early(self) -> tuple[int, int, int]:
        """The answer of a server that did not take the whole request: no more can be sent on this connection."""
        answer = self._receive()
        self.close()
        if answer[0] < 400:
            raise self._nonsense(f"the server answered {answer[0]} before it had the whole request")
        return answer

    def _hung_up(self, sock: _socket.socket, error: OSError) -> tuple[int, int, int]:
        """The answer that a server left before it closed; the failure when there is none."""
        got = 0
        if not self._expired and error.errno in (errno.EPIPE, errno.ECONNRESET):
            with contextlib.suppress(OSError):
                got = sock.recv_into(self._answer.room())
        if not got:
            raise self._broken(f"{error.strerror} in the middle of the request")
        self._came(got)
        return self._receive_early()

    def _receive(self) -> tuple[int, int, int]:
        """The answer's status and where its body is, wherever it ends."""
        answer = self._answer
        while not answer.is_whole:
            self._came(self._read())
        head = answer.head
        assert head is not None  # noqa: S101 - the answer is whole
        self.buffer, self._view = answer.buffer, answer.view
        if head.close:
            self.close()
        elif not head.chunked:
            self._usual = bytes(self._view[: answer.start]), head.status, answer.start, answer.end
        return head.status, answer.start, answer.end

    def _read(self) -> int:
        """How many bytes came, after waiting for at least one; 0: the server has closed."""
        sock = self._sock
        assert sock is not None  # noqa: S101 - an answer is only read on an open connection
        while True:
            self._wait(self._readable)
            try:
                return sock.recv_into(self._answer.room())
            except BlockingIOError:
                continue
            except OSError as error:
                raise self._lost(error) from None

    def _came(self, size_bytes: int) -> None:
        """So many bytes have come; none: the server has closed."""
        answer = self._answer
        try:
            if size_bytes:
                self.first_byte_ns = self.first_byte_ns or time.monotonic_ns()
                answer.came(size_bytes)
            else:
                answer.closed()
        except BrokenAnswerError as error:
            raise self._nonsense(str(error)) from None
        if not size_bytes and not answer.is_whole:
            raise self._broken(f"the server closed the connection {self._moment}")
        if answer.head is None and not answer.filled:
            self.first_byte_ns = 0  # what came were interim answers

    @property
    def _moment(self) -> str:
        return "in the middle of its answer" if self.first_byte_ns else "before it answered"

    def _lost(self, error: OSError) -> ConnectionBrokenError:
        return self._broken(f"{error.strerror} {self._moment}")

    def _broken(self, said: str) -> ConnectionBrokenError:
        self.close()
        if self._expired:
            return ConnectionBrokenError(self._expired, "no answer in time")
        return ConnectionBrokenError("connection-error", said)

    def _nonsense(self, said: str) -> ConnectionBrokenError:
        self.close()
        return ConnectionBrokenError("broken-answer", said)
