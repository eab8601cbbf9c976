"""The end of a transient is found in synthetic series and in series of real servers."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import made_series as made
import numpy as np
import pytest

from ingest_bench.analysis.run import steady

RECORDED = json.loads((Path(__file__).parent / "data" / "rates.json").read_text(encoding="utf-8"))
SERIES = 60


def is_right(length: int | None, truth_s: float | None, value_s: float) -> bool:
    """Return whether the end is within one second of the truth."""
    if length is None or truth_s is None:
        return length is None and truth_s is None
    return abs(length * value_s - truth_s) <= 1


@pytest.mark.parametrize("family", made.FAMILIES)
def test_end_is_within_a_second_of_the_truth_in_95_percent(family: str) -> None:
    random = np.random.default_rng(zlib.crc32(family.encode()))
    right = 0
    for _ in range(SERIES):
        values, truth_s = made.FAMILIES[family](random)
        length = steady.transient_length(made.noisy(values, random))
        right += is_right(length, truth_s, made.LENGTH_S / made.VALUES)
    assert right >= 0.95 * SERIES


@pytest.mark.parametrize("name", RECORDED)
def test_end_of_a_recorded_run_is_found(name: str) -> None:
    recorded = RECORDED[name]
    length = steady.transient_length(recorded["documents"])
    assert is_right(length, recorded["steady_after_s"], recorded["value_ms"] / 1000), length


def test_constant_series_is_steady_from_its_beginning() -> None:
    assert steady.transient_length([100.0] * 100) == 0


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e9])
def test_result_is_independent_of_the_unit(scale: float) -> None:
    random = np.random.default_rng(1)
    values, truth_s = made.ramp(random)
    noisy = [scale * value for value in made.noisy(values, random)]
    assert is_right(steady.transient_length(noisy), truth_s, made.LENGTH_S / made.VALUES)


def test_falling_times_end_when_they_reach_their_level() -> None:
    random = np.random.default_rng(2)
    values = np.where(made.AT_S < 5, 5 - 0.8 * made.AT_S, 1.0)
    assert is_right(steady.transient_length(made.noisy(values, random)), 5.0, made.LENGTH_S / made.VALUES)


def test_few_requests_per_value_are_not_stalls() -> None:
    """Values are whole numbers: most are equal, and some a quarter more."""
    assert steady.transient_length([4.0, 5.0, 4.0, 5.0, 4.0, 4.0, 5.0] * 20) == 0


def test_stall_at_the_end_is_not_a_new_level() -> None:
    assert steady.transient_length([100.0] * 270 + [0.0] * 30) == 0


def test_too_few_values_have_no_result() -> None:
    assert steady.transient_length([100.0] * 39) is None
    assert steady.transient_length([0.0] * 100) is None
