"""When a run got steady: the warm-up that is found from the data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingest_bench.analysis.samples import Samples
from ingest_bench.model.load import WorkerReport
from ingest_bench.model.results import Remark, Value

# MSER-5 (White, Cobb and Spratt, "A comparison of five steady-state truncation heuristics for simulation", 2000):
# means of 5 values, because single values are too noisy for the statistic.
_BATCH = 5
_SLOTS = 100
# A cut in the second half means that the minimum was not reached within the data (the rule of the same authors).
_LATEST_SHARE = 0.5
_LEAST_BATCHES = 8
NEVER = "throughput never got steady"


@dataclass(frozen=True, slots=True)
class Steady:
    """The beginning of the steady state; None: it was never reached, or there was too little to tell."""

    from_s: float | None
    """Seconds after the start of the load."""
    reason: str = ""


def truncation(values: Sequence[float]) -> int | None:
    """How many of the first values do not belong to the steady state, by MSER-5; None when it is never reached.

    Of all cuts the one after which the mean is known best: dropping the transient makes the spread smaller, dropping
    more than it only makes the sample smaller. A trend that does not end puts the best cut near the end.
    """
    batches = len(values) // _BATCH
    if batches < _LEAST_BATCHES:
        return None
    # The last values count whole; the remainder is dropped at the beginning, where the transient is.
    first = len(values) - batches * _BATCH
    means = np.asarray(values[first:], dtype=float).reshape(batches, _BATCH).mean(axis=1)
    # The last five cuts leave too few batches: their spread may be small by chance.
    scores = [float(((rest - rest.mean()) ** 2).sum()) / len(rest) ** 2 for rest in _rests(means)]
    cut = int(np.argmin(scores))
    if cut > batches * _LATEST_SHARE:
        return None
    return first + cut * _BATCH if cut else 0


def _rests(means: np.ndarray[Any, np.dtype[np.float64]]) -> list[np.ndarray[Any, np.dtype[np.float64]]]:
    return [means[cut:] for cut in range(len(means) - 4)]


def of_load(samples: Samples, report: WorkerReport) -> Steady:
    """When the acknowledged documents per time got steady, from the start of the load to the end of the measurement."""
    length_ns = report.measure_end_ns - report.started_monotonic_ns
    if length_ns <= 0 or not len(samples):
        return Steady(None, "nothing was sent")
    acked = samples[samples["documents_acked"] > 0]
    inside = acked[acked["done_ns"] < report.measure_end_ns]
    # A slot holds some requests: with fewer its number would be noise of whole bulks.
    slots = min(_SLOTS, len(inside) // 4)
    if slots < _BATCH * _LEAST_BATCHES:
        return Steady(None, f"too few requests to tell: {len(inside)}, at least {4 * _BATCH * _LEAST_BATCHES}")
    slot = (inside["done_ns"] - report.started_monotonic_ns) * slots // length_ns
    documents = np.zeros(slots)
    np.add.at(documents, slot, inside["documents_acked"])
    cut = truncation(documents.tolist())
    if cut is None:
        return Steady(None, NEVER)
    return Steady(cut * length_ns / slots / 1e9)


def values(samples: Samples, report: WorkerReport) -> dict[str, Value]:
    """The columns about the steady state."""
    found = of_load(samples, report)
    warm_up_s = (report.warm_up_end_ns - report.started_monotonic_ns) / 1e9
    late = found.from_s is not None and found.from_s > warm_up_s
    return {"steady_after_s": found.from_s, "steadiness": found.reason or ("late" if late else "steady")}


def remarks(found: Mapping[str, Value]) -> list[Remark]:
    """What a reader should know of the warm-up, from the columns; few requests are no news."""
    after_s, said = found["steady_after_s"], str(found["steadiness"])
    if isinstance(after_s, float) and said == "late":
        text = f"steady only {after_s:.1f} s after the start, within the measurement: give a longer warm_up"
        return [Remark(probe="load", text=text)]
    if said == NEVER:
        return [Remark(probe="load", text=f"{NEVER}: measure longer, or look for what drifts")]
    return []
