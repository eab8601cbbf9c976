"""Faults `cpu` with busy neighbours, and `fragmented-memory`: their effects, when they begin, and how they may fail."""

from __future__ import annotations

import dataclasses
import json
import mmap
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

from ingest_bench import system
from ingest_bench.errors import RunFailed
from ingest_bench.faults import timeline
from ingest_bench.faults.kind import Stage
from ingest_bench.host import cpu, fragments
from ingest_bench.model.experiment import Fault
from ingest_bench.model.load import LoadOptions

NEIGHBOURS_EFFECT = re.compile(
    r"node 1: 2 neighbours used ([\d.]+) s of CPU within ([\d.]+) s; "
    r"its threads waited ([\d.]+) s for a CPU in each second, and ([\d.]+) s before"
)
KILLED_PARENT = """
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
    match = NEIGHBOURS_EFFECT.fullmatch(fault.end())
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
    completed = subprocess.run((sys.executable, "-c", KILLED_PARENT), capture_output=True, text=True, check=False)
    assert completed.returncode == -signal.SIGKILL, completed.stderr
    pids = completed.stdout.split()
    assert len(pids) == 3
    wait_until(lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in pids))


BUDDYINFO = """\
Node 0, zone      DMA      0      0      0      0      0      0      0      0      1      1      3
Node 0, zone   Normal    933   2654   2396   1018    463   5580   3084   1677   1070    568   3075
"""
GIB = 1 << 30
ZONEINFO = """\
Node 0, zone      DMA
  pages free     3840
        boost    0
        min      10
        low      13
        high     16
  pagesets
    cpu: 0
              count:    0
              high:     43191
Node 0, zone   Normal
        high     25557
