"""Published measurements that stand beneath our rows: JDK-6857566, Elasticsearch 23185, Data Prepper 6394."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from ingest_bench import units
from ingest_bench.analysis.buffers import published as es23185
from ingest_bench.analysis.compare.cells import CellRuns
from ingest_bench.inputs.files import data_folder
from ingest_bench.report.formatting import format_key, format_number, format_range

FOLDER = "results/reference/published"
DELIVERED, FORWARDS, CAP = "delivered_per_s", "forwards_per_s", "forwards_cap_per_s"
_WAITING, _BLOCKING, _ASYNCHRONOUS = "waiting", "blocking", "asynchronous"
# Pull request 6394 published its rounds for 50 rounds/s of each node.
_PUBLISHED_CAP = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRow:
    """A row beneath a measured one: numbers (or texts) by column name, and the factors that both rows share."""

    values: Mapping[str, float | str]
    shared_factors: frozenset[str] = frozenset()
    """As `formatting.format_key` writes them. Levels of other factors are not published."""


@cache
def load_allocations() -> Mapping[tuple[int, int], Mapping[str, float | str]]:
    """Return the measurements of JDK-6857566 in our columns, by threads and limit in bytes."""
    return {
        (int(row["threads"]), int(row["max_direct_memory_mb"]) << 20): _convert_allocations(row)
        for row in _read_csv("jdk-6857566")
    }


def _convert_allocations(row: Mapping[str, str]) -> dict[str, float | str]:
    threads, seconds, allocations = (int(row[name]) for name in ("threads", "seconds", "allocations"))
    values: dict[str, float | str] = {
        "direct_allocations_per_s": allocations / seconds,
        # Its threads did nothing else.
        "direct_allocation_ms_mean": seconds * threads / allocations * 1e3,
    }
    # Allocations that succeeded only after System.gc(), after a sleep of 1 ms, and after one more of 2 ms.
    waits = [int(row[name] or 0) for name in ("after_system_gc", "after_sleep_1_ms", "after_sleep_2_ms")]
    if row["after_system_gc"]:
        values["direct_allocations_per_system_gc"] = allocations / sum(waits)
    if row["after_sleep_1_ms"]:
        # A thread that slept 2 ms had slept 1 ms before.
        values["sleeps"] = f"1 ms: {waits[1] + waits[2]}" + (f", 2 ms: {waits[2]}" if waits[2] else "")
    return values


def match_allocations(row: CellRuns) -> Mapping[str, float | str] | None:
    """Return the measurement with the threads and the limit of *row*; None for a server that the network feeds."""
    levels = {format_key(key): level for key, level in row.levels.items()}
    try:
        threads, limit = int(levels["threads"]), units.parse_bytes(levels["max direct memory"])
    except (KeyError, ValueError):
        return None
    return load_allocations().get((threads, limit)) if levels.get("mode", "alone") == "alone" else None


def allocation_rows(row: CellRuns, _rows: Sequence[CellRuns]) -> Iterator[PublishedRow]:
    """Yield the row of JDK-6857566 for this cell."""
    if (values := match_allocations(row)) is not None:
        yield PublishedRow(values=values, shared_factors=frozenset({"threads", "max direct memory"}))


@cache
def _load_es23185() -> tuple[es23185.PublishedRow, ...]:
    workloads = {"es-23185-pmc": "pmc", "es-23185-nyc_taxis": "nyc_taxis", "es-23185-network": None}
    folder = data_folder(FOLDER)
    return tuple(
        row
        for name, workload in workloads.items()
        for row in es23185.parse_rows((folder / f"{name}.csv").read_text(encoding="utf-8"), workload)
    )


def es23185_rows(row: CellRuns, _rows: Sequence[CellRuns]) -> Iterator[PublishedRow]:
    """Yield the issue's rows for this cell: one of its heap tables, one of loopback against Ethernet."""
    values = row.runs[0].values
    workload, predictor, heap = (values.get(name) for name in ("workload", "receive_predictor_bytes", "heap_bytes"))
    if not isinstance(predictor, int) or not isinstance(heap, int):
        return
    heaps = [item for item in _load_es23185() if item.network is None]
    networks = [item for item in _load_es23185() if item.network is not None]
    for items in (heaps, networks):
        match = es23185.find_row(items, str(workload), predictor, heap, str(values.get("network")))
        if match is not None:
            named = {"heap": match.heap_bytes, "network": match.network}
            shared = {"workload", "receive predictor", *(key for key, level in named.items() if level)}
            oom = {"docs_per_s_mean": "OOM"} if match.ran_out_of_memory else {}
            yield PublishedRow(values={**match.values, **oom}, shared_factors=frozenset(shared))


@cache
def load_forwarding() -> Mapping[tuple[str, str], str]:
    """Return the figures of `data-prepper-6394.csv` as text, by name and batch delay in ms ("" for any)."""
    return {
        (row["figure"], row["batch_delay_ms"]): format_range((float(row["least"]), float(row["most"])), format_number)
        for row in _read_csv("data-prepper-6394")
    }


def forwarding_rows(row: CellRuns, rows: Sequence[CellRuns]) -> Iterator[PublishedRow]:
    """Yield the figures of Data Prepper's pull request 6394 for this cell."""
    figures = load_forwarding()
    delay_ns = _capped_delay_ns(row)
    delay_ms = "" if delay_ns is None else f"{delay_ns / 1e6:g}"
    forwards = figures.get(("rounds_per_s", delay_ms), "") if delay_ms else ""
    ratio = "" if asynchronous_ratio(row, rows) is None else figures.get(("asynchronous_by_blocking", ""), "")
    if forwards or ratio:
        yield PublishedRow(values={"forwards_per_pair": forwards, "asynchronous_ratio": ratio})


def forwards_per_pair(row: CellRuns) -> float | None:
    """Return the forwards per second from one node to one other; None where that is unknown."""
    forwards, pairs = row.median(FORWARDS), _count_pairs(row)
    return forwards / pairs if forwards is not None and pairs else None


def cap_per_pair(row: CellRuns) -> float | None:
    """Return workers / batch delay, which limits `forwards_per_pair` unless the delay is skipped."""
    cap, pairs = row.median(CAP), _count_pairs(row)
    return cap / pairs if cap is not None and pairs else None


def asynchronous_ratio(row: CellRuns, rows: Sequence[CellRuns]) -> float | None:
    """Return documents delivered by an asynchronous cell, divided by those of the same cell with blocking forwards.

    None where one of the two cells is missing.
    """
    key = next((key for key in row.levels if format_key(key) == _WAITING), None)
    if key is None or row.levels[key] != _ASYNCHRONOUS:
        return None
    levels = {**row.levels, key: _BLOCKING}
    blocking = next((other.median(DELIVERED) for other in rows if other.levels == levels), None)
    delivered = row.median(DELIVERED)
    return delivered / blocking if delivered is not None and blocking else None


def _count_pairs(row: CellRuns) -> int:
    nodes = next((len(run.nodes) for run in row.valid if run.nodes), 0)
    return nodes * (nodes - 1)


def _capped_delay_ns(row: CellRuns) -> int | None:
    """Return the batch delay of a cell whose cap is the published one."""
    cap = cap_per_pair(row)
    delay = next((level for key, level in row.levels.items() if format_key(key) == "batch delay"), None)
    return None if cap is None or delay is None or round(cap) != _PUBLISHED_CAP else units.parse_time_ns(delay)


def _read_csv(name: str) -> list[dict[str, str]]:
    text = (data_folder(FOLDER) / f"{name}.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))
