"""A results folder: plans, records and samples on disk, and special files where regular ones are expected."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ingest_bench.cli import app
from ingest_bench.errors import SpecError
from ingest_bench.experiment import spec
from ingest_bench.inputs import files
from ingest_bench.model.results import RunRecord
from ingest_bench.model.samples import SAMPLE
from ingest_bench.results import layout
from ingest_bench.results.layout import RunFolder

SINK = '[target]\nname = "sink"\n'


@pytest.fixture
def results(tmp_path: Path) -> layout.Results:
    (tmp_path / "x.toml").write_text(f'{SINK}[factors]\nheap = ["1g", "2g"]\n')
    (tmp_path / "net.toml").write_text("mtu = 1500\n")
    experiment = spec.load_experiment(str(tmp_path / "x.toml"), fixed={"network": str(tmp_path / "net.toml")})
    return layout.create_results(tmp_path / "results", spec.build_plan(experiment), {})


@pytest.fixture
def folder(results: layout.Results) -> RunFolder:
    run_folder = results.run_folder(results.plan.runs[0])
    run_folder.create()
    return run_folder


def test_plan_and_record_are_read_back_unchanged(results: layout.Results, folder: RunFolder) -> None:
    run = results.plan.runs[0]
    record = RunRecord(run=run.id, replicate=1, cell=run.cell.name, levels=run.cell.levels, state="started")
    folder.write_record(record)
    assert layout.open_results(results.path).read_records() == {run.id: record}


def test_samples_of_all_workers_are_read_without_an_incomplete_record(folder: RunFolder) -> None:
    later = (5, 5, 6, 8, 9, 100, 0, 10, 10, 0, 1, 200, 0, 1, 0, 40000)
    earlier = (1, 2, 2, 3, 3, 100, 0, 10, 10, 0, 1, 200, 0, 2, 0, 40001)
    (folder.load / "samples-0.bin").write_bytes(np.array([later], dtype=SAMPLE).tobytes() + b"cut")
    (folder.load / "samples-1.bin").write_bytes(np.array([earlier], dtype=SAMPLE).tobytes())
    assert folder.samples().load_all()["user"].tolist() == [1, 2]


def test_interrupted_attempt_is_moved_aside_without_its_data(folder: RunFolder) -> None:
    folder.log.write_text("the first attempt")
    (folder.home / "data").mkdir()
    folder.create()
    aside = folder.path.with_name("1.broken-1")
    assert (aside / "server.log").read_text() == "the first attempt"
    assert not (aside / "home").exists()
    for _ in range(2):
        folder.create()
    (folder.load / "kept").touch()
    shutil.rmtree(aside)
    folder.create()
    names = sorted(path.name for path in folder.path.parent.iterdir())
    assert names == ["1", "1.broken-1", "1.broken-2", "1.broken-3"]
    assert (aside / "load" / "kept").is_file()


def test_full_disk_keeps_the_old_file_and_no_part_of_the_new_one(
    results: layout.Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    results.write_files({"summary.csv": b"old"})

    def fail(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)
    before = sorted(results.path.iterdir())
    with pytest.raises(OSError, match="No space left"):
        results.write_files({"summary.csv": b"new", "summary.parquet": b"new"})
    assert sorted(results.path.iterdir()) == before
    assert (results.path / "summary.csv").read_bytes() == b"old"


def test_two_processes_can_write_the_same_report(results: layout.Results) -> None:
    program = (
        "import sys; from pathlib import Path; from ingest_bench.results.layout import Results\n"
        "for _ in range(300): Results(Path(sys.argv[1])).write_files({'summary.csv': sys.argv[2].encode() * 20_000})"
    )
    both = [subprocess.Popen([sys.executable, "-c", program, str(results.path), letter]) for letter in "ab"]
    assert [process.wait(60) for process in both] == [0, 0]
    assert (results.path / "summary.csv").read_bytes() in (b"a" * 20_000, b"b" * 20_000)
    assert not list(results.path.glob(".*.new"))


def test_results_are_locked_by_one_process(results: layout.Results) -> None:
    other = layout.open_results(results.path)
    with results.lock():
        refused = other.lock()
        with pytest.raises(SpecError, match="another ingest-bench executes these runs now"):
            refused.__enter__()
    with other.lock():
        pass


def test_folder_without_a_plan_has_no_results(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no results"):
        layout.open_results(tmp_path)


def test_only_a_regular_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, pipe = tmp_path / "file", tmp_path / "pipe"
    file.write_text("µs")
    os.mkfifo(pipe)
    os.mknod(tmp_path / "socket", stat.S_IFSOCK | 0o600)
    assert files.read_text(file) == "µs"
    for path, kind in ((pipe, "a named pipe"), (Path("/dev/zero"), "a device"), (tmp_path / "socket", "a socket")):
        with pytest.raises(OSError, match=f"it is {kind}, not a file"):
            files.read_text(path)
    with pytest.raises(FileNotFoundError):
        files.read_text(tmp_path / "nothing")
    # Replaced after the check.
    monkeypatch.setattr(files, "check_plain", lambda _: None)
    for read in (files.read_text, files.sha256, lambda path: list(files.read_lines(path))):
        with pytest.raises(OSError, match="it is a named pipe, not a file"):
            read(pipe)


def test_text_of_a_terabyte_is_not_read(tmp_path: Path) -> None:
    sparse = tmp_path / "sparse"
    with sparse.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(OSError, match="it has 1,099,511,627,776 bytes; the limit is 1,073,741,824"):
        files.read_text(sparse)


@pytest.mark.parametrize(
    "line",
    [
        "plan x.toml --documents /dev/null",
        "plan x.toml --set documents=/dev/null",
        "plan x.toml --set arrivals=recorded\t/dev/null",
        "plan track --track . --track-params null.json",
        "run --url https://127.0.0.1:1 --ca-file /dev/null --out out",
        "run --url http://127.0.0.1:1 --workers 2 --keys /dev/null --out out",
        "worker --connect 127.0.0.1:1 --keys /dev/null",
        "gate /dev/null --thresholds gate.toml",
        "gate . --thresholds /dev/null",
    ],
)
def test_device_instead_of_a_file_is_one_sentence(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.toml").write_text(SINK)
    (tmp_path / "gate.toml").write_text('[[threshold]]\ncolumn = "requests"\nat_least = 1\n')
    (tmp_path / "null.json").symlink_to("/dev/null")
    assert app.run([word.replace("\t", " ") for word in line.split(" ")]) == 2
    text = capsys.readouterr().err
    assert "it is a device, not a file" in text
    assert text.count("\n") == 1


@pytest.mark.parametrize("name", ["only/1/load/samples-1.bin", "only/1/run.json", "summary.csv", "report"])
def test_pipe_in_a_results_folder_is_named_before_anything_is_read(results: layout.Results, name: str) -> None:
    pipe = results.path / name
    pipe.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(pipe)
    with pytest.raises(SpecError, match=f"{pipe}: it is a named pipe, not a file; remove it"):
        layout.open_results(results.path)


def test_socket_that_a_load_left_is_ignored(results: layout.Results) -> None:
    os.mknod(results.path / "master", stat.S_IFSOCK | 0o600)
    assert layout.open_results(results.path).plan == results.plan


def test_recorded_arrivals_are_checked_by_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.toml").write_text(SINK)
    (tmp_path / "times").write_text("1.0\n0.5\n")
    for file, message in (("times", "times:2: '0.5' is not a later time"), ("none", "No such file")):
        assert app.run(["plan", str(tmp_path / "x.toml"), "--set", f"arrivals=recorded {tmp_path / file}"]) == 2
        assert message in capsys.readouterr().err


def test_latest_links_to_the_newest_results(
    results: layout.Results, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(results.path.parents[2])
    first = results.path.relative_to(Path.cwd())
    second = layout.create_results(layout.RESULTS, results.plan, {}).path
    latest = second.with_name("latest")
    assert latest.readlink() == Path(second.name)
    for path in (Path("x"), Path("results/x"), latest, second):
        assert layout.find_results(path) == second
    assert layout.find_results(first) == first
    latest.unlink()
    assert layout.find_results(Path("x")) == second
    # Another user's link leads to no other folder.
    elsewhere = second.parents[2] / "elsewhere" / "zzz"
    elsewhere.mkdir(parents=True)
    (elsewhere / "plan.json").write_text("{}")
    for destination in (str(elsewhere), "../../elsewhere/results", "deleted", "/", "."):
        latest.symlink_to(destination)
        assert [layout.find_results(path) for path in (latest, Path("x"))] == [second, second], destination
        latest.unlink()
    assert layout.find_results(Path("nowhere")) == Path("nowhere")
    capsys.readouterr()
    assert app.run(["report", "x"]) == 2, "no run was executed"
    assert capsys.readouterr().err.startswith(f"results: {second}\n")


def test_past_results_are_listed(
    results: layout.Results, folder: RunFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(results.path.parents[2])
    run = results.plan.runs[0]
    folder.write_record(RunRecord(run=run.id, replicate=1, cell=run.cell.name, levels=run.cell.levels, state="failed"))
    (layout.create_results(layout.RESULTS, results.plan, {}).path / "plan.json").write_text("{")
    for words in (["results"], ["results", "x"]):
        assert app.run(words) == 0
        text = capsys.readouterr().out
        assert [text.count(part) for part in ("results/x/", "1 failed of 2", "damaged")] == [2, 1, 1]
    assert app.run(["results", "nowhere"]) == 2
    assert "does not exist" in capsys.readouterr().err
