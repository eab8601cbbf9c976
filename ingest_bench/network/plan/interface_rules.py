"""Whether a real interface may be touched, and what of a profile would have to be changed on it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ingest_bench.errors import SpecError
from ingest_bench.inputs import records
from ingest_bench.model.network import Impairment
from ingest_bench.network.plan import features
from ingest_bench.network.plan.commands import buffers
from ingest_bench.network.plan.flows import SIDES, matches

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from ipaddress import IPv4Address, IPv6Address

    from ingest_bench.model.network import Profile, RealLink
    from ingest_bench.network.plan.features import State
    from ingest_bench.network.plan.flows import Connection, Flow

_IPV6_LEAST_MTU = 1280
# Each packet that is not shaped is compared with all of them.
_MOST_FILTERS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Qdisc:
    """A queueing discipline as `tc -j qdisc` lists it."""

    kind: str
    handle: str
    parent: str = ""

    @property
    def is_filter(self) -> bool:
        """Whether it is none of the queues, but a place for filters, of which an interface has one."""
        return self.kind in ("ingress", "clsact")


@dataclass(frozen=True, slots=True, kw_only=True)
class Upper:
    """A device that stands on the interface: a VLAN, a macvlan, a bridge, or one that stands on these."""

    name: str
    index: int
    mtu_bytes: int
    ipv6_mtu_bytes: int | None = None
    """None: it has no IPv6."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """The route by which packets to the host leave, in words of `ip`."""

    next_hop: tuple[str, ...] = ()
    """("via", "10.0.0.1") or ("via", "inet6", "fe80::1"); none where the host is on the link itself."""
    source: str | None = None
    """The address that the route names as ours."""
    table: str = "main"
    metrics: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """What it says about TCP: {"initcwnd": ("30",), "mtu": ("lock", "1400")}."""
    host_priority: int | None = None
    """The priority ("metric") of a route to this host alone that is there already; None: there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """A host or network of the flows, and the way there."""

    address: IPv4Address | IPv6Address
    """The host's, or one of the network's."""
    device: str
    """The interface by which packets leave for it."""
    way: Way = field(default_factory=Way)
    is_own_address: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What is known of an interface and the ways over it, before anything is changed."""

    interface: str
    index: int
    mtu_bytes: int
    sizes: Mapping[str, int]
    """gso_max_segs, gso_max_size, gro_max_size … as `ip` names them."""
    qdiscs: tuple[Qdisc, ...]
    features: Mapping[str, State]
    flows: tuple[Flow, ...]
    """What is shaped together."""
    destinations: tuple[Destination, ...]
    """Where the flows' packets go; none where they are anybody's."""
    address: str = ""
    """Its hardware address; empty: it has none."""
    carries_default_route: bool = False
    ssh: tuple[Connection, ...] = ()
    """The SSH connections of our terminal that run over it."""
    ipv6_mtu_bytes: int | None = None
    """None: the interface has no IPv6."""
    uppers: tuple[Upper, ...] = ()
    """From below upwards."""
    uppers_elsewhere: tuple[str, ...] = ()
    """Those in other network namespaces, which cannot be put back from here."""
    sysctls: Mapping[str, str] = field(default_factory=dict)

    taken_name: bool = False
    """Another interface bears the name by which `ip` and `tc` know the number of this one."""

    @property
    def device(self) -> str:
        """What `ip` and `tc` call it, whatever its name is by now (lib/ll_map.c, ll_idx_a2n)."""
        return f"if{self.index}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the user asked for."""

    link: RealLink
    profile: Profile

    @property
    def is_server(self) -> bool:
        """Whether the server is here: what arrives is on its way to it."""
        return bool(self.link.port)


def refuse(found: Found, asked: Asked) -> None:
    """SpecError with the reason when this interface must not be touched, or not in this way."""
    for reason in (*_why_not_here(found, asked), *_why_not_this(found, asked)):
        raise SpecError(f"{found.interface}: {reason}")


def shapes(impairment: Impairment) -> bool:
    """Whether a direction does anything."""
    return impairment != Impairment()


def tcp_words(found: Found, asked: Asked, to: Destination) -> tuple[str, ...]:
    """What a route of its own says about TCP: what the profile names, and all else as it is; empty: none is needed."""
    profile = asked.profile
    # An IP header and a TCP header without options (RFC 9293, 3.7.1): 20 or 40, and 20 bytes.
    headers_bytes = 40 if to.address.version == 4 else 60
    # Where the way is narrower than the profile it stays so: what lies on it, such as a tunnel, takes no more.
    has_bytes = min([found.mtu_bytes, *map(int, to.way.metrics.get("mtu", ())[-1:])])
    locks = profile.mtu_bytes < has_bytes and not asked.link.interface_mtu
    mss_bytes = profile.mss_bytes or (profile.mtu_bytes - headers_bytes if locks else None)
    named: dict[str, tuple[str, ...]] = {}
    if locks:
        named["mtu"] = ("lock", str(profile.mtu_bytes))
    if mss_bytes:
        named["advmss"] = (str(mss_bytes),)
    if profile.congestion_control:
        named["congctl"] = (profile.congestion_control,)
    if profile.to_server.ecn or profile.to_client.ecn:
        named["features"] = tuple(dict.fromkeys((*to.way.metrics.get("features", ()), "ecn")))
    merged = {**to.way.metrics, **named} if named else {}
    return tuple(word for name, words in merged.items() for word in (name, *words))


