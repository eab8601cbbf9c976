"""Messages of a worker to its master: checks, transfer of files in pieces, and conversion of clocks. Pure.

A worker runs on a machine that is not trusted. `find_fault` is called at the socket, before Locust or the master see a
message: a message that passes raises nothing later.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ingest_bench.errors import RunFailed
from ingest_bench.inputs.records import decode
from ingest_bench.load import figures
from ingest_bench.model.samples import MOMENTS, RECORDS, ClockOffset, WorkerReport
from ingest_bench.model.values import monotonic_fields

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

# Pieces of about 256 kB, 8 under way: 2 x 210 MB took 0.7 to 1.9 s on loopback with heartbeats on time. A piece holds
# whole records of each type.
_RECORDS_BYTES = math.lcm(*(record.itemsize for record in RECORDS.values()))
PIECE_BYTES = 256 * 1024 // _RECORDS_BYTES * _RECORDS_BYTES
CREDITS = 8
# The largest message is a plan; larger ones are not ours.
MAX_MESSAGE_BYTES = 64 * 1024**2
# The double of a time, and the difference of two, still fit 64 bits.
_MAX_TIME_NS = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """A worker has joined."""

    machine: str
    pid: int
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """Progress of a worker's load."""

    phase: Literal["prepared", "ready", "warm-up", "measure", "drain", "done", "failed"]
    users: dict[str, int] = dataclasses.field(default_factory=dict)
    documents: int = 0
    seconds_left: float | None = None
    figures: Any = None
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pong:
    """The time of a worker's clock."""

    asked_ns: int
    monotonic_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A piece of a file; the last one has the checksum and size of all pieces."""

    number: int
    data: Any = None
    sha256: str = ""
    bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Heartbeat:
    """Locust's heartbeat. A worker never reports itself as missing."""

    state: Literal["ready", "spawning", "running", "cleanup", "stopping", "stopped"]
    current_cpu_usage: float
    current_memory_usage: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spawned:
    user_classes_count: dict[str, int]
    user_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """`locust.stats.StatsEntryDict`."""

    name: str | None
    method: str | None
    last_request_timestamp: float | None
    start_time: float
    num_requests: int
    num_none_requests: int
    num_failures: int
    total_response_time: float
    max_response_time: float
    min_response_time: float | None
    total_content_length: int
    response_times: Any
    num_reqs_per_sec: Any
    num_fail_per_sec: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class _Error:
    """`locust.stats.StatsErrorDict`."""

    name: str
    method: str
    error: str
    occurrences: int
    first_seen: float | None = None
    last_seen: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stats:
    stats: tuple[_Entry, ...]
    stats_total: _Entry
    errors: dict[str, _Error]
    user_classes_count: dict[str, int]
    user_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _UserException:
    msg: str
    traceback: str


# None: no data. Locust's master knows more kinds, for workers that fetch a locustfile or send their log.
_KINDS: Mapping[str, Any] = {
    "hello": Hello,
    "status": Status,
    "pong": Pong,
    "piece": Piece,
    "client_ready": str,
    "client_stopped": None,
    "heartbeat": _Heartbeat,
    "stats": _Stats,
    "spawning": None,
    "spawning_complete": _Spawned,
    "quit": None,
    "exception": _UserException,
}


def find_fault(kind: Any, data: Any) -> str:
    """Return what is wrong with a message that no worker of this version sends; empty: nothing."""
    if not isinstance(kind, str) or kind not in _KINDS:
        return "a message of an unknown kind"
    try:
        _check(_KINDS[kind], data)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else error
        return f"a message {kind!r}: {reason}"
    return ""


def _check(expected: Any, data: Any) -> None:
    if expected is None:
        if data is not None:
            raise ValueError("has data, and should have none")
        return
    _check_numbers(data)
    message = decode(expected, data)
    if isinstance(message, str) and not message:
        raise ValueError("an empty text")
    if isinstance(message, Status):
        _check_status(message, data)
    elif isinstance(message, Pong):
        if max(message.asked_ns, message.monotonic_ns) > _MAX_TIME_NS:
            raise ValueError("a time beyond any clock")
    elif isinstance(message, Piece):
        _check_piece(message)
    elif isinstance(message, _Stats):
        for entry in (*message.stats, message.stats_total):
            for counts in (entry.response_times, entry.num_reqs_per_sec, entry.num_fail_per_sec):
                _check_counts(counts)


def _check_status(status: Status, data: Mapping[str, Any]) -> None:
    if (status.phase == "prepared") != ("users" in data) or (status.phase == "prepared") != bool(status.users):
        raise ValueError("users belong to the phase `prepared`, and only to it")
    if (status.phase == "failed") != bool(status.error):
        raise ValueError("an error belongs to the phase `failed`, and only to it")
    if status.figures is not None:
        figures.check_figures_json(status.figures)


