"""The columns of `summary.csv`: one line each, in their order."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its name (the unit is its end), and what it holds."""

    name: str
    meaning: str


COLUMNS: tuple[Column, ...] = (
    Column("network", "network profile, with overrides"),
    Column("target", "server and version"),
    Column("workload", "workload"),
    Column("receive_predictor_bytes", "receive buffer that the server was told to use; min..max when adaptive"),
    Column("heap_bytes", "maximum heap"),
    Column("documents_acked", "documents that the server acknowledged, warm-up included"),
    Column("documents_counted", "documents in the index after a refresh"),
    Column("docs_per_s_median", "median of acknowledged documents in each second of the measurement"),
    Column("bytes_sent", "bytes that the load wrote to its sockets, from start to end"),
    Column("bytes_read", "bytes that the JVM read from those sockets, from start to end"),
    Column("reads", "socket reads of the load's connections within the measurement"),
    Column("read_bytes_mean", "mean bytes of a read"),
    Column("read_bytes_p50", "median bytes of a read"),
    Column("read_bytes_p99", "99th percentile of the bytes of a read"),
    Column("response_ms_p50", "median response time (done - planned)"),
    Column("response_ms_p99", "99th percentile of the response time"),
    Column("gc_pauses", "garbage collection pauses within the measurement"),
    Column("gc_pause_ms_total", "their sum"),
    Column("full_gcs", "full collections within the measurement"),
    Column("heap_after_gc_max_bytes", "largest heap in use after a collection"),
)
