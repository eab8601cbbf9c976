"""Probe `gc`: pauses, full collections, heap and direct buffers, by the flight recorder and by the GC log.

Pauses are the recording's (nanoseconds); the log is the second source. Within the measurement both must know the same
pauses of the same collections, or the run is invalid. Where the recording is cut off the log speaks alone.
"""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ingest_bench.errors import SpecError
from ingest_bench.inputs import files
from ingest_bench.jvm.logs import Log
from ingest_bench.model.results import Interval, Measured, Reading, Remark, Series, Watched
from ingest_bench.nearest_rank import percentile
from ingest_bench.probes import recording
from ingest_bench.probes.pauses import gcagree, gclog

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from ingest_bench.probes.context import Events, ReadContext

# How far the JVM's log and our clock may be apart.
_LOG_NS = 20_000_000
# As causes of stalls.
PAUSE, STARVED = "garbage collection", "garbage collection waiting for a CPU"
_FAILURES = {
    "gc_promotion_failures": "jdk.PromotionFailed",
    "gc_evacuation_failures": "jdk.EvacuationFailed",
    "gc_concurrent_mode_failures": "jdk.ConcurrentModeFailure",
    "gc_allocation_stalls": "jdk.ZAllocationStall",
}
_HEAP_EVENTS = ("GarbageCollection", "GCPhasePause", "ZAllocationStall")
_PLAIN_EVENTS = ("GCHeapSummary", "PromotionFailed", "EvacuationFailed", "ConcurrentModeFailure")
DIRECT_BUFFERS: Events = {"jdk.DirectBufferStatistics": {"period": "1 s"}}
# A cycle beside the program: what it leaves in the heap is live data and new garbage, no measure of what survived.
_BACKGROUND = {"G1Old", "ConcurrentMarkSweep"}
_FULL = {"G1Full", "SerialOld", "ParallelOld", "PSMarkSweep"}
# All its collections have this one name, full ones too.
_SAYS_NOT_WHICH = {"Shenandoah"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Collection:
    """One collection as the recording tells it."""

    gc: int
    end_ns: int
    name: str
    cause: str


class Gc:
    """Events of collections, and the GC log with every collection: the recording starts after the first ones."""

    events: Events = {  # noqa: RUF012 - the Protocol asks for a plain attribute
        **{f"jdk.{name}": {"threshold": "0 ns"} for name in _HEAP_EVENTS},
        **{f"jdk.{name}": {"enabled": "true"} for name in _PLAIN_EVENTS},
        **DIRECT_BUFFERS,
    }
    # Not gc+humongous=debug: it adds a line for each humongous object to each pause, and nothing here needs them.
    logs: tuple[Log, ...] = (Log(name="gc.log", what="gc*=info"),)

    def watch(self, server_pid: int, raw: Path) -> AbstractContextManager[None]:  # noqa: ARG002
        """Nothing: the JVM itself writes recording and log."""
        return nullcontext()

    def read(self, context: ReadContext) -> Iterator[Measured]:
        """Pauses and collections that ended within the measurement."""
        found = recording.load(context)
        log = _log(context)
        if found.problem:
            yield Remark(probe="gc", text=found.problem)
        if log is None:
            yield Remark(probe="gc", text=f"there is no GC log in {context.raw}: no second source")
        else:
            yield from (Remark(probe="gc", text=text) for text in log.complaints())
            yield Reading("gc_collector", log.collector or None)
            yield Reading("g1_region_bytes", log.region_bytes or context.attachment.g1_region_bytes)
            yield Reading("humongous_regions_max", _humongous(log, context))
        if found.is_whole:
            yield from _from_recording(found, log, context)
        elif log is not None and log.is_understood:
            yield from _from_log(log, context)


def starved(context: ReadContext) -> list[tuple[int, int]]:
    """From when to when a collection had no CPU, by the log; none without a log."""
    log = _log(context)
    pauses = log.pauses if log is not None else []
    return [(pause.end_ns - pause.duration_ns, pause.end_ns) for pause in pauses if pause.is_starved]


def cause(start_ns: int, end_ns: int, lacked_cpu: Sequence[tuple[int, int]]) -> str:
    """What a pause is called: whether it is one of those."""
    is_one = any(abs(start_ns - start) <= _LOG_NS and abs(end_ns - end) <= _LOG_NS for start, end in lacked_cpu)
    return STARVED if is_one else PAUSE


def _log(context: ReadContext) -> gclog.GcLog | None:
    """The log; of a JVM that ran before, from the moment on at which the recording ran too."""
    path, attachment = context.raw / "gc.log", context.attachment
    if not path.exists():
        return None
    try:
        log = gclog.parse(files.lines(path), attachment.collector)
    except OSError as error:
        raise SpecError(f"{path}: this is no GC log: {error.strerror}") from None
    log.pauses = [pause for pause in log.pauses if pause.end_ns >= attachment.since_ns // 10**6 * 10**6]
    return log


def _from_recording(found: recording.Recording, log: gclog.GcLog | None, context: ReadContext) -> Iterator[Measured]:
    content = found.content
    recorded = [gcagree.Pause(gc, end, duration) for gc, end, duration, _ in content["pauses"]]
    pauses = recorded if log is None else gcagree.completed(recorded, log, content["last_ns"])
    collections = [
        Collection(gc=gc, end_ns=end, name=name, cause=cause) for gc, end, _, name, cause in content["collections"]
    ]
    within = [collection for collection in collections if context.covers(collection.end_ns)]
    yield from _over_time(pauses, context)
    full = sum(collection.name in _FULL for collection in within)
    is_known = not any(collection.name in _SAYS_NOT_WHICH for collection in collections)
    yield from _pauses([pause for pause in pauses if context.covers(pause.end_ns)], full if is_known else None)
    yield Reading("gc_collections", len(within))
    # The cycle beside the program, which begins with such a collection, has its cause.
    asked = (one for one in within if one.name not in _BACKGROUND)
    yield Reading("gc_humongous_collections", sum(one.cause == "G1 Humongous Allocation" for one in asked))
    causes = {collection.gc: collection.cause for collection in collections}
    yield Reading(
        "gc_causes", _by_cause(causes.get(one.gc, "cycle not ended") for one in pauses if context.covers(one.end_ns))
    )
    failures = Counter(name for end, name in content["failures"] if context.covers(end))
    for name, event in _FAILURES.items():
        yield Reading(name, failures[event] if event in content["known"] else None)
    yield from _heap(content["heap"], {one.gc for one in collections if one.name in _BACKGROUND}, context)
    yield from direct_buffers(content["direct"], context)
    if log is not None and log.is_understood:
        agreement = gcagree.compare(pauses, full, log.pauses, context)
        yield Reading("gc_pauses_log", agreement.log_pauses)
        yield from (Remark(probe="gc", text=text, invalidates=True) for text in agreement.differences)


def _from_log(log: gclog.GcLog, context: ReadContext) -> Iterator[Measured]:
    """The same from the log alone: milliseconds, and a heap in whole megabytes."""
    sure = [pause for pause in log.pauses if pause.is_sure]
    within = [pause for pause in sure if context.covers(pause.end_ns)]
    pauses = [gcagree.Pause(pause.gc, pause.end_ns, pause.duration_ns) for pause in sure]
    yield Remark(probe="gc", text="pauses and heap are the GC log's alone: the flight recording is not whole")
    yield from _over_time(pauses, context)
    yield from _pauses([pause for pause in pauses if context.covers(pause.end_ns)], sum(one.is_full for one in within))
    yield Reading("gc_pauses_log", len(within))
    yield Reading("gc_causes", _by_cause(pause.name for pause in within))
    after = [pause.after_bytes for pause in within if pause.collects and pause.after_bytes is not None]
    yield Reading("heap_after_gc_max_bytes", max(after, default=None))
    points = [
        (pause.end_ns + late, used)
        for pause in log.pauses
        for late, used in ((-pause.duration_ns, pause.before_bytes), (0, pause.after_bytes))
        if pause.collects and used is not None
    ]
    yield _series("heap_bytes", points)


def _pauses(pauses: Sequence[gcagree.Pause], full: int | None) -> Iterator[Measured]:
    counts = Counter(pause.duration_ns for pause in pauses)
    yield Reading("gc_pauses", len(pauses))
    yield Reading("full_gcs", full)
    yield Reading("gc_pause_ms_total", sum(pause.duration_ns for pause in pauses) / 1e6)
    for name, percent in (("p50", 50), ("p99", 99), ("max", 100)):
        value = percentile(counts, percent)
        yield Reading(f"gc_pause_ms_{name}", None if value is None else value / 1e6)


def _over_time(pauses: Sequence[gcagree.Pause], context: ReadContext) -> Iterator[Measured]:
    """All of them, also those of the warm-up: they delay what is sent then."""
    yield _series("gc_pause_ms", [(pause.end_ns - pause.duration_ns, pause.duration_ns / 1e6) for pause in pauses])
    lacked_cpu = starved(context)
    spans: dict[str, list[Interval]] = {PAUSE: [], STARVED: []}
    for pause in pauses:
        start_ns = pause.end_ns - pause.duration_ns
        called = cause(start_ns, pause.end_ns, lacked_cpu)
        spans[called].append(Interval(called, start_ns, pause.end_ns))
    for called, each in spans.items():
        yield Watched(called, tuple(each), stops=True, error_ns=_LOG_NS)


def _heap(summaries: list[list[int | str]], background: set[int], context: ReadContext) -> Iterator[Measured]:
    points, after = [], []
    for gc, moment, when, used, _ in summaries:
        if gc in background:
            continue
        points.append((int(moment), float(used)))
        if when == "After GC" and context.covers(int(moment)):
            after.append(int(used))
    yield Reading("heap_after_gc_max_bytes", max(after, default=None))
    yield _series("heap_bytes", points)


def direct_buffers(samples: list[list[int]], context: ReadContext) -> Iterator[Measured]:
    """The JVM's own direct buffers, each second. Java 11 has no such event; Netty may allocate beside this pool."""
    within = [sample for sample in samples if context.covers(sample[0])]
    yield Reading("direct_buffers_max", max((count for _, count, _, _ in within), default=None))
    yield Reading("direct_buffer_used_max_bytes", max((used for _, _, used, _ in within), default=None))
    yield Reading("direct_buffer_capacity_max_bytes", max((capacity for *_, capacity in within), default=None))
    if samples:
        yield _series("direct_buffer_bytes", [(moment, float(used)) for moment, _, used, _ in samples])


def _humongous(log: gclog.GcLog, context: ReadContext) -> int | None:
    within = [before for moment, before, _ in log.humongous_regions if context.covers(moment)]
    return max(within, default=None)


def _by_cause(causes: Iterator[str]) -> str:
    return ", ".join(f"{cause}: {count}" for cause, count in Counter(causes).most_common())


def _series(name: str, points: Sequence[tuple[int, float]]) -> Series:
    ordered = sorted(points)
    return Series(name, tuple(at for at, _ in ordered), tuple(value for _, value in ordered))


GC = Gc()
