"""Loads that are looked at while they run: one that is given up, and one whose figures are scraped."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from bulk_server import accept_all, answer, bulk_server
from prometheus_client.parser import text_string_to_metric_families
from running import free_port
from test_load_process import plan_for, samples_of

from ingest_bench.errors import RunAborted, RunFailed
from ingest_bench.inputs.load_values import parse_abort, parse_arrivals
from ingest_bench.load.exporter import serve_metrics
from ingest_bench.load.figures import LoadFigures, RequestFigures
from ingest_bench.load.supervisor import Progress, start_load
from ingest_bench.model.samples import OUTCOMES
from ingest_bench.model.target import Endpoint

pytestmark = pytest.mark.processes

S = 10**9


def test_a_load_with_too_many_errors_is_aborted_with_its_samples(tmp_path: Path) -> None:
    def every_third_fails(body: bytes, number: int) -> bytes:
        return answer(b"{}", "500 Internal Server Error") if number % 3 == 0 else accept_all(body, number)

    with bulk_server(every_third_fails) as server:
        plan = plan_for(
            server.address,
            tmp_path,
            warm_up_ns=S // 2,
            measure_ns=600 * S,
            processes=2,
            arrivals=parse_arrivals("200/s"),
            abort=(parse_abort("errors > 20% for 2s"), parse_abort("p99 > 50s for 5s")),
        )
        began = time.monotonic()
        with pytest.raises(RunAborted, match=r"^aborted by errors > 20% for 2s: errors 3"):
            start_load(plan).wait(lambda _: None)
        assert time.monotonic() - began < 60
    report = json.loads((plan.folder / "load.json").read_text())
    samples = samples_of(plan)
    assert report["bytes_written"] == samples["bytes_sent"].sum() == server.bytes_read
    # What was due at the moment of the end may not have been taken any more.
    samples = samples[samples["attempts"] > 0]
    assert len(samples) == server.requests
    assert (samples["outcome"] > 0).sum() == server.requests // 3
    assert samples["documents"].sum() == server.documents
    assert report["measure_end_ns"] - report["warm_up_end_ns"] >= 2 * S


def scraped(port: int, host: str = "127.0.0.1") -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    connection = http.client.HTTPConnection(host, port, timeout=10)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def total(metrics: dict[tuple[str, frozenset[tuple[str, str]]], float], name: str, **labels: str) -> float:
    return sum(
        value
        for (called, own), value in metrics.items()
        if called == f"ingest_bench_{name}" and labels.items() <= set(own)
    )


def test_metrics_grow_with_the_load_and_equal_the_samples(tmp_path: Path) -> None:
    port = free_port()

    def some_fail(body: bytes, number: int) -> bytes | None:
        if number % 7 == 0:
            return answer(b"{}", "429 Too Many Requests")
        return None if number % 11 == 0 else accept_all(body, number)

    with bulk_server(some_fail) as server, serve_metrics(Endpoint("127.0.0.1", port)) as exporter:
        assert scraped(port) == {}
        exporter.begin_run(run="cell/1", cell="cell", workload="tiny")
        plan = plan_for(
            server.address, tmp_path, warm_up_ns=S // 2, measure_ns=2 * S, retries=0, processes=2, query_users=0
        )
        scrapes = []

        def scrape(progress: Progress) -> None:
            exporter.update(progress)
            scrapes.append(total(scraped(port), "requests_total"))

        start_load(plan, reports_figures=True).wait(scrape)
        metrics = scraped(port)
    samples = samples_of(plan)
    assert scrapes == sorted(scrapes)
    assert 0 < scrapes[len(scrapes) // 2] < scrapes[-1] == len(samples)
    for place, outcome in enumerate(OUTCOMES):
        expected = int((samples["outcome"] == place).sum())
        assert total(metrics, "requests_total", outcome=outcome, run="cell/1", workload="tiny", kind="bulk") == expected
    acked, failed = int(samples["documents_acked"].sum()), int(samples["documents_failed"].sum())
    assert total(metrics, "documents_total", outcome="acknowledged") == acked
    assert total(metrics, "documents_total", outcome="failed") == failed
    assert total(metrics, "documents_total") == samples["documents"].sum()
    assert total(metrics, "sent_bytes_total") == samples["bytes_sent"].sum() == server.bytes_read
    response_ns = samples["done_ns"] - samples["scheduled_ns"]
    for (name, labels), value in metrics.items():
        if name == "ingest_bench_response_seconds_bucket":
            # Each bucket has exactly what is not above it.
            assert value == (response_ns <= float(dict(labels)["le"]) * 1e9).sum()
    assert total(metrics, "response_seconds_count") == len(samples)
    assert total(metrics, "response_seconds_sum") == pytest.approx(response_ns.sum() / 1e9)
    assert total(metrics, "in_flight") == 0
    assert {dict(labels)["worker"] for name, labels in metrics if "cpu_seconds_total" in name} == {"0", "1"}
    assert 0 < total(metrics, "generator_cpu_seconds_total") < 60
    assert total(metrics, "phase", phase="done") == 1


def test_metrics_sum_the_loads_of_a_run_and_restart_with_the_next() -> None:
    port = free_port()
    with serve_metrics(Endpoint("127.0.0.1", port)) as exporter:
        exporter.begin_run(run="one/1")
        for requests in (3, 4):
            exporter.begin_load()
            figures = LoadFigures(bulks=RequestFigures(outcomes={"ok": requests}))
            exporter.update(Progress(phase="done", documents=0, seconds_left=None, figures=figures))
        assert total(scraped(port), "requests_total", run="one/1") == 7
        exporter.begin_run(run="two/1")
        assert total(scraped(port), "requests_total") == 0
        assert {dict(labels)["run"] for _, labels in scraped(port)} == {"two/1"}


def test_a_taken_port_is_an_error() -> None:
    port = free_port()
    with serve_metrics(Endpoint("127.0.0.1", port)):
        with pytest.raises(RunFailed, match=rf"127\.0\.0\.1:{port}: metrics cannot be served there \(Address already"):
            ExitStack().enter_context(serve_metrics(Endpoint("127.0.0.1", port)))
        scraped(port)
    # And it is free again at once.
    with serve_metrics(Endpoint("127.0.0.1", port)):
        scraped(port)


@contextmanager
def silent(port: int, sent: bytes) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(sent)
        yield connection


def test_silent_scrapers_do_not_block_others() -> None:
    port = free_port()
    with ExitStack() as stack, serve_metrics(Endpoint("127.0.0.1", port)) as exporter:
        exporter.begin_run(run="one/1")
        for sent in (b"", b"GET /metr", b"GET /metrics HTTP/1.1\r\n\r\n" * 200, b"\x00" * 4096):
            for _ in range(5):
                stack.enter_context(silent(port, sent))
        began = time.monotonic()
        assert total(scraped(port), "in_flight") == 0
        assert time.monotonic() - began < 5
        ending = time.monotonic()
    assert time.monotonic() - ending < 5


@pytest.mark.skipif(not socket.has_ipv6, reason="this machine has no IPv6")
def test_metrics_are_served_on_ipv6() -> None:
    port = free_port()
    try:
        socket.create_server(("::1", port), family=socket.AF_INET6).close()
    except OSError as error:
        pytest.skip(f"no IPv6 loopback: {error.strerror}")
    with serve_metrics(Endpoint("::1", port)) as exporter:
        exporter.begin_run(run="one/1")
        assert total(scraped(port, "::1"), "in_flight") == 0