def _check_piece(piece: Piece) -> None:
    if piece.data is not None and (not isinstance(piece.data, bytes) or len(piece.data) > PIECE_BYTES):
        raise ValueError(f"data: not at most {PIECE_BYTES} bytes")
    if (piece.data is None) != bool(piece.sha256):
        raise ValueError("a piece requires data, and the last one a checksum")


def _check_counts(counts: Any) -> None:
    """Check a histogram of Locust: its keys are whole numbers, which JSON does not have."""
    if not (isinstance(counts, dict) and all(type(number) is int for pair in counts.items() for number in pair)):
        raise ValueError("these are not counts")


def _check_numbers(value: Any) -> None:
    """Check that no number is infinite and no count negative, so that `int` and sums take all of them."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("a number that is not finite")
    if isinstance(value, int) and value < 0:
        raise ValueError("a negative number")
    if isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            _check_numbers(item)


def to_local_times(clock: ClockOffset, remote_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Convert times of another machine's CLOCK_MONOTONIC to ours, with an offset that changes evenly.

    With one constant offset, times at both ends of an hour would be 36 ms off for clocks that differ by 20 ppm.
    """
    since_ns = remote_ns - (clock.measured_before_at_ns + clock.offset_before_ns)
    span_ns = clock.measured_after_at_ns + clock.offset_after_ns
    span_ns -= clock.measured_before_at_ns + clock.offset_before_ns
    rate = (clock.offset_after_ns - clock.offset_before_ns) / max(1, span_ns)
    # Floats are exact to a microsecond per year here: only the small product is added.
    drift_ns = np.rint(since_ns * rate).astype(np.int64)
    return np.asarray(remote_ns - clock.offset_before_ns - drift_ns, dtype=np.int64)


def convert_records(data: bytes, clock: ClockOffset, record: np.dtype[Any]) -> bytes:
    """Convert the times of records to our clock; 0 means no time. An incomplete last record (full disk) is dropped."""
    records = np.frombuffer(data, dtype=record, count=len(data) // record.itemsize).copy()
    for name in MOMENTS[record]:
        records[name] = np.where(records[name] == 0, 0, to_local_times(clock, records[name]))
    return records.tobytes()


def convert_report(report: WorkerReport, clock: ClockOffset) -> WorkerReport:
    """Convert the times of a worker's report to our clock."""
    times: dict[str, Any] = {name: getattr(report, name) for name in monotonic_fields(WorkerReport)}
    for name, remote_ns in times.items():
        times[name] = int(to_local_times(clock, np.array([remote_ns], dtype=np.int64))[0]) if remote_ns else 0
    realtime_minus_monotonic_ns = time.time_ns() - time.monotonic_ns()
    return dataclasses.replace(
        report, **times, realtime_minus_monotonic_ns=realtime_minus_monotonic_ns, clock_offsets=(clock,)
    )


def split_file(path: Path) -> Iterator[dict[str, Any]]:
    """Yield a file in pieces, each as message data; the last one has the checksum."""
    checksum, size_bytes, number = hashlib.sha256(), 0, 0
    with path.open("rb") as file:
        while data := file.read(PIECE_BYTES):
            checksum.update(data)
            size_bytes += len(data)
            yield {"number": number, "data": data}
            number += 1
    yield {"number": number, "sha256": checksum.hexdigest(), "bytes": size_bytes}


class IncomingFile:
    """A file that arrives in pieces. With a clock its records are converted as they come."""

    def __init__(self, path: Path, clock: ClockOffset | None) -> None:
        self._path = path
        self._clock = clock
        self._record = RECORDS.get(path.name.partition("-")[0], np.dtype("u1"))
        self._checksum = hashlib.sha256()
        self._bytes = self._number = 0
        self._file = path.open("wb")

    def add(self, piece: dict[str, Any]) -> bool:
        """Write a piece. Return True if the file is complete; RunFailed if it differs from what was sent."""
        if piece["number"] != self._number:
            raise RunFailed(f"{self._path.name}: received piece {piece['number']} instead of {self._number}")
        self._number += 1
        try:
            if "data" in piece:
                self._write(piece["data"])
                return False
            self._file.close()
        except OSError as error:
            raise RunFailed(f"{self._path}: cannot be written ({error.strerror})") from None
        if (piece["bytes"], piece["sha256"]) != (self._bytes, self._checksum.hexdigest()):
            raise RunFailed(
                f"{self._path.name}: the {self._bytes} bytes received differ from the {piece['bytes']} bytes sent"
            )
        return True

    def close(self) -> None:
        """Close the file; idempotent."""
        with contextlib.suppress(OSError):
            self._file.close()

    def _write(self, data: bytes) -> None:
        self._checksum.update(data)
        self._bytes += len(data)
        self._file.write(data if self._clock is None else convert_records(data, self._clock, self._record))
