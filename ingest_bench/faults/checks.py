"""Whether the faults of a cell can happen as they are written, and which states its links will have. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Set
from random import Random

from ingest_bench.errors import SpecError
from ingest_bench.faults import FAULTS
from ingest_bench.faults.each import concerns, directions
from ingest_bench.host.node_resources import Need
from ingest_bench.model.experiment import Cell, Fault
from ingest_bench.model.network import LinkName, Profile

# Keys that not every fault takes, by their names in a fault.
_KEYS = {
    "direction": "direction",
    "profile": "profile",
    "rate_bps": "rate",
    "iops": "iops",
    "delay_ns": "delay",
    "mtu_bytes": "mtu",
    "icmp": "icmp",
    "trace": "trace",
    "cores": "cores",
    "neighbours": "neighbours",
    "room_bytes": "room",
    "share_ppm": "share",
    "connections": "connections",
    "resolver": "resolver",
}
# A fault begins by some commands or signals, of some milliseconds each.
_SHORTEST_GAP_NS = 10 * 10**6
# Each is a process that waits from the start of the server on.
_MOST_RESTARTS = 100
# Faults of a server that writes, with what they would be without it.
_OF_FILES = {
    "kill": "and none would be there afterwards",
    "slow-disk": "and nothing would be slow",
    "slow-fsync": "and nothing would be slow",
}
# The protocols of documents that go over HTTP.
_OF_HTTP = frozenset({"bulk", "json-array"})


def check(cell: Cell) -> None:
    """Refuse faults that cannot happen as written, before anything starts."""
    if cell.load.measure_documents is not None and not all(fault.every_ns for fault in cell.faults):
        raise SpecError(
            "faults and a number of documents: their moments are counted in a measurement of known length; only one "
            'that happens again and again needs none: every = "5s"'
        )
    for fault in cell.faults:
        for complaint in (*_of_time(cell, fault), *_of_keys(fault), FAULTS[fault.kind].complaint(cell, fault)):
            if complaint:
                raise SpecError(f"fault {fault.kind}: {complaint}")
    most = max(restarts(cell, node) for node in range(1, cell.target.nodes + 1))
    if most > _MOST_RESTARTS:
        raise SpecError(f"fault kill: a node would be started again {most:,} times, at most {_MOST_RESTARTS} may be")


def inapplicable(cell: Cell, protocols: Set[str], *, keeps_files: bool, can_flush: bool) -> str:
    """Why a fault of the cell cannot happen to a server of that kind; empty: each of them can.

    `protocols` are those of the documents that it takes; `keeps_files`: whether it has them in files; `can_flush`:
    whether it can be told to write them there.
    """
    name = cell.target.name
    for fault in cell.faults:
        if FAULTS[fault.kind].needs_names and "kafka" in protocols:
            return f"{fault.kind}: the library that speaks to Kafka looks its brokers up by itself"
        if FAULTS[fault.kind].needs_http and not protocols <= _OF_HTTP:
            return f"{fault.kind} is a fault of HTTP, and {name} takes {' and '.join(sorted(protocols))}"
        if fault.kind == "flush" and not can_flush:
            return f"flush: {name} cannot be told to write what it has in memory"
        if fault.kind in _OF_FILES and not keeps_files:
            return f"{fault.kind}: {name} keeps no documents in files, {_OF_FILES[fault.kind]}"
    return ""


def _turns(cell: Cell, number: int) -> int:
    """How often the fault of that number may happen in a measurement of known length."""
    fault = cell.faults[number]
    last_ns = cell.load.measure_ns - max(1, fault.for_ns)
    own = moments(fault, number, cell.load.seed)
    return sum(1 for _ in itertools.takewhile(lambda at_ns: at_ns <= last_ns, own))


def moments(fault: Fault, number: int, seed: int) -> Iterator[int]:
    """When it begins, from the start of the measurement on, in nanoseconds. `number` is its place among the faults.

    At random the time from its end to its next beginning is exponential, as of what happens at any moment alike: the
    seed decides it.
    """
    if not fault.random:
        yield from itertools.count(fault.at_ns, fault.every_ns) if fault.every_ns else (fault.at_ns,)
        return
    draw, at_ns = Random(f"{seed} {number}"), fault.at_ns  # noqa: S311 - it is no secret
    while True:
        at_ns += max(1, round(draw.expovariate(1 / (fault.every_ns - fault.for_ns))))
        yield at_ns
        at_ns += fault.for_ns


def restarts(cell: Cell, node: int) -> int:
    """How often a node is started again."""
    return sum(
        _turns(cell, number)
        for number, fault in enumerate(cell.faults)
        if fault.kind == "kill" and fault.node in (None, node)
    )


def needs(cell: Cell) -> frozenset[Need]:
    """What a node has to have of the machine for itself for the faults of that cell."""
    return frozenset[Need]().union(*(FAULTS[fault.kind].needs(fault) for fault in cell.faults))


def needs_names(cell: Cell) -> bool:
    """Whether the load looks up its server by name, for each new connection."""
    return any(FAULTS[fault.kind].needs_names for fault in cell.faults)


def states(cell: Cell) -> dict[LinkName, tuple[Profile, ...]]:
    """Each link of a run with its states: the one that it begins in, and those that faults will bring it into."""
    numbers = range(1, cell.target.nodes + 1)
    begin: dict[LinkName, Profile | None] = {LinkName((number,)): cell.network for number in numbers}
    begin |= {LinkName(pair): cell.peers for pair in itertools.combinations(numbers, 2)}
    return {
        name: (profile, *_changed(profile, name, cell.faults)) for name, profile in begin.items() if profile is not None
    }


def _changed(profile: Profile, name: LinkName, faults: tuple[Fault, ...]) -> Iterator[Profile]:
    for fault in faults:
        changed = FAULTS[fault.kind].changed
        if changed is not None and concerns(fault, name):
            yield changed(profile, fault, directions(fault, name))


def _of_time(cell: Cell, fault: Fault) -> Iterator[str]:
    """What is wrong with its moments."""
    kind = FAULTS[fault.kind]
    if kind.lasts and fault.for_ns <= 0:
        yield 'how long does it last? Add for = "5s"'
    if not kind.lasts and fault.for_ns:
        yield "it has no length; take for out"
    if fault.random and not fault.every_ns:
        yield 'at random, how far apart on average? Add every = "10s"'
    if 0 < fault.every_ns <= fault.for_ns:
        yield "it would begin again before it has ended; every is longer than for"
    elif 0 < fault.every_ns < fault.for_ns + _SHORTEST_GAP_NS:
        yield "less than 10 ms from its end to its next beginning: no fault is that quick; take a longer every"
    if cell.load.measure_documents is None and fault.at_ns + fault.for_ns > cell.load.measure_ns:
        yield "it ends after the measurement; measure longer"


def _of_keys(fault: Fault) -> Iterator[str]:
    """Which key it has that only others have."""
    kind, usual = FAULTS[fault.kind], Fault(kind=fault.kind, at_ns=0)
    if kind.hits != "link" and fault.link == "peers":
        yield "it is none of a link; take link out"
    if kind.hits == "server" and fault.node is not None:
        yield "it is one of all nodes at once; take node out"
    for name, key in _KEYS.items():
        if name not in kind.takes and getattr(fault, name) != getattr(usual, name):
            yield f"it has no {key}; take {key} out"
