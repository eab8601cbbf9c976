"""A load worker in this process, with Locust's LocalRunner: what it does, and when."""

from __future__ import annotations

import dataclasses
import gc
import inspect
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gevent
import numpy as np
import pytest
import unpatched_locust  # noqa: F401 - before Locust
from bulk_server import Reply, accept_all, answer, bulk_server
from gevent.hub import get_hub
from locust.env import Environment
from locust.exception import StopUser
from test_load_process import plan_for

from ingest_bench.documents.body import Body
from ingest_bench.errors import RunFailed
from ingest_bench.inputs.load_values import parse_arrivals
from ingest_bench.inputs.records import from_json
from ingest_bench.load import page, recorder, worker
from ingest_bench.load.figures import EDGES_NS, LoadFigures, RequestFigures
from ingest_bench.load.fleet.worker import FleetMember
from ingest_bench.load.plan import LoadPlan
from ingest_bench.load.supervisor import LocalWorker
from ingest_bench.load.users import ScheduledUser
from ingest_bench.load.worker_state import WorkerState
from ingest_bench.model.load import BulkAction, Query
from ingest_bench.model.samples import CPU_MARK, OUTCOMES, SAMPLE
from ingest_bench.model.target import Endpoint

MS = 10**6


class Leader:
    """Leads a worker in this process, without a supervisor."""

    def __init__(self, start_in_ns: int = 0, *, stops: bool = False) -> None:
        self.runner: Any = Environment(catch_exceptions=False).create_local_runner()
        self.statuses: list[dict[str, Any]] = []
        self._start_in_ns = start_in_ns
        self._stops = stops
        self.start_ns = 0

    def report(self, **status: Any) -> None:
        self.statuses.append({**status, "at_ns": time.monotonic_ns()})

    def on_stop(self, stop: Callable[[], None]) -> None:
        if self._stops:
            gevent.spawn(stop)

    def wait_for_spawn(self) -> None:
        """The users may start at once."""

    def wait_for_start(self) -> int:
        self.start_ns = time.monotonic_ns() + self._start_in_ns
        return self.start_ns


@pytest.fixture(autouse=True)
def restore_process() -> Iterator[None]:
    """Undo what a worker changes in its process."""
    hub: Any = get_hub()
    handle_error = hub.handle_error
    # A worker collects its garbage before the load; that of thousands of other tests would take half a second.
    gc.freeze()
    yield
    hub.handle_error = handle_error
    gc.unfreeze()


def send(
    folder: Path, leader: Any, reply: Reply = accept_all, *, fields: dict[str, Any] | None = None, **options: Any
) -> tuple[LoadPlan, Any]:
    """Send a whole load of one worker; return its plan and its samples. *fields* are those of the plan."""
    with bulk_server(reply) as server:
        plan = plan_for(server.address, folder, **{"warm_up_ns": 0, "measure_ns": 300 * MS} | options)
        workload = dataclasses.replace(plan.workload, queries=(Query(name="q", body={"query": {"match_all": {}}}),))
        common: dict[str, Any] = {"workload": workload, "search_path": "/tiny/_search", "reports_figures": True}
        plan = dataclasses.replace(plan, **common | (fields or {})).with_checked_files()
        plan.folder.mkdir(exist_ok=True)
        worker.send_load(plan, leader)
    return plan, np.fromfile(plan.record_file("samples"), dtype=SAMPLE)


def test_at_the_end_no_user_is_left_and_no_stack_is_inspected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inspected: list[int] = []
    stack = inspect.stack

    def record(context: int = 1) -> list[inspect.FrameInfo]:
        inspected.append(context)
        return stack(context)

    monkeypatch.setattr(inspect, "stack", record)
    leader: Any = Leader()
    _, samples = send(tmp_path, leader)
    assert len(samples) > 0
    assert leader.statuses[-1]["phase"] == "done"
    assert leader.runner.user_count == 0
    assert inspected == []


@pytest.mark.parametrize("arrivals", ["closed", "200/s"])
def test_nothing_is_sent_or_reported_before_the_start(tmp_path: Path, arrivals: str) -> None:
    leader: Any = Leader(start_in_ns=50 * MS)
    plan, samples = send(tmp_path, leader, arrivals=parse_arrivals(arrivals))
    first_at_ns = {status["phase"]: status["at_ns"] for status in reversed(leader.statuses)}
    assert first_at_ns.pop("ready") < leader.start_ns <= min(first_at_ns.values())
    assert samples["scheduled_ns"].min() >= leader.start_ns
    report = json.loads(plan.report_file.read_text())
    assert report["started_monotonic_ns"] == leader.start_ns
    assert report["measure_end_ns"] <= leader.start_ns + plan.measure_ns


