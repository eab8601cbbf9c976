"""Records that a load worker writes: one sample per arrival, CPU marks, event-loop stalls, and its report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple, get_type_hints

import numpy as np

from ingest_bench.model.values import MonotonicClock, MonotonicNs, monotonic_fields

# numpy's names of the types on disk: little-endian, size in bytes.
_Int64 = Annotated[int, "<i8"]
_Time = Annotated[int, "<i8", MonotonicClock()]
_Int32 = Annotated[int, "<i4"]
_Int16 = Annotated[int, "<i2"]


class Sample(NamedTuple):
    """One arrival, whatever its attempts and outcome. Times: CLOCK_MONOTONIC of the worker's machine."""

    scheduled_ns: _Time
    """When the request was due."""
    sent_ns: _Time
    """First byte of the first attempt; `done_ns` if there was no attempt."""
    written_ns: _Time
    """When the kernel had accepted the last byte of the last attempt; `done_ns` if it never did."""
    first_byte_ns: _Time
    """First byte of the last attempt's response, interim responses excluded; `done_ns` without a response."""
    done_ns: _Time
    """End of the last attempt's response, its failure, or the end of the load."""
    bytes_sent: _Int64
    """Bytes that the kernel accepted in all attempts together, headers included."""
    bytes_unanswered: _Int64
    """The part of `bytes_sent` that the server may not have read: attempts without a response, with a 5xx response, or
    with a rejection that closed the connection."""
    documents: _Int32
    """Documents offered, each counted once, however often it was sent."""
    documents_acked: _Int32
    """Documents acknowledged in all attempts together."""
    documents_failed: _Int32
    """Documents that failed permanently: neither resent nor possibly stored by any attempt."""
    attempts: _Int32
    """0: never sent."""
    status: _Int16
    """HTTP status of the last attempt's response; 0 without a response."""
    outcome: _Int16
    """Index in OUTCOMES."""
    user: _Int32
    """Number of the user; -1: no user took the arrival."""
    address: _Int16
    """Server address of the last attempt, as an index in `WorkerReport.addresses`; -1: never sent."""
    local_port: _Int32
    """Local port of the last attempt's connection; 0: no connection."""


class CpuMark(NamedTuple):
    """CPU time that a worker process has used: recorded at its start, each second, and at its end."""

    at_ns: _Time
    """CLOCK_MONOTONIC of its machine."""
    user_ns: _Int64
    system_ns: _Int64


class EventLoopStall(NamedTuple):
    """A span in which a worker's event loop did not run, so that it neither sent nor received."""

    start_ns: _Time
    """CLOCK_MONOTONIC of its machine. The stall may have begun up to 50 ms (the timer's period) earlier."""
    end_ns: _Time


def _disk_type(record: Any) -> np.dtype[Any]:
    """Return the packed numpy type of *record*."""
    return np.dtype(
        [(name, kind.__metadata__[0]) for name, kind in get_type_hints(record, include_extras=True).items()]
    )


SAMPLE = _disk_type(Sample)
CPU_MARK = _disk_type(CpuMark)
EVENT_LOOP_STALL = _disk_type(EventLoopStall)
# Record type by the prefix of the file's name.
RECORDS: Mapping[str, np.dtype[Any]] = {
    "samples": SAMPLE,
    "queries": SAMPLE,
    "cpu": CPU_MARK,
    "loop_stalls": EVENT_LOOP_STALL,
}
# Fields that are times on the worker's clock.
MOMENTS: Mapping[np.dtype[Any], tuple[str, ...]] = {
    SAMPLE: monotonic_fields(Sample),
    CPU_MARK: monotonic_fields(CpuMark),
    EVENT_LOOP_STALL: monotonic_fields(EventLoopStall),
}

