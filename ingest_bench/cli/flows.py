"""The options that say which connections of which real interface are shaped: of `net apply`, `run` and `plan`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from ingest_bench import records
from ingest_bench.errors import SpecError
from ingest_bench.model.network import RealLink

Interface = Annotated[
    str | None,
    typer.Option(
        help="The real interface that leads to --url: shape it for each run as the network's profile says. Needs root."
    ),
]
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
        help="The server is here: connections to these ports of ours, of anybody or of each --to HOST[/BITS].",
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
        help="How long at most where your SSH connection runs over the interface; 10min unless it is given. It is "
        "spared, and that is proven first."
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Flows:
    """What was typed of a real interface."""

    name: str | None = None
    to: Sequence[str] = ()
    port: str | None = None
    allow_default_route: bool = False
    interface_mtu: bool = False
    shared_settings: bool = False
    ssh_limit: str | None = None

    @property
    def table(self) -> dict[str, Any]:
        """What was given, by its key; SpecError with the option for what no interface, host or port can be."""
        given: dict[str, Any] = {}
        if self.name is None and self != Flows():
            raise SpecError("--to, --port, --interface-mtu …: of which interface? Give --interface eth1")
        if self.name is not None:
            given["name"] = records.at(RealLink, ("name",), self.name, "--interface") and self.name
        if self.to:
            for text in self.to:
                records.at(RealLink, ("to",), [text], "--to")
            given["to"] = list(self.to)
        if self.port is not None:
            records.at(RealLink, ("port",), self.port, "--port")
            given["port"] = self.port
        if self.ssh_limit is not None:
            records.at(RealLink, ("ssh_limit",), self.ssh_limit, "--ssh-limit")
            given["ssh_limit"] = self.ssh_limit
        for key in ("allow_default_route", "interface_mtu", "shared_settings"):
            if getattr(self, key):
                given[key] = True
        return given
