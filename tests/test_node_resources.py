"""Resources of two nodes in two runs at the same time, killed by SIGKILL during every fault."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from fault_lab import list_loop_devices, skip_without, wait_until
from test_slow_disk import list_limits

from ingest_bench import system
from ingest_bench.host import node_resources

# Both nodes sync a file repeatedly while all faults are active.
FAULTY = """
import os, signal, sys, time
from pathlib import Path
from types import SimpleNamespace
from ingest_bench import system
from ingest_bench.faults import timeline
from ingest_bench.faults.kind import Node, Stage
from ingest_bench.host.node_resources import create_resources
from ingest_bench.model.experiment import Fault
homes = [Path(name) for name in sys.argv[1:]]
syncer = "import os, sys\\nfile = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)\\nwhile True: os.fsync(file)"
with create_resources({"cpu", "memory", "disk", "throttle", "syncs"}, homes) as nodes:
    stage = Stage(nodes=tuple(
        Node(number=number, process=SimpleNamespace(jvm_pid=0), home=home, jcmd=None, boot_limit_s=1, resources=node)
        for number, (home, node) in enumerate(zip(homes, nodes), 1)
    ))
    for home, node in zip(homes, nodes):
        child = system.start(node.wrap((sys.executable, "-S", "-c", syncer, str(home / "file"))))
        print(node.io_throttle.device, child.pid, *(c.folder for c in node.cgroups.by_controller.values()), flush=True)
    # Each child has its file before its first sync call.
    while not all((home / "file").exists() for home in homes):
        time.sleep(0.01)
    timeline.begin_fault(Fault(kind="slow-fsync", at_ns=0, for_ns=1, delay_ns=3600 * 10**9), stage)
    # Each waits before the disk is slow: a sync in progress would take long.
    while not all(node.sync_supervisor.delayed_calls()[0] for node in nodes):
        time.sleep(0.01)
    faults = {"cpu": {"cores": 0.1}, "memory": {}, "full-disk": {}, "slow-disk": {"rate_bps": 10_000, "iops": 2}}
    for kind, keys in faults.items():
        timeline.begin_fault(Fault(kind=kind, at_ns=0, for_ns=1, **keys), stage)
    time.sleep(0.5)
    print(*(node.sync_supervisor.delayed_calls()[0] for node in nodes), flush=True)
    sys.stdin.readline()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.measures
@pytest.mark.netns
def test_nothing_is_left_of_two_runs_that_are_killed_during_every_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_without(lambda: node_resources.require_resources({"cpu", "memory", "disk", "throttle", "syncs"}))
    monkeypatch.setenv("INGEST_BENCH_STATE", str(tmp_path / "state"))
    homes = [[tmp_path / f"{run}-{node}" for node in (1, 2)] for run in "ab"]
    all_homes = [*homes[0], *homes[1]]
    for home in all_homes:
        home.mkdir()
    children: list[list[str]] = []
    # At the end all are killed: such slow disks delay every process that writes on this machine.
    with ExitStack() as stack:
        argvs = [(sys.executable, "-c", FAULTY, *map(str, run)) for run in homes]
        runs = [stack.enter_context(system.Child(argv, name="run")) for argv in argvs]
        for run in runs:
            children += [run.read_line().split() for _ in range(2)]
            assert run.read_line() == "1 1", "each child waits for its only sync call"
        assert len({folder for _, _, *folders in children for folder in folders}) == 8
        assert all(list_limits(device) for device, *_ in children)
        assert all(home.is_mount() for home in all_homes)
        for run in runs:
            run.write_line("die")
            assert run.describe_exit() == "was killed by signal 9"

    def list_leftovers() -> list[str]:
        paths = [*(tmp_path / "state").glob("*.jsonl"), *(home for home in all_homes if home.is_mount())]
        for device, pid, *folders in children:
            paths += map(Path, list_limits(device))
            paths += [path for path in (Path(f"/proc/{pid}/exe"), *map(Path, folders)) if path.exists()]
        return [*map(str, paths), *list_loop_devices(tmp_path)]

    wait_until(lambda: not list_leftovers())
    assert not [file for home in all_homes for file in home.iterdir()]
