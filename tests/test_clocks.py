from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import made_runs as made
import numpy as np
import pytest

from ingest_bench.errors import RunFailed
from ingest_bench.load.fleet.transfer import PIECE_BYTES, Clock, Incoming, on_our_clock, pieces, report_on_our_clock
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


def test_a_file_comes_as_it_was_sent_and_its_records_on_our_clock(tmp_path: Path) -> None:
    theirs = np.zeros(PIECE_BYTES // SAMPLE.itemsize + 3, dtype=SAMPLE)
    theirs["done_ns"] = AHEAD_NS + np.arange(1, len(theirs) + 1)
    (tmp_path / "theirs").write_bytes(theirs.tobytes() + b"cut off")
    sent = list(pieces(tmp_path / "theirs"))
    assert [len(piece.get("data", b"")) for piece in sent] == [PIECE_BYTES, 3 * SAMPLE.itemsize + 7, 0]
    clock = Clock(AHEAD_NS, 0, AHEAD_NS, 1)
    for name, shift in (("samples-3.bin", clock), ("samples-4.bin", None)):
        with closing(Incoming(tmp_path / name, shift)) as incoming:
            assert [incoming.take(piece) for piece in sent] == [False, False, True]
    assert np.fromfile(tmp_path / "samples-3.bin", SAMPLE)["done_ns"].tolist() == list(range(1, len(theirs) + 1))
    assert (tmp_path / "samples-4.bin").read_bytes() == (tmp_path / "theirs").read_bytes()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"number": 2}, "x: piece 2 came where 1 was due"),
        ({"bytes": 11}, r"what came \(10 bytes\) is not what was sent \(11\)"),
        ({"sha256": "0"}, "is not what was sent"),
    ],
)
def test_a_file_that_does_not_come_as_it_was_sent_is_refused(
    tmp_path: Path, changed: dict[str, Any], said: str
) -> None:
    (tmp_path / "theirs").write_bytes(b"0123456789")
    first, last = pieces(tmp_path / "theirs")
    with closing(Incoming(tmp_path / "x", None)) as incoming:
        assert not incoming.take(first)
        with pytest.raises(RunFailed, match=said):
            incoming.take(last | changed)


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
