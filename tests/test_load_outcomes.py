"""Complete loads against failing servers count each arrival once, with its time, whatever its outcome."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from bulk_server import accept_all, answer, bulk_server
from hanging_proxy import hanging_proxy
from test_load_process import BULK_DOCUMENTS, loaded, outcomes, plan_for

from ingest_bench.analysis.run.sample_columns import load_columns, measurement_window
from ingest_bench.inputs.load_values import parse_arrivals
from ingest_bench.model.samples import OUTCOMES

pytestmark = pytest.mark.processes

SECOND = 10**9


def test_reset_requests_have_the_times_that_a_proxy_measured(tmp_path: Path) -> None:
    hang_s = 0.5
    with bulk_server() as server, hanging_proxy(server.address, every=5, hang_s=hang_s) as proxy:
        plan = plan_for(proxy.address, tmp_path, warm_up_ns=0, measure_ns=3 * SECOND)
        report, samples, _ = loaded(plan)
    row = load_columns(samples, measurement_window(report))
    assert row["requests"] == len(samples) == len(proxy.requests)
    assert row["requests_failed"] == proxy.resets == len(proxy.requests) // 5 > 10
    ours_ns = np.sort(samples["done_ns"] - samples["scheduled_ns"])
    theirs_ns = np.sort([request.took_ns for request in proxy.requests])
    # The load's times begin before the proxy's and end after them.
    assert (ours_ns >= theirs_ns).all()
    assert np.median(ours_ns - theirs_ns) < 0.1 * SECOND
    for column, percent in (("response_ms_p50", 50), ("response_ms_p99", 99), ("response_ms_max", 100)):
        theirs_ms = float(np.percentile(theirs_ns, percent, method="inverted_cdf")) / 1e6
        assert row[column] == pytest.approx(theirs_ms, abs=200)
    for column in ("response_ms_p99", "response_ms_max", "service_ms_p99"):
        assert float(row[column] or 0) >= hang_s * 1000
    acknowledged = np.sort([request.took_ns for request in proxy.requests if not request.reset])
    assert row["response_ok_ms_max"] == pytest.approx(acknowledged[-1] / 1e6, abs=200)


def test_every_scheduled_arrival_is_counted_once_whatever_its_outcome(tmp_path: Path) -> None:
    def reply(body: bytes, number: int) -> bytes | None:
        if number % 40 == 0:
            time.sleep(1)
        if number % 7 == 0:
            return answer(b"{}", "429 Too Many Requests")
        return accept_all(body, number) if number % 5 else None

    with bulk_server(reply) as server:
        plan = plan_for(server.address, tmp_path, arrivals=parse_arrivals("200/s"), timeout_ns=300_000_000)
        report, samples, _ = loaded(plan)
    assert outcomes(samples) >= {"ok", "connection-error", "timeout"}
    planned = np.sort(samples["scheduled_ns"] - report.started_monotonic_ns)
    assert planned.tolist() == [number * 5_000_000 for number in range(160)]
    row = load_columns(samples, measurement_window(report))
    within = samples[samples["done_ns"] >= report.warm_up_end_ns]
    assert row["requests"] == len(within) >= 120
    assert row["requests_failed"] == (within["outcome"] != OUTCOMES.index("ok")).sum()
    longest_ns = (within["done_ns"] - within["scheduled_ns"]).max()
    assert row["response_ms_max"] == longest_ns / 1e6
    assert server.requests == samples["attempts"].sum() > (samples["attempts"] > 0).sum()
    assert report.bytes_written == server.bytes_read == samples["bytes_sent"].sum()
    assert report.arrivals_unsent == (samples["attempts"] == 0).sum()
    assert samples["documents"].sum() == BULK_DOCUMENTS * (samples["attempts"] > 0).sum()
    decided = samples["documents_acked"] + samples["documents_failed"]
    is_ok = samples["outcome"] == OUTCOMES.index("ok")
    assert (decided[is_ok] == samples["documents"][is_ok]).all()
