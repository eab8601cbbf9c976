"""The published tables of Elasticsearch issue 23185 in this tool's units, to stand beside our own rows."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ingest_bench.analysis.run import per_gb

# Documents and bytes of the corpora that the issue indexed (the tracks pmc and nyc_taxis of Rally).
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
class Published:
    """One row of the issue: what it was measured with, and its numbers by the names of our columns."""

    workload: str
    receive_predictor_bytes: int
    heap_bytes: int | None
    """None: the issue does not say."""
    network: str | None
    ran_out_of_memory: bool
    values: Mapping[str, float]
    """Those for each GB (10^9 bytes) are of the corpus. One that ran out of memory took nobody knows how much of it."""


def rows(text: str, workload: str | None = None) -> list[Published]:
    """The rows of one published CSV; the workload is a column of it or given."""
    return [_row(row, workload or row["workload"]) for row in csv.DictReader(text.splitlines())]


def matching(
    published: Sequence[Published], workload: str, predictor_bytes: int, heap_bytes: int, network: str
) -> Published | None:
    """The row of those conditions: the same heap where the issue names one, else the same network."""
    for row in published:
        same = row.workload == workload and row.receive_predictor_bytes == predictor_bytes
        if same and row.heap_bytes in (None, heap_bytes) and row.network in (None, network):
            return row
    return None


def number(text: str) -> float | None:
    """The number that "13.76 kB", "1.39 GB/s" or "42890" means, in bytes, bytes a second or as it is; None without."""
    found = _NUMBER.fullmatch(text.strip())
    return float(found[1].replace(",", "")) * _UNITS[found[2]] if found else None


def _row(row: Mapping[str, str], workload: str) -> Published:
    known = ((ours, number(row[theirs])) for theirs, ours in _COLUMNS.items() if theirs in row)
    values = {ours: value for ours, value in known if value is not None}
    # The table of nyc_taxis leaves the totals out; they are the count by the mean.
    for kind in ("outside_tlab", "tlab"):
        count, mean = values.get(f"{kind}_count"), values.get(f"{kind}_mean_bytes")
        if count is not None and mean is not None:
            values.setdefault(f"{kind}_total_bytes", count * mean)
    ran_out_of_memory = row.get("median_docs_per_s", "").startswith("OOM")
    if not ran_out_of_memory:
        shares = per_gb.shares({**values, "bytes_measured": CORPORA[workload][1]})
        values |= {name: share for name, share in shares.items() if share is not None}
    return Published(
        workload=workload,
        receive_predictor_bytes=int(row["receive_predictor_kb"]) << 10,
        heap_bytes=int(row["heap_gb"]) << 30 if "heap_gb" in row else None,
        network=row.get("network"),
        ran_out_of_memory=ran_out_of_memory,
        values=values,
    )
