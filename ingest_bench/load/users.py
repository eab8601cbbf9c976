"""Locust users: when they send, what they retry, and the sample of each arrival. The protocol brings the connection.

RetryingUser    send one arrival to its end: attempts, verdicts, one sample
IngestUser      send bodies of documents
ScheduledUser   send bodies when arrivals are due
QueryUser       send queries when arrivals are due
Pump            send the usual requests of a ScheduledUser from the event loop itself
"""

from __future__ import annotations

import functools
import math
import random
import time
from typing import TYPE_CHECKING, Any, NoReturn

import gevent
from locust import User, task
from locust.exception import StopUser

from ingest_bench.load.recorder import OUTCOME_INDEX, pack_sample, pack_sample_tail, pack_sample_with_tail
from ingest_bench.protocols.response import NOT_RETRIED, OK, PARTIAL, REJECTED, ConnectionBrokenError, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ingest_bench.documents.body import Body
    from ingest_bench.load.recorder import SampleSink
    from ingest_bench.load.worker_state import WorkerState
    from ingest_bench.protocols.response import Response
    from ingest_bench.protocols.upstream import Upstream

    Request = tuple[bytes, bytes | bytearray]

_OK, _PARTIAL, _CUT_OFF = OUTCOME_INDEX[OK], OUTCOME_INDEX[PARTIAL], OUTCOME_INDEX["cut-off"]
# Before a retry, as in Elasticsearch's own BulkProcessor (BackoffPolicy.exponentialBackoff: 50 ms, growing).
_RETRY_S, _MAX_RETRY_S = 0.05, 5.0


def backoff_s(first_s: float, failures: int, max_s: float) -> float:
    """Return the pause after that many failures in a row: doubled with each, up to *max_s*."""
    # Floats end at 2 ** 1024, and there may be more failures in a row than that.
    return min(math.ldexp(first_s, min(failures, 64) - 1), max_s)


