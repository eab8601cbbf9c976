"""Probe `gc`: pauses, full collections, heap and direct buffers, from the flight recording and the GC log.

Pauses are the recording's (nanoseconds); the log is the second source. Within the measurement both must have the same
pauses of the same collections, otherwise the run is invalid. If the recording is cut off, only the log is used.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from ingest_bench.errors import SpecError
from ingest_bench.inputs import files, untrusted
from ingest_bench.jvm.options import Log
from ingest_bench.model.results import CauseIntervals, Interval, Note, ProbeOutput, Reading, Series, percentile
from ingest_bench.probes import gc_log, recording
from ingest_bench.probes.context import Events, Probe, ReadContext
from ingest_bench.probes.gc_log import GcLog, Pause

_LOG = "gc.log"
# It has every collection; the recording starts after the first ones. Not gc+humongous=debug: it adds an unused line for
# each humongous object to each pause.
LOG = Log(name=_LOG, what="gc*=info")
# Thousands of collections; the rest is read the next time.
_MAX_FOLLOWED_BYTES = 1 << 22
# Largest distance between the JVM's log and our clock.
_LOG_NS = 20_000_000
# The two clocks of one pause are read some microseconds apart: 0.14 ms was the largest difference of 90 pauses of a
# quiet JVM. A thread that lost its CPU in between made it 4 ms, so the sum is compared, not single pauses.
TOLERANCE_NS = 20_000_000
TOLERANCE = 0.05
# As causes of stalls.
PAUSE, STARVED = "garbage collection", "garbage collection waiting for a CPU"
_FAILURES = {
    "gc_promotion_failures": "jdk.PromotionFailed",
    "gc_evacuation_failures": "jdk.EvacuationFailed",
    "gc_concurrent_mode_failures": "jdk.ConcurrentModeFailure",
    "gc_allocation_stalls": "jdk.ZAllocationStall",
}
DIRECT_BUFFERS: Events = {"jdk.DirectBufferStatistics": {"period": "1 s"}}
# Concurrent cycles: the heap after one holds live data and new garbage, so it does not measure survivors.
CONCURRENT = {"G1Old", "ConcurrentMarkSweep"}
_FULL = {"G1Full", "SerialOld", "ParallelOld", "PSMarkSweep"}
# All collections of Shenandoah have this name, full ones too.
_UNDISTINGUISHED = {"Shenandoah"}


class Collection(NamedTuple):
    """One collection of the recording."""

    gc: int
    end_ns: int
    duration_ns: int
    name: str
    cause: str


def _read_gc(context: ReadContext) -> Iterator[ProbeOutput]:
    """Yield pauses and collections that ended within the measurement."""
    recorded = yield from recording.open_recording(context, "gc", GC.events)
    log = load_log(context)
    if not (context.raw / _LOG).exists():
        yield Note(source="gc", text=f"there is no GC log in {context.raw}: no second source")
    else:
        yield from (Note(source="gc", text=text) for text in log.problems())
        yield Reading("gc_collector", log.collector or None)
        yield Reading("g1_region_bytes", g1_region_bytes(log, context))
        regions = [(before, after) for at_ns, before, after in log.humongous_regions if context.covers(at_ns)]
        yield Reading("humongous_regions_max", max((before for before, _ in regions), default=None))
        freed = sum(max(0, before - after) for before, after in regions)
        yield Reading("humongous_regions_freed", freed if regions else None)
    if recorded.is_complete:
        yield from _read_recording(recorded, log, context)
    elif log.is_supported:
        yield from _read_log_only(log, context)


GC = Probe(
    events={
        **{f"jdk.{name}": {"threshold": "0 ns"} for name in ("GarbageCollection", "GCPhasePause", "ZAllocationStall")},
        **{
            f"jdk.{name}": {"enabled": "true"}
            for name in ("GCHeapSummary", "PromotionFailed", "EvacuationFailed", "ConcurrentModeFailure")
        },
        **DIRECT_BUFFERS,
    },
    logs=(LOG,),
    read=_read_gc,
)


def starved_spans(log: GcLog) -> list[tuple[int, int]]:
    """Return start and end of each pause that had no CPU."""
    return [(pause.start_ns, pause.end_ns) for pause in log.pauses if pause.is_starved]


def pause_cause(start_ns: int, end_ns: int, starved: Sequence[tuple[int, int]]) -> str:
    """Return STARVED if the span is one of *starved*, otherwise PAUSE."""
    is_starved = any(abs(start_ns - start) <= _LOG_NS and abs(end_ns - end) <= _LOG_NS for start, end in starved)
    return STARVED if is_starved else PAUSE


def load_log(context: ReadContext) -> GcLog:
    """Return the GC log, empty if there is none; of an attached JVM from the moment on at which the recording ran."""
    path, attachment = context.raw / _LOG, context.attachment
    if not path.exists():
        return GcLog()
    try:
        log = gc_log.parse_gc_log(files.read_lines(path), attachment.collector)
    except OSError as error:
        raise SpecError(f"{path}: this is not a GC log: {error.strerror}") from None
    log.pauses = [pause for pause in log.pauses if pause.end_ns >= attachment.since_ns // 10**6 * 10**6]
    return log


class LogFollower:
    """Reads what the GC log of a running JVM gains. The JVM's user may write the folder."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / _LOG
        self._read_bytes = 0
        self.pause_ns = 0
        """Sum of all pauses so far."""
        self.heap_bytes: int | None = None
        """Heap after the last collection."""

    def read_on(self) -> None:
        """Read the lines since the last call; nothing if there is no log."""
        try:
            with untrusted.open_file(self._path) as file:
                file.seek(self._read_bytes)
                text = file.read(_MAX_FOLLOWED_BYTES)
        except OSError:
            return
        lines = text[: text.rfind(b"\n") + 1]
        self._read_bytes += len(lines)
        for pause in gc_log.parse_gc_log(lines.decode(errors="replace").splitlines()).pauses:
            self.pause_ns += pause.duration_ns
            self.heap_bytes = self.heap_bytes if pause.after_bytes is None else pause.after_bytes


