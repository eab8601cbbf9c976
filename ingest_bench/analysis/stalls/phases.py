"""Where a request was: in the client, on the wire, read, worked on or answered. Pure.

| phase | from | to |
|---|---|---|
| client | planned | the first byte is given to the kernel |
| wire | there | the server's first read of it |
| reading | there | the server's last read: what is still on the wire meanwhile is in it |
| working | there | the answer's first byte |
| answer | there | the answer's last byte |

`writing` lies across them: from the first byte to the moment at which the kernel had taken the last one. It is long
where neither the wire nor the server took the bytes. Without the server's reads (probe `reads`) wire, reading and
working are one: `wire, reading and working`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ingest_bench.analysis.run import sample_columns as load
from ingest_bench.analysis.run.column import Column
from ingest_bench.analysis.run.sample_columns import Samples, Tickets
from ingest_bench.model.load import WorkerReport
from ingest_bench.model.results import Value
from ingest_bench.model.samples import response_times_ns

PHASES = ("client", "wire", "reading", "working", "answer")
UNSEEN = "wire, reading and working"
# The slowest requests of a measurement, by their share, and at least so many of them.
_SLOWEST, _LEAST = 0.01, 5
_WHERE = {
    "client": "before its first byte was given to the kernel",
    "writing": "until the kernel had taken its last byte",
    "wire": "from its first byte to the server's first read of it",
    "reading": "from the server's first read of it to the last",
    "working": "from the server's last read of it to the first byte of the answer",
    "answer": "from the first byte of the answer to the last",
}
COLUMNS = tuple(
    Column(f"slowest_{name}_ms", f"the slowest hundredth of all requests: how long one was in the mean {where}")
    for name, where in _WHERE.items()
)


@dataclass(frozen=True, slots=True)
class Reads:
    """The server's reads of one connection that gave bytes: when each was over, on the clock of the samples."""

    end_ns: Samples


def by_port(reads: Samples | None, realtime_minus_monotonic_ns: int) -> Mapping[int, Reads]:
    """The reads of each connection of the load (`READ_FIELDS`), in their order; none where nobody saw them."""
    if reads is None or not len(reads):
        return {}
    full = reads[reads["bytes"] > 0]
    if not len(full):
        return {}
    full = full[np.lexsort((full["end_ns"], full["port"]))]
    ports, starts = np.unique(full["port"], return_index=True)
    ends = np.split(full["end_ns"] - realtime_minus_monotonic_ns, starts[1:])
    return {int(port): Reads(end) for port, end in zip(ports, ends, strict=True)}


def split_ns(samples: Samples, reads: Mapping[int, Reads]) -> dict[str, Samples]:
    """How long each of these requests was in each phase; -1 where nobody knows."""
    planned, sent, first, done = (samples[f"{name}_ns"] for name in ("planned", "sent", "first_byte", "done"))
    begun, over = (np.full(len(samples), -1, dtype=np.int64) for _ in range(2))
    for port in np.unique(samples["local_port"]).tolist():
        if port not in reads:
            continue
        of = np.flatnonzero(samples["local_port"] == port)
        ends = reads[port].end_ns
        left, right = np.searchsorted(ends, sent[of]), np.searchsorted(ends, first[of], side="right") - 1
        known = right >= left
        begun[of[known]], over[of[known]] = ends[left[known]], ends[right[known]]
    unknown = begun < 0
    parts = {
        "client": sent - planned,
        "writing": samples["written_ns"] - sent,
        "wire": np.where(unknown, -1, begun - sent),
        "reading": np.where(unknown, -1, over - begun),
        "working": np.where(unknown, -1, first - over),
        "answer": done - first,
    }
    # Of a request that was never sent, or of several attempts, there is nothing to be divided.
    plain = (samples["attempts"] == 1) & (samples["bytes_sent"] > 0)
    return {name: np.where(plain, part, -1) for name, part in parts.items()}


def of_longest(slow: Samples, reads: Mapping[int, Reads]) -> tuple[tuple[str, int], ...]:
    """The phases of the longest of these requests; none where it was not sent once."""
    if not len(slow):
        return ()
    place = int(np.argmax(response_times_ns(slow)))
    found = {name: int(part[0]) for name, part in split_ns(slow[place : place + 1], reads).items()}
    if found["client"] < 0:
        return ()
    if found["wire"] >= 0:
        return tuple((name, found[name]) for name in PHASES)
    one = slow[place]
    return (
        ("client", found["client"]),
        (UNSEEN, int(one["first_byte_ns"] - one["sent_ns"])),
        ("answer", found["answer"]),
    )


def values(tickets: Tickets, report: WorkerReport, reads: Samples | None) -> dict[str, Value]:
    """The columns about the slowest requests that were under way within the measurement and were answered."""
    window = load.window_of(report)
    slowest, total = np.empty(0), 0
    for samples, _ in load.pieces(tickets):
        counted = samples[load.under_way(samples, window) & (samples["status"] > 0)]
        total += len(counted)
        slowest = counted if not len(slowest) else np.concatenate((slowest, counted))
        slowest = _slowest(slowest, max(_LEAST, -(-len(tickets) // 100)))
    if total < _LEAST:
        return dict.fromkeys(column.name for column in COLUMNS)
    slowest = _slowest(slowest, max(_LEAST, int(total * _SLOWEST)))
    parts = split_ns(slowest, by_port(reads, report.realtime_minus_monotonic_ns))
    return {f"slowest_{name}_ms": _mean_ms(part) for name, part in parts.items()}


def _slowest(samples: Samples, most: int) -> Samples:
    if len(samples) <= most:
        return samples
    return samples[np.argpartition(samples["planned_ns"] - samples["done_ns"], most)[:most]]


def _mean_ms(part: Samples) -> float | None:
    known = part[part >= 0]
    # Of most of them, or the mean is of those that happen to be known.
    return float(np.mean(known)) / 1e6 if len(known) > len(part) / 2 else None
