"""The usual requests of one user: each is begun by the answer to the one before, in the event loop itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from ingest_bench.load.recorder import OUTCOME_INDEX, ending, record_ending
from ingest_bench.protocols.verdict import OK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ingest_bench.documents.body import Body
    from ingest_bench.load.work import Work
    from ingest_bench.protocols.verdict import Answer, Verdict

_OK = OUTCOME_INDEX[OK]


class Pumping(Protocol):
    """A user whose protocol can `pump` (over HTTP: `http1.user.Poster`)."""

    work: Work
    number: int
    failures_in_a_row: int
    connection: Any
    judge: Callable[[Answer, Body, bool], Verdict]

    @property
    def can_pump(self) -> bool:
        """Whether `pump` sends now."""

    def request(self, body: Body) -> tuple[bytes, bytes | bytearray]:
        """What goes over the wire for that body."""

    def pump(self, body: Body, follow: Callable[[Answer, int], tuple[bytes, bytes | bytearray] | None]) -> None:
        """Sends that body, and after each answer the request that `follow` gives."""

    def finish(self, body: Body) -> Answer:
        """The answer to the request in whose middle `pump` came back; ConnectionBrokenError without one."""

    def send(self, planned_ns: int, body: Body, begun: Callable[[Body], Answer] | None = None) -> None:
        """One ticket to its end."""

    def count_repeated(self, body: Body, verdict: Verdict) -> None:
        """Acknowledged documents that the index has not more."""


class Pump:
    """Sends for one user, whose greenlet sleeps as long as each request is answered as the one before.

    To switch to the greenlet for each answer, with all that `Sender.send` has to look at, cost 20.6 us of CPU for each
    request of 4 kB, and 15.9 us from the event loop (the kernel's part in both is about 11 us; one interleaved run).
    What is not as usual is left to the greenlet in the middle of its request: `Sender.send` does the rest of it.
    """

    def __init__(self, user: Pumping, bodies: Iterator[Body]) -> None:
        self._user, self._bodies = user, bodies
        self._work, self._number, self._connection = user.work, user.number, user.connection
        self._judge, self._request = user.judge, user.request
        self._due, self._add = user.work.tickets.due, user.work.recorder.add
        self._planned_ns = 0
        self._body: Body | None = None
        """Of the request that is under way."""
        self._ending = b""
        """Of the record of a request with so many `_documents` and an answer with that `_status`."""
        self._documents = self._status = -1
        self.is_empty = False
        """Whether there are no more bodies."""

    def run(self, planned_ns: int, body: Body) -> None:
        """This ticket to its end, and those that can follow it at once."""
        user = self._user
        if not user.can_pump:
            user.send(planned_ns, body)
            return
        self._planned_ns, self._body = planned_ns, body
        self._documents = -1  # the connection may be another one
        finish: Callable[[Body], Answer] = user.finish
        try:
            user.pump(body, self._follow)
        except BaseException as error:
            # `Sender.send` raises it, once there is a sample of the request.
            if self._body is None:
                raise
            finish = _raising(error)
        if self._body is not None:
            user.send(self._planned_ns, self._body, finish)

    def _follow(self, answer: Answer, done_ns: int) -> tuple[bytes, bytes | bytearray] | None:
        """The next request, once this one is in the account; None when it did not end well, or there is none."""
        # As variables first: CPython 3.11 does not specialise the call of what an instance itself has.
        body, connection, judge, add, due = self._body, self._connection, self._judge, self._add, self._due
        assert body is not None  # noqa: S101 - this is the answer to it
        verdict = judge(answer, body, False)
        if verdict.outcome != OK:
            return None
        documents = body.documents
        if documents != self._documents or answer.status != self._status:
            self._end_alike(documents, answer.status)
        self._work.acknowledge(documents, done_ns)
        self._user.failures_in_a_row = 0
        if body.adds is not None:
            self._user.count_repeated(body, verdict)
        sent_ns, written_ns, sent_bytes = connection.sent_ns, connection.written_ns, connection.bytes_sent
        add(record_ending(self._planned_ns, sent_ns, written_ns, done_ns, done_ns, sent_bytes, self._ending))
        self._body = None
        connection.deadline_ns = 0
        planned_ns = due(done_ns)
        if not planned_ns:
            return None
        body = next(self._bodies, None)
        if body is None:
            self.is_empty = True
            return None
        self._planned_ns, self._body = planned_ns, body
        request = self._request
        return request(body)

    def _end_alike(self, documents: int, status: int) -> None:
        """The end of the record of a request whose documents were all acknowledged at once."""
        address, local_port = self._connection.used.index, self._connection.local_port
        self._documents, self._status = documents, status
        self._ending = ending(0, documents, documents, 0, 1, status, _OK, self._number, address, local_port)


def _raising(error: BaseException) -> Callable[[Body], NoReturn]:
    def finish(_body: Body) -> NoReturn:
        raise error

    return finish
