"""Busy processes beside a node: it waits behind them on its own CPUs, and none of them is left."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from ingest_bench.errors import RunFailed, SpecError
from ingest_bench.faults import checks, timeline
from ingest_bench.faults.stage import Node, Stage
from ingest_bench.host import neighbours
from ingest_bench.model.experiment import Cell, Fault
from ingest_bench.model.load import LoadOptions
from ingest_bench.model.target import TargetOptions

S = 10**9
BUSY = (sys.executable, "-S", "-c", "while True: pass")
SEEN = re.compile(
    r"node 1: 2 neighbours had ([\d.]+) s of CPU within ([\d.]+) s; "
    r"its threads waited ([\d.]+) s for a CPU in each second, and ([\d.]+) s before"
)
KILLED = """
import os, signal, sys
from ingest_bench.host import neighbours
with neighbours.busy(3, os.getpid()) as pids:
    print(*pids, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
LIMIT_S = 60


def cpu(**keys: Any) -> Fault:
    return Fault(kind="cpu", at_ns=0, for_ns=S, **keys)


def cell(fault: Fault) -> Cell:
    load = LoadOptions(measure_ns=9 * S)
    return Cell(name="c", levels={}, network=None, target=TargetOptions(), load=load, faults=(fault,))


def test_beside_a_node_that_was_killed_a_moment_ago_they_are_on_our_own_cpus() -> None:
    with subprocess.Popen(("true",)) as ended:
        ended.wait()
    with neighbours.busy(1, ended.pid) as (pid,):
        assert os.sched_getaffinity(pid) == os.sched_getaffinity(0)


def test_neighbours_alone_need_nothing_of_the_machine_and_are_not_mixed_with_a_quota() -> None:
    checks.check(cell(cpu(neighbours=2)))
    assert not checks.needs(cell(cpu(neighbours=2)))
    assert checks.needs(cell(cpu(cores=0.5))) == {"cpu"}
    with pytest.raises(SpecError, match=r"Add cores = 0\.5, or neighbours = 2"):
        checks.check(cell(cpu()))
    with pytest.raises(SpecError, match="let two faults overlap"):
        checks.check(cell(cpu(cores=0.5, neighbours=2)))


@pytest.fixture
def busy() -> Iterator[int]:
    """A process that is busy on one CPU."""
    with subprocess.Popen(BUSY) as process:
        os.sched_setaffinity(process.pid, {min(os.sched_getaffinity(0))})
        try:
            yield process.pid
        finally:
            process.kill()


def node(pid: int) -> Node:
    process: Any = SimpleNamespace(jvm_pid=pid)

    def jcmd(_pid: int, _command: object) -> str:
        return ""

    return Node(number=1, process=process, home=Path("/"), jcmd=jcmd, boot_limit_s=1)


def used_s(pid: int) -> float:
    """As `top` counts it."""
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def test_a_node_waits_behind_its_neighbours_on_its_own_cpus_alone(busy: int) -> None:
    before = {child.pid for child in psutil.Process().children()}
    own_before, began = used_s(busy), time.monotonic()
    first = timeline.begin(cpu(neighbours=2), Stage(nodes=(node(busy),)))
    beside = [child for child in psutil.Process().children() if child.pid not in before]
    assert len(beside) == 2
    assert {tuple(child.cpu_affinity()) for child in beside} == {tuple(os.sched_getaffinity(busy))}
    assert {child.nice() for child in beside} == {psutil.Process(busy).nice()}
    # Others may keep this machine busy.
    while min(used_s(child.pid) for child in beside) < 0.2:
        assert time.monotonic() < began + LIMIT_S
        time.sleep(0.1)
    own_s, lasted_s = used_s(busy) - own_before, time.monotonic() - began
    theirs_s = sum(used_s(child.pid) for child in beside)
    matched = SEEN.fullmatch(first.end())
    assert matched
    had_s, within_s, waited_s, _ = map(float, matched.groups())
    # The second instrument: one CPU is all that the three of them can have, and who does not run waits.
    assert had_s == pytest.approx(theirs_s, abs=0.1)
    assert own_s + had_s <= lasted_s + 0.1
    assert waited_s * within_s == pytest.approx(lasted_s - own_s, abs=0.2)
    assert not any(child.is_running() for child in beside)


def test_a_node_that_wants_nothing_and_one_that_is_down_wait_for_nothing() -> None:
    with subprocess.Popen(("sleep", "1000")) as idle:
        try:
            asleep = node(idle.pid)
            while Path(f"/proc/{idle.pid}/comm").read_text() != "sleep\n":
                time.sleep(0.01)
            time.sleep(0.1)
            begun = timeline.begin(cpu(neighbours=1), Stage(nodes=(asleep,)))
            with pytest.raises(RunFailed, match="cpu: node 1 never waited for a CPU within"):
                begun.end()
            asleep.is_down = True
            begun = timeline.begin(cpu(neighbours=1), Stage(nodes=(asleep,)))
            with pytest.raises(RunFailed, match="never waited"):
                begun.end()
        finally:
            idle.kill()


def test_no_neighbour_outlives_who_began_it() -> None:
    done = subprocess.run((sys.executable, "-c", KILLED), capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    pids = done.stdout.split()
    assert len(pids) == 3
    until = time.monotonic() + LIMIT_S
    while any(Path(f"/proc/{pid}/exe").exists() for pid in pids):
        assert time.monotonic() < until
        time.sleep(0.05)
