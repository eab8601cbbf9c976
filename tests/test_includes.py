"""Experiments that stand for several others."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingest_bench.errors import SpecError
from ingest_bench.experiment import spec

# Measured on 2 cores: what a run of Elasticsearch 5 takes outside warm-up and measurement, its analysis included.
AROUND_S = 15


def test_the_whole_issue_stands_for_its_experiments() -> None:
    names = spec.expand_includes("es-23185")
    assert set(names) >= {f"es-23185-{part}" for part in ("loopback-ethernet", "heap", "pooling", "adaptive")}
    assert spec.expand_includes("quickstart") == ("quickstart",)


@pytest.mark.parametrize("name", spec.expand_includes("es-23185"))
def test_each_of_them_takes_less_than_twenty_minutes(name: str) -> None:
    runs = spec.build_plan(spec.load_experiment(name)).runs
    lasts_ns = sum(run.cell.load.max_warm_up_ns + run.cell.load.measure_ns for run in runs)
    assert lasts_ns / 1e9 + AROUND_S * len(runs) < 1200
    assert {run.cell.target.version for run in runs} == {"5.6.16"}
    assert {run.cell.target.gc for run in runs} == {"cms"}
    assert any(run.instrumented and "allocations" in run.cell.probes for run in runs)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("includes = []", "requires a list of experiments"),
        ('includes = "quickstart"', "requires a list of experiments"),
        ('includes = ["quickstart"]\nreplicates = 3', '"replicates" cannot be combined with includes'),
    ],
)
def test_wrong_includes_name_file_and_remedy(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "all.toml"
    file.write_text(text)
    with pytest.raises(SpecError, match=complaint):
        spec.expand_includes(str(file))


def test_an_experiment_of_includes_cannot_be_run_itself() -> None:
    with pytest.raises(SpecError, match="only includes other experiments"):
        spec.load_experiment("es-23185")
