"""A Locust user that sends queries beside the indexing."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from locust import task
from locust.exception import StopUser

from ingest_bench.documents.body import Body
from ingest_bench.load.answers import OK, all_found, judge_search
from ingest_bench.load.users.sender import Sender

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ingest_bench.load.answers import Verdict

# A server that refuses at once is not asked in a tight loop.
_AFTER_A_FAILURE_S = 0.1


class SearchUser(Sender):
    """Sends queries; its samples have a file of their own."""

    abstract = True
    numbers: Iterator[int]
    queries: tuple[bytes, ...] = ()
    weights: tuple[int, ...] = ()
    seed = 1
    is_success = staticmethod(all_found)

    def on_start(self) -> None:
        """A connection of its own; the first query opens it."""
        super().on_start()
        self.number = next(self.numbers)

    @staticmethod
    def judge(status: int, answer: bytes, _documents: int, /) -> Verdict:
        """What any other answer says."""
        return judge_search(status, answer)

    def note(self, verdict: Verdict) -> None:
        """What the server said."""
        self.failures_in_a_row = int(verdict.outcome != OK)
        self.work.note(verdict.said)

    def pause_s(self) -> float:
        """Always as long."""
        return _AFTER_A_FAILURE_S

    @task
    def search_until_the_end(self) -> None:
        """Queries as long as there are tickets, drawn by their weights."""
        self.work.gate.wait()
        source = random.Random(f"{self.seed}/{self.number}")  # noqa: S311 - the same queries in each run, no secret
        bodies = [Body(query, 0) for query in self.queries]
        while planned_ns := self.work.query_tickets.take():
            (body,) = source.choices(bodies, self.weights)
            self.send(planned_ns, body)
        raise StopUser
