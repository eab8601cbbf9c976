"""What a worker may say to its master: the type of each message, ours and Locust's. Pure.

A worker runs on a machine of somebody else. `wrong` is asked at the socket, before Locust or the master look at a
message: one that is right raises nothing further on.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ingest_bench.inputs.decoding import decoded
from ingest_bench.load.fleet.transfer import PIECE_BYTES
from ingest_bench.load.live import figures


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """A worker has joined."""

    machine: str
    pid: int
    version: str
    seat: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """Where a worker's load is."""

    phase: Literal["prepared", "ready", "warm-up", "measure", "drain", "done", "failed"]
    users: dict[str, int] = dataclasses.field(default_factory=dict)
    documents: int = 0
    seconds_left: float | None = None
    figures: Any = None
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pong:
    """What a worker's clock says."""

    asked_ns: int
    monotonic_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A part of a file; the last one says what all of them are."""

    number: int
    data: Any = None
    sha256: str = ""
    bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Beat:
    """Locust's heartbeat. A worker does not say itself that it is missing."""

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
class _Raised:
    msg: str
    traceback: str


# Twice a time, and the difference of two, still are numbers of 64 bits.
_LATEST_NS = 2**62
# None: it has no data. What else Locust's master knows is for workers that fetch a locustfile or send their log.
_KINDS: Mapping[str, Any] = {
    "hello": Hello,
    "say": Said,
    "pong": Pong,
    "piece": Piece,
    "client_ready": str,
    "client_stopped": None,
    "heartbeat": _Beat,
    "stats": _Stats,
    "spawning": None,
    "spawning_complete": _Spawned,
    "quit": None,
    "exception": _Raised,
}


def wrong(kind: Any, data: Any) -> str:
    """What is wrong with a message, for one that no worker of ours sends; empty: nothing."""
    if not isinstance(kind, str) or kind not in _KINDS:
        return "a message of a kind that is not known here"
    try:
        _check(_KINDS[kind], data)
    except (ValueError, RecursionError) as error:
        said = "too many lists in lists" if isinstance(error, RecursionError) else error
        return f"a message {kind!r}: {said}"
    return ""


def _check(wanted: Any, data: Any) -> None:
    if wanted is None:
        if data is not None:
            raise ValueError("has data, and should have none")
        return
    _check_numbers(data)
    found = decoded(wanted, data)
    if isinstance(found, str) and not found:
        raise ValueError("an empty text")
    if isinstance(found, Said):
        _check_said(found, data)
    elif isinstance(found, Pong):
        if max(found.asked_ns, found.monotonic_ns) > _LATEST_NS:
            raise ValueError("no clock is so late")
    elif isinstance(found, Piece):
        _check_piece(found)
    elif isinstance(found, _Stats):
        for entry in (*found.stats, found.stats_total):
            for counts in (entry.response_times, entry.num_reqs_per_sec, entry.num_fail_per_sec):
                _check_counts(counts)


def _check_said(said: Said, data: Mapping[str, Any]) -> None:
    if (said.phase == "prepared") != ("users" in data) or (said.phase == "prepared") != bool(said.users):
        raise ValueError("users are told when they are prepared, and only then")
    if (said.phase == "failed") != bool(said.error):
        raise ValueError("a failure has a reason, and only a failure has")
    if said.figures is not None:
        figures.check_line(said.figures)


def _check_piece(piece: Piece) -> None:
    if piece.data is not None and (not isinstance(piece.data, bytes) or len(piece.data) > PIECE_BYTES):
        raise ValueError(f"data: these are not {PIECE_BYTES} bytes at most")
    if (piece.data is None) != bool(piece.sha256):
        raise ValueError("a piece has data, and the last one a checksum")


def _check_counts(counts: Any) -> None:
    """Locust's histograms: their keys are whole numbers, which JSON does not have."""
    if not (isinstance(counts, dict) and all(type(number) is int for pair in counts.items() for number in pair)):
        raise ValueError("these are no counts")


def _check_numbers(value: Any) -> None:
    """No number is infinite, and nothing that is counted is negative: `int` and a sum of many take them all then."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("a number that is not finite")
    if isinstance(value, int) and value < 0:
        raise ValueError("a negative number")
    if isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            _check_numbers(item)