def g1_region_bytes(log: GcLog, context: ReadContext) -> int | None:
    """Return the region size of G1; None for another collector."""
    return (log.region_bytes or context.attachment.g1_region_bytes) if log.collector == "g1" else None


def _read_recording(recorded: recording.Recording, log: GcLog, context: ReadContext) -> Iterator[ProbeOutput]:
    content = recorded.content
    pauses = [Pause(gc_id, end_ns, duration_ns) for gc_id, end_ns, duration_ns, _ in content["pauses"]]
    pauses = complete_pauses(pauses, log, content["last_ns"])
    pauses_within = [pause for pause in pauses if context.covers(pause.end_ns)]
    collections = [Collection(*fields) for fields in content["collections"]]
    within = [collection for collection in collections if context.covers(collection.end_ns)]
    yield from _pauses_over_time(pauses, log)
    full = sum(collection.name in _FULL for collection in within)
    is_full_known = not any(collection.name in _UNDISTINGUISHED for collection in collections)
    yield from _pause_readings(pauses_within, full if is_full_known else None)
    yield Reading("gc_collections", len(within))
    # A concurrent cycle has the cause of the collection that started it: do not count it twice.
    blocking = (collection for collection in within if collection.name not in CONCURRENT)
    yield Reading(
        "gc_humongous_collections", sum(collection.cause == "G1 Humongous Allocation" for collection in blocking)
    )
    causes = {collection.gc: collection.cause for collection in collections}
    yield Reading("gc_causes", _count_causes(causes.get(pause.gc, "cycle not ended") for pause in pauses_within))
    failures = Counter(name for end_ns, name in content["failures"] if context.covers(end_ns))
    for name, event in _FAILURES.items():
        yield Reading(name, failures[event] if event in content["known"] else None)
    concurrent = {collection.gc for collection in collections if collection.name in CONCURRENT}
    heap = [row for row in content["heap"] if row[0] not in concurrent]
    after = [used for _, at_ns, when, used, _ in heap if when == "After GC" and context.covers(at_ns)]
    yield Reading("heap_after_gc_max_bytes", max(after, default=None))
    yield make_series("heap_bytes", ((at_ns, used) for _, at_ns, _, used, _ in heap))
    yield from direct_buffer_readings(content["direct"], context)
    if log.is_supported:
        log_pauses, differences = compare_pauses(pauses, full, log.pauses, context)
        yield Reading("gc_pauses_log", log_pauses)
        yield from (Note(source="gc", text=text, invalidates=True) for text in differences)


