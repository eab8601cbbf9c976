"""Several machines on one switch: a namespace for each, and one for the bridge between them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from ingest_bench.errors import MissingCapability, RunFailed
from ingest_bench.network.act.sandbox import Namespace, sandbox
from ingest_bench.network.plan import link_plan


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine."""

    place: Namespace
    address: str


@contextmanager
def machines(count: int, mtu_bytes: int = 1500, *, in_loopback_range: bool = False) -> Iterator[list[Machine]]:
    """Yield machines that reach only each other; skip if this machine has no namespaces.

    With addresses *in_loopback_range* OpenSearch forms a cluster whatever the limits of this host are.
    """
    with sandbox() as opened:
        try:
            switch = opened.add_namespace()
            switch.run(("ip", "link", "add", "switch", "type", "bridge"))
        except (MissingCapability, RunFailed) as error:
            pytest.skip(str(error))
        switch.run(("ip", "link", "set", "switch", "up"))
        started = []
        for number in range(1, count + 1):
            machine = Machine(opened.add_namespace(), f"{'127.18.7' if in_loopback_range else '198.18.7'}.{number}")
            port = f"port{number}"
            ends = ("type", "veth", "peer", "name", "eth0", "netns", str(machine.place.pid))
            switch.run(("ip", "link", "add", port, "mtu", str(mtu_bytes), *ends))
            switch.run(("ip", "link", "set", port, "master", "switch", "up"))
            machine.place.run(("ip", "link", "set", "lo", "up"))
            if in_loopback_range:
                machine.place.run(("ip", "addr", "del", "127.0.0.1/8", "dev", "lo"))
                machine.place.run(("ip", "addr", "add", "127.0.0.1/32", "dev", "lo"))
                machine.place.run(("sysctl", "-q", "-w", link_plan.ROUTE_LOCALNET))
            machine.place.run(("ip", "addr", "add", f"{machine.address}/24", "dev", "eth0"))
            machine.place.run(("ip", "link", "set", "eth0", "mtu", str(mtu_bytes), "up"))
            started.append(machine)
        yield started
