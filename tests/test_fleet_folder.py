"""The folder of a worker's files: removed by the next worker when its own was killed, and no other folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ingest_bench.load.fleet import join


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def left(place: Path, name: str = "ingest-bench-worker-left", mode: int = 0o700) -> Path:
    folder = place / name
    folder.mkdir(mode=mode)
    folder.chmod(mode)
    (folder / "worker.lock").touch()
    (folder / "load-1").mkdir()
    (folder / "load-1" / "corpus.json").write_text("documents")
    return folder


def test_folder_of_a_killed_worker_is_removed_by_the_next_one(place: Path) -> None:
    folder = left(place)
    with join.worker_folder() as own:
        assert not folder.exists()
        assert own.is_dir()
    assert list(place.iterdir()) == []


def test_folder_of_a_living_worker_stays(place: Path) -> None:
    with join.worker_folder() as first:
        (first / "samples").touch()
        with join.worker_folder() as second:
            assert first != second
            assert (first / "samples").exists()
    assert list(place.iterdir()) == []


@pytest.mark.parametrize(
    "spoil", ["no lock", "lock is a link", "others may enter", "name of others", "a link", "a file"]
)
def test_folder_that_may_not_be_a_killed_workers_stays(place: Path, spoil: str) -> None:
    folder = left(
        place,
        "others" if spoil in ("name of others", "a link", "a file") else "ingest-bench-worker-left",
        0o755 if spoil == "others may enter" else 0o700,
    )
    kept = folder / "load-1" / "corpus.json"
    if spoil in ("no lock", "lock is a link"):
        (folder / "worker.lock").unlink()
    if spoil == "lock is a link":
        (folder / "worker.lock").symlink_to(kept)
    if spoil == "a link":
        (place / "ingest-bench-worker-link").symlink_to(folder)
    if spoil == "a file":
        (place / "ingest-bench-worker-file").touch()
    before = sorted(place.iterdir())
    with join.worker_folder():
        pass
    assert kept.read_text() == "documents"
    assert sorted(place.iterdir()) == before


HOLDER = """
import sys
from ingest_bench.load.fleet import join
with join.worker_folder() as folder:
    (folder / "corpus").write_text("documents")
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.mark.processes
def test_kill_9_leaves_a_folder_that_the_next_start_removes(tmp_path: Path) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    pipe = subprocess.PIPE
    argv = (sys.executable, "-c", HOLDER)
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True, env=environment) as killed:
        assert killed.stdout is not None
        folder = Path(killed.stdout.readline().strip())
        killed.send_signal(signal.SIGKILL)
    assert (folder / "corpus").exists()
    subprocess.run(argv, stdin=subprocess.DEVNULL, check=True, env=environment, timeout=60, stdout=pipe)
    assert list(tmp_path.iterdir()) == []