def _read_log_only(log: GcLog, context: ReadContext) -> Iterator[ProbeOutput]:
    """Yield the same numbers from the log alone: milliseconds, and a heap in whole megabytes."""
    pauses = [pause for pause in log.pauses if pause.is_certain]
    within = [pause for pause in pauses if context.covers(pause.end_ns)]
    yield Note(source="gc", text="pauses and heap are from the GC log alone: the flight recording is incomplete")
    yield from _pauses_over_time(pauses, log)
    yield from _pause_readings(within, sum(pause.is_full for pause in within))
    yield Reading("gc_pauses_log", len(within))
    yield Reading("gc_causes", _count_causes(pause.name for pause in within))
    after = [pause.after_bytes for pause in within if pause.collects and pause.after_bytes is not None]
    yield Reading("heap_after_gc_max_bytes", max(after, default=None))
    points = [
        (at_ns, used)
        for pause in log.pauses
        for at_ns, used in ((pause.start_ns, pause.before_bytes), (pause.end_ns, pause.after_bytes))
        if pause.collects and used is not None
    ]
    yield make_series("heap_bytes", points)


def _pause_readings(pauses: Sequence[Pause], full: int | None) -> Iterator[ProbeOutput]:
    counts = Counter(pause.duration_ns for pause in pauses)
    yield Reading("gc_pauses", len(pauses))
    yield Reading("full_gcs", full)
    yield Reading("gc_pause_ms_total", sum(pause.duration_ns for pause in pauses) / 1e6)
    yield from percentile_readings("gc_pause_ms", counts, {"p50": 50, "p99": 99, "max": 100})


def percentile_readings(name: str, counts_ns: Mapping[int, int], percents: Mapping[str, int]) -> Iterator[Reading]:
    """Yield percentiles of counted durations, in milliseconds."""
    for suffix, percent in percents.items():
        value_ns = percentile(counts_ns, percent)
        yield Reading(f"{name}_{suffix}", None if value_ns is None else value_ns / 1e6)


def _pauses_over_time(pauses: Sequence[Pause], log: GcLog) -> Iterator[ProbeOutput]:
    """Yield all pauses, also those of the warm-up: they delay requests too."""
    yield make_series("gc_pause_ms", [(pause.start_ns, pause.duration_ns / 1e6) for pause in pauses])
    starved = starved_spans(log)
    spans: dict[str, list[Interval]] = {PAUSE: [], STARVED: []}
    for pause in pauses:
        cause = pause_cause(pause.start_ns, pause.end_ns, starved)
        spans[cause].append(Interval(cause, pause.start_ns, pause.end_ns))
    for cause, intervals in spans.items():
        yield CauseIntervals(cause, tuple(intervals), blocks_responses=True, timing_error_ns=_LOG_NS)


def direct_buffer_readings(samples: list[list[int]], context: ReadContext) -> Iterator[ProbeOutput]:
    """Yield the JVM's direct buffers per second. Java 11 has no such event; Netty may allocate outside this pool."""
    within = [sample for sample in samples if context.covers(sample[0])]
    columns = ("direct_buffers_max", "direct_buffer_used_max_bytes", "direct_buffer_capacity_max_bytes")
    for index, column in enumerate(columns, 1):
        yield Reading(column, max((sample[index] for sample in within), default=None))
    if samples:
        yield make_series("direct_buffer_bytes", [(at_ns, float(used)) for at_ns, _, used, _ in samples])


def _count_causes(causes: Iterator[str]) -> str:
    return ", ".join(f"{cause}: {count}" for cause, count in Counter(causes).most_common())


