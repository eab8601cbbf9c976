"""Whether a real interface may be touched, and what of a profile would have to be changed on it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ingest_bench import records
from ingest_bench.errors import SpecError
from ingest_bench.model.network import Impairment
from ingest_bench.network.plan import features
from ingest_bench.network.plan.commands import buffers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from ipaddress import IPv4Address, IPv6Address

    from ingest_bench.model.network import Profile
    from ingest_bench.network.plan.features import State

_IPV6_LEAST_MTU = 1280


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
class Found:
    """What is known of an interface and the way to a host, before anything is changed."""

    interface: str
    index: int
    mtu_bytes: int
    sizes: Mapping[str, int]
    """gso_max_segs, gso_max_size, gro_max_size … as `ip` names them."""
    qdiscs: tuple[Qdisc, ...]
    features: Mapping[str, State]
    address: IPv4Address | IPv6Address
    """The host's."""
    route_device: str
    way: Way
    is_own_address: bool = False
    carries_default_route: bool = False
    carries_ssh: bool = False
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

    port: int
    profile: Profile
    allow_default_route: bool = False
    interface_mtu: bool = False
    """Change the MTU of the interface and not that of the route."""
    shared_settings: bool = False
    """Change what other traffic feels too: offloads and GSO sizes of the interface, tcp_rmem and tcp_wmem."""


def refuse(found: Found, asked: Asked) -> None:
    """SpecError with the reason when this interface must not be touched, or not in this way."""
    for reason in (*_why_not_here(found, asked), *_why_not_this(found, asked)):
        raise SpecError(f"{found.interface}: {reason}")


def shapes(impairment: Impairment) -> bool:
    """Whether a direction does anything."""
    return impairment != Impairment()


def tcp_words(found: Found, asked: Asked) -> tuple[str, ...]:
    """What a route of its own says about TCP: what the profile names, and all else as it is; empty: none is needed."""
    profile = asked.profile
    # An IP header and a TCP header without options (RFC 9293, 3.7.1): 20 or 40, and 20 bytes.
    headers_bytes = 40 if found.address.version == 4 else 60
    locks = profile.mtu_bytes < found.mtu_bytes and not asked.interface_mtu
    mss_bytes = profile.mss_bytes or (profile.mtu_bytes - headers_bytes if locks else None)
    named: dict[str, tuple[str, ...]] = {}
    if locks:
        named["mtu"] = ("lock", str(profile.mtu_bytes))
    if mss_bytes:
        named["advmss"] = (str(mss_bytes),)
    if profile.congestion_control:
        named["congctl"] = (profile.congestion_control,)
    if profile.to_server.ecn or profile.to_client.ecn:
        named["features"] = tuple(dict.fromkeys((*found.way.metrics.get("features", ()), "ecn")))
    merged = {**found.way.metrics, **named} if named else {}
    return tuple(word for name, words in merged.items() for word in (name, *words))


def _why_not_here(found: Found, asked: Asked) -> Iterator[str]:
    if found.is_own_address:
        yield f"{found.address} is this machine itself: its packets leave by no interface. Use `net exec` instead"
    if found.route_device != found.interface:
        yield f"packets to {found.address} leave by {found.route_device}; use --interface {found.route_device}"
    if found.carries_ssh:
        yield "it carries your SSH session; work from the console, or use another interface"
    if found.carries_default_route and not asked.allow_default_route:
        yield "it carries the default route; add --allow-default-route if that is meant"
    if found.taken_name:
        yield f"it has number {found.index}, and another interface the name {found.device}; rename that one first"
    for qdisc in found.qdiscs:
        if qdisc.is_filter and any(shapes(way) for way in (asked.profile.to_server, asked.profile.to_client)):
            yield (
                f"it has filters of somebody else ({qdisc.kind}), in whose place ours would stand; "
                f"remove them first: tc qdisc del dev {found.interface} {qdisc.kind}"
            )


def _why_not_this(found: Found, asked: Asked) -> Iterator[str]:
    profile = asked.profile
    if profile.medium == "loopback":
        yield f'profile "{profile.name}" is the loopback of one machine; choose one of a real link'
    if profile.mtu_bytes > found.mtu_bytes and not asked.interface_mtu:
        yield (
            f'profile "{profile.name}" wants an MTU of {profile.mtu_bytes}, the interface has {found.mtu_bytes}; '
            "add --interface-mtu to change it for all traffic, or choose a profile with a smaller one"
        )
    if asked.interface_mtu:
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
    if found.address.version == 6 and found.way.host_priority == 1 and tcp_words(found, asked):
        yield f"a route to {found.address} alone with metric 1, that no other one can go before, is there; remove it"
    shared = _shared(found, profile)
    if shared and not asked.shared_settings:
        yield (
            f'profile "{profile.name}" sets {", ".join(shared)}, which other traffic feels too; '
            "add --shared-settings if that is meant"
        )
    if not 0 < asked.port < 65536:
        yield f"{asked.port} is no port; a port is a number from 1 to 65535"
    for name in profile.offloads:
        if not features.members(name, found.features):
            yield f'offloads: unknown feature "{name}"; {records.nearest(name, features.names(found.features))}'
    changes = features.changes(profile.offloads, found.features)
    for reason in features.unmet(profile.offloads, features.changed(found.features, changes)):
        yield f"offloads: {reason}; leave the key out"


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
