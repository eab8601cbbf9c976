"""`mtu-blackhole`: a hop in the middle has a smaller MTU and tells nobody, as where ICMP is filtered (RFC 2923, 2.1).

Handshakes and small packets pass, full ones vanish: a connection opens, and hangs once it sends a full segment.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from ingest_bench.faults import each
from ingest_bench.faults.blackhole import hole
from ingest_bench.faults.kind import Begun, FaultKind
from ingest_bench.faults.stage import Stage
from ingest_bench.model.experiment import Cell, Fault
from ingest_bench.network import Direction, Link


@contextmanager
def mtu_blackhole(link: Link, directions: Sequence[Direction], mtu_bytes: int) -> Iterator[None]:
    """IP packets that are larger vanish. The link must cut what it sends into packets of real size."""
    with ExitStack() as stack:
        for direction in directions:
            stack.enter_context(hole(link, direction, mtu_bytes))
        yield


def _complaint(cell: Cell, fault: Fault) -> str:
    if fault.mtu_bytes is None:
        return "of which size? Add mtu = 1400"
    profile = cell.network if fault.link == "clients" else cell.peers
    if profile is None:
        return ""
    if fault.mtu_bytes >= profile.mtu_bytes:
        return f'no packet of profile "{profile.name}" is larger than {profile.mtu_bytes} bytes; take a smaller mtu'
    if profile.gso_max_segs != 1:
        return (
            f'profile "{profile.name}" has super-packets of many segments, whose own sizes nobody sees; take one with '
            "gso_max_segs = 1"
        )
    return ""


def _begin(fault: Fault, stage: Stage) -> Begun:
    assert fault.mtu_bytes is not None  # noqa: S101 - `_complaint` refused it
    mtu_bytes = fault.mtu_bytes
    return each.on_links(fault, stage, lambda link, directions: mtu_blackhole(link, directions, mtu_bytes))


MTU_BLACKHOLE = FaultKind(
    hits="link", begin=_begin, lasts=True, takes=frozenset({"direction", "mtu_bytes"}), complaint=_complaint
)
