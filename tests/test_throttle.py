"""A node's disk that is slow: reads, writes and what is written back wait, and no rule is left."""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import inside_uml
import pytest

from ingest_bench import system
from ingest_bench.errors import MissingCapability, RunFailed, SpecError
from ingest_bench.faults import checks, timeline
from ingest_bench.faults.stage import Node, Stage
from ingest_bench.host import cgroups, disk, io_limits, node_resources
from ingest_bench.host.cgroups import Parent
from ingest_bench.host.io_limits import Throttle
from ingest_bench.host.node_resources import NodeResources
from ingest_bench.model.experiment import Cell, Fault
from ingest_bench.model.load import LoadOptions
from ingest_bench.model.target import TargetOptions

pytestmark = pytest.mark.measures

S, MB = 10**9, 10**6
CGROUPS = Path("/sys/fs/cgroup")
ROOT = CGROUPS / "blkio"
# This machine may have version 1; User-Mode Linux has both.
VERSION_2 = """
busybox modprobe loop
busybox modprobe ext4
mount -t cgroup2 none /sys/fs/cgroup
echo "+io +memory" > /sys/fs/cgroup/cgroup.subtree_control
exec "$@"
"""
NEEDS: frozenset[node_resources.Need] = frozenset({"disk", "throttle"})
# Each writes 2 MB, or reads them again, and says how long that took.
CACHED = """
import os, sys, time
file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
began = time.monotonic()
os.write(file, bytes(2_000_000))
os.fsync(file)
print(time.monotonic() - began)
"""
# The kernel is asked to begin with it, as it does by itself after some seconds, and done when the disk has it.
BACK = """
import ctypes, os, sys, time
file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
began = time.monotonic()
os.write(file, bytes(2_000_000))
os.sync()
print(time.monotonic() - began)
"""
DIRECT = """
import mmap, os, sys, time
file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_DIRECT)
block = mmap.mmap(-1, 200 * 1024)
began = time.monotonic()
for _ in range(10):
    os.write(file, block)
print(time.monotonic() - began)
"""
READ = """
import os, sys, time
file = os.open(sys.argv[1], os.O_RDONLY)
os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
began = time.monotonic()
while os.read(file, 1 << 16):
    pass
print(time.monotonic() - began)
"""
SYNCS = """
import os, sys, time
file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
began = time.monotonic()
for at in range(10):
    os.pwrite(file, bytes(4096), at * 4096)
    os.fsync(file)
print(time.monotonic() - began)
"""
# What it writes is under way for minutes when all is killed.
KILLED = """
import os, signal, sys
from pathlib import Path
from ingest_bench import system
from ingest_bench.host import shares
home = Path(sys.argv[1])
write = (
    "import os, sys; file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT); os.write(file, bytes(1 << 22));"
    "print(flush=True); os.fsync(file)"
)
with shares.shares({"disk", "throttle"}, [home]) as (share,):
    share.throttle.limit({"bytes": 1250, "operations": 2})
    child = system.start(share.command((sys.executable, "-S", "-c", write, str(home / "file"))), stdout=-1)
    child.stdout.readline()
    print(child.pid, share.throttle.device, flush=True)
    sys.stdin.readline()
    os.kill(os.getpid(), signal.SIGKILL)
"""
LIMIT_S = 60


def slow(**keys: int) -> Fault:
    return Fault(kind="slow-disk", at_ns=0, for_ns=S, **keys)  # type: ignore[arg-type]


def rules(device: str) -> list[str]:
    """Every rule of the kernel's for that device, of both versions."""
    files = [*ROOT.glob("blkio.throttle.*_device"), *CGROUPS.rglob("io.max")]
    # Of version 2 there are such files only while there are groups.
    assert files or not ROOT.is_dir()
    return [line for path in files for line in path.read_text().splitlines() if line.split()[0] == device]


def stage_of(home: Path, share: NodeResources) -> Stage:
    process: Any = SimpleNamespace(jvm_pid=0)

    def jcmd(_pid: int, _command: object) -> str:
        return ""

    return Stage(nodes=(Node(number=1, process=process, home=home, jcmd=jcmd, boot_limit_s=1, resources=share),))


def test_a_disk_is_slow_in_a_way_that_is_given_and_only_the_runs_own() -> None:
    load = LoadOptions(measure_ns=9 * S)
    cell = Cell(name="c", levels={}, network=None, target=TargetOptions(), load=load, faults=(slow(iops=5),))
    checks.check(cell)
    assert checks.needs(cell) == NEEDS
    with pytest.raises(SpecError, match=r'slow-disk: how slow\? Add rate = "80mbit", iops = 100 or delay'):
        checks.check(Cell(name="c", levels={}, network=None, target=TargetOptions(), load=load, faults=(slow(),)))
    earlier = TargetOptions(name="cassandra", earlier_documents=5)
    with pytest.raises(SpecError, match="slow-disk: documents of an earlier run"):
        checks.check(Cell(name="c", levels={}, network=None, target=earlier, load=load, faults=cell.faults))


