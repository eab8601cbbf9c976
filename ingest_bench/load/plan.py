"""Plan of a load: where it goes, what it sends and when, and where its files are written."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ingest_bench.documents import corpus, lines, source
from ingest_bench.documents.source import POOL_BYTES, Source
from ingest_bench.inputs import files
from ingest_bench.inputs.records import to_json
from ingest_bench.load.arrivals import parse_recorded
from ingest_bench.model.load import LoadOptions, ProtocolOptions, Step, TrackFile, Workload
from ingest_bench.model.samples import RECORDS
from ingest_bench.model.target import ServerAddress
from ingest_bench.protocols.protocol import Protocol, create_protocol

# A load that ends when everything is sent, and takes longer than this, is not a benchmark.
_MAX_UNTIL_SENT_NS = 24 * 3600 * 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """A load, or the share of one worker."""

    server: ServerAddress
    wire: ProtocolOptions
    workload: Workload
    options: LoadOptions
    folder: Path
    """Where samples, reports and logs are written."""
    headers: dict[str, str] = field(default_factory=dict)
    """Additional headers of each request."""
    recorded_ns: tuple[int, ...] = ()
    """Scheduled times of `recorded` arrivals."""
    files: tuple[TrackFile, ...] = ()
    """Files that are sent instead of the workload's documents: checked, and decompressed if workers share them."""
    search_path: str = ""
    """Path of queries, if there are query users."""
    step: Step | None = None
    """A bulk step of a track: its files are sent, each once."""
    reports_figures: bool = False
    """True: each worker reports live figures (`load.figures`)."""
    pool_bytes: int = POOL_BYTES
    """Bytes of documents that each worker holds in memory."""
    first_id: int = 0
    """Lowest generated document id."""
    worker: int = 0
    workers: int = 1

    @property
    def users(self) -> int:
        """Number of users of all workers."""
        return self.options.users or self.workload.users

    @property
    def ends_when_sent(self) -> bool:
        """True if the load ends after its corpus or a number of documents, not after a time."""
        sends_once = self.step is not None and not self.step.time_period_ns
        return sends_once or self.options.measure_documents is not None

    @property
    def measure_ns(self) -> int:
        """Maximum length of the measurement."""
        return _MAX_UNTIL_SENT_NS if self.ends_when_sent else self.options.measure_ns

    @property
    def worker_documents(self) -> int | None:
        """This worker's share of the documents that end the measurement; None: something else ends it."""
        documents = self.options.measure_documents
        if documents is None:
            return None
        start, end = lines.part_range(documents, self.worker, self.workers)
        return end - start

    @property
    def worker_users(self) -> range:
        """User numbers of this worker: every n-th."""
        return range(self.worker, self.users, self.workers)

    @property
    def worker_query_users(self) -> range:
        """User numbers of this worker's query users."""
        return range(self.worker, self.options.query_users, self.workers)

    def user_start_delay_ns(self, user: int) -> int:
        """Return how long after the start of the load a user starts: evenly spread, the first at once, as in Rally.

        Parallel tasks of a track ramp up together, their clients in the order of the tasks.
        """
        step = self.step
        before, total = (0, 0) if step is None else (step.ramp_clients_before, step.ramp_clients_total)
        return self.options.ramp_up_ns * (before + user) // (total or self.users)

    def build_protocol(self) -> Protocol:
        """Return the protocol by which documents are sent."""
        return create_protocol(self.wire, self.workload.index, self.options)

    @property
    def server_addresses(self) -> tuple[ServerAddress, ...]:
        """All addresses of the server."""
        return self.server, *self.server.other_addresses

    def open_source(self) -> Source:
        """Open the bodies of this worker."""
        return source.open_source(
            self.workload,
            self.options,
            self.build_protocol(),
            files=self.files,
            repeats=self.step is None or self.step.looped,
            pool_bytes=self.pool_bytes,
            first_id=self.first_id,
            users=self.users,
            worker=self.worker,
            workers=self.workers,
        )

    @property
    def has_client_certificate(self) -> bool:
        """True if connections to any address use a client certificate."""
        return any(address.tls is not None and address.tls.client_cert for address in self.server_addresses)

    def with_tls(self, changes: dict[str, str], **address_changes: Any) -> LoadPlan:
        """Return the plan with these fields of `Tls`, and of `ServerAddress`, changed for all addresses."""

        def change(address: ServerAddress) -> ServerAddress:
            tls = None if address.tls is None else dataclasses.replace(address.tls, **changes)
            others = tuple(map(change, address.other_addresses))
            return dataclasses.replace(address, tls=tls, other_addresses=others, **address_changes)

        return dataclasses.replace(self, server=change(self.server))

    def with_checked_files(self) -> LoadPlan:
        """Return the plan with its files checked; SpecError names the wrong line, or key of the protocol."""
        plan, protocol = self, self.build_protocol()
        if self.options.arrivals.file is not None:
            path = self.options.arrivals.file
            text = files.read_user_text(Path(path), f"load.arrivals: {path}")
            plan = dataclasses.replace(plan, recorded_ns=parse_recorded(text, path))
        if self.options.documents is not None:
            checked = corpus.check_corpus(Path(self.options.documents), is_text=self.options.text_lines)
            path, is_text = str(checked.path.absolute()), checked.is_text
            file = TrackFile(path=path, index="", has_action_lines=checked.has_action_lines, is_text=is_text)
            protocol.for_file(file)
            plan = dataclasses.replace(plan, files=(file,))
        return plan

    def with_decompressed_files(self) -> LoadPlan:
        """Return the plan with files that several workers can share: each reads a part of a plain file."""
        if self.workers == 1:
            return self
        return dataclasses.replace(self, files=source.decompress_files(self.files, self.folder))

    def remove_decompressed_files(self) -> None:
        """Delete the plain copies that `with_decompressed_files` wrote: results do not keep a corpus."""
        source.remove_decompressed(self.folder)

    def record_file(self, kind: str) -> Path:
        """Return this worker's file of records. *kind* is a key of `model.samples.RECORDS`, such as "samples"."""
        return self.folder / f"{kind}-{self.worker}.bin"

    @property
    def report_file(self) -> Path:
        """Report of this worker."""
        return self.folder / f"load-{self.worker}.json"

    @property
    def output_files(self) -> tuple[Path, ...]:
        """Files that this worker leaves: records and report."""
        kinds = (kind for kind in RECORDS if kind != "queries" or self.worker_query_users)
        return (*map(self.record_file, kinds), self.report_file)

    @property
    def log_file(self) -> Path:
        """Standard error of this worker."""
        return self.folder / f"load-{self.worker}.log"

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON values."""
        values: dict[str, Any] = to_json(dataclasses.replace(self, folder=self.folder.absolute()))
        return values
