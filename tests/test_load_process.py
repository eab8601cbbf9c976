"""Whole loads: real worker processes against a small real server on loopback."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from bulk_server import accept_all, answer, bulk_server, documents_in
from hanging_proxy import hanging_proxy
from numpy.typing import NDArray
from processes import wait_until_gone

from ingest_bench.analysis.run.sample_columns import load_columns, measurement_window
from ingest_bench.errors import RunFailed, SpecError
from ingest_bench.inputs.load_values import parse_arrivals
from ingest_bench.load.arrivals import schedule
from ingest_bench.load.plan import LoadPlan
from ingest_bench.load.supervisor import Progress, start_load
from ingest_bench.model.load import Arrivals, BulkAction, LoadOptions, ProtocolOptions, Step, Workload
from ingest_bench.model.samples import OUTCOMES, SAMPLE, WorkerReport
from ingest_bench.model.target import Endpoint, ServerAddress

pytestmark = pytest.mark.processes

BULK_DOCUMENTS = 10
WORKLOAD = Workload(
    name="tiny",
    description="",
    source="",
    index="tiny",
    published_documents=1000,
    published_bytes=12_000,
    bulk_documents=BULK_DOCUMENTS,
    users=4,
    mapping={},
    fields=(),
)


def documents_of(folder: Path, count: int = 1000) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "documents.json"
    path.write_text("".join(f'{{"n":{number}}}\n' for number in range(count)))
    return path


def plan_for(address: Endpoint, folder: Path, *, step: Step | None = None, **options: Any) -> LoadPlan:
    chosen: dict[str, Any] = {"warm_up_ns": 200_000_000, "measure_ns": 600_000_000} | options
    if step is None:
        chosen.setdefault("documents", str(documents_of(folder)))
    return LoadPlan(
        server=ServerAddress(endpoint=address),
        wire=ProtocolOptions(keys={"path": "/tiny/_bulk"}),
        workload=WORKLOAD,
        options=LoadOptions(**chosen),
        folder=folder / "out",
        files=step.files if step else (),
        step=step,
    )


def loaded(plan: LoadPlan) -> tuple[WorkerReport, NDArray[np.void], list[Progress]]:
    heard: list[Progress] = []
    report = start_load(plan).wait(heard.append)
    return report, samples_of(plan), heard


def samples_of(plan: LoadPlan) -> NDArray[np.void]:
    files = sorted(plan.folder.glob("samples-*.bin"))
    return np.concatenate([np.fromfile(file, dtype=SAMPLE) for file in files])


def outcomes(samples: NDArray[np.void]) -> set[str]:
    return {OUTCOMES[index] for index in samples["outcome"]}


def test_samples_and_report_agree_with_what_the_server_saw(tmp_path: Path) -> None:
    with bulk_server() as server:
        report, samples, heard = loaded(plan_for(server.address, tmp_path))
    assert report.bytes_written == server.bytes_read == samples["bytes_sent"].sum()
    assert samples["documents_acked"].sum() == server.documents == heard[-1].documents
    assert len(samples) == server.requests > 0
    assert set(report.local_ports) == server.ports == set(samples["local_port"])
    assert (samples["sent_ns"] < samples["written_ns"]).all()
    assert (samples["written_ns"] <= samples["first_byte_ns"]).all()
    assert (samples["first_byte_ns"] <= samples["done_ns"]).all()
    assert len(server.ports) == WORKLOAD.users
    assert outcomes(samples) == {"ok"}
    assert set(samples["user"]) == set(range(WORKLOAD.users))
    assert report.errors == ()
    assert json.loads((tmp_path / "out" / "load.json").read_text())["bytes_written"] == server.bytes_read
    assert (samples["scheduled_ns"] <= samples["sent_ns"]).all()
    assert samples["scheduled_ns"].min() >= report.started_monotonic_ns
    assert samples["scheduled_ns"].max() < report.measure_end_ns
    assert report.warm_up_end_ns - report.started_monotonic_ns == 200_000_000
    assert report.measure_end_ns - report.warm_up_end_ns == 600_000_000
    assert heard[-1].phase == "done"
    request_line, *headers = server.heads[0].decode().split("\r\n")
    assert request_line == "POST /tiny/_bulk HTTP/1.1"
    assert {f"host: {server.address}", "content-type: application/x-ndjson"} <= set(headers)


@pytest.mark.parametrize(
    "little",
    [{"arrivals": parse_arrivals("1/s")}, {"ramp_up_ns": 2 * 10**9, "users": 2}, {"measure_documents": 1}],
)
def test_a_process_without_arrivals_does_not_fail_the_load(tmp_path: Path, little: dict[str, Any]) -> None:
    with bulk_server() as server:
        _, samples, _ = loaded(plan_for(server.address, tmp_path, processes=2, warm_up_ns=0, **little))
    assert outcomes(samples) == {"ok"}
    assert samples["documents_acked"].sum() == server.documents > 0


def test_a_process_whose_parent_is_silent_ends_its_load(tmp_path: Path) -> None:
    with bulk_server() as server:
        load = start_load(plan_for(server.address, tmp_path, measure_ns=60 * 10**9))
        load.wait_until_ready()
        load._workers.command({"do": "alive", "timeout_s": 1.0})
        report = load.wait(lambda _: None)
    assert 0 < report.measure_end_ns - report.started_monotonic_ns < 30 * 10**9


@pytest.mark.parametrize("processes", [1, 2])
def test_a_number_of_documents_ends_the_measurement(tmp_path: Path, processes: int) -> None:
    with bulk_server() as server:
        plan = plan_for(server.address, tmp_path, measure_documents=1000, processes=processes, warm_up_ns=10**8)
        report, samples, _ = loaded(plan)
    measured = samples[(samples["done_ns"] >= report.warm_up_end_ns) & (samples["done_ns"] < report.measure_end_ns)]
    # With the last one others may come whose requests were under way already.
    assert (
        1000
        <= measured["documents_acked"].sum()
        <= 1000 + processes * len(set(samples["user"])) * measured["documents"].max()
    )
    assert report.measure_end_ns - report.warm_up_end_ns < 5 * 10**9


def test_gzip_bodies_and_parameters_of_the_bulk_are_sent_as_chosen(tmp_path: Path) -> None:
    action = BulkAction(pipeline="attach", refresh="wait_for")
    with bulk_server(lambda _body, _number: answer(b'{"errors":false}')) as server:
        server.keep_bodies = True
        report, samples, _ = loaded(plan_for(server.address, tmp_path, gzip=True, action=action))
    assert server.heads[0].startswith(b"POST /tiny/_bulk?pipeline=attach&refresh=wait_for HTTP/1.1\r\n")
    assert b"\r\ncontent-encoding: gzip\r\n" in server.heads[0]
    assert documents_in(gzip.decompress(server.bodies[0])) == BULK_DOCUMENTS
    assert report.bytes_written == server.bytes_read
    assert samples["documents_acked"].sum() == BULK_DOCUMENTS * server.requests


def test_no_two_users_give_the_same_id(tmp_path: Path) -> None:
    action = BulkAction(conflicts="sequential", conflict_probability_ppm=500_000)
    packed = tmp_path / "documents.json.gz"
    packed.write_bytes(gzip.compress(documents_of(tmp_path).read_bytes()))
    with bulk_server() as server:
        server.keep_bodies = True
        plan = plan_for(server.address, tmp_path, action=action, processes=2, documents=str(packed))
        report, samples, _ = loaded(plan)
    assert not list(plan.folder.glob("decompressed-*"))
    ids = [json.loads(line)["index"]["_id"] for body in server.bodies for line in body.splitlines()[::2]]
    assert len(ids) == samples["documents_acked"].sum()
    assert len(set(ids)) == len(ids) - report.documents_repeated < len(ids)


def test_a_worker_without_file_descriptors_ends_the_load(tmp_path: Path) -> None:
    def few(argv: Sequence[str]) -> tuple[str, ...]:
        return ("sh", "-c", 'ulimit -n 32; exec "$@"', "sh", *argv)

    with bulk_server() as server:
        plan = plan_for(server.address, tmp_path, users=64, measure_ns=60 * 10**9)
        with pytest.raises(RunFailed, match="Too many open files"):
            start_load(plan, few).wait(lambda _: None)


@pytest.mark.parametrize(("text", "message"), [("", "documents.json"), ('{"a":1}\n{"b":\n', "line 2 is not JSON")])
def test_a_damaged_corpus_is_refused_before_anything_starts(tmp_path: Path, text: str, message: str) -> None:
    plan = plan_for(Endpoint("127.0.0.1", 1), tmp_path)
    (tmp_path / "documents.json").write_text(text)
    with pytest.raises(SpecError, match=message):
        start_load(plan)
    assert not list(plan.folder.glob("load-*"))


def test_requests_in_flight_at_the_end_get_their_responses(tmp_path: Path) -> None:
    def slow(body: bytes, number: int) -> bytes:
        time.sleep(0.5)
        return accept_all(body, number)

    with bulk_server(slow) as server:
        report, samples, _ = loaded(plan_for(server.address, tmp_path))
    assert outcomes(samples) == {"ok"}
    assert samples["done_ns"].max() > report.measure_end_ns
    assert samples["documents_acked"].sum() == server.documents


def test_a_server_without_responses_ends_the_load_early(tmp_path: Path) -> None:
    stuck = threading.Event()

    def never(_body: bytes, _number: int) -> None:
        stuck.wait(60)

    with bulk_server(never) as server:
        plan = plan_for(server.address, tmp_path, timeout_ns=300_000_000, measure_ns=60 * 10**9)
        began = time.monotonic()
        with pytest.raises(RunFailed, match=r"every request failed .*no response in time"):
            loaded(plan)
        assert time.monotonic() - began < 50
        stuck.set()
    assert outcomes(samples_of(plan)) == {"timeout"}


def test_a_rate_of_documents_is_kept(tmp_path: Path) -> None:
    with bulk_server() as server:
        loaded(plan_for(server.address, tmp_path, arrivals=parse_arrivals("1000docs/s")))
    assert server.documents == 800


def test_reset_requests_have_the_times_that_a_proxy_measured(tmp_path: Path) -> None:
    hang_s = 0.5
    with bulk_server() as server, hanging_proxy(server.address, every=5, hang_s=hang_s) as proxy:
        plan = plan_for(proxy.address, tmp_path, warm_up_ns=0, measure_ns=3 * 10**9)
        report, samples, _ = loaded(plan)
    row = load_columns(samples, measurement_window(report))
    assert row["requests"] == len(samples) == len(proxy.requests)
    assert row["requests_failed"] == proxy.resets == len(proxy.requests) // 5 > 10
    ours_ns = np.sort(samples["done_ns"] - samples["scheduled_ns"])
    theirs_ns = np.sort([request.took_ns for request in proxy.requests])
    # The load's times begin before the proxy's and end after them.
    assert (ours_ns >= theirs_ns).all()
    assert np.median(ours_ns - theirs_ns) < 0.1 * 10**9
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


def test_a_stalled_server_shows_in_response_time_not_in_service_time(tmp_path: Path) -> None:
    def stalls_once(body: bytes, number: int) -> bytes:
        if number == 40:
            time.sleep(1)
        return accept_all(body, number)

    with bulk_server(stalls_once) as server:
        plan = plan_for(
            server.address, tmp_path, arrivals=parse_arrivals("100/s"), users=1, measure_ns=2 * 10**9, warm_up_ns=0
        )
        report, samples, _ = loaded(plan)
    response_ns, service_ns = samples["done_ns"] - samples["scheduled_ns"], samples["done_ns"] - samples["sent_ns"]
    assert len(samples) == 200
    assert (service_ns > 500_000_000).sum() < 5
    assert (response_ns > 500_000_000).sum() > 40
    assert report.arrivals_waited >= 90


def test_workers_share_a_schedule_and_send_at_its_times(tmp_path: Path) -> None:
    with bulk_server() as server:
        plan = plan_for(server.address, tmp_path, arrivals=parse_arrivals("poisson 300/s"), processes=2)
        report, samples, _ = loaded(plan)
    planned = sorted(samples["scheduled_ns"] - report.started_monotonic_ns)
    alone = itertools.takewhile(lambda at_ns: at_ns < 800_000_000, schedule(plan.options.arrivals, seed=1))
    assert planned == list(alone)
    assert (samples["sent_ns"] >= samples["scheduled_ns"]).all()
    assert report.is_open_loop
    assert samples["documents_acked"].sum() == server.documents


def test_recorded_arrivals_are_sent_and_a_damaged_file_is_refused(tmp_path: Path) -> None:
    recording = tmp_path / "times.txt"
    recording.write_text("10.5\n10.6\n10.6\n11.0\n")
    arrivals = Arrivals(shape="recorded", file=str(recording))
    with bulk_server() as server:
        plan = plan_for(server.address, tmp_path, arrivals=arrivals, measure_ns=60 * 10**9)
        report, samples, _ = loaded(plan)
        planned = sorted(samples["scheduled_ns"] - report.started_monotonic_ns)
        assert planned == [0, 100_000_000, 100_000_000, 500_000_000]
        assert report.measure_end_ns - report.started_monotonic_ns < 30 * 10**9
        recording.write_text("2\n1\n")
        with pytest.raises(SpecError, match=r"times\.txt:2"):
            start_load(plan)


def test_a_worker_that_is_killed_ends_the_load_with_its_name_and_leaves_its_samples(tmp_path: Path) -> None:
    with bulk_server() as server:
        plan = plan_for(server.address, tmp_path, processes=2, measure_ns=60 * 10**9)
        process = start_load(plan)
        killed: list[int] = []

        def kill(progress: Progress) -> None:
            if progress.phase == "measure" and not killed:
                killed.append(process.pids[1])
                os.kill(killed[0], signal.SIGKILL)

        with pytest.raises(RunFailed, match="load worker 2 of 2 was killed by signal 9"):
            process.wait(kill)
        with pytest.raises(ProcessLookupError):
            os.kill(process.pids[0], 0)
    samples = samples_of(plan)
    assert "ok" in outcomes(samples)
    assert 0 < samples["documents_acked"].sum() <= server.documents
    for user in set(samples["user"]):
        own = samples[samples["user"] == user]
        assert (own["scheduled_ns"][1:] >= own["done_ns"][:-1]).all()
    assert not (plan.folder / "load.json").exists()


def test_stop_ends_a_load_in_order_and_its_samples_stay(tmp_path: Path) -> None:
    with bulk_server() as server:
        plan = plan_for(server.address, tmp_path, measure_ns=60 * 10**9)
        process = start_load(plan)

        def enough(progress: Progress) -> None:
            if progress.documents:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            process.wait(enough)
    assert samples_of(plan)["documents_acked"].sum() == server.documents
    assert json.loads(plan.report_file.read_text())["bytes_written"] == server.bytes_read


def test_workers_share_users_and_bodies_without_duplicates(tmp_path: Path) -> None:
    with bulk_server() as server:
        server.keep_bodies = True
        report, samples, _ = loaded(plan_for(server.address, tmp_path, processes=2))
    assert report.bytes_written == server.bytes_read
    assert samples["documents_acked"].sum() == server.documents
    assert set(samples["user"]) == set(range(WORKLOAD.users))
    assert len(set(report.local_ports)) == WORKLOAD.users
    # However often a body was sent: each document is in one body only.
    documents = [line for body in set(server.bodies) for line in body.splitlines()[1::2]]
    assert len(documents) == len(set(documents)) == 1000


def test_if_one_worker_cannot_start_no_other_is_left(tmp_path: Path) -> None:
    plan = plan_for(Endpoint("127.0.0.1", 1), tmp_path, processes=3)
    (plan.folder / "load-2.log").mkdir(parents=True)
    before = psutil.Process().children()
    with pytest.raises(IsADirectoryError):
        start_load(plan)
    assert psutil.Process().children() == before
    assert (plan.folder / "load-1.log").is_file()


def test_a_worker_ends_when_its_supervisor_is_killed(tmp_path: Path) -> None:
    with bulk_server() as server:
        plan = plan_for(server.address, tmp_path, measure_ns=60 * 10**9)
        (tmp_path / "plan.json").write_text(json.dumps(plan.to_json()))
        code = f"""
import json, os
from pathlib import Path
from ingest_bench.inputs.records import from_json
from ingest_bench.load.plan import LoadPlan
from ingest_bench.load.supervisor import start_load

def die(progress):
    if progress.phase == "measure":
        print(process.pids[0], flush=True)
        os.kill(os.getpid(), 9)

process = start_load(from_json(LoadPlan, json.loads(Path({str(tmp_path / "plan.json")!r}).read_text())))
process.wait(die)
"""
        message = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=False, timeout=300).stdout
        with suppress(psutil.NoSuchProcess):
            wait_until_gone([psutil.Process(int(message))], seconds=30)
