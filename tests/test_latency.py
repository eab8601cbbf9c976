"""A node's disk each of whose reads and writes is late, where the kernel has a device for that."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import inside_uml
import pytest
from test_throttle import READ, SYNCS, disk_of, stage_of

from ingest_bench import system
from ingest_bench.errors import MissingCapability, RunFailed, SpecError
from ingest_bench.faults import checks, timeline
from ingest_bench.host import latency, node_resources
from ingest_bench.host.node_resources import NodeResources
from ingest_bench.model.experiment import Cell, Fault
from ingest_bench.model.load import LoadOptions
from ingest_bench.model.target import TargetOptions

S, MS = 10**9, 10**6
NEEDS: frozenset[node_resources.Need] = frozenset({"disk", "latency"})
LIMIT_S = 60
MODULES = """
for module in loop ext4 dm-mod dm-delay; do busybox modprobe $module; done
exec "$@"
"""
SYNC = """
import os, sys
file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
os.write(file, bytes(4096))
print("now", flush=True)
os.fsync(file)
print("synced", flush=True)
"""
# One sync of it waits for a minute when all is killed.
KILLED = """
import os, signal, sys
from pathlib import Path
from ingest_bench import system
from ingest_bench.host import shares
home = Path(sys.argv[1])
write = (
    "import os, sys; file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT); os.write(file, bytes(1 << 16));"
    "print(flush=True); os.fsync(file)"
)
with shares.shares({"disk", "latency"}, [home]) as (share,):
    share.disk.latency.delay(60_000)
    child = system.start((sys.executable, "-S", "-c", write, str(home / "file")), stdout=-1)
    child.stdout.readline()
    print(child.pid, flush=True)
    sys.stdin.readline()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def late(delay_ns: int, **keys: int) -> Fault:
    return Fault(kind="slow-disk", at_ns=0, for_ns=S, delay_ns=delay_ns, **keys)  # type: ignore[arg-type]


def cell(fault: Fault) -> Cell:
    load = LoadOptions(measure_ns=9 * S)
    return Cell(name="c", levels={}, network=None, target=TargetOptions(), load=load, faults=(fault,))


def test_a_late_disk_needs_no_rules_and_has_them_besides_where_they_are_asked_for() -> None:
    checks.check(cell(late(20 * MS)))
    assert checks.needs(cell(late(20 * MS))) == NEEDS
    assert checks.needs(cell(late(20 * MS, iops=50))) == {*NEEDS, "throttle"}
    for wrong_ns in (0, 1, 1_500_000):
        with pytest.raises(SpecError, match="the kernel counts the delay of a disk in milliseconds"):
            checks.check(cell(late(wrong_ns)))


def test_a_kernel_without_such_a_device_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "which", lambda name: f"/sbin/{name}")
    monkeypatch.setattr(latency, "_targets", lambda: ["linear", "striped"])
    monkeypatch.setattr(latency, "_has_module", lambda: False)
    with pytest.raises(MissingCapability, match="no device-mapper with the target delay"):
        latency.require()
    assert not latency.capability().present
    monkeypatch.setattr(latency, "_targets", lambda: ["linear", "delay"])
    latency.require()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, NodeResources]]:
    skip_without()
    folder = tmp_path_factory.mktemp("late")
    (folder / "home").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INGEST_BENCH_STATE", str(folder / "state"))
        with node_resources.shares(NEEDS, [folder / "home"]) as (share,):
            yield folder / "home", share
    assert not left(folder)


def skip_without() -> None:
    try:
        node_resources.require(NEEDS)
    except MissingCapability as error:
        pytest.skip(str(error))


def left(folder: Path) -> list[str]:
    """What is there of it: devices, mounts and ledgers."""
    named = latency.name_for(folder / "home")
    devices = subprocess.run(("dmsetup", "ls"), capture_output=True, text=True, check=True).stdout
    loops = subprocess.run(("losetup", "--all"), capture_output=True, text=True, check=True).stdout
    found = [line for line in devices.splitlines() if named in line]
    found += [line for line in loops.splitlines() if str(folder) in line]
    found += [str(path) for path in (folder / "state").glob("*.jsonl")]
    return found + [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(folder) in line]


def took_s(code: str, path: Path) -> float:
    argv = (sys.executable, "-S", "-c", code, str(path))
    return float(subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT_S, check=True).stdout)


@pytest.mark.device_mapper
def test_each_sync_and_each_read_waits_for_the_longest_of_those_that_last(node: tuple[Path, NodeResources]) -> None:
    home, share = node
    stage = stage_of(home, share)
    took_s(SYNCS, home / "file")
    short, long = timeline.begin(late(30 * MS), stage), timeline.begin(late(100 * MS), stage)
    # 10 syncs: each waits for its data and for its journal, one after the other.
    assert took_s(SYNCS, home / "file") >= 10 * 0.1
    assert took_s(READ, home / "file") >= 0.1
    before = disk_of(share).moved()
    said = long.end()
    assert (found := re.search(r"; a write took ([\d.]+) ms and a read took ([\d.]+) ms on average$", said)), said
    # The kernel's own clock has ticks of 10 ms here.
    assert min(map(float, found.groups())) >= 90
    syncs_s = took_s(SYNCS, home / "file")
    assert syncs_s >= 10 * 0.03
    writes = disk_of(share).moved().since(before)
    assert writes.write_ms >= 20 * writes.writes
    short.end()
    before = disk_of(share).moved()
    took_s(SYNCS, home / "file")
    moved = disk_of(share).moved().since(before)
    assert moved.writes >= 10
    assert moved.write_ms < 20 * moved.writes


@pytest.mark.device_mapper
def test_fault_without_effect_fails(
    node: tuple[Path, NodeResources],
) -> None:
    home, share = node
    stage = stage_of(home, share)
    fault = timeline.begin(late(60 * S), stage)
    argv = (sys.executable, "-S", "-c", SYNC, str(home / "waits"))
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"now\n"
        time.sleep(0.5)
        assert child.poll() is None
        assert "; a write took " in fault.end()
        assert child.stdout.readline() == b"synced\n"
    os.sync()
    unneeded = timeline.begin(late(20 * MS), stage)
    with pytest.raises(RunFailed, match="the disk of node 1 neither read nor wrote within"):
        unneeded.end()


@pytest.mark.device_mapper
def test_nothing_is_left_when_all_is_killed_while_a_sync_waits(tmp_path: Path) -> None:
    skip_without()
    env = {**os.environ, "INGEST_BENCH_STATE": str(tmp_path / "state")}
    (tmp_path / "home").mkdir()
    argv, pipe = (sys.executable, "-c", KILLED, str(tmp_path / "home")), subprocess.PIPE
    with subprocess.Popen(argv, env=env, stdin=pipe, stdout=pipe, text=True) as run:
        assert run.stdout is not None
        pid = run.stdout.readline().strip()
        assert left(tmp_path)
        run.communicate("die\n")
    assert run.returncode == -signal.SIGKILL
    until = time.monotonic() + 50
    while Path(f"/proc/{pid}/exe").exists() or left(tmp_path):
        assert time.monotonic() < until, left(tmp_path)
        time.sleep(0.1)


@pytest.mark.nightly
@pytest.mark.netem
def test_it_is_so_on_a_kernel_that_has_the_device(tmp_path: Path) -> None:
    if inside_uml.INSIDE:
        pytest.skip("this is inside")
    inside_uml.passes("3 passed", tmp_path, "-m", "device_mapper", __file__, before=("sh", "-c", MODULES, "sh"))
