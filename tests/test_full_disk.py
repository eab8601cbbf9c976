"""Volumes of nodes and the fault `full-disk`: filled, freed, and removed after the run."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_lab import list_loop_devices, make_fault, make_resource_stage, skip_without, wait_until

from ingest_bench import system
from ingest_bench.errors import MissingCapability, RunFailed
from ingest_bench.faults import timeline
from ingest_bench.faults.kind import hold_effect
from ingest_bench.host import volume
from ingest_bench.host.volume import DiskFiller

pytestmark = pytest.mark.machine

FULL = make_fault("full-disk")
KILLED = """
import os, signal, sys
from pathlib import Path
from ingest_bench.host import volume

def kill(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

volume.os.unlink = kill
with volume.create_volume(Path(sys.argv[1])):
    pass
"""


def test_volume_requires_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "is_root", lambda: False)
    with pytest.raises(MissingCapability, match="only root can give a server its own file system"):
        volume.require_volume()


def test_missing_program_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "is_root", lambda: True)
    monkeypatch.setattr(system, "which", lambda name: None if name == "mkfs.ext4" else "/bin/true")
    with pytest.raises(MissingCapability, match=r"mkfs\.ext4 is not installed\.\nInstall e2fsprogs"):
        volume.require_volume()


def test_shared_file_system_is_not_filled(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    with pytest.raises(RunFailed, match="is not a file system of its own, so it is not filled"):
        timeline.begin_fault(FULL, make_resource_stage(home=home))
    assert not list(home.iterdir())


def test_filler_that_fails_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path("/dev/shm")  # noqa: S108 - a file system of its own
    filler, before = DiskFiller(folder), set(folder.iterdir())

    def fail(*_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "posix_fallocate", fail)
    with pytest.raises(RunFailed, match=r"full-disk: .*: Input/output error"):
        hold_effect(threading.RLock(), Counter(), "full-disk", filler.fill, filler.free)
    assert set(folder.iterdir()) <= before


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    skip_without(volume.require_volume)
    monkeypatch.setenv("INGEST_BENCH_STATE", str(tmp_path / "state"))
    folder = tmp_path / "the home"
    folder.mkdir()
    with volume.create_volume(folder):
        yield folder
    assert not folder.is_mount()
    assert not [*folder.iterdir()]


def write(path: Path, size: int) -> int:
    """Return how many bytes the disk took; it reports an error at the sync at the latest."""
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
def test_full_disk_has_no_free_block_until_the_last_fault_ends(home: Path) -> None:
    assert not [*home.iterdir()]
    stage = make_resource_stage(home=home)
    resources = stage.nodes[0].resources
    free_before = os.statvfs(home.parent).f_bavail
    assert write(home / "old", 8 << 20) == 8 << 20
    before = os.statvfs(home).f_bavail
    first, second = timeline.begin_fault(FULL, stage), timeline.begin_fault(FULL, stage)
    assert write(home / "new", 4096) == 0
    (home / "old").unlink()

    def is_taken_again() -> bool:
        write(home / "old.2", 0)
        return resources.disk_filler is not None and " 8.4 MB freed and taken" in resources.disk_filler.describe()

    # Freed blocks are taken within moments, after the journal has them.
    wait_until(is_taken_again)
    assert write(home / "new", 4096) == 0
    assert first.end().startswith("node 1: filled with ")
    assert write(home / "new", 4096) == 0
    second.end()
    assert write(home / "new", 4096) == 4096
    assert os.statvfs(home).f_bavail >= before
    # A full volume takes next to nothing of the machine's own disk.
    assert free_before - os.statvfs(home.parent).f_bavail < (512 << 20) // os.statvfs(home.parent).f_frsize


@pytest.mark.netns
def test_volume_and_its_file_are_removed_if_killed_before_the_unlink(tmp_path: Path) -> None:
    skip_without(volume.require_volume)
    state, folder = tmp_path / "state", tmp_path / "home"
    folder.mkdir()
    argv = (sys.executable, "-c", KILLED, str(folder))
    env = {**os.environ, "INGEST_BENCH_STATE": str(state)}
    assert subprocess.run(argv, env=env, check=False).returncode == -signal.SIGKILL
    wait_until(lambda: not folder.is_mount() and not list(state.glob("*.jsonl")))
    assert not [*folder.iterdir()]
    wait_until(lambda: not list_loop_devices(tmp_path))
