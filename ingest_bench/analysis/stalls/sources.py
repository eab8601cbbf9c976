"""The causes of stalls that need no probe: the faults of the run, and the generator's own silence. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from ingest_bench.analysis.run.samples import Samples
from ingest_bench.model.load import WorkerReport
from ingest_bench.model.results import Happened, Interval, Measured, Watched

GENERATOR = "the load generator stood still"
# A worker marks its CPU once a second: later than this, and its event loop did not come around.
_MARK_NS, _LATE_NS = 10**9, 10**8


def watched(
    measured: Iterable[Measured], happened: Sequence[Happened], cpu: Sequence[Samples], report: WorkerReport
) -> list[Watched]:
    """All causes that were looked for: what we did ourselves comes first, and is named before what it led to."""
    end_ns = report.measure_end_ns + report.realtime_minus_monotonic_ns
    probes = (item for item in measured if isinstance(item, Watched))
    return [*faults(happened, end_ns), *probes, *generator(cpu, report)]


def faults(happened: Sequence[Happened], end_ns: int) -> list[Watched]:
    """Each kind of fault that lasted; one that has no length explains nothing by itself."""
    kinds = dict.fromkeys(fault.kind for fault in happened)
    return [
        Watched(
            f"fault {kind}",
            tuple(
                Interval(f"fault {kind}", fault.started, fault.ended or end_ns)
                for fault in happened
                if fault.kind == kind
            ),
        )
        for kind in kinds
    ]


def generator(cpu: Sequence[Samples], report: WorkerReport) -> list[Watched]:
    """When a process of the load was late with its mark of each second; nothing where there are no marks."""
    if not any(len(marks) > 1 for marks in cpu):
        return []
    clocks = [marks["at_ns"] + report.realtime_minus_monotonic_ns for marks in cpu]
    return [
        Watched(
            GENERATOR,
            tuple(
                Interval(GENERATOR, int(at_ns[place]) + _MARK_NS, int(at_ns[place + 1]))
                for at_ns in clocks
                for place in np.flatnonzero(np.diff(at_ns) > _MARK_NS + _LATE_NS).tolist()
            ),
        )
    ]
