"""A Locust user that speaks the bulk API of Elasticsearch and OpenSearch."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import gevent
from locust import User, task
from locust.exception import StopUser

from ingest_bench.load.answers import all_acked, judge, told_added
from ingest_bench.load.connection import ConnectionBrokenError
from ingest_bench.load.recorder import OUTCOME_INDEX

if TYPE_CHECKING:
    from ingest_bench.documents.body import Body
    from ingest_bench.load.answers import Verdict
    from ingest_bench.load.work import Work

_OK = OUTCOME_INDEX["ok"]
# After a failed request, doubled with each one more in a row.
_BACKOFF_S = 0.01
_BACKOFF_LIMIT_S = 1.0
# After a 429: what Elasticsearch's own BulkProcessor waits (BackoffPolicy.exponentialBackoff: 50 ms, growing).
_RESEND_S = 0.05
_RESEND_LIMIT_S = 5.0
_KNOWN_HEADS = 4096


class BulkUser(User):
    """One sender on one keep-alive connection: sends a body, reads the answer, keeps the sample."""

    abstract = True
    work: Work
    head = b""
    """The request's head, up to and with "content-length: "."""
    retries = 0
    timeout_ns = 60 * 10**9

    def on_start(self) -> None:
        """A connection of its own; the first request opens it."""
        self._connection = self.work.connection()
        self._failures_in_a_row = 0
        self._heads: dict[int, bytes] = {}
        self.number = next(self.work.numbers)

    def _head_for(self, size_bytes: int) -> bytes:
        if len(self._heads) >= _KNOWN_HEADS:
            self._heads.clear()
        self._heads[size_bytes] = self.head + b"%d\r\n\r\n" % size_bytes
        return self._heads[size_bytes]

    def send_all(self, planned_ns: int, body: Body) -> None:
        """One bulk; what was rejected of it again; and a pause after a failure."""
        rejected = self.send(planned_ns, body, self.retries)
        if rejected:
            self._resend(planned_ns, body, rejected)
        if self._failures_in_a_row:
            gevent.sleep(min(_BACKOFF_S * 2 ** (self._failures_in_a_row - 1), _BACKOFF_LIMIT_S))

    def send(self, planned_ns: int, body: Body, retries: int) -> tuple[int, ...]:
        """One request and its sample. Comes back with the items that are to be sent again: none without retries."""
        connection, work = self._connection, self.work
        data, documents = body.data, body.documents
        work.requests += 1
        work.documents_offered += documents
        head = self._heads.get(len(data)) or self._head_for(len(data))
        try:
            status, start, end = connection.exchange(head, data, self.timeout_ns)
        except ConnectionBrokenError as error:
            self._unanswered(planned_ns, documents, error)
            return ()
        done_ns = time.monotonic_ns()
        if all_acked(status, connection.buffer, start, end):
            work.recorder.add(
                planned_ns,
                connection.sent_ns,
                done_ns,
                connection.bytes_sent,
                documents,
                documents,
                0,
                status,
                _OK,
                self.number,
            )
            work.succeeded(documents)
            if body.adds is not None:
                added = told_added(connection.buffer, start, end, documents)
                work.documents_repeated += documents - (body.added() if added is None else added)
            self._failures_in_a_row = 0
            return ()
        verdict = judge(status, bytes(memoryview(connection.buffer)[start:end]), documents)
        if verdict.acked and body.adds is not None:
            added = body.added(verdict.lost) if verdict.added is None else verdict.added
            work.documents_repeated += verdict.acked - added
        if verdict.rejected and (not retries or work.stopped or done_ns >= work.end_ns):
            verdict = verdict.final()
        self._answered(planned_ns, done_ns, documents, status, verdict)
        return verdict.rejected

    def _resend(self, planned_ns: int, body: Body, rejected: tuple[int, ...]) -> None:
        """What was rejected is sent again, until it is not or the retries are used up. It is still the same ticket."""
        for retries in range(self.retries - 1, -1, -1):
            gevent.sleep(min(_RESEND_S * 2 ** (self.retries - 1 - retries), _RESEND_LIMIT_S))
            body = body.only(rejected)
            self.work.documents_resent += body.documents
            rejected = self.send(planned_ns, body, retries)
            if not rejected:
                return

    def _answered(self, planned_ns: int, done_ns: int, documents: int, status: int, verdict: Verdict) -> None:
        connection, work = self._connection, self.work
        work.recorder.add(
            planned_ns,
            connection.sent_ns,
            done_ns,
            connection.bytes_sent,
            documents,
            verdict.acked,
            verdict.failed,
            status,
            OUTCOME_INDEX[verdict.outcome],
            self.number,
        )
        if verdict.acked:
            work.succeeded(verdict.acked)
        if verdict.outcome in ("ok", "partial"):
            self._failures_in_a_row = 0
        else:
            self._failures_in_a_row += 1
        if verdict.outcome != "ok":
            work.failed(verdict.said, verdict.failures)

    def _unanswered(self, planned_ns: int, documents: int, error: ConnectionBrokenError) -> None:
        connection, work = self._connection, self.work
        now_ns = time.monotonic_ns()
        work.recorder.add(
            planned_ns,
            connection.sent_ns or now_ns,
            now_ns,
            connection.bytes_sent,
            documents,
            0,
            0,
            0,
            OUTCOME_INDEX[error.outcome],
            self.number,
        )
        self._failures_in_a_row += 1
        work.failed(str(error), {})


class TicketUser(BulkUser):
    """A bulk user that sends when there is a ticket."""

    abstract = True

    @task
    def send_until_the_end(self) -> None:
        """Requests as long as there are tickets and bodies. One task: Locust's own loop costs more than a request."""
        self.work.gate.wait()
        take, bodies = self.work.tickets.take, self.work.source.for_user(self.number)
        while planned_ns := take():
            body = next(bodies, None)
            if body is None:
                break
            self.send_all(planned_ns, body)
        raise StopUser
