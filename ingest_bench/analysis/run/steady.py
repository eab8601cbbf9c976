"""When a run got steady: the warm-up that is found from the data."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ingest_bench.analysis.numbers import transient
from ingest_bench.analysis.run.sample_columns import Samples, Tickets, pieces, spread_acked
from ingest_bench.model.load import WorkerReport
from ingest_bench.model.results import Remark, Value
from ingest_bench.model.samples import response_times_ns

# The end of a warm-up of 30 s then falls on 75 ms.
_SLOTS = 400
# A slot's median of 5,000 requests is as good as that of all.
_MOST = 2 * 10**6
_NEVER = "never got steady"


@dataclass(frozen=True, slots=True)
class Steady:
    """The beginning of the steady state; None: it was never reached, or there was too little to tell."""

    from_s: float | None
    """Seconds after the start of the load."""
    reason: str = ""


def of_load(tickets: Tickets, report: WorkerReport) -> Steady:
    """When a load got steady, judged from its start to its end.

    Of a closed loop the throughput: acknowledged documents per time. An open loop's throughput is what its schedule
    says, from the first second on, so it is the response time that tells: of a cold server, of one that falls behind.
    """
    end_ns = _end_ns(report)
    if not len(tickets):
        return Steady(None, "nothing was sent")
    count = sum(int(_acked_before(samples, end_ns).sum()) for samples, _ in pieces(tickets))
    # A slot holds some requests: with fewer its number would be noise of whole bulks.
    slots = min(_SLOTS, count // 4)
    if slots < transient.FEWEST:
        return Steady(None, f"too few requests to tell: {count}, at least {4 * transient.FEWEST}")
    if report.is_open:
        # Slots of as many requests each: none is empty, and a median hides the one that was slow.
        times = [_times(samples[_acked_before(samples, end_ns)], count) for samples, _ in pieces(tickets)]
        inside = np.concatenate(times)
        inside = inside[np.argsort(inside["planned_ns"], kind="stable")]
        first = np.arange(slots) * len(inside) // slots
        times_ns = np.split(response_times_ns(inside), first[1:])
        values, begins_ns = [float(np.median(part)) for part in times_ns], inside["planned_ns"][first]
    else:
        each_ns = (end_ns - report.started_monotonic_ns) // slots
        values = spread_acked(tickets, report.started_monotonic_ns, slots, each_ns).tolist()
        begins_ns = report.started_monotonic_ns + np.arange(slots) * each_ns
    cut = transient.end(values)
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
