"""Whether a run's numbers may be believed: bytes and documents counted at both ends, promises of the link kept."""

from __future__ import annotations

from collections.abc import Mapping

from ingest_bench.analysis import samples as load
from ingest_bench.analysis.samples import Samples
from ingest_bench.model.load import WorkerReport
from ingest_bench.model.results import RunRecord, Value

# The numbers that must be what the load sent, each with who took it.
_READERS = {"bytes_read": "the JVM read", "sink_bytes_read": "the sink counted", "kernel_bytes_read": "the kernel gave"}


def verdict(
    record: RunRecord,
    samples: Samples,
    report: WorkerReport | None,
    values: Mapping[str, Value],
    queries: Samples | None = None,
) -> list[str]:
    """The reasons why this run is invalid; none for a valid one.

    Bytes: what the senders gave to the kernel on the load's connections, from the first byte of the first request to
    the last byte of the last one, heads included, queries included and warm-up included, is what the JVM read from
    those connections. What the sink counted itself, and what the kernel gave to reads, is held to the same.
    Answers are not part of it. Only requests that got no answer (a reset, a timeout, the end of the run) may miss,
    each at most its own bytes, those of its earlier attempts included.

    Documents: what the server acknowledged, without those that replaced one with the same id, is what it counts in the
    index. Only documents of requests without an
    answer may be there in addition: acknowledged ones must all be there, whatever the network did.

    A number that nobody could take (None) is not compared.
    """
    reasons = [
        f"promise broken: {promise.name} was promised as {promise.promised} ({promise.tolerance}), "
        f"measured {promise.measured}"
        for promise in record.promises
        if not promise.kept
    ]
    if report is None:
        return [*reasons, "the load worker left no report"]
    if not len(samples):
        return [*reasons, "no request was sent"]
    open_requests = load.unanswered(samples)
    may_miss = int(open_requests["bytes_sent"].sum())
    if queries is not None:
        may_miss += int(load.unanswered(queries)["bytes_sent"].sum())
    for column, who in _READERS.items():
        reasons += _bytes(values, column, who, may_miss)
    reasons += _own_reads(values)
    undecided = open_requests["documents"] - open_requests["documents_acked"] - open_requests["documents_failed"]
    reasons += _documents(values, int(undecided.sum()))
    window = load.window_of(report)
    if not (_done(samples, window) & load.outcome(samples, "ok", "partial", "rejected")).any():
        reasons.append("no request was answered within the measurement")
    if queries is not None and not (_done(queries, window) & load.outcome(queries, "ok")).any():
        reasons.append("no query was answered within the measurement")
    return reasons


def _done(samples: Samples, window: load.Window) -> Samples:
    """Which samples ended within the measurement, as booleans."""
    inside: Samples = (samples["done_ns"] >= window.start_ns) & (samples["done_ns"] < window.end_ns)
    return inside


def _bytes(values: Mapping[str, Value], column: str, who: str, may_miss: int) -> list[str]:
    sent, read = values.get("bytes_sent"), values.get(column)
    if not isinstance(sent, int) or not isinstance(read, int):
        return []
    if sent - may_miss <= read <= sent:
        return []
    without = f" (requests without an answer: at most {may_miss:,} bytes)" if may_miss else ""
    return [f"bytes: the load wrote {sent:,}, {who} {read:,}, {read - sent:+,}{without}"]


def _own_reads(values: Mapping[str, Value]) -> list[str]:
    """The sink's own counts beside the recording's. Fewer bytes: it was asked before the last ones came."""
    names = ("sink_reads", "reads_recorded", "sink_bytes_read", "bytes_read")
    found = [value for value in map(values.get, names) if isinstance(value, int)]
    if len(found) < len(names):
        return []
    own, recorded, own_bytes, recorded_bytes = found
    if own_bytes < recorded_bytes or (own, own_bytes) == (recorded, recorded_bytes):
        return []
    return [f"reads: the sink made {own:,} of {own_bytes:,} bytes, {recorded:,} of {recorded_bytes:,} were recorded"]


def _documents(values: Mapping[str, Value], may_be_more: int) -> list[str]:
    acked, counted = values.get("documents_acked"), values.get("documents_counted")
    if not isinstance(acked, int) or not isinstance(counted, int):
        return []
    repeated = values.get("documents_repeated")
    expected = acked - (repeated if isinstance(repeated, int) else 0)
    if expected <= counted <= expected + may_be_more:
        return []
    without = f" (requests without an answer: at most {may_be_more:,} more)" if may_be_more else ""
    again = f" ({acked - expected:,} of them again)" if acked != expected else ""
    return [f"documents: {acked:,} acknowledged{again}, {counted:,} counted, {counted - expected:+,}{without}"]
