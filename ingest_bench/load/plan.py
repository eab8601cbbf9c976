"""What a load worker is told."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ingest_bench.documents import corpus, lines, source
from ingest_bench.documents.corpus import Corpus
from ingest_bench.documents.pool import POOL_BYTES
from ingest_bench.documents.source import Source
from ingest_bench.errors import RunFailed, SpecError
from ingest_bench.inputs import credentials, files
from ingest_bench.inputs.records import from_json, to_json
from ingest_bench.load.arrivals import parse_recorded
from ingest_bench.model.load import LoadOptions, Wire
from ingest_bench.model.target import Endpoint, Place, Tls
from ingest_bench.model.track import Step
from ingest_bench.model.workload import Workload
from ingest_bench.protocols import Protocol, spoken
from ingest_bench.protocols.queries import Search

# A load that no time ends, and that takes longer than this, is not a benchmark.
_UNTIL_SENT_LIMIT_NS = 24 * 3600 * 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """Where a load goes, what it sends and when, and where its files are written."""

    address: Endpoint
    wire: Wire
    """How the server takes documents."""
    workload: Workload
    options: LoadOptions
    out: Path
    host_header: str = ""
    """Empty: the address."""
    path_prefix: str = ""
    """Before the path of every request."""
    headers: dict[str, str] = field(default_factory=dict)
    """More headers for each request."""
    tls: Tls | None = None
    """None: plain HTTP."""
    resolver: Endpoint | None = None
    """The name server that each new connection asks for the address; None: it is looked up once."""
    others: tuple[Place, ...] = ()
    """More addresses of the same cluster. Connections go to all of them in turn."""
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
    tells_figures: bool = False
    """Whether each worker tells its figures while it sends (`load.live.figures`)."""
    pool_bytes: int = POOL_BYTES
    """How much each worker holds in memory."""
    first_id: int = 0
    """The least id of ours that a document gets."""
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
        start, end = lines.share(documents, self.worker, self.workers)
        return end - start

    @property
    def own_users(self) -> range:
        """The numbers of this worker's users: each worker has every n-th."""
        return lines.stride(self.users, self.worker, self.workers)

    def starts_after_ns(self, user: int) -> int:
        """How long after the load has begun the user of that number does: evenly, the first one at once, as in Rally.

        Parallel tasks of a track ramp up together, their clients in the order of the tasks.
        """
        step = self.step
        before, in_all = (0, 0) if step is None else (step.clients_before, step.clients_in_all)
        return self.options.ramp_up_ns * (before + user) // (in_all or self.users)

    @property
    def own_query_users(self) -> range:
        """The numbers of this worker's users that send queries."""
        return lines.stride(self.options.query_users, self.worker, self.workers)

    def speaks(self) -> Protocol:
        """How documents go to this server."""
        return spoken(self.wire, self.workload.index, self.options)

    @property
    def path(self) -> str:
        """Where documents go, as a person calls it."""
        return self.wire.place

    def queries(self) -> Search:
        """How queries go there."""
        return Search(self.search_path)

    @property
    def places(self) -> tuple[Place, ...]:
        """Every address of the server."""
        first = Place(
            endpoint=self.address,
            host_header=self.host_header,
            path_prefix=self.path_prefix,
            tls=self.tls,
            resolver=self.resolver,
        )
        return first, *self.others

    def source(self) -> Source:
        """The bodies of this worker."""
        file = None if self.corpus is None else Corpus(Path(self.corpus), bulk=self.corpus_is_bulk)
        return source.open_source(
            self.workload,
            self.options,
            self.speaks(),
            corpus=file,
            step=self.step,
            pool_bytes=self.pool_bytes,
            first_id=self.first_id,
            users=self.users,
            worker=self.worker,
            workers=self.workers,
        )

    @property
    def has_client_certificate(self) -> bool:
        """Whether connections to any of the addresses say who we are by a certificate."""
        return any(place.tls is not None and place.tls.client_cert for place in self.places)

    def with_client_certificate(self, cert: str, key: str) -> LoadPlan:
        """The same plan with the files of this machine, which may be others; RunFailed when it has none."""
        if not self.has_client_certificate:
            return self
        if not cert:
            raise RunFailed(
                "the server demands a certificate of ours, and the environment of this load worker names none; set "
                f"{credentials.CLIENT_CERT} and {credentials.CLIENT_KEY}"
            )

        def own(tls: Tls | None) -> Tls | None:
            return None if tls is None else dataclasses.replace(tls, client_cert=cert, client_key=key)

        others = tuple(dataclasses.replace(place, tls=own(place.tls)) for place in self.others)
        return dataclasses.replace(self, tls=own(self.tls), others=others)

    def checked(self) -> LoadPlan:
        """The same plan, the files that it names looked through; SpecError names the line, or a key of the protocol."""
        plan = self
        self.speaks()
        if self.options.arrivals.file is not None:
            plan = dataclasses.replace(plan, recorded_ns=_recorded(Path(self.options.arrivals.file)))
        if self.options.documents is not None:
            found = corpus.check(Path(self.options.documents))
            plan = dataclasses.replace(plan, corpus=str(found.path.absolute()), corpus_is_bulk=found.bulk)
        return plan

    def unpacked(self) -> LoadPlan:
        """The same plan with files that several workers can share: each reads a part of a plain file."""
        if self.workers == 1:
            return self
        step = None if self.step is None else source.unpacked(self.step, self.out)
        file = None if self.corpus is None else str(lines.unpack(Path(self.corpus), self.out))
        return dataclasses.replace(self, step=step, corpus=file)

    @property
    def samples(self) -> Path:
        """The file of this worker's samples."""
        return self.out / f"samples-{self.worker}.bin"

    @property
    def query_samples(self) -> Path:
        """The file of this worker's samples of queries: they are never among those of bulks."""
        return self.out / f"queries-{self.worker}.bin"

    @property
    def cpu(self) -> Path:
        """The file of the CPU that this worker used."""
        return self.out / f"cpu-{self.worker}.bin"

    @property
    def standstills(self) -> Path:
        """The file of when this worker's event loop did not come around."""
        return self.out / f"standstills-{self.worker}.bin"

    @property
    def record_files(self) -> tuple[Path, ...]:
        """The files of records (`model.samples.RECORDS`) that this worker writes."""
        queries = (self.query_samples,) if self.own_query_users else ()
        return (self.samples, *queries, self.cpu, self.standstills)

    @property
    def report(self) -> Path:
        """The file of this worker's own report."""
        return self.out / f"load-{self.worker}.json"

    @property
    def log(self) -> Path:
        """What this worker printed beside the protocol."""
        return self.out / f"load-{self.worker}.log"

    def table(self) -> dict[str, Any]:
        """This plan as JSON."""
        return {**to_json(dataclasses.replace(self, out=Path())), "out": str(self.out.absolute())}


def _recorded(path: Path) -> tuple[int, ...]:
    try:
        return parse_recorded(files.text(path), str(path))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise SpecError(f"load.arrivals: {path} cannot be read: {reason}") from None


def from_table(table: dict[str, Any]) -> LoadPlan:
    """The plan from its JSON."""
    return from_json(LoadPlan, table)
