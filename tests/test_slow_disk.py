"""Fault `slow-disk`: reads, writes and writeback wait, and no limit is left."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import inside_uml
import pytest
from fault_lab import TIMEOUT_S, list_loop_devices, make_fault, make_resource_stage, skip_without, wait_until

from ingest_bench import system
from ingest_bench.errors import MissingCapability, RunFailed
from ingest_bench.faults import timeline
from ingest_bench.host import cgroups, node_resources, volume
from ingest_bench.host.cgroup_files import Cgroup
from ingest_bench.host.cgroups import IoThrottle
from ingest_bench.host.node_resources import NodeResources
from ingest_bench.host.volume import Volume
from ingest_bench.ledger.watchdog import open_session
from ingest_bench.model.experiment import Fault

pytestmark = pytest.mark.measures

MB = 10**6
CGROUPS = Path("/sys/fs/cgroup")
BLKIO_ROOT = CGROUPS / "blkio"
# This machine may have version 1; User-Mode Linux has both.
VERSION_2 = """
busybox modprobe loop
busybox modprobe ext4
mount -t cgroup2 none /sys/fs/cgroup
echo "+io +memory" > /sys/fs/cgroup/cgroup.subtree_control
exec "$@"
"""
NEEDS: frozenset[node_resources.Need] = frozenset({"disk", "throttle"})
# Each writes 2 MB, or reads them again, and prints how many seconds that took.
CACHED = """
import os, sys, time
file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
start = time.monotonic()
os.write(file, bytes(2_000_000))
os.fsync(file)
print(time.monotonic() - start)
"""
# sync() starts writeback, as the kernel does by itself after some seconds, and returns when it is finished.
WRITEBACK = CACHED.replace("os.fsync(file)", "os.sync()")
DIRECT = """
import mmap, os, sys, time
file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_DIRECT)
block = mmap.mmap(-1, 200 * 1024)
start = time.monotonic()
for _ in range(10):
    os.write(file, block)
print(time.monotonic() - start)
"""
READ = """
import os, sys, time
file = os.open(sys.argv[1], os.O_RDONLY)
os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
start = time.monotonic()
while os.read(file, 1 << 16):
    pass
print(time.monotonic() - start)
"""
SYNC_TEN_TIMES = """
import os, sys, time
file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
start = time.monotonic()
for at in range(10):
    os.pwrite(file, bytes(4096), at * 4096)
    os.fsync(file)
print(time.monotonic() - start)
"""
# The sync would take minutes when everything is killed.
KILLED = """
import os, signal, sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from ingest_bench import system
from ingest_bench.host.node_resources import create_resources
home = Path(sys.argv[1])
write = (
    "import os, sys; file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT); os.write(file, bytes(1 << 22));"
    "print(flush=True); os.fsync(file)"
)
with create_resources({"disk", "throttle"}, [home]) as (node,):
    node.io_throttle.limit({"bytes": 1250, "operations": 2})
    child = system.start(node.wrap((sys.executable, "-S", "-c", write, str(home / "file"))), stdout=-1)
    child.stdout.readline()
    print(child.pid, node.io_throttle.device, flush=True)
    sys.stdin.readline()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def slow(**keys: int) -> Fault:
    return make_fault("slow-disk", **keys)


def list_limits(device: str) -> list[str]:
    """Return every limit of a device in the kernel, of both versions."""
    # `os.walk` and not `rglob`: cgroups of other tests vanish at any time.
    version_2 = [Path(folder, "io.max") for folder, _, names in os.walk(CGROUPS) if "io.max" in names]
    files = [*BLKIO_ROOT.glob("blkio.throttle.*_device"), *version_2]
    # In version 2 there are such files only while there are cgroups.
    assert files or not BLKIO_ROOT.is_dir()
    lines: list[str] = []
    for path in files:
        with contextlib.suppress(FileNotFoundError):
            lines += path.read_text().splitlines()
    return [line for line in lines if line.split()[0] == device]


def test_throttle_requires_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "is_root", lambda: False)
    with pytest.raises(MissingCapability, match="only root"):
        node_resources.require_resources(NEEDS)