def make_series(name: str, points: Iterable[tuple[int, float]]) -> Series:
    """Return these moments and values in order."""
    ordered = sorted(points)
    return Series(name, tuple(at_ns for at_ns, _ in ordered), tuple(float(value) for _, value in ordered))


def complete_pauses(pauses: Sequence[Pause], log: GcLog, until_ns: int) -> list[Pause]:
    """Return the recording's pauses, completed from the log. *until_ns*: its last event (CLOCK_REALTIME).

    A pause that waited for CMS has the log's duration: the program was stopped during the wait (JDK 11.0.13: 203 ms in
    the log, 142 ms in the recording, 61 ms until CMS released the heap). The JVM writes the pauses of a concurrent
    cycle when the cycle ends; those of an unended cycle come from the log (JDK 11 and 17: a remark was missing from a
    recording that was dumped 1.2 s later). The log does not show the end of a CMS cycle that a full collection cut off.
    """
    waits_ns = {pause.gc: pause.duration_ns for pause in log.pauses if pause.waited_for_cms}
    recorded = {pause.gc for pause in pauses}
    unended = [
        pause
        for pause in log.pauses
        if pause.is_concurrent and pause.gc not in recorded
        if log.cycle_ends.get(pause.gc, until_ns) >= until_ns // 10**6 * 10**6
    ]
    adjusted = [replace(pause, duration_ns=max(pause.duration_ns, waits_ns.get(pause.gc, 0))) for pause in pauses]
    return [*adjusted, *unended]


def compare_pauses(
    pauses: Iterable[Pause], full: int, log: Iterable[Pause], context: ReadContext
) -> tuple[int, list[str]]:
    """Return the number of pauses in the log within the measurement, and its differences from the recording.

    The n-th pause of a collection is the n-th in both.

    The recording's time decides if a pause is within the measurement: the log's is cut to milliseconds. Collections
    before the recording began and pauses that the log is not certain of are not differences.
    """
    recorded = _group_by_collection(pauses)
    logged = _group_by_collection(pause for pause in log if pause.is_certain or pause.gc in recorded)
    pairs: list[tuple[Pause, Pause]] = []
    only_recorded, only_logged = [], []
    for gc_id in sorted(recorded.keys() | logged.keys()):
        in_recording, in_log = recorded.get(gc_id, []), logged.get(gc_id, [])
        pairs += [pair for pair in zip(in_recording, in_log, strict=False) if context.covers(pair[0].end_ns)]
        only_recorded += [pause for pause in in_recording[len(in_log) :] if context.covers(pause.end_ns)]
        only_logged += [pause for pause in in_log[len(in_recording) :] if context.covers(pause.end_ns)]
    differences = [
        *_one_sided_differences(only_recorded, "the flight recording"),
        *_one_sided_differences(only_logged, "the GC log"),
    ]
    logged_full = sum(pause.is_full for _, pause in pairs) + sum(pause.is_full for pause in only_logged)
    if full != logged_full:
        differences.append(f"full collections: {full} in the flight recording, {logged_full} in the GC log")
    recorded_ns = sum(pause.duration_ns for pause, _ in pairs)
    logged_ns = sum(pause.duration_ns for _, pause in pairs)
    if abs(recorded_ns - logged_ns) > max(TOLERANCE_NS, TOLERANCE * recorded_ns):
        differences.append(
            f"sum of {len(pairs)} pauses: {recorded_ns / 1e6:.3f} ms in the recording, {logged_ns / 1e6:.3f} ms in the "
            "GC log"
        )
    return len(pairs) + len(only_logged), differences


def _group_by_collection(pauses: Iterable[Pause]) -> dict[int, list[Pause]]:
    groups: dict[int, list[Pause]] = defaultdict(list)
    for pause in sorted(pauses, key=lambda pause: pause.end_ns):
        groups[pause.gc].append(pause)
    return groups


def _one_sided_differences(pauses: Sequence[Pause], source: str) -> list[str]:
    if not pauses:
        return []
    examples = ", ".join(f"GC({pause.gc})" for pause in pauses[:5])
    return [f"{len(pauses)} pauses are only in {source}: {examples}{' …' if len(pauses) > 5 else ''}"]