def test_a_load_that_is_stopped_before_its_start_ends_at_its_start(tmp_path: Path) -> None:
    leader: Any = Leader(start_in_ns=50 * MS, stops=True)
    plan, samples = send(tmp_path, leader)
    report = json.loads(plan.report_file.read_text())
    assert report["measure_end_ns"] == report["started_monotonic_ns"] == leader.start_ns
    assert time.monotonic_ns() >= leader.start_ns
    assert len(samples) == 0


def search_too(body: bytes, number: int) -> bytes:
    search_response = answer(b'{"took":1,"timed_out":false,"_shards":{"total":1,"failed":0}}')
    return search_response if b"match_all" in body else accept_all(body, number)


@pytest.mark.parametrize(("query_users", "counts"), [(1, [30, 0]), (3, [15, 15])])
def test_workers_share_the_query_users_and_their_arrivals(tmp_path: Path, query_users: int, counts: list[int]) -> None:
    sent = []
    for number in range(2):
        fields = {"worker": number, "workers": 2}
        options: dict[str, Any] = {"query_users": query_users, "query_arrivals": parse_arrivals("100/s")}
        plan, _ = send(tmp_path, Leader(), search_too, fields=fields, **options)
        file = plan.record_file("queries")
        assert file.exists() == (file in plan.output_files)
        sent.append(len(np.fromfile(file, dtype=SAMPLE)) if file.exists() else 0)
    assert sent == counts


def test_the_last_figures_include_all_samples_of_bulks_and_queries(tmp_path: Path) -> None:
    leader: Any = Leader()
    plan, bulks = send(tmp_path, leader, search_too, query_users=1, query_arrivals=parse_arrivals("100/s"))
    last = from_json(LoadFigures, json.loads(json.dumps(leader.statuses[-1]["figures"])))
    assert last.bulks.requests == len(bulks) > 0
    assert last.queries.requests == len(np.fromfile(plan.record_file("queries"), dtype=SAMPLE)) == 30


def test_the_worker_marks_its_cpu_regularly_from_start_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "_MARK_NS", 100 * MS)
    leader: Any = Leader(start_in_ns=50 * MS)
    plan, _ = send(tmp_path, leader)
    report = json.loads(plan.report_file.read_text())
    marks = np.fromfile(plan.record_file("cpu"), dtype=CPU_MARK)
    assert len(marks) >= 4
    assert marks["at_ns"][0] <= leader.start_ns
    assert marks["at_ns"][-1] >= report["measure_end_ns"]
    for name in ("at_ns", "user_ns", "system_ns"):
        assert (np.diff(marks[name]) >= 0).all()
    used_ns = sum(int(marks[name][-1] - marks[name][0]) for name in ("user_ns", "system_ns"))
    assert report["cpu_ns"] == used_ns > 0


def test_requests_without_a_response_at_the_end_are_cut_off_with_their_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "_DRAIN_NS", 100 * MS)
    monkeypatch.setattr(worker, "_STATUS_INTERVAL_NS", 20 * MS)

    def reply(body: bytes, number: int) -> bytes:
        if number > 10:
            time.sleep(1)
        return accept_all(body, number)

    leader: Any = Leader()
    plan, samples = send(tmp_path, leader, reply, users=2, arrivals=parse_arrivals("200/s"))
    report = json.loads(plan.report_file.read_text())
    assert len(samples) == len(set(samples["scheduled_ns"])) == 60
    cut = samples[samples["outcome"] == OUTCOMES.index("cut-off")]
    under_way, never = cut[cut["attempts"] == 1], cut[cut["attempts"] == 0]
    assert (len(samples) - len(cut), len(under_way)) == (10, 2)
    # They were drained until the limit.
    assert (under_way["done_ns"] >= report["measure_end_ns"] + 100 * MS).all()
    assert len(never) == report["arrivals_unsent"] == 48
    assert (never["done_ns"] == report["measure_end_ns"]).all()
    assert never["documents"].sum() == never["bytes_sent"].sum() == 0
    assert report["bytes_written"] == samples["bytes_sent"].sum()
    *_, waiting = (status["figures"] for status in leader.statuses if status["phase"] == "measure")
    assert waiting["in_flight"] == 2
    assert 0 < waiting["oldest_ns"] < 300 * MS


