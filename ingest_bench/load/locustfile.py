"""A user for anybody's locustfile: bulks of real documents, in Locust's own statistics and web page.

    from ingest_bench.load.locustfile import BulkIndexUser

    class Indexing(BulkIndexUser):
        host = "http://localhost:9200"
        workload = "nyc_taxis"

The size that Locust shows is that of the requests: a bulk's answer says nothing about the load.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit
from weakref import WeakKeyDictionary

from locust import events, task
from locust.runners import MasterRunner

from ingest_bench import catalog
from ingest_bench.load.plan import LoadPlan
from ingest_bench.load.supply import Supply, checked
from ingest_bench.load.users.bulk import BulkUser
from ingest_bench.load.work import Work
from ingest_bench.model.load import OUTCOMES, LoadOptions
from ingest_bench.model.target import Endpoint

if TYPE_CHECKING:
    from collections.abc import Iterator

    from locust.env import Environment

    from ingest_bench.load.bodies import Body


class BulkFailedError(Exception):
    """A bulk of which not every document was acknowledged, as Locust's list of failures shows it."""


class BulkIndexUser(BulkUser):
    """Sends bulks; Locust decides how many users there are, how long they wait, and when it is over."""

    abstract = True
    workload = "nyc_taxis"
    documents: str | None = None
    """A file of documents or bulk bodies instead of synthetic ones. Locust's workers share it with `--processes`."""
    bulk_documents: int | None = None
    bulk_path: str | None = None
    """None: `/INDEX/_bulk`, with the workload's index."""
    retries = 5

    def on_start(self) -> None:
        """A connection, and the bodies that all users of this class in this process share."""
        self.work, self.head, self._bodies = _shared(type(self), self.environment)
        super().on_start()

    def on_stop(self) -> None:
        """No connection."""
        self._connection.close()

    @task
    def bulk(self) -> None:
        """One bulk, and what was rejected of it again."""
        self.send_all(time.monotonic_ns(), next(self._bodies))


class _Events:
    """In place of the recorder: each sample is a request in Locust's statistics."""

    def __init__(self, environment: Environment, name: str) -> None:
        self._fire: Any = environment.events.request.fire
        self._name = name

    def add(
        self,
        planned_ns: int,
        sent_ns: int,  # noqa: ARG002 - Locust knows one time only
        done_ns: int,
        bytes_sent: int,
        documents: int,
        acked: int,
        failed: int,  # noqa: ARG002 - what is not acknowledged is told
        status: int,
        outcome: int,
        user: int,  # noqa: ARG002 - Locust does not ask who
    ) -> None:
        """One request, with its time from planned to done."""
        said = f"{OUTCOMES[outcome]} (status {status}): {documents - acked} of {documents} documents not acknowledged"
        self._fire(
            request_type="POST",
            name=self._name,
            response_time=(done_ns - planned_ns) / 1e6,
            response_length=bytes_sent,
            exception=BulkFailedError(said) if outcome else None,
            context={"documents": documents, "documents_acked": acked},
        )


_Shared = tuple[Work, bytes, "Iterator[Body]"]
_SHARED: WeakKeyDictionary[Any, dict[type, _Shared]] = WeakKeyDictionary()
# Locust does not tell a worker how many there are. Synthetic documents are made in blocks; each worker has every
# so-many-th block, so that this many workers have documents of their own.
_BLOCK_STRIDE = 1024
# Made in a fraction of a second: Locust's run time has begun.
_POOL_BYTES = 16 * 1024**2


def _prepare(environment: Environment, **_: Any) -> None:
    """Documents are made before the first user starts: it takes a second or two."""
    for user in environment.user_classes:
        if issubclass(user, BulkIndexUser) and not isinstance(environment.runner, MasterRunner):
            _shared(user, environment)


_TEST_START: Any = events.test_start
_TEST_START.add_listener(_prepare)


def _shared(user: type[BulkIndexUser], environment: Environment) -> _Shared:
    """What the users of a class share in one process: made by the first of them."""
    made: dict[type, _Shared] = _SHARED.setdefault(environment, {})
    if user not in made:
        plan = _plan(user, environment)
        work = Work(
            address=plan.address,
            supply=Supply(plan),
            recorder=_Events(environment, plan.bulk_path),
            users=range(sys.maxsize),
        )
        work.end_ns = sys.maxsize
        made[user] = work, plan.request_head, work.supply.for_user(plan.worker)
    return made[user]


def _plan(user: type[BulkIndexUser], environment: Environment) -> LoadPlan:
    host = urlsplit(environment.host or user.host or "http://localhost:9200")
    workload = catalog.workload(user.workload)
    workers = _BLOCK_STRIDE
    if user.documents is not None:
        workers = max(1, getattr(environment.parsed_options, "processes", None) or 1)
    plan = LoadPlan(
        address=Endpoint(host.hostname or "localhost", host.port or 9200),
        bulk_path=user.bulk_path or f"/{quote(workload.index, safe='')}/_bulk",
        workload=workload,
        # Users come and go: each process takes bodies as one.
        options=LoadOptions(documents=user.documents, bulk_documents=user.bulk_documents, users=workers),
        out=Path(),
        pool_bytes=_POOL_BYTES,
        worker=max(0, getattr(environment.runner, "worker_index", 0)) % workers,
        workers=workers,
    )
    return checked(plan)
