"""The fleet as `run` sees it, with many workers and a pipe instead of a master: lost workers, work per message."""

from __future__ import annotations

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
from ingest_bench.load.fleet import keys
from ingest_bench.load.fleet.roster import Fleet, FleetWorker, RemoteWorkers
from ingest_bench.load.supervisor import RunningLoad
from ingest_bench.model.target import Endpoint

WORKERS = 300


class FakeMaster:
    """Sends one line after the other, at each read."""

    has_ended = False

    def __init__(self, *lines: dict[str, Any]) -> None:
        read_end, self._write_end = os.pipe()
        # So that there is always something to read.
        os.write(self._write_end, b"\n")
        self.stdout = os.fdopen(read_end, "rb")
        self._lines = iter(lines)
        self.commands: list[dict[str, Any]] = []

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


def test_a_worker_of_another_version_is_refused_with_the_remedy(tmp_path: Path) -> None:
    hello = {"machine": "other\n", "address": "192.0.2.1", "key": "worker-1", "pid": 7, "version": "0.0.1"}
    logged: list[str] = []
    fleet = fleet_with(tmp_path, {"joined": "w", **hello}, log=logged.append)
    fleet.process_messages(60)
    ours = metadata.version("ingest-bench")
    reason = f"the run is ingest-bench {ours}, this worker is 0.0.1. Install the same version on both sides."
    master: Any = fleet._master
    assert master.commands == [{"do": "send", "to": "w", "kind": "refused", "data": {"reason": reason}}]
    assert logged == [f"refused other?, 192.0.2.1, worker-1, pid 7: it is ingest-bench 0.0.1, this is {ours}"]
    with pytest.raises(RunFailed, match="0 of 1 workers joined"):
        fleet.wait_for_workers(1, 0)
    fleet.close(has_succeeded=False)
