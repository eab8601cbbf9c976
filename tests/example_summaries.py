"""Synthetic summaries for tests of tables, plots and gates; the sizes are like those of real runs."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from ingest_bench.analysis.run import columns
from ingest_bench.model import results
from ingest_bench.model.results import Cause, ColumnValue, FaultRecord, Series, Stall, Summary

KIB = 1024
START_NS = 1_700_000_000 * 10**9
BUFFERS = {"4KiB": 4 * KIB, "16KiB": 16 * KIB, "32KiB": 32 * KIB, "64KiB": 64 * KIB, "512KiB": 512 * KIB}
# Mean read on each kind of link without the limit of a buffer, and the median segment on the wire.
LINKS = {
    "loopback": (900_000, 65483),
    "ethernet": (34_000, 1448),
    "ethernet-100m": (3_000, 1448),
    "jumbo": (60_000, 8948),
}


def reads(link: str, buffer_bytes: int, seed: int, number: int = 20_000) -> dict[int, int]:
    """Return log-normal read sizes around the link's mean, cut off at the buffer."""
    random = np.random.default_rng(seed)
    sizes = np.minimum(random.lognormal(np.log(LINKS[link][0]), 0.5, number).astype(int) + 1, buffer_bytes)
    values, counts = np.unique(sizes, return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))


def summary(levels: dict[str, str], replicate: int = 1, *, seed: int = 1, **changed: Any) -> Summary:
    """Return a run of that cell, valid unless *changed* says otherwise."""
    link, buffer_bytes = levels.get("network", "ethernet"), BUFFERS[levels.get("receive_predictor", "64KiB")]
    random = np.random.default_rng([seed, replicate, buffer_bytes, LINKS[link][0]])
    counts = reads(link, buffer_bytes, int(random.integers(1 << 30)))
    docs_per_s = 21_000 * (1 if link == "loopback" else 0.9) * random.normal(1, 0.02)
    mean_bytes = sum(size * count for size, count in counts.items()) / sum(counts.values())
    gc_pauses = int(20 * (1 + 0.5 * buffer_bytes / mean_bytes) * random.normal(1, 0.05))
    read_bytes = 3.5e9
    large = buffer_bytes > 100_000
    values: dict[str, Any] = dict.fromkeys(column.name for column in columns.COLUMNS)
    values |= {
        "network": link,
        "netem_backend": "plain",
        "target": "opensearch 2.19.6",
        "workload": levels.get("workload", "nyc_taxis"),
        "heap_bytes": 1 << 30,
        "receive_predictor_bytes": buffer_bytes,
        "documents_acked": round(docs_per_s * 13),
        "documents_counted": round(docs_per_s * 13),
        "docs_per_s_mean": docs_per_s,
        "docs_per_s_p10": docs_per_s * 0.9,
        "docs_per_s_p90": docs_per_s * 1.1,
        "bytes_measured": round(read_bytes),
        "reads": round(read_bytes / mean_bytes),
        "read_bytes_mean": mean_bytes,
        "read_bytes_p50": results.percentile(counts, 50),
        "read_bytes_p99": results.percentile(counts, 99),
        "response_ms_p50": 120.5,
        "response_ms_p99": 412.25 * random.normal(1, 0.05),
        "allocated_bytes": 30 * int(read_bytes),
        "allocated_network_bytes": int(read_bytes * (3 + 0.5 * buffer_bytes / mean_bytes)),
        "gc_pauses": gc_pauses,
        "gc_pause_ms_total": gc_pauses * 7.5,
        "full_gcs": 0,
        "heap_after_gc_max_bytes": 400 << 20,
        "outside_tlab_network_bytes": round(read_bytes / mean_bytes * buffer_bytes) if large else 10**8,
        "outside_tlab_lucene_bytes": 3 * 10**8,
        "outside_tlab_other_bytes": 6 * 10**8,
    }
    values |= columns.per_gb_columns(values)
    name = ",".join(f"{key}={level}" for key, level in levels.items()) or "only"
    fields: dict[str, Any] = {
        "run": f"{name}/{replicate}",
        "cell": name,
        "replicate": replicate,
        "levels": levels,
        "state": "measured",
        "reason": "",
        "values": values,
        "histograms": {"read_bytes": counts},
        "experiment": "made",
        "measure_start_ns": START_NS,
        "measure_end_ns": START_NS + 60 * 10**9,
    }
    return Summary(**(fields | changed))


