from __future__ import annotations

import dataclasses

import example_summaries as made
import numpy as np
import pytest
from generated import examples
from hypothesis import example, given
from hypothesis import strategies as st

from ingest_bench.analysis.compare import cells, comparison
from ingest_bench.analysis.compare.comparison import Comparison
from ingest_bench.report import change_tables

_RUN = made.summary({})


def compared(
    ones: list[float], others: list[float], *, paired: bool = False, column: str = "docs_per_s_mean"
) -> Comparison:
    """Return the comparison of two cells whose runs have these values."""
    sides = [
        cells.CellRuns(
            name,
            {},
            tuple(dataclasses.replace(_RUN, replicate=at, values={column: value}) for at, value in enumerate(values)),
        )
        for name, values in (("a", ones), ("b", others))
    ]
    result = comparison.compare_cells(column, *sides, paired=paired)
    assert result is not None
    return comparison.mark_distinct([result])[0]


def test_welch_agrees_with_a_worked_example() -> None:
    # scipy.stats.ttest_ind([90, 95, 92], [100, 102, 104, 98], equal_var=False).confidence_interval()
    result = compared([100, 102, 104, 98], [90, 95, 92])
    assert result.difference == pytest.approx(-8.6667, abs=1e-4)
    assert result.interval == pytest.approx((-13.825136, -3.508197), abs=1e-3)
    assert result.is_distinct


@pytest.mark.filterwarnings("ignore:Precision loss occurred in moment calculation")
def test_ends_of_a_relative_change_match_scipy() -> None:
    from scipy import stats  # noqa: PLC0415

    before: list[float] = [70, 100, 130]
    tried: tuple[list[float], ...] = ([1000, 1000, 1000], [10, 10, 10], [90, 180, 120, 105])
    for now in tried:
        change = compared(before, now)
        low, high = change.relative_interval or (0, 0)
        assert low < (change.relative or 0) < high
        for end in (low, high):
            scaled = [(1 + end) * value for value in before]
            assert stats.ttest_ind(scaled, now, equal_var=False).pvalue == pytest.approx(0.05, abs=1e-6)
    assert compared(before, [1000] * 3).relative_interval == pytest.approx((4.73, 38.25), abs=0.01)
    assert compared(before, [10] * 3).relative_interval == pytest.approx((-0.943, -0.607), abs=0.001)


def test_ends_of_a_paired_change_match_scipy() -> None:
    from scipy import stats  # noqa: PLC0415

    before: list[float] = [100, 90, 80, 120]
    now: list[float] = [210, 190, 150, 260]
    for end in compared(before, now, paired=True).relative_interval or ():
        assert stats.ttest_rel([(1 + end) * value for value in before], now).pvalue == pytest.approx(0.05, abs=1e-6)


# Not next to the smallest float, where squares of a ratio overflow: no column has such numbers.
_MEASURED = st.lists(st.floats(0, 1e6).map(lambda number: round(number, 6)), min_size=2, max_size=5)


@given(
    ones=_MEASURED,
    others=_MEASURED,
    paired=st.booleans(),
    column=st.sampled_from(["docs_per_s_mean", "gc_pauses"]),
)
@examples(40)
@example(ones=[0, 1], others=[0, 0], paired=False, column="docs_per_s_mean")
@example(ones=[0, 1], others=[0, 1e-200], paired=False, column="docs_per_s_mean")
@example(ones=[0, 1e-200], others=[0, 1], paired=False, column="docs_per_s_mean")
@example(ones=[113365, 132922], others=[0, 1], paired=False, column="docs_per_s_mean")
# Neither mean is distinguishable from 0, and they differ: ratios from 0 to 0.06 and from 42,000 on are inside.
@example(ones=[2, 0], others=[535206, 457109], paired=True, column="docs_per_s_mean")
def test_relative_interval_agrees_with_the_verdict(
    ones: list[float], others: list[float], paired: bool, column: str
) -> None:
    change = compared(ones, others, paired=paired, column=column)
    if change.relative_interval is None:
        assert change.first_mean <= change.second_mean * 1e-12
        return
    low, high = change.relative_interval
    assert -1 <= low <= (change.relative or 0) + 1e-9 * (1 + high)
    assert high >= (change.relative or 0) * (1 - 1e-9) - 1e-9
    # At 5% itself the ends are rounded, and so is a difference of 1e-9 of the numbers.
    if abs((change.p_value or 0) - 0.05) > 1e-6 and abs(change.relative or 0) > 1e-6:
        assert change.is_distinct == (not low <= 0 <= high)


def test_baseline_indistinguishable_from_zero_has_no_upper_end() -> None:
    change = compared([10, 100, 300], [100_000, 100_100, 99_900])
    low, high = change.relative_interval or (0, 0)
    assert 100 < low < high == float("inf")
    assert change_tables.format_interval(change).endswith(" times or more")


@pytest.mark.parametrize("now", [[-5.2, -5.1], [1.0, 1e30]])
def test_negative_mean_or_zero_baseline_has_no_relative_interval(now: list[float]) -> None:
    change = compared([1e-13, 1.1e-13], now)
    assert change.interval is not None
    assert (change.relative_interval, change_tables.format_interval(change)) == (None, "")


