"""Faults that last on a link: what several do at once, and the state that all together make of its profile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ingest_bench.faults.stage import Act, hold
from ingest_bench.model.network import Profile
from ingest_bench.network.act.link import Link
from ingest_bench.network.plan.places import Direction


@contextmanager
def layer(link: Link, what: tuple[str, Direction], begin: Act, end: Act) -> Iterator[None]:
    """What several faults of a link may do at once: it begins with the first of them, and ends with the last."""
    let_go = hold(link.layers, what, begin, end)
    try:
        yield
    finally:
        let_go()


@contextmanager
def other_state(link: Link, change: Callable[[Profile], Profile]) -> Iterator[Callable[[], None]]:
    """The link in the state that this change makes of the one that it has without.

    What is given makes it so anew, in any thread, for a change that has become another one.
    """
    with link.changing:
        if not link.changes:
            link.unchanged = link.profile
        link.changes.append(change)
    try:
        _settle(link)
        yield lambda: _settle(link)
    finally:
        with link.changing:
            link.changes.remove(change)
            _settle(link)


def _settle(link: Link) -> None:
    """The link in the state that all changes together make, in the order in which they began."""
    with link.changing:
        profile = link.unchanged
        for change in link.changes:
            profile = change(profile)
        link.change(profile)
