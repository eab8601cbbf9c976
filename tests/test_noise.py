"""A/A tests: the plan that runs everything on two sides, and what they say of the machine's noise."""

from __future__ import annotations

import csv
import itertools
from collections import Counter

import made_summaries as made
import numpy as np
import pytest

from ingest_bench import report
from ingest_bench.analysis.compare import comparison, noise
from ingest_bench.analysis.run import per_gb
from ingest_bench.cli.what import What, plans
from ingest_bench.errors import SpecError
from ingest_bench.experiment import order, spec
from ingest_bench.report.tables import noise_table as shown


@pytest.mark.slow
@pytest.mark.parametrize("runs", [3, 5, 20])
def test_what_is_called_detectable_is_found_four_times_of_five(runs: int) -> None:
    from scipy import stats  # noqa: PLC0415 - it takes a second, and most others here nothing

    change = comparison.detectable(2.0, runs)
    freedom, bound = 2 * runs - 2, comparison.t_quantile(2 * runs - 2)
    # A second instrument: the noncentral t, which the sum of two quantiles comes near to.
    assert 1 - stats.nct.cdf(bound, freedom, change / (2.0 * (2 / runs) ** 0.5)) == pytest.approx(0.8, abs=0.06)
    draws = np.random.default_rng(runs).normal(100, 2, (1500, 2, runs))
    draws[:, 1] += change
    names = ("a", "b")
    found = 0
    for sides in draws.tolist():
        one, other = ((name, dict(enumerate(side))) for name, side in zip(names, sides, strict=True))
        each = comparison.numbers("docs_per_s_mean", one, other, paired=False)
        found += each is not None and bool(each.is_distinct)
    assert found / len(draws) == pytest.approx(0.8, abs=0.1)


def test_the_replicates_that_are_proposed_show_the_change_and_fewer_do_not() -> None:
    runs = comparison.replicates_for(0.02, 0.03)
    assert runs is not None
    assert comparison.detectable(0.02, runs) <= 0.03 < comparison.detectable(0.02, runs - 1)
    assert comparison.replicates_for(1, 1e-6) is None


def test_each_run_has_its_twin_beside_it_and_either_is_the_first() -> None:
    (ordered,) = plans(What(experiment="quickstart", against_itself=4))
    pairs = list(zip(ordered.runs[::2], ordered.runs[1::2], strict=True))
    assert len(ordered.runs) == 4 * 4 * 2
    for one, other in pairs:
        same = {key: level for key, level in one.cell.levels.items() if key != "side"}
        assert {**same, "side": other.cell.levels["side"]} == other.cell.levels
        assert one.replicate == other.replicate
        assert {one.cell.levels["side"], other.cell.levels["side"]} == {"A", "B"}
        assert (one.cell.network, one.cell.load) == (other.cell.network, other.cell.load)
    assert min(Counter(one.cell.levels["side"] for one, _ in pairs).values()) >= 3
    assert len({run.id for run in ordered.runs}) == 32
    assert {run.id for run in ordered.runs} >= {"network=loopback+receive_predictor=32KiB+side=A/1"}


@pytest.mark.slow
def test_an_experiment_without_factors_and_one_too_large() -> None:
    ordered = order.order(spec.load("quickstart", ["network=loopback", "receive_predictor=32KiB"], replicates=3))
    assert {run.id.partition("side=")[2] for run in order.against_itself(ordered).runs} == {
        f"{side}/{number}" for side, number in itertools.product("AB", (1, 2, 3))
    }
    with pytest.raises(SpecError, match=r"that makes 12,000 runs, and at most 10,000 are done"):
        plans(What(experiment="quickstart", against_itself=1500))
    with pytest.raises(SpecError, match="take --replicates out"):
        plans(What(experiment="quickstart", against_itself=3, replicates=3))


@pytest.mark.slow
def test_the_table_says_what_would_be_noise_and_nothing_where_there_are_no_sides() -> None:
    runs = [
        made.summary({"network": "ethernet", "side": side}, replicate, seed=seed)
        for seed, side in enumerate("AB")
        for replicate in range(1, 6)
    ]
    head, first, *_ = shown.table(runs)
    assert head[:3] == ["column", "mean", "runs a side"]
    row = dict(zip(head, first, strict=True))
    (rate, *_) = noise.noise(runs, ["docs_per_s_mean"])
    assert rate.spread is not None
    # They were made with 2%.
    assert 0.01 < rate.spread < 0.04
    assert row["column"] == "docs_per_s_mean"
    assert row["they show"] == f"{rate.detectable:.1%}"
    assert int(row["replicates for 10%"]) <= int(row["replicates for 5%"]) <= int(row["replicates for 3%"])
    assert row["sides differ"] == "no"
    assert shown.table([made.summary({"network": "ethernet"}, replicate) for replicate in (1, 2)]) == []


@pytest.mark.slow
def test_the_file_has_the_noise_of_every_column_that_can_be_compared() -> None:
    runs = [
        made.summary({"network": "ethernet", "side": side}, replicate, seed=seed)
        for seed, side in enumerate("AB")
        for replicate in range(1, 4)
    ]
    text = report.noise_tables(runs)["report/noise.csv"].decode()
    columns = [row["column"] for row in csv.DictReader(text.splitlines())]
    numbers = {name for name, value in runs[0].values.items() if isinstance(value, (int, float))}
    assert set(columns) == {name for name in numbers if name not in per_gb.TOTALS}
    assert {"docs_per_s_mean", "heap_after_gc_max_bytes", "gc_pauses_per_gb"} <= set(columns)
    assert "gc_pauses" not in columns
    assert report.noise_tables([made.summary({"network": "ethernet"})]) == {}
