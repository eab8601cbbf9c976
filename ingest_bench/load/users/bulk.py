"""A Locust user that speaks the bulk API of Elasticsearch and OpenSearch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from locust import task
from locust.exception import StopUser

from ingest_bench.load.answers import OK, PARTIAL, all_acked, judge
from ingest_bench.load.users.sender import Sender, pause_s

if TYPE_CHECKING:
    from ingest_bench.load.answers import Verdict

# After a failed request, doubled with each one more in a row.
_BACKOFF_S = 0.01
_BACKOFF_LIMIT_S = 1.0


class BulkUser(Sender):
    """Sends bulks, and again what was rejected of them."""

    abstract = True
    is_success = staticmethod(all_acked)
    judge = staticmethod(judge)

    def on_start(self) -> None:
        """A connection of its own; the first request opens it."""
        super().on_start()
        self.recorder = self.work.recorder
        self.number = next(self.work.numbers)

    def note(self, verdict: Verdict) -> None:
        """The failed items and what the server said; an answer that speaks of each item is no failure in a row."""
        self.failures_in_a_row = 0 if verdict.outcome in (OK, PARTIAL) else self.failures_in_a_row + 1
        if verdict.outcome != OK:
            self.work.failed(verdict.said, verdict.failures)

    def pause_s(self) -> float:
        """Longer with each failure more."""
        return pause_s(_BACKOFF_S, self.failures_in_a_row, _BACKOFF_LIMIT_S)


class TicketUser(BulkUser):
    """A bulk user that sends when there is a ticket."""

    abstract = True

    @task
    def send_until_the_end(self) -> None:
        """Requests as long as there are tickets and bodies. One task: Locust's own loop costs more than a request."""
        self.work.gate.wait()
        take, bodies = self.work.tickets.take, self.work.bodies(self.number)
        while planned_ns := take():
            body = next(bodies, None)
            if body is None:
                break
            self.send(planned_ns, body)
        raise StopUser
