"""Files of a worker on another machine: their transfer in pieces, and the conversion of their times to our clock."""

from __future__ import annotations

import time
import tracemalloc
from functools import partial
from pathlib import Path
from typing import Any

import example_runs as made
import numpy as np
import pytest

from ingest_bench.errors import InvalidRun, RunFailed
from ingest_bench.load.fleet.transfer import (
    PIECE_BYTES,
    ClockReading,
    convert_records,
    convert_report,
    read_piece,
    realtime_offset,
    receive_file,
)
from ingest_bench.model.samples import CPU_MARK, EVENT_LOOP_STALL, MOMENTS, RECORDS, SAMPLE, ClockOffset, WorkerReport
from ingest_bench.model.values import monotonic_fields

AHEAD_NS = 3 * 10**12
HOUR_NS = 3600 * 10**9


def clock(before_ns: int, before_at_ns: int, after_ns: int, after_at_ns: int) -> ClockOffset:
    return ClockOffset(
        worker=0,
        offset_before_ns=before_ns,
        measured_before_at_ns=before_at_ns,
        offset_after_ns=after_ns,
        measured_after_at_ns=after_at_ns,
    )


AHEAD = clock(AHEAD_NS, 10**9, AHEAD_NS, 9 * 10**9)


def convert(records: np.ndarray[Any, Any], offset: ClockOffset = AHEAD) -> np.ndarray[Any, Any]:
    return np.frombuffer(convert_records(records.tobytes(), offset, records.dtype), dtype=records.dtype)


def test_samples_of_a_clock_that_is_ahead_are_converted() -> None:
    local = made.samples([made.sample(1.0, 1.5), made.sample(2.0, 2.25)])
    remote = local.copy()
    for name in MOMENTS[SAMPLE]:
        remote[name] += AHEAD_NS
    assert convert(remote).tolist() == local.tolist()


def test_a_report_is_converted_and_its_durations_stay() -> None:
    report = made.report(cpu_ns=5, loop_lag_p99_ns=6, send_delay_p99_ns=7, longest_heartbeat_gap_ns=8)
    moments = ("started_monotonic_ns", "warm_up_end_ns", "measure_end_ns")
    remote = made.report(
        cpu_ns=5,
        loop_lag_p99_ns=6,
        send_delay_p99_ns=7,
        longest_heartbeat_gap_ns=8,
        **{name: getattr(report, name) + AHEAD_NS for name in moments},
    )
    converted = convert_report(remote, AHEAD)
    durations = ("cpu_ns", "loop_lag_p99_ns", "send_delay_p99_ns", "longest_heartbeat_gap_ns", "load_end_ns")
    for name in (*moments, *durations):
        assert getattr(converted, name) == getattr(report, name)
    assert converted.clock_offsets == (AHEAD,)


@pytest.mark.parametrize("drift_ppm", [20, -20, 200])
def test_a_drifting_clock_is_right_within_an_hour_where_a_constant_offset_is_not(drift_ppm: int) -> None:
    start_ns, gained_ns = 5 * 10**12, HOUR_NS * drift_ppm // 10**6
    local = start_ns + np.arange(0, HOUR_NS + 1, HOUR_NS // 16, dtype=np.int64)
    samples = np.zeros(len(local), dtype=SAMPLE)
    samples["scheduled_ns"] = samples["done_ns"] = local + AHEAD_NS + (local - start_ns) * drift_ppm // 10**6

    def worst_error_ns(offset: ClockOffset) -> int:
        return int(np.abs(convert(samples, offset)["done_ns"] - local).max())

    middle_ns = AHEAD_NS + gained_ns // 2
    constant = clock(middle_ns, start_ns, middle_ns, start_ns + HOUR_NS)
    assert worst_error_ns(constant) >= abs(gained_ns) // 2 - 1000 >= 35_000_000
    assert worst_error_ns(clock(AHEAD_NS, start_ns, AHEAD_NS + gained_ns, start_ns + HOUR_NS)) <= 1000


def test_no_time_is_converted_to_no_time() -> None:
    samples = made.samples([made.sample(1.0, 1.5)])
    samples["sent_ns"] = 0
    assert convert(samples, clock(5, 0, 5, 1))["sent_ns"].tolist() == [0]


def test_cpu_marks_are_converted_and_their_durations_stay() -> None:
    marks = np.array([(AHEAD_NS + 7, 5, 6), (AHEAD_NS + 9, 50, 60)], dtype=CPU_MARK)
    assert convert(marks).tolist() == [(7, 5, 6), (9, 50, 60)]


def test_a_file_arrives_as_it_was_sent_and_its_records_on_our_clock(tmp_path: Path) -> None:
    records = np.zeros(PIECE_BYTES // SAMPLE.itemsize + 3, dtype=SAMPLE)
    records["done_ns"] = AHEAD_NS + np.arange(1, len(records) + 1)
    (tmp_path / "sent").write_bytes(records.tobytes() + b"cut off")
    for name in ("samples-3.bin", "load-3.json"):
        receive_file(tmp_path / name, partial(read_piece, tmp_path / "sent"), AHEAD)
    assert np.fromfile(tmp_path / "samples-3.bin", SAMPLE)["done_ns"].tolist() == list(range(1, len(records) + 1))
    assert (tmp_path / "load-3.json").read_bytes() == (tmp_path / "sent").read_bytes()


@pytest.mark.parametrize("pieces", [0, 1, 2])
def test_a_file_of_whole_pieces_arrives_completely(tmp_path: Path, pieces: int) -> None:
    content = bytes(pieces * PIECE_BYTES)
    (tmp_path / "sent").write_bytes(content)
    receive_file(tmp_path / "load-0.json", partial(read_piece, tmp_path / "sent"), AHEAD)
    assert (tmp_path / "load-0.json").read_bytes() == content


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"number": 2}, "x: received piece 2 instead of 0"),
        ({"data": b"", "error": "no such file"}, "x: no such file"),
    ],
)
def test_a_file_that_arrives_damaged_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    (tmp_path / "sent").write_bytes(b"0123456789")
    with pytest.raises(RunFailed, match=message):
        receive_file(tmp_path / "x", lambda number: read_piece(tmp_path / "sent", number) | change, AHEAD)