class Store:
    """A server that keeps documents by their id, as Elasticsearch does, and rejects or refuses some items."""

    def __init__(self, *, tells: bool, rejects: int, refuses: int = 0, rejects_until: int = 10**9) -> None:
        self.tells = tells
        self.rejects_until = rejects_until
        self.rejects = rejects
        self.refuses = refuses
        self.ids: set[str] = set()
        self.without_id = 0
        self.items = 0
        self._lock = threading.Lock()

    @property
    def counted(self) -> int:
        return len(self.ids) + self.without_id

    def reply(self, body: bytes, _number: int) -> bytes:
        lines = iter(body.split(b"\n")[:-1])
        with self._lock:
            items = [self._item(json.loads(line), lines) for line in lines]
        errors = any("error" in result for item in items for result in item.values())
        text = json.dumps({"took": 1, "errors": errors, "items": items}, separators=(",", ":"))
        return answer(text.encode())

    def _item(self, action: dict[str, Any], lines: Iterator[bytes]) -> dict[str, Any]:
        ((name, meta),) = action.items()
        if name != "delete":
            json.loads(next(lines))
        self.items += 1
        if self.items % self.rejects == 0 and self.items <= self.rejects_until:
            return {name: {"status": 429, "error": {"type": "full"}}}
        if self.refuses and self.items % self.refuses == 0:
            return {name: {"status": 400, "error": {"type": "bad"}}}
        result = self._kept(name, meta.get("_id"))
        status = {"created": 201, "not_found": 404}.get(result, 200)
        return {name: {"status": status} | ({"result": result} if self.tells else {})}

    def _kept(self, name: str, key: str | None) -> str:
        if key is None:
            self.without_id += 1
            return "created"
        stored = key in self.ids
        if name == "delete":
            self.ids.discard(key)
            return "deleted" if stored else "not_found"
        self.ids.add(key)
        return "updated" if stored else "created"


@pytest.mark.parametrize(("tells", "refuses"), [(True, 0), (True, 11), (False, 0)])
def test_replaced_documents_are_counted_exactly_with_rejections(tmp_path: Path, tells: bool, refuses: int) -> None:
    # An id whose first item was given up at the load's end may be in the index by a later item of the same bulk: only a
    # server that tells knows that it was new. The other one has taken all at the end.
    store = Store(tells=tells, rejects=7, refuses=refuses, rejects_until=10**9 if tells else 100)
    action = BulkAction(conflicts="random", conflict_probability_ppm=500_000)
    # With this many retries only refused items fail.
    plan, samples = send(tmp_path, Leader(), store.reply, action=action, retries=50)
    report = json.loads(plan.report_file.read_text())
    assert report["documents_resent"] > 0
    assert report["documents_repeated"] > 0
    assert tells or not samples["documents_failed"].sum()
    assert store.counted == samples["documents_acked"].sum() - report["documents_repeated"]


@pytest.mark.parametrize("pool_bytes", [1000, 10**6])
def test_ready_bulk_bodies_are_counted_exactly(tmp_path: Path, pool_bytes: int) -> None:
    ready = tmp_path / "ready.json"
    lines = (
        f'{{ "index" : {{ "_id": "{n}" }} }}\n{{"n":\r{n}}}\n{{"create": {{}}}}\n{{"n": 1}}\n'
        f'{{ "delete": {{"_id": "{n // 2}"}} }}\n{{"delete" :{{"_id": "none"}}}}\n'
        for n in range(100)
    )
    ready.write_text("".join(lines), newline="")
    store = Store(tells=True, rejects=101, refuses=13)
    options = {"documents": str(ready), "retries": 50, "users": 2}
    plan, samples = send(tmp_path, Leader(), store.reply, fields={"pool_bytes": pool_bytes}, **options)
    report = json.loads(plan.report_file.read_text())
    assert report["documents_resent"] > 0
    assert store.items > 2 * 400
    assert samples["documents_acked"].sum() - report["documents_repeated"] == store.counted


def test_status_messages_of_many_workers_are_staggered_and_of_few_not_late(tmp_path: Path) -> None:
    plan = plan_for(Endpoint("127.0.0.1", 1), tmp_path)
    offsets_ns = [
        worker.status_offset_ns(dataclasses.replace(plan, worker=number, workers=workers))
        for number, workers in ((0, 1), (1, 2), (1, 1000), (999, 1000))
    ]
    assert offsets_ns == [0, 2_500_000, 500_000, 499_500_000]


