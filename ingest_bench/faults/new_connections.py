"""Faults of new connections: `exhausted-ports` and `dns-failure`. Open connections stay.

`exhausted-ports` leaves the clients no ephemeral port (EADDRNOTAVAIL), as on a machine whose ports are all in use or in
TIME_WAIT. All ports of the clients' namespace are reserved (net.ipv4.ip_local_reserved_ports). Rejected: occupying them
by sockets, because opening 28,232 takes seconds, and a connection to another address would still find a port.

`dns-failure`: the clients cannot resolve the server's name. A load knows the addresses of its server from the start, so
no failure of a name server would affect it. In a cell with this fault each node has a name, and each new connection of
the load resolves it at our name server, as a client without a cache does. The name server answers SERVFAIL at once, or
does not answer: then a lookup times out. Rejected: bind mounts over /etc/resolv.conf, because nscd or systemd-resolved,
which libc asks first, do not see them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from ingest_bench import system
from ingest_bench.errors import RunFailed, undo_on_error
from ingest_bench.faults import name_server
from ingest_bench.faults.kind import ActiveFault, FaultKind, Stage, hold_effect
from ingest_bench.model.experiment import Fault
from ingest_bench.model.target import Endpoint, ServerAddress
from ingest_bench.network.act.sandbox import Namespace

_PORT_RANGE = "net.ipv4.ip_local_port_range"
_RESERVED_PORTS = "net.ipv4.ip_local_reserved_ports"


def _exhaust_ports(fault: Fault, stage: Stage) -> ActiveFault:
    del fault
    assert stage.links is not None  # noqa: S101 - a launched server has one
    clients, link = stage.links.client, stage.links.clients[0]
    first, last = map(int, clients.run(("sysctl", "-n", _PORT_RANGE)).split())

    def reserve(ports: str) -> None:
        clients.run(("sysctl", "-q", "-w", f"{_RESERVED_PORTS}={ports}"))
        if (actual := clients.run(("sysctl", "-n", _RESERVED_PORTS)).strip()) != ports:
            raise RunFailed(f'exhausted-ports: {_RESERVED_PORTS} was set to "{ports}", but is "{actual}"')

    # No other program reserves a port in our namespace, so "" is the old value.
    release = hold_effect(
        link.lock,
        link.active_faults,
        ("exhausted-ports", "to-server"),
        lambda: reserve(f"{first}-{last}"),
        lambda: reserve(""),
    )

    return ActiveFault(f"none of {last - first + 1} ports left", release)


EXHAUSTED_PORTS = FaultKind(scope="server", begin=_exhaust_ports)

_ADDRESS = "127.0.0.1"


@dataclass(slots=True)
class NodeNames:
    """Names of the nodes, and their name server. If several faults overlap, the latest applies."""

    name_server: system.Child
    addresses: tuple[ServerAddress, ...]
    """Each node by its name."""
    active: list[Fault] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def fail(self, fault: Fault) -> Callable[[], None]:
        """Let the name server fail as *fault* says; return the function that ends it."""

        def end() -> None:
            with self.lock:
                self.active.remove(fault)
                self.exchange_state()

        with self.lock, undo_on_error(end):
            self.active.append(fault)
            self.exchange_state()
        return end

    def exchange_state(self) -> int:
        """Send the present state to the name server; return how many questions it has failed so far."""
        with self.lock:
            return int(self.name_server.request(self.active[-1].resolver if self.active else "answer"))


@contextmanager
def serve_names(clients: Namespace, endpoints: Sequence[Endpoint]) -> Iterator[NodeNames]:
    """Run a name server in the clients' namespace with names such as node-1. Call it from the main thread."""
    names = [Endpoint(f"node-{number}.ingest-bench.test", node.port) for number, node in enumerate(endpoints, 1)]
    records = [f"{name.host}={node.host}" for name, node in zip(names, endpoints, strict=True)]
    command = clients.command(system.build_script_argv(name_server.__file__, _ADDRESS, *records))
    with system.Child(command, name="dns-failure: the name server") as child:
        resolver = Endpoint(_ADDRESS, int(child.read_line()))
        yield NodeNames(child, tuple(ServerAddress(endpoint=name, resolver=resolver) for name in names))


def _begin_dns_failure(fault: Fault, stage: Stage) -> ActiveFault:
    names = stage.names
    assert names is not None  # noqa: S101 - see `needs_names` below
    failed_before = names.exchange_state()
    end_failure = names.fail(fault)

    def end() -> str:
        failed = names.exchange_state() - failed_before
        end_failure()
        # Not an error: that the load is unaffected while its connections stay open is a result.
        return f"{failed} lookups failed" if failed else "no client resolved the name"

    return ActiveFault("", end)


DNS_FAILURE = FaultKind(scope="server", begin=_begin_dns_failure, keys=frozenset({"resolver"}), needs_names=True)
