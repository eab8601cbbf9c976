"""`partition`: nothing passes in a direction, and no one is told. After its end TCP sends again what was lost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from ingest_bench.errors import RunFailed
from ingest_bench.faults import each
from ingest_bench.faults.kind import Begun, FaultKind
from ingest_bench.faults.links.blackhole import are_there, hole
from ingest_bench.faults.links.layers import layer
from ingest_bench.faults.stage import Stage
from ingest_bench.model.experiment import Fault
from ingest_bench.network.act.link import Link
from ingest_bench.network.measure import check
from ingest_bench.network.plan.places import Direction


@contextmanager
def partition(link: Link, directions: Sequence[Direction]) -> Iterator[None]:
    """Silence in those directions: frames go to nobody. On a loopback link packets vanish at the receiver."""
    with ExitStack() as stack:
        for direction in directions:
            if link.profile.medium == "loopback":
                stack.enter_context(hole(link, direction, "all"))
            else:
                stack.enter_context(_cut(link, direction))
        yield


@contextmanager
def _cut(link: Link, direction: Direction) -> Iterator[None]:
    with layer(link, ("cut", direction), lambda: link.cut(direction), lambda: link.mend(direction)):
        yield


def _look(link: Link, directions: Sequence[Direction]) -> str:
    if link.profile.medium == "loopback":
        return are_there(link, directions, "all")
    for direction in directions:
        if not check.is_cut(link, direction):
            raise RunFailed(
                f"{direction}: frames have a receiver again; somebody else has changed the neighbour's entry"
            )
    return f"frames {' and '.join(directions)} go to nobody"


def _begin(fault: Fault, stage: Stage) -> Begun:
    return each.on_links(fault, stage, partition, _look)


PARTITION = FaultKind(hits="link", begin=_begin, lasts=True, takes=frozenset({"direction"}))
