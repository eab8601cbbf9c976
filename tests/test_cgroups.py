"""Cgroups of nodes: where they are created, what they limit, and that they are removed."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import inside_uml
import pytest
from fault_lab import make_fault, make_resource_stage, skip_without

from ingest_bench import system
from ingest_bench.errors import MissingCapability, RunFailed
from ingest_bench.faults import timeline
from ingest_bench.faults.kind import Stage
from ingest_bench.host import cgroup_files, cgroups
from ingest_bench.host.cgroup_files import Cgroup
from ingest_bench.host.cgroups import Controller, NodeCgroups
from ingest_bench.host.node_resources import NodeResources

pytestmark = pytest.mark.machine

HYBRID = """\
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 /docker/abc /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
BUSY = """
print(flush=True)
while True:
    pass
"""
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
GROWER = """
import sys
print("ready", flush=True)
sys.stdin.readline()
kept = [bytearray(1 << 20) for _ in range(64)]
print("grown", flush=True)
sys.stdin.readline()
"""
SENDER = """
import contextlib, socket, sys
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
client.setblocking(False)
with contextlib.suppress(BlockingIOError):
    while True:
        client.send(bytes(65536))
print("full", flush=True)
sys.stdin.readline()
"""
FIND_OWN = """
from ingest_bench.host import cgroup_files, cgroups
for controller in ("cpu", "memory"):
    print(cgroup_files.find_process_cgroup("self", controller).folder)
print(cgroups.require_cgroups())
"""
# This machine may have version 1; User-Mode Linux has both.
VERSION_2 = """
ip link set lo up
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
def test_own_cgroup_is_found_in_both_versions(
    memberships: str, controller: Controller, folder: str, version: int
) -> None:
    own = cgroup_files.find_cgroup(HYBRID, memberships, controller)
    assert (str(own.folder), own.version) == (folder, version)


def test_unmounted_controller_is_named() -> None:
    with pytest.raises(MissingCapability, match="the controller memory is not mounted here"):
        cgroup_files.find_cgroup(HYBRID.splitlines()[0], "1:memory:/\n", "memory")


def write_files(folder: Path, **contents: object) -> Path:
    """Write files of a cgroup; "__" in a name stands for a dot."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / name.replace("__", ".")).write_text(f"{content}\n")
    return folder


@pytest.mark.parametrize(
    ("version", "files", "sock_bytes"),
    [
        (2, {"memory__current": 9, "memory__stat": "anon 4\nsock 4096"}, 4096),
        # The root of version 2 has no usage, and its sockets are not charged.
        (2, {"memory__stat": "anon 4\nsock 4096"}, None),
        (1, {"memory__kmem__tcp__usage_in_bytes": 0, "memory__kmem__tcp__max_usage_in_bytes": 8192}, 0),
        # Nothing was ever charged: there was no limit.
        (1, {"memory__kmem__tcp__usage_in_bytes": 0, "memory__kmem__tcp__max_usage_in_bytes": 0}, None),
        (1, {}, None),
    ],
)
def test_memory_of_sockets_is_unknown_where_the_kernel_does_not_count_it(
    version: Literal[1, 2], files: dict[str, Any], sock_bytes: int | None, tmp_path: Path
) -> None:
    folder = write_files(tmp_path, **files)
    assert cgroup_files.read_sock_bytes(Cgroup(folder, version, folder)) == sock_bytes


@pytest.mark.parametrize("version", [1, 2])
def test_headroom_is_below_the_nearest_limit_without_page_cache(version: Literal[1, 2], tmp_path: Path) -> None:
    usage, limit, prefix = ("usage_in_bytes", "limit_in_bytes", "total_") if version == 1 else ("current", "max", "")

    def write_group(folder: Path, used_mib: int, limit_mib: int | None) -> Path:
        none = 2**63 - 4096 if version == 1 else "max"
        stat = f"{prefix}inactive_file {20 << 20}\n{prefix}active_file {10 << 20}"
        limit_bytes = none if limit_mib is None else limit_mib << 20
        return write_files(
            folder, **{f"memory__{usage}": used_mib << 20, f"memory__{limit}": limit_bytes, "memory__stat": stat}
        )

    pod = write_group(tmp_path / "pod", 900, 1000)
    container = write_group(pod / "container", 500, 800)
    assert cgroup_files.read_headroom(Cgroup(container, version, container)) == (1000 - 900 + 30) << 20
    write_group(pod, 900, None)
    assert cgroup_files.read_headroom(Cgroup(container, version, container)) == (800 - 500 + 30) << 20
    write_group(container, 500, None)
    assert cgroup_files.read_headroom(Cgroup(container, version, container)) is None


