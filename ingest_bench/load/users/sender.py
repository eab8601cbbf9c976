"""What every user does with a ticket, whatever it sends: try it to its end, and leave one sample of it."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import gevent
from locust import User

from ingest_bench.load.answers import OK, PARTIAL, REJECTED, Verdict, told_added
from ingest_bench.load.connection import ConnectionBrokenError
from ingest_bench.load.recorder import OUTCOME_INDEX

if TYPE_CHECKING:
    from ingest_bench.documents.body import Body
    from ingest_bench.load.recorder import KeepsSamples
    from ingest_bench.load.work import Work

_OK, _PARTIAL, _CUT_OFF = OUTCOME_INDEX[OK], OUTCOME_INDEX[PARTIAL], OUTCOME_INDEX["cut-off"]
# After a 429: what Elasticsearch's own BulkProcessor waits (BackoffPolicy.exponentialBackoff: 50 ms, growing).
_RESEND_S = 0.05
_RESEND_LIMIT_S = 5.0
_KNOWN_HEADS = 4096


class Sender(User):
    """One sender on one keep-alive connection. What it sends and what answers mean, its subclasses say."""

    abstract = True
    work: Work
    recorder: KeepsSamples
    number: int
    head = b""
    """The request's head, up to and with "content-length: "."""
    retries = 0
    timeout_ns = 60 * 10**9

    @staticmethod
    def is_success(status: int, raw: bytearray, start: int, end: int, /) -> bool:
        """Whether the answer says at its beginning that all is well: the case that must be cheap."""
        raise NotImplementedError

    @staticmethod
    def judge(status: int, answer: bytes, documents: int, /) -> Verdict:
        """What any other answer says."""
        raise NotImplementedError

    def note(self, verdict: Verdict) -> None:
        """An attempt that was no plain success goes into the account."""
        raise NotImplementedError

    def pause_s(self) -> float:
        """How long is waited before the next ticket, after so many `failures_in_a_row`."""
        raise NotImplementedError

    def on_start(self) -> None:
        """A connection of its own; the first request opens it."""
        self._connection = self.work.connection()
        self._heads: dict[int, bytes] = {}
        self.failures_in_a_row = 0

    def on_stop(self) -> None:
        """No connection."""
        self._connection.close()

    def send(self, planned_ns: int, body: Body) -> None:
        """One ticket to its end: a request, what was rejected of it again, one sample of it all, a pause if it failed.

        The sample is kept however this ends, also when the load ends it in the middle of a request or of a pause.
        """
        connection, work, documents = self._connection, self.work, body.documents
        sent_ns = done_ns = bytes_sent = acked = failed = attempts = status = 0
        outcome = _CUT_OFF
        try:
            while True:
                data = body.data
                head = self._heads.get(len(data)) or self._head_for(len(data))
                try:
                    status, start, end = connection.exchange(head, data, self.timeout_ns)
                finally:
                    done_ns = time.monotonic_ns()
                    sent_ns = sent_ns or connection.sent_ns
                    bytes_sent += connection.bytes_sent
                    attempts += 1
                if self.is_success(status, connection.buffer, start, end):
                    acked += body.documents
                    outcome = _PARTIAL if failed else _OK
                    work.acked += body.documents
                    if body.adds is not None:
                        self._count_repeated(
                            body, told_added(connection.buffer, start, end, body.documents), (), body.documents
                        )
                    self.failures_in_a_row = 0
                    break
                verdict = self.judge(status, bytes(memoryview(connection.buffer)[start:end]), body.documents)
                if verdict.rejected and (attempts > self.retries or work.is_over(done_ns)):
                    verdict = verdict.final()
                acked += verdict.acked
                failed += verdict.failed
                work.acked += verdict.acked
                self._count_repeated(body, verdict.added, verdict.lost, verdict.acked)
                self.note(verdict)
                if not verdict.rejected:
                    outcome = OUTCOME_INDEX[_ended(verdict.outcome, acked, failed)]
                    break
                gevent.sleep(pause_s(_RESEND_S, attempts, _RESEND_LIMIT_S))
                body = body.only(verdict.rejected)
                work.documents_resent += body.documents
        except ConnectionBrokenError as error:
            status, outcome = 0, OUTCOME_INDEX[error.outcome]
            self.note(Verdict(outcome=error.outcome, said=str(error)))
        except BaseException:
            status, done_ns = 0, time.monotonic_ns()
            raise
        finally:
            self.recorder.add(
                planned_ns,
                sent_ns or done_ns,
                done_ns,
                bytes_sent,
                documents,
                acked,
                failed,
                attempts,
                status,
                outcome,
                self.number,
            )
        if self.failures_in_a_row:
            gevent.sleep(self.pause_s())

    def _count_repeated(self, body: Body, added: int | None, lost: tuple[int, ...], acked: int) -> None:
        """Acknowledged documents that the index has not more: by what the server said, else by the body's own ids."""
        if acked and body.adds is not None:
            self.work.documents_repeated += acked - (body.added(lost) if added is None else added)

    def _head_for(self, size_bytes: int) -> bytes:
        if len(self._heads) >= _KNOWN_HEADS:
            self._heads.clear()
        self._heads[size_bytes] = self.head + b"%d\r\n\r\n" % size_bytes
        return self._heads[size_bytes]


def _ended(last: str, acked: int, failed: int) -> str:
    """The outcome of a ticket whose last attempt had that one, from what became of its documents in all attempts."""
    return PARTIAL if (last == OK and failed) or (last == REJECTED and acked) else last


def pause_s(first_s: float, number: int, limit_s: float) -> float:
    """How long is waited after the n-th failure in a row: doubled with each one more, up to the limit."""
    # No float is above 2 ** 1024, and a server that is gone is asked more often than that.
    return min(math.ldexp(first_s, min(number, 64) - 1), limit_s)
