"""A Locust user that sends queries beside the indexing."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

import gevent
from locust import User, task
from locust.exception import StopUser

from ingest_bench.load.answers import judge_search
from ingest_bench.load.connection import ConnectionBrokenError
from ingest_bench.load.recorder import OUTCOME_INDEX

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ingest_bench.load.recorder import KeepsSamples
    from ingest_bench.load.work import Work

# A server that refuses at once is not asked in a tight loop.
_AFTER_A_FAILURE_S = 0.1


class SearchUser(User):
    """One sender of queries on one keep-alive connection; its samples have a file of their own."""

    abstract = True
    work: Work
    recorder: KeepsSamples
    numbers: Iterator[int]
    head = b""
    """The request's head, up to and with "content-length: "."""
    queries: tuple[bytes, ...] = ()
    weights: tuple[int, ...] = ()
    seed = 1
    timeout_ns = 60 * 10**9

    def on_start(self) -> None:
        """A connection of its own; the first query opens it."""
        self._connection = self.work.connection()
        self.number = next(self.numbers)

    @task
    def search_until_the_end(self) -> None:
        """Queries as long as there are tickets, drawn by their weights."""
        self.work.gate.wait()
        source = random.Random(f"{self.seed}/{self.number}")  # noqa: S311 - the same queries in each run, no secret
        while planned_ns := self.work.query_tickets.take():
            (query,) = source.choices(self.queries, self.weights)
            if self.search(planned_ns, query) != OUTCOME_INDEX["ok"]:
                gevent.sleep(_AFTER_A_FAILURE_S)
        raise StopUser

    def search(self, planned_ns: int, query: bytes) -> int:
        """One query and its sample; its outcome."""
        connection = self._connection
        try:
            status, start, end = connection.exchange(self.head + b"%d\r\n\r\n" % len(query), query, self.timeout_ns)
        except ConnectionBrokenError as error:
            status, outcome, said = 0, error.outcome, str(error)
        else:
            outcome, said = judge_search(status, connection.buffer, start, end)
        finally:
            done_ns = time.monotonic_ns()
        sent_ns = connection.sent_ns or done_ns
        index = OUTCOME_INDEX[outcome]
        self.recorder.add(planned_ns, sent_ns, done_ns, connection.bytes_sent, 0, 0, 0, status, index, self.number)
        self.work.note(said)
        return index
