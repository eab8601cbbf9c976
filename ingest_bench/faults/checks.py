"""Pure checks of a cell's faults before a run: whether they can happen as written, and what they require."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Set
from random import Random

from ingest_bench.errors import SpecError
from ingest_bench.faults import FAULTS
from ingest_bench.faults.apply import select_directions, selects_link
from ingest_bench.host.node_resources import Need
from ingest_bench.inputs.records import toml_key
from ingest_bench.model.experiment import Cell, Fault
from ingest_bench.model.load import HTTP_PROTOCOLS
from ingest_bench.model.network import LinkName, Profile

# A fault begins by a few commands or signals, of some milliseconds each.
_MIN_GAP_NS = 10 * 10**6
# Each restart is a process that waits from the start of the server on.
_MAX_RESTARTS = 100
# Faults that require a persistent server, with the reason.
_PERSISTENT_ONLY = {
    "kill": "so none would be left afterwards",
    "slow-disk": "so the fault would have no effect",
    "slow-fsync": "so the fault would have no effect",
}


def check_faults(cell: Cell) -> None:
    """Raise SpecError if a fault cannot happen as written."""
    if cell.load.measure_documents is not None and not all(fault.every_ns for fault in cell.faults):
        raise SpecError(
            "faults cannot be combined with a number of documents: their times require a measurement of known "
            'duration. Only a repeated fault can: every = "5s"'
        )
    for fault in cell.faults:
        for error in (
            *_find_time_errors(cell, fault),
            *_find_key_errors(fault),
            FAULTS[fault.kind].find_error(cell, fault),
        ):
            if error:
                raise SpecError(f"fault {fault.kind}: {error}")
    restarts = max(count_restarts(cell, node) for node in range(1, cell.target.nodes + 1))
    if restarts > _MAX_RESTARTS:
        raise SpecError(f"fault kill: a node would restart {restarts:,} times; at most {_MAX_RESTARTS} are allowed")


def find_unsupported_fault(cell: Cell, protocols: Set[str], *, is_persistent: bool, can_flush: bool) -> str:
    """Return why a server of this kind does not support a fault of the cell; "" if it supports all.

    *protocols*: those of the documents that it accepts.
    """
    name = cell.target.name
    for fault in cell.faults:
        if FAULTS[fault.kind].needs_names and "kafka" in protocols:
            return f"{fault.kind}: the Kafka library resolves brokers itself"
        if FAULTS[fault.kind].needs_http and not protocols <= HTTP_PROTOCOLS:
            return f"{fault.kind} requires HTTP, and {name} accepts {' and '.join(sorted(protocols))}"
        if fault.kind == "flush" and not can_flush:
            return f"flush: {name} has no command that flushes its memory"
        if fault.kind in _PERSISTENT_ONLY and not is_persistent:
            return f"{fault.kind}: {name} keeps no documents in files, {_PERSISTENT_ONLY[fault.kind]}"
    return ""


def iterate_begin_times(fault: Fault, number: int, seed: int) -> Iterator[int]:
    """Yield the begins of a fault, in nanoseconds from the start of the measurement. *number*: its index in the cell.

    A random fault's time from an end to the next begin is exponential (a Poisson process), determined by the seed.
    """
    if not fault.random:
        yield from itertools.count(fault.at_ns, fault.every_ns) if fault.every_ns else (fault.at_ns,)
        return
    generator, at_ns = Random(f"{seed} {number}"), fault.at_ns  # noqa: S311 - not a secret
    while True:
        at_ns += max(1, round(generator.expovariate(1 / (fault.every_ns - fault.for_ns))))
        yield at_ns
        at_ns += fault.for_ns


def count_restarts(cell: Cell, node: int) -> int:
    """Return how often a node is restarted in a measurement of known duration."""
    count = 0
    for number, fault in enumerate(cell.faults):
        if fault.kind == "kill" and fault.node in (None, node):
            begin_times = iterate_begin_times(fault, number, cell.load.seed)
            while next(begin_times, cell.load.measure_ns) + max(1, fault.for_ns) <= cell.load.measure_ns:
                count += 1
    return count


def list_needs(cell: Cell) -> frozenset[Need]:
    """Return the resources that each node needs for the faults of the cell."""
    return frozenset[Need]().union(*(FAULTS[fault.kind].needs(fault) for fault in cell.faults))


def needs_names(cell: Cell) -> bool:
    """Return True if the load must resolve its server's name for each new connection."""
    return any(FAULTS[fault.kind].needs_names for fault in cell.faults)


def list_link_profiles(cell: Cell) -> dict[LinkName, tuple[Profile, ...]]:
    """Return each link of a run with its initial profile, and those that faults will change it to."""
    numbers = range(1, cell.target.nodes + 1)
    initial: dict[LinkName, Profile | None] = {LinkName((number,)): cell.network for number in numbers}
    initial |= {LinkName(pair): cell.peers for pair in itertools.combinations(numbers, 2)}
    return {
        name: (profile, *_change_profile(profile, name, cell.faults))
        for name, profile in initial.items()
        if profile is not None
    }


def _change_profile(profile: Profile, name: LinkName, faults: tuple[Fault, ...]) -> Iterator[Profile]:
    for fault in faults:
        change = FAULTS[fault.kind].change_profile
        if change is not None and selects_link(fault, name):
            yield change(profile, fault, select_directions(fault, name))


def _find_time_errors(cell: Cell, fault: Fault) -> Iterator[str]:
    kind = FAULTS[fault.kind]
    if kind.has_duration and fault.for_ns <= 0:
        yield 'requires for = "5s"'
    if not kind.has_duration and fault.for_ns:
        yield "it has no duration. Remove for."
    if fault.random and not fault.every_ns:
        yield 'random requires every = "10s", the mean time between two begins'
    if 0 < fault.every_ns <= fault.for_ns:
        yield "it would begin again before it has ended. every must be longer than for."
    elif 0 < fault.every_ns < fault.for_ns + _MIN_GAP_NS:
        yield "less than 10 ms from its end to its next begin. Take a longer every."
    if cell.load.measure_documents is None and fault.at_ns + fault.for_ns > cell.load.measure_ns:
        yield "it ends after the measurement. Measure longer."


def _find_key_errors(fault: Fault) -> Iterator[str]:
    """Yield keys that the fault has but its kind does not use."""
    kind, defaults = FAULTS[fault.kind], Fault(kind=fault.kind, at_ns=0)
    if kind.scope != "link" and fault.link == "peers":
        yield "it does not act on links. Remove link."
    if kind.scope == "server" and fault.node is not None:
        yield "it acts on all nodes at the same time. Remove node."
    unused = frozenset[str]().union(*(other.keys for other in FAULTS.values())) - kind.keys
    for name in (field.name for field in dataclasses.fields(Fault)):
        if name in unused and getattr(fault, name) != getattr(defaults, name):
            yield f"it does not use {toml_key(name)}. Remove {toml_key(name)}."
