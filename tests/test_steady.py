"""The steady state: in synthetic series, in series of real servers, and in loads."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import example_runs as made
import numpy as np
import pytest

from ingest_bench.analysis.run import steady
from ingest_bench.analysis.run.sample_columns import Samples
from ingest_bench.model.samples import WorkerReport

# Series of rates with a known end of the warm-up, also with a stall or a sawtooth: the corner of a ramp or step; 5% of
# the level for an exponential approach. A series that drifts until its end is never steady (None).
LENGTH_S, VALUES = 30.0, 400
NOISE = 0.08
_Floats = np.ndarray[Any, np.dtype[np.float64]]
_Random = np.random.Generator
AT_S = (np.arange(VALUES) + 0.5) * LENGTH_S / VALUES


def flat(_: _Random) -> tuple[_Floats, float | None]:
    return np.ones(VALUES), 0.0


def ramp(random: _Random) -> tuple[_Floats, float | None]:
    ends_s, first = random.uniform(2, 10), random.uniform(0.1, 0.5)
    return np.minimum(1, first + (1 - first) * AT_S / ends_s), ends_s


def exponential(random: _Random) -> tuple[_Floats, float | None]:
    ends_s, first = random.uniform(2, 10), random.uniform(0.1, 0.5)
    constant_s = ends_s / np.log((1 - first) / 0.05)
    return 1 - (1 - first) * np.exp(-AT_S / constant_s), ends_s


def step(random: _Random) -> tuple[_Floats, float | None]:
    ends_s = random.uniform(2, 10)
    return np.where(ends_s > AT_S, random.uniform(0.2, 0.7), 1.0), ends_s


def sawtooth(random: _Random) -> tuple[_Floats, float | None]:
    period_s, size, phase = random.uniform(0.5, 3), random.uniform(0.1, 0.4), random.uniform()
    return 1 - size * ((AT_S / period_s + phase) % 1), 0.0


def drift(random: _Random) -> tuple[_Floats, float | None]:
    size = random.uniform(0.2, 0.6) * random.choice([-1, 1])
    return 1 + size * AT_S / LENGTH_S, None


def ramp_and_drift(random: _Random) -> tuple[_Floats, float | None]:
    values, ends_s = ramp(random)
    assert ends_s is not None
    size = random.uniform(0.25, 0.6) * random.choice([-1, 1])
    return values * (1 + size * np.maximum(AT_S - ends_s, 0) / (LENGTH_S - ends_s)), None


def ramp_and_sawtooth(random: _Random) -> tuple[_Floats, float | None]:
    values, ends_s = ramp(random)
    return values * sawtooth(random)[0], ends_s


def stalled(of: Callable[[_Random], tuple[_Floats, float | None]]) -> Callable[[_Random], tuple[_Floats, float | None]]:
    """Return the family with one stall of 1 to 3 s at any time, during which the rate is below 30%."""

    def with_stall(random: _Random) -> tuple[_Floats, float | None]:
        values, truth_s = of(random)
        begins_s, lasts_s = random.uniform(1, LENGTH_S - 4), random.uniform(1, 3)
        stands = (begins_s <= AT_S) & (begins_s + lasts_s > AT_S)
        return np.where(stands, values * random.uniform(0, 0.3), values), truth_s

    return with_stall


FAMILIES: dict[str, Callable[[_Random], tuple[_Floats, float | None]]] = {
    "flat": flat,
    "ramp": ramp,
    "exponential": exponential,
    "step": step,
    "stall": stalled(flat),
    "ramp and stall": stalled(ramp),
    "exponential and stall": stalled(exponential),
    "sawtooth": sawtooth,
    "ramp and sawtooth": ramp_and_sawtooth,
    "drift": drift,
    "ramp and drift": ramp_and_drift,
}


def noisy(values: _Floats, random: _Random, noise: float = NOISE) -> list[float]:
    """Return 1,000 times the values with relative noise, at least 0."""
    rates: list[float] = (1000 * np.maximum(values * (1 + noise * random.standard_normal(len(values))), 0)).tolist()
    return rates


RECORDED = json.loads((Path(__file__).parent / "data" / "rates.json").read_text(encoding="utf-8"))
SERIES = 60


def is_right(length: int | None, truth_s: float | None, value_s: float) -> bool:
    """Return whether the end is within one second of the truth."""
    if length is None or truth_s is None:
        return length is None and truth_s is None
    return abs(length * value_s - truth_s) <= 1


@pytest.mark.parametrize("family", FAMILIES)
def test_end_is_within_a_second_of_the_truth_in_95_percent(family: str) -> None:
    random = np.random.default_rng(zlib.crc32(family.encode()))
    right = 0
    for _ in range(SERIES):
        values, truth_s = FAMILIES[family](random)
        length = steady.transient_length(noisy(values, random))
        right += is_right(length, truth_s, LENGTH_S / VALUES)
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
    values, truth_s = ramp(random)
    scaled = [scale * value for value in noisy(values, random)]
    assert is_right(steady.transient_length(scaled), truth_s, LENGTH_S / VALUES)


def test_falling_times_end_when_they_reach_their_level() -> None:
    random = np.random.default_rng(2)
    values = np.where(AT_S < 5, 5 - 0.8 * AT_S, 1.0)
    assert is_right(steady.transient_length(noisy(values, random)), 5.0, LENGTH_S / VALUES)


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


def open_load(response_s: Callable[[float], float]) -> Samples:
    """Return a request every 10 ms; *response_s* gives its response time."""
    return made.samples([made.sample(at, at + response_s(at)) for at in np.arange(0, 7, 0.01)])


@pytest.mark.parametrize(
    ("samples", "is_open", "from_s", "steadiness", "text"),
    [
        # One second at a fifth of the speed, and 2.5 s, which is later than the warm-up.
        (load([0.05] * 20 + [0.01] * 580), False, 1.0, "steady", ""),
        (load([0.05] * 50 + [0.01] * 440), False, 2.5, "late", "within the measurement: give a longer warm_up"),
        (load([0.01] * 600), False, 0.0, "steady", ""),
        (load([0.005 + 0.00003 * n for n in range(560)]), False, None, "throughput never got steady", "measure longer"),
        (load([0.1] * 60), False, None, "too few requests to tell: 60, at least 160", ""),
        (made.samples([]), False, None, "nothing was sent", ""),
        # The throughput follows the schedule from the first second on and does not show a cold server.
        (open_load(lambda at: 0.1 - 0.04 * at if at < 2 else 0.02), True, 2.0, "steady", ""),
        (open_load(lambda at: 0.02 + 0.1 * at), True, None, "response time never got steady", "measure longer"),
    ],
)
def test_load_is_steady_from_the_end_of_its_slow_start(
    samples: Samples, is_open: bool, from_s: float | None, steadiness: str, text: str
) -> None:
    values = steady.steady_columns(samples, made.report(is_open_loop=is_open))
    assert values["steady_after_s"] == (None if from_s is None else pytest.approx(from_s, abs=0.5))
    assert values["steadiness"] == steadiness
    description = steady.describe_steadiness(values)
    assert text in description
    assert bool(text) == bool(description)


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