class RetryingUser(User):
    """Sends arrivals, retries them, and records one sample of each. Stands before the user class of a protocol."""

    abstract = True
    state: WorkerState
    recorder: SampleSink
    numbers: Iterator[int]
    """Of the users of this class; each takes the next one when it starts."""
    judge: Callable[[Response, Body, bool], Verdict]
    """Of the protocol."""
    retries = 0
    aborts = False
    """True: the first arrival that fails ends the load."""
    is_open_loop = False
    """True: no pause after a failure, because it would be response time of the next arrivals."""
    upstream: Upstream
    working_outcomes = frozenset((OK,))
    """Outcomes that show a working server: no pause before the next arrival."""
    first_pause_s, max_pause_s = 0.01, 1.0
    """Pause before the next arrival after a failure, and after many in a row."""

    connection: Any
    """`UserConnection` of `protocols.upstream`. mypy takes the protocol's declaration for another attribute."""
    exchange: Callable[[Body], Response]

    def record_failure(self, verdict: Verdict) -> None:
        """Count an attempt that did not fully succeed."""
        raise NotImplementedError

    def on_start(self) -> None:
        """Open the connection and take the next user number."""
        super().on_start()
        self.failures_in_a_row = 0
        self.number = next(self.numbers)

    def send(self, scheduled_ns: int, body: Body, started: Callable[[Body], Response] | None = None) -> None:  # noqa: PLR0915 - one loop, and every call in it costs CPU per request
        """Send one arrival to its end: all attempts, one sample, and a pause if it failed.

        The sample is recorded however this ends, also if the load ends during a request or a pause. *started* finishes
        the first request if that is under way already.
        """
        exchange = started or self.exchange
        connection, state, documents = self.connection, self.state, body.documents
        sent_ns = done_ns = bytes_sent = unanswered = acked = failed = attempts = status = 0
        outcome, may_be_stored, previous = _CUT_OFF, False, None
        try:
            while True:
                attempts += 1
                try:
                    response = exchange(body)
                except BaseException as error:
                    status, done_ns = 0, time.monotonic_ns()
                    sent_ns = sent_ns or connection.sent_ns
                    bytes_sent += connection.bytes_sent
                    unanswered += connection.bytes_sent
                    if not isinstance(error, ConnectionBrokenError):
                        raise
                    verdict, retry_after_s = self._judge_broken(error, body, attempts, done_ns), 0
                else:
                    done_ns = connection.done_ns
                    sent_ns = sent_ns or connection.sent_ns
                    bytes_sent += connection.bytes_sent
                    status = response.status
                    verdict = self.judge(response, body, may_be_stored)
                    acked += verdict.acked
                    state.acknowledge(verdict.acked, done_ns)
                    if body.adds is not None:
                        self.count_repeated(body, verdict)
                    if verdict.outcome == OK:
                        outcome = _OK if acked == documents else _PARTIAL
                        self.failures_in_a_row = 0
                        break
                    unanswered += self._unread_bytes(status)
                    if verdict.rejected_items and (attempts > self.retries or state.is_over(done_ns)):
                        verdict = verdict.without_retries()
                    failed += 0 if may_be_stored else verdict.failed - verdict.in_doubt
                    retry_after_s = response.retry_after_s
                self.record_failure(verdict)
                if not verdict.rejected_items:
                    outcome = self._final_outcome(verdict.outcome, acked)
                    break
                may_be_stored, previous = may_be_stored or verdict.may_be_stored, verdict
                gevent.sleep(max(backoff_s(_RETRY_S, attempts, _MAX_RETRY_S), min(retry_after_s, _MAX_RETRY_S)))
                body, exchange = body.select_items(verdict.rejected_items, verdict.created_items), self.exchange
                state.documents_resent += body.documents if connection.bytes_sent else 0
        except BaseException:
            status, done_ns = 0, time.monotonic_ns()
            raise
        finally:
            self.recorder.add(
                pack_sample(
                    scheduled_ns,
                    sent_ns or done_ns,
                    connection.written_ns or done_ns,
                    connection.first_byte_ns or done_ns,
                    done_ns,
                    bytes_sent,
                    unanswered,
                    documents,
                    acked,
                    failed,
                    attempts,
                    status,
                    outcome,
                    self.number,
                    connection.last_address.index,
                    connection.local_port,
                )
            )
        if outcome != _OK and self.aborts:
            # The end of the load is not a failure of the request that it cuts off, but an earlier attempt is.
            self._abort(previous if outcome == _CUT_OFF else verdict, scheduled_ns, attempts, documents, acked)
        if self.failures_in_a_row and not self.is_open_loop:
            gevent.sleep(backoff_s(self.first_pause_s, self.failures_in_a_row, self.max_pause_s))

    def _unread_bytes(self, status: int) -> int:
        """Return how many bytes of the request with this response the server may not have read.

        0 for a refused request after which the server keeps the connection, as it has found the end of the request. The
        connection observes whether it keeps it (`note_refused`).
        """
        connection = self.connection
        if status >= 500 or (status >= 300 and not connection.is_open):
            return int(connection.bytes_sent)
        if status >= 300:
            connection.note_refused()
        return 0

    def _final_outcome(self, last_outcome: str, acked: int) -> int:
        """Return the outcome index of an arrival whose last attempt failed, by its documents in all attempts."""
        outcome = PARTIAL if last_outcome == REJECTED and acked else last_outcome
        self.failures_in_a_row = 0 if outcome in self.working_outcomes else self.failures_in_a_row + 1
        return OUTCOME_INDEX[outcome]

    def _judge_broken(self, error: ConnectionBrokenError, body: Body, attempts: int, now_ns: int) -> Verdict:
        """Judge a request without a response: retry it if nothing was sent, or if its documents cannot double."""
        message = str(error)
        if error.outcome != "connection-error" or attempts > self.retries or self.state.is_over(now_ns):
            return Verdict(outcome=error.outcome, message=message)
        may_be_stored = self.connection.bytes_sent > 0 if error.may_be_stored is None else error.may_be_stored
        if may_be_stored and not body.is_idempotent:
            return Verdict(outcome=error.outcome, message=f"{message} ({NOT_RETRIED})")
        all_items = tuple(range(body.documents))
        return Verdict(outcome=error.outcome, message=message, rejected_items=all_items, may_be_stored=may_be_stored)

    def _abort(self, failure: Verdict | None, scheduled_ns: int, attempts: int, documents: int, acked: int) -> None:
        """End the load if an attempt failed."""
        if failure is not None:
            attempt = f"user {self.number} to {self.connection.last_address.name}, attempt {attempts}"
            self.state.abort(scheduled_ns, attempt, _describe_failure(failure, documents, acked))

    def count_repeated(self, body: Body, verdict: Verdict) -> None:
        """Count acknowledged documents that did not add to the index: by the response, else by the body's own ids."""
        if verdict.acked:
            added = body.count_added(verdict.unacknowledged_items) if verdict.added is None else verdict.added
            self.state.documents_repeated += verdict.acked - added


