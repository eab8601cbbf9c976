"""Delivery of acknowledged documents, by document number: delivered, delivered twice, pending, or lost.

The load gives each document a number that is unique in the run (`documents.ids`): the n-th document of a user is
`user + n * users`. So the samples say which numbers were acknowledged, and a server that can be read back says which
ones it has.

A node's report (`raw/delivered.bin`) consists of three bit sets of numbers: delivered, delivered more than once, and
pending. Each is preceded by its length in bytes (64 bits, little-endian); the lowest bit of the first byte is number 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingest_bench.analysis import quantiles
from ingest_bench.analysis.run.sample_columns import Samples, SampleSource, iterate_batches
from ingest_bench.model.results import ColumnValue, Counters, RunRecord, percentile
from ingest_bench.units import format_count

Bits = np.ndarray[Any, np.dtype[np.bool_]]
# Counters of a node since its start, by column.
_COUNTERS = {
    "forwarded_documents": "forwarded",
    "dropped_documents": "dropped",
    "returned_documents": "returned",
    "forwards_failed": "forwards_failed",
}
_RATES = {"accepted_per_s": "accepted", "delivered_per_s": "delivered", "forwards_per_s": "forwards"}
_SETS = 3
_LENGTH_BYTES = 8


@dataclass(frozen=True, slots=True, eq=False)
class Delivered:
    """Reports of all nodes combined, by document number."""

    delivered: Bits
    repeated: Bits
    pending: Bits


def parse_delivered(reports: Sequence[bytes]) -> Delivered:
    """Return the combined reports of the nodes; ValueError for a truncated report."""
    nodes = [list(_parse_sets(report)) for report in reports]
    size = max((len(bits) for sets in nodes for bits in sets), default=0)
    delivered, repeated, pending = (np.zeros(size, dtype=np.bool_) for _ in range(_SETS))
    for once, twice, inside in nodes:
        repeated[: len(once)] |= delivered[: len(once)] & once
        delivered[: len(once)] |= once
        repeated[: len(twice)] |= twice
        pending[: len(inside)] |= inside
    return Delivered(delivered, repeated, pending & ~delivered)


def _parse_sets(report: bytes) -> Iterator[Bits]:
    at = 0
    for _ in range(_SETS):
        length = int.from_bytes(report[at : at + _LENGTH_BYTES], "little")
        at += _LENGTH_BYTES
        part = report[at : at + length]
        at += length
        if len(report) < at:
            raise ValueError("the report is truncated")
        yield np.unpackbits(np.frombuffer(part, dtype=np.uint8), bitorder="little").astype(np.bool_)


def delivery_columns(reported: Delivered, samples: SampleSource, users: int) -> dict[str, ColumnValue]:
    """Return the columns that compare acknowledged with reported documents: each is delivered, pending or lost."""
    acked = np.zeros(len(reported.delivered), dtype=np.bool_)
    unreported = 0
    for numbers in _acked_numbers(samples, users):
        is_reported = numbers < len(acked)
        acked[numbers[is_reported]] = True
        # Numbers beyond the longest bit set are unknown to all nodes.
        unreported += int((~is_reported).sum())
    return {
        "delivered_documents": int((acked & reported.delivered).sum()),
        "pending_documents": int((acked & reported.pending).sum()),
        "lost_documents": int((acked & ~reported.delivered & ~reported.pending).sum()) + unreported,
        "delivered_twice": int(reported.repeated.sum()),
        "delivered_unacknowledged": int((reported.delivered & ~acked).sum()),
    }


def _acked_numbers(samples: SampleSource, users: int) -> Iterator[Samples]:
    """Yield the numbers of the acknowledged documents. A request is acknowledged completely or not at all."""
    next_number = np.zeros(users, dtype=np.int64)
    for batch in iterate_batches(samples):
        sent = batch[(batch["user"] >= 0) & (batch["documents"] > 0)]
        if sent["user"].max(initial=0) >= users:
            raise ValueError(f"a sample of user {int(sent['user'].max())}, but there are {users} users")
        sent = sent[np.argsort(sent["user"], kind="stable")]
        documents, user = sent["documents"].astype(np.int64), sent["user"]
        before = np.cumsum(documents) - documents
        # The documents of the users that are sorted before this one.
        of_others = before[np.searchsorted(user, user)]
        first = next_number[user] + before - of_others
        np.add.at(next_number, user, documents)
        is_acked = sent["documents_acked"] == documents
        first, documents, user = first[is_acked], documents[is_acked], user[is_acked]
        # Expand each request to the consecutive documents of its user.
        begins = np.cumsum(documents) - documents
        place = np.arange(int(documents.sum())) - np.repeat(begins, documents) + np.repeat(first, documents)
        yield np.repeat(user.astype(np.int64), documents) + place * users


def max_forwards_per_s(server: Mapping[str, Any], nodes: int) -> float | None:
    """Return the forwards per second of nodes whose workers wait for the batch delay each round; None without one."""
    workers, delay_ns = server.get("workers"), server.get("batch_delay_ns")
    if not isinstance(workers, int) or not isinstance(delay_ns, int) or delay_ns <= 0:
        return None
    return workers * 1e9 / delay_ns * nodes * (nodes - 1)


def server_columns(record: RunRecord, nodes: int, start_ns: int | None, end_ns: int | None) -> dict[str, ColumnValue]:
    """Return the nodes' own counters: since their start, and within the full seconds of the measurement."""
    counters = record.counters
    if "forwarded" not in counters:
        return {}
    columns: dict[str, ColumnValue] = {"forwards_cap_per_s": max_forwards_per_s(record.server, nodes)}
    columns |= {column: count for column, name in _COUNTERS.items() if isinstance(count := counters.get(name), int)}
    seconds, latencies = counters.get("seconds"), counters.get("latency_us")
    if start_ns is None or end_ns is None or not isinstance(seconds, dict) or not isinstance(latencies, dict):
        return columns
    measured = range(-(-start_ns // 10**9), end_ns // 10**9)
    if measured:
        for column, name in _RATES.items():
            columns[column] = sum(seconds.get(str(second), {}).get(name, 0) for second in measured) / len(measured)
        times_us = quantiles.merge_counts(
            {int(us): count for us, count in latencies.get(str(second), {}).items()} for second in measured
        )
        columns["delivery_samples"] = sum(times_us.values())
        for percent in (50, 99):
            value = percentile(times_us, percent)
            columns[f"delivery_ms_p{percent}"] = None if value is None else value / 1e3
    return columns


def describe_account_error(counters: Counters) -> str:
    """Describe that the nodes' account does not balance: accepted = delivered + dropped + pending. "" if it does.

    A batch without a response may have been accepted; then its documents may be there twice.
    """
    names = ("accepted", "delivered", "dropped", "inside", "unsure")
    numbers = [count for name in names if isinstance(count := counters.get(name), int)]
    if len(numbers) < len(names):
        return ""
    accepted, delivered, dropped, pending, unsure = numbers
    excess = delivered + dropped + pending - accepted
    if 0 <= excess <= unsure:
        return ""
    unanswered = f" (batches without a response: at most {unsure:,} more)" if unsure else ""
    account = f"{delivered:,} are delivered, {dropped:,} dropped and {pending:,} pending"
    return f"account: the server accepted {accepted:,} documents, {account}, {excess:+,}{unanswered}"


def describe_losses(values: Mapping[str, ColumnValue]) -> Iterator[str]:
    """Yield messages about lost, repeated and unacknowledged documents."""
    lost, acked, dropped = (values.get(name) for name in ("lost_documents", "documents_acked", "dropped_documents"))
    if isinstance(lost, int) and lost:
        reported = f", the server reports {dropped:,} as dropped" if isinstance(dropped, int) else ""
        yield f"{lost:,} of {acked:,} acknowledged documents are lost{reported}"
    for name, title in (
        ("delivered_twice", "delivered more than once"),
        ("delivered_unacknowledged", "delivered without an acknowledgement"),
    ):
        if isinstance(count := values.get(name), int) and count:
            yield f"{title}: {format_count(count, 'document')}"