"""
FAULT = make_fault("fragmented-memory")
RESULT = {
    "taken_bytes": 9_000_000,
    "before_bytes": 9_000_000,
    "after_bytes": 1_000_000,
    "duration_s": 2.5,
    "free_bytes": 900_000_000,
    "min_free_bytes": 256 << 20,
}


def test_free_blocks_of_a_huge_page_are_summed_by_size() -> None:
    # 1 + 568 of 2 MiB, 3 + 3075 of 4 MiB.
    assert fragments.parse_huge_block_bytes(BUDDYINFO, 2 << 20, 4096) == (569 * 2 + 3078 * 4) << 20
    # With pages of 64 KiB a block of the same order is 16 times as large.
    assert fragments.parse_huge_block_bytes(BUDDYINFO, 32 << 20, 65536) == 16 * (569 * 2 + 3078 * 4) << 20


def test_watermarks_are_summed_over_zones_without_those_of_cpus() -> None:
    assert fragments.parse_watermark_bytes(ZONEINFO, 4096) == (16 + 25557) * 4096
    zoneinfo = Path("/proc/zoneinfo").read_text()
    assert 0 < fragments.parse_watermark_bytes(zoneinfo, 4096) < fragments.read_memory_bytes("MemAvailable")


def replace_program(monkeypatch: pytest.MonkeyPatch, script: str, *arguments: str) -> None:
    monkeypatch.setattr(system, "build_script_argv", lambda *_: ("sh", "-c", script, "sh", *arguments))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"taken_bytes": 0}, "Take a larger share"),
        ({"after_bytes": 9_000_000}, "the 9 MB that it took were split already"),
        # Large blocks of a busy machine come and go meanwhile.
        ({"taken_bytes": 0, "after_bytes": 9_000_000, "free_bytes": 300 << 20}, "no memory was taken: 315 MB of"),
        ({"taken_bytes": 0, "free_bytes": 300 << 20}, "are free, and 268 MB stay free"),
    ],
)
def test_fault_without_effect_does_not_begin(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, int], message: str
) -> None:
    replace_program(monkeypatch, 'echo "$1"; cat', json.dumps(RESULT | changes))
    with pytest.raises(RunFailed, match=message):
        timeline.begin_fault(FAULT, Stage())


def test_share_of_zero_takes_no_memory() -> None:
    with pytest.raises(RunFailed, match="the 0 MB that it took were split already"):
        timeline.begin_fault(make_fault("fragmented-memory", share_ppm=0), Stage())


@pytest.mark.processes
def test_memory_below_the_kernels_watermark_is_not_taken(tmp_path: Path) -> None:
    # The program itself, for at most 1 GiB. It reads that 1 GB is free, and less with each step, on a kernel whose
    # watermark is 700 MB: other processes neither take nor free memory meanwhile.
    read = (
        "readings, read = iter(range(10**9, 0, -STEP_BYTES)), read_memory_bytes\n"
        'read_memory_bytes = lambda name: next(readings) if name == "MemFree" else read(name)'
    )
    watermark = "parse_watermark_bytes = lambda *_: 700 * 10**6"
    text = Path(fragments.__file__).read_text().replace("\nif __name__", f"\n{read}\n{watermark}\n\nif __name__")
    (tmp_path / "fragments.py").write_text(text)
    share_ppm = 10**6 * GIB // fragments.read_memory_bytes("MemAvailable")
    argv = system.build_script_argv(tmp_path / "fragments.py", str(share_ppm), "0")
    completed = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=True, timeout=60)
    # The first reading is the initial one. Three steps leave 732 MB or more; a fourth would leave 665.
    assert json.loads(completed.stdout)["taken_bytes"] == 3 * fragments.STEP_BYTES


def test_duration_counts_from_when_memory_is_split(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")
    script = 'touch "$2/began"; read line < "$2/go"; echo "$1"; cat'
    replace_program(monkeypatch, script, json.dumps(RESULT), str(tmp_path))
    fault = dataclasses.replace(FAULT, for_ns=300 * 10**6)
    with timeline.run_faults((fault,), Stage(), lambda: 1, LoadOptions(measure_documents=1)) as runner:
        wait_until((tmp_path / "began").exists)
        assert not runner.records
        split_ns = time.time_ns()
        (tmp_path / "go").write_text("\n")
        wait_until(lambda: runner.records and runner.records[0].end_ns)
    (record,) = runner.records
    assert record.end_ns is not None
    assert record.start_ns >= split_ns
    assert record.end_ns - record.start_ns >= 300 * 10**6
    assert record.effect == (
        "free in blocks of a huge page: 9 MB before, 1 MB after 2.5 s; every second page of 9 MB is held"
    )


def test_fault_that_has_not_begun_at_the_end_of_the_load_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_program(monkeypatch, "exec sleep 1000")
    with (
        pytest.raises(RunFailed, match="the load ended before memory was split"),
        timeline.run_faults((FAULT,), Stage(), lambda: 1, LoadOptions(measure_documents=1)) as runner,
    ):
        time.sleep(0.3)
    assert not runner.records


@pytest.mark.parametrize(
    ("script", "message"),
    [
        # The kernel kills it first when memory runs out.
        ("kill -9 $$", "its process was killed"),
        ("echo 'madvise: errno 22' >&2; exit 1", "its process: exited. Its error output: madvise: errno 22"),
    ],
)
def test_process_that_fails_at_the_begin_is_reported(
    monkeypatch: pytest.MonkeyPatch, script: str, message: str
) -> None:
    replace_program(monkeypatch, script)
    with pytest.raises(RunFailed, match=message):
        timeline.begin_fault(FAULT, Stage())


@pytest.mark.parametrize(
    ("script", "message"),
    [("kill -9 $$", "its process was killed"), ("exit 3", "its process exited with code 3")],
)
def test_process_that_fails_during_the_fault_is_reported(
    monkeypatch: pytest.MonkeyPatch, script: str, message: str
) -> None:
    replace_program(monkeypatch, f'echo "$1"; {script}', json.dumps(RESULT))
    active = timeline.begin_fault(FAULT, Stage())
    with pytest.raises(RunFailed, match=message):
        active.end()


@pytest.mark.nightly
@pytest.mark.processes
def test_large_blocks_become_fewer_and_memory_is_freed() -> None:
    # Free memory that is in small blocks already is taken first: more than that is taken here.
    huge_bytes = fragments.parse_huge_block_bytes(Path("/proc/buddyinfo").read_text(), 2 << 20, mmap.PAGESIZE)
    free_bytes = fragments.read_memory_bytes("MemFree")
    max_bytes = free_bytes - huge_bytes + 4 * GIB
    if free_bytes < max_bytes + 4 * GIB:
        pytest.skip("needs 8 GiB of free memory in huge pages")
    share_ppm = 10**6 * max_bytes // fragments.read_memory_bytes("MemAvailable")
    argv = system.build_script_argv(fragments.__file__, str(share_ppm), str(2 * GIB))
    with system.Child(argv, name="fragments") as child:
        result = json.loads(child.read_line(300))
        assert max_bytes - GIB < result["taken_bytes"] <= max_bytes
        # Half of it is held, by the kernel's own count of the process.
        status = Path(f"/proc/{child.pid}/status").read_text()
        resident_bytes = 1024 * int(status.partition("VmRSS:")[2].split()[0])
        assert result["taken_bytes"] / 2 <= resident_bytes < result["taken_bytes"] / 2 + (64 << 20)
        assert result["after_bytes"] < result["before_bytes"]
        child.read_until_exit(60)
        assert child.describe_exit() == "exited with code 0"
