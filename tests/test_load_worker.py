"""A load worker in this process, led by a runner of Locust's own: what it does, and when."""

from __future__ import annotations

import dataclasses
import gc
import inspect
import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gevent
import numpy as np
import pytest
from bulk_server import accept_all, answer, bulk_server
from gevent.hub import get_hub
from test_load_process import plan_for

from ingest_bench.documents.body import Body
from ingest_bench.errors import RunFailed
from ingest_bench.inputs.rates import parse_arrivals
from ingest_bench.load.live.figures import from_lines
from ingest_bench.load.plan import LoadPlan
from ingest_bench.load.supervisor import start_delay_ns
from ingest_bench.model.samples import SAMPLE
from ingest_bench.model.target import Endpoint
from ingest_bench.model.workload import Query

with pytest.MonkeyPatch.context() as patched:
    # As in `test_users`: Locust would let gevent patch the whole process.
    patched.setenv("LOCUST_SKIP_MONKEY_PATCH", "1")
    from locust.env import Environment
    from locust.exception import StopUser

    from ingest_bench.load import worker
    from ingest_bench.load.fleet import fleet_worker
    from ingest_bench.load.fleet.fleet_worker import FleetWorker
    from ingest_bench.load.users.ingest import TicketUser
    from ingest_bench.load.work import Work

MS = 10**6


class Here:
    """Leads a worker in this process."""

    def __init__(self, start_in_ns: int = 0, *, stops: bool = False) -> None:
        self.runner: Any = Environment(catch_exceptions=False).create_local_runner()
        self.said: list[dict[str, Any]] = []
        self._start_in_ns = start_in_ns
        self._stops = stops
        self.began_ns = 0

    def say(self, **line: Any) -> None:
        self.said.append({**line, "at_ns": time.monotonic_ns()})

    def ends(self, stop: Callable[[], None]) -> None:
        if self._stops:
            gevent.spawn(stop)

    def spawned(self, classes: Sequence[Any], failed: Callable[[], str]) -> None:
        del failed
        self.runner.environment.user_classes = list(classes)
        self.runner.spawn_users({one.__name__: one.fixed_count for one in classes})

    def start_ns(self) -> int:
        self.began_ns = time.monotonic_ns() + self._start_in_ns
        return self.began_ns


@pytest.fixture(autouse=True)
def process_of_its_own() -> Iterator[None]:
    """What a worker changes in its process is as it was."""
    hub: Any = get_hub()
    usual = hub.handle_error
    yield
    hub.handle_error = usual
    gc.unfreeze()


def sent(folder: Path, lead: Here, **options: Any) -> tuple[LoadPlan, Any]:
    """A whole load of this worker, and its samples."""
    with bulk_server() as server:
        plan = plan_for(server.address, folder, **{"warm_up_ns": 0, "measure_ns": 300 * MS} | options).checked()
        plan.out.mkdir()
        worker.send(plan, lead)
    return plan, np.fromfile(plan.samples, dtype=SAMPLE)


def test_at_the_end_no_user_is_left_and_nobody_looks_through_all_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []
    usual = inspect.stack

    def look(context: int = 1) -> list[inspect.FrameInfo]:
        looked.append(context)
        return usual(context)

    monkeypatch.setattr(inspect, "stack", look)
    lead = Here()
    _, samples = sent(tmp_path, lead)
    assert len(samples) > 0
    assert lead.said[-1]["phase"] == "done"
    assert lead.runner.user_count == 0
    assert looked == []


@pytest.mark.parametrize("arrivals", ["closed", "200/s"])
def test_before_the_start_nothing_is_sent_or_said_and_everything_is_opened(tmp_path: Path, arrivals: str) -> None:
    lead = Here(start_in_ns=50 * MS)
    options = {} if arrivals == "closed" else {"arrivals": parse_arrivals(arrivals)}
    plan, samples = sent(tmp_path, lead, **options)
    said = {line["phase"]: line["at_ns"] for line in reversed(lead.said)}
    assert said.pop("ready") < lead.began_ns <= min(said.values())
    assert samples["planned_ns"].min() >= lead.began_ns
    report = json.loads(plan.report.read_text())
    assert report["started_monotonic_ns"] == lead.began_ns
    assert report["measure_end_ns"] <= lead.began_ns + plan.measure_ns


