from __future__ import annotations

import made_summaries as made
import numpy as np
import pytest

from ingest_bench.analysis import compare, student
from ingest_bench.analysis.compare import Comparison


@pytest.mark.parametrize(
    ("degrees", "expected"),
    [
        (1, 12.7062),
        (1.5, 6.01666),
        (2, 4.30265),
        (2.25, 3.87548),
        (3, 3.18245),
        (4, 2.77645),
        (10, 2.22814),
        (1000, 1.96234),
    ],
)
def test_the_quantiles_of_student_are_the_published_ones(degrees: float, expected: float) -> None:
    assert student.quantile(0.95, degrees) == pytest.approx(expected, rel=1e-5)


def compared(ones: list[float], others: list[float], *, paired: bool = False) -> Comparison:
    sides = [("a", dict(enumerate(ones))), ("b", dict(enumerate(others)))]
    found = compare.numbers("docs_per_s_median", sides[0], sides[1], paired=paired)
    assert found is not None
    return found


def test_welch_agrees_with_a_worked_example() -> None:
    # scipy.stats.ttest_ind([90, 95, 92], [100, 102, 104, 98], equal_var=False).confidence_interval()
    found = compared([100, 102, 104, 98], [90, 95, 92])
    assert found.difference == pytest.approx(-8.6667, abs=1e-4)
    assert found.low == pytest.approx(-13.825136, abs=1e-3)
    assert found.high == pytest.approx(-3.508197, abs=1e-3)
    assert found.is_distinct


def test_runs_of_the_same_cell_are_rarely_called_distinct() -> None:
    random = np.random.default_rng(1)
    draws = random.normal(21_000, 400, (200, 6))
    wrong = sum(bool(compared(list(row[:3]), list(row[3:])).is_distinct) for row in draws)
    # 5% of 200 are 10; Welch with three runs a side is a little careful.
    assert wrong <= 20


def test_a_real_difference_is_called_distinct() -> None:
    random = np.random.default_rng(2)
    draws = random.normal(21_000, 400, (50, 6))
    found = sum(bool(compared(list(row[:3]), list(row[3:] * 0.8)).is_distinct) for row in draws)
    assert found >= 47


def test_blocks_take_the_drift_of_the_machine_away() -> None:
    drift = [1.0, 0.9, 0.8]
    ones, others = [20_000 * slow for slow in drift], [19_000 * slow for slow in drift]
    assert not compared(ones, others).is_distinct
    assert compared(ones, others, paired=True).is_distinct


def test_one_run_a_side_has_no_interval() -> None:
    found = compared([100], [50], paired=True)
    assert (found.low, found.high, found.is_distinct) == (None, None, None)
    assert found.relative == -0.5


def test_a_change_from_nothing_has_no_share() -> None:
    assert compared([0, 0], [3, 3]).relative is None
    assert compared([0, 0], [0, 0]).relative == 0.0


def test_cells_are_compared_when_one_factor_differs_and_never_across_two() -> None:
    runs = made.experiment(replicates=3, network=["loopback", "ethernet"], receive_predictor=["32KiB", "512KiB"])
    found = compare.pairs(runs, "read_bytes_mean")
    assert len(found) == 4
    assert all(item.paired and item.first_runs == 3 for item in found)
    first = found[0]
    assert first.first == "network=loopback,receive_predictor=32KiB"
    assert first.second == "network=loopback,receive_predictor=512KiB"


def test_invalid_runs_are_not_compared() -> None:
    runs = made.experiment(replicates=3, network=["loopback", "ethernet"])
    runs[0] = made.changed(runs[0], state="invalid", values={"docs_per_s_median": 1.0})
    (found,) = compare.pairs(runs, "docs_per_s_median")
    assert found.first_runs == 2
    assert found.first_mean > 10_000
