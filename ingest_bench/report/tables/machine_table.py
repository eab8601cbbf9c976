"""What a setting of the machine did, as a table: the server's side beside what the kernel counted meanwhile."""

from __future__ import annotations

from collections.abc import Sequence

from ingest_bench.analysis.compare import cells
from ingest_bench.model.results import Summary
from ingest_bench.report.tables import text_tables
from ingest_bench.report.tables.text_tables import Shown
from ingest_bench.report.tables.words import bytes_text, key_text, short, whole

# Keys of the table [host], as a factor has them.
KEYS = "host."
_COLUMNS = (
    Shown("docs_per_s_mean", "docs/s", whole),
    Shown("docs_per_s_p10", "its seconds, p10", whole),
    Shown("response_ms_p50", "response p50, ms", short),
    Shown("response_ms_p99", "p99", short),
    Shown("response_ms_max", "max", short),
    Shown("gc_pause_ms_total", "paused, ms", short),
    Shown("server_cpu_s", "server's CPU, s", short),
    Shown("server_cpu_system_s", "in the kernel, s", short),
    Shown("server_context_switches_voluntary", "its context switches, voluntary", whole),
    Shown("server_context_switches_involuntary", "involuntary", whole),
    Shown("server_rss_max_bytes", "resident, max", bytes_text),
    Shown("server_minor_faults", "its page faults", whole),
    Shown("thp_fault_alloc", "huge pages by faults", whole),
    Shown("thp_fault_fallback", "small ones in their place", whole),
    Shown("thp_collapse_alloc", "by khugepaged", whole),
    Shown("compact_stall", "waits for compaction", whole),
    Shown("allocstall", "waits for memory", whole),
    Shown("pgmajfault", "faults with a disk", whole),
    Shown("numa_pages_migrated", "pages moved between nodes", whole),
)


def table(summaries: Sequence[Summary]) -> list[list[str]]:
    """A head and a row a cell, without columns that nobody measured; empty where no setting of the machine varies."""
    keys = cells.varying(summaries)
    if not any(key.startswith(KEYS) for key in keys):
        return []
    rows = cells.group(summaries)
    columns = [shown for shown in _COLUMNS if any(row.measured_or_oom.numbers(shown.column) for row in rows)]
    head = [*map(key_text, keys), "runs", *(shown.head for shown in columns)]
    body = [
        [
            *(row.levels.get(key, "") for key in keys),
            text_tables.runs(row),
            *(text_tables.spread(row.measured_or_oom.numbers(shown.column), shown.text) for shown in columns),
        ]
        for row in rows
    ]
    return [head, *body]
