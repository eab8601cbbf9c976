"""Fault `exhausted-ports`: leave the clients no ephemeral port, so that a new connection fails (EADDRNOTAVAIL).

As on a machine whose ports are all in use or in TIME_WAIT. Open connections stay. All ports of the clients' namespace
are reserved (net.ipv4.ip_local_reserved_ports). Rejected: occupying them by sockets, because opening 28,232 takes
seconds, and a connection to another address would still find a port.
"""

from __future__ import annotations

from ingest_bench.errors import RunFailed
from ingest_bench.faults.kind import ActiveFault, FaultKind, Stage, hold_effect
from ingest_bench.model.experiment import Fault

_RANGE = "net.ipv4.ip_local_port_range"
_RESERVED = "net.ipv4.ip_local_reserved_ports"


def _begin(fault: Fault, stage: Stage) -> ActiveFault:
    del fault
    assert stage.links is not None  # noqa: S101 - a launched server has one
    clients = stage.links.client
    first, last = map(int, clients.run(("sysctl", "-n", _RANGE)).split())

    def reserve(ports: str) -> None:
        clients.run(("sysctl", "-q", "-w", f"{_RESERVED}={ports}"))
        if (actual := clients.run(("sysctl", "-n", _RESERVED)).strip()) != ports:
            raise RunFailed(f'exhausted-ports: {_RESERVED} was set to "{ports}", but is "{actual}"')

    # No other program reserves a port in our namespace, so "" is the old value.
    release = hold_effect(
        stage.links.clients[0].active_faults,
        ("exhausted-ports", "to-server"),
        lambda: reserve(f"{first}-{last}"),
        lambda: reserve(""),
    )

    return ActiveFault(f"none of {last - first + 1} ports left", release)


EXHAUSTED_PORTS = FaultKind(scope="server", begin=_begin)
