"""What stands in the place of a file is named at once: a pipe would be waited for, and /dev/zero has no end."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import pytest

from ingest_bench.cli import app
from ingest_bench.errors import SpecError
from ingest_bench.experiment import order, spec
from ingest_bench.inputs import files
from ingest_bench.results import layout
from ingest_bench.results.run_folder import RunFolder

SINK = '[target]\nname = "sink"\n'


def test_a_file_is_read_and_everything_else_is_named(tmp_path: Path) -> None:
    file, pipe = tmp_path / "file", tmp_path / "pipe"
    file.write_text("µs")
    os.mkfifo(pipe)
    assert files.text(file) == "µs"
    with pytest.raises(OSError, match="it is a named pipe, and no file"):
        files.text(pipe)
    with pytest.raises(OSError, match="it is a device, and no file"):
        files.text(Path("/dev/zero"))
    os.mknod(tmp_path / "socket", stat.S_IFSOCK | 0o600)
    with pytest.raises(OSError, match="it is a socket, and no file"):
        files.text(tmp_path / "socket")
    with pytest.raises(FileNotFoundError):
        files.text(tmp_path / "nothing")


def test_a_pipe_that_takes_the_place_of_a_file_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    # It was a file when it was looked at.
    monkeypatch.setattr(files, "check", lambda _: None)
    for read in (files.text, files.sha256, lambda path: list(files.lines(path))):
        with pytest.raises(OSError, match="it is a named pipe, and no file"):
            read(pipe)


def test_a_text_that_no_memory_holds_is_not_read(tmp_path: Path) -> None:
    sparse = tmp_path / "sparse"
    with sparse.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(OSError, match="it has 1,099,511,627,776 bytes, and at most 1,073,741,824 are read"):
        files.text(sparse)


@pytest.mark.parametrize(
    "words",
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
def test_a_device_in_the_place_of_a_file_is_one_sentence(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.toml").write_text(SINK)
    (tmp_path / "gate.toml").write_text('[[threshold]]\ncolumn = "requests"\nat_least = 1\n')
    (tmp_path / "null.json").symlink_to("/dev/null")
    assert app.run([word.replace("\t", " ") for word in words.split(" ")]) == 2
    said = capsys.readouterr().err
    assert "it is a device, and no file" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("name", ["only/1/load/samples-1.bin", "only/1/run.json", "summary.csv", "report"])
def test_a_pipe_in_a_results_folder_is_named_before_anything_is_read(tmp_path: Path, name: str) -> None:
    (tmp_path / "x.toml").write_text(SINK)
    made = layout.create(tmp_path / "results", order.order(spec.load(str(tmp_path / "x.toml"))), {})
    pipe = made.path / name
    pipe.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(pipe)
    with pytest.raises(SpecError, match=f"{pipe}: it is a named pipe, and no file; take it out"):
        layout.open_results(made.path)


def test_a_socket_that_a_load_left_in_a_results_folder_hides_no_results(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text(SINK)
    made = layout.create(tmp_path / "results", order.order(spec.load(str(tmp_path / "x.toml"))), {})
    os.mknod(made.path / "master", stat.S_IFSOCK | 0o600)
    assert layout.open_results(made.path).plan == made.plan


def test_a_recording_of_arrivals_is_read_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.toml").write_text(SINK)
    (tmp_path / "times").write_text("1.0\n0.5\n")
    for file, said in (("times", "times:2: '0.5' is before the line above"), ("none", "No such file")):
        assert app.run(["plan", str(tmp_path / "x.toml"), "--set", f"arrivals=recorded {tmp_path / file}"]) == 2
        assert said in capsys.readouterr().err


def test_a_broken_try_is_moved_aside_where_an_earlier_one_was_deleted(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "cell" / "1")
    for _ in range(3):
        folder.create()
    (folder.path / "load" / "kept").touch()
    shutil.rmtree(tmp_path / "cell" / "1.broken-1")
    for _ in range(2):
        folder.create()
    assert sorted(path.name for path in (tmp_path / "cell").iterdir()) == [
        *("1", "1.broken-1", "1.broken-2", "1.broken-3"),
    ]
    assert (tmp_path / "cell" / "1.broken-1" / "load" / "kept").is_file()
