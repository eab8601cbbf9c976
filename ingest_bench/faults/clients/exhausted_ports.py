"""`exhausted-ports`: no local port is left for a new connection of the clients, whose connect fails (EADDRNOTAVAIL).

As on a machine whose ports are all taken or rest in TIME_WAIT. Connections that are open stay. All ports of the
clients' namespace are reserved (net.ipv4.ip_local_reserved_ports). To take them by sockets was rejected: 28,232 of them
cost seconds to open, and a connection to another address would find a port all the same.
"""

from __future__ import annotations

from ingest_bench.errors import RunFailed
from ingest_bench.faults.kind import Begun, FaultKind
from ingest_bench.faults.stage import Stage, hold
from ingest_bench.model.experiment import Fault

_RANGE = "net.ipv4.ip_local_port_range"
_RESERVED = "net.ipv4.ip_local_reserved_ports"


def _begin(fault: Fault, stage: Stage) -> Begun:
    del fault
    assert stage.links is not None  # noqa: S101 - a server of ours has one
    clients = stage.links.client
    first, last = map(int, clients.run(("sysctl", "-n", _RANGE)).split())

    def reserve(ports: str) -> None:
        clients.run(("sysctl", "-q", "-w", f"{_RESERVED}={ports}"))
        if (found := clients.run(("sysctl", "-n", _RESERVED)).strip()) != ports:
            raise RunFailed(f'exhausted-ports: {_RESERVED} was set to "{ports}" and is "{found}"')

    # The namespace is ours: nobody else reserves a port in it.
    let_go = hold(
        stage.links.clients[0].layers,
        ("exhausted-ports", "to-server"),
        lambda: reserve(f"{first}-{last}"),
        lambda: reserve(""),
    )

    def end() -> str:
        let_go()
        return ""

    return Begun(f"none of {last - first + 1} ports left", end)


EXHAUSTED_PORTS = FaultKind(hits="server", begin=_begin, lasts=True)
