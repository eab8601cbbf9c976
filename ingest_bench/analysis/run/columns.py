"""The columns of `summary.csv` in their order (columns.csv), and the names of the histograms and series of a run."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ingest_bench.model.results import ColumnValue

NodeRule = Literal["sum", "max", "min", "machine", "same", ""]
# Words in the names of columns that are not counts of events: a unit, a mean, or a maximum.
_UNITS = frozenset({"s", "ms", "seconds", "bytes", "ppm", "percent", "share", "per", "mean", "max", "min", "mss"})


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its name, which ends with the unit, and its meaning."""

    name: str
    meaning: str
    node_rule: NodeRule = ""
    """How the readings of several nodes are combined in the run's row. "machine": every node reads the same machine.
    "same": kept if all are equal. "": empty in the run's row, because no combination is meaningful; see nodes.csv."""
    count_column: str = ""
    """For a percentile: the column with the number of values. Else ""."""
    per_gb: bool = False
    """The value grows with the ingested bytes; a second column has it per GB."""

    @property
    def is_count(self) -> bool:
        """Return whether the column counts events: its name has no unit."""
        return _UNITS.isdisjoint(self.name.split("_"))


def _read_columns() -> Iterator[Column]:
    """Yield the columns of columns.csv; a total is followed by its column per GB."""
    with Path(__file__).with_name("columns.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            is_total = row["per_gb"] == "yes"
            rule: NodeRule = row["nodes"]  # type: ignore[assignment]
            yield Column(row["column"], row["meaning"], rule, row["count_column"], is_total)
            if is_total:
                yield Column(f"{row['column']}_per_gb", f"{row['meaning']}; per GB (10^9 bytes) of bytes_measured")


COLUMNS = tuple(_read_columns())
PER_GB_TOTALS = frozenset(column.name for column in COLUMNS if column.per_gb)
EVENT_COUNTS = frozenset(column.name for column in COLUMNS if column.is_count)

HISTOGRAMS = {
    "read_bytes": "bytes of a socket read of the load's connections, within the measurement",
    "kernel_read_bytes": "the same, as seen by the kernel",
    "direct_allocation_ns": "time of a direct buffer's allocation, within the measurement, to three digits",
    "wire_bytes": "bytes of a frame on the wire towards the server, headers included",
}
SERIES = {
    "docs_per_s": "documents acknowledged in each second, at its start",
    "response_ms_p50": "median response time of all requests that ended in each second (computed from the samples); "
    "the last second includes those that were due in time and ended later",
    "response_ms_max": "longest response time of all requests that waited in each second (computed from the samples)",
    "response_ok_ms_p50": "median response time of fully acknowledged requests",
    "response_ok_ms_max": "longest response time of those that waited in the second",
    "heap_bytes": "heap in use, before and after each collection; each second for a server at a URL",
    "gc_pause_ms": "each pause, at its start",
    "large_allocation_bytes": "each object of 1 MiB and more, at its allocation",
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


def compared_column(column: str) -> str:
    """Return the column to compare instead of *column*: totals are compared per GB."""
    return f"{column}_per_gb" if column in PER_GB_TOTALS else column


def per_gb_columns(values: Mapping[str, ColumnValue]) -> dict[str, float | None]:
    """Return each total per GB of requests that got a response within the measurement."""
    ingested = values.get("bytes_measured")
    shares: dict[str, float | None] = {}
    for name in PER_GB_TOTALS:
        total = values.get(name)
        shares[f"{name}_per_gb"] = None
        if isinstance(ingested, int) and ingested > 0 and isinstance(total, (int, float)):
            shares[f"{name}_per_gb"] = total * 1e9 / ingested
    return shares
