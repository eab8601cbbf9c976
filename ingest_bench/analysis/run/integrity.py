"""Integrity of a run: bytes and documents counted at both ends, link checks, losses and recovery after faults."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from ingest_bench.analysis.run import delivery
from ingest_bench.analysis.run import sample_columns as load
from ingest_bench.analysis.run.sample_columns import SECOND_NS, SampleSource
from ingest_bench.model.results import ColumnValue, FaultRecord, InvalidKind, InvalidReason, RunRecord, Series
from ingest_bench.model.samples import WorkerReport

# Columns that must equal the bytes that the load sent, and who counted them.
_READERS = {"bytes_read": "the JVM read", "sink_bytes_read": "the sink counted", "kernel_bytes_read": "the kernel gave"}
# Throughput has recovered at this share of the median before the first fault; seconds of a steady run differ, too.
BACK_SHARE = 0.9


def find_invalid_reasons(
    record: RunRecord,
    samples: SampleSource,
    report: WorkerReport | None,
    values: Mapping[str, ColumnValue],
    queries: SampleSource | None = None,
    *,
    is_encrypted: bool = False,
) -> list[InvalidReason]:
    """Return the reasons why this run is invalid; empty for a valid run.

    Bytes: what the senders gave to the kernel on the load's connections, headers, queries and warm-up included, must
    equal what the JVM read from these connections. The sink's count and the kernel's reads must equal it, too.
    Responses are not counted. Bytes may be missing only from attempts without a response (reset, timeout, end of the
    run), with a 5xx response, or with a rejection that closed the connection or was its last response; at most the
    bytes of these attempts. Over TLS (*is_encrypted*) the JVM reads the handshakes and the frames of records too, which
    are not counted when sent: it may read more.

    Documents: the acknowledged documents, without those that replaced one with the same id, must equal the documents in
    the index. The index may have more only if the outcome of documents is unknown: of an attempt without a response or
    with a 5xx response, whatever later attempts did. Acknowledged documents must all be there, whatever happened.
    A server that accepts documents before it delivers them counts the accepted ones. What it then loses is a result
    (`delivery`), provided its own account balances: accepted documents are delivered, dropped or pending.

    Unknown numbers (None) are not compared.
    """
    reasons = [
        InvalidReason(
            "link check",
            f"link check failed: {check.name}: expected {check.expected} ({check.tolerance}), "
            f"measured {check.measured}",
        )
        for check in record.link_checks
        if check.passed is False
    ]
    if report is None:
        return [*reasons, InvalidReason("no report", "the load worker left no report")]
    if not len(samples):
        return [*reasons, InvalidReason("nothing sent", "no request was sent")]
    may_be_more = load.sum_over(samples, lambda batch: batch["documents"] - batch["documents_acked"])
    if not any(fault.kind == "full-disk" for fault in record.faults):
        # OpenSearch 2.19.6 failed a bulk of 200 documents with its shard, because the disk was full, and had 199 of
        # them after reopening it. Otherwise failed documents do not reappear.
        may_be_more -= load.sum_over(samples, lambda batch: batch["documents_failed"])
    window = load.measurement_window(report)
    has_response = _has_response(samples, window, "ok", "partial", "rejected")
    has_reply = queries is None or _has_response(queries, window, "ok")
    texts: list[tuple[InvalidKind, str]] = [
        *(("bytes", text) for text in _check_bytes(samples, queries, report, values, is_encrypted)),
        ("probe", describe_allocation_mismatch(values)),
        ("documents", delivery.describe_account_error(record.counters)),
        ("documents", _describe_document_mismatch(values, may_be_more)),
        ("no response", "" if has_response else "no request was answered within the measurement"),
        ("no response", "" if has_reply else "no query was answered within the measurement"),
    ]
    return reasons + [InvalidReason(kind, text) for kind, text in texts if text]


def _has_response(samples: SampleSource, window: load.Window, *outcomes: str) -> bool:
    """Return whether any sample ended with one of *outcomes* within the measurement."""
    return any(
        (load.is_within(batch["done_ns"], window) & load.has_outcome(batch, *outcomes)).any()
        for batch in load.iterate_batches(samples)
    )


def _check_bytes(
    samples: SampleSource,
    queries: SampleSource | None,
    report: WorkerReport,
    values: Mapping[str, ColumnValue],
    is_encrypted: bool,
) -> Iterator[str]:
    sent, may_miss = values.get("bytes_sent"), report.bytes_unread
    for source in (samples, queries):
        may_miss += 0 if source is None else load.sum_over(source, lambda batch: batch["bytes_unanswered"])
    unanswered = f" (requests without a response: at most {may_miss:,} bytes)" if may_miss else ""
    for column, reader in _READERS.items():
        read = values.get(column)
        if (
            isinstance(sent, int)
            and isinstance(read, int)
            and not (sent - may_miss <= read and (read <= sent or is_encrypted))
        ):
            others = values.get("other_recordings") if column == "bytes_read" else None
            cause = f"; other flight recordings ran in this JVM ({others})" if others else ""
            yield f"bytes: the load wrote {sent:,}, {reader} {read:,}, {read - sent:+,}{unanswered}{cause}"
    # The sink's own counts next to the recording's. It may have fewer bytes, if it was asked before the last ones.
    names = ("sink_reads", "reads_recorded", "sink_bytes_read", "bytes_read")
    counts = [value for value in map(values.get, names) if isinstance(value, int)]
    if len(counts) == len(names):
        reads, recorded, read_bytes, recorded_bytes = counts
        if read_bytes >= recorded_bytes and (reads, read_bytes) != (recorded, recorded_bytes):
            text = f"reads: the sink made {reads:,} of {read_bytes:,} bytes"
            yield f"{text}, {recorded:,} of {recorded_bytes:,} were recorded"


def describe_allocation_mismatch(values: Mapping[str, ColumnValue]) -> str:
    """Describe that the server counted more or fewer direct buffers than were recorded; "" if it did not."""
    counted, recorded = (values.get(name) for name in ("server_direct_allocations", "direct_allocations_recorded"))
    if counted is None or recorded is None or counted == recorded:
        return ""
    return f"direct buffers: the server allocated {counted:,}, and {recorded:,} were recorded"


def expected_documents(values: Mapping[str, ColumnValue]) -> int | None:
    """Return the acknowledged documents without those that replaced one; None if unknown."""
    acked, repeated = values.get("documents_acked"), values.get("documents_repeated")
    if not isinstance(acked, int):
        return None
    return acked - (repeated if isinstance(repeated, int) else 0)


def _describe_document_mismatch(values: Mapping[str, ColumnValue], may_be_more: int) -> str:
    acked, counted = values.get("documents_acked"), values.get("documents_counted")
    expected = expected_documents(values)
    if not isinstance(acked, int) or not isinstance(counted, int) or expected is None:
        return ""
    # A server whose documents were read back by number: lost and duplicated documents are known.
    lost, twice = values.get("lost_documents"), values.get("delivered_twice")
    minimum = expected - (lost if isinstance(lost, int) else 0)
    if minimum <= counted and (twice or counted <= expected + may_be_more):
        return ""
    unanswered = f" (requests without a response: at most {may_be_more:,} more)" if may_be_more else ""
    again = f" ({acked - expected:,} of them again)" if acked != expected else ""
    return f"documents: {acked:,} acknowledged{again}, {counted:,} counted, {counted - expected:+,}{unanswered}"


def recovery_s(docs_per_s: Series, faults: Sequence[FaultRecord], start_ns: int, end_ns: int) -> float | None:
    """Return the seconds from the end of the last fault to the end of the first second at the earlier throughput.

    None without a fault or without throughput before it, and if throughput did not recover within the measurement
    (`zero_throughput_s` and the plot show that).
    """
    if not faults:
        return None
    earlier = throughput_before(docs_per_s, faults, start_ns)
    if not earlier or not (wanted := BACK_SHARE * median(earlier)):
        return None
    last_ns = max(fault.end_ns or fault.start_ns for fault in faults)
    seconds = zip(docs_per_s.at_ns, docs_per_s.values, strict=True)
    recovered = (
        at for at, value in seconds if at + SECOND_NS > last_ns and at + SECOND_NS <= end_ns and value >= wanted
    )
    back_ns = next(recovered, None)
    return None if back_ns is None else (back_ns + SECOND_NS - last_ns) / 1e9


def throughput_before(docs_per_s: Series, faults: Sequence[FaultRecord], start_ns: int) -> list[float]:
    """Return the throughput of the full seconds before the first fault."""
    first_ns = min(fault.start_ns for fault in faults)
    seconds = zip(docs_per_s.at_ns, docs_per_s.values, strict=True)
    return [value for at, value in seconds if start_ns <= at and at + SECOND_NS <= first_ns]


def lost_documents(faults: Sequence[FaultRecord], values: Mapping[str, ColumnValue]) -> dict[str, ColumnValue]:
    """Return a lower limit of the acknowledged documents that a killed server lost.

    Documents of requests without a response may have been stored and hide a loss. Without a `kill` a missing document
    makes the run invalid; with it the loss is the result.
    """
    expected, counted = expected_documents(values), values.get("documents_counted")
    if not any(fault.kind == "kill" for fault in faults) or expected is None or not isinstance(counted, int):
        return {}
    return {"lost_documents": max(0, expected - counted)}
