"""The columns of `summary.csv`: one line each, in their order; and the names of the histograms and series of a run."""

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
    # Beyond the first table: the load.
    Column("docs_per_s_mean", "acknowledged documents of the measurement by its length"),
    Column("bytes_measured", "bytes of the requests that were answered within the measurement"),
    Column("service_ms_p50", "median service time (done - sent)"),
    Column("service_ms_p99", "99th percentile of the service time"),
    Column("requests", "requests planned within the measurement"),
    Column("requests_failed", "of these, the ones that were not answered with success for every document"),
    Column("documents_failed", "items that the server answered with a failure, warm-up included"),
    Column("stalled_s", "full seconds of the measurement without an acknowledged document"),
    Column("recovery_s", "from the end of the last fault until throughput was back at 90% of what it was before"),
    # The wire.
    Column("wire_bytes_p50", "median segment on the wire towards the server"),
    Column("mss", "TCP's maximum segment size"),
    Column("rtt_ms", "median round trip, measured before the load"),
    Column("loss_ppm", "packets lost on the link under load"),
    Column("retransmits", "TCP segments sent again"),
    # The heap. Outside TLABs and TLABs as in Elasticsearch issue 23185.
    Column("gc_pause_ms_p50", "median pause"),
    Column("gc_pause_ms_p99", "99th percentile of the pauses"),
    Column("gc_pause_ms_max", "longest pause"),
    Column("outside_tlab_count", "objects allocated outside TLABs within the measurement"),
    Column("outside_tlab_max_bytes", "largest of them"),
    Column("outside_tlab_min_bytes", "smallest of them"),
    Column("outside_tlab_mean_bytes", "their mean"),
    Column("outside_tlab_total_bytes", "their sum"),
    Column("outside_tlab_bytes_per_s", "their sum by the length of the measurement"),
    Column("tlab_count", "TLABs handed out within the measurement"),
    Column("tlab_max_bytes", "largest of them"),
    Column("tlab_min_bytes", "smallest of them"),
    Column("tlab_mean_bytes", "their mean"),
    Column("tlab_total_bytes", "their sum"),
    Column("tlab_bytes_per_s", "their sum by the length of the measurement"),
    Column("outside_tlab_network_bytes", "outside TLABs by the network layer: first non-JDK frame in io.netty"),
    Column("outside_tlab_lucene_bytes", "outside TLABs by Lucene: first non-JDK frame in org.apache.lucene"),
    Column("outside_tlab_rest_bytes", "outside TLABs by everything else"),
    # What the collections were, and what else the probe `gc` sees.
    Column("gc_collector", "collector as the GC log names it: g1, cms, parallel, serial, zgc"),
    Column("gc_pauses_log", "pauses within the measurement by the GC log: the second source of gc_pauses"),
    Column("gc_causes", "pauses by cause, the most frequent first"),
    Column("gc_collections", "collections that ended within the measurement, concurrent cycles included"),
    Column("gc_promotion_failures", "young collections that found no room in the old generation (CMS, serial)"),
    Column("gc_evacuation_failures", "collections that found no room to copy to (G1)"),
    Column("gc_concurrent_mode_failures", "concurrent cycles that were overtaken by a full collection (CMS, G1)"),
    Column("gc_allocation_stalls", "threads that had to wait for memory (ZGC)"),
    Column("gc_humongous_collections", "collections caused by an allocation of half a region or more (G1)"),
    Column("humongous_regions_max", "most humongous regions in use before a collection (G1)"),
    Column("direct_buffers_max", "most direct buffers of the JVM's own pool; Java 17 and later"),
    Column("direct_buffer_used_max_bytes", "most memory in them"),
    Column("direct_buffer_capacity_max_bytes", "their largest capacity"),
    Column("reads_empty", "reads that found nothing, from start to end: a buffer was allocated for nothing"),
    Column("outside_tlab_network_count", "objects outside TLABs by the network layer"),
    Column("outside_tlab_lucene_count", "objects outside TLABs by Lucene"),
    Column("outside_tlab_rest_count", "objects outside TLABs by everything else"),
    Column("tlab_network_bytes", "TLABs that the network layer asked for: their size"),
    Column("tlab_network_count", "their number"),
    Column("tlab_lucene_bytes", "TLABs that Lucene asked for: their size"),
    Column("tlab_lucene_count", "their number"),
    Column("tlab_rest_bytes", "TLABs that everything else asked for: their size"),
    Column("tlab_rest_count", "their number"),
    Column("outside_tlab_sites", "methods that allocated most outside TLABs, with their bytes"),
    Column("tlab_sites", "methods that asked for most TLABs, with their bytes"),
    # The host, seen each 100 ms.
    Column("server_cpu_s", "CPU time of the server's process within the measurement"),
    Column("server_context_switches_voluntary", "times that its threads gave up their CPU"),
    Column("server_context_switches_involuntary", "times that its threads lost their CPU"),
    Column("server_minor_faults", "its page faults without a disk"),
    Column("server_major_faults", "its page faults with one"),
    Column("server_threads_max", "most threads that it had"),
    Column("server_rss_max_bytes", "most memory that it had resident"),
    Column("context_switches", "context switches of the whole machine"),
    Column("cpu_busy_share", "share of all CPUs that was not idle, 0 to 1"),
    Column("run_queue_mean", "mean number of processes that ran or waited for a CPU"),
    Column("run_queue_max", "their largest number"),
    Column("pressure_cpu_some_share", "share of time in which something waited for a CPU (PSI)"),
    Column("pressure_io_some_share", "share of time in which something waited for a disk (PSI)"),
    Column("pressure_io_full_share", "share of time in which everything waited for a disk (PSI)"),
    Column("pressure_memory_some_share", "share of time in which something waited for memory (PSI)"),
    Column("pressure_memory_full_share", "share of time in which everything waited for memory (PSI)"),
    Column("thp_fault_alloc", "huge pages that page faults got, whole machine"),
    Column("thp_fault_fallback", "page faults that wanted a huge page and got small ones"),
    Column("thp_collapse_alloc", "huge pages that khugepaged made"),
    Column("thp_split_page", "huge pages that were split"),
    Column("compact_stall", "allocations that had to wait for compaction"),
    Column("compact_fail", "compactions without success"),
    Column("compact_success", "compactions with success"),
)

# What a probe's Histogram and Series are called, and what their values are.
HISTOGRAMS = {
    "read_bytes": "bytes of a socket read of the load's connections, within the measurement",
    "wire_bytes": "bytes of a TCP segment's payload on the wire towards the server",
}
SERIES = {
    "docs_per_s": "acknowledged documents of each second, at its start (computed from the samples)",
    "response_ms_p50": "median response time of the requests that ended in each second (computed from the samples)",
    "response_ms_max": "their longest response time (computed from the samples)",
    "heap_bytes": "heap in use, before and after each collection",
    "gc_pause_ms": "each pause, at its start",
    "server_cpu_cores": "CPUs that the server used since the last sample",
    "server_context_switches_per_s": "context switches of all its threads, since the last sample",
    "run_queue": "processes that ran or waited for a CPU",
    "direct_buffer_bytes": "memory in the JVM's own direct buffers, each second",
}