# `ok`: every document was acknowledged. `partial`: some were, or the server gave a reason for each failure.
# `rejected`: 429 for all documents. `invalid-response`: not HTTP, or not the response to a bulk. `cut-off`: the load
# ended before the response, or before the request was sent.
OUTCOMES = ("ok", "partial", "rejected", "http-error", "connection-error", "timeout", "cut-off", "invalid-response")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockOffset:
    """Offset of another machine's clock from ours (positive: ahead), by which its times are converted to our clock.

    The clock is CLOCK_MONOTONIC of a load worker, or CLOCK_REALTIME of an observer. The offset is known to half a round
    trip. It is interpolated linearly between the two measurements.
    """

    worker: int
    """Number of the load worker, or of the observer's node; both from 0."""
    machine: str = ""
    """Host name, and the address that it joined from."""
    offset_before_ns: int = 0
    """Measured before the load."""
    measured_before_at_ns: int = 0
    """Time of that measurement, on our clock."""
    offset_after_ns: int = 0
    """Measured after the load."""
    measured_after_at_ns: int = 0
    round_trip_ns: int = 0

    def to_ours(self, remote_ns: np.ndarray[Any, np.dtype[np.int64]]) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Convert times of the other clock to ours.

        With one constant offset, times at both ends of an hour would be 36 ms off for clocks that differ by 20 ppm.
        """
        since_ns = remote_ns - (self.measured_before_at_ns + self.offset_before_ns)
        span_ns = self.measured_after_at_ns + self.offset_after_ns
        span_ns -= self.measured_before_at_ns + self.offset_before_ns
        rate = (self.offset_after_ns - self.offset_before_ns) / max(1, span_ns)
        # Floats are exact to a microsecond per year here: only the small product is added.
        drift_ns = np.rint(since_ns * rate).astype(np.int64)
        return np.asarray(remote_ns - self.offset_before_ns - drift_ns, dtype=np.int64)

    def to_theirs(self, our_ns: int) -> int:
        """Convert a time of our clock to the other clock."""
        span_ns = max(1, self.measured_after_at_ns - self.measured_before_at_ns)
        drift_ns = (self.offset_after_ns - self.offset_before_ns) * (our_ns - self.measured_before_at_ns) // span_ns
        return our_ns + self.offset_before_ns + drift_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """Report of a load worker at its end, in addition to its samples (`load.json`)."""

    started_monotonic_ns: MonotonicNs
    realtime_minus_monotonic_ns: int
    warm_up_end_ns: MonotonicNs
    measure_end_ns: MonotonicNs
    bytes_written: int
    """Bytes given to the kernel on the load's connections from start to end, headers included."""
    local_ports: tuple[int, ...]
    item_failures: dict[str, int]
    """Failed items of bulk responses by "status type", such as "429 es_rejected_execution_exception"."""
    item_reasons: dict[str, str] = field(default_factory=dict)
    """The server's reason for the first failed item of a "status type"."""
    cpu_ns: int
    """CPU time of all workers from start to end."""
    loop_lag_p99_ns: int
    """99th percentile of the lateness of a timer in the event loop, of the worst worker."""
    errors: tuple[str, ...]
    loop_lag_samples: int | None = None
    """Number of timer expiries behind `loop_lag_p99_ns`."""
    window_stalls: int = 0
    """HTTP/2: how often a sender waited because it had used up the server's window of a stream or connection."""
    window_stalled_ns: int = 0
    """Time of these waits, of all senders together."""
    stream_window_bytes: int = 0
    """HTTP/2: the server's window of each new stream; 0: unknown."""
    documents_resent: int = 0
    """Documents sent again, counted at each resend."""
    documents_repeated: int = 0
    """Acknowledged documents that reuse an id: they do not add to the index."""
    arrivals_waited: int = 0
    """Open loop: requests that were due when all users were busy."""
    arrivals_unsent: int = 0
    """The part of `arrivals_waited` that was never sent; they have samples with outcome `cut-off`."""
    send_delay_p99_ns: int = 0
    """Open loop: 99th percentile of the time from due until a user was free, the generator's own delay."""
    send_delay_samples: int | None = None
    """Number of requests behind `send_delay_p99_ns`, in the worst worker."""
    is_open_loop: bool = False
    load_end_ns: MonotonicNs = 0
    """End of the load if it continued after the measurement; else 0."""
    longest_heartbeat_gap_ns: int = 0
    """Longest time between two heartbeats of a worker. Heartbeats are sent each second: a larger gap is a pause."""
    clock_offsets: tuple[ClockOffset, ...] = ()
    """Offsets of the workers on other machines."""
    bytes_unread: int = 0
    """Bytes of requests that were refused as the last on their connection: the server may not have read them."""
    addresses: tuple[str, ...] = ()
    """Server addresses of the load, indexed by a sample's `address`. Empty if a library chose the node."""


def describe_item_failures(failures: Mapping[str, int], reasons: Mapping[str, str]) -> list[str]:
    """Return the three most frequent kinds of failed items with their counts, each with one reason of the server."""
    return [
        f"{count:,} x {kind}{f': {reason}' if (reason := reasons.get(kind)) else ''}"
        for kind, count in Counter(failures).most_common(3)
    ]


def response_times_ns(samples: np.ndarray[Any, np.dtype[Any]]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return done minus scheduled of each sample."""
    times_ns: np.ndarray[Any, np.dtype[np.int64]] = samples["done_ns"] - samples["scheduled_ns"]
    return times_ns


def service_times_ns(samples: np.ndarray[Any, np.dtype[Any]]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return done minus sent of each sample, pauses between attempts included; 0 if no byte was sent."""
    # An attempt of which the kernel accepted nothing has a `sent_ns`, too.
    was_sent = samples["bytes_sent"] > 0
    times_ns: np.ndarray[Any, np.dtype[np.int64]] = (samples["done_ns"] - samples["sent_ns"]) * was_sent
    return times_ns
