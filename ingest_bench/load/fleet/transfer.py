"""Messages of a worker to its master: checks, transfer of files in pieces, and conversion of clocks. Pure.

A worker runs on a machine that is not trusted. `find_fault` is called at the socket, before Locust or the master see a
message: a message that passes raises nothing later.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from ingest_bench.errors import InvalidRun, RunFailed, SpecError
from ingest_bench.inputs.records import check, decode
from ingest_bench.load.figures import LoadFigures, check_figures
from ingest_bench.model.network import InterfaceName, LinkCheck
from ingest_bench.model.samples import MOMENTS, RECORDS, ClockOffset, WorkerReport
from ingest_bench.model.target import Endpoint, Pid
from ingest_bench.model.values import Between, Label, Length, Line, Name, Pattern, monotonic_fields

# Pieces of about 512 kB, one after the other: 10 MB/s at 50 ms RTT, and heartbeats wait for one piece only. A piece
# holds whole records of each type.
_RECORDS_BYTES = math.lcm(*(record.itemsize for record in RECORDS.values()))
PIECE_BYTES = 512 * 1024 // _RECORDS_BYTES * _RECORDS_BYTES
# The largest message is a plan; larger ones are not ours.
MAX_MESSAGE_BYTES = 64 * 1024**2
# The double of a time, and the difference of two, still fit 64 bits.
_MAX_TIME_NS = 2**62
# CLOCK_REALTIME minus CLOCK_MONOTONIC of a machine changes only when its clock is set. Reading both costs 0.1 us; the
# rest is for a machine without a free CPU.
_MAX_LEAD_CHANGE_NS = 10**6

_FileName = Annotated[str, Pattern(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}", "the name of a probe's file")]
_LinkColumn = Literal["wire_packets", "qdisc_drops", "loss_ppm", "idle_rtt_ms", "idle_rtt_samples"]
_FileSize = Annotated[int, Between(0, 2**62)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """The JVM that an observer watches, and its machine."""

    pid: Pid
    """Its pid on that machine."""
    began: Label
    """Identifies its process, as `jvm.attach.read_start_id` returns it."""
    java: Annotated[str, Pattern(r"[0-9]{1,3}(?:[._+-][A-Za-z0-9._+-]{0,100})?", "a version of Java")]
    """The version of its JDK, such as "17.0.15"."""
    collector: Line
    heap_bytes: Annotated[int, Between(0, 2**62)] | None
    """None: it does not report its maximum."""
    addresses: Annotated[tuple[Endpoint, ...], Length(0, 10_000)]
    """Where clients may reach it."""
    host: Annotated[dict[Name, Line], Length(0, 100)]
    """Settings of its machine."""
    unavailable: Annotated[dict[Name, Line], Length(0, 100)]
    """Probes that cannot watch there, with the reason."""
    may_shape: InterfaceName | None = None
    """The interface of its machine that a run may shape."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """A worker has joined."""

    machine: str
    pid: int
    version: str
    watched: Watched | None = None
    """None: it is a load worker, not an observer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """Progress of a worker's load."""

    phase: Literal["prepare", "prepared", "ready", "warm-up", "measure", "drain", "done", "failed"]
    documents: int = 0
    seconds_left: float | None = None
    figures: LoadFigures | None = None
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """State of an observer in a run."""

    run: int
    """The number in the request of the run: a late state of an earlier run is not one of this run."""
    phase: Literal["watching", "stopped", "failed"]
    realtime_lead_ns: Annotated[int, Between(0, _MAX_TIME_NS)] = 0
    """CLOCK_REALTIME minus CLOCK_MONOTONIC of its machine."""
    files: Annotated[dict[_FileName, _FileSize], Length(0, 1000)] = field(default_factory=dict)
    """Bytes of each file of its probes."""
    has_ended: bool = False
    """The JVM has ended."""
    link: dict[_LinkColumn, int | None] = field(default_factory=dict)
    """Columns of the interface that it shaped."""
    link_checks: Annotated[tuple[LinkCheck, ...], Length(0, 100)] = ()
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
    "observed": Observed,
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
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        # msgpack has types that JSON has not, also as keys.
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
    if isinstance(message, (Status, Observed)) and (message.phase == "failed") != bool(message.error):
        raise ValueError("an error belongs to the phase `failed`, and only to it")
    if isinstance(message, (Hello, Observed)):
        try:
            check(message, "message")
        except SpecError as error:
            raise ValueError(str(error)) from None
    if isinstance(message, Status):
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


