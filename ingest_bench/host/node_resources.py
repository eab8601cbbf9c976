"""Resources of one node that faults act on: cgroups, volume, sync supervisor. They outlive restarts of the node."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ingest_bench.host import cgroups, sync_supervisor, volume
from ingest_bench.host.capability_checks import run_check
from ingest_bench.host.cgroups import Controller, IoThrottle, NodeCgroups
from ingest_bench.host.sync_supervisor import SyncSupervisor
from ingest_bench.host.volume import DiskFiller, Volume
from ingest_bench.model.experiment import Capability

Need = Literal["cpu", "memory", "disk", "throttle", "syncs"]
"""A resource that a fault needs. `throttle` also needs `disk`."""


@dataclass(slots=True)
class NodeResources:
    """Resources of one node; None: no fault needs it."""

    cgroups: NodeCgroups | None = None
    sync_supervisor: SyncSupervisor | None = None
    volume: Volume | None = None
    io_throttle: IoThrottle | None = None
    disk_filler: DiskFiller | None = None
    """Fills the volume while the fault `full-disk` is active."""

    def wrap(self, argv: Sequence[str]) -> tuple[str, ...]:
        """Return the argv that runs *argv* with all of them."""
        argv = tuple(argv)
        for resource in (self.sync_supervisor, self.io_throttle, self.cgroups):
            argv = argv if resource is None else resource.wrap(argv)
        return argv


def check_resources() -> Iterator[Capability]:
    """Check which resources a node can have here; only some faults require them."""
    yield run_check("cgroups", cgroups.require_cgroups, remedy="Only the faults cpu and memory require it.")
    yield run_check("disk", volume.require_volume, remedy="Only the faults full-disk and slow-disk require it.")
    yield run_check("throttle", cgroups.require_io_throttle, remedy="Only the fault slow-disk requires it.")
    yield run_check("syncs", sync_supervisor.require_sync_supervisor, remedy="Only the fault slow-fsync requires it.")


def require_resources(needs: Set[Need]) -> None:
    """Raise MissingCapability for the first resource that cannot be had here; nothing is changed."""
    cgroups.find_parents(_list_controllers(needs))
    if "disk" in needs:
        volume.require_volume()
    if "throttle" in needs:
        cgroups.require_io_throttle()
    if "syncs" in needs:
        sync_supervisor.require_sync_supervisor()


@contextmanager
def create_resources(needs: Set[Need], homes: Sequence[Path]) -> Iterator[tuple[NodeResources, ...]]:
    """Create resources for the node of each empty home. They are removed after the block, and after `kill -9`."""
    controllers = _list_controllers(needs)
    with ExitStack() as stack:
        nodes = tuple(NodeResources() for _ in homes)
        if controllers:
            node_cgroups = stack.enter_context(cgroups.create_node_cgroups(controllers, len(homes)))
            for node, own_cgroups in zip(nodes, node_cgroups, strict=True):
                node.cgroups = own_cgroups
        for node, home in zip(nodes, homes, strict=True):
            if "disk" in needs:
                node.volume = stack.enter_context(volume.create_volume(home))
                if "throttle" in needs:
                    node.io_throttle = cgroups.create_io_throttle(node.volume, node.cgroups)
            if "syncs" in needs:
                node.sync_supervisor = stack.enter_context(SyncSupervisor(home).serve())
        yield nodes


def _list_controllers(needs: Set[Need]) -> Set[Controller]:
    controllers = {name for name in cgroups.CONTROLLERS if name in needs}
    return controllers | cgroups.io_controllers() if "throttle" in needs else controllers
