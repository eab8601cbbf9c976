from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ingest_bench.errors import SpecError
from ingest_bench.experiment import order, spec
from ingest_bench.model.results import RunRecord
from ingest_bench.model.samples import SAMPLE, SAMPLE_3
from ingest_bench.results import layout


@pytest.fixture
def results(tmp_path: Path) -> layout.Results:
    (tmp_path / "x.toml").write_text('[factors]\nheap = ["1g", "2g"]\n')
    (tmp_path / "net.toml").write_text("mtu = 1500\n")
    ordered = order.order(spec.load(str(tmp_path / "x.toml"), fixed={"network": str(tmp_path / "net.toml")}))
    return layout.create(tmp_path / "results", ordered, {})


def test_a_plan_and_a_record_come_back_as_they_were_written(results: layout.Results) -> None:
    run = results.plan.runs[0]
    folder = results.run(run)
    folder.create()
    record = RunRecord(run=run.id, replicate=1, cell=run.cell.name, levels=run.cell.levels, state="started")
    folder.write(record)
    assert layout.open_results(results.path).records() == {run.id: record}


def test_samples_of_several_workers_are_one_array_and_a_cut_record_is_left_out(results: layout.Results) -> None:
    folder = results.run(results.plan.runs[0])
    folder.create()
    one = (5, 5, 6, 8, 9, 100, 0, 10, 10, 0, 1, 200, 0, 1, 0, 40000)
    two = (1, 2, 2, 3, 3, 100, 0, 10, 10, 0, 1, 200, 0, 2, 0, 40001)
    (folder.load / "samples-0.bin").write_bytes(np.array([one], dtype=SAMPLE).tobytes() + b"cut")
    (folder.load / "samples-1.bin").write_bytes(np.array([two], dtype=SAMPLE).tobytes())
    assert folder.samples().whole()["user"].tolist() == [2, 1]


def test_samples_of_the_schema_before_are_read_as_never_written(results: layout.Results) -> None:
    run = results.plan.runs[0]
    folder = results.run(run)
    folder.create()
    folder.write(RunRecord(run=run.id, replicate=1, cell=run.cell.name, levels=run.cell.levels, state="started"))
    record = folder.path / "run.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | {"schema": 3}))
    old = (1, 2, 3, 4, 100, 0, 10, 10, 0, 1, 200, 0, 2, 0, 40001)
    (folder.load / "samples-0.bin").write_bytes(np.array([old, old], dtype=SAMPLE_3).tobytes())
    found = folder.samples().whole()
    assert found["written_ns"].tolist() == found["done_ns"].tolist() == [4, 4]
    assert found["local_port"].tolist() == [40001, 40001]


def test_what_a_broken_try_left_is_kept_beside_the_next(results: layout.Results) -> None:
    folder = results.run(results.plan.runs[0])
    folder.create()
    folder.log.write_text("the first try")
    (folder.home / "data").mkdir()
    folder.create()
    kept = folder.path.with_name("1.broken-1")
    assert (kept / "server.log").read_text() == "the first try"
    # But for the index, which may be larger than everything else together.
    assert not (kept / "home").exists()


def test_a_full_disk_leaves_the_old_file_whole_and_no_half_of_the_new_one(
    results: layout.Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    results.write({"summary.csv": b"old"})

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    before = sorted(results.path.iterdir())
    with pytest.raises(OSError, match="No space left"):
        results.write({"summary.csv": b"new", "summary.parquet": b"new"})
    assert sorted(results.path.iterdir()) == before
    assert (results.path / "summary.csv").read_bytes() == b"old"


def test_two_that_write_the_same_report_at_once_both_write_it_whole(results: layout.Results) -> None:
    program = (
        "import sys; from pathlib import Path; from ingest_bench.results.layout import Results\n"
        "for _ in range(300): Results(Path(sys.argv[1])).write({'summary.csv': sys.argv[2].encode() * 20_000})"
    )
    both = [subprocess.Popen([sys.executable, "-c", program, str(results.path), letter]) for letter in "ab"]
    assert [one.wait(60) for one in both] == [0, 0]
    assert (results.path / "summary.csv").read_bytes() in (b"a" * 20_000, b"b" * 20_000)
    assert not list(results.path.glob(".*.new"))


def test_runs_that_somebody_carries_out_are_nobody_elses(results: layout.Results) -> None:
    other = layout.open_results(results.path)
    with results.held():
        refused = other.held()
        with pytest.raises(SpecError, match="another ingest-bench carries out these runs now"):
            refused.__enter__()
    with other.held():
        pass


def test_a_folder_without_a_plan_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no results"):
        layout.open_results(tmp_path)


def test_a_damaged_file_is_named(results: layout.Results) -> None:
    (results.path / "plan.json").write_text("{")
    with pytest.raises(SpecError, match=r"plan.json: this file is damaged"):
        _ = results.plan