def _describe_failure(verdict: Verdict, documents: int, acked: int) -> str:
    """Describe how an arrival failed, by its last attempt."""
    items = ", ".join(f"{count} x {kind}" for kind, count in (*verdict.failures.items(), *verdict.rejections.items()))
    missing = f", {documents - acked} of {documents} documents were not acknowledged" if documents else ""
    return f"{verdict.outcome}: {verdict.message or items or 'an earlier attempt failed'}{missing}"


class IngestUser(RetryingUser):
    """Sends bodies of documents, and retries the documents that were rejected."""

    abstract = True
    working_outcomes = frozenset((OK, PARTIAL))
    """A response about each document comes from a working server."""

    def record_failure(self, verdict: Verdict) -> None:
        """Count the failed items and the message."""
        self.state.record_failure(self.number, verdict)


class ScheduledUser(IngestUser):
    """Sends a body for each arrival."""

    abstract = True
    pumps: bool
    """Of the protocol."""
    think_time_ns = 0

    @staticmethod
    def start_delay_ns(_number: int, /) -> int:
        """Return how long after the start of the load the user with that number starts."""
        return 0

    @task
    def send_arrivals(self) -> None:
        """Send while there are arrivals and bodies. One task: Locust's own loop costs more CPU than a request."""
        state, think_time_ns = self.state, self.think_time_ns
        # Before the start: the first call takes 10 ms, which would be at the same moment in every worker.
        wait_for_next, bodies = state.arrivals.wait_for_next, state.bodies(self.number)
        state.arrivals.opened.wait()
        is_pumped = self.pumps and not think_time_ns
        pump = Pump(self, bodies) if is_pumped else None
        state.wait_until_after_start(self.start_delay_ns(self.number))
        while scheduled_ns := wait_for_next():
            body = next(bodies, None)
            if body is None:
                break
            if pump is None:
                self.send(scheduled_ns, body)
                if think_time_ns:
                    state.pause(think_time_ns)
            else:
                pump.run(scheduled_ns, body)
                if pump.is_empty:
                    break
        raise StopUser


class QueryUser(RetryingUser):
    """Sends queries; their samples go to a file of their own."""

    abstract = True
    queries: tuple[Body, ...] = ()
    weights: tuple[int, ...] = ()
    seed = 1
    # A server that refuses at once is not queried in a tight loop.
    first_pause_s = max_pause_s = 0.1

    def record_failure(self, verdict: Verdict) -> None:
        """Count the message."""
        self.state.count_error(verdict.message)

    @task
    def send_queries(self) -> None:
        """Send queries, drawn by their weights, while there are arrivals."""
        generator = random.Random(f"{self.seed}/{self.number}")  # noqa: S311 - the same queries in each run, no secret
        arrivals = self.state.query_arrivals
        arrivals.opened.wait()
        while scheduled_ns := arrivals.wait_for_next():
            (body,) = generator.choices(self.queries, self.weights)
            self.send(scheduled_ns, body)
        raise StopUser


