"""The fleet as `run` sees it, with many workers and a pipe instead of a master: lost workers, work per message."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_load_process import plan_for

from ingest_bench.errors import RunFailed
from ingest_bench.load import supervisor
from ingest_bench.load.fleet import keys, roster
from ingest_bench.load.fleet.roster import Fleet, FleetObserver, FleetWorker, RemoteWorkers, find_refusal
from ingest_bench.load.fleet.transfer import Observed, Watched, read_realtime_lead_ns
from ingest_bench.load.supervisor import RunningLoad
from ingest_bench.model.target import Endpoint

WORKERS = 300


class FakeMaster:
    """Sends one line after the other, at each read."""

    has_ended = False

    def __init__(self, *lines: dict[str, Any]) -> None:
        read_end, self._write_end = os.pipe()
        self.stdout = os.fdopen(read_end, "rb")
        self.commands: list[dict[str, Any]] = []
        self.send(*lines)

    def send(self, *lines: dict[str, Any]) -> None:
        self._lines = iter(lines)
        if lines:
            # So that there is always something to read.
            os.write(self._write_end, b"\n")

    def read_lines(self) -> list[str]:
        return [json.dumps(next(self._lines))]

    def write_line(self, line: str) -> None:
        self.commands.append(json.loads(line))

    def close(self, grace_s: float) -> None:
        del grace_s
        os.close(self._write_end)
        self.stdout.close()


def statuses(phase: str, **more: Any) -> list[dict[str, Any]]:
    return [{"worker": f"w{number}", "phase": phase, "documents": 1, **more} for number in range(WORKERS)]


def fleet_with(tmp_path: Path, *lines: dict[str, Any], log: Callable[[str], None] = print) -> Fleet:
    """Return a fleet whose workers are at a load, and whose master will send *lines*."""
    run_keys, _ = keys.generate(("worker",))
    bind = Endpoint("127.0.0.1", 1)
    options = RemoteWorkers(bind=bind, workers=WORKERS, keys=run_keys)
    master: Any = FakeMaster(*lines)
    fleet = Fleet(master, log, options)
    plan = plan_for(bind, tmp_path)
    fleet.workers = [FleetWorker(plan, f"w{number}", f"machine-{number}", fleet) for number in range(WORKERS)]
    fleet._active = {worker.id: worker for worker in fleet.workers}
    return fleet


def test_a_message_of_a_worker_updates_that_worker_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    updates: list[str] = []
    update = FleetWorker.update

    def count_update(worker: FleetWorker, status: dict[str, Any]) -> bool:
        updates.append(worker.id)
        return update(worker, status)

    monkeypatch.setattr(FleetWorker, "update", count_update)
    fleet = fleet_with(tmp_path, *statuses("ready"))
    fleet.wait_until(lambda: fleet.workers[-1].phase == "ready", 60)
    fleet.close(has_succeeded=False)
    assert updates == [f"w{number}" for number in range(WORKERS)]


@pytest.mark.parametrize("phase", ["lost", "failed"])
def test_a_failed_worker_is_named_by_the_next_wait_also_later(tmp_path: Path, phase: str) -> None:
    failure = {"worker": "w7", "phase": phase, "error": "no heartbeat for 4.2 s"}
    fleet = fleet_with(tmp_path, failure, *statuses("ready")[8:])
    while fleet.workers[8].phase != "ready":
        fleet.process_messages(60)
    with pytest.raises(RunFailed, match=r"machine-7\): no heartbeat for 4.2 s"):
        fleet.wait_until(lambda: False, 60)
    fleet.close(has_succeeded=False)


def test_progress_is_not_merged_for_each_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [line for phase in ("warm-up", "measure", "drain", "done") for line in statuses(phase)]
    fleet = fleet_with(tmp_path, *lines)
    monkeypatch.setattr(fleet, "begin", lambda: 0)
    monkeypatch.setattr(fleet, "collect", lambda: [None] * WORKERS)
    # No time passes.
    monkeypatch.setattr(supervisor, "time", SimpleNamespace(monotonic_ns=lambda: 10**12, monotonic=lambda: 1e3))
    load = RunningLoad([plan_for(Endpoint("127.0.0.1", 1), tmp_path)], fleet, None, [False])
    monkeypatch.setattr(load, "wait_until_ready", lambda: None)
    phases: list[str] = []
    with pytest.raises(RunFailed, match="left no report"):
        load.wait(lambda progress: phases.append(progress.phase))
    fleet.close(has_succeeded=False)
    assert phases == ["prepare", "done"]


def watched(pid: int = 7, **changes: Any) -> Watched:
    facts: dict[str, Any] = {
        "began": "boot 5",
        "java": "17.0.15",
        "collector": "g1",
        "heap_bytes": None,
        "addresses": (),
        "host": {},
    }
    return Watched(pid=pid, **(facts | {"unavailable": {}} | changes))


@pytest.mark.parametrize(
    ("options", "joining", "reason"),
    [
        ({"workers": 1}, None, ""),
        ({"observers": 1}, None, "the run sends the load itself"),
        ({"workers": 1}, watched(), "the run waits for no observer. Give it --watchers N."),
        ({"observers": 2}, watched(8), ""),
        ({"observers": 2}, watched(7), "m, worker-1 watches the same JVM. Start one observer for each node."),
        ({"observers": 2}, watched(7, began="boot 6"), ""),
        ({"observers": 1}, watched(8), "all 1 observers have joined"),
        ({"observers": 2}, watched(8, unavailable={"kernel-reads": "needs root", "host": "x"}), "needs root"),
        ({"observers": 2}, watched(8, unavailable={"host": "x"}), ""),
        ({"observers": 2, "shapes": "eth1"}, watched(8), "the run shapes eth1 on this machine. Allow it: "),
        ({"observers": 2, "shapes": "eth1"}, watched(8, may_shape="eth0"), "the run shapes eth1 on this machine."),
        ({"observers": 2, "shapes": "eth1"}, watched(8, may_shape="eth1"), ""),
    ],
)
def test_run_refuses_workers_and_observers_that_it_cannot_use(
    options: dict[str, Any], joining: Watched | None, reason: str
) -> None:
    run_keys, _ = keys.generate(("worker",))
    remote = RemoteWorkers(
        bind=Endpoint("127.0.0.1", 1), keys=run_keys, probes=frozenset({"reads", "kernel-reads"}), **options
    )
    others = [FleetObserver("w", "m, worker-1", watched())]
    refusal = find_refusal(remote, metadata.version("ingest-bench"), joining, others)
    assert refusal.startswith(reason)
    assert bool(refusal) == bool(reason)


def observing(tmp_path: Path, *lines: dict[str, Any]) -> Fleet:
    """Return a fleet without load workers that an observer has joined, and whose master will send *lines*."""
    fleet = fleet_with(tmp_path)
    master: Any = fleet._master
    fleet.workers = []
    fleet._options = dataclasses.replace(fleet._options, workers=0, observers=1)
    fleet._observers = {"w": FleetObserver("w", "m, worker-1", watched())}
    fleet.gather_observers()
    master.send(*lines)
    return fleet


CLOCKS = {"clocks": {"w": {"offset_ns": 5, "round_trip_ns": 2, "at_ns": 10**9}}}


def test_observer_watches_and_stops_and_its_clock_is_read_twice(tmp_path: Path) -> None:
    lead_ns = read_realtime_lead_ns()
    states: list[dict[str, Any]] = [
        {"observer": "w", "run": 1, "phase": phase, "realtime_lead_ns": lead_ns} for phase in ("watching", "stopped")
    ]
    late = {"observer": "w", "run": 0, "phase": "failed", "error": "of an earlier run"}
    fleet = observing(tmp_path, late, states[0], CLOCKS, states[1], CLOCKS)
    fleet.watch({"probes": ["reads"]})
    (clock,) = fleet.unwatch()
    master: Any = fleet._master
    assert [command.get("kind", command["do"]) for command in master.commands] == [
        "watch",
        "clocks",
        "unwatch",
        "clocks",
    ]
    assert abs(clock.offset_before_ns - 5) < 10**6
    fleet.close(has_succeeded=False)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (
            {"observer": "w", "run": 1, "phase": "failed", "error": "no\nrights"},
            r"observer \(m, worker-1\): no\?rights",
        ),
        ({"worker": "w", "phase": "lost", "error": "is lost: it left"}, r"observer \(m, worker-1\): is lost: it left"),
    ],
)
def test_failed_or_lost_observer_ends_the_wait_with_its_name(tmp_path: Path, line: dict[str, Any], reason: str) -> None:
    fleet = observing(tmp_path, line)
    with pytest.raises(RunFailed, match=reason):
        fleet.watch({"probes": []})
    fleet.close(has_succeeded=False)


def test_observer_that_left_after_a_run_does_not_watch_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = observing(tmp_path, {"worker": "w", "phase": "lost", "error": "is lost: it left"})
    monkeypatch.setattr(fleet._selector, "select", lambda _: fleet._observers)
    monkeypatch.setattr(roster, "_REJOIN_TIMEOUT_S", 0.0)
    with pytest.raises(RunFailed, match="0 of 1 observers joined within 0 s"):
        fleet.gather_observers()
    fleet.close(has_succeeded=False)


def test_reason_of_another_machine_is_one_short_line(tmp_path: Path) -> None:
    fleet = observing(tmp_path, {"fetched": "w", "error": "no\nrights" * 1000})
    (observer,) = fleet.observers
    observer.state = Observed(run=1, phase="stopped", files={"recording.jfr": 1})
    with pytest.raises(RunFailed, match=r"^observer \(m, worker-1\): no\?rights.{1,4000}$"):
        fleet.fetch_raw(observer, tmp_path)
    fleet.close(has_succeeded=False)


def test_files_that_do_not_fit_on_the_disk_are_not_fetched(tmp_path: Path) -> None:
    fleet = observing(tmp_path)
    (observer,) = fleet.observers
    observer.state = Observed(run=1, phase="stopped", files={"recording.jfr": 2**60})
    with pytest.raises(RunFailed, match=r"its files have 1,152,921,504,606,846,976 bytes, and .* has [0-9,]+ free"):
        fleet.fetch_raw(observer, tmp_path)
    fleet.close(has_succeeded=False)


def test_a_worker_of_another_version_is_refused_with_the_remedy(tmp_path: Path) -> None:
    hello = {"machine": "other\n", "address": "192.0.2.1", "key": "worker-1", "pid": 7, "version": "0.0.1"}
    logged: list[str] = []
    fleet = fleet_with(tmp_path, {"joined": "w", **hello}, log=logged.append)
    fleet.process_messages(60)
    ours = metadata.version("ingest-bench")
    reason = f"the run is ingest-bench {ours}, this worker is 0.0.1. Install the same version on both sides."
    master: Any = fleet._master
    assert master.commands == [{"do": "send", "to": "w", "kind": "refused", "data": {"reason": reason}}]
    assert logged == [f"refused other?, 192.0.2.1, worker-1, pid 7: {reason}"]
    with pytest.raises(RunFailed, match="0 of 1 workers joined"):
        fleet.wait_for_workers(1, 0)
    fleet.close(has_succeeded=False)
