from __future__ import annotations

import itertools
import random

import pytest

from ingest_bench.analysis import quantiles
from ingest_bench.model import results


def test_percentile_is_a_value_that_occurred() -> None:
    counts = {1448: 90, 65536: 10}
    assert results.percentile(counts, 50) == 1448
    assert results.percentile(counts, 90) == 1448
    assert results.percentile(counts, 90.1) == 65536
    assert results.percentile(counts, 99) == 65536
    assert results.percentile({}, 50) is None


@pytest.mark.parametrize(("percent", "least"), [(50, 2), (90, 10), (99, 100), (99.9, 1000), (99.99, 10_000), (100, 1)])
def test_percentile_requires_values_beyond_it(percent: float, least: int) -> None:
    assert results.percentile({7: least - 1}, percent) is None
    assert results.percentile({7: least}, percent) == 7
    assert results.percentile({7: 10 * least, 9: 1}, 100) == 9


def test_percentiles_agree_with_sorting() -> None:
    random.seed(7)
    values = sorted(random.choice((1, 512, 1448, 2896, 65536)) for _ in range(1001))  # noqa: S311 (not a secret)
    counts = {value: values.count(value) for value in set(values)}
    for percent in (1, 10, 50, 90, 99, 100):
        rank = -(-len(values) * percent // 100)
        assert results.percentile(counts, percent) == values[rank - 1]


def test_mean_is_weighted_by_counts() -> None:
    assert quantiles.mean_value({100: 3, 500: 1}) == 200
    assert quantiles.mean_value({}) is None


def test_bins_cover_every_value_once() -> None:
    counts = dict.fromkeys(range(1, 5000), 1)
    rows = quantiles.logarithmic_bins(counts)
    assert sum(number for _, _, number in rows) == 4999
    assert all(upper + 1 == following for (_, upper, _), (following, _, _) in itertools.pairwise(rows))
    assert all(number == min(upper, 4999) - lower + 1 for lower, upper, number in rows)


@pytest.mark.parametrize("size", [2048, 65536, 524288])
def test_size_of_a_full_buffer_ends_its_bin(size: int) -> None:
    assert quantiles.logarithmic_bins({size: 5})[0][1:] == (size, 5)
    assert quantiles.logarithmic_bins({size + 1: 5})[0][0] == size + 1


def test_bin_may_be_an_octave() -> None:
    assert quantiles.logarithmic_bins({1: 2, 3: 1, 4: 1}, per_octave=1) == [(1, 1, 2), (2, 2, 0), (3, 4, 2)]


def test_size_of_0_is_refused() -> None:
    with pytest.raises(ValueError, match="size of 0"):
        quantiles.logarithmic_bins({0: 1})
