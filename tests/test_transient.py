"""Where a transient ends: of made-up series with a known truth, and of series that real servers gave."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import made_series as made
import numpy as np
import pytest

from ingest_bench.analysis.numbers import transient

RECORDED = json.loads((Path(__file__).parent / "data" / "rates.json").read_text(encoding="utf-8"))
SERIES = 60


def is_right(found: int | None, truth_s: float | None, value_s: float) -> bool:
    """Within one second of the truth."""
    if found is None or truth_s is None:
        return found is None and truth_s is None
    return abs(found * value_s - truth_s) <= 1


@pytest.mark.parametrize("family", made.FAMILIES)
def test_the_end_is_within_one_second_of_the_truth_in_95_of_100(family: str) -> None:
    random = np.random.default_rng(zlib.crc32(family.encode()))
    right = 0
    for _ in range(SERIES):
        values, truth_s = made.FAMILIES[family](random)
        found = transient.end(made.noisy(values, random))
        right += is_right(found, truth_s, made.LENGTH_S / made.VALUES)
    assert right >= 0.95 * SERIES


@pytest.mark.parametrize("name", RECORDED)
def test_the_end_of_a_recorded_run_is_where_its_picture_has_it(name: str) -> None:
    recorded = RECORDED[name]
    found = transient.end(recorded["documents"])
    assert is_right(found, recorded["steady_after_s"], recorded["value_ms"] / 1000), found


def test_a_constant_series_is_steady_from_its_beginning() -> None:
    assert transient.end([100.0] * 100) == 0


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e9])
def test_the_unit_of_the_series_changes_nothing(scale: float) -> None:
    random = np.random.default_rng(1)
    values, truth_s = made.ramp(random)
    noisy = [scale * value for value in made.noisy(values, random)]
    assert is_right(transient.end(noisy), truth_s, made.LENGTH_S / made.VALUES)


def test_times_that_fall_to_their_level_end_where_they_reach_it() -> None:
    random = np.random.default_rng(2)
    values = np.where(made.AT_S < 5, 5 - 0.8 * made.AT_S, 1.0)
    assert is_right(transient.end(made.noisy(values, random)), 5.0, made.LENGTH_S / made.VALUES)


def test_few_requests_a_value_are_no_stalls() -> None:
    """Whole numbers: most values are alike, and some are a quarter more."""
    assert transient.end([4.0, 5.0, 4.0, 5.0, 4.0, 4.0, 5.0] * 20) == 0


def test_a_stall_at_the_end_is_no_new_level() -> None:
    assert transient.end([100.0] * 270 + [0.0] * 30) == 0


def test_too_few_values_and_nothing_at_all_tell_nothing() -> None:
    assert transient.end([100.0] * 39) is None
    assert transient.end([0.0] * 100) is None
