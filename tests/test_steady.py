from __future__ import annotations

from collections.abc import Callable
from typing import Any

import example_runs as made
import numpy as np
import pytest

from ingest_bench.analysis.run import steady
from ingest_bench.analysis.run.sample_columns import Samples
from ingest_bench.model.samples import WorkerReport


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
    (remark,) = steady.note_steadiness(values)
    assert "give a longer warm_up" in remark.text


def test_load_that_slows_down_never_gets_steady() -> None:
    gaps = [0.005 + 0.00003 * n for n in range(560)]
    start = steady.find_steady_start(load(gaps), made.report())
    assert (start.from_s, start.reason) == (None, "throughput never got steady")
    (remark,) = steady.note_steadiness(steady.steady_columns(load(gaps), made.report()))
    assert remark.text.startswith("throughput never got steady")
    assert not remark.invalidates


def test_steady_and_short_loads_have_no_note() -> None:
    for gaps in ([0.01] * 600, [0.1] * 60):
        assert steady.note_steadiness(steady.steady_columns(load(gaps), made.report())) == []


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
    assert steady.note_steadiness(values, is_automatic=True) == []
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
    (remark,) = steady.note_steadiness(steady.steady_columns(samples, report), is_automatic=True)
    assert expected in remark.text
    assert "second half" in remark.text
    assert not remark.invalidates


def test_load_that_ended_early_is_measured_to_its_end() -> None:
    report = sought(load([0.05] * 40 + [0.01] * 290), length_s=5.0)
    assert made.START < report.warm_up_end_ns < report.measure_end_ns == report.load_end_ns


def test_too_few_requests_are_reported() -> None:
    assert "too few requests" in steady.find_steady_start(load([0.1] * 60), made.report()).reason
    assert steady.find_steady_start(made.samples([]), made.report()).reason == "nothing was sent"
