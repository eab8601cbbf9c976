"""`blackhole`: connections open, but what is sent on them vanishes; and the filters in which packets vanish."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from ingest_bench.errors import MissingCapability, RunFailed
from ingest_bench.faults import each
from ingest_bench.faults.kind import Begun, FaultKind
from ingest_bench.faults.links import holes
from ingest_bench.faults.links.layers import layer
from ingest_bench.faults.stage import Stage
from ingest_bench.model.experiment import Fault
from ingest_bench.network.act.link import End, Link
from ingest_bench.network.plan import commands, places
from ingest_bench.network.plan.places import Direction


@contextmanager
def blackhole(link: Link, directions: Sequence[Direction]) -> Iterator[None]:
    """A path that carries handshakes and acknowledgements, but no TCP segment with data."""
    with ExitStack() as stack:
        for direction in directions:
            stack.enter_context(hole(link, direction, "data"))
        yield


@contextmanager
def hole(link: Link, direction: Direction, what: holes.What) -> Iterator[None]:
    """A filter at the receiver in which packets vanish: see `holes.swallow`."""
    receiver = _receiver(link, direction)
    device, place, preference = receiver.device, receiver.namespace, _preference(direction, what)

    def swallow() -> None:
        # It may be there already, for another hole; without any filter it does nothing.
        place.run(("tc", "qdisc", "add", "dev", device, "clsact"), check=False)
        try:
            lines = holes.swallow(device, receiver.address, what, preference)
            place.run(("tc", "-batch", "-"), stdin=commands.text(lines))
        except RunFailed as error:
            raise MissingCapability(
                f"fault: packets cannot be made to vanish here. It needs a kernel with sch_ingress and cls_bpf; {error}"
            ) from None

    def spare() -> None:
        place.run(("tc", "-batch", "-"), stdin=commands.text(holes.spare(device, preference)))
        if not place.run(("tc", "filter", "show", "dev", device, "ingress")).strip():
            place.run(("tc", "qdisc", "del", "dev", device, "clsact"))

    with layer(link, (f"hole {what}", direction), swallow, spare):
        yield


def are_there(link: Link, directions: Sequence[Direction], what: holes.What) -> str:
    """That the kernel has these holes, in words; RunFailed where it has not."""
    for direction in directions:
        receiver = _receiver(link, direction)
        shown = receiver.namespace.run(("tc", "filter", "show", "dev", receiver.device, "ingress"))
        if f" pref {_preference(direction, what)} bpf " not in f"{shown} ":
            raise RunFailed(f"{direction}: the filter in which packets vanish is gone; somebody else has taken it away")
    named = {"all": "packets", "data": "segments with data"}.get(str(what), f"packets above {what} bytes")
    return f"{named} {' and '.join(directions)} vanish at the receiver"


def _receiver(link: Link, direction: Direction) -> End:
    return link.ends[1 if direction == "to-server" else 0]


def _preference(direction: Direction, what: holes.What) -> int:
    """The order of our filters on a device; each hole in each direction has its own, so that they may overlap."""
    order = {"all": 0, "data": 1}.get(str(what), what)
    return 1 + 2 * int(order) + places.DIRECTIONS.index(direction)


def _begin(fault: Fault, stage: Stage) -> Begun:
    return each.on_links(fault, stage, blackhole, lambda link, ways: are_there(link, ways, "data"))


BLACKHOLE = FaultKind(hits="link", begin=_begin, lasts=True, takes=frozenset({"direction"}))
