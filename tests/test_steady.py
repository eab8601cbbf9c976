"""The steady state: in synthetic series, in series of real servers, and in loads."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import example_runs as made
import made_series
import numpy as np
import pytest

from ingest_bench.analysis.run import steady
from ingest_bench.analysis.run.sample_columns import Samples
from ingest_bench.model.samples import WorkerReport

RECORDED = json.loads((Path(__file__).parent / "data" / "rates.json").read_text(encoding="utf-8"))
SERIES = 60


def is_right(length: int | None, truth_s: float | None, value_s: float) -> bool:
    """Return whether the end is within one second of the truth."""
    if length is None or truth_s is None:
        return length is None and truth_s is None
    return abs(length * value_s - truth_s) <= 1


@pytest.mark.parametrize("family", made_series.FAMILIES)
def test_end_is_within_a_second_of_the_truth_in_95_percent(family: str) -> None:
    random = np.random.default_rng(zlib.crc32(family.encode()))
    right = 0
    for _ in range(SERIES):
        values, truth_s = made_series.FAMILIES[family](random)
        length = steady.transient_length(made_series.noisy(values, random))
        right += is_right(length, truth_s, made_series.LENGTH_S / made_series.VALUES)
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
    values, truth_s = made_series.ramp(random)
    noisy = [scale * value for value in made_series.noisy(values, random)]
    assert is_right(steady.transient_length(noisy), truth_s, made_series.LENGTH_S / made_series.VALUES)


def test_falling_times_end_when_they_reach_their_level() -> None:
    random = np.random.default_rng(2)
    values = np.where(made_series.AT_S < 5, 5 - 0.8 * made_series.AT_S, 1.0)
    assert is_right(
        steady.transient_length(made_series.noisy(values, random)), 5.0, made_series.LENGTH_S / made_series.VALUES
    )


def test_few_requests_per_value_are_not_stalls() -> None:
    """Values are whole numbers: most are equal, and some a quarter more."""
    assert steady.transient_length([4.0, 5.0, 4.0, 5.0, 4.0, 4.0, 5.0] * 20) == 0


def test_stall_at_the_end_is_not_a_new_level() -> None:
    assert steady.transient_length([100.0] * 270 + [0.0] * 30) == 0


def test_too_few_values_have_no_result() -> None:
    assert steady.transient_length([100.0] * 39) is None
    assert steady.transient_length([0.0] * 100) is None


def load(gaps_s: list[float]) -> Samples:
    times = np.cumsum(gaps_s)
    return made.samples([made.sample(at - 0.001, at) for at in times])


def test_slow_start_is_steady_after_its_warm_up() -> None:
    gaps = [0.05] * 20 + [0.01] * 580  # one second at a fifth of the speed, then steady to the end at 6.8 s
    start = steady.find_steady_start(load(gaps), made.report())
    assert start.from_s == pytest.approx(1.0, abs=0.5)
    assert steady.steady_columns(load(gaps), made.report())["steadiness"] == "steady"


def test_load_steady_after_the_warm_up_is_late() -> None:
    gaps = [0.05] * 50 + [0.01] * 440
    values = steady.steady_columns(load(gaps), made.report())
    assert values["steadiness"] == "late"
    text = steady.describe_steadiness(values)
    assert "give a longer warm_up" in text


def test_load_that_slows_down_never_gets_steady() -> None:
    gaps = [0.005 + 0.00003 * n for n in range(560)]
    start = steady.find_steady_start(load(gaps), made.report())
    assert (start.from_s, start.reason) == (None, "throughput never got steady")
    text = steady.describe_steadiness(steady.steady_columns(load(gaps), made.report()))
    assert text.startswith("throughput never got steady")


def test_steady_and_short_loads_have_no_note() -> None:
    for gaps in ([0.01] * 600, [0.1] * 60):
        assert steady.describe_steadiness(steady.steady_columns(load(gaps), made.report())) == ""


def open_load(response_s: Callable[[float], float], length_s: float = 7.0) -> Samples:
    """Return a request every 10 ms; *response_s* gives its response time."""
    times = np.arange(0, length_s, 0.01)
    return made.samples([made.sample(at, at + response_s(at)) for at in times])


def test_open_loop_is_steady_when_its_response_times_are() -> None:
    """The throughput follows the schedule from the first second on and does not show a cold server."""
    samples = open_load(lambda at: 0.1 - 0.04 * at if at < 2 else 0.02)
    start = steady.find_steady_start(samples, made.report(is_open_loop=True))
    assert start.from_s == pytest.approx(2.0, abs=0.4)


def test_open_loop_with_growing_queue_never_gets_steady() -> None:
    values = steady.steady_columns(open_load(lambda at: 0.02 + 0.1 * at), made.report(is_open_loop=True))
    assert values["steadiness"] == "response time never got steady"


MEASURE_NS = 5 * made.SECOND


def sought(samples: Samples, length_s: float = 10.0, **changed: Any) -> WorkerReport:
    """Return the report of a load with automatic warm-up, which warms up for as long as it measures."""
    length_ns = round(length_s * made.SECOND)
    ends = {"warm_up_end_ns": made.START + length_ns // 2, "measure_end_ns": made.START + length_ns}
    return steady.measure_from_steady(samples, made.report(**ends, **changed), MEASURE_NS)


def test_automatic_measurement_begins_at_the_steady_state() -> None:
    samples = load([0.05] * 40 + [0.01] * 790)  # two seconds at a fifth of the speed
    report = sought(samples)
    warm_up_s = (report.warm_up_end_ns - made.START) / made.SECOND
    assert warm_up_s == pytest.approx(2.0, abs=0.5)
    assert report.measure_end_ns - report.warm_up_end_ns == MEASURE_NS
    assert report.load_end_ns == made.START + 10 * made.SECOND
    values = steady.steady_columns(samples, report)
    assert values["steady_after_s"] == pytest.approx(warm_up_s, abs=1e-6)
    assert values["steadiness"] == "steady"
    assert steady.describe_steadiness(values, is_automatic=True) == ""
    # Repeating the decision changes nothing.
    assert steady.measure_from_steady(samples, report, MEASURE_NS) == report


def test_immediately_steady_load_is_measured_from_its_start() -> None:
    report = sought(load([0.01] * 990))
    assert (report.warm_up_end_ns, report.measure_end_ns) == (made.START, made.START + MEASURE_NS)


@pytest.mark.parametrize(
    ("gaps", "expected"),
    [([0.005 + 0.00002 * n for n in range(780)], "never got steady"), ([0.1] * 90, "too few requests to tell")],
)
def test_unsteady_load_is_measured_in_its_second_half(gaps: list[float], expected: str) -> None:
    samples = load(gaps)
    report = sought(samples)
    assert (report.warm_up_end_ns, report.measure_end_ns) == (made.START + MEASURE_NS, report.load_end_ns)
    text = steady.describe_steadiness(steady.steady_columns(samples, report), is_automatic=True)
    assert expected in text
    assert "second half" in text


def test_load_that_ended_early_is_measured_to_its_end() -> None:
    report = sought(load([0.05] * 40 + [0.01] * 290), length_s=5.0)
    assert made.START < report.warm_up_end_ns < report.measure_end_ns == report.load_end_ns


def test_too_few_requests_are_reported() -> None:
    assert "too few requests" in steady.find_steady_start(load([0.1] * 60), made.report()).reason
    assert steady.find_steady_start(made.samples([]), made.report()).reason == "nothing was sent"
