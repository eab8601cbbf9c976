"""The options that say which connections of which real interface are shaped: of `net apply`, `run` and `plan`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer

from ingest_bench.cli import screen
from ingest_bench.errors import SpecError
from ingest_bench.inputs import records
from ingest_bench.model.network import RealLink

To = Annotated[
    list[str],
    typer.Option(
        "--to",
        metavar="HOST[/BITS]:PORTS",
        help="Connections to this host or network and these TCP ports (9200,9300-9310). Again for more: all share "
        "the shaped queues.",
    ),
]
OwnPorts = Annotated[
    str | None,
    typer.Option(
        "--port",
        metavar="PORTS",
        help=screen.literal(
            "On the server's machine: connections to these ports of it, from anybody, or from each --to HOST[/BITS]."
        ),
    ),
]
DefaultRoute = Annotated[
    bool, typer.Option("--allow-default-route", help="Shape flows on the interface of the default route too.")
]
InterfaceMtu = Annotated[
    bool, typer.Option("--interface-mtu", help="Set the MTU of the interface, for all traffic, not of the route.")
]
SharedSettings = Annotated[
    bool,
    typer.Option("--shared-settings", help="Also set what other traffic feels: offloads, GSO sizes, TCP buffers."),
]

SshLimit = Annotated[
    str | None,
    typer.Option(
        help="The longest time where your own SSH connection runs over the interface; 10min unless it is given. That "
        "connection is left as it is, which is proven first."
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Flows:
    """What was typed of whose connections."""

    to: To = field(default_factory=list)
    port: OwnPorts = None
    allow_default_route: DefaultRoute = False
    interface_mtu: InterfaceMtu = False
    shared_settings: SharedSettings = False
    ssh_limit: SshLimit = None

    def table(self, interface: str | None) -> dict[str, Any]:
        """What was given, by its key; SpecError with the option for what no interface, host or port can be."""
        if interface is None:
            if self != Flows():
                raise SpecError("--to, --port, --interface-mtu …: of which interface? Give --interface eth1")
            return {}
        records.at(RealLink, ("name",), interface, "--interface")
        for host in self.to:
            records.at(RealLink, ("to",), [host], "--to")
        for key, text in (("port", self.port), ("ssh_limit", self.ssh_limit)):
            if text is not None:
                records.at(RealLink, (key,), text, f"--{key.replace('_', '-')}")
        given = {key: value for key, value in dataclasses.asdict(self).items() if value}
        return {"name": interface, **given}
