"""What every user does with a ticket, whatever it sends: try it to its end, and leave one sample of it."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

import gevent
from locust import User

from ingest_bench.load.recorder import OUTCOME_INDEX, record
from ingest_bench.protocols.verdict import NOT_AGAIN, OK, PARTIAL, REJECTED, ConnectionBrokenError, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingest_bench.documents.body import Body
    from ingest_bench.load.recorder import KeepsSamples
    from ingest_bench.load.work import Work
    from ingest_bench.protocols.verdict import Answer
    from ingest_bench.protocols.way import Way

_OK, _PARTIAL, _CUT_OFF = OUTCOME_INDEX[OK], OUTCOME_INDEX[PARTIAL], OUTCOME_INDEX["cut-off"]
# Before it is tried again, as Elasticsearch's own BulkProcessor (BackoffPolicy.exponentialBackoff: 50 ms, growing).
_RESEND_S = 0.05
_RESEND_LIMIT_S = 5.0


class Sender(User):
    """One sender. It stands before the user of a protocol, which brings the connection and the exchange on it."""

    abstract = True
    work: Work
    recorder: KeepsSamples
    number: int
    judge: Callable[[Answer, Body, bool], Verdict]
    """Of the protocol."""
    retries = 0
    aborts = False
    """Whether the first ticket that fails ends the load."""
    is_paced = False
    """Whether a clock says when requests are due. A pause after a failure would be response time of the next ones."""
    way: Way
    fine = frozenset((OK,))
    """The outcomes after which the next ticket does not wait."""

    connection: Any
    """As `protocols.Connected`: mypy takes two declarations of an attribute for two attributes."""
    exchange: Callable[[Body], Answer]

    def note(self, verdict: Verdict) -> None:
        """An attempt that was no plain success goes into the account."""
        raise NotImplementedError

    def pause_s(self) -> float:
        """How long is waited before the next ticket, after so many `failures_in_a_row`."""
        raise NotImplementedError

    def on_start(self) -> None:
        """A connection of its own."""
        super().on_start()
        self.failures_in_a_row = 0

    def send(self, planned_ns: int, body: Body, begun: Callable[[Body], Answer] | None = None) -> None:  # noqa: PLR0915 - one loop, and every call in it costs
        """One ticket to its end: a request, what may be sent again of it, one sample of it all, a pause if it failed.

        The sample is kept however this ends, also when the load ends it in the middle of a request or of a pause.
        `begun` ends the first request, when that has begun already.
        """
        exchange = begun or self.exchange
        connection, work, documents = self.connection, self.work, body.documents
        sent_ns = done_ns = bytes_sent = unanswered = acked = failed = attempts = status = 0
        outcome, is_unsure, before = _CUT_OFF, False, None
        try:
            while True:
                attempts += 1
                try:
                    answer = exchange(body)
                except BaseException as error:
                    status, done_ns = 0, time.monotonic_ns()
                    sent_ns = sent_ns or connection.sent_ns
                    bytes_sent += connection.bytes_sent
                    unanswered += connection.bytes_sent
                    if not isinstance(error, ConnectionBrokenError):
                        raise
                    verdict, later_s = self._broken(error, body, connection.bytes_sent, attempts, done_ns), 0
                else:
                    done_ns = connection.done_ns
                    sent_ns = sent_ns or connection.sent_ns
                    bytes_sent += connection.bytes_sent
                    status = answer.status
                    verdict = self.judge(answer, body, is_unsure)
                    acked += verdict.acked
                    work.acknowledge(verdict.acked, done_ns)
                    if body.adds is not None:
                        self.count_repeated(body, verdict)
                    if verdict.outcome == OK:
                        outcome = _OK if acked == documents else _PARTIAL
                        self.failures_in_a_row = 0
                        break
                    unanswered += self._unread(status)
                    if verdict.rejected and (attempts > self.retries or work.is_over(done_ns)):
                        verdict = verdict.final()
                    failed += 0 if is_unsure else verdict.failed - verdict.in_doubt
                    later_s = answer.retry_after_s
                self.note(verdict)
                if not verdict.rejected:
                    outcome = self._ended(verdict.outcome, acked)
                    break
                is_unsure, before = is_unsure or verdict.is_unsure, verdict
                gevent.sleep(max(pause_s(_RESEND_S, attempts, _RESEND_LIMIT_S), min(later_s, _RESEND_LIMIT_S)))
                body, exchange = body.only(verdict.rejected, verdict.made), self.exchange
                work.documents_resent += body.documents if connection.bytes_sent else 0
        except BaseException:
            status, done_ns = 0, time.monotonic_ns()
            raise
        finally:
            self.recorder.add(
                record(
                    planned_ns,
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
                    connection.used.index,
                    connection.local_port,
                )
            )
        if outcome != _OK and self.aborts:
            # The end of the load is no failure of the request that it cuts off, but an attempt before that one is.
            self._abort(before if outcome == _CUT_OFF else verdict, planned_ns, attempts, documents, acked)
        if self.failures_in_a_row and not self.is_paced:
            gevent.sleep(self.pause_s())

    def _unread(self, status: int) -> int:
        """How many bytes of the request that had this answer the server may not have read, though the kernel took them.

        None of one that it refused and after which it goes on: it has found the end of it. Whether it does the
        connection sees (`Connection.refused`).
        """
        connection = self.connection
        if status >= 500 or (status >= 300 and not connection.is_open):
            return int(connection.bytes_sent)
        if status >= 300:
            connection.refused()
        return 0

    def _ended(self, last: str, acked: int) -> int:
        """The outcome of a ticket that failed, whose last attempt had that one: by its documents in all attempts."""
        ended = PARTIAL if last == REJECTED and acked else last
        self.failures_in_a_row = 0 if ended in self.fine else self.failures_in_a_row + 1
        return OUTCOME_INDEX[ended]

    def _broken(self, error: ConnectionBrokenError, body: Body, bytes_sent: int, attempts: int, now_ns: int) -> Verdict:
        """What a request without an answer means: sent again where nothing of it, or all of it twice, does no harm."""
        said = str(error)
        if error.outcome != "connection-error" or attempts > self.retries or self.work.is_over(now_ns):
            return Verdict(outcome=error.outcome, said=said)
        is_unsure = bytes_sent > 0 or error.is_unsure
        if is_unsure and not body.is_repeatable:
            return Verdict(outcome=error.outcome, said=f"{said} ({NOT_AGAIN})")
        everything = tuple(range(body.documents))
        return Verdict(outcome=error.outcome, said=said, rejected=everything, is_unsure=is_unsure)

    def _abort(self, failure: Verdict | None, planned_ns: int, attempts: int, documents: int, acked: int) -> None:
        """The load ends, if a ticket has failed."""
        if failure is not None:
            which = f"user {self.number} to {self.connection.used.name}, attempt {attempts}"
            self.work.abort(planned_ns, which, _told(failure, documents, acked))

    def count_repeated(self, body: Body, verdict: Verdict) -> None:
        """Acknowledged documents that the index has not more: by what the server said, else by the body's own ids."""
        if verdict.acked:
            added = body.added(verdict.lost) if verdict.added is None else verdict.added
            self.work.documents_repeated += verdict.acked - added


def _told(verdict: Verdict, documents: int, acked: int) -> str:
    """How a ticket ended that failed: by its last attempt."""
    items = ", ".join(f"{count} x {kind}" for kind, count in (*verdict.failures.items(), *verdict.rejections.items()))
    missing = f", {documents - acked} of {documents} documents were not acknowledged" if documents else ""
    return f"{verdict.outcome}: {verdict.said or items or 'an attempt before the last one'}{missing}"


def pause_s(first_s: float, number: int, limit_s: float) -> float:
    """How long is waited after the n-th failure in a row: doubled with each one more, up to the limit."""
    # No float is above 2 ** 1024, and a server that is gone is asked more often than that.
    return min(math.ldexp(first_s, min(number, 64) - 1), limit_s)
