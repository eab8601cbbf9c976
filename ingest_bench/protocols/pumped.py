"""A connection on which the event loop itself sends the next request, as long as each is answered as the one before."""

from __future__ import annotations

from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from gevent import getcurrent
from locust import User

from ingest_bench.errors import RunFailed
from ingest_bench.protocols.connection import Connection

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingest_bench.documents.body import Body
    from ingest_bench.protocols.incoming import Frames, Incoming
    from ingest_bench.protocols.verdict import Response
    from ingest_bench.protocols.way import Upstream


class PumpedConnection(Connection):
    """One connection at a time, over plain TCP."""

    def __init__(self, way: Upstream, answer: Incoming) -> None:
        super().__init__(way, answer)
        self._timeout_ns = 0
        self._follow: Callable[[Response, int], tuple[bytes, bytes | bytearray] | None]
        self._pumping: Any
        self._error: BaseException | None = None

    def pump(
        self,
        head: bytes,
        body: bytes | bytearray,
        timeout_ns: int,
        follow: Callable[[Response, int], tuple[bytes, bytes | bytearray] | None],
    ) -> None:
        """Sends this request, and after each answer the one that `follow` gives, until that gives none.

        `follow` gets an answer and when its last byte had come. It runs in the event loop: it never waits. What it
        raises is raised here. An answer that is not as the last one is left to the caller: this returns in the middle
        of its request, and `finish` has the answer.
        """
        self._timeout_ns, self._follow, self._pumping = timeout_ns, follow, getcurrent()
        if not self._begin(head, body, timeout_ns):
            return
        self._readable.start(self._came_usual)
        try:
            while self._hub.switch() is not self:
                """Somebody else switched here."""
        finally:
            self._readable.stop()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _came_usual(self) -> None:
        """Something can be read. The event loop calls it, so nothing may be raised here.

        It is `_usual_answer` and `_begin` in one: a call more costs 0.1 to 0.3 us, and there are 12 us in all.
        """
        sock = self._sock
        assert sock is not None  # noqa: S101 - a request is under way
        try:
            got = sock.recv_into(self._buffer)
        except BlockingIOError:
            return
        except OSError as error:
            self._got = error
            self._pumping.switch(self)
            return
        usual_head, usual = self._usual
        if got != usual.end or self._expired or not self._buffer.startswith(usual_head):
            self._got = got
            self._pumping.switch(self)
            return
        done_ns = monotonic_ns()
        follow = self._follow
        try:
            request = follow(usual, done_ns)
        except BaseException as error:  # noqa: BLE001 - `pump` raises it
            self._error, request = error, None
        if request is None:
            self._got = got
            self.first_byte_ns = self.done_ns = done_ns
            self._pumping.switch(self)
            return
        # As `_begin` left it: nothing was got, and no first byte has come.
        self.sent_ns = now_ns = monotonic_ns()
        self.deadline_ns = now_ns + self._timeout_ns
        try:
            sent_bytes = sock.sendmsg(request)
        except BlockingIOError:
            sent_bytes = 0
        except OSError as error:
            self._got, sent_bytes = error, 0
        self.bytes_sent = sent_bytes
        self._traffic.bytes_written += sent_bytes
        head, body = request
        if sent_bytes == len(head) + len(body):
            self.written_ns = monotonic_ns()
        else:
            self.written_ns = 0
            self._pumping.switch(self)


class FramedUser(User):
    """A Locust user that sends calls in frames and has the answers. The first exchange opens its connection."""

    abstract = True
    protocol = ""
    """As PROTOCOLS has it."""
    upstream: Upstream
    timeout_ns = 60 * 10**9
    pumps = True

    def on_start(self) -> None:
        """A connection of its own."""
        if self.upstream.is_tls:
            raise RunFailed(f"{self.protocol}: this protocol has no TLS here; the URL is http://")
        self.connection = PumpedConnection(self.upstream, self.frames())
        self.upstream.deadlines.watch(self.connection)

    def on_stop(self) -> None:
        """No connection."""
        self.connection.close()

    def frames(self) -> Frames:
        """What the answers go into."""
        raise NotImplementedError

    def exchange(self, body: Body) -> Response:
        """The answer to one request; ConnectionBrokenError without one. `connection` knows what was sent, and when."""
        raise NotImplementedError

    def request(self, body: Body) -> tuple[bytes, bytes | bytearray]:
        """What goes over a connection that is open."""
        return b"", body.data

    @property
    def can_pump(self) -> bool:
        """Whether `pump` sends: on an open connection."""
        self.connection.close_if_ended()
        return self.connection.is_open

    def pump(self, body: Body, follow: Callable[[Response, int], tuple[bytes, bytes | bytearray] | None]) -> None:
        """As `PumpedConnection.pump`, beginning with this body."""
        self.connection.pump(*self.request(body), self.timeout_ns, follow)

    def finish(self, body: Body) -> Response:
        """The answer to the request in whose middle `pump` came back; ConnectionBrokenError without one."""
        return self.connection.finish(*self.request(body))
