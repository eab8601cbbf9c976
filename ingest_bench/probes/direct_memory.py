"""Probe `direct-memory`: direct buffers, and what the JVM does to find room for them.

A reservation that finds no room asks for a collection (System.gc(), java.nio.Bits.reserveMemory of Java 11 to 25), and
then sleeps 1, 2, 4 … 256 ms between its attempts, until it throws an OutOfMemoryError. All that is in a recording of
any JVM. How many buffers were allocated, and how long each took, only the server itself can tell, by an event of its
own.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from ingest_bench.model.results import Histogram, Measured, Reading, Remark, Series
from ingest_bench.nearest_rank import percentile
from ingest_bench.probes import recording
from ingest_bench.probes.pauses.gc import DIRECT_BUFFERS, direct_buffers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from ingest_bench.jvm.logs import Log
    from ingest_bench.probes.context import Events, ReadContext

_ALLOCATION = "ingestbench.DirectAllocation"
_COLLECTION = "jdk.GarbageCollection"
_CALL = "jdk.SystemGC"
_CAUSE = "System.gc()"


class DirectMemory:
    """Calls of System.gc(), sleeps, and the pool's memory; each allocation where the server has the event for it.

    Not jdk.ThreadSleep with a threshold: a sleep of 1 ms is the one that matters.
    """

    events: Events = {  # noqa: RUF012 - the Protocol asks for a plain attribute
        _ALLOCATION: {"enabled": "true"},
        _CALL: {"threshold": "0 ns", "stackTrace": "false"},
        _COLLECTION: {"threshold": "0 ns"},
        "jdk.ThreadSleep": {"threshold": "0 ns", "stackTrace": "true"},
        **DIRECT_BUFFERS,
    }
    logs: tuple[Log, ...] = ()

    def watch(self, server_pid: int, raw: Path) -> AbstractContextManager[None]:  # noqa: ARG002
        """Nothing: the JVM itself writes the recording."""
        return nullcontext()

    def read(self, context: ReadContext) -> Iterator[Measured]:
        """What happened within the measurement; of a server that ended before, until then."""
        found = yield from recording.opened(context, "direct-memory")
        if not found.is_readable:
            return
        content = found.content
        direct = content["direct_memory"]
        calls = _calls(content, context)
        yield Reading("system_gcs", calls)
        if _CALL not in content["known"]:
            yield Remark(
                probe="direct-memory",
                text="system_gcs are collections: this Java has no event for the calls, of which several may share one",
            )
        yield Reading("direct_sleeps", ", ".join(f"{int(ns) / 1e6:g} ms: {n}" for ns, n in direct["sleeps"].items()))
        yield Reading("direct_sleep_ms_total", sum(int(ns) * n for ns, n in direct["sleeps"].items()) / 1e6)
        yield from direct_buffers(content["direct"], context)
        if _ALLOCATION not in content["types"]:
            text = "this server does not tell of each direct buffer that it allocates: their number is not known"
            yield Remark(probe="direct-memory", text=text)
            return
        yield Reading("direct_allocations_recorded", direct["all"]["count"] if found.is_whole else None)
        yield from _allocations(direct, calls, found.seconds(context))


def _calls(content: Mapping[str, Any], context: ReadContext) -> int:
    if _CALL in content["known"]:
        calls: int = content["direct_memory"]["system_gcs"]
        return calls
    return sum(cause == _CAUSE for _, end, _, _, cause in content["collections"] if context.covers(end))


def _allocations(direct: Mapping[str, Any], calls: int, seconds: float) -> Iterator[Measured]:
    window = direct["window"]
    count = window["count"]
    times = {int(time_ns): number for time_ns, number in direct["times"].items()}
    yield Reading("direct_allocations", count)
    yield Reading("direct_allocations_per_s", count / seconds if seconds else None)
    yield Reading("direct_allocation_ms_mean", window["total"] / count / 1e6 if count else None)
    for name, percent in (("p50", 50), ("p99", 99)):
        value = percentile(times, percent)
        yield Reading(f"direct_allocation_ms_{name}", None if value is None else value / 1e6)
    yield Reading("direct_allocation_ms_max", window["max"] / 1e6 if count else None)
    yield Reading("direct_allocations_per_system_gc", count / calls if calls else None)
    yield Histogram("direct_allocation_ns", times)
    longest = sorted(direct["longest"])
    yield Series("direct_wait_ms", tuple(end for end, _ in longest), tuple(took / 1e6 for _, took in longest))


DIRECT_MEMORY = DirectMemory()
