"""Whether a run's numbers may be believed: bytes and documents counted at both ends, promises of the link kept."""

from __future__ import annotations

from collections.abc import Mapping

from ingest_bench.analysis.run import delivery
from ingest_bench.analysis.run import sample_columns as load
from ingest_bench.analysis.run.sample_columns import Samples, Tickets
from ingest_bench.model.load import WorkerReport
from ingest_bench.model.results import Reason, RunRecord, Value

# The numbers that must be what the load sent, each with who took it.
_READERS = {"bytes_read": "the JVM read", "sink_bytes_read": "the sink counted", "kernel_bytes_read": "the kernel gave"}


def verdict(
    record: RunRecord,
    samples: Tickets,
    report: WorkerReport | None,
    values: Mapping[str, Value],
    queries: Tickets | None = None,
) -> list[Reason]:
    """The reasons why this run is invalid; none for a valid one.

    Bytes: what the senders gave to the kernel on the load's connections, from the first byte of the first request to
    the last byte of the last one, heads included, queries included and warm-up included, is what the JVM read from
    those connections. What the sink counted itself, and what the kernel gave to reads, is held to the same.
    Answers are not part of it. Only attempts that got no answer (a reset, a timeout, the end of the run), one from a
    broken server, or a refusal that ended the connection or was the last answer on it, may miss, each at most its own
    bytes.

    Documents: what the server acknowledged, without those that replaced one with the same id, is what it counts in the
    index. Only those of which nobody said what became of them may be there in addition: of an attempt without an
    answer, or with one of a broken server, whatever came of a later attempt. Acknowledged ones must all be there,
    whatever the network did. A server that takes documents before they are where they belong counts what it took; what
    it then lost is a result (`delivery`), as long as its own account holds: what it took is delivered, dropped, or
    inside.

    A number that nobody could take (None) is not compared.
    """
    reasons = [
        Reason(
            "promise",
            f"promise broken: {promise.name} was promised as {promise.promised} ({promise.tolerance}), "
            f"measured {promise.measured}",
        )
        for promise in record.promises
        if promise.kept is False
    ]
    if report is None:
        return [*reasons, Reason("no report", "the load worker left no report")]
    if not len(samples):
        return [*reasons, Reason("nothing sent", "no request was sent")]
    may_miss = load.total(samples, _unanswered) + report.bytes_unread
    if queries is not None:
        may_miss += load.total(queries, _unanswered)
    read = [text for column, who in _READERS.items() for text in _bytes(values, column, who, may_miss)]
    reasons += (Reason("bytes", text) for text in (*read, *_own_reads(values)))
    reasons += (Reason("probe", text) for text in own_allocations(values))
    full = any(fault.kind == "full-disk" for fault in record.faults)
    counted = _documents(values, load.total(samples, _not_acknowledged if full else _undecided))
    reasons += (Reason("documents", text) for text in (*delivery.complaints(record.counters), *counted))
    window = load.window_of(report)
    if not _is_answered(samples, window, "ok", "partial", "rejected"):
        reasons.append(Reason("no answer", "no request was answered within the measurement"))
    if queries is not None and not _is_answered(queries, window, "ok"):
        reasons.append(Reason("no answer", "no query was answered within the measurement"))
    return reasons


def _unanswered(samples: Samples) -> Samples:
    bytes_unanswered: Samples = samples["bytes_unanswered"]
    return bytes_unanswered


def _undecided(samples: Samples) -> Samples:
    """Documents of which nobody said what became of them."""
    undecided: Samples = samples["documents"] - samples["documents_acked"] - samples["documents_failed"]
    return undecided


def _not_acknowledged(samples: Samples) -> Samples:
    """The same of a server whose disk was full: what it said to have failed it may find in its log of writes.

    OpenSearch 2.19.6 refused a bulk of 200 documents with its shard, and had 199 of them after it had opened that anew.
    """
    open_ones: Samples = samples["documents"] - samples["documents_acked"]
    return open_ones


def _is_answered(tickets: Tickets, window: load.Window, *outcomes: str) -> bool:
    """Whether any of them ended so within the measurement."""
    return any(
        (load.within(samples["done_ns"], window) & load.outcome(samples, *outcomes)).any()
        for samples, _ in load.pieces(tickets)
    )


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


def own_allocations(values: Mapping[str, Value]) -> list[str]:
    """Each direct buffer that the server counted is one that was recorded."""
    own, recorded = (values.get(name) for name in ("server_direct_allocations", "direct_allocations_recorded"))
    if own is None or recorded is None or own == recorded:
        return []
    return [f"direct buffers: the server allocated {own:,}, and {recorded:,} were recorded"]


def documents_expected(values: Mapping[str, Value]) -> int | None:
    """Acknowledged documents without those that replaced one: so many must be counted. None: nobody knows."""
    acked, repeated = values.get("documents_acked"), values.get("documents_repeated")
    if not isinstance(acked, int):
        return None
    return acked - (repeated if isinstance(repeated, int) else 0)


def _documents(values: Mapping[str, Value], may_be_more: int) -> list[str]:
    acked, counted = values.get("documents_acked"), values.get("documents_counted")
    expected = documents_expected(values)
    if not isinstance(acked, int) or not isinstance(counted, int) or expected is None:
        return []
    # By their numbers it is known which are lost, and that some are there more than once.
    lost, twice = values.get("lost_documents"), values.get("delivered_twice")
    least = expected - (lost if isinstance(lost, int) else 0)
    if least <= counted and (twice or counted <= expected + may_be_more):
        return []
    without = f" (requests without an answer: at most {may_be_more:,} more)" if may_be_more else ""
    again = f" ({acked - expected:,} of them again)" if acked != expected else ""
    return [f"documents: {acked:,} acknowledged{again}, {counted:,} counted, {counted - expected:+,}{without}"]
