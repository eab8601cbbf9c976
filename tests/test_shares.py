"""What two nodes have of the machine for themselves: two runs at once, and a SIGKILL in the middle of every fault."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ingest_bench.errors import MissingCapability
from ingest_bench.host import node_resources

# Both nodes sync a file again and again while all that is taken from them is taken.
FAULTY = """
import os, signal, sys, time
from pathlib import Path
from types import SimpleNamespace
from ingest_bench import system
from ingest_bench.faults import timeline
from ingest_bench.faults.stage import Node, Stage
from ingest_bench.host.node_resources import shares
from ingest_bench.model.experiment import Fault
homes = [Path(name) for name in sys.argv[1:]]
again = "import os, sys\\nfile = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)\\nwhile True: os.fsync(file)"
with shares({"cpu", "memory", "disk", "throttle", "syncs"}, homes) as made:
    stage = Stage(nodes=tuple(
        Node(number=number, process=SimpleNamespace(jvm_pid=0), home=home, jcmd=None, boot_limit_s=1, resources=share)
        for number, (home, share) in enumerate(zip(homes, made), 1)
    ))
    for home, share in zip(homes, made):
        child = system.start(share.command((sys.executable, "-S", "-c", again, str(home / "file"))))
        print(child.pid, *(place.folder for place in share.group.places.values()), flush=True)
    # Each child has its file once it is asked about a sync of it.
    while not all((home / "file").exists() for home in homes):
        time.sleep(0.01)
    timeline.begin(Fault(kind="slow-fsync", at_ns=0, for_ns=1, delay_ns=3600 * 10**9), stage)
    # Each waits, before the disk is slow: one that is under way then would go on for long.
    while not all(share.syncs.held()[0] for share in made):
        time.sleep(0.01)
    keys = {"cpu": {"cores": 0.1}, "memory": {}, "full-disk": {}, "slow-disk": {"rate_bps": 10_000, "iops": 2}}
    for kind, its in keys.items():
        timeline.begin(Fault(kind=kind, at_ns=0, for_ns=1, **its), stage)
    time.sleep(0.5)
    print(*(share.syncs.held()[0] for share in made), flush=True)
    sys.stdin.readline()
    os.kill(os.getpid(), signal.SIGKILL)
"""
LIMIT_S = 60


@pytest.mark.measures
@pytest.mark.netns
def test_nothing_of_two_runs_is_left_that_are_killed_in_the_middle_of_every_fault(tmp_path: Path) -> None:
    try:
        node_resources.require({"cpu", "memory", "disk", "throttle", "syncs"})
    except MissingCapability as error:
        pytest.skip(f"needs root: {error}")
    env = {**os.environ, "INGEST_BENCH_STATE": str(tmp_path / "state")}
    homes = [[tmp_path / f"{run}-{node}" for node in (1, 2)] for run in "ab"]
    for home in (*homes[0], *homes[1]):
        home.mkdir()
    pipe = subprocess.PIPE
    runs = [
        subprocess.Popen((sys.executable, "-c", FAULTY, *map(str, its)), env=env, stdin=pipe, stdout=pipe, text=True)
        for its in homes
    ]
    told: list[list[str]] = []
    try:
        for run in runs:
            assert run.stdout is not None
            told += [run.stdout.readline().split() for _ in range(2)]
            assert run.stdout.readline() == "1 1\n", "each child waits for its one sync"
        assert len({folder for _, *folders in told for folder in folders}) == 8
        assert all(home.is_mount() for its in homes for home in its)
        for run in runs:
            run.communicate("die\n")
            assert run.returncode == -signal.SIGKILL
    finally:
        # Disks as slow as these hold up whoever writes on this machine.
        for run in runs:
            run.kill()

    def left() -> list[str]:
        things = [*(tmp_path / "state").glob("*.jsonl"), *(home for its in homes for home in its if home.is_mount())]
        for pid, *folders in told:
            things += [place for place in (Path(f"/proc/{pid}/exe"), *map(Path, folders)) if place.exists()]
        loops = subprocess.run(("losetup", "-a"), capture_output=True, text=True, check=True).stdout
        return [*map(str, things), *(line for line in loops.splitlines() if str(tmp_path) in line)]

    until = time.monotonic() + LIMIT_S
    while left():
        assert time.monotonic() < until, left()
        time.sleep(0.1)
    assert not [item for its in homes for home in its for item in home.iterdir()]
