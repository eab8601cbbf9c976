from __future__ import annotations

import made_runs as made
import numpy as np
import pytest

from ingest_bench.analysis import steady
from ingest_bench.analysis.samples import Samples
from ingest_bench.analysis.steady import truncation


def noisy(values: list[float], spread: float = 5.0) -> list[float]:
    random = np.random.default_rng(7)
    return [float(value + random.normal(0, spread)) for value in values]


def test_a_constant_series_is_steady_from_its_beginning() -> None:
    assert truncation([100.0] * 100) == 0


def test_noise_around_a_mean_is_steady_early() -> None:
    found = truncation(noisy([100.0] * 200))
    assert found is not None
    assert found <= 50


def test_a_warm_up_is_cut_where_it_ends() -> None:
    found = truncation(noisy([10.0 + 3 * n for n in range(30)] + [100.0] * 120, spread=3.0))
    assert found is not None
    assert 20 <= found <= 75


@pytest.mark.parametrize("slope", [1.0, -1.0])
def test_a_trend_that_does_not_end_is_never_steady(slope: float) -> None:
    assert truncation(noisy([500.0 + slope * n for n in range(200)])) is None


def test_too_few_values_tell_nothing() -> None:
    assert truncation([100.0] * 39) is None


def load(gaps_s: list[float]) -> Samples:
    times = np.cumsum(gaps_s)
    return made.samples([made.sample(at - 0.001, at) for at in times])


def test_a_load_that_starts_slowly_is_steady_after_its_warm_up() -> None:
    gaps = [0.05] * 20 + [0.01] * 580  # one second at a fifth of the speed, then steady to the end at 6.8 s
    found = steady.of_load(load(gaps), made.report())
    assert found.from_s == pytest.approx(1.0, abs=0.5)
    assert steady.values(load(gaps), made.report())["steadiness"] == "steady"


def test_a_load_that_is_steady_only_after_the_given_warm_up_is_late() -> None:
    gaps = [0.05] * 50 + [0.01] * 440
    values = steady.values(load(gaps), made.report())
    assert values["steadiness"] == "late"
    (remark,) = steady.remarks(values)
    assert "give a longer warm_up" in remark.text


def test_a_load_that_slows_down_all_the_time_says_that_it_never_got_steady() -> None:
    gaps = [0.005 + 0.00003 * n for n in range(560)]
    found = steady.of_load(load(gaps), made.report())
    assert (found.from_s, found.reason) == (None, "throughput never got steady")
    (remark,) = steady.remarks(steady.values(load(gaps), made.report()))
    assert remark.text.startswith("throughput never got steady")
    assert not remark.invalidates


def test_a_steady_load_and_a_short_one_have_no_remark() -> None:
    for gaps in ([0.01] * 600, [0.1] * 60):
        assert steady.remarks(steady.values(load(gaps), made.report())) == []


def test_few_requests_say_that_they_are_too_few() -> None:
    assert "too few requests" in steady.of_load(load([0.1] * 60), made.report()).reason
    assert steady.of_load(made.samples([]), made.report()).reason == "nothing was sent"