@pytest.fixture
def session_folder(tmp_path: Path) -> Path:
    """A hierarchy as systemd makes it: the slice of users delegates memory, but not cpu."""
    own = tmp_path / "user.slice" / "session"
    own.mkdir(parents=True)
    for folder, delegated in ((tmp_path, "cpu io memory"), (own.parent, "memory"), (own, "")):
        (folder / "cgroup.subtree_control").write_text(delegated)
    return own


def test_parent_in_version_2_delegates_all_controllers(tmp_path: Path, session_folder: Path) -> None:
    own = Cgroup(session_folder, 2, session_folder)
    assert cgroups.find_delegating_parent(own, ["cpu"]) == Cgroup(tmp_path, 2, session_folder)
    assert cgroups.find_delegating_parent(own, ["memory"]) == Cgroup(session_folder.parent, 2, session_folder)
    (tmp_path / "cgroup.subtree_control").write_text("memory")
    with pytest.raises(MissingCapability, match="gives its children the controller cpu and memory"):
        cgroups.find_delegating_parent(own, ["cpu", "memory"])


def test_node_in_version_2_has_one_cgroup_for_all_controllers(
    tmp_path: Path, session_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = f"29 1 0:26 / {tmp_path} rw - cgroup2 cgroup2 rw\n"
    memberships = f"0::/{session_folder.relative_to(tmp_path)}\n"
    monkeypatch.setattr(system, "is_root", lambda: True)
    own = cgroup_files.find_cgroup(mounts, memberships, "cpu")
    monkeypatch.setattr(cgroups, "find_process_cgroup", lambda *_: own)
    monkeypatch.setattr(cgroups, "open_session", lambda *_, **__: nullcontext(SimpleNamespace(apply=list)))
    with cgroups.create_node_cgroups(frozenset({"cpu", "memory"}), 1) as (node,):
        folders = {cgroup.folder for cgroup in node.by_controller.values()}
    assert [folder.parent for folder in folders] == [tmp_path]


@pytest.mark.netns
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount something")
def test_mount_with_an_undecodable_path_is_ignored(tmp_path: Path) -> None:
    mount_point = os.fsencode(tmp_path) + b"/\xff"
    os.mkdir(mount_point)  # noqa: PTH102 - no Path has such bytes
    mount: tuple[bytes | str, ...] = ("sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', mount_point)
    find_own = (sys.executable, "-c", FIND_OWN)
    outputs = [
        subprocess.run(argv, capture_output=True, check=True).stdout
        for argv in (find_own, ("unshare", "--mount", *mount, *find_own))
    ]
    assert outputs[0] == outputs[1] != b""


def test_lowest_of_overlapping_limits_applies_until_it_ends() -> None:
    written: list[float | None] = []
    node = NodeCgroups({"cpu": Cgroup(Path("/"), 1, Path("/"))})

    def write(_: Cgroup, maximum: float | None) -> None:
        written.append(maximum)
        if maximum == 0.1:
            raise RunFailed("rejected")

    high, low = (node.limit("cpu", maximum, write) for maximum in (0.5, 0.2))
    equal = node.limit("cpu", 0.2, write)
    with pytest.raises(RunFailed, match="rejected"):
        node.limit("cpu", 0.1, write)
    for end in (low, equal, high):
        end()
    # A rejected limit may have been written in part, so the former one is written again.
    assert written == [0.5, 0.2, 0.2, 0.1, 0.2, 0.2, 0.5, None]


def test_cgroup_requires_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "is_root", lambda: False)
    with pytest.raises(MissingCapability, match="only root can give a server its own cgroup for memory"):
        cgroups.find_parents(frozenset({"memory"}))
    assert not cgroups.find_parents(frozenset())


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[NodeCgroups, ...]]:
    skip_without(cgroups.require_cgroups)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INGEST_BENCH_STATE", str(tmp_path_factory.mktemp("state")))
        with cgroups.create_node_cgroups(frozenset({"cpu", "memory"}), 2) as created:
            folders = [cgroup.folder for node in created for cgroup in node.by_controller.values()]
            assert all(folder.is_dir() for folder in folders)
            yield created
    assert not any(folder.exists() for folder in folders)


def stage_of(node: NodeCgroups) -> Stage:
    return make_resource_stage(NodeResources(cgroups=node))


def run_in(node: NodeCgroups, program: str, *arguments: str) -> system.Child:
    return system.Child(node.wrap((sys.executable, "-S", "-c", program, *arguments)), name="node")


