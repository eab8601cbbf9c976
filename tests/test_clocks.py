from __future__ import annotations

import made_runs as made
import numpy as np
import pytest

from ingest_bench.load.fleet.transfer import PIECE_BYTES, Clock, on_our_clock, report_on_our_clock
from ingest_bench.model.load import ClockOffset, WorkerReport
from ingest_bench.model.samples import CPU_MARK, MOMENTS, RECORDS, SAMPLE, STANDSTILL
from ingest_bench.model.values import moments

AHEAD_NS = 3 * 10**12


def test_samples_and_report_of_a_clock_that_is_ahead_come_back_on_ours() -> None:
    ours = made.samples([made.sample(1.0, 1.5), made.sample(2.0, 2.25)])
    theirs = ours.copy()
    for name in ("planned_ns", "sent_ns", "written_ns", "first_byte_ns", "done_ns"):
        theirs[name] += AHEAD_NS
    clock = Clock(AHEAD_NS, 10**9, AHEAD_NS, 9 * 10**9)
    found = np.frombuffer(on_our_clock(theirs.tobytes(), clock, SAMPLE), dtype=SAMPLE)
    assert found.tolist() == ours.tolist()

    report = made.report()
    there = made.report(
        started_monotonic_ns=report.started_monotonic_ns + AHEAD_NS,
        warm_up_end_ns=report.warm_up_end_ns + AHEAD_NS,
        measure_end_ns=report.measure_end_ns + AHEAD_NS,
    )
    here = report_on_our_clock(there, clock, ClockOffset(worker=0, before_ns=AHEAD_NS, after_ns=AHEAD_NS))
    assert here.started_monotonic_ns == report.started_monotonic_ns
    assert (here.warm_up_end_ns, here.measure_end_ns) == (report.warm_up_end_ns, report.measure_end_ns)
    assert here.load_end_ns == 0
    assert here.clock_offsets[0].before_ns == AHEAD_NS


@pytest.mark.parametrize("drift_ppm", [20, -20])
def test_a_clock_that_drifts_for_an_hour_is_right_in_the_middle_too(drift_ppm: int) -> None:
    start_ns, hour_ns = 5 * 10**12, 3600 * 10**9
    gained_ns = hour_ns * drift_ppm // 10**6
    clock = Clock(AHEAD_NS, start_ns, AHEAD_NS + gained_ns, start_ns + hour_ns)
    ours = start_ns + np.arange(0, hour_ns + 1, hour_ns // 8, dtype=np.int64)
    theirs = ours + AHEAD_NS + (ours - start_ns) * drift_ppm // 10**6
    assert np.abs(clock.ours(theirs) - ours).max() <= 1000


def test_a_time_that_is_none_stays_none() -> None:
    samples = made.samples([made.sample(1.0, 1.5)])
    samples["sent_ns"] = 0
    found = np.frombuffer(on_our_clock(samples.tobytes(), Clock(5, 0, 5, 1), SAMPLE), dtype=samples.dtype)
    assert found["sent_ns"].tolist() == [0]


def test_the_moments_of_a_workers_cpu_come_back_on_our_clock_and_its_times_stay() -> None:
    theirs = np.array([(AHEAD_NS + 7, 5, 6), (AHEAD_NS + 9, 50, 60)], dtype=CPU_MARK)
    clock = Clock(AHEAD_NS, 10**9, AHEAD_NS, 9 * 10**9)
    found = np.frombuffer(on_our_clock(theirs.tobytes(), clock, CPU_MARK), dtype=CPU_MARK)
    assert found.tolist() == [(7, 5, 6), (9, 50, 60)]


def test_no_record_is_cut_in_two_on_its_way() -> None:
    assert [PIECE_BYTES % record.itemsize for record in RECORDS.values()] == [0] * len(RECORDS)


def test_the_types_say_which_times_are_moments_of_a_clock() -> None:
    assert set(moments(WorkerReport)) == {"started_monotonic_ns", "warm_up_end_ns", "measure_end_ns", "load_end_ns"}
    assert MOMENTS == {
        SAMPLE: ("planned_ns", "sent_ns", "written_ns", "first_byte_ns", "done_ns"),
        CPU_MARK: ("at_ns",),
        STANDSTILL: ("start_ns", "end_ns"),
    }


def test_a_length_of_time_is_the_same_on_every_clock() -> None:
    report = made.report(cpu_ns=5, loop_lag_p99_ns=6, queue_p99_ns=7, longest_silence_ns=8)
    here = report_on_our_clock(report, Clock(AHEAD_NS, 0, AHEAD_NS, 1), ClockOffset(worker=0))
    assert (here.cpu_ns, here.loop_lag_p99_ns, here.queue_p99_ns, here.longest_silence_ns) == (5, 6, 7, 8)
    marks = np.array([(AHEAD_NS + 1, 2, 3)], dtype=CPU_MARK)
    found = np.frombuffer(on_our_clock(marks.tobytes(), Clock(AHEAD_NS, 0, AHEAD_NS, 1), CPU_MARK), dtype=CPU_MARK)
    assert found.tolist() == [(1, 2, 3)]


@pytest.mark.parametrize("drift_ppm", [20, -20, 200])
def test_one_constant_offset_for_an_hour_would_be_wrong_at_its_ends_and_two_are_right(drift_ppm: int) -> None:
    hour_ns = 3600 * 10**9
    gained_ns = hour_ns * drift_ppm // 10**6
    ours = np.arange(0, hour_ns + 1, hour_ns // 16, dtype=np.int64)
    theirs = ours + AHEAD_NS + ours * drift_ppm // 10**6
    samples = np.zeros(len(ours), dtype=SAMPLE)
    samples["planned_ns"] = samples["done_ns"] = theirs

    def wrong_ns(clock: Clock) -> int:
        found = np.frombuffer(on_our_clock(samples.tobytes(), clock, SAMPLE), dtype=SAMPLE)
        return int(np.abs(found["done_ns"] - ours).max())

    middle_ns = AHEAD_NS + gained_ns // 2
    assert wrong_ns(Clock(middle_ns, 0, middle_ns, hour_ns)) >= abs(gained_ns) // 2 - 1000 >= 35_000_000
    assert wrong_ns(Clock(AHEAD_NS, 0, AHEAD_NS + gained_ns, hour_ns)) <= 1000
