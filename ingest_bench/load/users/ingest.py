"""A Locust user that sends documents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from locust import task
from locust.exception import StopUser

from ingest_bench.load.users.pump import Pump
from ingest_bench.load.users.tries import Sender, pause_s
from ingest_bench.protocols.verdict import OK, PARTIAL

if TYPE_CHECKING:
    from ingest_bench.protocols.verdict import Verdict

# After a failed request, doubled with each one more in a row.
_BACKOFF_S = 0.01
_BACKOFF_LIMIT_S = 1.0


class IngestUser(Sender):
    """Sends bodies of documents, and again what was rejected of them."""

    abstract = True
    fine = frozenset((OK, PARTIAL))
    """An answer that speaks of each document comes from a server that works."""

    def on_start(self) -> None:
        """A connection and a number of its own."""
        super().on_start()
        self.recorder = self.work.recorder
        self.number = next(self.work.numbers)

    def note(self, verdict: Verdict) -> None:
        """The failed items and what the server said."""
        if verdict.outcome != OK:
            self.work.failed(self.number, verdict.said, verdict.failures)

    def pause_s(self) -> float:
        """Longer with each failure more."""
        return pause_s(_BACKOFF_S, self.failures_in_a_row, _BACKOFF_LIMIT_S)


class TicketUser(IngestUser):
    """One that sends when there is a ticket."""

    abstract = True
    pumps: bool
    """Of the protocol."""
    think_time_ns = 0

    @staticmethod
    def starts_after_ns(_number: int, /) -> int:
        """How long after the load has begun the user of that number does."""
        return 0

    @task
    def send_until_the_end(self) -> None:
        """Requests as long as there are tickets and bodies. One task: Locust's own loop costs more than a request."""
        work, think_time_ns = self.work, self.think_time_ns
        # Before the start: what a user does for the first time takes 10 ms, at the same moment in every worker.
        take, bodies = work.tickets.take, work.bodies(self.number)
        work.tickets.opened.wait()
        is_pumped = self.pumps and not think_time_ns
        pump = Pump(self, bodies) if is_pumped else None  # type: ignore[arg-type]  # `pumps` says that it is one
        work.rest_until_after(self.starts_after_ns(self.number))
        while planned_ns := take():
            body = next(bodies, None)
            if body is None:
                break
            if pump is None:
                self.send(planned_ns, body)
                if think_time_ns:
                    work.rest(think_time_ns)
            else:
                pump.run(planned_ns, body)
                if pump.is_empty:
                    break
        raise StopUser