def test_an_ordinary_user_is_told_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "is_root", lambda: False)
    with pytest.raises(MissingCapability, match="only root"):
        node_resources.require(NEEDS)
    assert not io_limits.capability().present


def test_a_group_that_only_looks_like_the_root_of_blkio_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "is_root", lambda: True)
    monkeypatch.setattr(io_limits, "_is_version_1", lambda: True)
    monkeypatch.setattr(disk, "require", lambda: None)
    monkeypatch.setattr(cgroups, "own", lambda *_: Parent(tmp_path, 1, tmp_path))
    with pytest.raises(MissingCapability, match="is not the root of the controller blkio, as in a container"):
        io_limits.require()


def test_of_version_2_the_tightest_of_each_kind_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "io.max"
    rules_of = Throttle("7:3", Parent(tmp_path, 2, tmp_path))
    assert rules_of.command(("sleep", "1")) == ("sleep", "1")
    wide, tight = rules_of.limit({"bytes": 9000, "operations": 70}), rules_of.limit({"bytes": 1250})
    assert file.read_text() == "7:3 rbps=1250 wbps=1250 riops=70 wiops=70"
    wide()
    assert file.read_text() == "7:3 rbps=1250 wbps=1250 riops=max wiops=max"
    tight()
    assert file.read_text() == "7:3 rbps=max wbps=max riops=max wiops=max"


def test_rules_that_are_taken_in_part_are_taken_back(tmp_path: Path) -> None:
    rules_of = Throttle("7:3", Parent(tmp_path, 1, tmp_path))
    (tmp_path / "blkio.throttle.write_iops_device").mkdir()
    with pytest.raises(RunFailed, match="write_iops_device: 7:3 70 was not taken"):
        rules_of.limit({"bytes": 9000, "operations": 70})
    taken = {path.name: path.read_text() for path in tmp_path.iterdir() if path.is_file()}
    assert set(taken.values()) == {"7:3 0"}
    assert len(taken) == 3


def skip_without() -> None:
    try:
        node_resources.require(NEEDS)
    except MissingCapability as error:
        pytest.skip(f"needs root: {error}")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, NodeResources]]:
    skip_without()
    folder = tmp_path_factory.mktemp("disk")
    (folder / "home").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INGEST_BENCH_STATE", str(folder / "state"))
        with node_resources.shares(NEEDS, [folder / "home"]) as (share,):
            yield folder / "home", share
        assert not rules(throttle_of(share).device)


def throttle_of(share: NodeResources) -> Throttle:
    assert share.throttle is not None
    return share.throttle


def disk_of(share: NodeResources) -> disk.Own:
    assert share.disk is not None
    return share.disk


def took_s(share: NodeResources, code: str, path: Path, before: Sequence[str] = ()) -> float:
    """How long it took a process of the node. It comes from a group of blkio that knows nothing of the rules."""
    argv = share.command((sys.executable, "-S", "-c", code, str(path)))
    done = subprocess.run((*before, *argv), capture_output=True, text=True, timeout=LIMIT_S, check=True)
    return float(done.stdout)


@pytest.fixture
def elsewhere(node: tuple[Path, NodeResources]) -> Iterator[tuple[str, ...]]:
    """What begins in a group of blkio below the root, as a service does."""
    place = throttle_of(node[1]).place
    if place.version == 2:
        yield ()
        return
    folder = ROOT / f"test-{secrets.token_hex(4)}"
    folder.mkdir()
    try:
        yield cgroups.joining((folder,), ("env",))
    finally:
        folder.rmdir()


