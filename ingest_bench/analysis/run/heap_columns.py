"""The columns of the heap: its allocations, its collections, its direct buffers, its large objects."""

from __future__ import annotations

from ingest_bench.analysis.run.column import Column

COLUMNS: tuple[Column, ...] = (
    # Outside TLABs and TLABs as in Elasticsearch issue 23185.
    Column("gc_pause_ms_p50", "median pause", of="gc_pauses"),
    Column("gc_pause_ms_p99", "99th percentile of the pauses", of="gc_pauses"),
    Column("gc_pause_ms_max", "longest pause", "max"),
    Column("outside_tlab_count", "objects allocated outside TLABs within the measurement", "sum"),
    Column("outside_tlab_max_bytes", "largest of them", "max"),
    Column("outside_tlab_min_bytes", "smallest of them", "min"),
    Column("outside_tlab_mean_bytes", "their mean"),
    Column("outside_tlab_total_bytes", "their sum", "sum"),
    Column("outside_tlab_bytes_per_s", "their sum by the length of the measurement", "sum"),
    Column("tlab_count", "TLABs handed out within the measurement", "sum"),
    Column("tlab_max_bytes", "largest of them", "max"),
    Column("tlab_min_bytes", "smallest of them", "min"),
    Column("tlab_mean_bytes", "their mean"),
    Column("tlab_total_bytes", "their sum", "sum"),
    Column("tlab_bytes_per_s", "their sum by the length of the measurement", "sum"),
    Column(
        "outside_tlab_network_bytes",
        "outside TLABs by Netty: first non-JDK frame in io.netty; empty without Netty",
        "sum",
    ),
    Column("outside_tlab_lucene_bytes", "outside TLABs by Lucene: first non-JDK frame in org.apache.lucene", "sum"),
    Column("outside_tlab_rest_bytes", "outside TLABs by everything else", "sum"),
    # What the collections were, and what else the probe `gc` sees.
    Column("gc_collector", "collector as the GC log names it: g1, cms, parallel, serial, zgc", "same"),
    Column(
        "gc_pauses_log", "pauses that ended within the measurement by the GC log: the second source of gc_pauses", "sum"
    ),
    Column("gc_causes", "pauses by cause, the most frequent first"),
    Column("gc_collections", "collections that ended within the measurement, concurrent cycles included", "sum"),
    Column(
        "gc_young_collections", "young collections as the server's stats API counts them: of a server that is a URL"
    ),
    Column("gc_old_collections", "old ones: full collections of G1, cycles of CMS"),
    Column("gc_collection_ms", "time in collections by that API; with CMS and ZGC most of it is no pause"),
    Column("gc_promotion_failures", "young collections that found no room in the old generation (CMS, serial)", "sum"),
    Column("gc_evacuation_failures", "collections that found no room to copy to (G1)", "sum"),
    Column(
        "gc_concurrent_mode_failures", "concurrent cycles that were overtaken by a full collection (CMS, G1)", "sum"
    ),
    Column("gc_allocation_stalls", "threads that had to wait for memory (ZGC)", "sum"),
    Column("gc_humongous_collections", "collections caused by an allocation larger than half a region (G1)", "sum"),
    Column("g1_region_bytes", "size of a region of the heap (G1): larger than half of it is humongous", "max"),
    Column("humongous_regions_max", "most humongous regions in use before a collection (G1)", "max"),
    Column("direct_buffers_max", "most direct buffers of the JVM's own pool; Java 17 and later", "max"),
    Column("direct_buffer_used_max_bytes", "most memory in them", "max"),
    Column("direct_buffer_capacity_max_bytes", "their largest capacity", "max"),
    Column(
        "direct_allocations", "direct buffers allocated within the measurement, where the server tells of each", "sum"
    ),
    Column("direct_allocations_per_s", "the same by the length of the measurement", "sum"),
    Column("direct_allocation_ms_mean", "mean time that such an allocation took, waiting included"),
    Column("direct_allocation_ms_p50", "median of it; the percentiles have three digits", of="direct_allocations"),
    Column("direct_allocation_ms_p99", "99th percentile of the same", of="direct_allocations"),
    Column("direct_allocation_ms_max", "the longest of the same", "max"),
    Column(
        "system_gcs",
        "calls of System.gc() within the measurement; of Java before 17 the collections that they led to",
        "sum",
    ),
    Column("direct_allocations_per_system_gc", "direct buffers allocated for each of these"),
    Column("direct_sleeps", "sleeps of threads that waited for room for a direct buffer, by how long they wanted to"),
    Column("direct_sleep_ms_total", "the sum of what they wanted to sleep", "sum"),
    Column(
        "direct_allocations_recorded", "direct buffers allocated from start to end, as the JVM recorded them", "sum"
    ),
    Column("server_direct_allocations", "the same, as the server counted it itself"),
    Column("reads_empty", "reads that found nothing, from start to end: a buffer was allocated for nothing", "sum"),
    Column("reads_recorded", "reads that gave bytes, from start to end, as the JVM recorded them", "sum"),
    Column("sink_reads", "the same, as the sink counted it itself"),
    Column("sink_bytes_read", "bytes of them"),
    Column("sink_buffers", "receive buffers that the sink allocated for the load's connections, from start to end"),
    Column("sink_buffer_bytes", "bytes of them"),
    Column("outside_tlab_network_count", "objects outside TLABs by the network layer", "sum"),
    Column("outside_tlab_lucene_count", "objects outside TLABs by Lucene", "sum"),
    Column("outside_tlab_rest_count", "objects outside TLABs by everything else", "sum"),
    Column("tlab_network_bytes", "TLABs that the network layer asked for: their size", "sum"),
    Column("tlab_network_count", "their number", "sum"),
    Column("tlab_lucene_bytes", "TLABs that Lucene asked for: their size", "sum"),
    Column("tlab_lucene_count", "their number", "sum"),
    Column("tlab_rest_bytes", "TLABs that everything else asked for: their size", "sum"),
    Column("tlab_rest_count", "their number", "sum"),
    Column("outside_tlab_sites", "methods that allocated most outside TLABs, with their bytes"),
    Column("tlab_sites", "methods that asked for most TLABs, with their bytes"),
    # Large objects, each a piece of the heap without a gap.
    Column(
        "largest_allocation_bytes",
        "largest object that was allocated within the measurement, beside those in TLABs",
        "max",
    ),
    Column("largest_allocation_stack", "its class, and who asked for it: the innermost frame first"),
    Column("allocations_1mib", "objects of 1 MiB and more that were allocated within the measurement", "sum"),
    Column("allocations_1mib_bytes", "their sum", "sum"),
    Column("allocations_100mib", "those of 100 MiB and more", "sum"),
    Column(
        "allocations_humongous", "of those of 1 MiB and more the ones that are larger than half a region (G1)", "sum"
    ),
    Column("large_allocation_sites", "methods that asked for most of them: how many, of how many bytes"),
    Column("flushes", "memtables that began to be written to files within the measurement (Cassandra)"),
    Column("flush_bytes_mean", "mean bytes of a file that became of one"),
    Column("compactions", "compactions that began within the measurement (Cassandra)"),
)
