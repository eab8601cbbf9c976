"""What a node has of the machine for itself, so that faults can take it away: made before it starts, gone after it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ingest_bench.host import cgroups, disk, io_limits, latency
from ingest_bench.host.cgroups import Controller, Group
from ingest_bench.host.disk import Filler, Own
from ingest_bench.host.io_limits import Throttle
from ingest_bench.host.syncs import Syncs, syncs
from ingest_bench.host.syncs import require as require_syncs

Need = Literal["cpu", "memory", "disk", "throttle", "latency", "syncs"]
"""What is throttled, or late, is a `disk`."""


@dataclass(slots=True)
class NodeResources:
    """Of one node. What no fault needs is not there."""

    group: Group | None = None
    syncs: Syncs | None = None
    disk: Own | None = None
    throttle: Throttle | None = None
    filler: Filler | None = None
    """What fills its file system, while a fault does."""

    def command(self, argv: Sequence[str]) -> tuple[str, ...]:
        """The argv that runs `argv` with all of it."""
        inner = tuple(argv) if self.syncs is None else self.syncs.command(argv)
        inner = inner if self.throttle is None else self.throttle.command(inner)
        return inner if self.group is None else self.group.command(inner)


def require(needs: Set[Need]) -> None:
    """MissingCapability for the first thing that cannot be had here; nothing is changed."""
    cgroups.require(_controllers(needs))
    if "disk" in needs:
        disk.require()
    if "throttle" in needs:
        io_limits.require()
    if "latency" in needs:
        latency.require()
    if "syncs" in needs:
        require_syncs()


@contextmanager
def shares(needs: Set[Need], homes: Sequence[Path]) -> Iterator[tuple[NodeResources, ...]]:
    """A share for the node of each home, which is empty; nothing of it is left after the block, or `kill -9`."""
    controllers = _controllers(needs)
    with ExitStack() as stack:
        made = tuple(NodeResources() for _ in homes)
        if controllers:
            groups = stack.enter_context(cgroups.groups(controllers, len(homes)))
            for share, group in zip(made, groups, strict=True):
                share.group = group
        for share, home in zip(made, homes, strict=True):
            if "disk" in needs:
                share.disk = stack.enter_context(disk.own(home, may_wait="latency" in needs))
                if "throttle" in needs:
                    share.throttle = io_limits.made(share.disk, share.group)
            if "syncs" in needs:
                share.syncs = stack.enter_context(syncs(home))
        yield made


def _controllers(needs: Set[Need]) -> Set[Controller]:
    """What the group of a node has to have."""
    found = {name for name in cgroups.CONTROLLERS if name in needs}
    return found | io_limits.controllers() if "throttle" in needs else found
