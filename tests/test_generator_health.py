from __future__ import annotations

import made_runs as made
import pytest

from ingest_bench.analysis.run.generator import (
    WorkerCpu,
    busiest_worker,
    find_generator_limit,
    generator_columns,
    note_loop_lag,
)
from ingest_bench.analysis.run.sample_columns import Window, measurement_window

MS = 10**6
MEASURED = measurement_window(made.report())


def test_generator_with_spare_cpu_is_not_the_limit() -> None:
    assert find_generator_limit(made.report(loop_lag_p99_ns=2 * MS), WorkerCpu(0.5, 0.6), 10.0) == []


def test_worker_that_uses_a_full_core_is_the_limit() -> None:
    (reason,) = find_generator_limit(made.report(), WorkerCpu(0.96, 0.98), 10.0)
    assert reason.text.startswith("generator-bound: a load worker used 98% of a core in its worst second (96% of the")
    assert "--set processes=2" in reason.text


def test_idle_warm_up_does_not_hide_a_busy_measurement() -> None:
    # 3 s at 40% and 10 s at 100% are 86% of all.
    start = made.START
    window = Window(start + 3 * made.SECOND, start + 13 * made.SECOND)
    cpu = busiest_worker([made.cpu(*[0.4] * 3, *[1.0] * 10)], window)
    assert cpu is not None
    assert (round(cpu.mean, 6), round(cpu.worst_second, 6)) == (1.0, 1.0)
    assert find_generator_limit(made.report(), cpu, 10.0)


def test_only_busy_seconds_within_the_measurement_count() -> None:
    cpu = busiest_worker([made.cpu(0.3, 0.3, 0.3, 0.3, 0.97, 0.3, 0.3)], MEASURED)
    assert cpu is not None
    assert find_generator_limit(made.report(), cpu, 10.0)
    before = busiest_worker([made.cpu(0.3, 0.97, 0.3, 0.3, 0.3, 0.3, 0.3)], MEASURED)
    assert before is not None
    assert round(before.worst_second, 6) == 0.3


def test_busiest_process_is_reported() -> None:
    cpu = busiest_worker([made.cpu(*[0.2] * 7), made.cpu(*[0.6] * 6, 0.9)], MEASURED)
    assert cpu is not None
    assert (round(cpu.mean, 6), round(cpu.worst_second, 6)) == (0.66, 0.9)


def test_second_across_the_start_counts_partially() -> None:
    window = Window(made.START + 1_250_000_000, made.START + 3 * made.SECOND)
    cpu = busiest_worker([made.cpu(0.1, 0.8, 0.2)], window)
    assert cpu is not None
    assert round(cpu.mean, 6) == round((0.75 * 0.8 + 0.2) / 1.75, 6)
    assert round(cpu.worst_second, 6) == 0.8


@pytest.mark.parametrize("end_s", [2.2, 2.0])
def test_measurement_below_a_second_is_judged_as_a_unit(end_s: float) -> None:
    cpu = busiest_worker([made.cpu(0.1, 0.2, 0.95)], Window(MEASURED.start_ns, made.START + round(end_s * made.SECOND)))
    if end_s == 2.0:
        assert cpu is None
        assert find_generator_limit(made.report(), cpu, 10.0) == []
    else:
        assert cpu is not None
        assert round(cpu.worst_second, 6) == round(cpu.mean, 6) == 0.95


@pytest.mark.parametrize(("inside_ns", "worst"), [(5 * 10**8, 0.9), (5 * 10**8 - 1, 0.2)])
def test_second_counts_if_half_of_it_is_inside(inside_ns: int, worst: float) -> None:
    cpu = busiest_worker(
        [made.cpu(0.9, 0.2, 0.2)], Window(made.START + made.SECOND - inside_ns, made.START + 3 * made.SECOND)
    )
    assert cpu is not None
    assert cpu.worst_second == pytest.approx(worst)


def test_columns_without_cpu_marks_are_empty() -> None:
    for marks in ([], [made.cpu()], [made.cpu(0.5, 0.5)]):
        busy = busiest_worker(marks, MEASURED)
        assert busy is None
        cpu = generator_columns(made.report(), busy)
        assert (cpu["generator_cpu_percent"], cpu["generator_cpu_percent_max"]) == (None, None)


@pytest.mark.parametrize(("response_ms", "is_late"), [(10.0, True), (None, True), (500.0, False)])
def test_late_event_loop_of_a_closed_loop_is_only_a_note(response_ms: float | None, is_late: bool) -> None:
    late = made.report(loop_lag_p99_ns=100 * MS)
    assert find_generator_limit(late, None, response_ms) == []
    assert [remark.text.split(" (p99)")[0] for remark in note_loop_lag(late, response_ms)] == (
        ["the load's event loop ran 100ms late"] if is_late else []
    )


@pytest.mark.parametrize(("response_ms", "bound"), [(10.0, True), (None, True), (500.0, False)])
def test_send_delay_is_the_limit_from_the_response_time_on(response_ms: float | None, bound: bool) -> None:
    late = made.report(is_open_loop=True, send_delay_p99_ns=100 * MS)
    assert bool(find_generator_limit(late, None, response_ms)) is bound


def test_open_loop_is_judged_by_its_send_delay() -> None:
    assert (
        find_generator_limit(
            made.report(is_open_loop=True, send_delay_p99_ns=1 * MS, loop_lag_p99_ns=100 * MS), None, 1.0
        )
        == []
    )
    (reason,) = find_generator_limit(made.report(is_open_loop=True, send_delay_p99_ns=80 * MS), None, 1.0)
    assert "requests left 80ms late" in reason.text


def test_closed_loop_has_no_send_delay() -> None:
    assert generator_columns(made.report(), None)["send_delay_ms_p99"] is None
    assert generator_columns(made.report(is_open_loop=True, send_delay_p99_ns=2 * MS), None)["send_delay_ms_p99"] == 2.0


def test_p99_of_fewer_than_100_samples_is_unknown() -> None:
    few = generator_columns(made.report(is_open_loop=True, loop_lag_samples=99, send_delay_samples=99), None)
    many = generator_columns(made.report(is_open_loop=True, loop_lag_samples=100, send_delay_samples=100), None)
    assert (few["generator_lag_ms_p99"], few["send_delay_ms_p99"]) == (None, None)
    assert None not in (many["generator_lag_ms_p99"], many["send_delay_ms_p99"])
    assert (few["generator_lag_samples"], many["send_delay_samples"]) == (99, 100)
