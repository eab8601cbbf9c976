"""Published tables of Elasticsearch issue 23185 in the units of our columns."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ingest_bench.analysis.run.columns import per_gb_columns

# Documents and bytes of the indexed corpora (Rally's tracks pmc and nyc_taxis).
CORPORA = {"pmc": (574_199, 23_256_051_757), "nyc_taxis": (165_346_692, 79_802_445_255)}
_NUMBER = re.compile(r"([0-9][0-9.,]*) ?(bytes|kB|MB|GB|TB)?(/s)?")
# Java Mission Control: 64,262,780 objects of 3.07 kB are its 188.15 GB only with powers of 1024.
_UNITS = {None: 1, "bytes": 1, "kB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}
_COLUMNS = {
    "outside_tlab_objects": "outside_tlab_count",
    "outside_tlab_max": "outside_tlab_max_bytes",
    "outside_tlab_min": "outside_tlab_min_bytes",
    "outside_tlab_avg": "outside_tlab_mean_bytes",
    "outside_tlab_total": "outside_tlab_total_bytes",
    "outside_tlab_rate": "outside_tlab_bytes_per_s",
    "tlab_count": "tlab_count",
    "tlab_max": "tlab_max_bytes",
    "tlab_min": "tlab_min_bytes",
    "tlab_avg": "tlab_mean_bytes",
    "tlab_total": "tlab_total_bytes",
    "tlab_rate": "tlab_bytes_per_s",
    "median_docs_per_s": "docs_per_s_mean",
    "outside_tlab_network_total": "outside_tlab_network_bytes",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRow:
    """One row of the issue: its conditions, and its numbers by the names of our columns."""

    workload: str
    receive_predictor_bytes: int
    heap_bytes: int | None
    """None: not stated in the issue."""
    network: str | None
    ran_out_of_memory: bool
    values: Mapping[str, float]
    """Values per GB (10^9 bytes) refer to the corpus; a row that ran out of memory has none."""


def parse_rows(text: str, workload: str | None = None) -> list[PublishedRow]:
    """Return the rows of one published CSV. *workload*: if the CSV has no such column."""
    return [_row(row, workload or row["workload"]) for row in csv.DictReader(text.splitlines())]


def find_row(
    published: Sequence[PublishedRow], workload: str, predictor_bytes: int, heap_bytes: int, network: str
) -> PublishedRow | None:
    """Return the row with these conditions; heap and network must agree if the row states them."""
    for row in published:
        same = row.workload == workload and row.receive_predictor_bytes == predictor_bytes
        if same and row.heap_bytes in (None, heap_bytes) and row.network in (None, network):
            return row
    return None


def parse_number(text: str) -> float | None:
    """Return the number in "13.76 kB", "1.39 GB/s" or "42890", in bytes, bytes/s or as it is; None for other text."""
    match = _NUMBER.fullmatch(text.strip())
    return float(match[1].replace(",", "")) * _UNITS[match[2]] if match else None


def _row(row: Mapping[str, str], workload: str) -> PublishedRow:
    numbers = {column: parse_number(row[name]) for name, column in _COLUMNS.items() if name in row}
    values = {column: value for column, value in numbers.items() if value is not None}
    # The table of nyc_taxis has no totals; they are count times mean.
    for kind in ("outside_tlab", "tlab"):
        count, mean = values.get(f"{kind}_count"), values.get(f"{kind}_mean_bytes")
        if count is not None and mean is not None:
            values.setdefault(f"{kind}_total_bytes", count * mean)
    ran_out_of_memory = row.get("median_docs_per_s", "").startswith("OOM")
    if not ran_out_of_memory:
        shares = per_gb_columns({**values, "bytes_measured": CORPORA[workload][1]})
        values |= {name: share for name, share in shares.items() if share is not None}
    return PublishedRow(
        workload=workload,
        receive_predictor_bytes=int(row["receive_predictor_kb"]) << 10,
        heap_bytes=int(row["heap_gb"]) << 30 if "heap_gb" in row else None,
        network=row.get("network"),
        ran_out_of_memory=ran_out_of_memory,
        values=values,
    )
