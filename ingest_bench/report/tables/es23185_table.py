"""The table of Elasticsearch issue 23185 from our own runs, with the published row beneath ours where there is one."""

from __future__ import annotations

from collections.abc import Sequence

from ingest_bench.analysis.buffers.published import Published, matching
from ingest_bench.analysis.compare import cells
from ingest_bench.analysis.compare.cells import CellRuns
from ingest_bench.model.results import Summary
from ingest_bench.report.tables.text_tables import Shown
from ingest_bench.report.tables.words import bytes_text, gb_text, key_text, whole

# The columns and their order. Counts and totals grow with what was ingested: they are for each GB of it.
_COLUMNS: tuple[Shown, ...] = (
    Shown("docs_per_s_mean", "docs/s (theirs: median)", whole),
    Shown("outside_tlab_count_per_gb", "outside TLABs: objects/GB", whole),
    Shown("outside_tlab_max_bytes", "max", bytes_text),
    Shown("outside_tlab_min_bytes", "min", bytes_text),
    Shown("outside_tlab_mean_bytes", "avg", bytes_text),
    Shown("outside_tlab_total_bytes_per_gb", "total/GB", gb_text),
    Shown("outside_tlab_bytes_per_s", "rate/s", bytes_text),
    Shown("outside_tlab_network_bytes_per_gb", "network layer/GB", gb_text),
    Shown("tlab_count_per_gb", "TLABs: count/GB", whole),
    Shown("tlab_max_bytes", "max", bytes_text),
    Shown("tlab_min_bytes", "min", bytes_text),
    Shown("tlab_mean_bytes", "avg", bytes_text),
    Shown("tlab_total_bytes_per_gb", "total/GB", gb_text),
    Shown("tlab_bytes_per_s", "rate/s", bytes_text),
)


def table(summaries: Sequence[Summary], published: Sequence[Published]) -> list[list[str]]:
    """A head and a row a cell, each with the issue's row beneath it; empty when no run measured allocations."""
    rows = cells.group(summaries)
    if not any(row.numbers("outside_tlab_count") or row.out_of_memory for row in rows):
        return []
    keys = cells.varying(summaries) or list(summaries[0].levels)
    made = [["", *map(key_text, keys), *(shown.head for shown in _COLUMNS)]]
    for row in rows:
        levels = [row.levels.get(key, "") for key in keys]
        made.append(["ours", *levels, *(_ours(row, shown) for shown in _COLUMNS)])
        made += [
            ["published", *_their_levels(theirs, row, keys), *(_theirs(theirs, shown) for shown in _COLUMNS)]
            for theirs in _published(row, published)
        ]
    return made


def values(summaries: Sequence[Summary], published: Sequence[Published]) -> list[list[object]]:
    """The same as plain numbers, for a CSV: bytes, and counts and totals for each GB; None where there is none."""
    made: list[list[object]] = [["source", "cell", *(shown.column for shown in _COLUMNS)]]
    for row in cells.group(summaries):
        made.append(["ours", row.name, *(row.measured_or_oom.typical(shown.column) for shown in _COLUMNS)])
        made += [
            ["published", row.name, *(theirs.values.get(shown.column) for shown in _COLUMNS)]
            for theirs in _published(row, published)
        ]
    return made


def _published(row: CellRuns, published: Sequence[Published]) -> list[Published]:
    """The issue's rows of these conditions: one of its heap tables, one of loopback against Ethernet."""
    first = row.runs[0].values
    workload, predictor, heap = (first.get(name) for name in ("workload", "receive_predictor_bytes", "heap_bytes"))
    if not isinstance(predictor, int) or not isinstance(heap, int):
        return []
    network = str(first.get("network"))
    heaps = [item for item in published if item.network is None]
    networks = [item for item in published if item.network is not None]
    found = [matching(items, str(workload), predictor, heap, network) for items in (heaps, networks)]
    return [item for item in found if item is not None]


def _their_levels(theirs: Published, row: CellRuns, keys: Sequence[str]) -> list[str]:
    """The levels that the issue's row shares; "" for what it does not say, such as the allocator or the bulk size."""
    known = {"workload": True, "receive predictor": True, "heap": theirs.heap_bytes, "network": theirs.network}
    return [row.levels.get(key, "") if known.get(key_text(key)) else "" for key in keys]


def _ours(row: CellRuns, shown: Shown) -> str:
    if shown.column == "docs_per_s_mean" and row.out_of_memory and not row.numbers(shown.column):
        return "OOM"
    value = row.measured_or_oom.typical(shown.column)
    return "" if value is None else shown.text(value)


def _theirs(row: Published, shown: Shown) -> str:
    if shown.column == "docs_per_s_mean" and row.ran_out_of_memory:
        return "OOM"
    value = row.values.get(shown.column)
    return "" if value is None else shown.text(value)