@pytest.mark.netns
@pytest.mark.parametrize("how", [CACHED, BACK, DIRECT], ids=["cached", "written back", "direct"])
def test_what_a_node_writes_and_reads_waits_however_it_does_that(
    node: tuple[Path, NodeResources], elsewhere: tuple[str, ...], how: str
) -> None:
    home, share = node
    stage = stage_of(home, share)
    rules_of = throttle_of(share)
    wide, tight = timeline.begin(slow(rate_bps=400 * MB), stage), timeline.begin(slow(rate_bps=16 * MB), stage)
    before = disk_of(share).moved()
    # The 2 MB take 1 s; the kernel lets a burst of a tenth pass, and the journal is written besides.
    assert 0.75 < took_s(share, how, home / "file", elsewhere) < 3
    assert disk_of(share).moved().since(before).written_bytes >= 2 * MB
    said = tight.end()
    assert said.startswith("node 1: wrote 2.")
    # What it may have done in the time that it lasted, which is that of the writing and little more.
    assert (found := re.search(r"within ([\d.]+) s, each of at most ([\d.]+) MB$", said)), said
    assert float(found[2]) == pytest.approx(2 * float(found[1]), abs=0.2)
    assert took_s(share, how, home / "file") < 0.7
    assert 0 < took_s(share, READ, home / "file") < 0.7
    slow_again = timeline.begin(slow(rate_bps=16 * MB), stage)
    wide.end()
    assert 0.75 < took_s(share, READ, home / "file", elsewhere) < 3
    assert " and read 2." in slow_again.end()
    assert not rules(rules_of.device)
    unneeded = timeline.begin(slow(rate_bps=16 * MB), stage)
    with pytest.raises(RunFailed, match="the disk of node 1 neither read nor wrote within"):
        unneeded.end()
    assert not rules(rules_of.device)


@pytest.mark.netns
def test_a_disk_of_few_operations_makes_each_sync_long(node: tuple[Path, NodeResources]) -> None:
    home, share = node
    stage = stage_of(home, share)
    took_s(share, SYNCS, home / "syncs")
    before = disk_of(share).moved()
    fault = timeline.begin(slow(iops=40), stage)
    took = took_s(share, SYNCS, home / "syncs")
    # The data at 40 a second, and of version 1 the journal's two each time besides.
    if throttle_of(share).place.version == 1:
        assert took > 0.65
        assert disk_of(share).moved().since(before).writes <= 40 * (took + 0.2)
    else:
        assert took > 0.2
    assert " writes and read " in fault.end()


@pytest.mark.netns
def test_a_rule_that_somebody_has_for_such_a_device_is_away_meanwhile_and_there_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_without()
    file = ROOT / "blkio.throttle.write_bps_device"
    if not file.exists():
        pytest.skip("of version 2 of cgroups a group of ours has no rules of others")
    monkeypatch.setenv("INGEST_BENCH_STATE", str(tmp_path / "state"))
    (tmp_path / "home").mkdir()
    # The next device that is free, unless another test takes it now.
    name = subprocess.run(("losetup", "-f"), capture_output=True, text=True, check=True).stdout.strip()
    number = Path(name).stat().st_rdev
    free = f"{os.major(number)}:{os.minor(number)}"
    theirs = f"{free} 123456789"
    file.write_text(theirs)
    try:
        with node_resources.shares(NEEDS, [tmp_path / "home"]) as (share,):
            device = throttle_of(share).device
            if device != free:
                pytest.skip(f"{name} was taken meanwhile")
            assert not rules(device)
            throttle_of(share).limit({"bytes": 1250})
            assert rules(device) == [f"{device} 1250"] * 2
        assert rules(device) == [theirs]
    finally:
        file.write_text(f"{free} 0")


@pytest.mark.netns
def test_what_waits_goes_on_at_once_when_all_is_killed_and_no_rule_is_left(tmp_path: Path) -> None:
    skip_without()
    env = {**os.environ, "INGEST_BENCH_STATE": str(tmp_path / "state")}
    (tmp_path / "home").mkdir()
    argv, pipe = (sys.executable, "-c", KILLED, str(tmp_path / "home")), subprocess.PIPE
    with subprocess.Popen(argv, env=env, stdin=pipe, stdout=pipe, text=True) as run:
        assert run.stdout is not None
        pid, device = run.stdout.readline().split()
        assert rules(device)
        run.communicate("die\n")
    assert run.returncode == -signal.SIGKILL
    until = time.monotonic() + LIMIT_S
    # The last thing that is taken back is the mount.
    while Path(f"/proc/{pid}/exe").exists() or list((tmp_path / "state").glob("*.jsonl")):
        assert time.monotonic() < until
        time.sleep(0.1)
    assert not rules(device)
    assert not (tmp_path / "home").is_mount()
    assert str(tmp_path) not in subprocess.run(("losetup", "-a"), capture_output=True, text=True, check=True).stdout


@pytest.mark.netem
@pytest.mark.nightly
def test_it_is_the_same_of_version_2_of_cgroups(tmp_path: Path) -> None:
    if inside_uml.INSIDE:
        pytest.skip("this is inside")
    version_2 = ("sh", "-c", VERSION_2, "sh")
    inside_uml.passes("5 passed, 1 skipped", tmp_path, "-m", "netns", __file__, before=version_2)
