from __future__ import annotations

import itertools
import random

import pytest

from ingest_bench import nearest_rank
from ingest_bench.analysis.numbers import histogram


def test_a_percentile_is_a_value_that_really_occurred() -> None:
    counts = {1448: 90, 65536: 10}
    assert nearest_rank.percentile(counts, 50) == 1448
    assert nearest_rank.percentile(counts, 90) == 1448
    assert nearest_rank.percentile(counts, 90.1) == 65536
    assert nearest_rank.percentile(counts, 99) == 65536
    assert nearest_rank.percentile({}, 50) is None


@pytest.mark.parametrize(("percent", "least"), [(50, 2), (90, 10), (99, 100), (99.9, 1000), (99.99, 10_000), (100, 1)])
def test_a_percentile_needs_values_beyond_it(percent: float, least: int) -> None:
    assert nearest_rank.percentile({7: least - 1}, percent) is None
    assert nearest_rank.percentile({7: least}, percent) == 7
    assert nearest_rank.percentile({7: 10 * least, 9: 1}, 100) == 9


def test_percentiles_agree_with_sorting_all_values() -> None:
    random.seed(7)
    values = sorted(random.choice((1, 512, 1448, 2896, 65536)) for _ in range(1001))  # noqa: S311 (not a secret)
    counts = {value: values.count(value) for value in set(values)}
    for percent in (1, 10, 50, 90, 99, 100):
        rank = -(-len(values) * percent // 100)
        assert nearest_rank.percentile(counts, percent) == values[rank - 1]


def test_the_mean_weighs_each_value_by_its_count() -> None:
    assert histogram.mean({100: 3, 500: 1}) == 200
    assert histogram.mean({}) is None


def test_bins_cover_every_value_once_and_touch_each_other() -> None:
    counts = dict.fromkeys(range(1, 5000), 1)
    rows = histogram.bins(counts)
    assert sum(number for _, _, number in rows) == 4999
    assert all(upper + 1 == following for (_, upper, _), (following, _, _) in itertools.pairwise(rows))
    assert all(number == min(upper, 4999) - lower + 1 for lower, upper, number in rows)


@pytest.mark.parametrize("size", [2048, 65536, 524288])
def test_a_read_that_fills_its_buffer_is_in_the_bin_that_ends_there(size: int) -> None:
    assert histogram.bins({size: 5})[0][1:] == (size, 5)
    assert histogram.bins({size + 1: 5})[0][0] == size + 1


def test_a_bin_may_be_a_whole_octave() -> None:
    assert histogram.bins({1: 2, 3: 1, 4: 1}, per_octave=1) == [(1, 1, 2), (2, 2, 0), (3, 4, 2)]


def test_a_size_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="size of 0"):
        histogram.bins({0: 1})
