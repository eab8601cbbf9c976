"""`blackhole`: connections open, but what is sent on them vanishes; and the filters in which packets vanish."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from ingest_bench.errors import MissingCapability, RunFailed
from ingest_bench.faults import each
from ingest_bench.faults.kind import Begun, FaultKind
from ingest_bench.faults.layers import layer
from ingest_bench.faults.stage import Stage
from ingest_bench.model.experiment import Fault
from ingest_bench.network import Direction, Link
from ingest_bench.network.plan import commands, holes

# The order of our filters on a device; each kind of hole in each direction has its own, so that they may overlap.
_PREFERENCES: Mapping[tuple[bool, Direction], int] = {
    (False, "to-server"): 1,
    (False, "to-client"): 2,
    (True, "to-server"): 3,
    (True, "to-client"): 4,
}


@contextmanager
def blackhole(link: Link, directions: Sequence[Direction]) -> Iterator[None]:
    """A path that carries handshakes and acknowledgements, but no TCP segment with data."""
    with ExitStack() as stack:
        for direction in directions:
            stack.enter_context(hole(link, direction, only_data=True))
        yield


@contextmanager
def hole(link: Link, direction: Direction, *, only_data: bool) -> Iterator[None]:
    """A filter at the receiver in which packets vanish: all of them, or those with data."""
    receiver = link.ends[1 if direction == "to-server" else 0]
    device, place = receiver.device, receiver.namespace
    preference = _PREFERENCES[only_data, direction]

    def swallow() -> None:
        # It may be there already, for another hole; without any filter it does nothing.
        place.run(("tc", "qdisc", "add", "dev", device, "clsact"), check=False)
        try:
            lines = holes.swallow(device, receiver.address, only_data=only_data, preference=preference)
            place.run(("tc", "-batch", "-"), stdin=commands.text(lines))
        except RunFailed as error:
            raise MissingCapability(
                f"fault: packets cannot be made to vanish here. It needs a kernel with sch_ingress and cls_bpf; {error}"
            ) from None

    def spare() -> None:
        place.run(("tc", "-batch", "-"), stdin=commands.text(holes.spare(device, preference)))
        if not place.run(("tc", "filter", "show", "dev", device, "ingress")).strip():
            place.run(("tc", "qdisc", "del", "dev", device, "clsact"))

    with layer(link, ("data" if only_data else "all", direction), swallow, spare):
        yield


def _begin(fault: Fault, stage: Stage) -> Begun:
    return each.on_links(fault, stage, blackhole)


BLACKHOLE = FaultKind(hits="link", begin=_begin, lasts=True, takes=frozenset({"direction"}))
