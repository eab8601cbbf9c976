"""A file system of its own for a node: it is filled, and gone with the run."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ingest_bench import system
from ingest_bench.errors import MissingCapability, RunFailed, SpecError
from ingest_bench.faults import checks, timeline
from ingest_bench.faults.stage import Node, Stage
from ingest_bench.host import disk
from ingest_bench.model.experiment import Cell, Fault
from ingest_bench.model.load import LoadOptions
from ingest_bench.model.target import TargetOptions

pytestmark = pytest.mark.machine

S = 10**9
FULL = Fault(kind="full-disk", at_ns=0, for_ns=S)
KILLED = """
import os, signal, sys
from pathlib import Path
from ingest_bench.host import disk

def kill(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

if sys.argv[2] == "before its file has no name":
    disk.os.unlink = kill
with disk.own(Path(sys.argv[1])):
    (Path(sys.argv[1]) / "file").write_text("there")
    kill()
"""
LIMIT_S = 60


def test_an_ordinary_user_is_told_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "is_root", lambda: False)
    with pytest.raises(MissingCapability, match="only root may give a server a file system of its own"):
        disk.require()
    assert not disk.capability().present


def test_a_program_that_is_missing_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "is_root", lambda: True)
    monkeypatch.setattr(system, "which", lambda name: None if name == "mkfs.ext4" else "/bin/true")
    with pytest.raises(MissingCapability, match=r"no mkfs\.ext4 here\.\nInstall e2fsprogs"):
        disk.require()


def test_a_disk_that_holds_an_earlier_run_is_not_filled() -> None:
    cell = Cell(name="c", levels={}, network=None, target=TargetOptions(), load=LoadOptions(measure_ns=9 * S))
    assert not checks.needs(cell)
    target = TargetOptions(name="cassandra", earlier_documents=5)
    full = Cell(name="c", levels={}, network=None, target=target, load=cell.load, faults=(FULL,))
    assert checks.needs(full) == {"disk"}
    with pytest.raises(SpecError, match="documents of an earlier run"):
        checks.check(full)


def node_at(home: Path) -> Node:
    process: Any = SimpleNamespace(jvm_pid=0)

    def jcmd(_pid: int, _command: object) -> str:
        return ""

    return Node(number=1, process=process, home=home, jcmd=jcmd, boot_limit_s=1)


def test_nobody_elses_disk_is_filled(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    with pytest.raises(RunFailed, match="is no file system of its own, it is not filled"):
        timeline.begin(FULL, Stage(nodes=(node_at(tmp_path / "home"),)))
    assert not list((tmp_path / "home").iterdir())


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount")
    if not (found := disk.capability()).present:
        pytest.skip(found.detail)
    monkeypatch.setenv("INGEST_BENCH_STATE", str(tmp_path / "state"))
    folder = tmp_path / "the home"
    folder.mkdir()
    with disk.own(folder):
        yield folder
    assert not folder.is_mount()
    assert not [*folder.iterdir()]


def written(path: Path, size: int) -> int:
    """How many bytes of that many the file takes; the disk says so when they are synced at the latest."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        count = os.write(descriptor, bytes(size))
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return 0
    finally:
        os.close(descriptor)
    return count


@pytest.mark.netns
def test_a_full_disk_has_no_block_left_and_has_all_back(home: Path) -> None:
    assert not [*home.iterdir()]
    stage = Stage(nodes=(node_at(home),))
    free_before = os.statvfs(home.parent).f_bavail
    assert written(home / "old", 8 << 20) == 8 << 20
    before = os.statvfs(home).f_bavail
    first, second = timeline.begin(FULL, stage), timeline.begin(FULL, stage)
    assert written(home / "new", 4096) == 0
    # What is freed is taken within moments, after the journal has it.
    (home / "old").unlink()
    until = time.monotonic() + LIMIT_S
    while (
        stage.nodes[0].resources.filler is None
        or " 8.4 MB that were freed" not in stage.nodes[0].resources.filler.seen()
    ):
        assert time.monotonic() < until
        written(home / "old.2", 0)
    assert written(home / "new", 4096) == 0
    assert first.end().startswith("node 1: full by ")
    assert written(home / "new", 4096) == 0
    second.end()
    assert written(home / "new", 4096) == 4096
    assert os.statvfs(home).f_bavail >= before
    # Of the machine's own disk a full one takes next to nothing.
    assert free_before - os.statvfs(home.parent).f_bavail < (512 << 20) // os.statvfs(home.parent).f_frsize


@pytest.mark.netns
@pytest.mark.parametrize("moment", ["before its file has no name", "in use"])
def test_the_mount_and_its_file_are_gone_after_sigkill(tmp_path: Path, moment: str) -> None:
    if os.geteuid() != 0 or not disk.capability().present:
        pytest.skip("needs root, to mount")
    (tmp_path / "home").mkdir()
    env = {**os.environ, "INGEST_BENCH_STATE": str(tmp_path / "state")}
    argv = (sys.executable, "-c", KILLED, str(tmp_path / "home"), moment)
    assert subprocess.run(argv, env=env, check=False).returncode == -signal.SIGKILL
    until = time.monotonic() + LIMIT_S
    while (tmp_path / "home").is_mount() or list((tmp_path / "state").glob("*.jsonl")):
        assert time.monotonic() < until
        time.sleep(0.1)
    assert not [*(tmp_path / "home").iterdir()]
    assert str(tmp_path) not in subprocess.run(("losetup", "-a"), capture_output=True, text=True, check=True).stdout
