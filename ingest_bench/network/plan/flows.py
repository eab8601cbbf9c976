"""The connections of a real interface that are shaped together, and the words of tc that find their packets. Pure."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ingest_bench.model.network import PortRange

if TYPE_CHECKING:
    from collections.abc import Iterator
    from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

Side = Literal["ingress", "egress"]
SIDES: tuple[Side, Side] = ("ingress", "egress")
# The whole of a port's 16 bits.
_PORT_MASK = 0xFFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """All TCP connections of ours with a host or a network, of some ports of theirs or of ours."""

    network: IPv4Network | IPv6Network
    far: tuple[PortRange, ...] = ()
    """Their ports; empty: any."""
    own: tuple[PortRange, ...] = ()
    """Ours; empty: any."""

    @property
    def is_host(self) -> bool:
        """Whether it is with one host alone."""
        return self.network.num_addresses == 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """One TCP connection of ours, such as that of our terminal."""

    far: IPv4Address | IPv6Address
    far_port: int
    own: IPv4Address | IPv6Address
    own_port: int

    def __str__(self) -> str:
        return f"{_end(self.far, self.far_port)} to {_end(self.own, self.own_port)}"

    @property
    def flow(self) -> Flow:
        """It as a flow of its own."""
        far, own = (PortRange(port, port) for port in (self.far_port, self.own_port))
        return Flow(network=ipaddress.ip_network(self.far), far=(far,), own=(own,))

    def is_of(self, flow: Flow) -> bool:
        """Whether the flow's filters would match its packets."""
        ends = ((flow.far, self.far_port), (flow.own, self.own_port))
        return self.far in flow.network and all(
            not ranges or any(ports.first <= port <= ports.last for ports in ranges) for ranges, port in ends
        )


def protocol(flow: Flow) -> str:
    """What `tc` calls the protocol of its packets."""
    return "ip" if flow.network.version == 4 else "ipv6"


def matches(flow: Flow, side: Side) -> Iterator[tuple[str, ...]]:
    """The words of a u32 filter for the flow's packets that leave or that arrive; one filter for each block of ports.

    u32 compares under a mask, so a range of ports is as many blocks as its binary digits need: at most 30.
    """
    ip = "ip" if flow.network.version == 4 else "ip6"
    theirs, ours = {"egress": ("dst", "src"), "ingress": ("src", "dst")}[side]
    where = ("match", ip, theirs, str(flow.network)) if flow.network.prefixlen else ()
    for far in _blocks(flow.far):
        for own in _blocks(flow.own):
            ports = (*_port(ip, theirs, far), *_port(ip, ours, own))
            yield (*where, "match", ip, "protocol", "6", "0xff", *ports)


def _port(ip: str, end: str, block: tuple[int, int]) -> tuple[str, ...]:
    value, mask = block
    return ("match", ip, f"{end[0]}port", str(value), f"0x{mask:04x}") if mask else ()


def _blocks(ranges: tuple[PortRange, ...]) -> Iterator[tuple[int, int]]:
    """Values and masks that are together these ports and no other; no bit is compared where any port is meant."""
    if not ranges:
        yield 0, 0
    for ports in ranges:
        first = ports.first
        while first <= ports.last:
            size = first & -first
            while first + size - 1 > ports.last:
                size //= 2
            yield first, _PORT_MASK & ~(size - 1)
            first += size


def _end(address: IPv4Address | IPv6Address, port: int) -> str:
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"
