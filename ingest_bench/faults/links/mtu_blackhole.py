"""`mtu-blackhole`: a hop in the middle has a smaller MTU and tells nobody, as where ICMP is filtered (RFC 2923, 2.1).

Handshakes and small packets pass, full ones vanish: a connection opens, and hangs once it sends a full segment.
With `icmp = "sent"` the hop says "fragmentation needed", as it should (RFC 1191), and TCP sends smaller segments. What
the sender has learned it forgets with the fault: Linux itself would keep it for ten minutes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from ingest_bench.faults import each
from ingest_bench.faults.kind import Begun, FaultKind
from ingest_bench.faults.links import holes
from ingest_bench.faults.links.blackhole import are_there, hole
from ingest_bench.faults.links.forgers import Forgers
from ingest_bench.faults.stage import Stage
from ingest_bench.model.experiment import Cell, Fault
from ingest_bench.network.act.link import End, Link
from ingest_bench.network.plan.places import Direction
from ingest_bench.system import Child

# net.ipv4.route.min_pmtu; a sender that is told less sends fragments of this size.
_SMALLEST_LEARNED_BYTES = 552
_LIMIT_S = 60.0
# The Ethernet header, the longest IP header, and a TCP header: what the hop sees of a packet.
_SNAP_BYTES = 14 + 60 + 20


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
    if fault.icmp == "sent" and fault.mtu_bytes < _SMALLEST_LEARNED_BYTES:
        return f"no sender takes a path MTU below {_SMALLEST_LEARNED_BYTES} from ICMP; take a larger mtu"
    return ""


@contextmanager
def answering_hop(
    link: Link, directions: Sequence[Direction], mtu_bytes: int, said: list[str], forgers: Forgers
) -> Iterator[None]:
    """The hop tells the senders in those directions; at the end `said` has what it told, and what became of it."""
    with ExitStack() as stack:
        for direction in directions:
            sender, receiver = _sender_and_receiver(link, direction)
            child = stack.enter_context(forgers.at(receiver))
            stack.enter_context(_hop(child, direction, sender, receiver, mtu_bytes, said))
        yield


def _sender_and_receiver(link: Link, direction: Direction) -> tuple[End, End]:
    client, server = link.ends
    return (client, server) if direction == "to-server" else (server, client)


@contextmanager
def _hop(
    child: Child, direction: Direction, sender: End, receiver: End, mtu_bytes: int, said: list[str]
) -> Iterator[None]:
    code = holes.bytecode(receiver.address, mtu_bytes, found=_SNAP_BYTES, others=0)
    child.ask(json.dumps({"hop": [receiver.device, mtu_bytes, code]}), _LIMIT_S)
    try:
        try:
            yield
        finally:
            # Also after a failure: the next one must find it as it was.
            count = int(child.ask("end", _LIMIT_S))
        # Before it forgets.
        found = sender.namespace.run(("ss", "-Htin", "state", "established", "dst", sender.peer))
        learned = sum(int(size) <= mtu_bytes for size in re.findall(r"\bpmtu:(\d+)", found))
    finally:
        sender.namespace.run(("ip", "route", "flush", "cache"))
    said.append(f"{direction}: told {count} times, {learned} connections have a path MTU of at most {mtu_bytes}")


def _begin(fault: Fault, stage: Stage) -> Begun:
    assert fault.mtu_bytes is not None  # noqa: S101 - `_complaint` refused it
    mtu_bytes = fault.mtu_bytes
    said: list[str] = []

    @contextmanager
    def hop(link: Link, directions: Sequence[Direction]) -> Iterator[None]:
        with ExitStack() as stack:
            if fault.icmp == "sent":
                stack.enter_context(answering_hop(link, directions, mtu_bytes, said, stage.forgers))
            stack.enter_context(mtu_blackhole(link, directions, mtu_bytes))
            yield

    begun = each.on_links(fault, stage, hop, lambda link, ways: are_there(link, ways, mtu_bytes))

    def end() -> str:
        begun.end()
        return "; ".join(said)

    return Begun(begun.seen, end)


def _forged_at(fault: Fault, link: Link, directions: Sequence[Direction]) -> tuple[End, ...]:
    if fault.icmp != "sent":
        return ()
    return tuple(_sender_and_receiver(link, direction)[1] for direction in directions)


MTU_BLACKHOLE = FaultKind(
    hits="link",
    begin=_begin,
    lasts=True,
    takes=frozenset({"direction", "mtu_bytes", "icmp"}),
    complaint=_complaint,
    forged_at=_forged_at,
)
