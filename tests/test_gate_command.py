"""`gate` as a command: folders and files in, exit code out."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import made_summaries as made
import pytest
from typer.testing import CliRunner

from ingest_bench.cli import screen
from ingest_bench.cli.app import app
from ingest_bench.errors import SpecError
from ingest_bench.experiment import order, spec
from ingest_bench.report.tables import text_tables
from ingest_bench.results import layout

GATE = '[[threshold]]\ncolumn = "docs_per_s_mean"\nat_least = {}\n'


def gate(folder: Path, *more: str) -> tuple[int, str]:
    # The exit code of a command that returns one: `main` does this too.
    answer = CliRunner().invoke(app, ["gate", str(folder), *more], standalone_mode=False)
    if answer.exception is not None:
        raise answer.exception
    return answer.return_value, answer.output


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A results folder of quickstart's four cells whose summary.csv holds all of them."""
    ordered = order.order(spec.load("quickstart", replicates=3))
    results = layout.create(tmp_path, ordered, {"cpu": "A", "kernel": "6.1"})
    rows = [
        made.summary(run.cell.levels, run.replicate, run=run.id, cell=run.cell.name, experiment="quickstart")
        for run in ordered.runs
    ]
    results.write({"summary.csv": text_tables.summary_csv(rows).encode()})
    for name, limit in (("low", 1), ("high", 10**9)):
        (tmp_path / f"{name}.toml").write_text(GATE.format(limit))
    (tmp_path / "fall.toml").write_text('[[threshold]]\ncolumn = "docs_per_s_mean"\nmay_fall = "20%"\n')
    return results.path


def test_results_above_the_threshold_pass_and_below_it_fail(written: Path, tmp_path: Path) -> None:
    assert gate(written, "--thresholds", str(tmp_path / "low.toml"))[0] == 0
    code, output = gate(written, "--thresholds", str(tmp_path / "high.toml"))
    assert code == 1
    assert "verdict: fail" in output


def test_what_is_written_goes_to_a_pipe_and_behind_a_link_and_never_takes_their_place(
    written: Path, tmp_path: Path
) -> None:
    low = ("--thresholds", str(tmp_path / "low.toml"))
    pipe, link, far = tmp_path / "pipe", tmp_path / "link.xml", tmp_path / "far" / "junit.xml"
    os.mkfifo(pipe)
    far.parent.mkdir()
    link.symlink_to(far)
    read = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert gate(written, *low, "--markdown", str(pipe), "--junit", str(link))[0] == 0
        assert os.read(read, 100).startswith(b"## ")
    finally:
        os.close(read)
    assert pipe.is_fifo()
    assert link.is_symlink()
    assert far.read_text().startswith("<?xml")


@pytest.mark.parametrize(("name", "said"), [(".", "it is a folder"), ("/proc/x.xml", "No such file or directory")])
def test_a_place_where_nothing_can_be_written_is_one_sentence(
    name: str, said: str, written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SpecError, match=f"^{name}: cannot be written: {said}$"):
        gate(written, "--thresholds", "low.toml", "--junit", name)


def test_a_name_of_a_file_that_is_no_utf_8_is_written_with_its_bytes_escaped(tmp_path: Path) -> None:
    screen.keep(tmp_path / "page.html", os.fsdecode(b"a\xff.csv"))
    assert (tmp_path / "page.html").read_text() == "a\\udcff.csv"


def test_a_baseline_is_a_folder_or_a_file(written: Path, tmp_path: Path) -> None:
    fall = ("--thresholds", str(tmp_path / "fall.toml"))
    for baseline in (written, written / "summary.csv"):
        code, said = gate(written, *fall, "--baseline", str(baseline))
        assert code == 0
        assert ("nobody knows whether the machines are the same" in said) == (baseline != written)
    (written / "facts.json").write_text('{"cpu": "B", "kernel": "6.2"}')
    before = written.with_name("before")
    shutil.copytree(written, before)
    (before / "facts.json").write_text('{"cpu": "A", "kernel": "6.1"}')
    code, said = gate(written, *fall, "--baseline", str(before))
    assert code == 3
    assert "another machine: cpu was A, is B" in said
    assert "note: kernel was 6.1, is 6.2" in said
    assert gate(written, *fall)[0] == 3


def test_a_planned_run_that_is_missing_is_no_pass(written: Path, tmp_path: Path) -> None:
    file = written / "summary.csv"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))
    code, output = gate(written, "--thresholds", str(tmp_path / "low.toml"))
    assert code == 3
    assert "it was not carried out" in output


def test_what_is_no_summary_is_refused_by_name(written: Path, tmp_path: Path) -> None:
    low = ("--thresholds", str(tmp_path / "low.toml"))
    with pytest.raises(SpecError, match=r"low\.toml: this is no summary\.csv: the column experiment is missing"):
        gate(written, *low, "--baseline", str(tmp_path / "low.toml"))
    with pytest.raises(SpecError, match=r"summary\.csv: cannot be read"):
        gate(tmp_path, *low)
