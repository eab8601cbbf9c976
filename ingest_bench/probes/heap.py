"""Probe `heap`, which watches every run: bytes allocated on the heap by role of thread, and the memory of Netty.

The JVM counts the bytes that each thread allocates (jdk.ThreadAllocationStatistics), with every collector. The
recording has the totals of all threads every second. Of a thread that ends at most its last second is missing.

The heap grows by more: by the unused ends of TLABs, and with G1 by those of the regions of large objects. From one
collection to the next it grows by its size before this one minus its size after the last one. The GC log has these
sizes, and the recording most of them in bytes.

Netty takes memory in chunks, lends parts of them to buffers, and keeps chunks for later. Since 4.2.3 its pooled and
adaptive allocators write an event for each chunk and buffer; the unpooled one writes none. Buffers of an allocator
without chunks are left out: without arenas for direct memory Netty writes no end of a direct buffer. Without these
events the numbers are samples of the allocator's own counters, which the sink records (NettySink.java).
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ingest_bench.model.load import MAX_MEASURE_NS
from ingest_bench.model.results import Note, ProbeOutput, Reading, Series
from ingest_bench.model.target import ThreadRole
from ingest_bench.probes import gc, recording
from ingest_bench.probes.context import Probe, ReadContext
from ingest_bench.probes.gc_log import GcLog, Pause

# A sample of all threads takes microseconds; the next one is a second later.
_SAMPLE_NS = 200_000_000
_CHUNKS_EVERY_NS = 100_000_000
# They free memory only while the program is stopped.
_STOPPING_COLLECTORS = ("g1", "parallel", "serial")
_ROLES: tuple[ThreadRole, ...] = ("network", "indexing", "flush_merge", "other")


class Growth(NamedTuple):
    """Bytes that a thread allocated between two samples."""

    thread: str
    start_ns: int
    end_ns: int
    allocated: int

    def between(self, start_ns: int, end_ns: int) -> float:
        """Return the bytes between two moments, at a constant rate."""
        overlap_ns = min(end_ns, self.end_ns) - max(start_ns, self.start_ns)
        return self.allocated * max(overlap_ns, 0) / (self.end_ns - self.start_ns)


def _read_heap(context: ReadContext) -> Iterator[ProbeOutput]:
    """Yield allocated bytes; nothing if the recording ends before the measurement."""
    recorded = yield from recording.open_recording(context, "heap", HEAP.events)
    if not recorded.covers(context):
        return
    growths = parse_threads(recorded.content.get("threads", ()))
    if not growths:
        yield Note(source="heap", text="the recording has no counters of threads: allocated bytes are unknown")
        return
    log = gc.load_log(context)
    if recorded.is_complete:
        log.pauses = with_exact_heap(log.pauses, recorded.content)
    ratio = measure_growth(log, growths, context)
    by_role: dict[ThreadRole, float] = dict.fromkeys(_ROLES, 0.0)
    for growth in growths:
        by_role[context.thread_roles.find_role(growth.thread)] += growth.between(context.start_ns, context.end_ns)
    # Without texts for a role its threads are unknown, and counted as others.
    unknown = {role for role in _ROLES if role != "other" and not getattr(context.thread_roles, role)}
    names = (str(row[0]) for row in recorded.content["threads"])
    if "network" not in unknown and all(context.thread_roles.find_role(name) != "network" for name in names):
        unknown.add("network")
        wanted = ", ".join(context.thread_roles.network)
        yield Note(source="heap", text=f"no thread is named as the target says of its network threads: {wanted}")
    for role, allocated in by_role.items():
        yield Reading(f"allocated_{role}_bytes", None if role in unknown else round(allocated))
    allocated = sum(by_role.values())
    yield Reading("allocated_bytes", round(allocated))
    yield Reading("heap_growth_bytes", None if ratio is None else round(allocated * ratio))
    if recorded.is_complete:
        yield from live_heap(recorded.content)
    # The chunks and buffers of a JVM that the run attached to are older than the recording.
    if recorded.is_complete and not context.attachment.since_ns:
        yield from measure_netty(recorded.content["netty"], context)


# Without stacks. An event that no class of the JVM has is ignored.
_NETTY_EVENT = {"enabled": "true", "stackTrace": "false"}
HEAP = Probe(
    events={
        "jdk.ThreadAllocationStatistics": {"period": "1 s"},
        "jdk.GarbageCollection": {"threshold": "0 ns"},
        "jdk.GCHeapSummary": {"enabled": "true"},
        "ingestbench.NettyMemory": {"period": "100 ms"},
        **{
            f"io.netty.{name}": _NETTY_EVENT
            for name in ("AllocateChunk", "FreeChunk", "AllocateBuffer", "ReallocateBuffer", "FreeBuffer")
        },
    },
    logs=(gc.LOG,),
    read=_read_heap,
)


def parse_threads(rows: Sequence[Sequence[str | int]]) -> list[Growth]:
    """Return what each thread allocated between samples. A row: its name, then moments and totals that changed.

    Totals of the first sample are from before the recording. A thread that is not in it started after the sample
    before its own first. A total that fell is that of a restarted JVM.
    """
    previous: dict[int, int] = {}
    sample_ns = before_ns = 0
    for moment in sorted({int(moment) for row in rows for moment in row[1::2]}):
        if moment - sample_ns > _SAMPLE_NS:
            before_ns, sample_ns = sample_ns, moment
        previous[moment] = before_ns
    growths = []
    for name, *numbers in rows:
        last = 0
        for moment, total in sorted(zip(map(int, numbers[::2]), map(int, numbers[1::2]), strict=True)):
            if previous[moment]:
                growths.append(Growth(str(name), previous[moment], moment, total - last if total >= last else total))
            last = total
    return growths


def with_exact_heap(pauses: Sequence[Pause], content: Mapping[str, Any]) -> list[Pause]:
    """Return the pauses with the heap sizes of the recording; the log's are in whole MiB, with G1 in whole regions."""
    concurrent = {gc_id for gc_id, _, _, name, _ in content["collections"] if name in gc.CONCURRENT}
    exact = {(gc_id, when): used for gc_id, _, when, used, _ in content["heap"] if gc_id not in concurrent}
    return [
        replace(
            pause,
            before_bytes=exact.get((pause.gc, "Before GC"), pause.before_bytes),
            after_bytes=pause.after_bytes and exact.get((pause.gc, "After GC"), pause.after_bytes),
        )
        for pause in pauses
    ]


