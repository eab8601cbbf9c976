"""Probe `allocations`: what was allocated outside TLABs and how many TLABs were handed out, by layer and site.

Every column of Elasticsearch issue 23185. It costs the server 1.06 to 1.2 of its CPU: it belongs into replicates of its
own. The layer is that of the first frame that is not the JDK's: who asked for the memory. Any frame would not do:
handlers run under Netty, all of them.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from ingest_bench.model.results import Measured, Reading, Remark, Stacks
from ingest_bench.probes import recording

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from ingest_bench.jvm.logs import Log
    from ingest_bench.probes.context import Events, ReadContext

LAYERS = ("network", "lucene", "rest")
KINDS = {"outside": "outside_tlab", "tlab": "tlab"}
_TOP_SITES = 10


class Allocations:
    """jdk.ObjectAllocationOutsideTLAB and jdk.ObjectAllocationInNewTLAB, each with its stack.

    Not jdk.ObjectAllocationSample: it is throttled, and a sample cannot be counted.
    """

    events: Events = {  # noqa: RUF012 - the Protocol asks for a plain attribute
        "jdk.ObjectAllocationOutsideTLAB": {"stackTrace": "true"},
        "jdk.ObjectAllocationInNewTLAB": {"stackTrace": "true"},
    }
    logs: tuple[Log, ...] = ()

    def watch(self, server_pid: int, raw: Path) -> AbstractContextManager[None]:  # noqa: ARG002
        """Nothing: the JVM itself writes the recording."""
        return nullcontext()

    def read(self, context: ReadContext) -> Iterator[Measured]:
        """Allocations within the measurement; of a killed server those that are known, by the time that they cover."""
        found = yield from recording.opened(context, "allocations")
        if not found.is_readable:
            return
        seconds = found.seconds(context)
        content = found.content
        yield from stacks(content, "allocations")
        yield from _too_deep(content["allocations"], context)
        # Of another server's network layer it is not known which frames are its own: they are among the rest.
        is_netty = any(frame.startswith("io.netty.") for frame in content["stacks"]["names"])
        for kind, name in KINDS.items():
            layers = {layer: content["allocations"].get(f"{kind} {layer}") for layer in LAYERS}
            unknown = content["allocations"].get(f"{kind} unknown")
            yield from _totals(name, [*layers.values(), unknown], seconds)
            yield from _by_layer(name, layers, is_netty=is_netty)
            sites = [site for site in content["sites"] if site["kind"] == kind][:_TOP_SITES]
            yield Reading(f"{name}_sites", ", ".join(f"{site['site']}: {site['bytes']}" for site in sites) or None)


def stacks(content: Mapping[str, Any], probe: str) -> Iterator[Stacks | Remark]:
    """All stacks of the recording that allocated anything within the measurement, whole."""
    found = content["stacks"]
    names, nodes = found["names"], found["nodes"]

    def frames(place: int) -> Iterator[str]:
        """From the innermost outwards."""
        while place >= 0:
            parent, name, _, _ = nodes[place]
            yield names[name]
            place = parent

    # Only those that end a stack: all paths of a full tree are 700 MB of text, these 30.
    yield Stacks({";".join(reversed([*frames(place)])): node[2] for place, node in enumerate(nodes) if node[2]})
    if found["is_full"]:
        text = (
            f"the stacks have {len(nodes)} frames, and there is no room for more: the ends of later ones are left out"
        )
        yield Remark(probe=probe, text=text)


def _too_deep(found: Mapping[str, Mapping[str, Any]], context: ReadContext) -> Iterator[Remark]:
    """What no layer has: all frames that were kept are the JDK's own."""
    depth = context.attachment.stack_depth or recording.STACK_DEPTH
    for kind, name in KINDS.items():
        if sizes := found.get(f"{kind} unknown"):
            yield Remark(
                probe="allocations",
                text=f"{name}: {sizes['count']} of {sizes['total']} bytes have only frames of the JDK among the {depth}"
                " that this JVM keeps of a stack (-XX:FlightRecorderOptions=stackdepth=…, a start option):"
                " their layer is not known, and no layer has them",
            )


def _totals(name: str, parts: Iterable[Mapping[str, Any] | None], seconds: float) -> Iterator[Measured]:
    some = [sizes for sizes in parts if sizes]
    count, total = (sum(sizes[key] for sizes in some) for key in ("count", "total"))
    yield Reading(f"{name}_count", count)
    yield Reading(f"{name}_max_bytes", max((sizes["max"] for sizes in some), default=None))
    yield Reading(f"{name}_min_bytes", min((sizes["min"] for sizes in some), default=None))
    yield Reading(f"{name}_mean_bytes", total / count if count else None)
    yield Reading(f"{name}_total_bytes", total)
    yield Reading(f"{name}_bytes_per_s", total / seconds if seconds else None)


def _by_layer(name: str, layers: Mapping[str, Mapping[str, Any] | None], *, is_netty: bool) -> Iterator[Reading]:
    for layer, sizes in layers.items():
        none = 0 if is_netty or layer != "network" else None
        yield Reading(f"{name}_{layer}_bytes", sizes["total"] if sizes else none)
        yield Reading(f"{name}_{layer}_count", sizes["count"] if sizes else none)


ALLOCATIONS = Allocations()
