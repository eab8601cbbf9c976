"""`gate` as a command: folders and files in, exit code out."""

from __future__ import annotations

import shutil
from pathlib import Path

import made_summaries as made
import pytest
from typer.testing import CliRunner

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


@pytest.mark.slow
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
