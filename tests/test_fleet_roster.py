"""A fleet as `run` sees it, with many workers: what a line of one of them costs. Its master is a pipe."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_load_process import plan_for

from ingest_bench.errors import RunFailed
from ingest_bench.load import supervisor
from ingest_bench.load.fleet.member import Member
from ingest_bench.load.fleet.roster import Fleet
from ingest_bench.load.supervisor import LoadProcess
from ingest_bench.model.target import Endpoint

WORKERS = 300


class Lines:
    """In place of a master: it says one line after the other, whoever reads."""

    def __init__(self, *lines: dict[str, Any]) -> None:
        reading, writing = os.pipe()
        # There is something to read, for ever.
        os.write(writing, b"\n")
        self.stdout = os.fdopen(reading, "rb")
        self._writing = writing
        self._lines = iter(lines)
        self.heard: list[dict[str, Any]] = []

    def read(self) -> list[dict[str, Any]]:
        return [next(self._lines)]

    def write(self, line: dict[str, Any]) -> None:
        self.heard.append(line)

    def close(self) -> None:
        os.close(self._writing)
        self.stdout.close()


class Counted(Member):
    """Counts how often it was looked at."""

    looks = 0

    @property
    def is_over(self) -> bool:
        Counted.looks += 1
        return super().is_over


@pytest.fixture(autouse=True)
def not_looked_at() -> None:
    Counted.looks = 0


def said(phase: str, **more: Any) -> list[dict[str, Any]]:
    return [{"worker": f"w{number}", "phase": phase, "documents": 1, **more} for number in range(WORKERS)]


def fleet_of(tmp_path: Path, *lines: dict[str, Any]) -> tuple[Fleet, list[Member]]:
    """A fleet whose workers are at a load, and will say this."""
    master: Any = Lines(*lines)
    fleet = Fleet(master, lambda _: None, joined=0, shows_figures=False)
    plan = plan_for(Endpoint("127.0.0.1", 1), tmp_path)
    members: list[Member] = []
    for number in range(WORKERS):
        member = Counted(plan)
        member.who = f"machine-{number}"
        member.id = f"w{number}"
        fleet._active[member.id] = member
        members.append(member)
    return fleet, members


def test_a_line_of_one_worker_is_a_look_at_that_worker_alone(tmp_path: Path) -> None:
    fleet, members = fleet_of(tmp_path, *said("ready"))
    fleet.until(lambda: members[-1].said["phase"] == "ready", 60, members)
    fleet.close(well=True)
    assert Counted.looks <= WORKERS


@pytest.mark.parametrize("phase", ["lost", "failed"])
def test_a_worker_that_is_lost_is_named_by_who_waits_for_it_also_later(tmp_path: Path, phase: str) -> None:
    gone = {"worker": "w7", "phase": phase, "error": "is gone: it was not heard for 4.2 s"}
    fleet, members = fleet_of(tmp_path, gone, *said("ready")[8:])
    # Somebody who waits for others does not mind.
    fleet.until(lambda: members[8].said["phase"] == "ready", 60, members[8:])
    with pytest.raises(RunFailed, match=r"machine-7\): is gone: it was not heard for 4.2 s"):
        fleet.until(lambda: False, 60, members)
    fleet.close(well=True)


def test_the_state_of_all_workers_is_not_put_together_for_each_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [line for phase in ("warm-up", "measure", "drain", "done") for line in said(phase)]
    fleet, members = fleet_of(tmp_path, *lines)
    # No time passes.
    monkeypatch.setattr(supervisor, "time", SimpleNamespace(monotonic_ns=lambda: 10**12))
    load = LoadProcess(members[0].plan, fleet, ExitStack())
    load._members, load._is_ready = members, True
    shown: list[str] = []
    with pytest.raises(RunFailed, match="left no report"):
        load.wait(lambda progress: shown.append(progress.phase))
    fleet.close(well=True)
    assert shown == ["prepare", "done"]
