"""Phases of a request: in the client, on the wire, read, processed, received.

| phase | from | to |
|---|---|---|
| client | scheduled | the first byte is given to the kernel |
| wire | end of `client` | the server's first read of it |
| reading | end of `wire` | the server's last read, including what is still on the wire meanwhile |
| processing | end of `reading` | the response's first byte |
| receiving | end of `processing` | the response's last byte |

`sending` overlaps them: from the first byte until the kernel has accepted the last one. It is long if neither the wire
nor the server accepts the bytes. Without the server's reads (probe `reads`) wire, reading and processing are one phase.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ingest_bench.analysis.run import sample_columns as load
from ingest_bench.analysis.run.sample_columns import Samples, SampleSource
from ingest_bench.model.results import ColumnValue
from ingest_bench.model.samples import WorkerReport, response_times_ns

PHASES = ("client", "wire", "reading", "processing", "receiving")
UNSPLIT = "wire, reading and processing"
# The share of a measurement's requests that counts as the slowest, and their minimum number.
_SLOWEST, _MIN_SLOWEST = 0.01, 5


def reads_by_port(reads: Samples | None, realtime_minus_monotonic_ns: int) -> Mapping[int, Samples]:
    """Return the end times of the server's non-empty reads (`READ_FIELDS`) for each connection, in order.

    Times are on the clock of the samples. Empty without recorded reads.
    """
    if reads is None or not len(reads):
        return {}
    with_data = reads[reads["bytes"] > 0]
    if not len(with_data):
        return {}
    with_data = with_data[np.lexsort((with_data["end_ns"], with_data["port"]))]
    ports, starts = np.unique(with_data["port"], return_index=True)
    ends = np.split(with_data["end_ns"] - realtime_minus_monotonic_ns, starts[1:])
    return {int(port): end_ns for port, end_ns in zip(ports, ends, strict=True)}


def phase_times_ns(samples: Samples, reads: Mapping[int, Samples]) -> dict[str, Samples]:
    """Return how long each request was in each phase; -1 if unknown."""
    scheduled, sent, first, done = (samples[f"{name}_ns"] for name in ("scheduled", "sent", "first_byte", "done"))
    first_read, last_read = (np.full(len(samples), -1, dtype=np.int64) for _ in range(2))
    for port in np.unique(samples["local_port"]).tolist():
        if port not in reads:
            continue
        of_port = np.flatnonzero(samples["local_port"] == port)
        ends = reads[port]
        left = np.searchsorted(ends, sent[of_port])
        right = np.searchsorted(ends, first[of_port], side="right") - 1
        has_reads = right >= left
        first_read[of_port[has_reads]] = ends[left[has_reads]]
        last_read[of_port[has_reads]] = ends[right[has_reads]]
    unknown = first_read < 0
    times_ns = {
        "client": sent - scheduled,
        "sending": samples["written_ns"] - sent,
        "wire": np.where(unknown, -1, first_read - sent),
        "reading": np.where(unknown, -1, last_read - first_read),
        "processing": np.where(unknown, -1, first - last_read),
        "receiving": done - first,
    }
    # A request without or with several attempts cannot be split.
    is_single = (samples["attempts"] == 1) & (samples["bytes_sent"] > 0)
    return {name: np.where(is_single, time_ns, -1) for name, time_ns in times_ns.items()}


def longest_phases(slow: Samples, reads: Mapping[int, Samples]) -> tuple[tuple[str, int], ...]:
    """Return the phases of the longest of these requests; empty unless it had exactly one attempt."""
    if not len(slow):
        return ()
    place = int(np.argmax(response_times_ns(slow)))
    times_ns = {name: int(time_ns[0]) for name, time_ns in phase_times_ns(slow[place : place + 1], reads).items()}
    if times_ns["client"] < 0:
        return ()
    if times_ns["wire"] >= 0:
        return tuple((name, times_ns[name]) for name in PHASES)
    unsplit_ns = int(slow[place]["first_byte_ns"] - slow[place]["sent_ns"])
    return (("client", times_ns["client"]), (UNSPLIT, unsplit_ns), ("receiving", times_ns["receiving"]))


def phase_columns(samples: SampleSource, report: WorkerReport, reads: Samples | None) -> dict[str, ColumnValue]:
    """Return the columns about the slowest requests in flight within the measurement that got a response."""
    window = load.measurement_window(report)
    slowest, total = np.empty(0), 0
    for batch in load.iterate_batches(samples):
        answered = batch[load.is_in_flight(batch, window) & (batch["status"] > 0)]
        total += len(answered)
        slowest = answered if not len(slowest) else np.concatenate((slowest, answered))
        slowest = load.keep_longest(slowest, max(_MIN_SLOWEST, -(-len(samples) // 100)))
    if total < _MIN_SLOWEST:
        return {f"slowest_{name}_ms": None for name in (*PHASES, "sending")}
    slowest = load.keep_longest(slowest, max(_MIN_SLOWEST, int(total * _SLOWEST)))
    times_ns = phase_times_ns(slowest, reads_by_port(reads, report.realtime_minus_monotonic_ns))
    columns: dict[str, ColumnValue] = {}
    for name, time_ns in times_ns.items():
        valid = time_ns[time_ns >= 0]
        # If most times are unknown, the others are a biased part.
        columns[f"slowest_{name}_ms"] = float(np.mean(valid)) / 1e6 if len(valid) > len(time_ns) / 2 else None
    return columns
