from __future__ import annotations

import itertools

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
