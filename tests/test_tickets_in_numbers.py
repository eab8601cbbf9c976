"""Each ticket is in the numbers once, with its time, whatever became of it: whole loads against servers that fail."""

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

from ingest_bench.analysis.run.sample_columns import measured, window_of
from ingest_bench.errors import RunFailed
from ingest_bench.inputs.rates import parse_arrivals
from ingest_bench.load.supervisor import Progress, start
from ingest_bench.model.samples import OUTCOMES

pytestmark = pytest.mark.processes

SECOND = 10**9


def test_requests_that_hang_and_are_reset_are_in_the_percentiles_as_a_second_stopwatch_saw_them(tmp_path: Path) -> None:
    hang_s = 0.5
    with bulk_server() as server, hanging_proxy(server.address, every=5, hang_s=hang_s) as proxy:
        plan = plan_for(proxy.address, tmp_path, warm_up_ns=0, measure_ns=3 * SECOND)
        report, samples, _ = loaded(plan)
    found = measured(samples, window_of(report))
    assert found["requests"] == len(samples) == len(proxy.seen)
    assert found["requests_failed"] == proxy.resets == len(proxy.seen) // 5 > 10
    ours_ns = np.sort(samples["done_ns"] - samples["planned_ns"])
    theirs_ns = np.sort([one.took_ns for one in proxy.seen])
    # Ours begin before the proxy's and end after them.
    assert (ours_ns >= theirs_ns).all()
    assert np.median(ours_ns - theirs_ns) < 0.1 * SECOND
    for column, percent in (("response_ms_p50", 50), ("response_ms_p99", 99), ("response_ms_max", 100)):
        theirs_ms = float(np.percentile(theirs_ns, percent, method="inverted_cdf")) / 1e6
        assert found[column] == pytest.approx(theirs_ms, abs=200)
    for column in ("response_ms_p99", "response_ms_max", "service_ms_p99"):
        assert float(found[column] or 0) >= hang_s * 1000
    acknowledged = np.sort([one.took_ns for one in proxy.seen if not one.reset])
    assert found["response_ok_ms_max"] == pytest.approx(acknowledged[-1] / 1e6, abs=200)


@pytest.mark.nightly
@pytest.mark.parametrize("arrivals", ["closed", "200/s"])
@pytest.mark.parametrize("processes", [1, 2])
def test_a_request_that_hangs_from_the_warm_up_until_after_the_measurement_is_its_longest(
    tmp_path: Path, arrivals: str, processes: int
) -> None:
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
    found = measured(samples, window_of(report))
    (hung,) = samples[samples["outcome"] == OUTCOMES.index("connection-error")]
    assert hung["planned_ns"] < report.warm_up_end_ns < report.measure_end_ns < hung["done_ns"]
    assert found["requests_failed"] == 1
    assert found["response_ms_max"] == pytest.approx(took_ns[0] / 1e6, abs=200)
    assert float(found["response_ok_ms_max"] or 0) < 1000