class Pump:
    """Sends the requests of one user from the event loop, while each is fully acknowledged.

    A switch to the greenlet for each response, with everything that `RetryingUser.send` checks, cost 20.6 us of CPU per
    request of 4 kB; from the event loop it is 15.9 us (11 us of both is the kernel's; one interleaved run). Any other
    response is left to the greenlet in the middle of its request: `RetryingUser.send` finishes it.

    *user* is a `ScheduledUser` whose protocol can pump: a `protocols.users.Http1User`.
    """

    def __init__(self, user: Any, bodies: Iterator[Body]) -> None:
        self._user, self._bodies = user, bodies
        self._state, self._number, self._connection = user.state, user.number, user.connection
        self._judge, self._request = user.judge, user.request
        self._take_due, self._add = user.state.arrivals.take_due, user.recorder.add
        self._scheduled_ns = 0
        self._body: Body | None = None
        """Of the request under way."""
        self._tail = b""
        """Packed tail of a sample with these `_documents` and this `_status`."""
        self._documents = self._status = -1
        self.is_empty = False
        """True once there are no more bodies."""

    def run(self, scheduled_ns: int, body: Body) -> None:
        """Send this arrival to its end, and those that can follow at once."""
        user = self._user
        if not user.can_pump:
            user.send(scheduled_ns, body)
            return
        self._scheduled_ns, self._body = scheduled_ns, body
        self._documents = -1  # the connection may be a new one, so that the tail differs
        finish: Callable[[Body], Response] = user.finish
        try:
            user.pump(body, self._follow)
        except BaseException as error:
            # `RetryingUser.send` raises it again once the request has a sample.
            if self._body is None:
                raise
            finish = functools.partial(_raise, error)
        if self._body is not None:
            user.send(self._scheduled_ns, self._body, finish)

    def _follow(self, response: Response, done_ns: int) -> Request | None:
        """Record this response and return the next request; None if it is not OK, or if there is no next one."""
        # Local variables first: CPython 3.11 does not specialise calls of instance attributes.
        body, connection, judge, add, take_due = self._body, self._connection, self._judge, self._add, self._take_due
        assert body is not None  # noqa: S101 - this is the response to it
        verdict = judge(response, body, False)
        if verdict.outcome != OK:
            return None
        documents = body.documents
        if documents != self._documents or response.status != self._status:
            self._pack_tail(documents, response.status)
        self._state.acknowledge(documents, done_ns)
        self._user.failures_in_a_row = 0
        if body.adds is not None:
            self._user.count_repeated(body, verdict)
        sent_ns, written_ns, sent_bytes = connection.sent_ns, connection.written_ns, connection.bytes_sent
        add(pack_sample_with_tail(self._scheduled_ns, sent_ns, written_ns, done_ns, done_ns, sent_bytes, self._tail))
        self._body = None
        connection.deadline_ns = 0
        scheduled_ns = take_due(done_ns)
        if not scheduled_ns:
            return None
        body = next(self._bodies, None)
        if body is None:
            self.is_empty = True
            return None
        self._scheduled_ns, self._body = scheduled_ns, body
        request = self._request
        following: Request = request(body)
        return following

    def _pack_tail(self, documents: int, status: int) -> None:
        """Pack the tail of a sample whose documents were all acknowledged by the first attempt."""
        address, local_port = self._connection.last_address.index, self._connection.local_port
        self._documents, self._status = documents, status
        self._tail = pack_sample_tail(0, documents, documents, 0, 1, status, _OK, self._number, address, local_port)


def _raise(error: BaseException, _body: Body) -> NoReturn:
    raise error
