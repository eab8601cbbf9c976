"""What a load worker is told: one JSON file."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ingest_bench.documents import bulk, corpus, lines, source
from ingest_bench.documents.corpus import Corpus
from ingest_bench.documents.pool import POOL_BYTES
from ingest_bench.documents.source import Source
from ingest_bench.model.load import LoadOptions
from ingest_bench.model.target import Endpoint, Tls
from ingest_bench.model.track import Step
from ingest_bench.model.workload import Workload
from ingest_bench.records import from_json, to_json

# A load that no time ends, and that takes longer than this, is not a benchmark.
_UNTIL_SENT_LIMIT_NS = 24 * 3600 * 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """Where a load goes, what it sends and when, and where its files are written."""

    address: Endpoint
    bulk_path: str
    workload: Workload
    options: LoadOptions
    out: Path
    host_header: str = ""
    """Empty: the address."""
    headers: dict[str, str] = field(default_factory=dict)
    """More headers for each request."""
    tls: Tls | None = None
    """None: plain HTTP."""
    credentials: bool = False
    """Whether requests say who we are. The worker knows it from its own environment; it is never in a plan."""
    recorded_ns: tuple[int, ...] = ()
    """The planned times of `recorded` arrivals."""
    corpus: str | None = None
    """The file that `options.documents` names, checked, and unpacked where workers share it."""
    corpus_is_bulk: bool = False
    search_path: str = ""
    """Where queries go, when there are users that send them."""
    step: Step | None = None
    """A bulk step of a track: its files are sent, each once, in place of the workload's documents."""
    pool_bytes: int = POOL_BYTES
    """How much each worker holds in memory."""
    worker: int = 0
    workers: int = 1

    @property
    def users(self) -> int:
        """How many users all workers have together."""
        return self.options.users or self.workload.users

    @property
    def until_sent(self) -> bool:
        """Whether no time ends it, but the end of the corpus or of a number of documents."""
        once = self.step is not None and not self.step.time_period_ns
        return once or self.options.measure_documents is not None

    @property
    def measure_ns(self) -> int:
        """How long the measurement lasts at most."""
        return _UNTIL_SENT_LIMIT_NS if self.until_sent else self.options.measure_ns

    @property
    def own_documents(self) -> int | None:
        """This worker's share of the documents that end the measurement; None: another thing ends it."""
        documents = self.options.measure_documents
        if documents is None:
            return None
        return documents * (self.worker + 1) // self.workers - documents * self.worker // self.workers

    @property
    def own_users(self) -> range:
        """The numbers of this worker's users: each worker has every n-th."""
        return range(self.worker, self.users, self.workers)

    @property
    def own_query_users(self) -> range:
        """The numbers of this worker's users that send queries."""
        return range(self.worker, self.options.query_users, self.workers)

    @property
    def request_head(self) -> bytes:
        """The head of each bulk request, up to and with "content-length: "."""
        headers = {"content-type": "application/x-ndjson"}
        if self.options.gzip:
            headers["content-encoding"] = "gzip"
        query = bulk.query(self.options.action)
        return self._head(self.bulk_path + (query.replace("?", "&") if "?" in self.bulk_path else query), headers)

    @property
    def search_head(self) -> bytes:
        """The head of each query, up to and with "content-length: "."""
        return self._head(self.search_path, {"content-type": "application/json"})

    def source(self) -> Source:
        """The bodies of this worker."""
        file = None if self.corpus is None else Corpus(Path(self.corpus), bulk=self.corpus_is_bulk)
        return source.open_source(
            self.workload,
            self.options,
            corpus=file,
            step=self.step,
            pool_bytes=self.pool_bytes,
            users=self.users,
            worker=self.worker,
            workers=self.workers,
        )

    def checked(self) -> LoadPlan:
        """The same plan, its file of documents looked through; SpecError names the line."""
        if self.options.documents is None:
            return self
        found = corpus.check(Path(self.options.documents))
        return dataclasses.replace(self, corpus=str(found.path.absolute()), corpus_is_bulk=found.bulk)

    def unpacked(self) -> LoadPlan:
        """The same plan with files that several workers can share: each reads a part of a plain file."""
        if self.workers == 1:
            return self
        step = None if self.step is None else source.unpacked(self.step, self.out)
        file = None if self.corpus is None else str(lines.unpack(Path(self.corpus), self.out))
        return dataclasses.replace(self, step=step, corpus=file)

    def _head(self, path: str, own: dict[str, str]) -> bytes:
        headers = {"host": self.host_header or str(self.address)} | own | self.headers
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"POST {path} HTTP/1.1\r\n{lines}content-length: ".encode()

    @property
    def samples(self) -> Path:
        """The file of this worker's samples."""
        return self.out / f"samples-{self.worker}.bin"

    @property
    def queries(self) -> Path:
        """The file of this worker's samples of queries: they are never among those of bulks."""
        return self.out / f"queries-{self.worker}.bin"

    @property
    def sample_files(self) -> tuple[Path, ...]:
        """The files of samples that this worker writes."""
        return (self.samples, self.queries) if self.own_query_users else (self.samples,)

    @property
    def report(self) -> Path:
        """The file of this worker's own report."""
        return self.out / f"load-{self.worker}.json"

    @property
    def log(self) -> Path:
        """What this worker printed beside the protocol."""
        return self.out / f"load-{self.worker}.log"

    def write(self) -> Path:
        """The JSON file of this plan."""
        path = self.out / f"load-plan-{self.worker}.json"
        path.write_text(json.dumps(self.table(), indent=1))
        return path

    def table(self) -> dict[str, Any]:
        """This plan as JSON."""
        return {**to_json(dataclasses.replace(self, out=Path())), "out": str(self.out.absolute())}


def read(path: Path) -> LoadPlan:
    """The plan that `LoadPlan.write` wrote."""
    return from_json(LoadPlan, json.loads(path.read_text()))