def test_a_worker_reports_while_it_records_many_unsent_arrivals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "_UNSENT_SAMPLES", 1000)
    leader: Any = Leader()
    _, samples = send(tmp_path, leader, users=1, arrivals=parse_arrivals("100000/s"))
    unsent = int((samples["attempts"] == 0).sum())
    assert unsent > 5000
    drained = [status for status in leader.statuses if status["phase"] == "drain" and status["seconds_left"] == 0]
    assert len(drained) == unsent // 1000 + 1


def test_a_user_has_its_bodies_before_the_load_begins() -> None:
    numbers: list[int] = []

    def bodies_of(number: int) -> Iterator[Body]:
        numbers.append(number)
        return iter(())

    source: Any = SimpleNamespace(bodies_of=bodies_of)
    state = WorkerState(source=source, users=1)
    attributes = {"abstract": False, "pumps": False, "state": state, "number": 3}
    user = type("User", (ScheduledUser,), attributes)(Environment())
    sending = gevent.spawn(user.send_arrivals)
    gevent.sleep(0)
    assert numbers == [3]
    assert not sending.ready()
    state.close_arrivals()
    with pytest.raises(StopUser):
        sending.get(timeout=60)


def test_a_user_that_fails_while_it_starts_ends_the_load_with_its_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_user: ScheduledUser) -> None:
        raise MemoryError("no memory is left")

    monkeypatch.setattr(ScheduledUser, "on_start", fail)
    with pytest.raises(RunFailed, match="MemoryError: no memory is left"):
        send(tmp_path, Leader())


def test_a_worker_without_credentials_names_the_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("INGEST_BENCH_USER", "INGEST_BENCH_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    plan = plan_for(Endpoint("127.0.0.1", 1), tmp_path)
    plan = dataclasses.replace(plan, server=dataclasses.replace(plan.server, has_credentials=True))
    leader: Any = Leader()
    with pytest.raises(RunFailed, match=r"environment of this load worker has none. Set INGEST_BENCH_USER"):
        worker.send_load(plan, leader)


def test_the_page_adds_new_requests_to_locusts_statistics() -> None:
    stats = Environment().stats
    fast, slow = (int(np.searchsorted(EDGES_NS, at_ns)) for at_ns in (10 * MS, 1000 * MS))
    new = RequestFigures({"ok": 3, "timeout": 1}, {}, 50, {fast: 3, slow: 1}, 1030 * MS)
    page.add_requests(stats, "/x", RequestFigures())
    for _ in range(2):
        page.add_requests(stats, "/x", new)
    for entry in (stats.get("/x", "POST"), stats.total):
        assert (entry.num_requests, entry.num_failures, entry.total_content_length) == (8, 2, 100)
        assert entry.total_response_time == 2060
        assert (entry.min_response_time, entry.max_response_time) == (10, 1000)
        assert (entry.response_times[10], entry.response_times[1000]) == (6, 2)
        assert sum(entry.num_reqs_per_sec.values()) == 8
    (error,) = stats.errors.values()
    assert (error.error, error.occurrences) == ("timeout", 2)


@pytest.fixture
def failures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[FleetMember, list[str]]:
    """Return a worker of a fleet, and the failures that it will report to its master."""
    nothing: Any = None
    member, reported = FleetMember(nothing, tmp_path, lambda _: None), list[str]()
    monkeypatch.setattr(member, "_report_failure", reported.append)
    return member, reported


def test_a_silent_process_of_a_remote_worker_ends_the_load(
    failures: tuple[FleetMember, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ingest_bench.load.fleet.worker._MAX_SILENCE_S", 0.01)
    member, reported = failures
    stdout, child_end = socket.socketpair()
    with stdout, child_end:
        child = SimpleNamespace(stdout=stdout, has_ended=False)
        forwarding = [
            gevent.spawn(member._forward_status, SimpleNamespace(child=child, phase=phase))
            for phase in ("ready", "measure")
        ]
        forwarding[1].get(timeout=60)
        assert not forwarding[0].ready()
        forwarding[0].kill()
    assert reported == ["its process was silent for 0 s"]


def test_a_killed_process_of_a_remote_worker_ends_the_load(
    failures: tuple[FleetMember, list[str]], tmp_path: Path
) -> None:
    member, reported = failures
    plan = plan_for(Endpoint("127.0.0.1", 1), tmp_path)
    plan.folder.mkdir()
    child = LocalWorker(plan, lambda _: ("sh", "-c", "kill -9 $$"))
    gevent.spawn(member._forward_status, child).get(timeout=60)
    child.child.close()
    assert reported == ["its process was killed by signal 9"]
