"""When a run got steady: the warm-up that is found from the data."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ingest_bench.analysis.run.samples import Samples, Tickets, pieces
from ingest_bench.model.load import WorkerReport
from ingest_bench.model.results import Remark, Value

# MSER-5 (White, Cobb and Spratt, "A comparison of five steady-state truncation heuristics for simulation", 2000):
# means of 5 values, because single values are too noisy for the statistic.
_BATCH = 5
# With 100 slots one steady series of noise in ten was called unsteady by chance; with 400 one in a hundred.
_SLOTS = 400
# The last quarter is never all that is left: a few batches may agree by chance.
_LEAST_LEFT_SHARE = 0.25
# A cut in the second half means that the minimum was not reached within the data (the rule of the same authors).
_LATEST_SHARE = 0.5
_LEAST_BATCHES = 8
# A slot's median of 5,000 requests is as good as that of all.
_MOST = 2 * 10**6
_NEVER = "never got steady"


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

    Ranks stand for the values: of 300 made series with noise and one stall of a twentieth of their length, a third was
    never steady by its values, 2% by its ranks. A true transient or trend is in the ranks too.
    """
    batches = len(values) // _BATCH
    if batches < _LEAST_BATCHES:
        return None
    # The last values count whole; the remainder is dropped at the beginning, where the transient is.
    first = len(values) - batches * _BATCH
    ranks = np.unique(np.asarray(values[first:], dtype=float), return_inverse=True)[1]
    means = ranks.reshape(batches, _BATCH).mean(axis=1)
    rests = (means[cut:] for cut in range(batches - math.ceil(batches * _LEAST_LEFT_SHARE) + 1))
    scores = [float(((rest - rest.mean()) ** 2).sum()) / len(rest) ** 2 for rest in rests]
    cut = int(np.argmin(scores))
    if cut > batches * _LATEST_SHARE:
        return None
    return first + cut * _BATCH if cut else 0


def of_load(tickets: Tickets, report: WorkerReport) -> Steady:
    """When a load got steady, judged from its start to its end.

    Of a closed loop the throughput: acknowledged documents per time. An open loop's throughput is what its schedule
    says, from the first second on, so it is the response time that tells: of a cold server, of one that falls behind.
    """
    end_ns = _end_ns(report)
    length_ns = end_ns - report.started_monotonic_ns
    if length_ns <= 0 or not len(tickets):
        return Steady(None, "nothing was sent")
    count = sum(int(_acked_before(samples, end_ns).sum()) for samples, _ in pieces(tickets))
    # A slot holds some requests: with fewer its number would be noise of whole bulks.
    slots = min(_SLOTS, count // 4)
    if slots < _BATCH * _LEAST_BATCHES:
        return Steady(None, f"too few requests to tell: {count}, at least {4 * _BATCH * _LEAST_BATCHES}")
    if report.is_open:
        # Slots of as many requests each: none is empty, and a median hides the one that was slow.
        times = [_times(samples[_acked_before(samples, end_ns)], count) for samples, _ in pieces(tickets)]
        inside = np.concatenate(times)
        inside = inside[np.argsort(inside["planned_ns"], kind="stable")]
        first = np.arange(slots) * len(inside) // slots
        times_ns = np.split(inside["done_ns"] - inside["planned_ns"], first[1:])
        seen, begins_ns = [float(np.median(part)) for part in times_ns], inside["planned_ns"][first]
    else:
        documents = np.zeros(slots)
        for samples, _ in pieces(tickets):
            acked = samples[_acked_before(samples, end_ns)]
            slot = (acked["done_ns"] - report.started_monotonic_ns) * slots // length_ns
            documents += np.bincount(slot, weights=acked["documents_acked"], minlength=slots)
        seen, begins_ns = documents.tolist(), report.started_monotonic_ns + np.arange(slots) * length_ns // slots
    cut = truncation(seen)
    if cut is None:
        return Steady(None, f"{'response time' if report.is_open else 'throughput'} {_NEVER}")
    return Steady(int(begins_ns[cut] - report.started_monotonic_ns) / 1e9 if cut else 0.0)


def _acked_before(samples: Samples, end_ns: int) -> Samples:
    chosen: Samples = (samples["documents_acked"] > 0) & (samples["done_ns"] < end_ns)
    return chosen


def _times(acked: Samples, count: int) -> Samples:
    """When they were planned and done. Of so many that memory is worth a thought every n-th stands for the others."""
    chosen = acked[:: -(-count // _MOST)]
    found = np.zeros(len(chosen), dtype=[("planned_ns", "<i8"), ("done_ns", "<i8")])
    found["planned_ns"], found["done_ns"] = chosen["planned_ns"], chosen["done_ns"]
    return found


def settled(tickets: Tickets, report: WorkerReport, measure_ns: int) -> WorkerReport:
    """The report of a load whose warm-up its data decide: it measures so long, from where the load was steady.

    The load went on for longer, and what came after is left out: a run that got steady early would otherwise count
    more pauses and more bytes than its replicate. A load that never got steady, or with too few requests to tell, is
    measured in its second half, and `remarks` says so. Rejected: to call that run invalid. Merges and collections
    make a server unsteady that an engineer wants to see, and what replicates differ by is the honest interval.
    """
    found, end_ns = of_load(tickets, report), _end_ns(report)
    warm_up_ns = (end_ns - report.started_monotonic_ns) // 2 if found.from_s is None else math.ceil(found.from_s * 1e9)
    start_ns = report.started_monotonic_ns + warm_up_ns
    return dataclasses.replace(
        report, warm_up_end_ns=start_ns, measure_end_ns=min(end_ns, start_ns + measure_ns), load_end_ns=end_ns
    )


def _end_ns(report: WorkerReport) -> int:
    return report.load_end_ns or report.measure_end_ns


def values(tickets: Tickets, report: WorkerReport) -> dict[str, Value]:
    """The columns about the steady state."""
    found = of_load(tickets, report)
    warm_up_s = (report.warm_up_end_ns - report.started_monotonic_ns) / 1e9
    late = found.from_s is not None and found.from_s > warm_up_s
    return {"steady_after_s": found.from_s, "steadiness": found.reason or ("late" if late else "steady")}


def remarks(found: Mapping[str, Value], *, sought: bool = False) -> list[Remark]:
    """What a reader should know of the warm-up, from the columns.

    Few requests are no news, unless the measurement was to begin where they say (`sought`).
    """
    after_s, said = found["steady_after_s"], str(found["steadiness"])
    if sought and after_s is None:
        return [Remark(probe="load", text=f"{said}: measured is the second half of the load, steady or not")]
    if isinstance(after_s, float) and said == "late":
        text = f"steady only {after_s:.1f} s after the start, within the measurement: give a longer warm_up"
        return [Remark(probe="load", text=text)]
    if said.endswith(_NEVER):
        return [Remark(probe="load", text=f"{said}: measure longer, or look for what drifts")]
    return []
