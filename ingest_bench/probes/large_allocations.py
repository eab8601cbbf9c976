"""Probe `large-allocations`: who asks for objects of 1 MiB and more, how often, and for how much at once.

A heap may have room enough and none in one piece. CMS then stops the world to make some; G1 gives each object of half a
region and more regions of its own (humongous). It costs what `allocations` costs, with which it shares its events.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from ingest_bench.model.results import Measured, Reading, Remark, Series
from ingest_bench.probes import recording
from ingest_bench.probes.allocations import ALLOCATIONS, stacks

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from ingest_bench.jvm.logs import Log
    from ingest_bench.probes.context import Events, ReadContext

_TOP_SITES = 10


class LargeAllocations:
    """Each object of 1 MiB and more, outside TLABs or with one of its own: its size, its stack, humongous or not."""

    events: Events = {  # noqa: RUF012 - the Protocol asks for a plain attribute
        **ALLOCATIONS.events,
        # Both together say how large a region of G1 is.
        "jdk.GCHeapSummary": {"enabled": "true"},
        "jdk.G1HeapSummary": {"enabled": "true"},
    }
    logs: tuple[Log, ...] = ()

    def watch(self, server_pid: int, raw: Path) -> AbstractContextManager[None]:  # noqa: ARG002
        """Nothing: the JVM itself writes the recording."""
        return nullcontext()

    def read(self, context: ReadContext) -> Iterator[Measured]:
        """Allocations within the measurement; of a killed server those that are known."""
        found = yield from recording.opened(context, "large-allocations")
        if not found.is_readable:
            return
        # Both probes see the same stacks; a run has them once.
        yield from stacks(found.content, "large-allocations")
        large = found.content["large"]
        within, sites = large["window"], large["sites"]
        yield Reading("largest_allocation_bytes", large["largest_bytes"] or None)
        yield Reading("largest_allocation_stack", large["largest"] or None)
        yield Reading("allocations_1mib", within["count"])
        yield Reading("allocations_1mib_bytes", within["total"])
        yield Reading("allocations_100mib", large["very_large"])
        region_bytes = _region_bytes(found.content)
        # Half a region is a power of two; an object that is larger is humongous.
        humongous = None if region_bytes is None else large["larger_than"][region_bytes.bit_length() - 2]
        yield Reading("allocations_humongous", humongous)
        told = ", ".join(f"{site}: {count} of {size}" for site, count, size in sites[:_TOP_SITES])
        yield Reading("large_allocation_sites", told or None)
        ordered = sorted((at, size) for at, size in large["moments"])
        if large["lost"]:
            text = (
                f"the picture has {len(ordered)} objects of 1 MiB and more; {large['lost']} later ones are only counted"
            )
            yield Remark(probe="large-allocations", text=text)
        yield Series(
            "large_allocation_bytes", tuple(at for at, _ in ordered), tuple(float(size) for _, size in ordered)
        )


def _region_bytes(content: Mapping[str, Any]) -> int | None:
    """How large a region of G1 is; None for another collector, or when there was no collection to say it."""
    committed = {(gc, when): size for gc, _, when, _, size in content["heap"]}
    return next(
        (
            committed[gc, when] // regions
            for gc, when, regions in content["regions"]
            if regions and (gc, when) in committed
        ),
        None,
    )


LARGE_ALLOCATIONS = LargeAllocations()
