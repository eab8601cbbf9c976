"""Locust user for any locustfile: bulks of real documents, in Locust's own statistics and web page.

    from ingest_bench.load.locustfile import BulkIndexUser

    class Indexing(BulkIndexUser):
        host = "http://localhost:9200"
        workload = "nyc_taxis"

The size that Locust shows is that of the requests: the size of a bulk's response says nothing about the load.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from locust import events, task
from locust.env import Environment
from locust.runners import MasterRunner

from ingest_bench.documents.body import Body
from ingest_bench.experiment import catalog
from ingest_bench.inputs import credentials, urls
from ingest_bench.load.plan import LoadPlan
from ingest_bench.load.recorder import unpack_sample
from ingest_bench.load.users import IngestUser
from ingest_bench.load.worker_state import WorkerState
from ingest_bench.model.load import LoadOptions, ProtocolOptions
from ingest_bench.model.samples import OUTCOMES
from ingest_bench.model.target import Endpoint, ServerAddress, Tls
from ingest_bench.protocols.bulk import Bulk
from ingest_bench.protocols.upstream import Upstream, resolve_upstream
from ingest_bench.protocols.users import Http1User


class BulkFailedError(Exception):
    """A bulk of which not every document was acknowledged, for Locust's list of failures."""


class BulkIndexUser(IngestUser, Http1User):
    """Sends bulks. Locust decides how many users there are, how long they wait, and when the test ends."""

    abstract = True
    workload = "nyc_taxis"
    documents: str | None = None
    """A file of documents or bulk bodies instead of synthetic ones. With `--processes`, Locust's workers share it."""
    bulk_documents: int | None = None
    bulk_path: str | None = None
    """None: `/INDEX/_bulk`, with the workload's index."""
    ca_file: str | None = None
    """CA certificates (PEM) that verify a server at `https://`. None: those that this machine trusts."""
    retries = 5
    numbers = itertools.count()

    def on_start(self) -> None:
        """Open a connection; bodies are shared by all users of this class in this process."""
        self.state, self.recorder, self.upstream, bulk, self._bodies = _get_shared(type(self), self.environment)
        self.path, self.protocol_headers, self.judge = bulk.url_path, bulk.headers, bulk.judge
        super().on_start()

    @task
    def bulk(self) -> None:
        """Send one bulk, and retry its rejected documents."""
        self.send(time.monotonic_ns(), next(self._bodies))


class _LocustEvents:
    """Replaces the recorder: each sample is a request in Locust's statistics."""

    def __init__(self, environment: Environment, name: str) -> None:
        self._fire: Any = environment.events.request.fire
        self._name = name

    def add(self, packed: bytes) -> None:
        """Report one bulk, with its retries and its time from scheduled to done; not one that Locust cut off."""
        sample = unpack_sample(packed)
        outcome, missing = OUTCOMES[sample.outcome], sample.documents - sample.documents_acked
        if outcome == "cut-off":
            return
        message = f"{outcome} (status {sample.status}): {missing} of {sample.documents} documents not acknowledged"
        self._fire(
            request_type="POST",
            name=self._name,
            response_time=(sample.done_ns - sample.scheduled_ns) / 1e6,
            response_length=sample.bytes_sent,
            exception=None if outcome == "ok" else BulkFailedError(message),
            context={
                "documents": sample.documents,
                "documents_acked": sample.documents_acked,
                "attempts": sample.attempts,
            },
        )


_Shared = tuple[WorkerState, _LocustEvents, "Upstream", Bulk, "Iterator[Body]"]
_SHARED: WeakKeyDictionary[Any, dict[type, _Shared]] = WeakKeyDictionary()
# Locust does not tell a worker how many there are. Synthetic documents are generated in blocks; with this stride, that
# many workers have documents of their own.
_BLOCK_STRIDE = 1024
# Small enough to be generated in a fraction of a second: Locust's run time has begun.
_POOL_BYTES = 16 * 1024**2


def _prepare_documents(environment: Environment, **_: Any) -> None:
    """Generate documents before the first user starts: it takes a second or two."""
    for user in environment.user_classes:
        if issubclass(user, BulkIndexUser) and not isinstance(environment.runner, MasterRunner):
            _get_shared(user, environment)


_TEST_START: Any = events.test_start
_TEST_START.add_listener(_prepare_documents)


def _get_shared(user: type[BulkIndexUser], environment: Environment) -> _Shared:
    """Return the objects that the users of a class share in one process; the first call creates them."""
    by_class: dict[type, _Shared] = _SHARED.setdefault(environment, {})
    if user not in by_class:
        plan = _build_plan(user, environment)
        state = WorkerState(source=plan.open_source(), users=sys.maxsize)
        state.end_ns = sys.maxsize
        bulk = Bulk.for_path(plan.wire.destination, plan.workload.index, plan.options)
        upstream = resolve_upstream(*plan.server_addresses, headers=plan.headers, first=plan.worker)
        recorder, bodies = _LocustEvents(environment, plan.wire.destination), state.source.bodies_of(plan.worker)
        by_class[user] = state, recorder, upstream, bulk, bodies
    return by_class[user]


def _build_plan(user: type[BulkIndexUser], environment: Environment) -> LoadPlan:
    url = urls.parse_url(environment.host or user.host or "http://localhost:9200")
    ca_pem = "" if user.ca_file is None else credentials.read_ca_certificates(Path(user.ca_file), "ca_file:")
    workload = catalog.load_workload(user.workload)
    workers = _BLOCK_STRIDE
    if user.documents is not None:
        workers = max(1, getattr(environment.parsed_options, "processes", None) or 1)
    plan = LoadPlan(
        server=ServerAddress(
            endpoint=Endpoint(url.host, url.port),
            path_prefix=url.path_prefix,
            tls=Tls(name=url.host, ca_pem=ca_pem) if url.scheme == "https" else None,
        ),
        wire=ProtocolOptions(keys={"path": user.bulk_path or urls.join_path(workload.index, "_bulk")}),
        workload=workload,
        # Users start and stop at any time: each process takes bodies as one user.
        options=LoadOptions(documents=user.documents, bulk_documents=user.bulk_documents, users=workers),
        folder=Path(),
        pool_bytes=_POOL_BYTES,
        worker=max(0, getattr(environment.runner, "worker_index", 0)) % workers,
        workers=workers,
    )
    return plan.with_checked_files()
