"""Published measurements that stand beneath our rows: JDK-6857566, Elasticsearch 23185, Data Prepper 6394."""

from __future__ import annotations

import contextlib
import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

from ingest_bench import units
from ingest_bench.analysis.compare.cells import CellRuns
from ingest_bench.analysis.run.columns import per_gb_columns
from ingest_bench.inputs.files import data_folder
from ingest_bench.report.formatting import format_key, format_number, format_range

FOLDER = "results/reference/published"
DELIVERED, FORWARDS, CAP = "delivered_per_s", "forwards_per_s", "forwards_cap_per_s"
# Pull request 6394 published its rounds for 50 rounds/s of each node.
_PUBLISHED_CAP = 50
# Bytes of the indexed corpora (Rally's tracks pmc and nyc_taxis).
CORPUS_BYTES = {"pmc": 23_256_051_757, "nyc_taxis": 79_802_445_255}
_ES23185_NUMBER = re.compile(r"([0-9][0-9.,]*) ?(bytes|kB|MB|GB|TB)?(/s)?")
# Java Mission Control: 64,262,780 objects of 3.07 kB are its 188.15 GB only with powers of 1024.
_ES23185_UNITS = {None: 1, "bytes": 1, "kB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}
_ES23185_CONDITIONS = ("workload", "network", "heap_gb", "receive_predictor_kb")


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRow:
    """A row beneath a measured one: numbers (or texts) by column name, and the conditions that it states."""

    values: Mapping[str, float | str]
    conditions: Mapping[str, object] = field(default_factory=dict)
    """By factors as `formatting.format_key` writes them. Levels of other factors are not published."""


@cache
def load_allocations() -> tuple[PublishedRow, ...]:
    """Return the measurements of JDK-6857566 in our columns."""
    return tuple(map(_convert_allocations, _read_csv("jdk-6857566")))


def _convert_allocations(row: Mapping[str, str]) -> PublishedRow:
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
        values["direct_sleeps"] = f"1 ms: {waits[1] + waits[2]}" + (f", 2 ms: {waits[2]}" if waits[2] else "")
    return PublishedRow(
        values=values,
        conditions={"threads": threads, "max direct memory": int(row["max_direct_memory_mb"]) << 20},
    )


def allocation_rows(row: CellRuns, _rows: Sequence[CellRuns] = ()) -> Iterator[PublishedRow]:
    """Yield the row of JDK-6857566 with the threads and limit of *row*; none for a server that the network feeds."""
    levels = {format_key(key): level for key, level in row.levels.items()}
    # The levels of another server may be missing, or not numbers.
    with contextlib.suppress(KeyError, ValueError):
        ours = {"threads": int(levels["threads"]), "max direct memory": units.parse_bytes(levels["max direct memory"])}
        if levels.get("mode", "alone") == "alone":
            yield from (published for published in load_allocations() if published.conditions == ours)


@cache
def load_es23185() -> tuple[PublishedRow, ...]:
    """Return the rows of the issue in our columns. Values per GB (10^9 bytes) refer to the corpus."""
    return tuple(
        _convert_es23185({"workload": name, **row})
        for name in ("pmc", "nyc_taxis", "network")
        for row in _read_csv(f"es-23185-{name}")
    )


def parse_es23185_number(text: str) -> float | None:
    """Return the number in "13.76 kB", "1.39 GB/s" or "42890", in bytes, bytes/s or as it is; None for other text."""
    match = _ES23185_NUMBER.fullmatch(text.strip())
    return float(match[1].replace(",", "")) * _ES23185_UNITS[match[2]] if match else None


def _convert_es23185(row: Mapping[str, str]) -> PublishedRow:
    numbers = {name: parse_es23185_number(text) for name, text in row.items() if name not in _ES23185_CONDITIONS}
    values: dict[str, float | str] = {column: value for column, value in numbers.items() if value is not None}
    # The table of nyc_taxis has no totals; they are count times mean.
    for kind in ("outside_tlab", "tlab"):
        count, mean = numbers.get(f"{kind}_count"), numbers.get(f"{kind}_mean_bytes")
        if count is not None and mean is not None:
            values.setdefault(f"{kind}_total_bytes", count * mean)
    if row.get("docs_per_s_mean", "").startswith("OOM"):
        values["docs_per_s_mean"] = "OOM"
    else:
        shares = per_gb_columns({**values, "bytes_measured": CORPUS_BYTES[row["workload"]]})
        values |= {name: share for name, share in shares.items() if share is not None}
    heap = {"heap": int(row["heap_gb"]) << 30} if "heap_gb" in row else {"network": row["network"]}
    conditions = {"workload": row["workload"], "receive predictor": int(row["receive_predictor_kb"]) << 10, **heap}
    return PublishedRow(values=values, conditions=conditions)


def es23185_rows(row: CellRuns, _rows: Sequence[CellRuns]) -> Iterator[PublishedRow]:
    """Yield the issue's rows for this cell: one of its heap tables, one of loopback against Ethernet."""
    columns = {"receive predictor": "receive_predictor_bytes", "heap": "heap_bytes"}
    values = row.runs[0].values
    for published in load_es23185():
        if all(values.get(columns.get(key, key)) == level for key, level in published.conditions.items()):
            yield published


@cache
def load_forwarding() -> Mapping[tuple[str, str], str]:
    """Return the figures of `data-prepper-6394.csv` as text, by name and batch delay in ms ("" for any)."""
    return {
        (row["figure"], row["batch_delay_ms"]): format_range((float(row["least"]), float(row["most"])), format_number)
        for row in _read_csv("data-prepper-6394")
    }


def forwarding_rows(row: CellRuns, rows: Sequence[CellRuns]) -> Iterator[PublishedRow]:
    """Yield the figures of Data Prepper's pull request 6394 for this cell."""
    figures, cap = load_forwarding(), cap_per_pair(row)
    delay = next((level for key, level in row.levels.items() if format_key(key) == "batch delay"), None)
    forwards = ""
    if cap is not None and round(cap) == _PUBLISHED_CAP and delay is not None:
        forwards = figures.get(("rounds_per_s", f"{units.parse_time_ns(delay) / 1e6:g}"), "")
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
    """Return documents delivered by an asynchronous cell, divided by those of its blocking cell; None without both."""
    key = next((key for key in row.levels if format_key(key) == "waiting"), None)
    if key is None or row.levels[key] != "asynchronous":
        return None
    levels = {**row.levels, key: "blocking"}
    blocking = next((other.median(DELIVERED) for other in rows if other.levels == levels), None)
    delivered = row.median(DELIVERED)
    return delivered / blocking if delivered is not None and blocking else None


def _count_pairs(row: CellRuns) -> int:
    nodes = next((len(run.nodes) for run in row.valid if run.nodes), 0)
    return nodes * (nodes - 1)


def _read_csv(name: str) -> list[dict[str, str]]:
    text = (data_folder(FOLDER) / f"{name}.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))
