"""Shared code of the benchmarks: a server that is ready, a load of ingest-bench or Locust, a verdict."""

from __future__ import annotations

import contextlib
import csv
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ingest_bench import targets
from ingest_bench.analysis.run.sample_columns import Samples
from ingest_bench.documents import source
from ingest_bench.documents.source import POOL_BYTES
from ingest_bench.experiment import catalog, spec
from ingest_bench.jvm.java import Java
from ingest_bench.jvm.process import Launch, serve
from ingest_bench.load import supervisor
from ingest_bench.load.plan import LoadPlan
from ingest_bench.model.load import LoadOptions, ProtocolOptions
from ingest_bench.model.samples import WorkerReport
from ingest_bench.model.target import Endpoint, ServerAddress, TargetOptions
from ingest_bench.network.act import link as link_module
from ingest_bench.protocols.bulk import Bulk
from ingest_bench.results.layout import RunFolder
from ingest_bench.targets.base import NodeStart
from ingest_bench.targets.http import Http, open_http

WORKLOAD = catalog.load_workload("nyc_taxis")
PATH = f"/{WORKLOAD.index}/_bulk"


@dataclass(frozen=True, slots=True)
class Server:
    """A server that is ready."""

    link: link_module.Link
    listen: Endpoint
    http: Http
    folder: Path
    jvm_pid: int
    java: Java


@dataclass(frozen=True, slots=True)
class Bench:
    """A sink or another server that is ready, and the users and duration of each load."""

    server: Server
    users: int
    seconds: float
    wire: ProtocolOptions = field(default_factory=lambda: ProtocolOptions(keys={"path": PATH}))

    def bytes_read(self) -> int:
        """Return the bytes that the sink has read, including some hundred bytes of control requests."""
        return int(self.server.http.request_json("GET", "/_counters")["bytes_read"])

    def start_load(self, name: str, *, pool_bytes: int = POOL_BYTES, **options: Any) -> supervisor.RunningLoad:
        """Start a load with these `LoadOptions`; its files are in the folder of that name."""
        load_options = LoadOptions(**({"users": self.users, "measure_ns": round(self.seconds * 1e9)} | options))
        plan = LoadPlan(
            server=ServerAddress(endpoint=self.server.listen),
            wire=self.wire,
            workload=WORKLOAD,
            options=load_options,
            folder=self.server.folder / name / "load",
            pool_bytes=pool_bytes,
        )
        return supervisor.start_load(plan, self.server.link.client.command)

    def run_load(self, name: str, **options: Any) -> tuple[WorkerReport, Samples]:
        """Return the report and the samples of such a load after its end."""
        report = self.start_load(name, **options).wait(lambda _: None)
        return report, RunFolder(self.server.folder / name).samples().load_all()


@contextlib.contextmanager
def open_sink(users: int, seconds: float, **settings: str) -> Iterator[Bench]:
    """Start the sink with settings such as `stall="1s"` behind a loopback link."""
    setting = {f"sink.{name}": value for name, value in settings.items()}
    with open_server(TargetOptions(name="sink", heap_bytes=512 << 20, setting=setting), "loopback") as server:
        yield Bench(server, users, seconds)


@contextlib.contextmanager
def open_vertx(users: int, seconds: float) -> Iterator[Bench]:
    """Start the custom target `vertx`, which speaks HTTP/1.1 and HTTP/2, behind a loopback link."""
    # Its own window of 64 KiB would make the sender wait, which costs CPU too.
    custom = {"start": {"env": {"WINDOW": str(16 << 20)}}}
    options = spec.build_target({"name": "vertx", "custom": custom}, "target")
    with open_server(options, "loopback") as server:
        yield Bench(server, users, seconds, targets.resolve(options).wire(options, WORKLOAD))


@contextlib.contextmanager
def open_server(options: TargetOptions, profile: str) -> Iterator[Server]:
    """Start a new server without probes behind a link."""
    target = targets.resolve(options)
    java = targets.fetch(target.requirements(options))
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        folder.chmod(0o755)
        link = stack.enter_context(link_module.open_link(catalog.load_profile(profile, {})))
        listen = Endpoint(link.server_address, 9200)
        http = stack.enter_context(open_http(ServerAddress(endpoint=listen), link.client.command))
        launch = Launch(
            plan=target.launch_plan(NodeStart(options, java, folder / "home", 0, (listen,))),
            enter=link.server.command,
            log=folder / "server.log",
            listen=listen,
            is_ready=lambda limit_s: target.is_ready(0, (http.with_deadline(limit_s),)),
        )
        (server,) = stack.enter_context(serve(launch, timeout_s=60))
        yield Server(link, listen, http, folder, server.jvm_pid, java)


def bodies(documents: int, pool_bytes: int) -> Iterator[bytes]:
    """Yield each bulk body of a pool of that size once."""
    options = LoadOptions(bulk_documents=documents)
    bulk = Bulk.for_path(PATH, WORKLOAD.index, options)
    remaining = pool_bytes
    for body in source.open_source(WORKLOAD, options, bulk, pool_bytes=pool_bytes).bodies_of(0):
        yield bytes(body.data)
        remaining -= len(body.data)
        if remaining <= 0:
            return


def write_csv(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Write the rows; the keys of the first one are the columns."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0].keys() if rows else (), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Failed limits, and limits without a verdict."""

    failed: list[str] = field(default_factory=list)
    undecided: list[str] = field(default_factory=list)

    def judge(self, text: str, interval: tuple[float, float], limits: tuple[float, float]) -> None:
        """Pass if the complete interval is within the limits, fail if none of it is."""
        (low, high), (minimum, maximum) = interval, limits
        if low > maximum or high < minimum:
            self.failed.append(text)
        elif low < minimum or high > maximum:
            self.undecided.append(f"{text} (needs more rounds or more time)")

    def print(self) -> int:
        """Print the verdict and return the exit code: 0, 1 if a limit failed, 3 for no verdict."""
        for title, lines in (("failed:", self.failed), ("no verdict:", self.undecided)):
            if lines:
                print("\n".join(["", title, *lines]))
        if not self.failed and not self.undecided:
            print("\nAll limits are met.")
        return 1 if self.failed else 3 if self.undecided else 0
