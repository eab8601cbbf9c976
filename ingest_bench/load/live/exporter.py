"""Live figures for a dashboard (`--prometheus`): what Prometheus scrapes while loads run."""

from __future__ import annotations

import contextlib
import socket
import threading
from dataclasses import dataclass, field
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from ingest_bench.errors import RunFailed
from ingest_bench.load.live.figures import BUCKETS_NS, EDGES_NS, Figures, Seen

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator, Mapping

    from prometheus_client import Metric

    from ingest_bench.load.supervisor import Progress
    from ingest_bench.model.target import Endpoint

# A scraper that asks nothing, or does not read, has its thread for no longer.
_IDLE_S = 10.0
_STEP_OF_BUCKET = {bucket_ns: EDGES_NS.tolist().index(bucket_ns) for bucket_ns in BUCKETS_NS}


@dataclass(frozen=True, slots=True)
class _Shown:
    labels: Mapping[str, str] = field(default_factory=dict)
    earlier: Seen = field(default_factory=Seen)
    """Of the run's loads that are over."""
    now: Seen = field(default_factory=Seen)
    phase: str = ""


class Exporter:
    """What is scraped: the figures of one run, from its first load to the beginning of the next run.

    Counters are of all loads of a run together and begin at 0 with each run, which has its own labels.
    """

    def __init__(self) -> None:
        self._shown = _Shown()

    def begin(self, **labels: str) -> None:
        """A run begins; nothing of the one before is shown any more."""
        self._shown = _Shown(labels=labels)

    def begin_load(self) -> None:
        """One more load of the run begins."""
        shown = self._shown
        self._shown = _Shown(labels=shown.labels, earlier=shown.earlier + shown.now)

    def show(self, progress: Progress) -> None:
        """The load has come so far."""
        shown = self._shown
        self._shown = _Shown(shown.labels, shown.earlier, progress.seen or shown.now, progress.phase)

    def describe(self) -> list[Metric]:
        """Nothing: the registry would else collect to find the names."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The metrics at this moment, as prometheus_client asks for them in threads of its own."""
        # One attribute, read once: it is replaced as a whole.
        shown = self._shown
        if not shown.labels:
            return
        names, values = list(shown.labels), list(shown.labels.values())
        seen = shown.earlier + shown.now
        kinds = {"bulk": seen.bulks} | ({"query": seen.queries} if seen.queries.requests else {})
        yield from _counted("requests", "Requests that ended, by outcome.", names, values, kinds, "outcomes")
        yield from _counted("documents", "Documents of these, by outcome.", names, values, kinds, "documents")
        sent = CounterMetricFamily(
            "ingest_bench_sent_bytes", "Bytes that the kernel took of these, heads included.", labels=[*names, "kind"]
        )
        times = HistogramMetricFamily(
            "ingest_bench_response_seconds",
            "Response time (done - planned) of these, whatever became of them.",
            labels=[*names, "kind"],
        )
        for kind, figures in kinds.items():
            sent.add_metric([*values, kind], figures.bytes_sent)
            times.add_metric([*values, kind], _buckets(figures), figures.response_ns / 1e9)
        yield sent
        yield times
        in_flight = GaugeMetricFamily(
            "ingest_bench_in_flight", "Users that wait for an answer at this moment.", labels=names
        )
        in_flight.add_metric(values, shown.now.in_flight)
        yield in_flight
        cpu = CounterMetricFamily(
            "ingest_bench_generator_cpu_seconds",
            "CPU that the processes of the load used since it began.",
            labels=[*names, "worker", "mode"],
        )
        for name, used_ns in seen.cpu_ns.items():
            cpu.add_metric([*values, *name.split(" ")], used_ns / 1e9)
        yield cpu
        phase = GaugeMetricFamily("ingest_bench_phase", "1: the load is in this phase.", labels=[*names, "phase"])
        phase.add_metric([*values, shown.phase], 1)
        yield phase


@contextlib.contextmanager
def exported(address: Endpoint) -> Iterator[Exporter]:
    """An exporter that answers there at /metrics, for the block's time; RunFailed when it cannot."""
    exporter = Exporter()
    registry = CollectorRegistry(auto_describe=False)
    registry.register(exporter)
    kind = _Server6 if ":" in address.host else _Server
    try:
        server = make_server(address.host, address.port, make_wsgi_app(registry), kind, _Handler)
    except OSError as error:
        raise RunFailed(f"{address}: figures cannot be shown there ({error.strerror}); choose another port") from None
    with server:
        thread = threading.Thread(target=server.serve_forever, name="prometheus", daemon=True)
        thread.start()
        try:
            yield exporter
        finally:
            server.shutdown()
            thread.join()


class _Server(ThreadingMixIn, WSGIServer):
    # A scraper that does not read keeps nobody from the end.
    daemon_threads = True
    block_on_close = False

    def server_bind(self) -> None:
        """The standard library's own asks the resolver for a name that nobody needs."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing: a scraper that goes away is its own affair."""


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Handler(WSGIRequestHandler):
    timeout = _IDLE_S

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as the standard library calls it
        """Nothing: the output of the command is about runs."""


def _counted(
    name: str, said: str, names: list[str], values: list[str], kinds: Mapping[str, Figures], of: str
) -> Iterator[Metric]:
    found = CounterMetricFamily(f"ingest_bench_{name}", said, labels=[*names, "kind", "outcome"])
    for kind, figures in kinds.items():
        counts: Counter[str] = getattr(figures, of)
        for outcome, count in counts.items():
            found.add_metric([*values, kind, outcome], count)
    yield found


def _buckets(figures: Figures) -> list[tuple[str, float]]:
    """How many response times each bucket and those before it have, exactly."""
    found = [
        (f"{bucket_ns / 1e9:g}", float(sum(count for step, count in figures.steps.items() if step <= last)))
        for bucket_ns, last in _STEP_OF_BUCKET.items()
    ]
    return [*found, ("+Inf", float(figures.requests))]
