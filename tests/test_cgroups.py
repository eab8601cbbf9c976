"""A cgroup for each node: where it is made, what it takes from a process, and how it goes again."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import inside_uml
import pytest

from ingest_bench import system
from ingest_bench.errors import MissingCapability, RunFailed
from ingest_bench.faults import each, timeline
from ingest_bench.faults.stage import Node, Stage
from ingest_bench.host import cgroups
from ingest_bench.host.cgroups import Controller, Group, Parent
from ingest_bench.host.node_resources import NodeResources
from ingest_bench.model.experiment import Fault

pytestmark = pytest.mark.machine

HYBRID = """\
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 /docker/abc /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
# It reads a file again and again.
READER = """
import os, sys
file = open(sys.argv[1], "w+b")
file.write(bytes(96 << 20))
file.flush()
os.fsync(file.fileno())
print("ready", flush=True)
while True:
    file.seek(0)
    while file.read(1 << 20):
        pass
"""
# It takes 64 MiB when it is told to.
GROWER = """
import sys
print("ready", flush=True)
sys.stdin.readline()
kept = [bytearray(1 << 20) for _ in range(64)]
print("grown", flush=True)
sys.stdin.readline()
"""
KILLED = """
import os, signal, subprocess, sys
from ingest_bench import system
from ingest_bench.host import cgroups
with cgroups.groups(frozenset({"cpu", "memory"}), 2) as made:
    child = system.start(made[0].command(("sleep", "1000")))
    print(child.pid, *(place.folder for group in made for place in group.places.values()), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
LIMIT_S = 60
# This machine may have version 1; User-Mode Linux has both.
VERSION_2 = """
mount -t cgroup2 none /sys/fs/cgroup
echo "+cpu +memory" > /sys/fs/cgroup/cgroup.subtree_control
exec "$@"
"""


@pytest.mark.parametrize(
    ("memberships", "controller", "folder", "version"),
    [
        ("4:cpu,cpuacct:/user\n1:memory:/docker/abc/x\n0::/\n", "cpu", "/sys/fs/cgroup/cpu,cpuacct/user", 1),
        ("4:cpu,cpuacct:/user\n1:memory:/docker/abc/x\n0::/\n", "memory", "/sys/fs/cgroup/memory/x", 1),
        ("1:memory:/docker/abc\n0::/user.slice/a:b\n", "cpu", "/sys/fs/cgroup/unified/user.slice/a:b", 2),
    ],
)
def test_our_own_cgroup_is_found_of_both_versions(
    memberships: str, controller: Controller, folder: str, version: int
) -> None:
    found = cgroups.own(HYBRID, memberships, controller)
    assert (str(found.folder), found.version) == (folder, version)


def test_a_controller_that_is_mounted_nowhere_is_named() -> None:
    with pytest.raises(MissingCapability, match="the controller memory is not mounted here"):
        cgroups.own(HYBRID.splitlines()[0], "1:memory:/\n", "memory")


def test_of_version_2_a_group_is_made_where_children_have_all_its_controllers(tmp_path: Path) -> None:
    own = tmp_path / "user.slice" / "session"
    own.mkdir(parents=True)
    for folder, gives in ((tmp_path, "cpu memory"), (own.parent, "memory"), (own, "")):
        (folder / "cgroup.subtree_control").write_text(gives)
    before = Parent(own, 2, own)
    assert cgroups.with_children(before, ["cpu"]) == Parent(tmp_path, 2, own)
    assert cgroups.with_children(before, ["memory"]) == Parent(own.parent, 2, own)
    (tmp_path / "cgroup.subtree_control").write_text("memory")
    with pytest.raises(MissingCapability, match="gives its children the controller cpu and memory"):
        cgroups.with_children(before, ["cpu", "memory"])


def test_of_version_2_a_node_with_several_controllers_is_in_one_cgroup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As systemd has it: a slice of users gives memory on, and not cpu.
    own = tmp_path / "user.slice" / "session"
    own.mkdir(parents=True)
    for folder, gives in ((tmp_path, "cpu io memory"), (own.parent, "memory"), (own, "")):
        (folder / "cgroup.subtree_control").write_text(gives)
    texts = {
        "/proc/self/mountinfo": f"29 1 0:26 / {tmp_path} rw - cgroup2 cgroup2 rw\n",
        "/proc/self/cgroup": "0::/user.slice/session\n",
    }
    monkeypatch.setattr(system, "is_root", lambda: True)
    monkeypatch.setattr(cgroups, "_read", lambda path: texts.get(str(path)) or Path(path).read_text())
    monkeypatch.setattr(cgroups, "session", lambda *_, **__: nullcontext(SimpleNamespace(change=list)))
    with cgroups.groups(frozenset({"cpu", "memory"}), 1) as (group,):
        assert len({place.folder for place in group.places.values()}) == 1
        assert {place.folder.parent for place in group.places.values()} == {tmp_path}


ASKED = """
import sys
from ingest_bench.host import cgroups, io_limits
for controller in ("cpu", "memory"):
    print(cgroups.own(cgroups._read("/proc/self/mountinfo"), cgroups._read("/proc/self/cgroup"), controller).folder)
