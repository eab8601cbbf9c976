"""What a load keeps: of each request ticket, and of its workers' CPU; and what may become of a ticket."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple, get_type_hints

import numpy as np

from ingest_bench.model.values import Clock, moments

# As numpy writes the types of a record: little-endian, so many bytes.
_Int64 = Annotated[int, "<i8"]
_Moment = Annotated[int, "<i8", Clock()]
_Int32 = Annotated[int, "<i4"]
_Int16 = Annotated[int, "<i2"]


class Sample(NamedTuple):
    """One ticket, however often it was tried and however it ended. Times: CLOCK_MONOTONIC of its worker's machine."""

    planned_ns: _Moment
    """When it was due."""
    sent_ns: _Moment
    """The first byte of the first attempt; `done_ns` where there was none."""
    written_ns: _Moment
    """When the kernel had taken the last byte of the last attempt; `done_ns` where it never did."""
    first_byte_ns: _Moment
    """The first byte of the last attempt's answer, interim answers aside; `done_ns` where none came."""
    done_ns: _Moment
    """The end of the last attempt's answer, its failure, or the end of the load."""
    bytes_sent: _Int64
    """What the kernel took in all attempts together, heads included."""
    bytes_unanswered: _Int64
    """Of these, those of attempts of which nobody knows how much the server read: without an answer, with one of a
    broken server, or with a refusal that ended the connection."""
    documents: _Int32
    """Offered: each counted once, however often it was sent."""
    documents_acked: _Int32
    """In all attempts together."""
    documents_failed: _Int32
    """For good: neither what was sent again is among them, nor what some attempt may have stored all the same."""
    attempts: _Int32
    """0: it was never sent."""
    status: _Int16
    """Of the last attempt's answer; 0 without one."""
    outcome: _Int16
    """Its place in OUTCOMES."""
    user: _Int32
    """-1: nobody took it."""
    address: _Int16
    """Of the server, by its place in the load's report: where the last attempt went; -1: it was never sent."""
    local_port: _Int32
    """Of the connection of the last attempt; 0: there was none."""


class CpuMark(NamedTuple):
    """What the process of a load worker had used until a moment: a mark at its start, each second, and at its end."""

    at_ns: _Moment
    """CLOCK_MONOTONIC of its machine."""
    user_ns: _Int64
    system_ns: _Int64


class Standstill(NamedTuple):
    """When the event loop of a load worker did not come around: it neither sent nor took answers."""

    start_ns: _Moment
    """CLOCK_MONOTONIC of its machine; it may have begun up to 50 ms before, the period of the timer."""
    end_ns: _Moment


def _on_disk(record: Any) -> np.dtype[Any]:
    """How a record is on disk, without gaps."""
    return np.dtype(
        [(name, kind.__metadata__[0]) for name, kind in get_type_hints(record, include_extras=True).items()]
    )


SAMPLE = _on_disk(Sample)
CPU_MARK = _on_disk(CpuMark)
STANDSTILL = _on_disk(Standstill)
# As they are in run.json of schema 3: without `written_ns`.
SAMPLE_3 = np.dtype([(name, SAMPLE[name]) for name in Sample._fields if name != "written_ns"])
# By the beginning of a file's name: what its records are.
RECORDS: Mapping[str, np.dtype[Any]] = {
    "samples": SAMPLE,
    "queries": SAMPLE,
    "cpu": CPU_MARK,
    "standstills": STANDSTILL,
}
# Of each, the fields that are moments of the worker's clock.
MOMENTS: Mapping[np.dtype[Any], tuple[str, ...]] = {
    SAMPLE: moments(Sample),
    CPU_MARK: moments(CpuMark),
    STANDSTILL: moments(Standstill),
}

# `ok`: every document was acknowledged. `partial`: some were, or the server said of each one why not. `rejected`: none
# was, by 429. `broken-answer`: not HTTP, or not the answer to a bulk. `cut-off`: the load ended before the answer, or
# before it was sent.
OUTCOMES = ("ok", "partial", "rejected", "http-error", "connection-error", "timeout", "cut-off", "broken-answer")


def response_times_ns(samples: np.ndarray[Any, np.dtype[Any]]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """From when each ticket was due to its end; its shape is that of the samples."""
    found: np.ndarray[Any, np.dtype[np.int64]] = samples["done_ns"] - samples["planned_ns"]
    return found


def service_times_ns(samples: np.ndarray[Any, np.dtype[Any]]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """From the first byte of each ticket's first attempt to the end of its last one; 0 where no byte was sent.

    With several attempts the pauses between them are in it.
    """
    # A try that the kernel took nothing of has begun all the same.
    found: np.ndarray[Any, np.dtype[np.int64]] = (samples["done_ns"] - samples["sent_ns"]) * (samples["bytes_sent"] > 0)
    return found
