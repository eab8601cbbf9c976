"""The columns of `summary.csv`: one line each, in their order; and the names of the histograms and series of a run."""

from __future__ import annotations

from ingest_bench.analysis.run import heap_columns, per_gb
from ingest_bench.analysis.run.column import Column, once
from ingest_bench.analysis.stalls import attribution, phases

_MEASURED: tuple[Column, ...] = (
    Column("network", "network profile, with overrides"),
    Column("netem_backend", "what shaped our link: plain (no netem), kernel (its netem) or uml"),
    Column("target", "server and version"),
    Column("java", "version of the Java that the server ran on"),
    Column("workload", "workload"),
    Column("receive_predictor_bytes", "receive buffer that the server was told to use; min..max when adaptive"),
    Column("heap_bytes", "maximum heap"),
    Column("documents_acked", "documents that the server acknowledged, warm-up included"),
    Column("documents_counted", "documents that the server has: those in the index after a refresh, where it has one"),
    Column("documents_check", 'whether these two were compared: "counted", or "cannot be counted"'),
    Column(
        "docs_per_s_mean",
        "documents whose acknowledgement came within the measurement, divided by its length: the whole window counts,"
        " not only its full seconds",
    ),
    Column(
        "docs_per_s_p10",
        "documents whose acknowledgement came in a full second of the measurement: a tenth of the seconds have no more."
        " Seconds between the answers of large bulks have 0",
        of="measured_seconds",
    ),
    Column("docs_per_s_p90", "nine tenths of these seconds have no more", of="measured_seconds"),
    Column(
        "measured_seconds",
        "full seconds of the measurement, counted from its start; columns of full seconds leave out the rest",
    ),
    Column("bytes_sent", "bytes that the load wrote to its sockets, from start to end"),
    Column("bytes_read", "bytes that the JVM read from those sockets, from start to end", "sum"),
    Column("reads", "socket reads of the load's connections within the measurement"),
    Column("read_bytes_mean", "mean bytes of a read"),
    Column("read_bytes_p50", "median bytes of a read", of="reads"),
    Column("read_bytes_p99", "99th percentile of the bytes of a read", of="reads"),
    Column(
        "response_ms_p50",
        "median response time (done - planned) of all requests under way within the measurement, whatever became of"
        " them",
        of="requests",
    ),
    Column("response_ms_p99", "99th percentile of the response time", of="requests"),
    Column("gc_pauses", "garbage collection pauses that ended within the measurement", "sum"),
    Column("gc_pause_ms_total", "their sum; a pause that began before the measurement counts whole", "sum"),
    Column("full_gcs", "full collections that ended within the measurement", "sum"),
    Column("heap_after_gc_max_bytes", "largest heap in use after a collection", "max"),
    # Beyond the first table: the load.
    Column("bytes_measured", "bytes of the requests that were answered within the measurement"),
    Column("response_ms_p999", "99.9th percentile of the response time", of="requests"),
    Column("response_ms_max", "longest response time"),
    Column(
        "response_ok_ms_p50",
        "median response time of the requests of which every document was acknowledged",
        of="requests_ok",
    ),
    Column("response_ok_ms_p99", "99th percentile of the same", of="requests_ok"),
    Column("response_ok_ms_p999", "99.9th percentile of the same", of="requests_ok"),
    Column("response_ok_ms_max", "the longest of the same"),
    Column(
        "service_ms_p50",
        "median service time (done - sent) of what was sent; with several attempts from the first one to the end of the"
        " last",
        of="requests_sent",
    ),
    Column("service_ms_p99", "99th percentile of the service time", of="requests_sent"),
    Column(
        "requests",
        "requests under way within the measurement: due before its end, not ended before its beginning; one that is"
        " sent again after a 429 is still one",
    ),
    Column("requests_answered", "requests whose answer came within the measurement: those that bytes_measured is of"),
    Column("requests_failed", "requests that did not end with every document acknowledged"),
    Column("requests_ok", "requests of which every document was acknowledged"),
    Column("requests_sent", "requests of which a byte was sent"),
    Column("attempts", "how often the requests were sent, each attempt counted; one that was never sent has none"),
    Column("documents_failed", "documents refused for good that no attempt may have stored, warm-up included"),
    *phases.COLUMNS,
    Column("silent_s", "full seconds of the measurement in which no request ended that had a document acknowledged"),
    *attribution.COLUMNS,
    Column(
        "idle_while_waiting_s",
        "closed loop: how long a user on average sent nothing because an answer took more than 10 times the median",
    ),
    Column("recovery_s", "from the end of the last fault until throughput was back at 90% of what it was before"),
    Column("out_of_memory", "what ran out in a run that ended out of memory: heap, direct, metaspace, …"),
    Column(
        "out_of_memory_after_s", "seconds from the start of the load until then; other numbers are of the time before"
    ),
    # A server that forwards documents, and one that can be read back by their numbers.
    Column(
        "accepted_per_s",
        "documents accepted in a second by all nodes, in the seconds of the clock that the measurement has in full",
    ),
    Column("delivered_per_s", "documents that they delivered in a second"),
    Column("forwards_per_s", "batches that a peer took, in a second"),
    Column(
        "forwards_cap_per_s",
        "workers / batch delay, of each node to each other one: the forwards where each round lasts the delay",
    ),
    Column(
        "delivery_ms_p50",
        "median time from accepted to delivered, of what was delivered in these seconds",
        of="delivery_times",
    ),
    Column("delivery_ms_p99", "99th percentile of it; both are at most 1% low", of="delivery_times"),
    Column("delivery_times", "how many documents these are the times of"),
    Column("delivered_documents", "acknowledged documents that were delivered, from start to end"),
    Column("inside_documents", "those that were still inside when all was at rest after the load: neither is lost"),
    Column("lost_documents", "those of which no node has anything, after a kill at least so many: a result"),
    Column("delivered_twice", "documents that were delivered more than once"),
    Column("delivered_unacknowledged", "documents that were delivered though no answer acknowledged them"),
    Column("forwarded_documents", "documents in the batches that a peer took, from start to end"),
    Column("dropped_documents", "documents that the nodes say they dropped: no peer took them, and they had no room"),
    Column("returned_documents", "documents that no peer took, and that were processed where they were"),
    Column("forwards_failed", "batches that no peer took"),
    Column("documents_repeated", "acknowledged documents that replaced one with the same id: not in the index again"),
    Column("documents_resent", "documents sent again after a 429, each time counted"),
    Column("steady_after_s", "seconds from the start of the load until it was steady; empty: never"),
    Column("steadiness", '"steady", "late" (not yet when the measurement began) or why it is not known'),
    Column("generator_cpu_percent", "CPU of the busiest load worker within the measurement, of one core"),
    Column("generator_cpu_percent_max", "the same in the worst second of any worker"),
    Column(
        "generator_lag_ms_p99", "99th percentile of the lateness of the generator's event loop", of="generator_lags"
    ),
    Column("generator_lags", "how many times the lateness was looked at, in the worst worker"),
    Column("send_delay_ms_p99", "open loop: 99th percentile from due to a user that was free", of="send_delays"),
    Column("send_delays", "open loop: how many requests that is of, in the worst worker"),
    Column("tickets_waited", "open loop: requests that were due when no user was free"),
    Column("tickets_unsent", "open loop: requests that were due and never sent"),
    Column(
        "queries_per_s_mean",
        "queries answered by every shard within the measurement, divided by its length: the whole window counts",
    ),
    Column(
        "query_ms_p50",
        "median response time (done - planned) of all queries under way within the measurement, whatever became of"
        " them",
        of="queries",
    ),
    Column("query_ms_p99", "99th percentile of the response time of the queries", of="queries"),
    Column("query_ok_ms_p50", "median response time of the queries that every shard answered", of="queries_ok"),
    Column("query_ok_ms_p99", "99th percentile of the same", of="queries_ok"),
    Column("queries", "queries under way within the measurement; they are not among the requests"),
    Column("queries_failed", "queries that not every shard answered"),
    Column("queries_ok", "queries that every shard answered"),
    # The wire.
    Column("wire_bytes_p50", "median frame on the wire towards the server, headers included", of="wire_frames"),
    Column("wire_frames", "how many frames were looked at for wire_bytes_p50", "sum"),
    Column("mss", "median of TCP's maximum segment size during the load", of="rtts"),
    Column(
        "idle_rtt_ms",
        "median round trip before the load; far above what is promised: the machine was busy",
        of="idle_rtts",
    ),
    Column("rtt_ms", "median round trip during the load, as the client's TCP saw it", of="rtts"),
    Column("idle_rtts", "how many round trips idle_rtt_ms is of"),
    Column("rtts", "how often TCP was asked for its round trip and segment size, all connections together"),
    Column("wire_packets", "packets that the queues of the clients' link sent on, both directions, from start to end"),
    Column("qdisc_drops", "packets that these queues dropped, the losses of the link's profile among them"),
    Column("loss_ppm", "packets lost on the link under load"),
    Column("retransmits", "TCP segments sent again; of several nodes by the clients and all of them, on whatever link"),
    Column("out_of_order", "segments that came before one that was sent earlier, at either end of the link"),
    Column("duplicates", "segments that came twice: made two by the link, or sent again needlessly"),
    Column("overtaken", "how often TCP found that a segment was late, and not lost"),
    Column("zero_windows", "how often the server told a sender to stop"),
    Column("ecn_marks", "packets that came with the mark of congestion (CE)"),
    Column(
        "waited_for_ms_mean",
        "of a node: how long a peer waited for answers of it, mean of all looks at the peer that waited longest",
    ),
    Column("waited_for_ms_max", "of a node: the longest such wait"),
    *heap_columns.COLUMNS,
    # The host, seen each 100 ms.
    Column("server_cpu_s", "CPU time of the server's process within the measurement", "sum"),
    Column("server_cpu_user_s", "of that, in user mode", "sum"),
    Column("server_cpu_system_s", "of that, in the kernel: page faults, compaction, the network", "sum"),
    Column("server_context_switches_voluntary", "times that its threads gave up their CPU", "sum"),
    Column("server_context_switches_involuntary", "times that its threads lost their CPU", "sum"),
    Column("server_minor_faults", "its page faults without a disk", "sum"),
    Column("server_major_faults", "its page faults with one", "sum"),
    Column("server_threads_max", "most threads that it had", "max"),
    Column("server_rss_max_bytes", "most memory that it had resident", "max"),
    Column("context_switches", "context switches of the whole machine", "machine"),
    Column("cpu_busy_share", "share of all CPUs that something ran on, 0 to 1", "machine"),
    Column("cpu_steal_share", "share of all CPUs that the hypervisor gave to others meanwhile, 0 to 1", "machine"),
    Column("run_queue_mean", "mean number of processes that ran or waited for a CPU", "machine"),
    Column("run_queue_max", "their largest number", "machine"),
    Column("pressure_cpu_some_share", "share of time in which something waited for a CPU (PSI)", "machine"),
    Column("pressure_io_some_share", "share of time in which something waited for a disk (PSI)", "machine"),
    Column("pressure_io_full_share", "share of time in which everything waited for a disk (PSI)", "machine"),
    Column("pressure_memory_some_share", "share of time in which something waited for memory (PSI)", "machine"),
    Column("pressure_memory_full_share", "share of time in which everything waited for memory (PSI)", "machine"),
    Column("thp_fault_alloc", "huge pages that page faults got, whole machine", "machine"),
    Column("thp_fault_fallback", "page faults that wanted a huge page and got small ones", "machine"),
    Column("thp_collapse_alloc", "huge pages that khugepaged made", "machine"),
    Column("thp_split_page", "huge pages that were split", "machine"),
    Column("compact_stall", "allocations that had to wait for compaction", "machine"),
    Column("compact_fail", "compactions without success", "machine"),
    Column("compact_success", "compactions with success", "machine"),
    Column("numa_pages_migrated", "pages that were moved between NUMA nodes", "machine"),
    Column("pgmajfault", "page faults with a disk, of the whole machine", "machine"),
    Column("allocstall", "allocations that had to free memory themselves before they got any, of all zones", "machine"),
    # Reads as the kernel saw them.
    Column(
        "kernel_bytes_read", "bytes that the kernel gave to reads of the load's connections, from start to end", "sum"
    ),
    Column("kernel_reads", "reads of the load's connections within the measurement that gave bytes", "sum"),
    Column("read_requested_bytes_mean", "mean room that such a read offered"),
    Column("read_waste_bytes_mean", "mean room that it left empty"),
    Column("read_fill_share", "bytes of these reads by their room, 0 to 1"),
)

