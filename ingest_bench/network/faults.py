"""What happens to a standing link at a moment of a run, and how each of it is undone.

| fault | what it does | its end |
|---|---|---|
| `partition` | nothing passes in a direction, and no one is told | packets pass; TCP sends the lost ones again |
| `blackhole` | connections open, but what is sent on them vanishes | as above |
| `profile` | the link is in the state of another profile | the link is in its own state again |
| `reset` | each established connection is reset at both ends | none: it has no length |

A fault lives in the link's namespaces: it goes with them, also when we are killed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from ingest_bench import system
from ingest_bench.errors import MissingCapability, RunFailed, SpecError
from ingest_bench.network import commands, holes
from ingest_bench.network.places import DIRECTIONS

if TYPE_CHECKING:
    from ingest_bench.model.experiment import Fault
    from ingest_bench.model.network import Profile
    from ingest_bench.network.link import End, Link
    from ingest_bench.network.places import Direction

# How long a busy machine may take to reset what answers twice a second.
_RESET_LIMIT_S = 20
# The order of our filters on a device; each kind of hole in each direction has its own, so that they may overlap.
_PREFERENCES: Mapping[tuple[bool, Direction], int] = {
    (False, "to-server"): 1,
    (False, "to-client"): 2,
    (True, "to-server"): 3,
    (True, "to-client"): 4,
}


@contextmanager
def fault(link: Link, what: Fault, profiles: Mapping[str, Profile]) -> Iterator[None]:
    """The fault, from the beginning of the block to its end. `profiles` has those that a fault of the link names."""
    with ExitStack() as undo:
        if what.kind == "profile":
            undo.enter_context(other_profile(link, profiles[what.profile or ""]))
        elif what.kind == "reset":
            reset(link)
        elif what.kind in ("partition", "blackhole"):
            for direction in directions(what):
                hole = partition if what.kind == "partition" else blackhole
                undo.enter_context(hole(link, direction))
        else:
            raise SpecError(f'fault "{what.kind}" is none of the link')
        yield


def directions(what: Fault) -> tuple[Direction, ...]:
    """The directions that a fault is about."""
    return DIRECTIONS if what.direction == "both" else (what.direction,)


@contextmanager
def partition(link: Link, direction: Direction) -> Iterator[None]:
    """Silence in that direction."""
    if link.profile.medium == "loopback":
        with _hole(link, direction, only_data=False):
            yield
        return
    link.cut(direction)
    try:
        yield
    finally:
        link.mend(direction)


@contextmanager
def blackhole(link: Link, direction: Direction) -> Iterator[None]:
    """A path that carries handshakes and acknowledgements, but no TCP segment with data."""
    with _hole(link, direction, only_data=True):
        yield


@contextmanager
def other_profile(link: Link, profile: Profile) -> Iterator[None]:
    """The link in the state of that profile."""
    before = link.profile
    link.change(profile)
    try:
        yield
    finally:
        link.change(before)


def reset(link: Link) -> int:
    """How many connections from the client to the server there were; each is reset, at the client's end first.

    A connection that begins meanwhile is spared. RunFailed when one of them stands after all.
    """
    client, server = link.ends
    ports = _reset_at(client, among=())
    if ports:
        _reset_at(server, among=ports)
    return len(ports)


def _reset_at(end: End, among: Sequence[int]) -> list[int]:
    argv = system.python("ingest_bench.network.resets", end.device, end.address, end.peer)
    answer = json.loads(end.namespace.run((*argv, str(_RESET_LIMIT_S), *map(str, among))))
    ports: list[int] = answer["ports"]
    if answer["left"]:
        raise RunFailed(
            f"reset: {answer['left']} of {len(ports)} connections of {end.address} with {end.peer} still stand "
            f"after {_RESET_LIMIT_S} s of forged resets"
        )
    return ports


@contextmanager
def _hole(link: Link, direction: Direction, *, only_data: bool) -> Iterator[None]:
    receiver = link.ends[1 if direction == "to-server" else 0]
    device, place = receiver.device, receiver.namespace
    preference = _PREFERENCES[only_data, direction]
    # It may be there already, for another hole; without any filter it does nothing.
    place.run(("tc", "qdisc", "add", "dev", device, "clsact"), check=False)
    try:
        lines = holes.swallow(device, receiver.address, only_data=only_data, preference=preference)
        place.run(("tc", "-batch", "-"), stdin=commands.text(lines))
    except RunFailed as error:
        raise MissingCapability(
            f"fault: packets cannot be made to vanish here. It needs a kernel with sch_ingress and cls_bpf; {error}"
        ) from None
    try:
        yield
    finally:
        place.run(("tc", "-batch", "-"), stdin=commands.text(holes.spare(device, preference)))
        if not place.run(("tc", "filter", "show", "dev", device, "ingress")).strip():
            place.run(("tc", "qdisc", "del", "dev", device, "clsact"))
