"""Offset of the server's clock from the load's, bounded by the bytes of each connection, without a clock protocol.

A read that returns a request's first byte ends after this byte was sent, and before the response ends. Sent and read
bytes are counted per connection, so the bounds do not depend on symmetric network delays.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ingest_bench.analysis.run import sample_columns as load
from ingest_bench.analysis.run.sample_columns import Samples, SampleSource
from ingest_bench.model.results import Note, ProbeOutput, Reading
from ingest_bench.model.samples import ClockOffset, WorkerReport

# Java 11 and 17 cut the start of each chunk of a recording to whole milliseconds: reads of Java 11.0.13 ended up to
# 0.9 ms before their bytes were sent.
_RECORDER_NS = 5_000_000
_CONNECTION_FIELDS = ("local_port", "user", "address")
_REQUEST_FIELDS = (*_CONNECTION_FIELDS, "sent_ns", "done_ns", "bytes_sent", "bytes_unanswered")


@dataclass(frozen=True, slots=True)
class ClockBound:
    """Limits of the server's CLOCK_REALTIME minus the load's; *low_ns* exceeds *high_ns* if a clock was stepped."""

    low_ns: int
    high_ns: int

    def to_offset(self, node: int, machine: str, round_trip_ns: int, report: WorkerReport) -> ClockOffset:
        """Return the best estimate of the offset of a node's clock during the whole load.

        The lower limit is early by the fastest processing of a request, the upper one late only by the fastest way of
        a first byte to the server, half of *round_trip_ns*: with bulks that took 0.9 s the middle was wrong by 461 ms.
        """
        offset_ns = max(self.high_ns - round_trip_ns // 2, (self.low_ns + self.high_ns) // 2)
        lead_ns = report.realtime_minus_monotonic_ns
        return ClockOffset(
            worker=node,
            machine=machine,
            offset_before_ns=offset_ns,
            measured_before_at_ns=report.started_monotonic_ns + lead_ns,
            offset_after_ns=offset_ns,
            measured_after_at_ns=report.measure_end_ns + lead_ns,
            round_trip_ns=2 * max(abs(self.high_ns - offset_ns), abs(offset_ns - self.low_ns)),
        )


def bound_clock_offset(
    samples: SampleSource, reads: Samples, report: WorkerReport, *, is_encrypted: bool = False
) -> ClockBound | None:
    """Return the limits by all connections whose sent bytes equal the *reads* (`READ_FIELDS`); None without any.

    None over TLS, where more bytes are read than were sent before encryption, and for a library (Kafka), which sends
    some between requests. Other bytes differ behind NAT or a proxy, and after a retry on another connection. Only the
    end of the last request may be unread, on a port of one connection that read all others. A port with overlapping
    requests is left out: it belongs to several connections, or the order of their bytes is unknown.
    """
    if is_encrypted or not report.addresses or not len(samples):
        return None
    requests = _sort_requests(samples)
    reads = reads[reads["bytes"] > 0]
    reads = reads[np.lexsort((reads["end_ns"], reads["port"]))]
    ports, begins = np.unique(requests["local_port"], return_index=True)
    if not len(ports):
        return None
    lasts = np.append(begins[1:], len(requests["local_port"])) - 1
    read_ports, port_of_read = np.unique(reads["port"], return_inverse=True)
    read_bytes = dict(zip(read_ports.tolist(), np.bincount(port_of_read, reads["bytes"]), strict=True))
    unread = np.add.reduceat(requests["bytes_sent"], begins)
    unread -= np.array([read_bytes.get(port, 0) for port in ports.tolist()], dtype=np.int64)
    # A connection's first bytes may be a handshake, which `sent_ns` does not include: there its last byte counts.
    opens = np.any([np.diff(requests[name], prepend=-2) for name in _CONNECTION_FIELDS], axis=0)
    unanswered, connections = (np.add.reduceat(field, begins) for field in (requests["bytes_unanswered"], 1 * opens))
    may_miss = (connections == 1) & (unanswered == requests["bytes_unanswered"][lasts]) & (unread <= unanswered)
    overlaps = (requests["sent_ns"][1:] < requests["done_ns"][:-1]) & (np.diff(requests["local_port"]) == 0)
    matching = ports[(unread == 0) | ((unread > 0) & may_miss)]
    matching = np.setdiff1d(matching, requests["local_port"][1:][overlaps])
    # From here on both sides have the same bytes, in the same order.
    requests["bytes_sent"][lasts] -= unread
    requests["opens"] = opens
    requests = {name: field[np.isin(requests["local_port"], matching)] for name, field in requests.items()}
    reads = reads[np.isin(reads["port"], matching)]
    ends_ns = reads["end_ns"] - report.realtime_minus_monotonic_ns
    read_until = np.cumsum(reads["bytes"], dtype=np.int64)
    sent_until = np.cumsum(requests["bytes_sent"])
    # The server has read all of these, and acknowledged them.
    answered = requests["is_answered"]
    if not answered.any():
        return None
    late_start = sent_until - np.where(requests["opens"], 1, requests["bytes_sent"])
    first = np.searchsorted(read_until, late_start[answered], side="right")
    # Not the read of its last byte: a server may respond before it has read all of a request, with 5 MB on a slow link
    # by half a second.
    head = np.searchsorted(read_until, (sent_until - requests["bytes_sent"])[answered], side="right")
    return ClockBound(
        low_ns=int((ends_ns[head] - requests["done_ns"][answered]).max()),
        high_ns=int((ends_ns[first] - requests["sent_ns"][answered]).min()),
    )


def _sort_requests(samples: SampleSource) -> dict[str, Samples]:
    """Return fields of all sent requests, by port and time. `is_answered`: acknowledged by a first response."""
    batches = [batch[batch["bytes_sent"] > 0] for batch in load.iterate_batches(samples)]
    order = np.lexsort([np.concatenate([batch[name] for batch in batches]) for name in ("sent_ns", "local_port")])
    requests = {name: np.concatenate([batch[name] for batch in batches])[order] for name in _REQUEST_FIELDS}
    is_answered = [
        load.has_outcome(batch, "ok", "partial") & (batch["attempts"] == 1) & (batch["status"] > 0) for batch in batches
    ]
    return requests | {"is_answered": np.concatenate(is_answered)[order]}


def clock_outputs(
    samples: SampleSource,
    reads: Samples,
    report: WorkerReport,
    converted_by: ClockOffset | None,
    *,
    is_encrypted: bool = False,
) -> Iterator[ProbeOutput]:
    """Yield the limits of the offset, and a note that invalidates a run whose clocks differed.

    *converted_by*: offset of the server's clock by which the times of *reads* were converted; None: it is ours.
    """
    bound = bound_clock_offset(samples, reads, report, is_encrypted=is_encrypted)
    if bound is not None:
        yield Reading("clock_offset_ms_min", bound.low_ns / 1e6)
        yield Reading("clock_offset_ms_max", bound.high_ns / 1e6)
        # Each limit may be wrong by half the round trip of a worker on another machine.
        error_ns = max((clock.round_trip_ns for clock in report.clock_offsets), default=0)
        if text := describe_clock_error(bound, error_ns + (converted_by.round_trip_ns // 2 if converted_by else 0)):
            yield Note(source="reads", text=text, invalidates=True)
    elif converted_by is not None:
        text = "the server's clock was verified by pings alone: on no connection do sent and read bytes agree"
        yield Note(source="reads", text=text)


def describe_clock_error(bound: ClockBound, error_ns: int = 0) -> str:
    """Describe that the server's clock was not the load's during the whole run; "" if it may have been.

    *error_ns*: error of the conversions from one clock to another.
    """
    low_ms, high_ms, error_ms = bound.low_ns / 1e6, bound.high_ns / 1e6, (_RECORDER_NS + error_ns) / 1e6
    step_ms, effect = low_ms - high_ms, "so its reads, pauses and stalls are at wrong times"
    if step_ms > error_ms:
        return f"clock stepped by at least {step_ms:,.1f} ms during the run, the server's or the load's, {effect}"
    if low_ms > error_ms or high_ms < -error_ms:
        return f"the server's clock differs from the load's by {low_ms:,.1f} to {high_ms:,.1f} ms, {effect}"
    return ""
