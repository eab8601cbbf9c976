"""What the benchmarks beside this module share: a server that is ready, a load of ours or Locust's, a verdict."""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ingest_bench import targets
from ingest_bench.analysis.compare import comparison
from ingest_bench.analysis.run.sample_columns import Samples
from ingest_bench.documents import source
from ingest_bench.experiment import catalog
from ingest_bench.jvm.java import Java
from ingest_bench.jvm.process import Launch, serve
from ingest_bench.load import supervisor
from ingest_bench.load.plan import LoadPlan
from ingest_bench.model.load import LoadOptions, Wire, WorkerReport
from ingest_bench.model.target import Endpoint, TargetOptions
from ingest_bench.network.act import link as link_module
from ingest_bench.protocols.bulk import Bulk
from ingest_bench.results.run_folder import RunFolder
from ingest_bench.targets.http import Http, ask

WORKLOAD = catalog.workload("nyc_taxis")
PATH = f"/{WORKLOAD.index}/_bulk"


@dataclass(frozen=True, slots=True)
class Served:
    """A server that is ready."""

    link: link_module.Link
    listen: Endpoint
    http: Http
    folder: Path
    jvm_pid: int
    java: Java


@dataclass(frozen=True, slots=True)
class Bench:
    """A sink that is ready, and how long each sender sends."""

    link: link_module.Link
    listen: Endpoint
    http: Http
    folder: Path
    users: int
    seconds: float

    def bytes_read(self) -> int:
        """What the sink has read so far, its control requests too: a few hundred bytes."""
        return int(self.http.expect("GET", "/_counters")["bytes_read"])

    def counted(self) -> int:
        """The documents that the sink took so far."""
        return int(self.http.expect("GET", "/_count")["count"])

    def started(self, name: str, **options: Any) -> supervisor.LoadProcess:
        """A load of ours that has begun, with these `LoadOptions`; its files are in the folder of that name."""
        chosen = LoadOptions(**({"users": self.users, "measure_ns": round(self.seconds * 1e9)} | options))
        out = self.folder / name / "load"
        plan = LoadPlan(address=self.listen, wire=Wire(keys={"path": PATH}), workload=WORKLOAD, options=chosen, out=out)
        return supervisor.start(plan, self.link.client.command)

    def sent(self, name: str, **options: Any) -> tuple[WorkerReport, Samples]:
        """The report and the samples of such a load, once it is over."""
        report = self.started(name, **options).wait(lambda _: None)
        return report, RunFolder(self.folder / name).samples().whole()


@contextlib.contextmanager
def opened(users: int, seconds: float, *, profile: str = "loopback", **setting: str) -> Iterator[Bench]:
    """The sink, with settings such as `stall="1s"` (targets/small/sink.py), ready behind a link."""
    chosen = {f"sink.{name}": value for name, value in setting.items()}
    with served(TargetOptions(name="sink", heap_bytes=512 << 20, setting=chosen), profile) as here:
        yield Bench(here.link, here.listen, here.http, here.folder, users, seconds)


@contextlib.contextmanager
def served(asked: TargetOptions, profile: str) -> Iterator[Served]:
    """A new server to which nothing was added, ready behind a link."""
    target = targets.of(asked)
    java = targets.fetch(target.requirements(asked))
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        folder.chmod(0o755)
        link = stack.enter_context(link_module.link(catalog.profile(profile, {})))
        listen = Endpoint(link.server_address, 9200)
        plan = target.launch_plan(asked, java, folder / "home", 0, (listen,), ())
        http = stack.enter_context(ask(link.client.command, listen))
        launch = Launch(
            plan=plan,
            enter=link.server.command,
            log=folder / "server.log",
            listen=listen,
            ready=lambda left_s: target.is_ready(0, (http.within(left_s),)),
        )
        (server,) = stack.enter_context(serve(launch, timeout_s=60))
        yield Served(link, listen, http, folder, server.jvm_pid, java)


def bodies(documents: int, pool_bytes: int) -> Iterator[bytes]:
    """The bulk bodies of a pool of that size, each once."""
    options = LoadOptions(bulk_documents=documents)
    made = source.open_source(WORKLOAD, options, Bulk.of(PATH, WORKLOAD.index, options), pool_bytes=pool_bytes)
    left = pool_bytes
    for body in made.for_user(0):
        yield bytes(body.data)
        left -= len(body.data)
        if left <= 0:
            return


def one_body(documents: int, folder: Path) -> Path:
    """A file with the one bulk body that every sender sends again and again."""
    body = folder / "body.ndjson"
    body.write_bytes(next(bodies(documents, 1)))
    return body


def poster(base: Any, body: Path, host: str, **own: Any) -> Any:
    """A class of Locust's own users that posts this body, for a process in which Locust has been imported."""
    data = body.read_bytes()
    headers = {"Content-Type": "application/x-ndjson"}

    def post(user: Any) -> None:
        user.client.post(PATH, data=data, headers=headers)

    return type("Poster", (base,), {"tasks": [post], "host": host, "abstract": False, **own})


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The mean of some rounds and its 95% interval."""
    mean = statistics.fmean(values)
    half = comparison.t_quantile(len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5
    return mean, mean - half, mean + half


def busy_share(seconds: float = 2.0) -> float:
    """How much of all processors is in use while nothing of ours runs: an idle machine has next to nothing."""

    def ticks() -> tuple[int, int]:
        fields = [int(field) for field in Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()[1:9]]
        return sum(fields), fields[3] + fields[4]

    total, idle = ticks()
    time.sleep(seconds)
    total_after, idle_after = ticks()
    return 1 - (idle_after - idle) / max(1, total_after - total)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Which promises were missed, and which could not be judged."""

    missed: list[str] = field(default_factory=list)
    undecided: list[str] = field(default_factory=list)

    def judge(self, said: str, found: tuple[float, float], promised: tuple[float, float]) -> None:
        """A promise is kept when all of the interval keeps it, and missed when none of it does."""
        (low, high), (least, most) = found, promised
        if low > most or high < least:
            self.missed.append(said)
        elif low < least or high > most:
            self.undecided.append(f"{said} (more rounds or more time would tell)")

    def told(self) -> int:
        """Say it. The exit code: 0, 1 when a promise was missed, 3 for no verdict."""
        for title, lines in (("missed:", self.missed), ("no verdict:", self.undecided)):
            if lines:
                print("\n".join(["", title, *lines]))
        if not self.missed and not self.undecided:
            print("\nEvery promise is kept.")
        return 1 if self.missed else 3 if self.undecided else 0