def test_a_load_that_is_stopped_before_its_start_ends_at_its_start(tmp_path: Path) -> None:
    lead = Here(start_in_ns=50 * MS, stops=True)
    plan, samples = sent(tmp_path, lead)
    report = json.loads(plan.report.read_text())
    assert report["measure_end_ns"] == report["started_monotonic_ns"] == lead.began_ns
    assert time.monotonic_ns() >= lead.began_ns
    assert len(samples) == 0


def test_the_last_figures_are_those_of_all_samples_bulks_and_queries(tmp_path: Path) -> None:
    found = answer(b'{"took":1,"timed_out":false,"_shards":{"total":1,"failed":0}}')
    lead = Here()
    with bulk_server(lambda body, number: found if b"match_all" in body else accept_all(body, number)) as server:
        options = {"query_users": 1, "query_arrivals": parse_arrivals("100/s")}
        plan = plan_for(server.address, tmp_path, warm_up_ns=0, measure_ns=200 * MS, **options)
        workload = dataclasses.replace(plan.workload, queries=(Query(name="q", body={"query": {"match_all": {}}}),))
        plan = dataclasses.replace(plan, workload=workload, search_path="/tiny/_search", tells_figures=True).checked()
        plan.out.mkdir()
        worker.send(plan, lead)
    last = from_lines([lead.said[-1]["figures"]])
    bulks, queries = (np.fromfile(file, dtype=SAMPLE) for file in (plan.samples, plan.query_samples))
    assert last.bulks.requests == len(bulks) > 0
    assert last.queries.requests == len(queries) == 20


def test_the_lines_of_many_workers_are_spread_and_those_of_few_are_not_late(tmp_path: Path) -> None:
    apart_ns = []
    for worker_number, workers in ((0, 1), (1, 2), (1, 1000), (999, 1000)):
        plan = dataclasses.replace(plan_for(Endpoint("127.0.0.1", 1), tmp_path), worker=worker_number, workers=workers)
        apart_ns.append(worker.told_after_ns(plan))
    assert apart_ns == [0, 2_500_000, 500_000, 499_500_000]


def test_the_more_workers_there_are_the_earlier_they_are_told_of_the_start() -> None:
    assert [start_delay_ns(workers, is_far=False) for workers in (1, 4)] == [202 * MS, 208 * MS]
    assert [start_delay_ns(workers, is_far=True) for workers in (1, 200, 1000)] == [1002 * MS, 1400 * MS, 3000 * MS]


def test_a_user_has_its_bodies_before_the_load_begins() -> None:
    asked: list[int] = []

    def for_user(user: int) -> Iterator[Body]:
        asked.append(user)
        return iter(())

    nothing: Any = None
    source: Any = SimpleNamespace(for_user=for_user)
    work = Work(source=source, recorder=nothing, users=range(3, 4))
    user = type("User", (TicketUser,), {"abstract": False, "pumps": False, "work": work, "number": 3})(Environment())
    waits = gevent.spawn(user.send_until_the_end)
    gevent.sleep(0)
    assert asked == [3]
    assert not waits.ready()
    work.close_tickets()
    with pytest.raises(StopUser):
        waits.get(timeout=60)


def test_a_user_that_fails_before_it_is_ready_ends_the_load_with_its_text() -> None:
    lead = FleetWorker({"seat": 0})
    lead.runner = Environment().create_local_runner()
    with pytest.raises(RunFailed, match="no memory is left"):
        lead.spawned([type("User", (TicketUser,), {"fixed_count": 1})], lambda: "no memory is left")


def test_a_worker_that_is_given_up_before_it_has_looked_at_its_plan_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[dict[str, Any]] = []
    lead, nobody = FleetWorker({"seat": None}), Environment()
    monkeypatch.setattr(lead, "end", lambda code, **last: ended.append({"code": code, **last}))
    for kind in ("plan", "released"):
        lead._hear(nobody, SimpleNamespace(type=kind, data={}))
    gevent.sleep(0)
    assert ended == [{"code": 0, "last": "released"}]


def test_a_worker_does_not_look_all_the_time_whether_its_users_may_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def look_again(_: float) -> None:
        raise AssertionError("it looks again after a moment")

    monkeypatch.setattr(fleet_worker, "gevent", SimpleNamespace(sleep=look_again))
    lead = FleetWorker({"seat": 0})
    lead.runner = Environment().create_local_runner()
    waits = gevent.spawn(lead.spawned, [type("User", (TicketUser,), {"fixed_count": 1})], str)
    gevent.sleep(0.001)
    assert not waits.ready()
    waits.kill()
