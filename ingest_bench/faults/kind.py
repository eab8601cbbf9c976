"""What a kind of fault is: what it hits, which keys it takes, and how it begins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from ingest_bench.faults.stage import Stage
from ingest_bench.host.node_resources import Need
from ingest_bench.model.experiment import Cell, Fault
from ingest_bench.model.network import Profile
from ingest_bench.network.act.link import End, Link
from ingest_bench.network.plan.places import Direction

Change = Callable[[Profile, Fault, Sequence[Direction]], Profile]


def _nothing() -> str:
    return ""


@dataclass(frozen=True, slots=True)
class Begun:
    """A fault that has begun. Words say what was seen of it; empty: there is nothing to add."""

    seen: str = ""
    end: Callable[[], str] = _nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultKind:
    """One kind of fault: one file, and one line in `FAULTS`."""

    hits: Literal["link", "node", "server"]
    begin: Callable[[Fault, Stage], Begun]
    """RunFailed when it cannot happen."""
    lasts: bool = False
    """Whether it has a length (`for`); one without is over when it has happened."""
    takes: frozenset[str] = frozenset()
    """The keys that it takes of those that not every fault takes: `checks` has them all."""
    needs: Callable[[Fault], frozenset[Need]] = lambda _fault: frozenset()
    """What each node has of the machine for itself, so that this fault can take it."""
    needs_http: bool = False
    """Whether only a server that speaks HTTP can have it."""
    needs_names: bool = False
    """Whether the load has to look up its server by name for it, for each new connection."""
    begins_slowly: bool = False
    """Whether its beginning may take seconds: others go on meanwhile, and its length counts from when it has begun."""
    is_slow: bool = False
    """Whether its end may take seconds: others go on meanwhile. One without a length always may."""
    complaint: Callable[[Cell, Fault], str] = lambda _cell, _fault: ""
    """Why it cannot happen in such a cell; empty: it can."""
    forged_at: Callable[[Fault, Link, Sequence[Direction]], tuple[End, ...]] = lambda _fault, _link, _directions: ()
    """At which ends of a link it forges packets, in these directions."""
    changed: Change | None = None
    """The state of a link of that profile under it, in those directions; None: the link stays in its state."""