COLUMNS = once(
    column
    for total in _MEASURED
    for column in (
        total,
        *(
            [Column(f"{total.name}_per_gb", "for each GB (10^9 bytes) of requests answered within the measurement")]
            if total.name in per_gb.TOTALS
            else []
        ),
    )
)
# Those that count events.
COUNTS = frozenset(column.name for column in COLUMNS if column.is_count)

# What a probe's Histogram and Series are called, and what their values are.
HISTOGRAMS = {
    "read_bytes": "bytes of a socket read of the load's connections, within the measurement",
    "kernel_read_bytes": "the same, as the kernel saw it",
    "direct_allocation_ns": "time that an allocation of a direct buffer took, within the measurement, to three digits",
    "wire_bytes": "bytes of a frame on the wire towards the server, headers included",
}
SERIES = {
    "docs_per_s": "documents whose acknowledgement came in each second, at its start",
    "response_ms_p50": "median response time of all requests that ended in each second (computed from the samples); "
    "the last one has those that were due in time and ended later, too",
    "response_ms_max": "longest response time of all requests that waited in each second (computed from the samples)",
    "response_ok_ms_p50": "median response time of those of which every document was acknowledged",
    "response_ok_ms_max": "longest response time of those that waited in it",
    "heap_bytes": "heap in use, before and after each collection; each second of a server that is a URL",
    "gc_pause_ms": "each pause, at its start",
    "large_allocation_bytes": "each object of 1 MiB and more, when it was allocated",
    "server_cpu_cores": "CPUs that the server used since the last sample",
    "server_cpu_system_cores": "of these the time in the kernel",
    "server_page_faults_per_s": "its page faults, since the last sample",
    "compact_stall_per_s": "allocations that had to wait for compaction, since the last sample; whole machine",
    "numa_pages_migrated_per_s": "pages that were moved between NUMA nodes, since the last sample; whole machine",
    "server_context_switches_per_s": "context switches of all its threads, since the last sample",
    "run_queue": "processes that ran or waited for a CPU",
    "direct_wait_ms": "the longest allocations of direct buffers (at most 200), each at its end",
    "direct_buffer_bytes": "memory in the JVM's own direct buffers, each second",
}