print(io_limits.capability().detail)
"""


@pytest.mark.netns
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount something")
def test_a_mount_whose_path_is_no_text_is_in_nobodys_way(tmp_path: Path) -> None:
    place = os.fsencode(tmp_path) + b"/\xff"
    os.mkdir(place)  # noqa: PTH102 - no Path has such bytes
    mounted: tuple[bytes | str, ...] = ("sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', place)
    asked = (sys.executable, "-c", ASKED)
    said = [
        subprocess.run(argv, capture_output=True, check=True).stdout
        for argv in (asked, ("unshare", "--mount", *mounted, *asked))
    ]
    assert said[0] == said[1] != b""


def test_of_several_limits_the_tightest_counts_until_it_ends() -> None:
    written: list[float | None] = []
    place = Parent(Path("/"), 1, Path("/"))
    group = Group({"cpu": place})

    def write(_: Parent, most: float | None) -> None:
        written.append(most)
        if most == 0.1:
            raise RunFailed("not taken")

    wide, tight = (group.limit("cpu", most, write) for most in (0.5, 0.2))
    alike = group.limit("cpu", 0.2, write)
    with pytest.raises(RunFailed, match="not taken"):
        group.limit("cpu", 0.1, write)
    for end in (tight, alike, wide):
        end()
    # What was not taken may have been taken in part.
    assert written == [0.5, 0.2, 0.2, 0.1, 0.2, 0.2, 0.5, None]


def test_a_fault_that_cannot_begin_says_why_and_not_that_nothing_happened() -> None:
    process: Any = SimpleNamespace(jvm_pid=0)

    def jcmd(_pid: int, _command: object) -> str:
        return ""

    def begin(node: Node) -> each.End:
        if node.number == 2:
            raise RunFailed("the kernel refused it")

        def end() -> str:
            ended.append(node.name)
            raise RunFailed("node 1 never wanted more within 0.0 s")

        return end

    ended: list[str] = []
    home = Path("/")
    nodes = tuple(Node(number=number, process=process, home=home, jcmd=jcmd, boot_limit_s=1) for number in (1, 2))
    with pytest.raises(RunFailed, match="the kernel refused it"):
        each.watched(Fault(kind="cpu", at_ns=0, for_ns=1), Stage(nodes=nodes), begin)
    assert ended == ["node 1"]


def test_an_ordinary_user_is_told_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "is_root", lambda: False)
    with pytest.raises(MissingCapability, match="only root may give a server its own for memory"):
        cgroups.require(frozenset({"memory"}))
    cgroups.require(frozenset())


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Group, ...]]:
    if os.geteuid() != 0:
        pytest.skip("needs root, to make cgroups")
    if not (found := cgroups.capability()).present:
        pytest.skip(found.detail)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INGEST_BENCH_STATE", str(tmp_path_factory.mktemp("state")))
        with cgroups.groups(frozenset({"cpu", "memory"}), 2) as made:
            folders = [place.folder for group in made for place in group.places.values()]
            assert all(folder.is_dir() for folder in folders)
            yield made
    assert not any(folder.exists() for folder in folders)


def stage_of(group: Group) -> Stage:
    process: Any = SimpleNamespace(jvm_pid=0)

    def jcmd(_pid: int, _command: object) -> str:
        return ""

    node = Node(number=1, process=process, home=Path("/"), jcmd=jcmd, boot_limit_s=1, resources=NodeResources(group))
    return Stage(nodes=(node,))


def quota_of(group: Group) -> str:
    place = group.places["cpu"]
    return (place.folder / ("cpu.cfs_quota_us" if place.version == 1 else "cpu.max")).read_text().split()[0]


def usage_bytes(group: Group) -> int:
    place = group.places["memory"]
    return int((place.folder / ("memory.usage_in_bytes" if place.version == 1 else "memory.current")).read_text())


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.netns
def test_a_node_has_no_more_cpu_than_its_tightest_quota(groups: tuple[Group, ...]) -> None:
    stage = stage_of(groups[0])
    with subprocess.Popen(groups[0].command((sys.executable, "-S", "-c", "while True: pass"))) as busy:
        try:
            wide = timeline.begin(Fault(kind="cpu", at_ns=0, for_ns=1, cores=0.2), stage)
            tight = timeline.begin(Fault(kind="cpu", at_ns=0, for_ns=1, cores=0.05), stage)
            used, began = cpu_s(busy.pid), time.monotonic()
            time.sleep(1)
            # The second instrument: the scheduler's own count of the process. One period more may begin.
            assert 0 < cpu_s(busy.pid) - used <= 0.05 * (time.monotonic() - began) + 0.03
            assert tight.end().startswith("node 1: held back in ")
            assert quota_of(groups[0]) == "20000"
            time.sleep(0.5)
            wide.end()
            assert quota_of(groups[0]) in ("-1", "max")
            unneeded = timeline.begin(Fault(kind="cpu", at_ns=0, for_ns=1, cores=500), stage)
            with pytest.raises(RunFailed, match="never wanted more than 500 cores"):
                unneeded.end()
            assert quota_of(groups[0]) in ("-1", "max")
        finally:
            busy.kill()


@pytest.mark.netns
def test_a_node_loses_what_it_has_read_and_goes_on(groups: tuple[Group, ...], tmp_path: Path) -> None:
    stage = stage_of(groups[1])
    argv = groups[1].command((sys.executable, "-S", "-c", READER, str(tmp_path / "file")))
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as reader:
        try:
            assert reader.stdout is not None
            reader.stdout.readline()
            assert usage_bytes(groups[1]) > 96 << 20
            fault = timeline.begin(Fault(kind="memory", at_ns=0, for_ns=1, room_bytes=4 << 20), stage)
            assert usage_bytes(groups[1]) < 96 << 20
            read_before = Path(f"/proc/{reader.pid}/io").read_text()
            time.sleep(0.5)
            assert Path(f"/proc/{reader.pid}/io").read_text() != read_before
            assert " MB at the end" in fault.end()
            assert reader.poll() is None
            unneeded = timeline.begin(Fault(kind="memory", at_ns=0, for_ns=1, room_bytes=1 << 40), stage)
            with pytest.raises(RunFailed, match="was never at its limit"):
                unneeded.end()
        finally:
            reader.kill()


@pytest.mark.netns
def test_a_node_that_wants_more_than_it_may_have_stands_still_and_is_not_killed(groups: tuple[Group, ...]) -> None:
    stage, pipe = stage_of(groups[0]), subprocess.PIPE
    argv = groups[0].command((sys.executable, "-S", "-c", GROWER))
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe) as grower:
        try:
            assert grower.stdin is not None
            assert grower.stdout is not None
            grower.stdout.readline()
            fault = timeline.begin(Fault(kind="memory", at_ns=0, for_ns=1, room_bytes=8 << 20), stage)
            grower.stdin.write(b"grow\n")
            grower.stdin.flush()
            assert not select.select([grower.stdout], [], [], 1)[0]
            assert grower.poll() is None
            said = fault.end()
            assert grower.stdout.readline() == b"grown\n"
            if groups[0].places["memory"].version == 1:
                assert said.endswith("; it stood still for want of memory")
        finally:
            grower.kill()


@pytest.mark.netns
def test_nothing_of_them_is_left_after_sigkill(tmp_path: Path) -> None:
    if os.geteuid() != 0 or not cgroups.capability().present:
        pytest.skip("needs root, to make cgroups")
    env = {**os.environ, "INGEST_BENCH_STATE": str(tmp_path / "state")}
    done = subprocess.run((sys.executable, "-c", KILLED), env=env, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    pid, *folders = done.stdout.split()
    assert len(folders) == 4
    until = time.monotonic() + LIMIT_S
    while any(Path(folder).exists() for folder in folders) or list((tmp_path / "state").glob("*.jsonl")):
        assert time.monotonic() < until, folders
        time.sleep(0.1)
    assert not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text()


@pytest.mark.nightly
@pytest.mark.measures
@pytest.mark.netem
def test_it_is_the_same_of_version_2_of_cgroups(tmp_path: Path) -> None:
    if inside_uml.INSIDE:
        pytest.skip("this is inside")
    # Its own files are in memory, which the kernel cannot take away without swap; those of this folder are on a disk.
    tests = ("-m", "netns", "--basetemp", "/share/files", __file__)
    inside_uml.passes("5 passed", tmp_path, *tests, before=("sh", "-c", VERSION_2, "sh"))
