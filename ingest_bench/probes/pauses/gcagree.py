"""Whether the flight recording and the GC log tell of the same pauses."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from ingest_bench.probes.pauses.gclog import GcLog, LogPause

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ingest_bench.probes.context import ReadContext

# The two clocks of one pause are read some microseconds apart: 0.14 ms was the largest difference of 90 pauses of a
# quiet JVM. A thread that loses its CPU in between made it 4 ms, so single pauses are not compared but their sum.
TOLERANCE_NS = 20_000_000
TOLERANCE = 0.05


@dataclass(frozen=True, slots=True)
class Pause:
    """One pause of the recording."""

    gc: int
    end_ns: int
    duration_ns: int


_P = TypeVar("_P", Pause, LogPause)


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """How many pauses the log has within the measurement, and in what the two differ: nothing is good."""

    log_pauses: int
    differences: tuple[str, ...]


def completed(pauses: Sequence[Pause], log: GcLog, until_ns: int) -> list[Pause]:
    """The recording's pauses, with what it cannot have from the log. `until_ns`: its last event (CLOCK_REALTIME).

    One that waited for CMS is as long as the log says: the program stood still in it (JDK 11.0.13: 203 ms in the log,
    142 ms in the recording, 61 ms until CMS let go). And the JVM writes the pauses of a cycle beside the program when
    that ends: of one that had not ended they are the log's (JDK 11 and 17: a remark was not in a recording that was
    dumped 1.2 s later). Of a cycle of CMS that a full collection cut off, the log does not say when it ended.
    """
    waited = {pause.gc: pause.duration_ns for pause in log.pauses if pause.waited}
    known = {pause.gc for pause in pauses}
    unended = [
        Pause(pause.gc, pause.end_ns, pause.duration_ns)
        for pause in log.pauses
        if pause.is_of_a_cycle and pause.gc not in known
        if log.cycle_ends.get(pause.gc, until_ns) >= until_ns // 10**6 * 10**6
    ]
    return [*(replace(one, duration_ns=max(one.duration_ns, waited.get(one.gc, 0))) for one in pauses), *unended]


def compare(pauses: Iterable[Pause], full: int, log: Iterable[LogPause], context: ReadContext) -> Agreement:
    """Both sources within the measurement, pause by pause: the n-th of a collection is the n-th in both.

    A pause belongs to the measurement by the recording's time when the recording has it: the log's is cut to
    milliseconds. Collections before the recording began are the log's alone, and no difference. Nor is one of which the
    log is not sure.
    """
    recorded = _by_collection(pauses)
    logged = _by_collection(pause for pause in log if pause.is_sure or pause.gc in recorded)
    here: list[tuple[Pause, LogPause]] = []
    only_recorded, only_logged = [], []
    for gc in sorted(recorded.keys() | logged.keys()):
        ours, theirs = recorded.get(gc, []), logged.get(gc, [])
        here += [pair for pair in zip(ours, theirs, strict=False) if context.covers(pair[0].end_ns)]
        only_recorded += [pause for pause in ours[len(theirs) :] if context.covers(pause.end_ns)]
        only_logged += [pause for pause in theirs[len(ours) :] if context.covers(pause.end_ns)]
    differences = [*_one_sided(only_recorded, "the flight recording"), *_one_sided(only_logged, "the GC log")]
    logged_full = sum(pause.is_full for _, pause in here) + sum(pause.is_full for pause in only_logged)
    if full != logged_full:
        differences.append(f"full collections: {full} in the flight recording, {logged_full} in the GC log")
    differences += _sums(here)
    return Agreement(log_pauses=len(here) + len(only_logged), differences=tuple(differences))


def _by_collection(pauses: Iterable[_P]) -> dict[int, list[_P]]:
    groups: dict[int, list[_P]] = defaultdict(list)
    for pause in sorted(pauses, key=lambda one: one.end_ns):
        groups[pause.gc].append(pause)
    return groups


def _one_sided(pauses: Sequence[Pause | LogPause], source: str) -> list[str]:
    if not pauses:
        return []
    some = ", ".join(f"GC({pause.gc})" for pause in pauses[:5])
    return [f"{len(pauses)} pauses are only in {source}: {some}{' …' if len(pauses) > 5 else ''}"]


def _sums(pairs: Sequence[tuple[Pause, LogPause]]) -> list[str]:
    recorded = sum(ours.duration_ns for ours, _ in pairs)
    logged = sum(theirs.duration_ns for _, theirs in pairs)
    if abs(recorded - logged) <= max(TOLERANCE_NS, TOLERANCE * recorded):
        return []
    return [
        f"sum of {len(pairs)} pauses: {recorded / 1e6:.3f} ms in the recording, {logged / 1e6:.3f} ms in the GC log"
    ]
