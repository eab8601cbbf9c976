"""What the users of one worker share: tickets, bodies, the recorder, and what happened so far."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from typing import TYPE_CHECKING

from gevent.event import Event

from ingest_bench.errors import IngestBenchError
from ingest_bench.load import tls
from ingest_bench.load.connection import Connection, Traffic
from ingest_bench.load.deadlines import Deadlines
from ingest_bench.load.tickets import ClosedLoop

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ingest_bench.documents.body import Body
    from ingest_bench.documents.source import Source
    from ingest_bench.load.recorder import KeepsSamples
    from ingest_bench.load.tickets import Tickets
    from ingest_bench.model.load import RateUnit
    from ingest_bench.model.target import Endpoint, Tls

_KINDS_OF_ERRORS = 50
# A load in which nothing succeeds is ended after this time, once each user has failed.
_HOPELESS_NS = 2 * 10**9


class Work:
    """The work of one worker, and its account."""

    def __init__(
        self, *, address: Endpoint, source: Source, recorder: KeepsSamples, users: range, verify: Tls | None = None
    ) -> None:
        self.address = address
        self._verify = verify
        self._context = None if verify is None else tls.context(verify)
        self.tickets: Tickets = ClosedLoop()
        self.query_tickets: Tickets = ClosedLoop()
        self.source = source
        self.recorder = recorder
        self.traffic = Traffic()
        self.deadlines = Deadlines()
        self.acked = 0
        self.documents_resent = 0
        self.documents_repeated = 0
        self.item_failures: Counter[str] = Counter()
        self.hopeless = ""
        """Why the load was given up: every request failed."""
        self.numbers = iter(users)
        """The number of each user, taken as it starts."""
        self.gate = Event()
        """Set when the load begins; until then users wait."""
        self.stopped = False
        self.end_ns = 0
        """The end of the measurement, once the load has begun."""
        self._users = len(users)
        self._errors: Counter[str] = Counter()
        self._unit: RateUnit = "requests"
        self._taken = 0
        self._taken_units = 0
        self._failed_requests = 0
        self._first_failure_ns = 0

    def connection(self) -> Connection:
        """A connection for one user, its deadlines watched."""
        if self._verify is None or self._context is None:
            connection = Connection(self.address, self.traffic)
        else:
            connection = tls.TlsConnection(self.address, self.traffic, self._context, self._verify.name)
        self.deadlines.watch(connection)
        return connection

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

    def failed(self, said: str, failures: Mapping[str, int]) -> None:
        """A bulk failed, or some of its items did."""
        self.item_failures.update(failures)
        self.note(said)
        if self.acked:
            return
        now_ns = time.monotonic_ns()
        self._failed_requests += 1
        self._first_failure_ns = self._first_failure_ns or now_ns
        if self._failed_requests >= self._users and now_ns - self._first_failure_ns > _HOPELESS_NS:
            self.give_up()

    def note(self, said: str) -> None:
        """Something went wrong that the report tells."""
        if said and (said in self._errors or len(self._errors) < _KINDS_OF_ERRORS):
            self._errors[said] += 1

    def give_up(self) -> None:
        """No more tickets: nothing has succeeded."""
        items = tuple(f"{count} x item {kind}" for kind, count in self.item_failures.most_common(3))
        most = "; ".join(self.errors()[:3] or items) or "no request was answered"
        self.hopeless = f"every request failed ({self._failed_requests}): {most}"
        self.stop()

    def broke(self, error: BaseException) -> None:
        """Something failed that no answer explains: the load ends with its text, and the run has failed."""
        said = str(error) if isinstance(error, IngestBenchError) else f"{type(error).__name__}: {error}"
        self.hopeless = self.hopeless or said
        self.stop()

    def stop(self) -> None:
        """No more tickets; requests that wait for their answer still get it."""
        self.stopped = True
        self.close_tickets()

    def close_tickets(self) -> None:
        """No more tickets, for nobody."""
        self.tickets.close()
        self.query_tickets.close()

    def errors(self) -> tuple[str, ...]:
        """What went wrong, the most frequent first, each with its count."""
        return tuple(f"{count} x {said}" for said, count in self._errors.most_common())