def experiment(replicates: int = 3, **factors: Sequence[str]) -> list[Summary]:
    """Return all runs of all combinations of levels."""
    combinations = [dict(zip(factors, chosen, strict=True)) for chosen in itertools.product(*factors.values())]
    return [summary(levels, replicate) for levels in combinations for replicate in range(1, replicates + 1)]


def with_wire(run: Summary) -> Summary:
    """Return the run with segment sizes on the wire."""
    segment = LINKS[run.levels["network"]][1]
    counts = {segment: 900_000, segment // 2: 20_000, 52: 5_000}
    return changed(run, histograms={**run.histograms, "wire_bytes": counts}, values={"wire_bytes_p50": segment})


def with_series(run: Summary, *, fault: bool = False) -> Summary:
    """Return the run with a minute of series, and a partition from 20 s to 30 s."""
    random = np.random.default_rng(3)
    seconds = np.arange(-5, 60)
    docs = random.normal(21_000, 900, len(seconds)).clip(0)
    response = random.normal(120, 8, len(seconds))
    if fault:
        down = (seconds >= 20) & (seconds < 31)
        docs[down] = 0
        response[(seconds >= 31) & (seconds < 33)] = 10_500
        response = np.where(down, np.nan, response)
    kept = ~np.isnan(response)
    moments = START_NS + seconds * 10**9
    pauses_at = np.sort(random.uniform(-5, 60, 40))
    heap = np.array([value for at in pauses_at for value in (random.uniform(6e8, 9e8), random.uniform(2e8, 3e8))])
    heap_at = np.repeat(START_NS + (pauses_at * 1e9).astype(np.int64), 2)
    series = [
        _series("docs_per_s", moments, docs),
        _series("response_ms_p50", moments[kept], response[kept]),
        _series("response_ms_max", moments[kept], response[kept] * 2.5),
        _series("response_ok_ms_max", moments[kept], np.minimum(response[kept], 150) * 2.5),
        _series("heap_bytes", heap_at, heap),
        _series("gc_pause_ms", heap_at[::2], random.gamma(2, 6, len(pauses_at))),
    ]
    more: dict[str, Any] = {"series": {item.name: item for item in series}}
    if fault:
        ruled_out = (Cause(cause="garbage collection", duration_ns=0, reason="12 responses meanwhile"),)
        more["stalls"] = (stall(20, 31, "packets lost on the network", ruled_out=ruled_out),)
        more["faults"] = (fault_record("partition", 20, 30),)
    return changed(run, **more)


def fault_record(kind: str, begin_s: float, end_s: float | None) -> FaultRecord:
    """Return a fault in seconds from the start of the measurement."""
    begin_ns, end_ns = (None if at is None else START_NS + round(at * 1e9) for at in (begin_s, end_s))
    return FaultRecord(kind=kind, start_ns=begin_ns or 0, end_ns=end_ns)


def stall(begin_s: float, end_s: float, *causes: str, ruled_out: tuple[Cause, ...] = ()) -> Stall:
    """Return a stall in seconds from the start of the measurement, explained by each of the causes."""
    length_ns = round((end_s - begin_s) * 1e9)
    return Stall(
        start_ns=START_NS + round(begin_s * 1e9),
        end_ns=START_NS + round(begin_s * 1e9) + length_ns,
        requests=4,
        max_concurrent=4,
        longest_response_ns=length_ns,
        causes=tuple(Cause(cause=cause, duration_ns=length_ns) for cause in causes),
        unexplained_ns=0 if causes else length_ns,
        ruled_out=ruled_out,
    )


def changed(run: Summary, /, **fields: Any) -> Summary:
    """Return the run with some fields replaced; *values* are merged."""
    if "values" in fields:
        values = {**run.values, **fields["values"]}
        fields["values"] = {**values, **columns.per_gb_columns(values)}
    return dataclasses.replace(run, **fields)


def replicates(column: str, values: Sequence[ColumnValue], /, **fields: Any) -> list[Summary]:
    """Return runs of one cell that have these values of the column, and are equal otherwise."""
    first = changed(summary({"network": "ethernet"}), **fields)
    return [
        changed(first, run=f"{first.cell}/{number}", replicate=number, values={column: value})
        for number, value in enumerate(values, 1)
    ]


def _series(name: str, moments: Any, values: Any) -> Series:
    return Series(name, tuple(int(at) for at in moments), tuple(float(value) for value in values))
