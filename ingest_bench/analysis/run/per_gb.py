"""Totals for each GB of what was ingested: a longer measurement, or a quicker server, has more of everything."""

from __future__ import annotations

from collections.abc import Mapping

from ingest_bench.model.results import Value

# The columns that grow with the work that was done.
TOTALS = frozenset(
    (
        *("reads", "reads_empty", "kernel_reads", "sink_reads", "sink_buffers", "sink_buffer_bytes"),
        *("gc_pauses", "gc_pause_ms_total", "full_gcs", "gc_collections", "gc_young_collections", "gc_old_collections"),
        *("gc_collection_ms", "gc_humongous_collections", "system_gcs", "direct_allocations", "flushes", "compactions"),
        *(f"{kind}_count" for kind in ("outside_tlab", "tlab")),
        *(f"{kind}_total_bytes" for kind in ("outside_tlab", "tlab")),
        *(
            f"{kind}_{layer}_{unit}"
            for kind in ("outside_tlab", "tlab")
            for layer in ("network", "lucene", "rest")
            for unit in ("bytes", "count")
        ),
        *("server_cpu_s", "server_cpu_user_s", "server_cpu_system_s"),
        *("server_context_switches_voluntary", "server_context_switches_involuntary"),
        *("server_minor_faults", "server_major_faults", "context_switches", "retransmits"),
        *("zero_windows", "out_of_order", "duplicates", "overtaken", "ecn_marks", "wire_packets", "qdisc_drops"),
        *("allocations_1mib", "allocations_1mib_bytes", "allocations_100mib", "allocations_humongous"),
        *("gc_promotion_failures", "gc_evacuation_failures", "gc_concurrent_mode_failures", "gc_allocation_stalls"),
        *("direct_sleep_ms_total", "thp_fault_alloc", "thp_fault_fallback", "thp_collapse_alloc", "thp_split_page"),
        *("compact_stall", "compact_fail", "compact_success", "numa_pages_migrated", "pgmajfault", "allocstall"),
    )
)


def compared(column: str) -> str:
    """What is compared where that column is asked for: of a total its share of a GB."""
    return f"{column}_per_gb" if column in TOTALS else column


def shares(values: Mapping[str, Value]) -> dict[str, float | None]:
    """What each total of a run is for each GB of requests that were answered within its measurement."""
    ingested = values.get("bytes_measured")
    return {f"{name}_per_gb": _share(values.get(name), ingested) for name in TOTALS}


def _share(total: Value, ingested: Value) -> float | None:
    if not isinstance(total, (int, float)) or not isinstance(ingested, int) or ingested <= 0:
        return None
    return total * 1e9 / ingested
