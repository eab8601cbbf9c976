"""State that all users of one worker process share: arrivals, bodies, and counts."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Iterator

from gevent.event import Event

from ingest_bench.documents.body import Body
from ingest_bench.documents.source import Source
from ingest_bench.errors import RunFailed, describe_error, describe_error_for_remote
from ingest_bench.load.loops import ArrivalQueue, ClosedLoop
from ingest_bench.model.load import RateUnit
from ingest_bench.model.samples import describe_item_failures
from ingest_bench.protocols.response import Verdict
from ingest_bench.units import format_time

# A server that names each failure after its document must not fill our memory and the report.
_MAX_ERROR_KINDS = 50
_MAX_ITEM_FAILURE_KINDS = 1000
_MAX_KIND_LENGTH = 200
_OTHER_KINDS = "other kinds"
# A load without one success ends after this time, once each user that has started has failed.
_HOPELESS_NS = 2 * 10**9
_NEVER_NS = 2**63
# A load that ends after a number of documents is given up if all requests failed for this long. A server that recovers
# from a fault needs less.
_MAX_FAILING_NS = 300 * 10**9


class WorkerState:
    """The shared state of one worker's users, of which *users* send bulks."""

    def __init__(self, *, source: Source, users: int) -> None:
        self.arrivals: ArrivalQueue = ClosedLoop()
        self.query_arrivals: ArrivalQueue = ClosedLoop()
        self.source = source
        self.acknowledged = 0
        """Documents."""
        self.documents_reached_ns = 0
        """When the number of documents that ends the measurement was acknowledged; 0: it was not, or none is set."""
        self.documents_resent = 0
        self.documents_repeated = 0
        self.item_failures: Counter[str] = Counter()
        self.item_reasons: dict[str, str] = {}
        """The server's reason for the first failed item of a kind."""
        self.failure: RunFailed | None = None
        """The first reason to give the load up; None: there is none."""
        self.stopped = False
        self._closed = Event()
        """Set when there are no more arrivals: wakes users that pause."""
        self.start_ns = 0
        """Start of the load, once known."""
        self.end_ns = 0
        """End of the measurement, once known."""
        self._users = users
        self._errors: Counter[str] = Counter()
        self._count_documents_from_ns = _NEVER_NS
        self._documents_left = 0
        """Documents until the measurement ends."""
        self._failing_since_ns = 0
        """First failure after the last acknowledgement; 0: none."""
        self._unit: RateUnit = "requests"
        self._bodies_taken = 0
        self._units_taken = 0
        self._failed_requests = 0
        self._failed_users: set[int] = set()
        self._users_not_started = 0
        self._first_failure_ns = 0

    def sizes(self, unit: RateUnit, expected: float) -> Iterator[float]:
        """Yield the size of the next body in *unit*: the mean of the bodies so far, at first *expected*."""
        self._unit = unit
        return itertools.repeat(1.0) if unit == "requests" else self._mean_sizes(expected)

    def bodies(self, user: int) -> Iterator[Body]:
        """Yield the bodies of one user, counted if `sizes` needs it."""
        bodies = self.source.bodies_of(user)
        return bodies if self._unit == "requests" else map(self._count_body, bodies)

    def _mean_sizes(self, expected: float) -> Iterator[float]:
        while True:
            yield max(1.0, self._units_taken / self._bodies_taken) if self._bodies_taken else expected

    def _count_body(self, body: Body) -> Body:
        self._bodies_taken += 1
        self._units_taken += body.documents if self._unit == "documents" else len(body.data)
        return body

    def is_over(self, now_ns: int) -> bool:
        """Return True if no new request may start."""
        return self.stopped or now_ns >= self.end_ns

    def record_failure(self, user: int, verdict: Verdict) -> None:
        """Count a failed request of *user*, or its failed items, and give up a load that is hopeless."""
        for kind, count in verdict.failures.items():
            name = kind[:_MAX_KIND_LENGTH]
            is_counted = name in self.item_failures or len(self.item_failures) < _MAX_ITEM_FAILURE_KINDS
            self.item_failures[name if is_counted else _OTHER_KINDS] += count
            if (reason := verdict.reasons.get(kind)) and len(self.item_reasons) < _MAX_ERROR_KINDS:
                self.item_reasons.setdefault(name, reason)
        self.count_error(verdict.message)
        now_ns = time.monotonic_ns()
        self._failing_since_ns = self._failing_since_ns or now_ns
        if self.acknowledged:
            if self._documents_left > 0 and now_ns - self._failing_since_ns > _MAX_FAILING_NS:
                self._give_up(
                    f"no document was acknowledged for {format_time(_MAX_FAILING_NS)}, and "
                    f"{self._documents_left:,} documents are missing until this load worker ends"
                )
            return
        self._failed_requests += 1
        self._failed_users.add(user)
        self._first_failure_ns = self._first_failure_ns or now_ns
        # A user that still waits for its first response may get a better one.
        started = self._users - self._users_not_started
        if len(self._failed_users) >= started and now_ns - self._first_failure_ns > _HOPELESS_NS:
            self.give_up()

    @property
    def has_failed(self) -> bool:
        """True if requests were sent and not one document was acknowledged."""
        return not self.acknowledged and self._failed_requests > 0

    def count_error(self, message: str) -> None:
        """Count an error for the report."""
        if message and (message in self._errors or len(self._errors) < _MAX_ERROR_KINDS):
            self._errors[message] += 1

    def give_up(self) -> None:
        """End the load because no request succeeded."""
        self._give_up(f"every request failed ({self._failed_requests})")

    def _give_up(self, reason: str) -> None:
        items = describe_item_failures(self.item_failures, self.item_reasons)
        self._end(RunFailed(f"{reason}: {'; '.join(self.errors()[:3] or items)}"))

    def abort(self, scheduled_ns: int, attempt: str, failure: str) -> None:
        """End the load because a request failed and `on_error` is "abort"."""
        due = f"due {(scheduled_ns - self.start_ns) / 1e9:.3f} s after the start of the load"
        self._end(RunFailed(f'a request failed, and on_error is "abort": {attempt}, {due}: {failure}'))

    def fail(self, error: BaseException) -> None:
        """End the load because of an exception that is not a response: the run has failed with its text."""
        self._end(RunFailed(describe_error(error), remote_message=describe_error_for_remote(error)))

    def _end(self, failure: RunFailed) -> None:
        self.failure = self.failure or failure
        self.stop()

    def end_after(self, documents: int, start_ns: int) -> None:
        """Close arrivals once *documents* are acknowledged by responses from `start_ns` on.

        The moment is set in advance: a worker on a busy machine wakes up long after it, with responses already there.
        """
        self._count_documents_from_ns, self._documents_left = start_ns, documents

    def acknowledge(self, documents: int, done_ns: int) -> None:
        """Count documents that a response at `done_ns` acknowledged."""
        self.acknowledged += documents
        if documents:
            self._failing_since_ns = 0
        if done_ns >= self._count_documents_from_ns:
            self._documents_left -= documents
            if self._documents_left <= 0:
                self._count_documents_from_ns = _NEVER_NS
                self.documents_reached_ns = self.end_ns = time.monotonic_ns()
                self.close_arrivals()

    def stop(self) -> None:
        """Start no new request; requests under way still get their response."""
        self.stopped = True
        self.close_arrivals()

    def close_arrivals(self) -> None:
        """Release no more arrivals and wake all users that wait."""
        self.arrivals.close()
        self.query_arrivals.close()
        self._closed.set()

    def wait_until_after_start(self, delay_ns: int) -> None:
        """Wait until `delay_ns` after the start of the load, or until there are no more arrivals."""
        self._users_not_started += 1
        while delay_ns and (left_ns := self.start_ns + delay_ns - time.monotonic_ns()) > 0:
            if self._closed.wait(left_ns / 1e9):
                break
        self._users_not_started -= 1

    def pause(self, duration_ns: int) -> None:
        """Wait for that time, or until there are no more arrivals."""
        if duration_ns:
            self._closed.wait(duration_ns / 1e9)

    def errors(self) -> tuple[str, ...]:
        """Return the errors with their counts, the most frequent first."""
        return tuple(f"{count} x {message}" for message, count in self._errors.most_common())