def read_file(node: NodeCgroups, controller: Controller, version_1: str, version_2: str) -> str:
    cgroup = node.by_controller[controller]
    return (cgroup.folder / (version_1 if cgroup.version == 1 else version_2)).read_text().split()[0]


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.netns
def test_node_uses_no_more_cpu_than_its_smallest_quota(nodes: tuple[NodeCgroups, ...]) -> None:
    def quota() -> str:
        return read_file(nodes[0], "cpu", "cpu.cfs_quota_us", "cpu.max")

    stage = stage_of(nodes[0])
    with run_in(nodes[0], BUSY) as busy:
        # Until then it starts, and not yet in the cgroup.
        busy.read_line()
        large = timeline.begin_fault(make_fault("cpu", cores=0.2), stage)
        small = timeline.begin_fault(make_fault("cpu", cores=0.05), stage)
        used_before_s, start_s = cpu_s(busy.pid), time.monotonic()
        time.sleep(1)
        # The second instrument is the scheduler's own count. One more period may begin.
        assert 0 < cpu_s(busy.pid) - used_before_s <= 0.05 * (time.monotonic() - start_s) + 0.03
        assert small.end().startswith("node 1: throttled in ")
        assert quota() == "20000"
        time.sleep(0.5)
        large.end()
        assert quota() in ("-1", "max")
        without_effect = timeline.begin_fault(make_fault("cpu", cores=500), stage)
        with pytest.raises(RunFailed, match="never wanted more than 500 cores"):
            without_effect.end()
        assert quota() in ("-1", "max")


@pytest.mark.netns
def test_memory_fault_reclaims_page_cache_and_the_node_continues(
    nodes: tuple[NodeCgroups, ...], tmp_path: Path
) -> None:
    def usage_bytes() -> int:
        return int(read_file(nodes[1], "memory", "memory.usage_in_bytes", "memory.current"))

    stage = stage_of(nodes[1])
    with run_in(nodes[1], READER, str(tmp_path / "file")) as reader:
        reader.read_line()
        assert usage_bytes() > 96 << 20
        fault = timeline.begin_fault(make_fault("memory", headroom_bytes=4 << 20), stage)
        assert usage_bytes() < 96 << 20
        io_before = Path(f"/proc/{reader.pid}/io").read_text()
        time.sleep(0.5)
        assert Path(f"/proc/{reader.pid}/io").read_text() != io_before
        assert "its page cache fell from " in fault.end()
        assert reader.is_running()
        without_effect = timeline.begin_fault(make_fault("memory", headroom_bytes=1 << 40), stage)
        with pytest.raises(RunFailed, match="never reached its limit"):
            without_effect.end()


@pytest.mark.netns
def test_node_that_needs_more_memory_waits_and_is_not_killed(nodes: tuple[NodeCgroups, ...]) -> None:
    with run_in(nodes[0], GROWER) as grower:
        grower.read_line()
        fault = timeline.begin_fault(make_fault("memory", headroom_bytes=8 << 20), stage_of(nodes[0]))
        grower.write_line("grow")
        assert not select.select([grower.stdout], [], [], 1)[0]
        assert grower.is_running()
        effect = fault.end()
        assert grower.read_line() == "grown"
        if nodes[0].by_controller["memory"].version == 1:
            assert effect.endswith("; at the end a thread waited for memory")


@pytest.mark.netns
def test_unread_bytes_are_memory_of_sockets(nodes: tuple[NodeCgroups, ...]) -> None:
    cgroup = nodes[0].by_controller["memory"]
    if cgroup.version == 1:
        # From then on it is counted.
        cgroups.write_file(cgroup.folder / "memory.kmem.tcp.limit_in_bytes", 64 << 20)
    with run_in(nodes[0], SENDER) as sender:
        assert sender.read_line() == "full"
        assert (cgroup_files.read_sock_bytes(cgroup) or 0) > 100_000


@pytest.mark.nightly
@pytest.mark.measures
@pytest.mark.netem
def test_cgroups_of_version_2_behave_the_same(tmp_path: Path) -> None:
    if inside_uml.INSIDE:
        pytest.skip("runs this file inside User-Mode Linux")
    # Files in memory cannot be reclaimed without swap; those of this folder are on a disk.
    tests = ("-m", "netns", "--basetemp", "/share/files", __file__)
    inside_uml.assert_passes("5 passed", tmp_path, *tests, before=("sh", "-c", VERSION_2, "sh"))
