"""What is kept of one request ticket, and what may become of it."""

from __future__ import annotations

from typing import Annotated, NamedTuple, get_type_hints

import numpy as np

# As numpy writes the types of a record: little-endian, so many bytes.
_Int64 = Annotated[int, "<i8"]
_Int32 = Annotated[int, "<i4"]
_Int16 = Annotated[int, "<i2"]


class Sample(NamedTuple):
    """One ticket, however often it was tried and however it ended. Times are CLOCK_MONOTONIC of its worker's machine.

    Response time is done - planned, of every ticket. Service time is done - sent, of a ticket of which a byte was sent:
    from the first byte of the first attempt to the end of the last one, so with several attempts the pauses between
    them are in it.
    """

    planned_ns: _Int64
    """When it was due."""
    sent_ns: _Int64
    """The first byte of the first attempt; `done_ns` where there was none."""
    done_ns: _Int64
    """The end of the last attempt's answer, its failure, or the end of the load."""
    bytes_sent: _Int64
    """What the kernel took in all attempts together, heads included."""
    documents: _Int32
    """Offered: each counted once, however often it was sent."""
    documents_acked: _Int32
    """In all attempts together."""
    documents_failed: _Int32
    """For good: what was sent again is not among them."""
    attempts: _Int32
    """0: it was never sent."""
    status: _Int16
    """Of the last attempt's answer; 0 without one."""
    outcome: _Int16
    """Its place in OUTCOMES."""
    user: _Int32
    """-1: nobody took it."""


# How a sample is on disk, without gaps.
SAMPLE = np.dtype([(name, kind.__metadata__[0]) for name, kind in get_type_hints(Sample, include_extras=True).items()])
TIMES = tuple(name for name in Sample._fields if name.endswith("_ns"))

# `ok`: every document was acknowledged. `partial`: some were, or the server said of each one why not. `rejected`: none
# was, by 429. `broken-answer`: not HTTP, or not the answer to a bulk. `cut-off`: the load ended before the answer, or
# before it was sent.
OUTCOMES = ("ok", "partial", "rejected", "http-error", "connection-error", "timeout", "cut-off", "broken-answer")
