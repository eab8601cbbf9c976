from __future__ import annotations

import example_runs as made
import pytest

from ingest_bench.analysis.run.generator import (
    WorkerCpu,
    busiest_worker,
    describe_generator_limit,
    describe_loop_lag,
    generator_columns,
    window_columns,
)
from ingest_bench.analysis.run.sample_columns import Window, measurement_window

MS = 10**6
MEASURED = measurement_window(made.report())


def test_generator_with_spare_cpu_is_not_the_limit() -> None:
    assert describe_generator_limit(made.report(loop_lag_p99_ns=2 * MS), WorkerCpu(0.5, 0.6), 10.0) == ""


def test_worker_that_uses_a_full_core_is_the_limit() -> None:
    text = describe_generator_limit(made.report(), WorkerCpu(0.96, 0.98), 10.0)
    assert text.startswith("generator-bound: a load worker used 98% of a core in its worst second (96% of the")
    assert "--set processes=2" in text


@pytest.mark.parametrize(
    ("processes", "begin_s", "end_s", "mean", "worst"),
    [
        # An idle warm-up does not hide a busy measurement: 3 s at 40% and 10 s at 100% are 86% of all.
        ([[0.4] * 3 + [1.0] * 10], 3, 13, 1.0, 1.0),
        ([[0.3, 0.97, 0.3, 0.97, 0.3]], 2, 5, (0.3 + 0.97 + 0.3) / 3, 0.97),
        ([[0.3, 0.97, 0.3, 0.3, 0.3]], 2, 5, 0.3, 0.3),
        ([[0.2] * 7, [0.6] * 6 + [0.9]], 2, 7, 0.66, 0.9),
        ([[0.1, 0.8, 0.2]], 1.25, 3, (0.75 * 0.8 + 0.2) / 1.75, 0.8),
        # A measurement below a second is judged as a unit.
        ([[0.1, 0.2, 0.95]], 2, 2.2, 0.95, 0.95),
        # A second counts if half of it is inside.
        ([[0.9, 0.2, 0.2]], 0.5, 3, (0.45 + 0.4) / 2.5, 0.9),
        ([[0.9, 0.2, 0.2]], 0.5 + 1e-9, 3, (0.45 + 0.4) / 2.5, 0.2),
    ],
)
def test_cpu_is_of_the_busiest_process_within_the_measurement(
    processes: list[list[float]], begin_s: float, end_s: float, mean: float, worst: float
) -> None:
    window = Window(*(made.START + round(at * made.SECOND) for at in (begin_s, end_s)))
    cpu = busiest_worker([made.cpu(*shares) for shares in processes], window)
    assert cpu is not None
    assert (cpu.mean, cpu.worst_second) == pytest.approx((mean, worst))
    assert busiest_worker([made.cpu(0.5, 0.5, 0.5)], Window(window.start_ns, window.start_ns)) is None


def test_columns_without_cpu_marks_are_empty() -> None:
    for marks in ([], [made.cpu()], [made.cpu(0.5, 0.5)]):
        busy = busiest_worker(marks, MEASURED)
        assert busy is None
        cpu = generator_columns(made.report(), busy)
        assert (cpu["generator_cpu_percent"], cpu["generator_cpu_percent_max"]) == (None, None)


@pytest.mark.parametrize(("response_ms", "is_late"), [(10.0, True), (None, True), (500.0, False)])
def test_late_event_loop_of_a_closed_loop_is_only_a_note(response_ms: float | None, is_late: bool) -> None:
    late = made.report(loop_lag_p99_ns=100 * MS)
    assert describe_generator_limit(late, None, response_ms) == ""
    assert describe_loop_lag(late, response_ms).startswith("late event loop: the load's ran 100ms late (p99)" * is_late)
    assert bool(describe_loop_lag(late, response_ms)) == is_late


@pytest.mark.parametrize(("response_ms", "is_limit"), [(10.0, True), (None, True), (500.0, False)])
def test_open_loop_is_limited_by_a_send_delay_above_the_response_time(
    response_ms: float | None, is_limit: bool
) -> None:
    late = made.report(is_open_loop=True, send_delay_p99_ns=100 * MS, loop_lag_p99_ns=100 * MS)
    assert ("requests left 100ms late" in describe_generator_limit(late, None, response_ms)) == is_limit
    assert describe_generator_limit(made.report(is_open_loop=True, loop_lag_p99_ns=100 * MS), None, response_ms) == ""


def test_closed_loop_has_no_send_delay() -> None:
    assert generator_columns(made.report(), None)["send_delay_ms_p99"] is None
    assert generator_columns(made.report(is_open_loop=True, send_delay_p99_ns=2 * MS), None)["send_delay_ms_p99"] == 2.0


def test_p99_of_fewer_than_100_samples_is_unknown() -> None:
    few = generator_columns(made.report(is_open_loop=True, loop_lag_samples=99, send_delay_samples=99), None)
    many = generator_columns(made.report(is_open_loop=True, loop_lag_samples=100, send_delay_samples=100), None)
    assert (few["generator_lag_ms_p99"], few["send_delay_ms_p99"]) == (None, None)
    assert None not in (many["generator_lag_ms_p99"], many["send_delay_ms_p99"])
    assert (few["generator_lag_samples"], many["send_delay_samples"]) == (99, 100)


def test_window_columns_are_empty_unless_a_window_is_known() -> None:
    samples = made.samples([made.sample(0, 2), made.sample(1, 3)])
    assert window_columns(samples, made.report()) == {}
    stalled = made.report(window_stalls=3, window_stalled_ns=3 * 10**9, stream_window_bytes=65_535)
    assert window_columns(samples, stalled) == {
        "window_stalls": 3,
        "window_stalled_ms_mean": 1000.0,
        "window_stalled_percent": 75.0,
        "server_stream_window_bytes": 65_535,
    }
    assert window_columns(samples, made.report(stream_window_bytes=1))["window_stalled_ms_mean"] is None
