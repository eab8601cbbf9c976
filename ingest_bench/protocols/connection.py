"""One kept connection, one exchange at a time, as cheap as a bare loop of sendmsg and recv.

Where an answer ends is what a protocol says (`Incoming`).
"""

from __future__ import annotations

import contextlib
import errno
import time
from typing import TYPE_CHECKING

from ingest_bench.protocols.channel import READ, Channel
from ingest_bench.protocols.verdict import BrokenResponseError, ConnectionBrokenError, Response

if TYPE_CHECKING:
    import _socket

    from ingest_bench.protocols.incoming import Incoming
    from ingest_bench.protocols.way import Upstream


class Connection(Channel):
    """One connection at a time; after each failure the next one goes to the next address of the server."""

    def __init__(self, way: Upstream, answer: Incoming) -> None:
        super().__init__(way)
        self._got: int | OSError | None = None
        """What became of the last attempt to send or to read; None: it would have had to wait."""
        self._answer = answer
        self._buffer = self._answer.buffer
        self._usual = _none_usual(self._buffer)
        """The last answer and its beginning: most answers begin with the same bytes."""
        self.sent_ns = 0
        """When the first byte of the last request was given to the kernel; 0: never."""
        self.written_ns = 0
        """When the kernel had taken the last byte of it; 0: never."""
        self.first_byte_ns = 0
        """When the first byte of the last answer had come, those of interim answers aside; 0: never."""
        self.done_ns = 0
        """When the last byte of the last answer had come."""
        self.bytes_sent = 0
        """How much of the last request the kernel took."""
        self._refused = 0, 0
        """Of the last request that was refused how many bytes the kernel took, and when its answer had come."""

    def note_refused(self) -> None:
        """The last request was: whether the server has read it shows when it answers the next one."""
        self._refused = self.bytes_sent, self.done_ns

    def close(self) -> None:
        """No connection; the next request makes a new one."""
        size_bytes, done_ns = self._refused
        if size_bytes and done_ns == self.done_ns:
            self._traffic.bytes_unread += size_bytes
        self._refused = 0, 0
        super().close()

    @property
    def is_open(self) -> bool:
        """Whether the next request goes on a connection that is there already."""
        return self._sock is not None

    def close_if_ended(self) -> None:
        """Close a connection that the server has ended since its last answer: a request on it would be lost."""
        sock = self._sock
        if sock is None or not self._readable_now(0):
            return
        try:
            # Bytes that were not asked for end it too, such as those of a 408.
            sock.recv_into(self._buffer)
        except BlockingIOError:
            return
        except OSError:
            """It was reset."""
        self.close()

    def exchange(self, head: bytes, body: bytes | bytearray, timeout_ns: int) -> Response:
        """The answer to one request; ConnectionBrokenError without one.

        The time is that of all of it, from connecting to the answer's last byte; `Deadlines` holds it.
        """
        try:
            if self._sock is None:
                before_ns = time.monotonic_ns()
                self.deadline_ns = before_ns + timeout_ns
                self.bytes_sent = self.first_byte_ns = self.sent_ns = self.written_ns = self.local_port = 0
                self._usual = _none_usual(self._buffer)
                self._sock = self._connect()
                timeout_ns -= time.monotonic_ns() - before_ns
            if self._begin(head, body, timeout_ns):
                # Asked before the first try: an answer is never there at once, and EAGAIN costs an exception.
                self._wait(self._readable)
                answer = self._usual_answer()
                if answer is not None:
                    return answer
            return self._rest(head, body)
        finally:
            self._end()

    def _begin(self, head: bytes, body: bytes | bytearray, timeout_ns: int) -> bool:
        """Whether the kernel took the whole request at once."""
        sock = self._sock
        assert sock is not None  # noqa: S101 - whoever calls has connected
        self.sent_ns = now_ns = time.monotonic_ns()
        self.deadline_ns = now_ns + timeout_ns
        self.bytes_sent = self.first_byte_ns = self.written_ns = 0
        self._got = None
        try:
            sent_bytes = sock.sendmsg((head, body))
        except BlockingIOError:
            return False
        except OSError as error:
            self._got = error
            return False
        self.bytes_sent = sent_bytes
        self._traffic.bytes_written += sent_bytes
        if sent_bytes != len(head) + len(body):
            return False
        self.written_ns = time.monotonic_ns()
        return True

    def _usual_answer(self) -> Response | None:
        """What one read has, where that is an answer as long as the last one, with the same head."""
        sock = self._sock
        assert sock is not None  # noqa: S101 - a request has begun
        try:
            got = sock.recv_into(self._buffer)
        except BlockingIOError:
            return None
        except OSError as error:
            self._got = error
            return None
        self._got = got
        usual_head, usual = self._usual
        if got == usual.end and self._buffer.startswith(usual_head):
            self.first_byte_ns = self.done_ns = time.monotonic_ns()
            return usual
        return None

    def finish(self, head: bytes, body: bytes | bytearray) -> Response:
        """The answer to a request that has begun, however far it came; ConnectionBrokenError without one."""
        try:
            return self._rest(head, body)
        finally:
            self._end()

    def _rest(self, head: bytes, body: bytes | bytearray) -> Response:
        sock, got = self._sock, self._got
        assert sock is not None  # noqa: S101 - it was open when the request began, and nobody else closes it
        if self.bytes_sent != len(head) + len(body):
            if isinstance(got, OSError):
                self._answer.reset()
                return self._hung_up(sock, got)
            return self._send_rest(sock, head, body)
        if isinstance(got, OSError):
            raise self._lost(got)
        self._answer.reset()
        if got is not None:
            self._came(got)
        return self._receive()

    def _end(self) -> None:
        self.deadline_ns = 0
        answer = self._answer
        if self._buffer is not answer.buffer:
            # The answer outgrew it, however it ended.
            self._buffer = answer.buffer
            if self._usual[1].raw is not answer.buffer:
                self._usual = _none_usual(answer.buffer)
        if self._expired:
            # It may have come after the answer: nothing more can be sent.
            self.close()

    def _send_rest(self, sock: _socket.socket, head: bytes, body: bytes | bytearray) -> Response:
        """The answer to a request of which the kernel did not take everything at once."""
        missing_head = head[self.bytes_sent :]
        view = memoryview(missing_head + body if missing_head else body)
        view = view[max(0, self.bytes_sent - len(head)) :]
        self._answer.reset()
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
        self.written_ns = time.monotonic_ns()
        return self._receive()

    def _is_answering(self, sock: _socket.socket) -> bool:
        """Whether what can be read is more than interim answers."""
        try:
            got = sock.recv_into(self._answer.free_space())
        except BlockingIOError:
            return False
        except OSError as error:
            raise self._lost(error) from None
        self._came(got)
        return self._answer.head is not None

    def _receive_early(self) -> Response:
        """The answer of a server that did not take the whole request: no more can be sent on this connection."""
        answer = self._receive()
        self.close()
        if answer.status < 400:
            raise self._nonsense(f"the server answered {answer.status} before it had the whole request")
        return answer

    def _hung_up(self, sock: _socket.socket, error: OSError) -> Response:
        """The answer that a server left before it closed; the failure when there is none."""
        got = 0
        if not self._expired and error.errno in (errno.EPIPE, errno.ECONNRESET):
            with contextlib.suppress(OSError):
                got = sock.recv_into(self._answer.free_space())
        if not got:
            raise self._broken(f"{error.strerror} in the middle of the request")
        self._came(got)
        return self._receive_early()

    def _receive(self) -> Response:
        """The answer, wherever it ends."""
        answer = self._answer
        while not answer.is_complete:
            self._came(self._read())
        self.done_ns = time.monotonic_ns()
        head = answer.head
        assert head is not None  # noqa: S101 - the answer is whole
        whole = Response(head.status, answer.buffer, answer.start, answer.end, head.retry_after_s)
        if head.close:
            self.close()
        elif answer.same_bytes is not None:
            self._usual = bytes(answer.view[: answer.same_bytes]), whole
        return whole

    def _read(self) -> int:
        """How many bytes came, after waiting for at least one; 0: the server has closed."""
        sock = self._sock
        assert sock is not None  # noqa: S101 - an answer is only read on an open connection
        while True:
            self._wait(self._readable)
            try:
                return sock.recv_into(self._answer.free_space())
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
                answer.feed(size_bytes)
            else:
                answer.feed_eof()
        except BrokenResponseError as error:
            raise self._nonsense(str(error)) from None
        if not size_bytes and not answer.is_complete:
            raise self._broken(f"the server closed the connection {self._moment}")
        if answer.head is None and not answer.filled:
            self.first_byte_ns = 0  # what came were interim answers

    @property
    def _moment(self) -> str:
        return "in the middle of its answer" if self.first_byte_ns else "before it answered"

    def _lost(self, error: OSError) -> ConnectionBrokenError:
        return self._broken(f"{error.strerror} {self._moment}")

    def _nonsense(self, said: str) -> ConnectionBrokenError:
        self.close()
        return ConnectionBrokenError("invalid-response", said)


def _none_usual(buffer: bytearray) -> tuple[bytes, Response]:
    """What no answer is like."""
    return b"", Response(0, buffer, 0, -1)
