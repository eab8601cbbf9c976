"""A fault at each link, or at each node, that it is about."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import TypeVar

from ingest_bench.errors import RunFailed, SpecError
from ingest_bench.faults.kind import Begun, Change
from ingest_bench.faults.links.layers import other_state
from ingest_bench.faults.stage import Act, Node, Stage
from ingest_bench.model.experiment import Fault
from ingest_bench.model.network import LinkName
from ingest_bench.network.act.link import Link
from ingest_bench.network.measure import check
from ingest_bench.network.plan import places
from ingest_bench.network.plan.places import Direction

Made = TypeVar("Made")
End = Callable[[], str]
"""What ends a fault at a node, and says what was seen of it."""


def concerns(fault: Fault, name: LinkName) -> bool:
    """Whether a fault of links is one of that link."""
    return fault.link == name.kind and (fault.node is None or fault.node in name.nodes)


def links(fault: Fault, stage: Stage) -> Iterator[tuple[LinkName, Link]]:
    """The links that it is about."""
    if stage.links is None:
        raise SpecError(f"fault {fault.kind}: it needs a link of ours")
    return ((name, link) for name, link in stage.links.by_name.items() if concerns(fault, name))


def directions(fault: Fault, name: LinkName) -> tuple[Direction, ...]:
    """The directions of a link that a fault is about. Between nodes the second one is where a server would be."""
    if fault.direction == "both":
        return places.DIRECTIONS
    if name.kind == "peers" and name.nodes[0] == fault.node:
        return tuple(each for each in places.DIRECTIONS if each != fault.direction)
    return (fault.direction,)


def on_links(
    fault: Fault,
    stage: Stage,
    layer: Callable[[Link, tuple[Direction, ...]], AbstractContextManager[object]],
    look: Callable[[Link, tuple[Direction, ...]], str],
) -> Begun:
    """The layer on each of its links; when one cannot be had, none of them is left.

    `look` says what the kernel has of the link then, and RunFailed where that is not the layer: once it has begun, and
    once more before it ends.
    """
    found = [(name, link, directions(fault, name)) for name, link in links(fault, stage)]

    def seen() -> str:
        words = []
        for name, link, ways in found:
            try:
                words.append(f"{name}: {look(link, ways)}")
            except RunFailed as error:
                raise RunFailed(f"link {name} {error}") from None
        return "; ".join(words)

    with ExitStack() as stack:
        for _, link, ways in found:
            stack.enter_context(layer(link, ways))
        words, layers = seen(), stack.pop_all()

    def end() -> str:
        try:
            seen()
        except RunFailed:
            # What it undoes is gone, perhaps.
            with contextlib.suppress(RunFailed):
                layers.close()
            raise
        layers.close()
        return ""

    return Begun(words, end)


def in_other_state(fault: Fault, stage: Stage, changed: Change) -> Begun:
    """Each of its links in the state that it makes of the one that the link has without it."""
    return on_links(
        fault,
        stage,
        lambda link, ways: other_state(link, lambda profile: changed(profile, fault, ways)),
        lambda link, _: check.state(link),
    )


def nodes(fault: Fault, stage: Stage) -> tuple[Node, ...]:
    """The nodes that it is about."""
    if not stage.nodes:
        raise SpecError(f"fault {fault.kind}: it needs the server's process on this machine")
    return tuple(node for node in stage.nodes if fault.node in (None, node.number))


def on_nodes(fault: Fault, stage: Stage, begin: Callable[[Node], tuple[str, Act]]) -> Begun:
    """What `begin` makes at each of its nodes, and what it says of it; what it returns ends it."""
    with ExitStack() as stack:
        seen = []
        for node in nodes(fault, stage):
            said, end = begin(node)
            stack.callback(end)
            seen.append(f"{node.name}: {said}" if said else "")
        return _ending(stack.pop_all(), "; ".join(filter(None, seen)))


def together(fault: Fault, stage: Stage, begin: Callable[[Node], Made], end: Callable[[Sequence[Made]], str]) -> Begun:
    """What `begin` makes at each of its nodes, one after the other; `end` ends all of that, and says what was seen.

    When it cannot be had at one of them, it ends at those that have it.
    """
    made: list[Made] = []
    try:
        for node in nodes(fault, stage):
            made.append(begin(node))  # noqa: PERF401 - each is there before the next one may fail
    except BaseException:
        # What they say so early, such as that nothing happened, is not why it failed.
        with contextlib.suppress(RunFailed):
            end(made)
        raise
    return Begun("", lambda: end(made))


def watched(fault: Fault, stage: Stage, begin: Callable[[Node], End]) -> Begun:
    """What `begin` makes at each of its nodes; what it returns ends it, and says what was seen until then."""

    def end(begun: Sequence[tuple[str, End]]) -> str:
        said: dict[str, str] = {}
        with ExitStack() as stack:
            # All of them end, whatever one says.
            for name, its in begun:
                stack.callback(_note, said, name, its)
        return "; ".join(f"{name}: {words}" for name, words in sorted(said.items()))

    return together(fault, stage, lambda node: (node.name, begin(node)), end)


def _note(said: dict[str, str], name: str, end: End) -> None:
    said[name] = end()


def at_nodes(fault: Fault, stage: Stage, act: Callable[[Node], str]) -> Begun:
    """What is done at each of its nodes that runs, one after the other, and what was seen of it."""
    return Begun("; ".join(f"{node.name}: {_done(node, act)}" for node in nodes(fault, stage)))


def _done(node: Node, act: Callable[[Node], str]) -> str:
    try:
        return "not done, it is down" if node.is_down else act(node)
    except RunFailed:
        if node.is_down:
            return "not done, it was killed meanwhile"
        raise


def _ending(stack: ExitStack, seen: str = "") -> Begun:
    def end() -> str:
        stack.close()
        return ""

    return Begun(seen, end)
