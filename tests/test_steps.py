"""Level changes are found in synthetic histories."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from statistics import fmean
from typing import Any

import numpy as np
import pytest

from ingest_bench.analysis import level_changes

LENGTH = 60
# The values, and the index of the first value of each new level.
History = tuple[list[float], list[int]]


def histories(
    count: int, seed: int, steps: tuple[int, ...], sizes: tuple[float, float] | None = None
) -> Iterator[History]:
    """Yield *count* histories with noise of 2 to 10%; half drift by 5 to 20%, half have one to three outliers.

    The numbers of steps alternate. *sizes*: the range of steps as fractions; None: three standard deviations.
    """
    random = np.random.default_rng(seed)
    for number in range(count):
        noise = float(random.uniform(0.02, 0.1))
        turn = number // len(steps)
        yield _draw_history(
            random, steps[number % len(steps)], noise, sizes, drifts=turn % 2 == 1, odd=turn // 2 % 2 == 1
        )


def _draw_history(
    random: Any, steps: int, noise: float, sizes: tuple[float, float] | None, *, drifts: bool, odd: bool
) -> History:
    level = np.ones(LENGTH)
    if drifts:
        level *= 1 + random.choice([-1, 1]) * random.uniform(0.05, 0.2) * np.linspace(0, 1, LENGTH)
    places: list[int] = []
    if steps:
        places = [int(random.integers(6, LENGTH - 5 if steps == 1 else LENGTH - 24))]
    if steps == 2:
        places.append(int(random.integers(places[0] + 12, LENGTH - 6)))
    shares = [float(random.choice([-1, 1])) * (float(random.uniform(*sizes)) if sizes else 3 * noise) for _ in places]
    for place, share in zip(places, shares, strict=True):
        level[place:] *= 1 + share
    values = level * (1 + noise * random.standard_normal(LENGTH))
    if odd:
        for place in random.choice(LENGTH, int(random.integers(1, 4)), replace=False):
            values[place] *= 1 + random.choice([-1, 1]) * random.uniform(0.3, 0.6)
    return values.tolist(), places


def count_steps(lot: list[History]) -> tuple[int, int, int]:
    """Return the numbers of steps found within one result, of true steps, and of false ones."""
    right = reported = 0
    for values, true_places in lot:
        places = [step.place for step in level_changes.find_level_changes(values).steps]
        reported += len(places)
        right += sum(any(abs(step_place - place) <= 1 for step_place in places) for place in true_places)
    return right, sum(len(places) for _, places in lot), reported - right


def test_synthetic_steps_are_found_and_false_ones_are_rare() -> None:
    none = list(histories(60, 101, (0,)))
    assert sum(bool(level_changes.find_level_changes(values).steps) for values, _ in none) <= 3
    # Half of all steps of 3 to 30% are hidden by noise of 2 to 10%.
    right, there, false = count_steps(list(histories(60, 1, (0, 1, 2), (0.03, 0.3))))
    assert right >= 0.5 * there
    assert false <= 0.12 * there
    right, there, false = count_steps(list(histories(40, 51, (1,))))
    assert right >= 0.9 * there
    assert false <= 0.1 * there
    right, there, _ = count_steps(list(histories(30, 52, (2,))))
    assert right >= 0.79 * there


@pytest.mark.parametrize(("nights", "min_share"), [(6, 0.6), (12, 0.9), (20, 0.9)])
def test_short_history_has_its_step_and_no_false_one(nights: int, min_share: float) -> None:
    random = np.random.default_rng(nights)
    noise = random.normal(1, 0.05, (2, 40, nights))
    places = random.integers(3, nights - 2, 40)
    assert sum(bool(level_changes.find_level_changes(values.tolist()).steps) for values in noise[0]) <= 4
    right = 0
    for values, place in zip(noise[1], places, strict=True):
        values[place:] += 0.3
        right += any(abs(step.place - place) <= 1 for step in level_changes.find_level_changes(values.tolist()).steps)
    assert right >= min_share * 40


def test_step_is_found_after_three_results_and_an_outlier_is_none() -> None:
    random = np.random.default_rng(5)
    for nights, at_least, at_most in ((1, 0, 1), (3, 19, 20)):
        right = 0
        for values in random.normal(100, 2, (20, 60)):
            values[-nights:] -= 20
            right += 60 - nights in [step.place for step in level_changes.find_level_changes(values.tolist()).steps]
        assert at_least <= right <= at_most, nights
    values = random.normal(100, 2, 60)
    values[30] = 400
    result = level_changes.find_level_changes(values.tolist())
    assert (result.steps, result.outliers) == ((), (30,))


def test_relative_step_interval_includes_the_uncertain_level() -> None:
    from scipy import stats  # noqa: PLC0415

    before, after = [80.0, 100, 120, 95, 105], [900.0, 1100, 1000, 950, 1050]
    (step,) = level_changes.find_level_changes([*before, *after]).steps
    assert step.relative is not None
    low, high = step.relative
    assert low < step.size / step.before < high
    # Fieller in closed form: one variance of 8 degrees of freedom, means of 5 results.
    squares = stats.t.ppf(0.975, 8) ** 2 * (np.var(before) + np.var(after)) * 5 / 8 / 5
    ends = np.roots([100**2 - squares, -2 * 100 * 1000, 1000**2 - squares])
    assert (low, high) == pytest.approx((min(ends) - 1, max(ends) - 1))


def false_steps(histories: Iterable[np.ndarray[Any, np.dtype[np.float64]]]) -> float:
    """Return the share of these histories, in none of which anything changed, that have a step."""
    return fmean(bool(level_changes.find_level_changes(values.tolist()).steps) for values in histories)


LENGTHS = (6, 11, 20, 60)


@pytest.mark.parametrize("nights", LENGTHS)
@pytest.mark.parametrize("place", [slice(None, 2), slice(-2, None)])
@pytest.mark.parametrize("size", [4, 10])
def test_two_outliers_at_an_end_are_rarely_a_step(nights: int, place: slice, size: float) -> None:
    noise = np.random.default_rng(nights).normal(100, 1, (60, nights))
    noise[:, place] -= size
    share = false_steps(noise)
    # 5% of 60 and two standard errors.
    assert share <= 0.106


@pytest.mark.parametrize("nights", LENGTHS)
@pytest.mark.parametrize("size", [4, 10])
def test_straight_drift_is_rarely_a_step(nights: int, size: float) -> None:
    noise = np.random.default_rng(nights).normal(100, 1, (60, nights))
    share = false_steps(noise + np.linspace(0, size, nights))
    # 7% of 60 and two standard errors.
    assert share <= 0.136


@pytest.mark.parametrize(("nights", "most"), [(8, 0.1), (15, 0.1), (20, 0.25), (60, 0.25)])
def test_correlated_results_have_the_documented_false_steps(nights: int, most: float) -> None:
    noise = np.random.default_rng(nights).normal(0, 1, (nights + 50, 60))
    for night in range(1, len(noise)):
        noise[night] += 0.5 * noise[night - 1]
    share = false_steps(100 + noise[50:].T)
    assert share <= most + 2 * (most * (1 - most) / 60) ** 0.5


def test_values_without_noise_are_accepted() -> None:
    assert level_changes.find_level_changes([1448] * 10).steps == ()
    assert level_changes.find_level_changes([0] * 7).steps == ()
    (step,) = level_changes.find_level_changes([1448] * 10 + [8948] * 10).steps
    assert step.place == 10
    assert (step.before, step.size) == pytest.approx((1448, 7500))
    (step,) = level_changes.find_level_changes([1e300] * 10 + [1e250] * 10).steps
    assert step.size == pytest.approx(-1e300)
    (step,) = level_changes.find_level_changes([0] * 20 + [1] * 20).steps
    assert (step.before, step.relative) == (0, None)
    # Counts: the spread of as many independent events.
    counts = [20] * 6 + [22] * 6
    assert level_changes.find_level_changes(counts).steps
    assert level_changes.find_level_changes(counts, least_spread=21**0.5).steps == ()