def _why_not_here(found: Found, asked: Asked) -> Iterator[str]:
    for to in found.destinations:
        if to.is_own_address:
            yield f"{to.address} is this machine itself: its packets leave by no interface. Use `net exec` instead"
        if to.device != found.interface:
            yield f"packets to {to.address} leave by {to.device}; use --interface {to.device}"
    yield from _why_not_beside_ssh(found, asked)
    if found.carries_default_route and not asked.link.allow_default_route:
        yield "it carries the default route; add --allow-default-route if that is meant"
    if found.taken_name:
        yield f"it has number {found.index}, and another interface the name {found.device}; rename that one first"
    for qdisc in found.qdiscs:
        filters = found.ssh or any(shapes(way) for way in (asked.profile.to_server, asked.profile.to_client))
        if qdisc.is_filter and filters:
            yield (
                f"it has filters of somebody else ({qdisc.kind}), in whose place ours would stand; "
                f"remove them first: tc qdisc del dev {found.interface} {qdisc.kind}"
            )


def _why_not_beside_ssh(found: Found, asked: Asked) -> Iterator[str]:
    """What would be done to an SSH connection of our terminal: by a filter, or by a route to its client."""
    for connection in found.ssh:
        for flow in found.flows:
            if connection.is_of(flow):
                yield (
                    f"your SSH connection {connection} is one of those that would be shaped; "
                    "name other hosts or ports, or work from the console"
                )
        for to in found.destinations:
            if to.address == connection.far and tcp_words(found, asked, to):
                yield (
                    f'profile "{asked.profile.name}" has an MTU, an MSS, a congestion control or ECN, and a route with '
                    f"it to {to.address} would hold for your SSH connection {connection} too; "
                    "choose a profile without, or work from the console"
                )


def _why_not_this(found: Found, asked: Asked) -> Iterator[str]:
    profile = asked.profile
    if profile.medium == "loopback":
        yield f'profile "{profile.name}" is the loopback of one machine; choose one of a real link'
    if profile.mtu_bytes > found.mtu_bytes and not asked.link.interface_mtu:
        yield (
            f'profile "{profile.name}" wants an MTU of {profile.mtu_bytes}, the interface has {found.mtu_bytes}; '
            "add --interface-mtu to change it for all traffic, or choose a profile with a smaller one"
        )
    if asked.link.interface_mtu:
        with_ipv6 = [found.ipv6_mtu_bytes, *(upper.ipv6_mtu_bytes for upper in found.uppers)]
        if profile.mtu_bytes < _IPV6_LEAST_MTU and any(with_ipv6):
            yield (
                f"below an MTU of {_IPV6_LEAST_MTU} it, or what stands on it, would lose its IPv6 addresses for good; "
                "leave out --interface-mtu"
            )
        if found.uppers_elsewhere:
            yield (
                f"{', '.join(found.uppers_elsewhere)} in another network namespace stands on it and would keep its MTU "
                "for good; leave out --interface-mtu"
            )
    for to in found.destinations:
        if to.address.version == 6 and to.way.host_priority == 1 and tcp_words(found, asked, to):
            yield f"a route to {to.address} alone with metric 1, that no other one can go before, is there; remove it"
    yield from _why_not_these(found, asked)
    yield from _why_not_queued(profile)
    shared = _shared(found, profile)
    if shared and not asked.link.shared_settings:
        yield (
            f'profile "{profile.name}" sets {", ".join(shared)}, which other traffic feels too; '
            "add --shared-settings if that is meant"
        )
    for name in profile.offloads:
        if not features.members(name, found.features):
            yield f'offloads: unknown feature "{name}"; {records.nearest(name, features.names(found.features))}'
    changes = features.changes(profile.offloads, found.features)
    for reason in features.unmet(profile.offloads, features.changed(found.features, changes)):
        yield f"offloads: {reason}; leave the key out"


def _why_not_these(found: Found, asked: Asked) -> Iterator[str]:
    """What flows with more than some hosts cannot have."""
    many = [str(flow.network) for flow in found.flows if not flow.is_host]
    anywhere = Destination(address=found.flows[0].network.network_address, device=found.interface)
    if many and tcp_words(found, asked, anywhere):
        yield (
            f'profile "{asked.profile.name}" has an MTU, an MSS, a congestion control or ECN that only a route to each '
            f"host can have, and {', '.join(many)} is not one host; name hosts, or choose a profile without"
        )
    filters = max(sum(len(list(matches(flow, side))) for flow in found.flows) for side in SIDES)
    if filters > _MOST_FILTERS:
        yield (
            f"that takes {filters} filters, and at most {_MOST_FILTERS} are set; give fewer hosts, or ranges of ports "
            "that begin and end at multiples of a power of two"
        )


def _why_not_queued(profile: Profile) -> Iterator[str]:
    for queue in sorted({profile.to_server.queue, profile.to_client.queue} - {"fifo"}):
        yield f'profile "{profile.name}" has queue = "{queue}", which only a link of ours can have; take the key out'


def _shared(found: Found, profile: Profile) -> list[str]:
    """The keys of the profile that would change what other traffic feels."""
    changed = [
        f"{name}={'on' if on else 'off'}"
        for name, on in profile.offloads.items()
        if features.changes({name: on}, found.features)
    ]
    changed += [name for name, size in wanted_sizes(profile).items() if found.sizes.get(name) != size]
    return changed + [name for name, value in buffers(profile).items() if found.sysctls.get(name) != value]


def wanted_sizes(profile: Profile) -> dict[str, int]:
    """The sizes that the profile sets, by the names of `ip link`."""
    wanted = {
        "gso_max_segs": profile.gso_max_segs,
        "gso_max_size": profile.gso_max_size_bytes,
        "gro_max_size": profile.gro_max_size_bytes,
    }
    return {name: size for name, size in wanted.items() if size is not None}