def test_number_whose_square_overflows_is_not_measured() -> None:
    assert compared([1e300, 7.0, -1e300, 8.0], [1.0, 2.0]).first_mean == 7.5


def test_equal_counts_are_not_certain() -> None:
    """22 and 22 collections compared with 23 and 23 are chance."""
    for paired in (False, True):
        assert compared([22, 22], [23, 23], paired=paired, column="gc_pauses").is_distinct is False
    # A number with a unit may be exact, such as a segment size.
    assert compared([1448, 1448], [8948, 8948], column="read_bytes_p50").is_distinct


@pytest.mark.parametrize(
    ("column", "values", "is_distinct"),
    [
        # One collection in each run of one side, none on the other: 1 in 32 equal sides has that.
        ("gc_pause_ms_total", [(2047, 0), (2028, 0), (1796, 0)], False),
        # A third of a request of 156 in each of three pairs.
        ("docs_per_s_mean", [(3811.5, 3813.9), (3823.4, 3825.6), (3841.6, 3843.6)], False),
        ("docs_per_s_mean", [(3797.9, 3777.5), (3809.5, 3784.8), (3802.3, 3785.3)], False),
        ("docs_per_s_mean", [(3811.5, 3430.9), (3823.4, 3440.6), (3841.6, 3457.6)], True),
    ],
)
def test_uncertainty_is_at_least_that_of_events_and_requests(
    column: str, values: list[tuple[float, float]], is_distinct: bool
) -> None:
    runs = []
    for replicate, pair in enumerate(values, 1):
        for side, value in zip("AB", pair, strict=True):
            numbers = {"requests_answered": 156, "gc_pauses": int(value > 0), column: value}
            runs.append(made.changed(made.summary({"side": side}, replicate), values=numbers))
    (result,) = comparison.compare_pairs(runs, [column])
    assert result.is_distinct == is_distinct
    # Without the counts behind it, all four are certain.
    (result,) = comparison.compare_pairs(
        [made.changed(run, values={"requests_answered": None, "gc_pauses": None}) for run in runs], [column]
    )
    assert result.is_distinct


@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize(("runs", "mean"), [(2, 20), (5, 300)])
def test_counts_of_one_cell_are_rarely_distinct(mean: int, runs: int, paired: bool) -> None:
    draws = np.random.default_rng(mean + runs).poisson(mean, (150, 2, runs)).tolist()
    wrong = sum(compared(ones, others, paired=paired, column="gc_pauses").is_distinct is True for ones, others in draws)
    assert wrong <= 11


def test_distinct_comparisons_are_those_of_holm() -> None:
    """The k-th smallest of n p values is compared with 5% / (n - k + 1), up to the first that exceeds it."""
    single = compared([100], [50])
    # Two degrees of freedom: p values of 0.0099, 0.0198, 0.0477 and 0.0099.
    family = [dataclasses.replace(single, freedom=2, error=1 / t, second_mean=101) for t in (10, 7, 4.4, 10)]
    assert [item.p_value for item in family] == pytest.approx([0.00985, 0.0198, 0.0480, 0.00985], rel=0.01)
    judged = comparison.mark_distinct([*family, single])
    assert [item.is_distinct for item in judged] == [True, True, True, True, None]
    more = comparison.mark_distinct([*family, dataclasses.replace(single, freedom=2, error=1, second_mean=100)])
    assert [item.is_distinct for item in more] == [True, False, False, True, False]
    # 0.029 is above 2.5%, so 0.048 is not compared with 5%.
    pair = [dataclasses.replace(family[0], error=1 / t) for t in (5.7, 4.4)]
    assert [item.is_distinct for item in comparison.mark_distinct(pair)] == [False, False]


def test_blocks_cancel_the_drift_of_the_machine() -> None:
    drift = [1.0, 0.9, 0.8]
    ones, others = [20_000 * slow for slow in drift], [19_000 * slow for slow in drift]
    assert not compared(ones, others).is_distinct
    assert compared(ones, others, paired=True).is_distinct


def test_single_runs_have_no_interval() -> None:
    result = compared([100], [50], paired=True)
    assert (result.interval, result.p_value, result.is_distinct) == (None, None, None)
    assert result.relative == -0.5


def test_change_from_zero_has_no_relative_value() -> None:
    assert compared([0, 0], [3, 3]).relative is None
    assert compared([0, 0], [0, 0]).relative == 0.0


def test_cells_are_compared_only_if_one_factor_differs() -> None:
    runs = made.experiment(replicates=3, network=["loopback", "ethernet"], receive_predictor=["32KiB", "512KiB"])
    result = comparison.compare_pairs(runs, ["read_bytes_mean"])
    assert len(result) == 4
    assert all(item.sides and item.sides.paired and item.first_runs == 3 for item in result)
    first = result[0]
    assert first.first == "network=loopback,receive_predictor=32KiB"
    assert first.second == "network=loopback,receive_predictor=512KiB"


def test_invalid_runs_are_not_compared() -> None:
    runs = made.experiment(replicates=3, network=["loopback", "ethernet"])
    runs[0] = made.changed(runs[0], state="invalid", values={"docs_per_s_mean": 1.0})
    (result,) = comparison.compare_pairs(runs, ["docs_per_s_mean"])
    assert result.first_runs == 2
    assert result.first_mean > 10_000