def test_cgroup_that_only_looks_like_the_root_of_blkio_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "is_root", lambda: True)
    monkeypatch.setattr(cgroups, "_is_blkio_version_1", lambda: True)
    monkeypatch.setattr(volume, "require_volume", lambda: None)
    monkeypatch.setattr(cgroups, "find_cgroup", lambda *_: Cgroup(tmp_path, 1, tmp_path))
    with pytest.raises(MissingCapability, match="is not the root of the controller blkio, as in a container"):
        cgroups.require_io_throttle()


def test_lowest_limits_in_version_2_are_one_line(tmp_path: Path) -> None:
    file, throttle = tmp_path / "io.max", IoThrottle("7:3", Cgroup(tmp_path, 2, tmp_path))
    assert throttle.wrap(("sleep", "1")) == ("sleep", "1")
    high, low = throttle.limit({"bytes": 9000, "operations": 70}), throttle.limit({"bytes": 1250})
    assert file.read_text() == "7:3 rbps=1250 wbps=1250 riops=70 wiops=70"
    high()
    assert file.read_text() == "7:3 rbps=1250 wbps=1250 riops=max wiops=max"
    low()
    assert file.read_text() == "7:3 rbps=max wbps=max riops=max wiops=max"


def test_limits_that_are_written_in_part_are_removed(tmp_path: Path) -> None:
    throttle = IoThrottle("7:3", Cgroup(tmp_path, 1, tmp_path))
    (tmp_path / "blkio.throttle.write_iops_device").mkdir()
    with pytest.raises(RunFailed, match="write_iops_device: 7:3 70 was rejected"):
        throttle.limit({"bytes": 9000, "operations": 70})
    assert [path.read_text() for path in tmp_path.iterdir() if path.is_file()] == ["7:3 0"] * 3


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, NodeResources]]:
    skip_without(lambda: node_resources.require_resources(NEEDS))
    folder = tmp_path_factory.mktemp("disk")
    (folder / "home").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INGEST_BENCH_STATE", str(folder / "state"))
        with node_resources.create_resources(NEEDS, [folder / "home"]) as (resources,):
            yield folder / "home", resources
        assert not list_limits(throttle_of(resources).device)


def throttle_of(resources: NodeResources) -> IoThrottle:
    assert resources.io_throttle is not None
    return resources.io_throttle


def volume_of(resources: NodeResources) -> Volume:
    assert resources.volume is not None
    return resources.volume


