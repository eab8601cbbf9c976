"""What the users of one worker share: tickets, bodies, the recorder, and what happened so far."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from gevent.event import Event

from ingest_bench.errors import RunFailed, text_elsewhere, text_here
from ingest_bench.load.live import figures
from ingest_bench.load.tickets import ClosedLoop
from ingest_bench.units import format_time

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ingest_bench.documents.body import Body
    from ingest_bench.documents.source import Source
    from ingest_bench.load.live.figures import Reader
    from ingest_bench.load.recorder import KeepsSamples
    from ingest_bench.load.tickets import Tickets
    from ingest_bench.model.load import RateUnit

_KINDS_OF_ERRORS = 50
# A server that names each failure after its document would fill our memory, and the report.
_KINDS_OF_FAILURES = 1000
_LONGEST_KIND = 200
_OTHER_KINDS = "of kinds that came later"
# A load in which nothing succeeds is ended after this time, once each user that has begun has failed.
_HOPELESS_NS = 2 * 10**9
_NEVER_NS = 2**63
# One that a number of documents shall end, when all has failed for so long: a server that gets over a fault needs less.
_NO_MORE_NS = 300 * 10**9


class Work:
    """The work of one worker, and its account."""

    def __init__(self, *, source: Source, recorder: KeepsSamples, users: range) -> None:
        self.tickets: Tickets = ClosedLoop()
        self.query_tickets: Tickets = ClosedLoop()
        self.source = source
        self.recorder = recorder
        self.acked = 0
        self.reached_ns = 0
        """When a number of documents ended the measurement; 0: it did not, or another thing ends it."""
        self.documents_resent = 0
        self.documents_repeated = 0
        self.item_failures: Counter[str] = Counter()
        self.hopeless = ""
        """Why the load was given up, in words that another machine may hear; empty: it was not."""
        self._hopeless_here = ""
        """The same with what a file holds; empty: nothing more is known."""
        self.numbers = iter(users)
        """The number of each user, taken as it starts."""
        self.reader: Reader | None = None
        """Who reads the figures; None: nobody wants them."""
        self.stopped = False
        self._closed = Event()
        """Set when there are no more tickets: who rests wakes up."""
        self.start_ns = 0
        """The start of the load, once it is known."""
        self.end_ns = 0
        """The end of the measurement, once it is known."""
        self._users = len(users)
        self._errors: Counter[str] = Counter()
        self._counts_from_ns = _NEVER_NS
        self._left = 0
        """Of the documents that end the measurement."""
        self._failing_since_ns = 0
        """The first failure after the last acknowledgement; 0: there was none."""
        self._unit: RateUnit = "requests"
        self._taken = 0
        self._taken_units = 0
        self._failed_requests = 0
        self._failed_users: set[int] = set()
        self._resting = 0
        """Users whose time to begin has not come."""
        self._first_failure_ns = 0

    def sizes(self, unit: RateUnit, expected: float) -> Iterator[float]:
        """How much of the unit the next body will carry: the mean of the bodies so far, at first what is expected."""
        self._unit = unit
        return itertools.repeat(1.0) if unit == "requests" else self._means(expected)

    def bodies(self, user: int) -> Iterator[Body]:
        """The bodies of one user. They are counted where `sizes` has to know of them."""
        own = self.source.for_user(user)
        return own if self._unit == "requests" else map(self._counted, own)

    def _means(self, expected: float) -> Iterator[float]:
        while True:
            yield max(1.0, self._taken_units / self._taken) if self._taken else expected

    def _counted(self, body: Body) -> Body:
        self._taken += 1
        self._taken_units += body.documents if self._unit == "documents" else len(body.data)
        return body

    def is_over(self, now_ns: int) -> bool:
        """Whether nothing new is begun any more."""
        return self.stopped or now_ns >= self.end_ns

    def failed(self, user: int, said: str, failures: Mapping[str, int]) -> None:
        """A bulk of that user failed, or some of its items did."""
        for kind, count in failures.items():
            name = kind[:_LONGEST_KIND]
            is_known = name in self.item_failures or len(self.item_failures) < _KINDS_OF_FAILURES
            self.item_failures[name if is_known else _OTHER_KINDS] += count
        self.note(said)
        now_ns = time.monotonic_ns()
        self._failing_since_ns = self._failing_since_ns or now_ns
        if self.acked:
            if self._left > 0 and now_ns - self._failing_since_ns > _NO_MORE_NS:
                missing = f"{self._left:,} more shall end what this load worker sends"
                self._give_up(f"no document was acknowledged for {format_time(_NO_MORE_NS)}, and {missing}")
            return
        self._failed_requests += 1
        self._failed_users.add(user)
        self._first_failure_ns = self._first_failure_ns or now_ns
        # Who waits for the first answer may get a better one.
        begun = self._users - self._resting
        if len(self._failed_users) >= begun and now_ns - self._first_failure_ns > _HOPELESS_NS:
            self.give_up()

    @property
    def has_failed(self) -> bool:
        """Whether nothing was acknowledged of what was asked. Of a small load one of many workers may ask nothing."""
        return not self.acked and self._failed_requests > 0

    def note(self, said: str) -> None:
        """Something went wrong that the report tells."""
        if said and (said in self._errors or len(self._errors) < _KINDS_OF_ERRORS):
            self._errors[said] += 1

    def give_up(self) -> None:
        """No more tickets: nothing has succeeded."""
        self._give_up(f"every request failed ({self._failed_requests})")

    def _give_up(self, why: str) -> None:
        items = tuple(f"{count} x item {kind}" for kind, count in self.item_failures.most_common(3))
        most = "; ".join(self.errors()[:3] or items)
        self.hopeless = f"{why}: {most}"
        self.stop()

    def abort(self, planned_ns: int, which: str, said: str) -> None:
        """No more tickets: this one failed, and the load shall end with the first that does."""
        due = f"due {(planned_ns - self.start_ns) / 1e9:.3f} s after the start of the load"
        self.hopeless = self.hopeless or f'a request failed, and on_error is "abort": {which}, {due}: {said}'
        self.stop()

    def broke(self, error: BaseException) -> None:
        """Something failed that no answer explains: the load ends with its text, and the run has failed."""
        if not self.hopeless:
            self.hopeless, self._hopeless_here = text_elsewhere(error), text_here(error)
        self.stop()

    def failure(self) -> RunFailed:
        """Why the load was given up, as an error."""
        return RunFailed(self._hopeless_here or self.hopeless, elsewhere=self.hopeless)

    def end_after(self, documents: int, start_ns: int) -> None:
        """There are no more tickets once so many are acknowledged from then on.

        The moment is told beforehand: a worker on a busy machine wakes up long after it, and answers have come by then.
        """
        self._counts_from_ns, self._left = start_ns, documents

    def acknowledge(self, documents: int, done_ns: int) -> None:
        """So many more are acknowledged, by an answer of that moment."""
        self.acked += documents
        if documents:
            self._failing_since_ns = 0
        if done_ns >= self._counts_from_ns:
            self._left -= documents
            if self._left <= 0:
                self._counts_from_ns = _NEVER_NS
                self.reached_ns = self.end_ns = time.monotonic_ns()
                self.close_tickets()

    def stop(self) -> None:
        """No more tickets; requests that wait for their answer still get it."""
        self.stopped = True
        self.close_tickets()

    def close_tickets(self) -> None:
        """No user gets another ticket, and whoever waits for one wakes up."""
        self.tickets.close()
        self.query_tickets.close()
        self._closed.set()

    def rest_until_after(self, after_ns: int) -> None:
        """Returns so long after the start of the load, never before; or when there are no more tickets."""
        self._resting += 1
        while after_ns and (left_ns := self.start_ns + after_ns - time.monotonic_ns()) > 0:
            if self._closed.wait(left_ns / 1e9):
                break
        self._resting -= 1

    def rest(self, rest_ns: int) -> None:
        """Returns after that time, or when there are no more tickets."""
        if rest_ns:
            self._closed.wait(rest_ns / 1e9)

    def figures(self) -> dict[str, Any]:
        """What a line about the load's progress has beside it."""
        if self.reader is None:
            return {}
        return {"figures": figures.to_line(self.reader.seen())}

    def errors(self) -> tuple[str, ...]:
        """What went wrong, the most frequent first, each with its count."""
        return tuple(f"{count} x {said}" for said, count in self._errors.most_common())
