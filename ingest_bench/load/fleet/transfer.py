"""Messages of a worker to its master: checks, transfer of files in pieces, and conversion of clocks. Pure.

A worker runs on a machine that is not trusted. `find_fault` is called at the socket, before Locust or the master see a
message: a message that passes raises nothing later.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ingest_bench.errors import RunFailed
from ingest_bench.inputs.records import decode
from ingest_bench.load.figures import LoadFigures, check_figures
from ingest_bench.model.samples import MOMENTS, RECORDS, ClockOffset, WorkerReport
from ingest_bench.model.values import monotonic_fields

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

# Pieces of about 512 kB, one after the other: 10 MB/s at 50 ms RTT, and heartbeats wait for one piece only. A piece
# holds whole records of each type.
_RECORDS_BYTES = math.lcm(*(record.itemsize for record in RECORDS.values()))
PIECE_BYTES = 512 * 1024 // _RECORDS_BYTES * _RECORDS_BYTES
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

    phase: Literal["prepare", "prepared", "ready", "warm-up", "measure", "drain", "done", "failed"]
    documents: int = 0
    seconds_left: float | None = None
    figures: LoadFigures | None = None
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pong:
    """The time of a worker's clock."""

    asked_ns: int
    monotonic_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A piece of a file. One that is not full is the last one. CURVE authenticates it, so it has no checksum."""

    number: int
    data: Any
    error: str = ""
    """Why the file cannot be read; empty: it can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Heartbeat:
    """Locust's heartbeat. A worker never reports itself as missing."""

    state: Literal["ready", "spawning", "running", "cleanup", "stopping", "stopped"]
    current_cpu_usage: float
    current_memory_usage: int = 0


# None: no data. Locust's master knows more kinds, for workers that send users' statistics or their log.
_KINDS: Mapping[str, Any] = {
    "hello": Hello,
    "status": Status,
    "pong": Pong,
    "piece": Piece,
    "client_ready": str,
    "heartbeat": _Heartbeat,
    "quit": None,
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
        if (message.phase == "failed") != bool(message.error):
            raise ValueError("an error belongs to the phase `failed`, and only to it")
        if message.figures is not None:
            check_figures(message.figures)
    elif isinstance(message, Pong):
        if max(message.asked_ns, message.monotonic_ns) > _MAX_TIME_NS:
            raise ValueError("a time beyond any clock")
    elif isinstance(message, Piece) and (not isinstance(message.data, bytes) or len(message.data) > PIECE_BYTES):
        raise ValueError(f"data: not at most {PIECE_BYTES} bytes")


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


def read_piece(path: Path, number: int) -> dict[str, Any]:
    """Return a piece of a file as message data; RunFailed if it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(number * PIECE_BYTES)
            data = file.read(PIECE_BYTES)
    except OSError as error:
        raise RunFailed(f"cannot be read ({error.strerror})") from None
    return {"number": number, "data": data}


def receive_file(path: Path, request_piece: Callable[[int], Mapping[str, Any]], clock: ClockOffset) -> None:
    """Write a file that is requested in pieces, its records converted to our clock. RunFailed if it is incomplete."""
    record = RECORDS.get(path.name.partition("-")[0])
    try:
        with path.open("wb") as file:
            for number in itertools.count():
                piece = request_piece(number)
                if piece.get("error"):
                    raise RunFailed(f"{path.name}: {piece['error']}")
                if piece["number"] != number:
                    raise RunFailed(f"{path.name}: received piece {piece['number']} instead of {number}")
                data = piece["data"]
                file.write(data if record is None else convert_records(data, clock, record))
                if len(data) < PIECE_BYTES:
                    break
    except OSError as error:
        raise RunFailed(f"{path}: cannot be written ({error.strerror})") from None
