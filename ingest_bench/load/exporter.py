"""Prometheus exporter (`--prometheus`): live figures while loads run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, Metric, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from ingest_bench.errors import RunFailed
from ingest_bench.load.figures import BUCKETS_NS, EDGES_NS, LoadFigures, RequestFigures
from ingest_bench.load.supervisor import Progress
from ingest_bench.model.target import Endpoint

# A scraper that sends no request, or does not read, keeps its thread no longer than this.
_IDLE_S = 10.0
_Family = TypeVar("_Family", CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily)
_STEP_OF_BUCKET = {bucket_ns: EDGES_NS.tolist().index(bucket_ns) for bucket_ns in BUCKETS_NS}


@dataclass(frozen=True, slots=True)
class _Snapshot:
    labels: Mapping[str, str] = field(default_factory=dict)
    earlier: LoadFigures = field(default_factory=LoadFigures)
    """Of the run's loads that have ended."""
    current: LoadFigures = field(default_factory=LoadFigures)
    phase: str = ""


class Exporter:
    """The metrics of one run, from its first load to the beginning of the next run.

    Counters sum all loads of a run. They restart at 0 with each run, which has its own labels.
    """

    def __init__(self) -> None:
        self._snapshot = _Snapshot()

    def begin_run(self, **labels: str) -> None:
        """Begin a run: forget the metrics of the run before."""
        self._snapshot = _Snapshot(labels=labels)

    def begin_load(self) -> None:
        """Begin the next load of the run."""
        snapshot = self._snapshot
        self._snapshot = _Snapshot(labels=snapshot.labels, earlier=snapshot.earlier + snapshot.current)

    def update(self, progress: Progress) -> None:
        """Take the progress of the current load."""
        snapshot = self._snapshot
        current = progress.figures or snapshot.current
        self._snapshot = _Snapshot(snapshot.labels, snapshot.earlier, current, progress.phase)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of this moment. prometheus_client calls it in its own threads."""
        # One attribute, read once: it is replaced as a whole.
        snapshot = self._snapshot
        if not snapshot.labels:
            return
        values = list(snapshot.labels.values())
        total = snapshot.earlier + snapshot.current

        def create(kind: type[_Family], name: str, description: str, *labels: str) -> _Family:
            return kind(f"ingest_bench_{name}", description, labels=[*snapshot.labels, *labels])

        requests = create(CounterMetricFamily, "requests", "Requests that ended, by outcome.", "kind", "outcome")
        documents = create(CounterMetricFamily, "documents", "Documents of these, by outcome.", "kind", "outcome")
        sent = create(
            CounterMetricFamily, "sent_bytes", "Bytes that the kernel took of these, headers included.", "kind"
        )
        times = create(
            HistogramMetricFamily,
            "response_seconds",
            "Response time (done - scheduled) of these, with any outcome.",
            "kind",
        )
        kinds = {"bulk": total.bulks} | ({"query": total.queries} if total.queries.requests else {})
        for kind, figures in kinds.items():
            for metric, counts in ((requests, figures.outcomes), (documents, figures.documents)):
                for outcome, count in counts.items():
                    metric.add_metric([*values, kind, outcome], count)
            sent.add_metric([*values, kind], figures.bytes_sent)
            times.add_metric([*values, kind], _cumulative_buckets(figures), figures.response_ns / 1e9)
        in_flight = create(GaugeMetricFamily, "in_flight", "Users that wait for a response now.")
        in_flight.add_metric(values, snapshot.current.in_flight)
        cpu = create(
            CounterMetricFamily,
            "generator_cpu_seconds",
            "CPU that the processes of the load used since it began.",
            "worker",
            "mode",
        )
        for worker_and_mode, used_ns in total.cpu_ns.items():
            cpu.add_metric([*values, *worker_and_mode.split(" ")], used_ns / 1e9)
        phase = create(GaugeMetricFamily, "phase", "1: the load is in this phase.", "phase")
        phase.add_metric([*values, snapshot.phase], 1)
        yield from (requests, documents, sent, times, in_flight, cpu, phase)


def _cumulative_buckets(figures: RequestFigures) -> list[tuple[str, float]]:
    """Return the exact number of response times up to each bucket's end."""
    buckets = [
        (f"{bucket_ns / 1e9:g}", float(sum(count for step, count in figures.steps.items() if step <= last)))
        for bucket_ns, last in _STEP_OF_BUCKET.items()
    ]
    return [*buckets, ("+Inf", float(figures.requests))]


@contextlib.contextmanager
def serve_metrics(address: Endpoint) -> Iterator[Exporter]:
    """Serve an exporter at /metrics of that address during the block; RunFailed if the port cannot be opened."""
    exporter = Exporter()
    registry = CollectorRegistry()
    registry.register(exporter)
    try:
        server, thread = start_http_server(address.port, address.host, registry)
    except OSError as error:
        raise RunFailed(f"{address}: metrics cannot be served there ({error.strerror}). Choose another port.") from None
    requests: Any = server.RequestHandlerClass
    requests.timeout = _IDLE_S
    # A scraper that disconnects is no error.
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    with server:
        try:
            yield exporter
        finally:
            server.shutdown()
            thread.join()
