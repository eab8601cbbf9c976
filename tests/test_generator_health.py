from __future__ import annotations

import made_runs as made
import pytest

from ingest_bench.analysis.run.generator_health import Cpu, busiest, generator_bound, remarks, values
from ingest_bench.analysis.run.sample_columns import Window, window_of

MS = 10**6
MEASURED = window_of(made.report())


def test_a_generator_with_time_left_is_not_the_limit() -> None:
    assert generator_bound(made.report(loop_lag_p99_ns=2 * MS), Cpu(0.5, 0.6), 10.0) == []


def test_a_worker_that_needs_a_whole_core_is_the_limit() -> None:
    (reason,) = generator_bound(made.report(), Cpu(0.96, 0.98), 10.0)
    assert reason.text.startswith("generator-bound: a load worker used 98% of a core in its worst second (96% of the")
    assert "--set processes=2" in reason.text


def test_a_warm_up_with_little_to_do_does_not_hide_a_measurement_with_too_much() -> None:
    # 3 s at 40% and 10 s at 100% are 86% of all.
    start = made.START
    window = Window(start + 3 * made.SECOND, start + 13 * made.SECOND)
    found = busiest([made.cpu(*[0.4] * 3, *[1.0] * 10)], window)
    assert found is not None
    assert (round(found.mean, 6), round(found.worst_second, 6)) == (1.0, 1.0)
    assert generator_bound(made.report(), found, 10.0)


def test_one_second_at_the_limit_is_seen_in_a_calm_measurement_and_one_before_it_is_not() -> None:
    found = busiest([made.cpu(0.3, 0.3, 0.3, 0.3, 0.97, 0.3, 0.3)], MEASURED)
    assert found is not None
    assert generator_bound(made.report(), found, 10.0)
    before = busiest([made.cpu(0.3, 0.97, 0.3, 0.3, 0.3, 0.3, 0.3)], MEASURED)
    assert before is not None
    assert round(before.worst_second, 6) == 0.3


def test_of_several_processes_the_busiest_is_told() -> None:
    found = busiest([made.cpu(*[0.2] * 7), made.cpu(*[0.6] * 6, 0.9)], MEASURED)
    assert found is not None
    assert (round(found.mean, 6), round(found.worst_second, 6)) == (0.66, 0.9)


def test_a_second_that_begins_in_the_warm_up_counts_with_its_part_in_the_measurement() -> None:
    window = Window(made.START + 1_250_000_000, made.START + 3 * made.SECOND)
    found = busiest([made.cpu(0.1, 0.8, 0.2)], window)
    assert found is not None
    assert round(found.mean, 6) == round((0.75 * 0.8 + 0.2) / 1.75, 6)
    assert round(found.worst_second, 6) == 0.8


@pytest.mark.parametrize("end_s", [2.2, 2.0])
def test_a_load_that_ended_before_its_first_second_is_judged_as_a_whole_or_not_at_all(end_s: float) -> None:
    found = busiest([made.cpu(0.1, 0.2, 0.95)], Window(MEASURED.start_ns, made.START + round(end_s * made.SECOND)))
    if end_s == 2.0:
        assert found is None
        assert generator_bound(made.report(), found, 10.0) == []
    else:
        assert found is not None
        assert round(found.worst_second, 6) == round(found.mean, 6) == 0.95


@pytest.mark.parametrize(("inside_ns", "worst"), [(5 * 10**8, 0.9), (5 * 10**8 - 1, 0.2)])
def test_a_second_counts_by_itself_from_the_half_of_it_on(inside_ns: int, worst: float) -> None:
    found = busiest(
        [made.cpu(0.9, 0.2, 0.2)], Window(made.START + made.SECOND - inside_ns, made.START + 3 * made.SECOND)
    )
    assert found is not None
    assert found.worst_second == pytest.approx(worst)


def test_without_marks_of_its_cpu_the_columns_are_empty_and_never_zero() -> None:
    for marks in ([], [made.cpu()], [made.cpu(0.5, 0.5)]):
        busy = busiest(marks, MEASURED)
        assert busy is None
        found = values(made.report(), busy)
        assert (found["generator_cpu_percent"], found["generator_cpu_percent_max"]) == (None, None)


@pytest.mark.parametrize(("response_ms", "said"), [(10.0, True), (None, True), (500.0, False)])
def test_a_late_event_loop_of_a_closed_loop_is_a_remark_and_never_a_verdict(
    response_ms: float | None, said: bool
) -> None:
    late = made.report(loop_lag_p99_ns=100 * MS)
    assert generator_bound(late, None, response_ms) == []
    assert [remark.text.split(" (p99)")[0] for remark in remarks(late, response_ms)] == (
        ["the load's event loop came around 100ms late"] if said else []
    )


@pytest.mark.parametrize(("response_ms", "bound"), [(10.0, True), (None, True), (500.0, False)])
def test_late_requests_of_an_open_loop_are_the_limit_once_that_is_as_long_as_what_is_measured(
    response_ms: float | None, bound: bool
) -> None:
    late = made.report(is_open=True, queue_p99_ns=100 * MS)
    assert bool(generator_bound(late, None, response_ms)) is bound


def test_an_open_loop_is_judged_by_how_late_requests_left() -> None:
    assert generator_bound(made.report(is_open=True, queue_p99_ns=1 * MS, loop_lag_p99_ns=100 * MS), None, 1.0) == []
    (reason,) = generator_bound(made.report(is_open=True, queue_p99_ns=80 * MS), None, 1.0)
    assert "requests left 80ms late" in reason.text


def test_a_closed_loop_has_no_send_delay() -> None:
    assert values(made.report(), None)["send_delay_ms_p99"] is None
    assert values(made.report(is_open=True, queue_p99_ns=2 * MS), None)["send_delay_ms_p99"] == 2.0


def test_a_99th_percentile_of_fewer_than_a_hundred_is_left_out_and_their_number_stands_beside_it() -> None:
    few = values(made.report(is_open=True, loop_lags=99, queue_delays=99), None)
    many = values(made.report(is_open=True, loop_lags=100, queue_delays=100), None)
    assert (few["generator_lag_ms_p99"], few["send_delay_ms_p99"]) == (None, None)
    assert None not in (many["generator_lag_ms_p99"], many["send_delay_ms_p99"])
    assert (few["generator_lags"], many["send_delays"]) == (99, 100)
