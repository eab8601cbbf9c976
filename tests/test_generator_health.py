from __future__ import annotations

import made_runs as made
import pytest

from ingest_bench.analysis.health import generator_bound, remarks, values

MS = 10**6


def test_a_generator_with_time_left_is_not_the_limit() -> None:
    assert generator_bound(made.report(cpu_share_ppm=500_000, loop_lag_p99_ns=2 * MS), 10.0) == []


def test_a_worker_that_needs_a_whole_core_is_the_limit() -> None:
    (reason,) = generator_bound(made.report(cpu_share_ppm=960_000), 10.0)
    assert reason.startswith("generator-bound: a load worker used 96% of a core")
    assert "--processes" in reason


@pytest.mark.parametrize(("response_ms", "said"), [(10.0, True), (None, True), (500.0, False)])
def test_a_late_event_loop_of_a_closed_loop_is_a_remark_and_never_a_verdict(
    response_ms: float | None, said: bool
) -> None:
    late = made.report(loop_lag_p99_ns=100 * MS)
    assert generator_bound(late, response_ms) == []
    assert [remark.text.split(" (p99)")[0] for remark in remarks(late, response_ms)] == (
        ["the load's event loop came around 100ms late"] if said else []
    )


@pytest.mark.parametrize(("response_ms", "bound"), [(10.0, True), (None, True), (500.0, False)])
def test_late_requests_of_an_open_loop_are_the_limit_once_that_is_as_long_as_what_is_measured(
    response_ms: float | None, bound: bool
) -> None:
    late = made.report(is_open=True, queue_p99_ns=100 * MS)
    assert bool(generator_bound(late, response_ms)) is bound


def test_an_open_loop_is_judged_by_how_late_requests_left() -> None:
    assert generator_bound(made.report(is_open=True, queue_p99_ns=1 * MS, loop_lag_p99_ns=100 * MS), 1.0) == []
    (reason,) = generator_bound(made.report(is_open=True, queue_p99_ns=80 * MS), 1.0)
    assert "requests left 80ms late" in reason


def test_a_closed_loop_has_no_send_delay() -> None:
    assert values(made.report())["send_delay_ms_p99"] is None
    assert values(made.report(is_open=True, queue_p99_ns=2 * MS))["send_delay_ms_p99"] == 2.0
