"""A Locust user that speaks the bulk API of Elasticsearch and OpenSearch."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import gevent
from locust import User, task
from locust.exception import StopUser

from ingest_bench.load.answers import all_acked, judge
from ingest_bench.load.connection import ConnectionBrokenError
from ingest_bench.load.recorder import OUTCOME_INDEX

if TYPE_CHECKING:
    from ingest_bench.load.answers import Verdict
    from ingest_bench.load.supply import Body
    from ingest_bench.load.work import Work

_OK = OUTCOME_INDEX["ok"]
_BACKOFF_S = 0.01
_BACKOFF_LIMIT_S = 1.0


class BulkUser(User):
    """One sender on one keep-alive connection: takes a ticket, sends a body, reads the answer, keeps the sample."""

    abstract = True
    work: Work
    head = b""
    """The request's head, up to and with "content-length: "."""
    users = 1
    """How many there are, in all workers."""
    timeout_ns = 60 * 10**9

    def on_start(self) -> None:
        """A connection of its own; the first request opens it."""
        self._connection = self.work.connection()
        self._failures_in_a_row = 0
        self.number = next(self.work.numbers)

    @task
    def send_until_the_end(self) -> None:
        """Requests as long as there are tickets and bodies. One task: Locust's own loop costs more than a request."""
        self.work.gate.wait()
        take, bodies = self.work.tickets.take, self.work.bodies.cycle(self.number, self.users)
        while planned_ns := take():
            body = next(bodies, None)
            if body is None:
                break
            self.send(planned_ns, body)
            if self._failures_in_a_row:
                gevent.sleep(min(_BACKOFF_S * 2 ** (self._failures_in_a_row - 1), _BACKOFF_LIMIT_S))
        raise StopUser

    def send(self, planned_ns: int, body: Body) -> None:
        """One request and its sample."""
        connection, work = self._connection, self.work
        data, documents = body.data, body.documents
        work.requests += 1
        work.documents_offered += documents
        connection.deadline_ns = time.monotonic_ns() + self.timeout_ns
        try:
            status, start, end = connection.exchange(self.head + b"%d\r\n\r\n" % len(data), data)
        except ConnectionBrokenError as error:
            self._unanswered(planned_ns, documents, error)
            return
        finally:
            done_ns = time.monotonic_ns()
            connection.deadline_ns = 0
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
            self._failures_in_a_row = 0
            return
        verdict = judge(status, bytes(memoryview(connection.buffer)[start:end]), documents)
        self._answered(planned_ns, done_ns, documents, status, verdict)

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
