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
from weakref import WeakKeyDictionary

from locust import events, task
from locust.runners import MasterRunner

from ingest_bench.experiment import catalog
from ingest_bench.inputs import urls
from ingest_bench.load.plan import LoadPlan
from ingest_bench.load.recorder import sample_of
from ingest_bench.load.users.ingest import IngestUser
from ingest_bench.load.work import Work
from ingest_bench.model.load import LoadOptions, Wire
from ingest_bench.model.samples import OUTCOMES
from ingest_bench.model.target import Endpoint, Tls
from ingest_bench.protocols.bulk import Bulk
from ingest_bench.protocols.http1.http_user import Poster
from ingest_bench.protocols.way import way_to

if TYPE_CHECKING:
    from collections.abc import Iterator

    from locust.env import Environment

    from ingest_bench.documents.body import Body
    from ingest_bench.protocols.way import Way


class BulkFailedError(Exception):
    """A bulk of which not every document was acknowledged, as Locust's list of failures shows it."""


class BulkIndexUser(IngestUser, Poster):
    """Sends bulks; Locust decides how many users there are, how long they wait, and when it is over."""

    abstract = True
    workload = "nyc_taxis"
    documents: str | None = None
    """A file of documents or bulk bodies instead of synthetic ones. Locust's workers share it with `--processes`."""
    bulk_documents: int | None = None
    bulk_path: str | None = None
    """None: `/INDEX/_bulk`, with the workload's index."""
    ca_file: str | None = None
    """The certificates (PEM) that may vouch for a server at `https://`. None: those that this machine trusts."""
    retries = 5

    def on_start(self) -> None:
        """A connection, and the bodies that all users of this class in this process share."""
        self.work, self.way, bulk, self._bodies = _shared(type(self), self.environment)
        self.path, self.own_headers, self.judge = bulk.url_path, bulk.headers, bulk.judge
        super().on_start()

    @task
    def bulk(self) -> None:
        """One bulk, and what was rejected of it again."""
        self.send(time.monotonic_ns(), next(self._bodies))


class _Events:
    """In place of the recorder: each sample is a request in Locust's statistics."""

    def __init__(self, environment: Environment, name: str) -> None:
        self._fire: Any = environment.events.request.fire
        self._name = name

    def add(self, record: bytes) -> None:
        """One bulk, resent items included, with its time from planned to done. One that Locust ended is not counted."""
        sample = sample_of(record)
        outcome, missing = OUTCOMES[sample.outcome], sample.documents - sample.documents_acked
        if outcome == "cut-off":
            return
        said = f"{outcome} (status {sample.status}): {missing} of {sample.documents} documents not acknowledged"
        self._fire(
            request_type="POST",
            name=self._name,
            response_time=(sample.done_ns - sample.planned_ns) / 1e6,
            response_length=sample.bytes_sent,
            exception=None if outcome == "ok" else BulkFailedError(said),
            context={
                "documents": sample.documents,
                "documents_acked": sample.documents_acked,
                "attempts": sample.attempts,
            },
        )


_Shared = tuple[Work, "Way", Bulk, "Iterator[Body]"]
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
            source=plan.source(),
            recorder=_Events(environment, plan.path),
            users=range(sys.maxsize),
        )
        work.end_ns = sys.maxsize
        bulk = Bulk.of(plan.path, plan.workload.index, plan.options)
        way = way_to(*plan.places, headers=plan.headers, first=plan.worker)
        made[user] = work, way, bulk, work.source.for_user(plan.worker)
    return made[user]


def _plan(user: type[BulkIndexUser], environment: Environment) -> LoadPlan:
    url = urls.parse(environment.host or user.host or "http://localhost:9200")
    ca_pem = "" if user.ca_file is None else Path(user.ca_file).read_text(encoding="ascii")
    workload = catalog.workload(user.workload)
    workers = _BLOCK_STRIDE
    if user.documents is not None:
        workers = max(1, getattr(environment.parsed_options, "processes", None) or 1)
    plan = LoadPlan(
        address=Endpoint(url.host, url.port),
        path_prefix=url.path_prefix,
        tls=Tls(name=url.host, ca_pem=ca_pem) if url.scheme == "https" else None,
        wire=Wire(keys={"path": user.bulk_path or urls.path(workload.index, "_bulk")}),
        workload=workload,
        # Users come and go: each process takes bodies as one.
        options=LoadOptions(documents=user.documents, bulk_documents=user.bulk_documents, users=workers),
        out=Path(),
        pool_bytes=_POOL_BYTES,
        worker=max(0, getattr(environment.runner, "worker_index", 0)) % workers,
        workers=workers,
    )
    return plan.checked()
