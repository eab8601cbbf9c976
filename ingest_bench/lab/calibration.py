"""What this machine can send, as `ingest-bench calibrate` measured it, and whether a plan asks for more."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from ingest_bench.errors import SpecError
from ingest_bench.experiment import catalog
from ingest_bench.inputs import records
from ingest_bench.jvm import cache
from ingest_bench.model.experiment import Plan
from ingest_bench.model.load import LoadOptions
from ingest_bench.model.results import Summary
from ingest_bench.model.values import TIB, Between
from ingest_bench.results import whole_files

EXPERIMENT = "calibrate"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """The most that was sent of bodies of one size."""

    body_bytes: Annotated[float, Between(1, TIB)]
    """The mean of the requests, as they were sent."""
    processes: Annotated[int, Between(1, 256)]
    requests_per_s: Annotated[float, Between(1e-6, 1e9)]
    cpu_percent: Annotated[float, Between(0, 1e6)]
    """Of one core, in the busiest load process."""


def path() -> Path:
    """Where the result is kept: in the user's cache."""
    return cache.folder() / "calibration.json"


def measured(plan: Plan, summaries: Iterable[Summary]) -> list[Sent]:
    """What the valid runs of the calibration sent."""
    cells = {run.id: run.cell for run in plan.runs}
    found = []
    for summary in summaries:
        values, start_ns, end_ns = summary.values, summary.measure_start_ns, summary.measure_end_ns
        requests, sent, cpu = (
            values.get(name) for name in ("requests_answered", "bytes_measured", "generator_cpu_percent")
        )
        if summary.state != "measured" or start_ns is None or end_ns is None:
            continue
        if isinstance(requests, int) and isinstance(sent, int) and requests and isinstance(cpu, (int, float)):
            found.append(
                Sent(
                    body_bytes=sent / requests,
                    processes=cells[summary.run].load.processes,
                    requests_per_s=requests / ((end_ns - start_ns) / 1e9),
                    cpu_percent=float(cpu),
                )
            )
    return found


def keep(sent: Sequence[Sent]) -> Path:
    """The file that the result was written to; SpecError when it cannot be."""
    file = path()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        whole_files.write_json(file, {"sent": records.to_json(sent)})
    except OSError as error:
        raise SpecError(f"{file}: cannot be written ({error.strerror}); set INGEST_BENCH_CACHE to a folder") from None
    return file


def kept() -> list[Sent]:
    """The result of the last calibration; nothing when there was none or its file cannot be read."""
    try:
        found = [records.from_json(Sent, table) for table in whole_files.read_json(path())["sent"]]
        for sent in found:
            records.check(sent, "sent")
    except (SpecError, KeyError, TypeError, ValueError):
        return []
    return found


def most_per_s(sent: Sequence[Sent], body_bytes: float, processes: int) -> float | None:
    """Requests in a second that were possible with bodies of that size; None when nothing like it was measured.

    Between two sizes the time of a request grows as a straight line: a part for the request, a part for its bytes.
    Smaller bodies than the smallest are no faster, larger ones cost their bytes.
    """
    counts = [each.processes for each in sent if each.processes <= processes]
    known = sorted(
        (each for each in sent if counts and each.processes == max(counts)), key=lambda each: each.body_bytes
    )
    if not known:
        return None
    if body_bytes <= known[0].body_bytes:
        return known[0].requests_per_s
    for low, high in itertools.pairwise(known):
        if body_bytes <= high.body_bytes:
            share = (body_bytes - low.body_bytes) / (high.body_bytes - low.body_bytes)
            return 1 / ((1 - share) / low.requests_per_s + share / high.requests_per_s)
    return known[-1].requests_per_s * known[-1].body_bytes / body_bytes


def warnings(plan: Plan, sent: Sequence[Sent]) -> tuple[str, ...]:
    """A line for each cell that asks for a higher rate than this machine sent when it was calibrated."""
    lines: dict[str, None] = {}
    for run in plan.runs:
        load = run.cell.load
        body_bytes, asked = _asked(load)
        most = most_per_s(sent, body_bytes, load.processes) if asked else None
        if most is not None and asked > most:
            lines[
                f"note: {run.cell.name} asks for {asked:,.0f} requests/s of {body_bytes:,.0f} bytes; this machine sent "
                f"at most {most:,.0f} with {load.processes} load process{'es' * (load.processes > 1)} (`calibrate`)"
            ] = None
    return tuple(lines)


def _asked(load: LoadOptions) -> tuple[float, float]:
    """The body's size and the highest rate of requests in a second; a rate of 0 where nobody can say."""
    if load.track is not None or load.documents is not None:
        return 0.0, 0.0
    workload = catalog.workload(load.workload)
    document_bytes = workload.mean_document_bytes
    body_bytes = load.bulk_bytes or (load.bulk_documents or workload.bulk_documents) * document_bytes
    arrivals = load.arrivals
    per_s = max((rate.per_s for rate in (arrivals.rate, arrivals.to, *arrivals.rates) if rate), default=0.0)
    of_a_request = {"requests": 1.0, "documents": body_bytes / document_bytes, "bytes": body_bytes}[arrivals.unit]
    return body_bytes, per_s * (1 + arrivals.amplitude_ppm / 1e6) / of_a_request
