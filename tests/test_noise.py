"""A/A tests: their plan with two sides, and the measured noise."""

from __future__ import annotations

import csv
import itertools
from collections import Counter

import example_summaries as made
import numpy as np
import pytest

from ingest_bench.analysis import student
from ingest_bench.analysis.compare import changes, comparison
from ingest_bench.analysis.compare.changes import Results
from ingest_bench.analysis.run import columns as columns_module
from ingest_bench.cli.experiment_options import ExperimentOptions, build_plans
from ingest_bench.errors import SpecError
from ingest_bench.experiment import spec
from ingest_bench.model.results import Summary
from ingest_bench.report import change_tables, reports


@pytest.mark.parametrize(("runs", "comparisons"), [(3, 1), (5, 20)])
def test_detectable_change_is_found_with_80_percent_probability(runs: int, comparisons: int) -> None:
    from scipy import stats  # noqa: PLC0415 - it takes a second, and most others here nothing

    histories, random = 2000, np.random.default_rng(runs)
    # The noise is estimated from an A/A test, as in `run --aa`.
    spread = (random.normal(0, 2, (histories, 2, runs)).var(axis=2, ddof=1).mean(axis=1)) ** 0.5
    ones, others = random.normal(100, 2, (2, histories, comparisons, runs))
    others[:, 0] += spread[:, None] * comparison.detectable_difference(1.0, runs, comparisons)
    p_values = stats.ttest_ind(ones, others, axis=2, equal_var=False).pvalue
    ranked = np.sort(p_values, axis=1)
    kept = ranked <= 0.05 / (comparisons - np.arange(comparisons))
    # Holm: the smallest p values, up to the first that exceeds its level.
    distinct = np.minimum.accumulate(kept, axis=1).sum(axis=1)
    detected = (
        p_values[:, 0] < np.take_along_axis(np.c_[ranked, np.full(histories, np.inf)], distinct[:, None], 1)[:, 0]
    )
    # Two standard errors of 2,000 histories are 1.8%.
    assert 0.782 <= detected.mean() <= 0.825


def test_suggested_replicates_detect_the_change_and_fewer_do_not() -> None:
    runs = comparison.replicates_for_difference(0.02, 5, 1, 0.03)
    assert runs is not None
    assert student.min_effect(0.8, runs - 1, level=0.05, noise_freedom=8) * 0.02 * 2**0.5 > 0.03
    more = [comparison.replicates_for_difference(0.02, 5, comparisons, 0.03) or 0 for comparisons in (5, 20)]
    assert runs < more[0] < more[1]
    assert comparison.replicates_for_difference(1, 5, 1, 1e-6) is None
    # Without an effect, both sides of the interval are as probable as the level says.
    assert student.welch_power(0.0, 200, level=0.05, noise_freedom=1e6) == pytest.approx(0.05, abs=0.002)


def two_sides(*networks: str, replicates: int = 3) -> list[Summary]:
    return [
        made.summary({"network": network, "side": side}, replicate, seed=seed)
        for seed, side in enumerate("AB")
        for network in networks
        for replicate in range(1, replicates + 1)
    ]


def test_number_of_comparisons_is_that_of_compare() -> None:
    runs = two_sides("ethernet", "jumbo")
    before, now = ([run for run in runs if run.levels["side"] == side] for side in "AB")
    between = changes.compare_results(Results(summaries=before), Results(summaries=now))
    for columns in (comparison.DEFAULT_COLUMNS, change_tables.EVERY_COLUMN):
        assert {quantity.comparisons for quantity in comparison.measure_noise(runs, columns)} == {
            len(between.comparisons)
        }
    assert {quantity.comparisons for quantity in comparison.measure_noise(runs, ["gc_pauses_per_gb"])} == {2}


def test_runs_of_both_sides_alternate_in_random_order() -> None:
    (ordered,) = build_plans(ExperimentOptions(experiment="quickstart", against_itself=4))
    pairs = list(zip(ordered.runs[::2], ordered.runs[1::2], strict=True))
    assert len(ordered.runs) == 4 * 4 * 2
    for first, second in pairs:
        same = {key: level for key, level in first.cell.levels.items() if key != "side"}
        assert {**same, "side": second.cell.levels["side"]} == second.cell.levels
        assert first.replicate == second.replicate
        assert {first.cell.levels["side"], second.cell.levels["side"]} == {"A", "B"}
        assert (first.cell.network, first.cell.load) == (second.cell.network, second.cell.load)
    assert min(Counter(first.cell.levels["side"] for first, _ in pairs).values()) >= 3
    assert len({run.id for run in ordered.runs}) == 32
    assert {run.id for run in ordered.runs} >= {"network=loopback+receive_predictor=32KiB+side=A/1"}


def test_aa_test_without_factors_and_with_too_many_runs() -> None:
    ordered = spec.build_plan(
        spec.load_experiment("quickstart", ["network=loopback", "receive_predictor=32KiB"], replicates=3)
    )
    assert {run.id.partition("side=")[2] for run in spec.pair_runs(ordered).runs} == {
        f"{side}/{number}" for side, number in itertools.product("AB", (1, 2, 3))
    }
    with pytest.raises(SpecError, match=r"the plan has 12,000 runs; at most 10,000 are allowed"):
        build_plans(ExperimentOptions(experiment="quickstart", against_itself=1500))
    with pytest.raises(SpecError, match="--aa cannot be combined with --replicates"):
        build_plans(ExperimentOptions(experiment="quickstart", against_itself=3, replicates=3))


def test_noise_table_is_empty_without_sides() -> None:
    runs = two_sides("ethernet", replicates=5)
    head, first, *_ = change_tables.noise_rows(runs)
    assert head[:3] == ["column", "mean", "runs a side"]
    row = dict(zip(head, first, strict=True))
    (rate, *_) = comparison.measure_noise(runs, comparison.DEFAULT_COLUMNS)
    assert rate.spread is not None
    # The synthetic noise is 2%.
    assert 0.01 < rate.spread < 0.04
    assert row["column"] == "docs_per_s_mean"
    assert row["they show"] == f"{rate.detectable:.1%}"
    assert int(row["replicates for 10%"]) <= int(row["replicates for 5%"]) <= int(row["replicates for 3%"])
    assert row["sides differ"] == "no"
    assert change_tables.noise_rows([made.summary({"network": "ethernet"}, replicate) for replicate in (1, 2)]) == []


def test_noise_file_has_every_comparable_column() -> None:
    runs = two_sides("ethernet")
    text = reports.build_noise(runs)["report/noise.csv"].decode()
    columns = [row["column"] for row in csv.DictReader(text.splitlines())]
    numbers = {name for name, value in runs[0].values.items() if isinstance(value, (int, float))}
    assert set(columns) == {name for name in numbers if name not in columns_module.PER_GB_TOTALS}
    assert {"docs_per_s_mean", "heap_after_gc_max_bytes", "gc_pauses_per_gb"} <= set(columns)
    assert "gc_pauses" not in columns
    assert reports.build_noise([made.summary({"network": "ethernet"})]) == {}
