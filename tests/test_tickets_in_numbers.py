"""Complete loads against failing servers count each arrival once, with its time, whatever its outcome."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from bulk_server import BulkServer, Reply, accept_all, answer, bulk_server
from hanging_proxy import hanging_proxy
from test_load_process import BULK_DOCUMENTS, loaded, outcomes, plan_for, samples_of

from ingest_bench.analysis.run.sample_columns import load_columns, measurement_window
from ingest_bench.errors import RunFailed
from ingest_bench.inputs.load_values import parse_arrivals
from ingest_bench.load.supervisor import Progress, start_load
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


@pytest.mark.nightly
@pytest.mark.parametrize("arrivals", ["closed", "200/s"])
@pytest.mark.parametrize("processes", [1, 2])
def test_request_hanging_through_the_measurement_is_its_longest(tmp_path: Path, arrivals: str, processes: int) -> None:
    took_ns: list[int] = []

    def reply(body: bytes, number: int) -> bytes | None:
        began_ns = time.monotonic_ns()
        if number == 5:
            time.sleep(2.5)
            took_ns.append(time.monotonic_ns() - began_ns)
            return None
        return accept_all(body, number)

    with bulk_server(reply) as server:
        chosen = {"arrivals": parse_arrivals(arrivals), "processes": processes, "warm_up_ns": SECOND}
        report, samples, _ = loaded(plan_for(server.address, tmp_path, **chosen, measure_ns=SECOND // 2))
    row = load_columns(samples, measurement_window(report))
    (hung,) = samples[samples["outcome"] == OUTCOMES.index("connection-error")]
    assert hung["scheduled_ns"] < report.warm_up_end_ns < report.measure_end_ns < hung["done_ns"]
    assert row["requests_failed"] == 1
    assert row["response_ms_max"] == pytest.approx(took_ns[0] / 1e6, abs=200)
    assert float(row["response_ok_ms_max"] or 0) < 1000


def test_bulk_accepted_at_the_third_attempt_has_the_time_of_all(tmp_path: Path) -> None:
    tries: dict[bytes, int] = {}

    def reply(body: bytes, number: int) -> bytes:
        with server.lock:
            tries[body] = tries.get(body, 0) + 1
            is_third = tries[body] % 3 == 0
        return accept_all(body, number) if is_third else answer(b"{}", "429 Too Many Requests")

    with bulk_server(reply) as server:
        plan = plan_for(server.address, tmp_path, users=10, warm_up_ns=0, measure_ns=2 * SECOND)
        report, samples, _ = loaded(plan)
    row = load_columns(samples, measurement_window(report))
    requests = row["requests"]
    # Nothing is retried at the end of the load.
    ended = samples["attempts"] < 3
    assert set(samples["outcome"][~ended]) == {OUTCOMES.index("ok")}
    assert ended.sum() <= 10
    assert row["requests_failed"] == ended.sum()
    assert isinstance(requests, int)
    assert requests == len(samples) > 50
    assert row["attempts"] == server.requests == samples["attempts"].sum()
    assert report.documents_resent == (server.requests - requests) * BULK_DOCUMENTS
    assert report.bytes_written == server.bytes_read == samples["bytes_sent"].sum()
    # 50 and 100 ms of pauses, and the times of the three attempts.
    for column in ("response_ms_p50", "response_ok_ms_p50", "service_ms_p50"):
        assert 150 <= float(row[column] or 0) < 500


def dies(server: BulkServer) -> Reply:
    def reply(body: bytes, number: int) -> bytes:
        if number == 40:
            threading.Thread(target=server.close).start()
        return accept_all(body, number)

    return reply


def breaks(_server: BulkServer) -> Reply:
    return lambda body, number: accept_all(body, number) if number % 5 else None


def rejects(_server: BulkServer) -> Reply:
    return lambda body, number: accept_all(body, number) if number % 3 else answer(b"{}", "429 Too Many Requests")


def hangs(_server: BulkServer) -> Reply:
    def reply(body: bytes, number: int) -> bytes:
        if number % 40 == 0:
            time.sleep(1)
        return accept_all(body, number)

    return reply


def is_slow(_server: BulkServer) -> Reply:
    def reply(body: bytes, number: int) -> bytes:
        time.sleep(0.2)
        return accept_all(body, number)

    return reply


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("behaviour", "expected"),
    [
        (dies, {"ok", "connection-error", "cut-off"}),
        (breaks, {"ok", "connection-error"}),
        (rejects, {"ok"}),
        (hangs, {"ok", "timeout"}),
        (is_slow, {"ok", "cut-off"}),
    ],
)
def test_every_scheduled_arrival_is_counted_once(
    tmp_path: Path, behaviour: Callable[[BulkServer], Reply], expected: set[str]
) -> None:
    with bulk_server() as server:
        server.reply = behaviour(server)
        plan = plan_for(server.address, tmp_path, arrivals=parse_arrivals("200/s"), timeout_ns=300_000_000)
        report, samples, _ = loaded(plan)
    assert expected <= outcomes(samples)
    planned = np.sort(samples["scheduled_ns"] - report.started_monotonic_ns)
    assert planned.tolist() == [number * 5_000_000 for number in range(160)]
    row = load_columns(samples, measurement_window(report))
    within = samples[samples["done_ns"] >= report.warm_up_end_ns]
    assert row["requests"] == len(within) >= 120
    assert row["requests_failed"] == (within["outcome"] != OUTCOMES.index("ok")).sum()
    longest_ns = (within["done_ns"] - within["scheduled_ns"]).max()
    assert row["response_ms_max"] == longest_ns / 1e6
    assert report.bytes_written == samples["bytes_sent"].sum()
    assert report.arrivals_unsent == (samples["attempts"] == 0).sum()
    offered = samples["documents"].sum()
    assert offered == BULK_DOCUMENTS * (samples["attempts"] > 0).sum()
    decided = samples["documents_acked"] + samples["documents_failed"]
    answered = np.isin(samples["outcome"], [OUTCOMES.index(name) for name in ("ok", "partial", "rejected")])
    assert (decided[answered] == samples["documents"][answered]).all()


@pytest.mark.nightly
def test_requests_in_flight_at_the_end_are_cut_off_with_their_time(tmp_path: Path) -> None:
    over = threading.Event()

    def reply(body: bytes, number: int) -> bytes:
        if number > 40:
            over.wait(120)
        return accept_all(body, number)

    with bulk_server(reply) as server:
        plan = plan_for(server.address, tmp_path, arrivals=parse_arrivals("200/s"), users=2)
        report, samples, _ = loaded(plan)
        over.set()
    assert len(samples) == len(set(samples["scheduled_ns"])) == 160
    cut = samples[samples["outcome"] == OUTCOMES.index("cut-off")]
    under_way = cut[cut["attempts"] == 1]
    assert len(samples) - len(cut) == 40
    assert len(under_way) == 2
    # They were drained until the limit.
    assert (under_way["done_ns"] > report.measure_end_ns + 19 * SECOND).all()
    never = cut[cut["attempts"] == 0]
    assert len(never) == report.arrivals_unsent == 118
    assert (never["done_ns"] == report.measure_end_ns).all()
    assert report.bytes_written == samples["bytes_sent"].sum()


def test_killed_worker_leaves_complete_samples_and_no_report(tmp_path: Path) -> None:
    with bulk_server() as server:
        plan = plan_for(server.address, tmp_path, measure_ns=60 * SECOND)
        process = start_load(plan)
        heard = itertools.count()

        def kill(progress: Progress) -> None:
            if progress.phase == "measure" and next(heard) == 3:
                os.kill(process.pids[0], signal.SIGKILL)

        with pytest.raises(RunFailed, match="was killed by signal 9"):
            process.wait(kill)
    samples = samples_of(plan)
    assert outcomes(samples) == {"ok"}
    assert 0 < samples["documents_acked"].sum() <= server.documents
    for user in set(samples["user"]):
        own = samples[samples["user"] == user]
        assert (own["scheduled_ns"][1:] >= own["done_ns"][:-1]).all()
    assert not (plan.folder / "load.json").exists()