def read_realtime_lead_ns() -> int:
    """Return CLOCK_REALTIME minus CLOCK_MONOTONIC of this machine, from the quickest of several readings."""
    readings = []
    for _ in range(5):
        before_ns, realtime_ns, after_ns = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        readings.append((after_ns - before_ns, realtime_ns - (before_ns + after_ns) // 2))
    return min(readings)[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockReading:
    """Clocks of another machine and of this one at one moment."""

    offset_ns: int
    """Of its CLOCK_MONOTONIC from ours."""
    round_trip_ns: int
    at_ns: int
    """Our CLOCK_MONOTONIC."""
    their_lead_ns: int
    our_lead_ns: int
    """CLOCK_REALTIME minus CLOCK_MONOTONIC."""


def realtime_offset(node: int, machine: str, before: ClockReading, after: ClockReading) -> ClockOffset:
    """Return the offset of a machine's CLOCK_REALTIME from ours; InvalidRun if either was set meanwhile."""
    for name, change_ns in (
        (f"the clock of {machine}", after.their_lead_ns - before.their_lead_ns),
        ("the clock of this machine", after.our_lead_ns - before.our_lead_ns),
    ):
        if abs(change_ns) > _MAX_LEAD_CHANGE_NS:
            raise InvalidRun(
                f"{name} was set by {change_ns / 1e9:+.3f} s during the run: times of both machines cannot be "
                "compared. Let the time service slew the clock instead of stepping it, and repeat the run."
            )
    return ClockOffset(
        worker=node,
        machine=machine,
        offset_before_ns=before.offset_ns + before.their_lead_ns - before.our_lead_ns,
        measured_before_at_ns=before.at_ns + before.our_lead_ns,
        offset_after_ns=after.offset_ns + after.their_lead_ns - after.our_lead_ns,
        measured_after_at_ns=after.at_ns + after.our_lead_ns,
        round_trip_ns=max(before.round_trip_ns, after.round_trip_ns),
    )


def convert_records(data: bytes, clock: ClockOffset, record: np.dtype[Any]) -> bytes:
    """Convert the times of records to our clock; 0 means no time. An incomplete last record (full disk) is dropped."""
    records = np.frombuffer(data, dtype=record, count=len(data) // record.itemsize).copy()
    for name in MOMENTS[record]:
        records[name] = np.where(records[name] == 0, 0, clock.to_ours(records[name]))
    return records.tobytes()


def convert_report(report: WorkerReport, clock: ClockOffset) -> WorkerReport:
    """Convert the times of a worker's report to our clock."""
    times: dict[str, Any] = {name: getattr(report, name) for name in monotonic_fields(WorkerReport)}
    for name, remote_ns in times.items():
        times[name] = int(clock.to_ours(np.array([remote_ns], dtype=np.int64))[0]) if remote_ns else 0
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


def receive_file(
    path: Path,
    request_piece: Callable[[int], Mapping[str, Any]],
    clock: ClockOffset | None,
    size_bytes: int | None = None,
) -> None:
    """Write a file that is requested in pieces. RunFailed if it is incomplete.

    Records of a load are converted to our clock; without a *clock* a file is written as it is. A file of known size is
    new, and has that size: a larger one is not received to its end.
    """
    record = None if clock is None else RECORDS.get(path.name.partition("-")[0])
    received_bytes = 0
    try:
        with path.open("wb" if size_bytes is None else "xb") as file:
            for number in itertools.count():
                piece = request_piece(number)
                if piece.get("error"):
                    raise RunFailed(f"{path.name}: {piece['error']}")
                if piece["number"] != number:
                    raise RunFailed(f"{path.name}: received piece {piece['number']} instead of {number}")
                data = piece["data"]
                received_bytes += len(data)
                is_last = len(data) < PIECE_BYTES
                if size_bytes is not None and (
                    received_bytes > size_bytes or (is_last and received_bytes < size_bytes)
                ):
                    raise RunFailed(f"{path.name}: received {received_bytes} bytes of {size_bytes}")
                file.write(data if clock is None or record is None else convert_records(data, clock, record))
                if is_last:
                    break
    except OSError as error:
        raise RunFailed(f"{path}: cannot be written ({error.strerror})") from None
