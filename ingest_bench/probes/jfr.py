"""Probes of the flight recording alone: `reads`, `allocations`, `large-allocations`, `direct-memory`, `stalls`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ingest_bench.model.results import CauseIntervals, Histogram, Interval, Note, ProbeOutput, Reading, Stacks
from ingest_bench.probes import gc, recording
from ingest_bench.probes.context import Events, Probe, ReadContext

# --- reads: the size of every socket read of the load's connections.


def _read_reads(context: ReadContext) -> Iterator[ProbeOutput]:
    """Yield sizes within the measurement. `bytes_read` covers the whole recording, to compare with the bytes sent."""
    recorded = yield from recording.open_recording(context, "reads", READS.events)
    if names := ", ".join(recorded.others):
        yield Reading("other_recordings", names)
        text = f"other flight recordings ran in this JVM ({names}): their cost is part of the results"
        yield Note(source="reads", text=text)
    reads = recorded.content.get("reads")
    if not reads or not reads["all"]["count"]:
        others = reads["other_ports"]["count"] if reads else 0
        yield Note(
            source="reads",
            text=f"the recording has no reads of the load's connections, and {others} of others: a server with a"
            " native transport (epoll) does not write them (the probe kernel-reads sees those), and a proxy or"
            " forwarded port in front of it has connections of its own",
        )
        yield from (Reading(name, None) for name in ("bytes_read", "reads_recorded", "reads_empty"))
        return
    yield Reading("bytes_read", reads["all"]["total"] if recorded.is_complete else None)
    yield Reading("reads_recorded", reads["all"]["count"] if recorded.is_complete else None)
    yield Reading("reads_empty", reads["empty"])
    yield Histogram("read_bytes", {int(size): count for size, count in reads["histogram"].items()})


# jdk.SocketRead without a threshold is exact for NIO socket channels (1,562,721 reads and their bytes, Java 17). The
# default threshold of 20 ms (default.jfc, 17.0.15) keeps no read of a fast link. Native epoll, asynchronous channels
# and streams of a socket do not write this event.
READS = Probe(events={"jdk.SocketRead": {"threshold": "0 ns", "stackTrace": "false"}}, read=_read_reads)


# --- allocations: memory outside TLABs and new TLABs, by layer and site. Every column of Elasticsearch issue 23185.

LAYERS = ("network", "lucene", "other")
KINDS = {"outside": "outside_tlab", "tlab": "tlab"}
_TOP_SITES = 10
# Both with their stacks. Not jdk.ObjectAllocationSample: it is throttled, and a sample cannot be counted. They cost the
# server 1.06 to 1.2 of its CPU: use the probe in replicates of its own.
_ALLOCATION_EVENTS: Events = {
    "jdk.ObjectAllocationOutsideTLAB": {"stackTrace": "true"},
    "jdk.ObjectAllocationInNewTLAB": {"stackTrace": "true"},
}


def _read_allocations(context: ReadContext) -> Iterator[ProbeOutput]:
    """Yield allocations within the measurement; of a killed server the recorded ones, per second that they cover.

    The layer is that of the first frame outside the JDK: the code that requested the memory. Any frame would not do,
    because all handlers run below the network layer.
    """
    recorded = yield from recording.open_recording(context, "allocations", _ALLOCATION_EVENTS)
    if not recorded.is_readable:
        return
    seconds = recorded.covered_ns(context) / 1e9
    content = recorded.content
    yield from allocation_stacks(content, "allocations")
    # Without such frames the server's network layer is unknown: its allocations are counted in "other".
    packages, frames = [f".{name}." for name in context.network], [f".{name}" for name in content["stacks"]["names"]]
    has_network = any(package in frame for package in packages for frame in frames)
    for kind, name in KINDS.items():
        sizes_by_layer = {layer: content["allocations"].get(f"{kind} {layer}") for layer in (*LAYERS, "unknown")}
        present = [sizes for sizes in sizes_by_layer.values() if sizes]
        count, total = (sum(sizes[key] for sizes in present) for key in ("count", "total"))
        yield Reading(f"{name}_count", count)
        yield Reading(f"{name}_max_bytes", max((sizes["max"] for sizes in present), default=None))
        yield Reading(f"{name}_min_bytes", min((sizes["min"] for sizes in present), default=None))
        yield Reading(f"{name}_mean_bytes", total / count if count else None)
        yield Reading(f"{name}_total_bytes", total)
        yield Reading(f"{name}_bytes_per_s", total / seconds if seconds else None)
        if sizes := sizes_by_layer.pop("unknown"):
            depth = context.attachment.stack_depth or recording.STACK_DEPTH
            text = (
                f"{name}: {sizes['count']} of {sizes['total']} bytes have only frames of the JDK among the {depth}"
                " that this JVM keeps of a stack (-XX:FlightRecorderOptions=stackdepth=…, a start option):"
                " their layer is unknown, so they are in no layer"
            )
            yield Note(source="allocations", text=text)
        for layer, sizes in sizes_by_layer.items():
            empty = 0 if has_network or layer != "network" else None
            yield Reading(f"{name}_{layer}_bytes", sizes["total"] if sizes else empty)
            yield Reading(f"{name}_{layer}_count", sizes["count"] if sizes else empty)
        sites = [site for site in content["sites"] if site["kind"] == kind][:_TOP_SITES]
        yield Reading(f"{name}_sites", ", ".join(f"{site['site']}: {site['bytes']}" for site in sites) or None)


def allocation_stacks(content: Mapping[str, Any], probe: str) -> Iterator[Stacks | Note]:
    """Yield all complete stacks of the recording that allocated within the measurement."""
    tree = content["stacks"]
    names, nodes = tree["names"], tree["nodes"]

    def frames(node: int) -> Iterator[str]:
        """Yield the frames from the innermost outwards."""
        while node >= 0:
            node, name, _, _ = nodes[node]
            yield names[name]

    # Only nodes that end a stack: all paths of a full tree are 700 MB of text, these 30 MB.
    yield Stacks({";".join(reversed([*frames(node)])): entry[2] for node, entry in enumerate(nodes) if entry[2]})
    if tree["is_full"]:
        text = f"the stack tree is full at {len(nodes)} frames: the ends of later stacks are left out"
        yield Note(source=probe, text=text)


ALLOCATIONS = Probe(events=_ALLOCATION_EVENTS, read=_read_allocations)


# --- large-allocations: objects of 1 MiB and more, by site.


def _read_large_allocations(context: ReadContext) -> Iterator[ProbeOutput]:
    """Yield large allocations within the measurement; of a killed server the recorded ones.

    A heap may have enough free memory but no contiguous block. CMS then stops the world to compact; G1 gives each
    object of at least half a region its own regions (humongous).
    """
    recorded = yield from recording.open_recording(context, "large-allocations", _ALLOCATION_EVENTS)
    if not recorded.is_readable:
        return
    # `allocations` yields the same stacks; a run stores them once.
    yield from allocation_stacks(recorded.content, "large-allocations")
    large = recorded.content["large"]
    yield Reading("largest_allocation_bytes", large["largest_bytes"] or None)
    yield Reading("largest_allocation_stack", large["largest"] or None)
    yield Reading("allocations_1mib", large["window"]["count"])
    yield Reading("allocations_1mib_bytes", large["window"]["total"])
    yield Reading("allocations_100mib", large["very_large"])
    region_bytes = gc.g1_region_bytes(gc.load_log(context), context)
    # Half a region is a power of two; an object that is larger is humongous.
    humongous = None if region_bytes is None else large["larger_than"][region_bytes.bit_length() - 2]
    yield Reading("allocations_humongous", humongous)
    sites = ", ".join(f"{site}: {count} of {size}" for site, count, size in large["sites"][:_TOP_SITES])
    yield Reading("large_allocation_sites", sites or None)
    if large["lost"]:
        shown = len(large["moments"])
        text = f"the plot shows {shown} objects of 1 MiB and more; {large['lost']} later ones are only counted"
        yield Note(source="large-allocations", text=text)
    yield gc.make_series("large_allocation_bytes", map(tuple, large["moments"]))


LARGE_ALLOCATIONS = Probe(events=_ALLOCATION_EVENTS, logs=(gc.LOG,), read=_read_large_allocations)


# --- direct-memory: direct buffers, and the JVM's attempts to make room for them.

_ALLOCATION = "ingestbench.DirectAllocation"
_CALL = "jdk.SystemGC"


def _read_direct_memory(context: ReadContext) -> Iterator[ProbeOutput]:
    """Yield calls of System.gc(), sleeps, the pool's memory, and each allocation if the server has an event for it.

    A reservation without room calls System.gc() (java.nio.Bits.reserveMemory of Java 11 to 25), then sleeps 1, 2, 4 …
    256 ms between its attempts, until it throws an OutOfMemoryError. Recordings of any JVM show that. Only the server
    can report the number and duration of allocations, with an event of its own.
    """
    recorded = yield from recording.open_recording(context, "direct-memory", DIRECT_MEMORY.events)
    if not recorded.is_readable:
        return
    content = recorded.content
    direct = content["direct_memory"]
    if _CALL in content["known"]:
        calls: int = direct["system_gcs"]
    else:
        causes = [cause for _, end_ns, _, _, cause in content["collections"] if context.covers(end_ns)]
        calls = causes.count("System.gc()")
    yield Reading("system_gcs", calls)
    if _CALL not in content["known"]:
        text = (
            "system_gcs counts collections: this Java has no event for calls, and several calls may share a collection"
        )
        yield Note(source="direct-memory", text=text)
    sleeps = {int(sleep_ns): count for sleep_ns, count in direct["sleeps"].items()}
    yield Reading("direct_sleeps", ", ".join(f"{sleep_ns / 1e6:g} ms: {count}" for sleep_ns, count in sleeps.items()))
    yield Reading("direct_sleep_ms_total", sum(sleep_ns * count for sleep_ns, count in sleeps.items()) / 1e6)
    yield from gc.direct_buffer_readings(content["direct"], context)
    if _ALLOCATION not in content["types"]:
        text = "this server has no event for direct buffers that it allocates: their number is unknown"
        yield Note(source="direct-memory", text=text)
        return
    yield Reading("direct_allocations_recorded", direct["all"]["count"] if recorded.is_complete else None)
    yield from _direct_allocations(direct, calls, recorded.covered_ns(context) / 1e9)


def _direct_allocations(direct: Mapping[str, Any], calls: int, seconds: float) -> Iterator[ProbeOutput]:
    window = direct["window"]
    count = window["count"]
    times = {int(time_ns): number for time_ns, number in direct["times"].items()}
    yield Reading("direct_allocations", count)
    yield Reading("direct_allocations_per_s", count / seconds if seconds else None)
    yield Reading("direct_allocation_ms_mean", window["total"] / count / 1e6 if count else None)
    yield from gc.percentile_readings("direct_allocation_ms", times, {"p50": 50, "p99": 99})
    yield Reading("direct_allocation_ms_max", window["max"] / 1e6 if count else None)
    yield Reading("direct_allocations_per_system_gc", count / calls if calls else None)
    yield Histogram("direct_allocation_ns", times)
    yield gc.make_series("direct_wait_ms", ((end_ns, waited_ns / 1e6) for end_ns, waited_ns in direct["longest"]))


DIRECT_MEMORY = Probe(
    events={
        _ALLOCATION: {"enabled": "true"},
        _CALL: {"threshold": "0 ns", "stackTrace": "false"},
        "jdk.GarbageCollection": {"threshold": "0 ns"},
        # Without a threshold: a sleep of 1 ms is the one that matters.
        "jdk.ThreadSleep": {"threshold": "0 ns", "stackTrace": "true"},
        **gc.DIRECT_BUFFERS,
    },
    read=_read_direct_memory,
)


# --- stalls: what the server's threads did and waited for, as causes of stalls.

# Searched for on any server, with the events that show them.
_CAUSE_EVENTS = {
    "a thread waited for a lock": "jdk.JavaMonitorEnter",
    "a thread waited for another one": "jdk.ThreadPark",
    "a file was forced to disk": "jdk.FileForce",
    "a write to a file was slow": "jdk.FileWrite",
    "a read of a file was slow": "jdk.FileRead",
    "threads were slow to reach a safepoint": "jdk.SafepointBegin",
}
# A thread is sampled every 20 ms; without enough CPU at half of these moments or fewer.
_SAMPLES_NS = 100_000_000
# The JVM's names of its collectors' operations: vmOperations.hpp of JDK 11 to 25.
_COLLECTOR_OPERATION = re.compile(
    r"JVM operation (?:CGC_|CMS_|G1|GenCollect|Parallel|Serial|Shenandoah|CollectFor"
    r"|[XZ](?:Operation|Mark|Relocate|Verify)).*"
)


def _read_stalls(context: ReadContext) -> Iterator[ProbeOutput]:
    """Yield causes within the measurement; nothing if the recording ends before it does.

    A sample of a thread's stack every 20 ms (jdk.ExecutionSample) shows its work; StallSpans.java has the table of
    telling frames. Waiting threads are in no sample: waits, files and safepoints have events of their own.
    """
    recorded = yield from recording.open_recording(context, "stalls", STALLS.events)
    if not recorded.covers(context):
        return
    content = recorded.content["stalls"]
    usable_events = set(recorded.content["known"]) - set(content["wrong"])
    causes: dict[str, list[Interval]] = {cause: [] for cause, event in _CAUSE_EVENTS.items() if event in usable_events}
    starved = gc.starved_spans(gc.load_log(context))
    for activity, thread, start_ns, end_ns in content["spans"]:
        is_collector = _COLLECTOR_OPERATION.fullmatch(activity)
        cause = gc.pause_cause(start_ns, end_ns, starved) if is_collector else activity
        causes.setdefault(cause, []).append(Interval(cause, start_ns, end_ns, thread))
    for cause, spans in causes.items():
        yield CauseIntervals(
            cause, tuple(spans), blocks_responses=cause in (gc.PAUSE, gc.STARVED), timing_error_ns=_SAMPLES_NS
        )
    if not content["samples"]:
        yield Note(source="stalls", text="the recording has no thread samples: the server's activity is unknown")
    # JDK 11 gives each file event of a thread the duration of its first one; 15 to 19 have JDK-8296733.
    for event in content["wrong"]:
        text = f"{event} is left out: this Java records wrong durations (one thread in two events at one moment)"
        yield Note(source="stalls", text=text)
    if content["lost"]:
        yield Note(source="stalls", text=f"{content['lost']} spans beyond the limit were left out")


# Not jdk.CPUTimeSample: only Java 25 has it, and jdk.ExecutionSample finds the same there.
STALLS = Probe(
    events={
        "jdk.ExecutionSample": {"period": "20 ms"},
        **{
            f"jdk.{name}": {"threshold": "20 ms", "stackTrace": "true"}
            for name in ("JavaMonitorEnter", "JavaMonitorWait", "ThreadPark", "ThreadSleep")
        },
        **{
            f"jdk.{name}": {"threshold": "20 ms", "stackTrace": "false"}
            for name in ("FileForce", "FileWrite", "FileRead")
        },
        **{f"jdk.{name}": {"threshold": "10 ms"} for name in ("SafepointBegin", "ExecuteVMOperation")},
    },
    read=_read_stalls,
)
