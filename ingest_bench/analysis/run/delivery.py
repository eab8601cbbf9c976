"""What became of each acknowledged document, by its number: delivered, delivered twice, still inside, or lost.

The load gives each document a number that no other one of the run has (`documents.ids`): the n-th document of a user
is `user + n * users`. So the samples say which numbers were acknowledged, and a server that can be read back says
which ones it has.

What a node says (`raw/delivered.bin`) are three sets of numbers: delivered, delivered more than once, and still inside.
Each is a bit a number, the lowest bit of the first byte first, with its length in bytes before it (64 bits,
little-endian).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingest_bench.analysis.numbers import histogram
from ingest_bench.analysis.run import sample_columns
from ingest_bench.analysis.run.sample_columns import Samples, Tickets
from ingest_bench.model.results import Counters, RunRecord, Value
from ingest_bench.nearest_rank import percentile
from ingest_bench.units import count_of

Bits = np.ndarray[Any, np.dtype[np.bool_]]
# What nodes count of their whole lives, by our columns.
_COUNTS = {
    "forwarded_documents": "forwarded",
    "dropped_documents": "dropped",
    "returned_documents": "returned",
    "forwards_failed": "forwards_failed",
}
_RATES = {"accepted_per_s": "accepted", "delivered_per_s": "delivered", "forwards_per_s": "forwards"}
_SETS = 3
_LENGTH_BYTES = 8


@dataclass(frozen=True, slots=True, eq=False)
class ReadBack:
    """All nodes together: of each number whether it was delivered, more than once, or is still inside."""

    delivered: Bits
    again: Bits
    inside: Bits


def read(told: Sequence[bytes]) -> ReadBack:
    """What these nodes say; ValueError for what is cut off."""
    nodes = [list(_sets(one)) for one in told]
    size = max((len(bits) for sets in nodes for bits in sets), default=0)
    delivered, again, inside = (np.zeros(size, dtype=np.bool_) for _ in range(_SETS))
    for one, twice, within in nodes:
        again[: len(one)] |= delivered[: len(one)] & one
        delivered[: len(one)] |= one
        again[: len(twice)] |= twice
        inside[: len(within)] |= within
    return ReadBack(delivered, again, inside & ~delivered)


def values(back: ReadBack, tickets: Tickets, users: int) -> dict[str, Value]:
    """The columns of what was acknowledged beside what is there. Each acknowledged document is in one of three."""
    acked = np.zeros(len(back.delivered), dtype=np.bool_)
    beyond = 0
    for numbers in _acked(tickets, users):
        known = numbers < len(acked)
        acked[numbers[known]] = True
        # No node has ever heard of these.
        beyond += int((~known).sum())
    return {
        "delivered_documents": int((acked & back.delivered).sum()),
        "inside_documents": int((acked & back.inside).sum()),
        "lost_documents": int((acked & ~back.delivered & ~back.inside).sum()) + beyond,
        "delivered_twice": int(back.again.sum()),
        "delivered_unacknowledged": int((back.delivered & ~acked).sum()),
    }


def cap(server: Mapping[str, Any], nodes: int) -> float | None:
    """The forwards in a second of nodes whose workers wait for the batch delay in each round; None without one."""
    workers, delay_ns = server.get("workers"), server.get("batch_delay_ns")
    if not isinstance(workers, int) or not isinstance(delay_ns, int) or delay_ns <= 0:
        return None
    return workers * 1e9 / delay_ns * nodes * (nodes - 1)


def own(record: RunRecord, nodes: int, start_ns: int | None, end_ns: int | None) -> dict[str, Value]:
    """What the nodes counted: of their whole lives, and of the measurement's full seconds where they know these."""
    counters = record.counters
    if "forwarded" not in counters:
        return {}
    found: dict[str, Value] = {"forwards_cap_per_s": cap(record.server, nodes)}
    for column, name in _COUNTS.items():
        if isinstance(count := counters.get(name), int):
            found[column] = count
    seconds, latencies = counters.get("seconds"), counters.get("latency_us")
    if start_ns is None or end_ns is None or not isinstance(seconds, dict) or not isinstance(latencies, dict):
        return found
    first, end = -(-start_ns // 10**9), end_ns // 10**9
    if end > first:
        within = [seconds.get(str(second), {}) for second in range(first, end)]
        for column, name in _RATES.items():
            found[column] = sum(one.get(name, 0) for one in within) / (end - first)
        times = histogram.merge(
            [{int(us): count for us, count in latencies.get(str(second), {}).items()} for second in range(first, end)]
        )
        found["delivery_times"] = sum(times.values())
        for column, percent in (("delivery_ms_p50", 50), ("delivery_ms_p99", 99)):
            value = percentile(times, percent)
            found[column] = None if value is None else value / 1e3
    return found


def complaints(counters: Counters) -> list[str]:
    """Why the nodes' own account cannot be believed: what was accepted is delivered, dropped or inside.

    A batch without an answer may have been taken: then its documents may be there twice.
    """
    names = ("accepted", "delivered", "dropped", "inside", "unsure")
    numbers = [count for name in names if isinstance(count := counters.get(name), int)]
    if len(numbers) < len(names):
        return []
    accepted, delivered, dropped, inside, unsure = numbers
    more = delivered + dropped + inside - accepted
    if 0 <= more <= unsure:
        return []
    without = f" (batches without an answer: at most {unsure:,} more)" if unsure else ""
    said = f"{delivered:,} are delivered, {dropped:,} dropped and {inside:,} inside"
    return [f"account: the server accepted {accepted:,} documents, {said}, {more:+,}{without}"]


def remarks(found: Mapping[str, Value]) -> Iterator[str]:
    """What is to know beside the numbers: a loss is a result."""
    lost, acked, dropped = (found.get(name) for name in ("lost_documents", "documents_acked", "dropped_documents"))
    if isinstance(lost, int) and lost:
        said = f", {dropped:,} dropped by what the server says" if isinstance(dropped, int) else ""
        yield f"{lost:,} of {acked:,} acknowledged documents are lost{said}"
    twice = found.get("delivered_twice")
    if isinstance(twice, int) and twice:
        yield f"delivered more than once: {count_of(twice, 'document')}"
    unacknowledged = found.get("delivered_unacknowledged")
    if isinstance(unacknowledged, int) and unacknowledged:
        yield f"delivered though nobody acknowledged it: {count_of(unacknowledged, 'document')}"


def _sets(one: bytes) -> Iterator[Bits]:
    at = 0
    for _ in range(_SETS):
        length = int.from_bytes(one[at : at + _LENGTH_BYTES], "little")
        at += _LENGTH_BYTES
        part = one[at : at + length]
        at += length
        if len(one) < at:
            raise ValueError("it is cut off")
        yield np.unpackbits(np.frombuffer(part, dtype=np.uint8), bitorder="little").astype(np.bool_)


def _acked(tickets: Tickets, users: int) -> Iterator[Samples]:
    """The numbers of the acknowledged documents. A request is acknowledged as a whole or not at all."""
    given = np.zeros(users, dtype=np.int64)
    for piece, _ in sample_columns.pieces(tickets):
        sent = piece[(piece["user"] >= 0) & (piece["documents"] > 0)]
        if sent["user"].max(initial=0) >= users:
            raise ValueError(f"a sample of user {int(sent['user'].max())}, and there are {users}")
        sent = sent[np.argsort(sent["user"], kind="stable")]
        documents, user = sent["documents"].astype(np.int64), sent["user"]
        before = np.cumsum(documents) - documents
        # Of a user's first ticket here, how many documents the others before it have.
        others = before[np.searchsorted(user, user)]
        first = given[user] + before - others
        np.add.at(given, user, documents)
        acked = sent["documents_acked"] == documents
        yield _spread(first[acked], documents[acked], user[acked], users)


def _spread(first: Samples, documents: Samples, user: Samples, users: int) -> Samples:
    """Each number of these tickets, whose documents are one after the other of their user's."""
    total = int(documents.sum())
    begins = np.cumsum(documents) - documents
    place = np.arange(total) - np.repeat(begins, documents) + np.repeat(first, documents)
    found: Samples = np.repeat(user.astype(np.int64), documents) + place * users
    return found
