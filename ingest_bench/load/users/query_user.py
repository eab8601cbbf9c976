"""A Locust user that sends queries beside the indexing."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from locust import task
from locust.exception import StopUser

from ingest_bench.load.users.tries import Sender

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ingest_bench.documents.body import Body
    from ingest_bench.protocols.verdict import Verdict

# A server that refuses at once is not asked in a tight loop.
_AFTER_A_FAILURE_S = 0.1


class SearchUser(Sender):
    """Sends queries; its samples have a file of their own."""

    abstract = True
    numbers: Iterator[int]
    queries: tuple[Body, ...] = ()
    weights: tuple[int, ...] = ()
    seed = 1

    def on_start(self) -> None:
        """A connection and a number of its own."""
        super().on_start()
        self.number = next(self.numbers)

    def note(self, verdict: Verdict) -> None:
        """What the server said."""
        self.work.note(verdict.said)

    def pause_s(self) -> float:
        """Always as long."""
        return _AFTER_A_FAILURE_S

    @task
    def search_until_the_end(self) -> None:
        """Queries as long as there are tickets, drawn by their weights."""
        source = random.Random(f"{self.seed}/{self.number}")  # noqa: S311 - the same queries in each run, no secret
        tickets = self.work.query_tickets
        tickets.opened.wait()
        while planned_ns := tickets.take():
            (body,) = source.choices(self.queries, self.weights)
            self.send(planned_ns, body)
        raise StopUser
