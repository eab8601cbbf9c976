"""The shape of whole loads over time: users that start one after another and think, loads at the same time."""

from __future__ import annotations

import dataclasses
import functools
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import test_load_process
from bulk_server import answer, bulk_server
from test_load_process import samples_of

from ingest_bench.errors import RunFailed
from ingest_bench.load import supervisor
from ingest_bench.load.plan import LoadPlan
from ingest_bench.load.supervisor import Progress, start_load
from ingest_bench.model.samples import WorkerReport
from ingest_bench.model.target import Endpoint

pytestmark = pytest.mark.processes

MS = 10**6
plan_for = functools.partial(test_load_process.plan_for, warm_up_ns=0, measure_ns=1000 * MS)


@pytest.mark.parametrize("processes", [1, 2])
def test_users_start_one_after_another_over_the_ramp(tmp_path: Path, processes: int) -> None:
    options: dict[str, Any] = {"users": 4, "ramp_up_ns": 1200 * MS, "warm_up_ns": 1200 * MS, "measure_ns": 500 * MS}
    with bulk_server() as server:
        plan = plan_for(server.address, tmp_path, processes=processes, **options)
        report = start_load(plan).wait(lambda _: None)
    samples = samples_of(plan)
    for user in range(4):
        first_ns = samples["scheduled_ns"][samples["user"] == user].min() - report.started_monotonic_ns
        assert 300 * MS * user <= first_ns < 300 * MS * user + 250 * MS
    assert report.warm_up_end_ns - report.started_monotonic_ns == 1200 * MS


def test_think_time_is_not_part_of_the_response_time(tmp_path: Path) -> None:
    with bulk_server() as server:
        plan = plan_for(server.address, tmp_path, users=1, think_time_ns=100 * MS)
        start_load(plan).wait(lambda _: None)
    samples = samples_of(plan)
    assert 5 <= len(samples) <= 10
    assert np.median(samples["done_ns"] - samples["scheduled_ns"]) < 50 * MS
    assert (samples["scheduled_ns"][1:] - samples["done_ns"][:-1]).min() >= 100 * MS


def test_a_long_think_time_does_not_delay_the_end(tmp_path: Path) -> None:
    with bulk_server() as server:
        load = start_load(plan_for(server.address, tmp_path, users=2, think_time_ns=3600 * 10**9))
        load.wait_until_ready()
        began = time.monotonic()
        report = load.wait(lambda _: None)
    assert time.monotonic() - began < 10
    assert len(samples_of(plan_for(server.address, tmp_path))) == 2
    assert report.errors == ()


def waited(plans: list[LoadPlan], ends_all: list[bool]) -> tuple[list[WorkerReport], list[Progress]]:
    heard: list[Progress] = []
    loads = supervisor.start_loads(plans, tuple, ends_all=ends_all, reports_figures=True)
    return loads.wait_for_all(heard.append), heard


def test_simultaneous_loads_have_separate_samples(tmp_path: Path) -> None:
    with bulk_server() as server:
        plans = [plan_for(server.address, tmp_path / name, users=users) for name, users in (("a", 1), ("b", 3))]
        reports, heard = waited(plans, [False, False])
    a, b = (samples_of(plan) for plan in plans)
    assert (set(a["user"]), set(b["user"])) == ({0}, {0, 1, 2})
    assert max(a["sent_ns"].min(), b["sent_ns"].min()) < min(a["done_ns"].max(), b["done_ns"].max())
    assert int(a["documents_acked"].sum() + b["documents_acked"].sum()) == server.documents
    assert [report.bytes_written for report in reports] == [int(load["bytes_sent"].sum()) for load in (a, b)]
    assert max(progress.documents for progress in heard) <= server.documents
    last = heard[-1].figures
    assert last is not None
    assert last.bulks.documents == {"acknowledged": server.documents}
    assert sum(last.cpu_ns.values()) >= sum(report.cpu_ns for report in reports)


def test_the_load_that_ends_all_ends_the_others_in_order(tmp_path: Path) -> None:
    with bulk_server() as server:
        short = plan_for(server.address, tmp_path / "short", measure_ns=500 * MS)
        long = plan_for(server.address, tmp_path / "long", measure_ns=3600 * 10**9)
        began = time.monotonic()
        reports, _ = waited([long, short], [False, True])
    assert time.monotonic() - began < 60
    assert [report.errors for report in reports] == [(), ()]
    assert int(sum(samples_of(plan)["documents_acked"].sum() for plan in (short, long))) == server.documents


def test_a_load_that_cannot_be_prepared_ends_the_others_at_once(tmp_path: Path) -> None:
    good, bad = (plan_for(Endpoint("127.0.0.1", 1), tmp_path / name) for name in ("good", "bad"))
    bad = dataclasses.replace(bad, server=dataclasses.replace(bad.server, has_credentials=True))
    began = time.monotonic()
    with pytest.raises(RunFailed, match="the server requires credentials"):
        waited([good, bad], [True, False])
    assert time.monotonic() - began < 40


@pytest.mark.nightly
def test_a_failed_load_ends_the_others_and_is_named(tmp_path: Path) -> None:
    with bulk_server() as server, bulk_server(lambda *_: answer(b"{}", "400 Bad Request")) as refusing:
        good = plan_for(server.address, tmp_path / "good", measure_ns=3600 * 10**9)
        bad = plan_for(refusing.address, tmp_path / "bad", measure_ns=3600 * 10**9)
        with pytest.raises(RunFailed, match="every request failed"):
            waited([good, bad], [False, False])
        assert int(samples_of(good)["documents_acked"].sum()) == server.documents > 0
