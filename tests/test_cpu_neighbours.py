"""Fault `cpu` with busy neighbours: a node waits behind them on its own CPUs, and none of them is left."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from fault_lab import make_fault, make_resource_stage, wait_until

from ingest_bench.errors import RunFailed
from ingest_bench.faults import timeline
from ingest_bench.host import cpu
from ingest_bench.model.experiment import Fault

EFFECT = re.compile(
    r"node 1: 2 neighbours used ([\d.]+) s of CPU within ([\d.]+) s; "
    r"its threads waited ([\d.]+) s for a CPU in each second, and ([\d.]+) s before"
)
KILLED = """
import os, signal, sys
from ingest_bench.host import cpu
with cpu.start_neighbours(3, os.getpid()) as pids:
    print(*pids, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def cpu_fault(**keys: Any) -> Fault:
    return make_fault("cpu", **keys)


def test_neighbours_of_a_killed_node_run_on_our_own_cpus() -> None:
    with subprocess.Popen(("true",)) as exited:
        exited.wait()
    with cpu.start_neighbours(1, exited.pid) as (pid,):
        assert os.sched_getaffinity(pid) == os.sched_getaffinity(0)


@pytest.fixture
def busy_pid() -> Iterator[int]:
    """A process that is busy on one CPU."""
    with subprocess.Popen((sys.executable, "-S", "-c", "while True: pass")) as process:
        os.sched_setaffinity(process.pid, {min(os.sched_getaffinity(0))})
        try:
            yield process.pid
        finally:
            process.kill()


def cpu_s(pid: int) -> float:
    """Return the CPU seconds as `top` counts them."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def test_node_waits_behind_its_neighbours_on_its_own_cpus(busy_pid: int) -> None:
    others = {child.pid for child in psutil.Process().children()}
    own_before_s, start_s = cpu_s(busy_pid), time.monotonic()
    fault = timeline.begin_fault(cpu_fault(neighbours=2), make_resource_stage(pid=busy_pid))
    neighbours = [child for child in psutil.Process().children() if child.pid not in others]
    assert len(neighbours) == 2
    assert {tuple(child.cpu_affinity()) for child in neighbours} == {tuple(os.sched_getaffinity(busy_pid))}
    assert {child.nice() for child in neighbours} == {psutil.Process(busy_pid).nice()}
    # Other processes may keep this machine busy.
    wait_until(lambda: min(cpu_s(child.pid) for child in neighbours) >= 0.2)
    own_s, duration_s = cpu_s(busy_pid) - own_before_s, time.monotonic() - start_s
    expected_s = sum(cpu_s(child.pid) for child in neighbours)
    match = EFFECT.fullmatch(fault.end())
    assert match
    used_s, within_s, waited_s, _ = map(float, match.groups())
    # The second instrument: the three share one CPU, and a process that does not run waits.
    assert used_s == pytest.approx(expected_s, abs=0.1)
    assert own_s + used_s <= duration_s + 0.1
    assert waited_s * within_s == pytest.approx(duration_s - own_s, abs=0.2)
    assert not any(child.is_running() for child in neighbours)


def test_idle_node_and_down_node_do_not_wait() -> None:
    with subprocess.Popen(("sleep", "1000")) as idle:
        try:
            stage = make_resource_stage(pid=idle.pid)
            wait_until(lambda: Path(f"/proc/{idle.pid}/comm").read_text() == "sleep\n")
            time.sleep(0.1)
            for is_down in (False, True):
                stage.nodes[0].is_down = is_down
                active = timeline.begin_fault(cpu_fault(neighbours=1), stage)
                with pytest.raises(RunFailed, match="cpu: node 1 never waited for a CPU within"):
                    active.end()
        finally:
            idle.kill()


def test_neighbours_die_with_their_parent() -> None:
    completed = subprocess.run((sys.executable, "-c", KILLED), capture_output=True, text=True, check=False)
    assert completed.returncode == -signal.SIGKILL, completed.stderr
    pids = completed.stdout.split()
    assert len(pids) == 3
    wait_until(lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in pids))
