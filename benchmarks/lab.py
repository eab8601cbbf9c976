"""What the benchmarks beside this module share: a sink that is ready. No benchmark itself."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ingest_bench import catalog, network, targets
from ingest_bench.jvm.process import serve
from ingest_bench.model.target import Endpoint, TargetOptions
from ingest_bench.targets.http import Http, ask
from ingest_bench.targets.sink import Sink

WORKLOAD = catalog.workload("nyc_taxis")
PATH = f"/{WORKLOAD.index}/_bulk"


@dataclass(frozen=True, slots=True)
class Bench:
    """A sink that is ready, and how long each sender sends."""

    link: network.Link
    listen: Endpoint
    http: Http
    folder: Path
    users: int
    seconds: float

    def bytes_read(self) -> int:
        """What the sink has read so far, its control requests too: a few hundred bytes."""
        return int(self.http.expect("GET", "/_counters")["bytes_read"])


@contextlib.contextmanager
def opened(users: int, seconds: float, **setting: str) -> Iterator[Bench]:
    """The sink, with settings such as `stall="1s"` (targets/sink.py), ready on a loopback link."""
    chosen = {f"sink.{name}": value for name, value in setting.items()}
    sink, asked = Sink(), TargetOptions(name="sink", heap_bytes=512 << 20, setting=chosen)
    java = targets.fetch(sink.requirements(asked))
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        folder.chmod(0o755)
        link = stack.enter_context(network.link(catalog.profile("loopback", {})))
        listen = Endpoint(link.server_address, 9200)
        plan = sink.launch_plan(asked, java, folder / "home", listen, ())
        http = stack.enter_context(ask(link.client.command, listen))
        stack.enter_context(
            serve(
                plan,
                enter=link.server.command,
                log=folder / "server.log",
                listen=listen,
                ready=lambda: sink.is_ready(http),
                timeout_s=60,
            )
        )
        yield Bench(link, listen, http, folder, users, seconds)
