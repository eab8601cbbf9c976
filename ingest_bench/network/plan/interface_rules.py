"""Decide if a real interface may be changed, and which values of a profile differ from its own. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Literal

from ingest_bench.errors import SpecError
from ingest_bench.inputs.names import suggest
from ingest_bench.model.network import Impairment, PortRange, Profile, RealInterface
from ingest_bench.network.plan import features
from ingest_bench.network.plan.features import FeatureState
from ingest_bench.network.plan.link_plan import profile_sizes, tcp_buffer_sysctls

Side = Literal["ingress", "egress"]
SIDES: tuple[Side, Side] = ("ingress", "egress")

_PORT_MASK = 0xFFFF
_IPV6_MIN_MTU = 1280
# Each packet that is not shaped is compared with all of them.
_MAX_FILTERS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """All TCP connections between this machine and a host or network, on some ports."""

    network: IPv4Network | IPv6Network
    remote_ports: tuple[PortRange, ...] = ()
    """Empty: any."""
    local_ports: tuple[PortRange, ...] = ()
    """Empty: any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """One TCP connection of this machine, such as that of the user's terminal."""

    remote: IPv4Address | IPv6Address
    remote_port: int
    local: IPv4Address | IPv6Address
    local_port: int

    def __str__(self) -> str:
        return f"{_format_end(self.remote, self.remote_port)} to {_format_end(self.local, self.local_port)}"

    @property
    def flow(self) -> Flow:
        """The flow that consists of this connection only."""
        remote, local = (PortRange(port, port) for port in (self.remote_port, self.local_port))
        return Flow(network=ipaddress.ip_network(self.remote), remote_ports=(remote,), local_ports=(local,))

    def is_in(self, flow: Flow) -> bool:
        """Return True if the flow's filters match its packets."""
        ends = ((flow.remote_ports, self.remote_port), (flow.local_ports, self.local_port))
        return self.remote in flow.network and all(
            not ranges or any(ports.first <= port <= ports.last for ports in ranges) for ranges, port in ends
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Qdisc:
    """A qdisc as `tc -j qdisc` lists it."""

    kind: str
    handle: str
    parent: str = ""

    @property
    def is_filter_block(self) -> bool:
        """True if it is not a queue but the interface's one place for filters."""
        return self.kind in ("ingress", "clsact")


@dataclass(frozen=True, slots=True, kw_only=True)
class UpperDevice:
    """A device above the interface: a VLAN, a macvlan, a bridge, or a device above one of these."""

    name: str
    index: int
    mtu_bytes: int
    ipv6_mtu_bytes: int | None = None
    """None: it has no IPv6."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The route of packets to a host, in words of `ip`."""

    next_hop: tuple[str, ...] = ()
    """("via", "10.0.0.1") or ("via", "inet6", "fe80::1"); empty if the host is on the interface's own network."""
    source: str | None = None
    """The route's preferred source address."""
    table: str = "main"
    metrics: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """TCP options: {"initcwnd": ("30",), "mtu": ("lock", "1400")}."""
    host_priority: int | None = None
    """The priority ("metric") of an existing route to this host alone; None: there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """A host or network of the flows, and the route to it."""

    address: IPv4Address | IPv6Address
    """The host's address, or one of the network."""
    device: str
    """The interface by which packets leave for it."""
    route: Route = field(default_factory=Route)
    is_own_address: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class InterfaceFacts:
    """State of an interface and the routes over it, before any change."""

    link: RealInterface
    """The request: the interface, the flows, and which settings may be changed."""
    index: int
    mtu_bytes: int
    sizes: Mapping[str, int]
    """gso_max_segs, gso_max_size, gro_max_size … as `ip` names them."""
    qdiscs: tuple[Qdisc, ...]
    features: Mapping[str, FeatureState]
    flows: tuple[Flow, ...]
    """These are shaped together."""
    destinations: tuple[Destination, ...]
    """Remote ends of the flows; empty if the flows have any remote end."""
    address: str = ""
    """Its hardware address; empty: it has none."""
    has_default_route: bool = False
    ssh_connections: tuple[Connection, ...] = ()
    """The SSH connections of the user's terminal that use it."""
    ipv6_mtu_bytes: int | None = None
    """None: the interface has no IPv6."""
    upper_devices: tuple[UpperDevice, ...] = ()
    """From the lowest to the highest."""
    foreign_upper_devices: tuple[str, ...] = ()
    """Those in other network namespaces, which cannot be restored from here."""
    sysctls: Mapping[str, str] = field(default_factory=dict)

    is_name_taken: bool = False
    """True if another interface is named ifN, where N is the index of this one."""

    @property
    def device(self) -> str:
        """The name by which `ip` and `tc` find it also after a renaming (lib/ll_map.c, ll_idx_a2n)."""
        return f"if{self.index}"


def tc_protocol(flow: Flow) -> str:
    """Return tc's name for the protocol of the flow's packets."""
    return "ip" if flow.network.version == 4 else "ipv6"


def filter_matches(flow: Flow, side: Side) -> Iterator[tuple[str, ...]]:
    """Yield the words of a u32 filter for the flow's packets on one side; one filter for each block of ports.

    u32 compares under a mask, so a range of ports takes as many blocks as its binary digits need: at most 30.
    """
    ip = "ip" if flow.network.version == 4 else "ip6"
    remote, local = {"egress": ("dst", "src"), "ingress": ("src", "dst")}[side]
    network = ("match", ip, remote, str(flow.network)) if flow.network.prefixlen else ()
    for remote_block in _port_blocks(flow.remote_ports):
        for local_block in _port_blocks(flow.local_ports):
            ports = (*_match_port(ip, remote, remote_block), *_match_port(ip, local, local_block))
            yield (*network, "match", ip, "protocol", "6", "0xff", *ports)


def check_allowed(facts: InterfaceFacts, profile: Profile) -> None:
    """Raise SpecError with the reason if this interface must not be changed, or not in the requested way."""
    for reason in (*_reasons_against_interface(facts, profile), *_reasons_against_profile(facts, profile)):
        raise SpecError(f"{facts.link.name}: {reason}")


def has_effect(impairment: Impairment) -> bool:
    """Return True if the impairment changes anything."""
    return impairment != Impairment()


def route_options(facts: InterfaceFacts, profile: Profile, to: Destination) -> tuple[str, ...]:
    """Return the TCP options of a separate route: the profile's and the present ones; empty if none is needed."""
    # An IP header and a TCP header without options (RFC 9293, 3.7.1): 20 or 40, and 20 bytes.
    headers_bytes = 40 if to.address.version == 4 else 60
    # A narrower path stays narrow: a tunnel on it takes no larger packets.
    path_mtu_bytes = min([facts.mtu_bytes, *map(int, to.route.metrics.get("mtu", ())[-1:])])
    locks = profile.mtu_bytes < path_mtu_bytes and not facts.link.interface_mtu
    mss_bytes = profile.mss_bytes or (profile.mtu_bytes - headers_bytes if locks else None)
    changes: dict[str, tuple[str, ...]] = {}
    if locks:
        changes["mtu"] = ("lock", str(profile.mtu_bytes))
    if mss_bytes:
        changes["advmss"] = (str(mss_bytes),)
    if profile.congestion_control:
        changes["congctl"] = (profile.congestion_control,)
    if profile.to_server.ecn or profile.to_client.ecn:
        changes["features"] = tuple(dict.fromkeys((*to.route.metrics.get("features", ()), "ecn")))
    merged = {**to.route.metrics, **changes} if changes else {}
    return tuple(word for name, words in merged.items() for word in (name, *words))


def _reasons_against_interface(facts: InterfaceFacts, profile: Profile) -> Iterator[str]:
    for to in facts.destinations:
        if to.is_own_address:
            yield f"{to.address} is this machine: its packets leave by no interface. Use `net exec` instead."
        if to.device != facts.link.name:
            yield f"packets to {to.address} leave by {to.device}. Use --interface {to.device}."
    yield from _reasons_from_ssh(facts, profile)
    if facts.has_default_route and not facts.link.allow_default_route:
        yield "it has the default route. Add --allow-default-route if that is intended."
    if facts.is_name_taken:
        yield f"its index is {facts.index}, and another interface is named {facts.device}. Rename that one first."
    shapes = any(has_effect(impairment) for impairment in (profile.to_server, profile.to_client))
    for qdisc in facts.qdiscs:
        if qdisc.is_filter_block and shapes:
            yield (
                f"another program's filters ({qdisc.kind}) are where ours would be. "
                f"Remove them first: tc qdisc del dev {facts.link.name} {qdisc.kind}"
            )


def _reasons_from_ssh(facts: InterfaceFacts, profile: Profile) -> Iterator[str]:
    """Yield what a filter, or a route to the client, would do to an SSH connection of the user's terminal."""
    for connection in facts.ssh_connections:
        if any(connection.is_in(flow) for flow in facts.flows):
            yield (
                f"your SSH connection {connection} is among the connections to shape. "
                "Name other hosts or ports, or work from the console."
            )
        for to in facts.destinations:
            if to.address == connection.remote and route_options(facts, profile, to):
                yield (
                    f'profile "{profile.name}" has an MTU, an MSS, a congestion control or ECN, and a route '
                    f"with it to {to.address} would also apply to your SSH connection {connection}. "
                    "Choose a profile without, or work from the console."
                )


def _reasons_against_profile(facts: InterfaceFacts, profile: Profile) -> Iterator[str]:
    if profile.medium == "loopback":
        yield f'profile "{profile.name}" is the loopback of one machine. Choose a profile of a real link.'
    yield from _reasons_from_mtu(facts, profile)
    for to in facts.destinations:
        if to.address.version == 6 and to.route.host_priority == 1 and route_options(facts, profile, to):
            yield f"a route to {to.address} alone has metric 1, so that ours cannot precede it. Remove it."
    yield from _reasons_from_flows(facts, profile)
    for queue in sorted({profile.to_server.queue, profile.to_client.queue} - {"fifo"}):
        yield f'profile "{profile.name}" has queue = "{queue}", which requires a virtual link. Take the key out.'
    shared = _shared_settings(facts, profile)
    if shared and not facts.link.shared_settings:
        yield (
            f'profile "{profile.name}" sets {", ".join(shared)}, which affects other traffic too. '
            "Add --shared-settings if that is intended, or leave it out; an observer (--watchers) does not set it."
        )
    for name in profile.offloads:
        if not features.find_members(name, facts.features):
            suggestion = suggest(name, features.known_names(facts.features))
            yield f'offloads: unknown feature "{name}"; {suggestion}'
    changes = features.find_changes(profile.offloads, facts.features)
    for reason in features.find_unmet(profile.offloads, features.predict_states(facts.features, changes)):
        yield f"offloads: {reason}. Leave the key out."


def _reasons_from_mtu(facts: InterfaceFacts, profile: Profile) -> Iterator[str]:
    if profile.mtu_bytes > facts.mtu_bytes and not facts.link.interface_mtu:
        yield (
            f'profile "{profile.name}" requires an MTU of {profile.mtu_bytes}, the interface has {facts.mtu_bytes}. '
            "Add --interface-mtu to change it for all traffic, or choose a profile with a smaller one."
        )
    if facts.link.interface_mtu:
        ipv6_mtus = [facts.ipv6_mtu_bytes, *(upper.ipv6_mtu_bytes for upper in facts.upper_devices)]
        if profile.mtu_bytes < _IPV6_MIN_MTU and any(ipv6_mtus):
            yield (
                f"below an MTU of {_IPV6_MIN_MTU} it, or a device above it, would permanently lose its IPv6 "
                "addresses. Leave out --interface-mtu."
            )
        if facts.foreign_upper_devices:
            yield (
                f"{', '.join(facts.foreign_upper_devices)} in another network namespace is above it and would keep "
                "the smaller MTU. Leave out --interface-mtu."
            )


def _reasons_from_flows(facts: InterfaceFacts, profile: Profile) -> Iterator[str]:
    networks = [str(flow.network) for flow in facts.flows if flow.network.num_addresses > 1]
    anywhere = Destination(address=facts.flows[0].network.network_address, device=facts.link.name)
    if networks and route_options(facts, profile, anywhere):
        yield (
            f'profile "{profile.name}" has an MTU, an MSS, a congestion control or ECN, which requires a route '
            f"to each host, and {', '.join(networks)} is not one host. Name hosts, or choose a profile without."
        )
    filters = max(sum(len(list(filter_matches(flow, side))) for flow in facts.flows) for side in SIDES)
    if filters > _MAX_FILTERS:
        yield (
            f"this requires {filters} filters, and at most {_MAX_FILTERS} are allowed. Name fewer hosts, or ranges of "
            "ports that begin and end at multiples of a power of two."
        )


def _shared_settings(facts: InterfaceFacts, profile: Profile) -> list[str]:
    """Return the profile's keys that would change other traffic."""
    changed = [
        f"{name}={'on' if on else 'off'}"
        for name, on in profile.offloads.items()
        if features.find_changes({name: on}, facts.features)
    ]
    changed += [name for name, size in profile_sizes(profile).items() if facts.sizes.get(name) != size]
    return changed + [name for name, value in tcp_buffer_sysctls(profile).items() if facts.sysctls.get(name) != value]


def _match_port(ip: str, end: str, block: tuple[int, int]) -> tuple[str, ...]:
    value, mask = block
    return ("match", ip, f"{end[0]}port", str(value), f"0x{mask:04x}") if mask else ()


def _port_blocks(ranges: tuple[PortRange, ...]) -> Iterator[tuple[int, int]]:
    """Yield values and masks that together match exactly these ports; mask 0 for any port."""
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


def _format_end(address: IPv4Address | IPv6Address, port: int) -> str:
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"
