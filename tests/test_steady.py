from __future__ import annotations

from collections.abc import Callable
from typing import Any

import made_runs as made
import numpy as np
import pytest

from ingest_bench.analysis.run import steady
from ingest_bench.analysis.run.sample_columns import Samples
from ingest_bench.model.load import WorkerReport


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


def open_load(response_s: Callable[[float], float], length_s: float = 7.0) -> Samples:
    """A request every 10 ms; how long its answer took, by its moment."""
    times = np.arange(0, length_s, 0.01)
    return made.samples([made.sample(at, at + response_s(at)) for at in times])


def test_an_open_loop_is_steady_where_its_response_times_are() -> None:
    """Its throughput is what the schedule says from the first second on: it tells nothing of a cold server."""
    samples = open_load(lambda at: 0.1 - 0.04 * at if at < 2 else 0.02)
    found = steady.of_load(samples, made.report(is_open=True))
    assert found.from_s == pytest.approx(2.0, abs=0.4)


def test_an_open_loop_whose_queue_grows_never_gets_steady() -> None:
    values = steady.values(open_load(lambda at: 0.02 + 0.1 * at), made.report(is_open=True))
    assert values["steadiness"] == "response time never got steady"


MEASURE_NS = 5 * made.SECOND


def sought(samples: Samples, length_s: float = 10.0, **changed: Any) -> WorkerReport:
    """The report of a load that warms up for as long as it measures, once its data decided."""
    length_ns = round(length_s * made.SECOND)
    ends = {"warm_up_end_ns": made.START + length_ns // 2, "measure_end_ns": made.START + length_ns}
    return steady.settled(samples, made.report(**ends, **changed), MEASURE_NS)


def test_a_measurement_begins_where_its_data_say_and_lasts_as_long_as_was_asked() -> None:
    samples = load([0.05] * 40 + [0.01] * 790)  # two seconds at a fifth of the speed
    report = sought(samples)
    warm_up_s = (report.warm_up_end_ns - made.START) / made.SECOND
    assert warm_up_s == pytest.approx(2.0, abs=0.5)
    assert report.measure_end_ns - report.warm_up_end_ns == MEASURE_NS
    assert report.load_end_ns == made.START + 10 * made.SECOND
    values = steady.values(samples, report)
    assert values["steady_after_s"] == pytest.approx(warm_up_s, abs=1e-6)
    assert values["steadiness"] == "steady"
    assert steady.remarks(values, sought=True) == []
    # Decided once: to decide again changes nothing.
    assert steady.settled(samples, report, MEASURE_NS) == report


def test_a_load_that_is_steady_at_once_is_measured_from_its_start() -> None:
    report = sought(load([0.01] * 990))
    assert (report.warm_up_end_ns, report.measure_end_ns) == (made.START, made.START + MEASURE_NS)


@pytest.mark.parametrize(
    ("gaps", "said"),
    [([0.005 + 0.00002 * n for n in range(780)], "never got steady"), ([0.1] * 90, "too few requests to tell")],
)
def test_a_load_that_never_gets_steady_is_measured_in_its_second_half_and_says_so(gaps: list[float], said: str) -> None:
    samples = load(gaps)
    report = sought(samples)
    assert (report.warm_up_end_ns, report.measure_end_ns) == (made.START + MEASURE_NS, report.load_end_ns)
    (remark,) = steady.remarks(steady.values(samples, report), sought=True)
    assert said in remark.text
    assert "second half" in remark.text
    assert not remark.invalidates


def test_a_load_that_ended_early_is_measured_to_its_end() -> None:
    report = sought(load([0.05] * 40 + [0.01] * 290), length_s=5.0)
    assert made.START < report.warm_up_end_ns < report.measure_end_ns == report.load_end_ns


def test_few_requests_say_that_they_are_too_few() -> None:
    assert "too few requests" in steady.of_load(load([0.1] * 60), made.report()).reason
    assert steady.of_load(made.samples([]), made.report()).reason == "nothing was sent"
