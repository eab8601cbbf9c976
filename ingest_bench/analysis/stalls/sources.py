"""The causes of stalls that need no probe: the faults of the run, and the generator's own silence. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ingest_bench.analysis.run.sample_columns import Samples
from ingest_bench.model.load import WorkerReport
from ingest_bench.model.results import Happened, Interval, Measured, Watched

GENERATOR = "the load generator stood still"
# A timer of 50 ms tells of it (load.health).
_TIMER_NS = 60_000_000
# From the moment that is written down until a fault has begun, or ended: programs are started for some (tc, jcmd).
_FAULT_NS = 150_000_000
# A fault that is over so soon, such as a reset, has no length: what it leads to has.
_SUDDEN_NS = 100_000_000
# While these last nothing of the node answers.
_STOPPING = frozenset(("pause",))
# While these last its threads have no CPU.
_STARVING = frozenset(("cpu",))


def watched(
    measured: Iterable[Measured], happened: Sequence[Happened], standstills: Sequence[Samples], report: WorkerReport
) -> list[Watched]:
    """All causes that were looked for."""
    end_ns = report.measure_end_ns + report.realtime_minus_monotonic_ns
    probes = (item for item in measured if isinstance(item, Watched))
    return [*faults(happened, end_ns), *probes, *generator(standstills, report)]


def faults(happened: Sequence[Happened], end_ns: int) -> list[Watched]:
    """Each kind of fault, of each node that it hit."""
    kinds: dict[tuple[str, int | None], list[Happened]] = {}
    for fault in happened:
        kinds.setdefault((fault.kind, fault.node), []).append(fault)
    found = []
    for (kind, node), each in kinds.items():
        name = f"fault {kind}"
        spans = tuple(Interval(name, fault.started, fault.ended or end_ns) for fault in each)
        sudden = all(span.end_ns - span.start_ns < _SUDDEN_NS for span in spans)
        found.append(
            Watched(
                name,
                spans,
                node,
                stops=kind in _STOPPING,
                sudden=sudden,
                varies=True,
                starves=kind in _STARVING,
                error_ns=_FAULT_NS,
            )
        )
    return found


def generator(standstills: Sequence[Samples], report: WorkerReport) -> list[Watched]:
    """When a process of the load stood still; nothing where none of them looked."""
    if not standstills:
        return []
    offset_ns = report.realtime_minus_monotonic_ns
    spans = tuple(
        Interval(GENERATOR, start_ns + offset_ns, end_ns + offset_ns)
        for each in standstills
        for start_ns, end_ns in zip(each["start_ns"].tolist(), each["end_ns"].tolist(), strict=True)
    )
    return [Watched(GENERATOR, spans, stops=len(standstills) == 1, before_sending=True, error_ns=_TIMER_NS)]