def live_heap(content: Mapping[str, Any]) -> Iterator[Series]:
    """Yield the heap in use after each collection that jcmd requested; nothing without one."""
    requested = {
        (gc_id, "After GC") for gc_id, _, _, _, cause in content["collections"] if cause == "Diagnostic Command"
    }
    after = [(at_ns, used) for gc_id, at_ns, when, used, _ in content["heap"] if (gc_id, when) in requested]
    if after:
        yield gc.make_series("live_heap_bytes", after)


def measure_growth(log: GcLog, growths: Sequence[Growth], context: ReadContext) -> float | None:
    """Return the bytes by which the heap grew between collections, for each byte that threads allocated then.

    None if fewer than two collections are within the measurement, or if the collector frees memory while the program
    runs.
    """
    heap_growth = allocated = 0.0
    last: Pause | None = None
    for pause in log.pauses if log.collector in _STOPPING_COLLECTORS else ():
        # A young collection that became a full one has no heap of its own.
        if pause.before_bytes is None or pause.after_bytes is None or not context.covers(pause.start_ns):
            continue
        # Numbers begin again after a restart of the JVM.
        if last is not None and last.after_bytes is not None and pause.gc > 0:
            heap_growth += pause.before_bytes - last.after_bytes
            allocated += sum(growth.between(last.end_ns, pause.start_ns) for growth in growths)
        last = pause
    return heap_growth / allocated if allocated else None


def sample_chunks(changes: Sequence[tuple[int, int, int]], until_ns: int) -> Series:
    """Return the bytes of all chunks of Netty every 100 ms, from the first one on. *changes* as in `measure_netty`."""
    moments, totals = [change[0] for change in changes], [*itertools.accumulate(change[1] for change in changes)]
    # Warm-up and measurement last a day each at most; a damaged recording may have any time.
    at_ns = tuple(range(max(moments[0], until_ns - 2 * MAX_MEASURE_NS), until_ns, _CHUNKS_EVERY_NS))
    return Series("netty_chunk_bytes", at_ns, tuple(float(totals[bisect.bisect(moments, at) - 1]) for at in at_ns))


def measure_netty(changes: Sequence[tuple[int, int, int]], context: ReadContext) -> Iterator[Reading | Series]:
    """Yield the memory in buffers, the unused part of the chunks (means), and what remains at the end of the recording.

    A change: a moment, then the bytes by which all chunks grew, and all buffers in use. Of unknown buffers (-1) only
    what remains is known.
    """
    if not changes:
        return
    yield sample_chunks(changes, context.end_ns)
    chunk_bytes = buffer_bytes = 0
    unused = used = 0.0
    moments = (moment for moment, _, _ in changes)
    next_moments = itertools.chain(itertools.islice(moments, 1, None), (context.end_ns,))
    for (moment, more_chunks, more_buffers), next_moment in zip(changes, next_moments, strict=True):
        chunk_bytes += more_chunks
        buffer_bytes += more_buffers
        duration_ns = max(min(next_moment, context.end_ns) - max(moment, context.start_ns), 0)
        used += buffer_bytes * duration_ns
        unused += (chunk_bytes - buffer_bytes) * duration_ns
    length_ns = context.end_ns - context.start_ns
    if buffer_bytes >= 0:
        yield Reading("netty_live_bytes", round(used / length_ns))
        yield Reading("netty_wasted_bytes", round(unused / length_ns))
    yield Reading("netty_retained_bytes", chunk_bytes)
