"""The maximum send rate of this machine, measured by `ingest-bench calibrate`, and plans that exceed it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from ingest_bench.errors import SpecError
from ingest_bench.experiment import catalog
from ingest_bench.inputs import files, records
from ingest_bench.jvm import cache
from ingest_bench.model.experiment import Plan
from ingest_bench.model.load import LoadOptions
from ingest_bench.model.results import Summary
from ingest_bench.model.values import TIB, Between
from ingest_bench.results import safe_files

EXPERIMENT = "calibrate"


@dataclass(frozen=True, slots=True, kw_only=True)
class SendRate:
    """Maximum send rate with bodies of one size."""

    body_bytes: Annotated[float, Between(1, TIB)]
    """Mean of the requests, after compression."""
    processes: Annotated[int, Between(1, 256)]
    requests_per_s: Annotated[float, Between(1e-6, 1e9)]
    cpu_percent: Annotated[float, Between(0, 1e6)]
    """Percent of one core, in the busiest load process."""


def calibration_path() -> Path:
    """Return the path of the result, in the user's cache."""
    return cache.folder() / "calibration.json"


def rates_of_runs(plan: Plan, summaries: Iterable[Summary]) -> list[SendRate]:
    """Return the rates of the valid runs of a calibration."""
    cells = {run.id: run.cell for run in plan.runs}
    rates = []
    for summary in summaries:
        names = ("requests_answered", "bytes_measured", "generator_cpu_percent")
        requests, sent_bytes, cpu = (summary.values.get(name) for name in names)
        if summary.state != "measured" or not summary.measured_s:
            continue
        if isinstance(requests, int) and isinstance(sent_bytes, int) and requests and isinstance(cpu, (int, float)):
            rates.append(
                SendRate(
                    body_bytes=sent_bytes / requests,
                    processes=cells[summary.run].load.processes,
                    requests_per_s=requests / summary.measured_s,
                    cpu_percent=float(cpu),
                )
            )
    return rates


def save_rates(rates: Sequence[SendRate]) -> Path:
    """Write the rates; return the file. SpecError if it cannot be written."""
    file = calibration_path()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        files.write_json(file, {"sent": records.to_json(rates)})
    except OSError as error:
        raise SpecError(f"{file}: cannot be written ({error.strerror}); set INGEST_BENCH_CACHE to a folder") from None
    return file


def load_rates() -> list[SendRate]:
    """Return the rates of the last calibration; empty if there is none or its file cannot be read."""
    try:
        rates = [records.from_json(SendRate, table) for table in safe_files.read_json(calibration_path())["sent"]]
        for rate in rates:
            records.check(rate, "sent")
    except (SpecError, KeyError, TypeError, ValueError):
        return []
    return rates


def max_requests_per_s(rates: Sequence[SendRate], body_bytes: float, processes: int) -> float | None:
    """Return the possible requests per second with bodies of that size; None if nothing comparable was measured.

    Between two sizes the time of a request is interpolated: a part per request and a part per byte. Bodies below the
    smallest size are not faster; above the largest the time is proportional to the bytes.
    """
    counts = [rate.processes for rate in rates if rate.processes <= processes]
    comparable = [rate for rate in rates if counts and rate.processes == max(counts)]
    by_size = sorted(comparable, key=lambda rate: rate.body_bytes)
    if not by_size:
        return None
    if body_bytes <= by_size[0].body_bytes:
        return by_size[0].requests_per_s
    for low, high in itertools.pairwise(by_size):
        if body_bytes <= high.body_bytes:
            weight = (body_bytes - low.body_bytes) / (high.body_bytes - low.body_bytes)
            return 1 / ((1 - weight) / low.requests_per_s + weight / high.requests_per_s)
    return by_size[-1].requests_per_s * by_size[-1].body_bytes / body_bytes


def rate_warnings(plan: Plan, rates: Sequence[SendRate]) -> tuple[str, ...]:
    """Return a note for each cell that requests a higher rate than this machine sent in its calibration."""
    lines: dict[str, None] = {}
    for run in plan.runs:
        load = run.cell.load
        body_bytes, requested = _requested_rate(load)
        possible = max_requests_per_s(rates, body_bytes, load.processes) if requested else None
        if possible is not None and requested > possible:
            lines[
                f"note: {run.cell.name} requests {requested:,.0f} requests/s of {body_bytes:,.0f} bytes; this machine "
                f"sent at most {possible:,.0f} with {load.processes} load process{'es' * (load.processes > 1)} "
                "(`calibrate`)"
            ] = None
    return tuple(lines)


def _requested_rate(load: LoadOptions) -> tuple[float, float]:
    """Return body size and highest rate in requests per second; 0 if unknown."""
    if load.track is not None or load.documents is not None:
        return 0.0, 0.0
    workload = catalog.load_workload(load.workload)
    document_bytes = workload.mean_document_bytes
    body_bytes = load.bulk_bytes or (load.bulk_documents or workload.bulk_documents) * document_bytes
    arrivals = load.arrivals
    per_s = max((rate.per_s for rate in (arrivals.rate, arrivals.end_rate, *arrivals.rates) if rate), default=0.0)
    units_per_request = {"requests": 1.0, "documents": body_bytes / document_bytes, "bytes": body_bytes}[arrivals.unit]
    return body_bytes, per_s * (1 + arrivals.amplitude_ppm / 1e6) / units_per_request