def measure_s(resources: NodeResources, program: str, path: Path, prefix: Sequence[str] = ()) -> float:
    """Return how long a program of the node takes."""
    argv = resources.wrap((sys.executable, "-S", "-c", program, str(path)))
    completed = subprocess.run((*prefix, *argv), capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    return float(completed.stdout)


@pytest.fixture
def below_root(node: tuple[Path, NodeResources]) -> Iterator[tuple[str, ...]]:
    """Return the prefix of a command that starts in a group of blkio below the root, as a service does."""
    if throttle_of(node[1]).cgroup.version == 2:
        yield ()
        return
    folder = BLKIO_ROOT / f"test-{secrets.token_hex(4)}"
    folder.mkdir()
    try:
        yield cgroups.wrap_in_cgroups((folder,), ("env",))
    finally:
        folder.rmdir()


@pytest.mark.netns
@pytest.mark.parametrize("program", [CACHED, WRITEBACK, DIRECT], ids=["cached", "writeback", "direct"])
def test_reads_and_all_kinds_of_writes_wait(
    node: tuple[Path, NodeResources], below_root: tuple[str, ...], program: str
) -> None:
    home, resources = node
    stage, device = make_resource_stage(resources, home), throttle_of(resources).device
    high = timeline.begin_fault(slow(rate_bps=400 * MB), stage)
    low = timeline.begin_fault(slow(rate_bps=16 * MB), stage)
    before = volume_of(resources).read_counters()
    # The 2 MB take 1 s; the kernel lets a burst of a tenth pass, and the journal is written too.
    assert 0.75 < measure_s(resources, program, home / "file", below_root) < 3
    assert volume_of(resources).read_counters().subtract(before).written_bytes >= 2 * MB
    effect = low.end()
    assert effect.startswith("node 1: wrote 2.")
    # The maximum of the fault's duration, which is that of the writes and little more.
    assert (match := re.search(r"within ([\d.]+) s, each of at most ([\d.]+) MB$", effect)), effect
    assert float(match[2]) == pytest.approx(2 * float(match[1]), abs=0.2)
    assert measure_s(resources, program, home / "file") < 0.7
    assert 0 < measure_s(resources, READ, home / "file") < 0.7
    low = timeline.begin_fault(slow(rate_bps=16 * MB), stage)
    high.end()
    assert 0.75 < measure_s(resources, READ, home / "file", below_root) < 3
    assert " and read 2." in low.end()
    assert not list_limits(device)
    without_effect = timeline.begin_fault(slow(rate_bps=16 * MB), stage)
    with pytest.raises(RunFailed, match="the disk of node 1 neither read nor wrote within"):
        without_effect.end()
    assert not list_limits(device)


@pytest.mark.netns
def test_few_operations_per_second_make_syncs_slow(node: tuple[Path, NodeResources]) -> None:
    home, resources = node
    measure_s(resources, SYNC_TEN_TIMES, home / "syncs")
    before = volume_of(resources).read_counters()
    fault = timeline.begin_fault(slow(iops=40), make_resource_stage(resources, home))
    duration_s = measure_s(resources, SYNC_TEN_TIMES, home / "syncs")
    # The data at 40 per second; in version 1 also two writes of the journal each time.
    if throttle_of(resources).cgroup.version == 1:
        assert duration_s > 0.65
        assert volume_of(resources).read_counters().subtract(before).writes <= 40 * (duration_s + 0.2)
    else:
        assert duration_s > 0.2
    assert " writes and read " in fault.end()


@pytest.mark.netns
def test_limit_of_another_program_for_the_device_is_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    skip_without(lambda: node_resources.require_resources(NEEDS))
    file = BLKIO_ROOT / "blkio.throttle.write_bps_device"
    if not file.exists():
        pytest.skip("in version 2 other programs have no limits in our cgroup")
    monkeypatch.setenv("INGEST_BENCH_STATE", str(tmp_path / "state"))
    (tmp_path / "home").mkdir()
    # The device of a volume is not taken by another test meanwhile.
    with node_resources.create_resources(NEEDS, [tmp_path / "home"]) as (resources,):
        device = throttle_of(resources).device
        file.write_text(f"{device} 123456789")
        try:
            with open_session("throttle", "a second throttle of the device", time_limit_s=60) as session:
                second: Any = SimpleNamespace(device=device, session=session)
                throttle = cgroups.create_io_throttle(second, None)
                assert not list_limits(device)
                throttle.limit({"bytes": 1250})
                assert list_limits(device) == [f"{device} 1250"] * 2
            assert list_limits(device) == [f"{device} 123456789"]
        finally:
            file.write_text(f"{device} 0")


@pytest.mark.netns
def test_waiting_requests_continue_and_no_limit_is_left_after_sigkill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_without(lambda: node_resources.require_resources(NEEDS))
    state, home = tmp_path / "state", tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("INGEST_BENCH_STATE", str(state))
    with system.Child((sys.executable, "-c", KILLED, str(home)), name="run") as run:
        pid, device = run.read_line().split()
        assert list_limits(device)
        run.write_line("die")
        assert run.describe_exit() == "was killed by signal 9"
    # The mount is undone last.
    wait_until(lambda: not Path(f"/proc/{pid}/exe").exists() and not list(state.glob("*.jsonl")))
    assert not list_limits(device)
    assert not home.is_mount()
    # The kernel detaches the loop device after the last write to it.
    wait_until(lambda: not list_loop_devices(tmp_path))


@pytest.mark.netem
@pytest.mark.nightly
def test_throttle_of_version_2_behaves_the_same(tmp_path: Path) -> None:
    if inside_uml.INSIDE:
        pytest.skip("runs this file inside User-Mode Linux")
    inside_uml.assert_passes(
        "5 passed, 1 skipped", tmp_path, "-m", "netns", __file__, before=("sh", "-c", VERSION_2, "sh")
    )