def test_bulks_that_are_taken_on_the_third_try_have_the_time_of_all_three_and_none_failed(tmp_path: Path) -> None:
    tries: dict[bytes, int] = {}

    def reply(body: bytes, number: int) -> bytes:
        with server.lock:
            tries[body] = tries.get(body, 0) + 1
            is_third = tries[body] % 3 == 0
        return accept_all(body, number) if is_third else answer(b"{}", "429 Too Many Requests")

    with bulk_server(reply) as server:
        plan = plan_for(server.address, tmp_path, users=10, warm_up_ns=0, measure_ns=2 * SECOND)
        report, samples, _ = loaded(plan)
    found = measured(samples, window_of(report))
    requests = found["requests"]
    # At the end of the load nothing is sent again.
    ended = samples["attempts"] < 3
    assert set(samples["outcome"][~ended]) == {OUTCOMES.index("ok")}
    assert ended.sum() <= 10
    assert found["requests_failed"] == ended.sum()
    assert isinstance(requests, int)
    assert requests == len(samples) > 50
    assert found["attempts"] == server.requests == samples["attempts"].sum()
    assert report.documents_resent == (server.requests - requests) * BULK_DOCUMENTS
    assert report.bytes_written == server.bytes_read == samples["bytes_sent"].sum()
    # 50 and 100 ms of pauses, and what the three requests took.
    for column in ("response_ms_p50", "response_ok_ms_p50", "service_ms_p50"):
        assert 150 <= float(found[column] or 0) < 500


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
    ("behaviour", "seen"),
    [
        (dies, {"ok", "connection-error", "cut-off"}),
        (breaks, {"ok", "connection-error"}),
        (rejects, {"ok"}),
        (hangs, {"ok", "timeout"}),
        (is_slow, {"ok", "cut-off"}),
    ],
)
def test_each_ticket_of_a_schedule_is_in_the_numbers_once_whatever_the_server_does(
    tmp_path: Path, behaviour: Callable[[BulkServer], Reply], seen: set[str]
) -> None:
    with bulk_server() as server:
        server.reply = behaviour(server)
        plan = plan_for(server.address, tmp_path, arrivals=parse_arrivals("200/s"), timeout_ns=300_000_000)
        report, samples, _ = loaded(plan)
    assert seen <= outcomes(samples)
    planned = np.sort(samples["planned_ns"] - report.started_monotonic_ns)
    assert planned.tolist() == [number * 5_000_000 for number in range(160)]
    found = measured(samples, window_of(report))
    within = samples[samples["done_ns"] >= report.warm_up_end_ns]
    assert found["requests"] == len(within) >= 120
    assert found["requests_failed"] == (within["outcome"] != OUTCOMES.index("ok")).sum()
    longest_ns = (within["done_ns"] - within["planned_ns"]).max()
    assert found["response_ms_max"] == longest_ns / 1e6
    assert report.bytes_written == samples["bytes_sent"].sum()
    assert report.tickets_unsent == (samples["attempts"] == 0).sum()
    offered = samples["documents"].sum()
    assert offered == BULK_DOCUMENTS * (samples["attempts"] > 0).sum()
    decided = samples["documents_acked"] + samples["documents_failed"]
    answered = np.isin(samples["outcome"], [OUTCOMES.index(name) for name in ("ok", "partial", "rejected")])
    assert (decided[answered] == samples["documents"][answered]).all()


@pytest.mark.nightly
def test_requests_that_are_under_way_when_the_load_ends_are_cut_off_and_keep_their_time(tmp_path: Path) -> None:
    over = threading.Event()

    def reply(body: bytes, number: int) -> bytes:
        if number > 40:
            over.wait(120)
        return accept_all(body, number)

    with bulk_server(reply) as server:
        plan = plan_for(server.address, tmp_path, arrivals=parse_arrivals("200/s"), users=2)
        report, samples, _ = loaded(plan)
        over.set()
    assert len(samples) == len(set(samples["planned_ns"])) == 160
    cut = samples[samples["outcome"] == OUTCOMES.index("cut-off")]
    under_way = cut[cut["attempts"] == 1]
    assert len(samples) - len(cut) == 40
    assert len(under_way) == 2
    # They were waited for, and then it was enough.
    assert (under_way["done_ns"] > report.measure_end_ns + 19 * SECOND).all()
    never = cut[cut["attempts"] == 0]
    assert len(never) == report.tickets_unsent == 118
    assert (never["done_ns"] == report.measure_end_ns).all()
    assert report.bytes_written == samples["bytes_sent"].sum()


def test_a_worker_that_is_killed_leaves_whole_samples_once_and_no_report(tmp_path: Path) -> None:
    with bulk_server() as server:
        plan = plan_for(server.address, tmp_path, measure_ns=60 * SECOND)
        process = start(plan)
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
        assert (own["planned_ns"][1:] >= own["done_ns"][:-1]).all()
    assert not (plan.out / "load.json").exists()
