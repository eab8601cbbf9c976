"""What happens to a standing link at a moment of a run, and how each of it is undone.

| fault | what it does | its end |
|---|---|---|
| `partition` | nothing passes in a direction, and no one is told | packets pass; TCP sends the lost ones again |
| `blackhole` | connections open, but what is sent on them vanishes | as above |
| `profile`, `throttle` | the link is in another state | the link is in its own state again |
| `reset` | each established connection is reset at both ends | none: it has no length |

Faults may overlap. Of those that do the same the first one begins it and the last one ends it; each other state of a
link is a change of the state that it has without, in the order in which they began.

A fault lives in the link's namespaces: it goes with them, also when we are killed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from ingest_bench import system
from ingest_bench.errors import MissingCapability, RunFailed, SpecError
from ingest_bench.network.plan import commands, holes

if TYPE_CHECKING:
    from ingest_bench.model.network import Profile
    from ingest_bench.network.act.link import End, Link
    from ingest_bench.network.plan.places import Direction

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
def fault(
    link: Link, kind: str, directions: Sequence[Direction], change: Callable[[Profile], Profile] | None = None
) -> Iterator[None]:
    """The fault, from the beginning of the block to its end. `change` makes the link's other state of its own."""
    with ExitStack() as undo:
        if change is not None:
            undo.enter_context(other_profile(link, change))
        elif kind == "reset":
            reset(link)
        elif kind in ("partition", "blackhole"):
            for direction in directions:
                hole = partition if kind == "partition" else blackhole
                undo.enter_context(hole(link, direction))
        else:
            raise SpecError(f'fault "{kind}" is none of the link')
        yield


@contextmanager
def partition(link: Link, direction: Direction) -> Iterator[None]:
    """Silence in that direction."""
    if link.profile.medium == "loopback":
        with _hole(link, direction, only_data=False):
            yield
        return
    with _layer(link, ("cut", direction), lambda: link.cut(direction), lambda: link.mend(direction)):
        yield


@contextmanager
def blackhole(link: Link, direction: Direction) -> Iterator[None]:
    """A path that carries handshakes and acknowledgements, but no TCP segment with data."""
    with _hole(link, direction, only_data=True):
        yield


@contextmanager
def other_profile(link: Link, change: Callable[[Profile], Profile]) -> Iterator[None]:
    """The link in the state that this change makes of the one that it has without."""
    if not link.changes:
        link.unchanged = link.profile
    link.changes.append(change)
    try:
        _change(link)
        yield
    finally:
        link.changes.remove(change)
        _change(link)


def _change(link: Link) -> None:
    """The link in the state that all changes together make."""
    profile = link.unchanged
    for change in link.changes:
        profile = change(profile)
    link.change(profile)


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

    with _layer(link, ("data" if only_data else "all", direction), swallow, spare):
        yield


@contextmanager
def _layer(
    link: Link, what: tuple[str, Direction], begin: Callable[[], None], end: Callable[[], None]
) -> Iterator[None]:
    """What several faults of a link may do at once: it begins with the first of them, and ends with the last."""
    if not link.layers[what]:
        begin()
    link.layers[what] += 1
    try:
        yield
    finally:
        link.layers[what] -= 1
        if not link.layers[what]:
            end()