def test_a_file_of_known_size_has_that_size_and_replaces_none(tmp_path: Path) -> None:
    (tmp_path / "sent").write_bytes(b"0123456789")
    request = partial(read_piece, tmp_path / "sent")
    receive_file(tmp_path / "samples-0.bin", request, None, 10)
    assert (tmp_path / "samples-0.bin").read_bytes() == b"0123456789"
    for name, size_bytes, message in (
        ("less", 11, "10 bytes of 11"),
        ("more", 9, "10 bytes of 9"),
        ("sent", 10, "exists"),
    ):
        with pytest.raises(RunFailed, match=message):
            receive_file(tmp_path / name, request, None, size_bytes)


def reading(
    at_ns: int, offset_ns: int = AHEAD_NS, *, their_lead_ns: int = 7 * 10**18, our_lead_ns: int = 10**18
) -> ClockReading:
    return ClockReading(
        at_ns=at_ns, offset_ns=offset_ns, round_trip_ns=100, their_lead_ns=their_lead_ns, our_lead_ns=our_lead_ns
    )


def test_realtime_of_another_machine_is_converted_there_and_back() -> None:
    offset = realtime_offset(2, "m", reading(10**9), reading(10**9 + HOUR_NS, AHEAD_NS + 10**6))
    assert (offset.worker, offset.machine, offset.round_trip_ns) == (2, "m", 100)
    ours = np.array([10**18 + 10**9 + HOUR_NS * part // 4 for part in range(5)])
    theirs = [10**9 + HOUR_NS * part // 4 + AHEAD_NS + 7 * 10**18 + 10**6 * part // 4 for part in range(5)]
    assert [offset.to_theirs(int(moment)) for moment in ours] == theirs
    assert np.abs(offset.to_ours(np.array(theirs)) - ours).max() <= 1


def test_a_clock_that_is_set_during_a_run_makes_it_invalid() -> None:
    before = reading(10**9)
    realtime_offset(0, "m", before, reading(10**10, their_lead_ns=before.their_lead_ns + 10**6))
    with pytest.raises(InvalidRun, match=r"the clock of m was set by \+5\.000 s during the run"):
        realtime_offset(0, "m", before, reading(10**10, their_lead_ns=before.their_lead_ns + 5 * 10**9))
    with pytest.raises(InvalidRun, match=r"the clock of this machine was set by -5\.000 s"):
        realtime_offset(0, "m", before, reading(10**10, our_lead_ns=before.our_lead_ns - 5 * 10**9))


def test_the_last_piece_of_a_large_file_is_not_late(tmp_path: Path) -> None:
    with (tmp_path / "sent").open("wb") as file:
        # 20 GB without a block on the disk.
        file.truncate(20 * 2**30)
    began = time.monotonic()
    assert len(read_piece(tmp_path / "sent", 20 * 2**30 // PIECE_BYTES)["data"]) == 20 * 2**30 % PIECE_BYTES
    assert time.monotonic() - began < 5


def test_a_file_of_any_size_needs_the_memory_of_some_pieces(tmp_path: Path) -> None:
    def request_piece(number: int) -> dict[str, Any]:
        return {"number": number, "data": bytes(PIECE_BYTES if number < 50 else 0)}

    tracemalloc.start()
    try:
        receive_file(tmp_path / "samples-0.bin", request_piece, AHEAD)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (tmp_path / "samples-0.bin").stat().st_size == 50 * PIECE_BYTES
    assert peak_bytes < 8 * PIECE_BYTES


def test_a_full_disk_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "sent").write_bytes(b"0123456789")
    (tmp_path / "x").symlink_to("/dev/full")
    with pytest.raises(RunFailed, match=r"/x: cannot be written \(No space left on device\)"):
        receive_file(tmp_path / "x", partial(read_piece, tmp_path / "sent"), AHEAD)


def test_a_piece_holds_whole_records() -> None:
    assert [PIECE_BYTES % record.itemsize for record in RECORDS.values()] == [0] * len(RECORDS)


def test_the_types_name_the_times_of_a_clock() -> None:
    moments = {"started_monotonic_ns", "warm_up_end_ns", "measure_end_ns", "load_end_ns"}
    assert set(monotonic_fields(WorkerReport)) == moments
    assert MOMENTS == {
        SAMPLE: ("scheduled_ns", "sent_ns", "written_ns", "first_byte_ns", "done_ns"),
        CPU_MARK: ("at_ns",),
        EVENT_LOOP_STALL: ("start_ns", "end_ns"),
    }
