"""What is known of a real interface before anything is changed, from the words of ip and tc, and its features."""

from __future__ import annotations

import contextlib
import ipaddress
import shlex
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingest_bench import system
from ingest_bench.errors import RunFailed, SpecError
from ingest_bench.inputs import records, urls
from ingest_bench.network.act import ssh
from ingest_bench.network.plan import commands, features
from ingest_bench.network.plan.flows import Connection, Flow
from ingest_bench.network.plan.interface_rules import Destination, Found, Qdisc, Upper, Way

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

    from ingest_bench.model.network import FarEnd, PortRange, RealLink

_ANYWHERE = (ipaddress.ip_network("0.0.0.0/0"), ipaddress.ip_network("::/0"))
_SIZES = ("gso_max_segs", "gso_max_size", "gso_ipv4_max_size", "gro_max_size", "gro_ipv4_max_size")


# The names of iproute2's ip/iproute.c, mx_names.
_METRICS = {
    *("mtu", "window", "rtt", "rttvar", "ssthresh", "cwnd", "advmss", "reordering", "hoplimit", "initcwnd", "features"),
    *("rto_min", "initrwnd", "quickack", "congctl", "fastopen_no_cookie"),
}
# Kinds of devices whose MTU follows that of the device below them.
_FOLLOWERS = ("vlan", "macvlan", "macvtap", "ipvlan", "ipvtap", "macsec")


def find(asked: RealLink, *, with_features: bool, with_uppers: bool) -> Found:
    """What is known of the interface and the ways over it; SpecError when there is no such one.

    Its features are looked at only where some of them shall change: a Python has to start for that. What stands on it
    is looked for only where its own MTU shall change: in all network namespaces.
    """
    interface = asked.name
    flows = tuple(_flow(end, asked.port) for end in asked.to)
    link = _link(interface)
    sizes = {name: int(link[name]) for name in _SIZES if name in link}
    index = int(link["ifindex"])
    return Found(
        interface=interface,
        index=index,
        address=str(link.get("address", "")),
        mtu_bytes=int(link["mtu"]),
        sizes=sizes,
        qdiscs=qdiscs_of(interface),
        taken_name=f"if{index}" in _names(),
        features=features_of(interface) if with_features else {},
        flows=flows or tuple(Flow(network=network, own=asked.port) for network in _ANYWHERE),
        destinations=tuple(map(_destination, dict.fromkeys(flow.network for flow in flows if flow.network.prefixlen))),
        carries_default_route=any(
            interface in _devices(route)
            for version in ("-4", "-6")
            for route in _json("ip", version, "-j", "route", "show", "default")
        ),
        ssh=ssh_over(interface),
        ipv6_mtu_bytes=_ipv6_mtu_bytes(interface),
        uppers=tuple(_uppers(interface)) if with_uppers else (),
        uppers_elsewhere=tuple(_uppers_elsewhere(index)) if with_uppers else (),
        sysctls={
            name: " ".join(value.split())
            for name in ("tcp_rmem", "tcp_wmem")
            if (value := _text(Path(f"/proc/sys/net/ipv4/{name}")))
        },
    )


def index_of(interface: str) -> int:
    """The number that the kernel knows it by, whatever its name; SpecError when there is no such interface."""
    return int(_link(interface)["ifindex"])


def ssh_over(interface: str) -> tuple[Connection, ...]:
    """The SSH connections of our terminal that run over it, or over what stands on it, such as a bridge."""
    return ssh.over((interface, *(upper.name for upper in _uppers(interface))), _leads_by)


def _leads_by(address: IPv4Address | IPv6Address) -> str:
    try:
        return str(_route(address).get("dev", ""))
    except SpecError:
        return ""


def _flow(end: FarEnd, own: tuple[PortRange, ...]) -> Flow:
    network = ipaddress.ip_network(resolve(end.host)) if end.prefix_bits is None else urls.network(end)
    return Flow(network=network, far=end.ports, own=own)


def _destination(network: IPv4Network | IPv6Network) -> Destination:
    """The way there. Of a network it is the way to its first host: a table may have others for parts of it."""
    if network.num_addresses > 1:
        # Not its own address, to which no packets of TCP go, and not ours.
        for number in (*range(1, min(4, network.num_addresses)), 0):
            route = _route(network[number])
            if route.get("type") != "local":
                break
        is_own = route.get("type") == "local"
        return Destination(address=network[number], device=str(route.get("dev", "")), is_own_address=is_own)
    address = network.network_address
    route = _route(address)
    return Destination(
        address=address,
        device=str(route.get("dev", "")),
        way=_way(address, route),
        is_own_address=route.get("type") == "local",
    )


def resolve(host: str) -> IPv4Address | IPv6Address:
    """The address of a host; of several, the first that the resolver gives. SpecError when there is none."""
    try:
        return ipaddress.ip_address(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except (OSError, ValueError) as error:
        raise SpecError(f"--to {host}: no address is known for it ({error})") from None


def qdiscs(listed: Iterable[Mapping[str, Any]]) -> tuple[Qdisc, ...]:
    """The qdiscs of `tc -j qdisc show dev …`."""
    return tuple(
        Qdisc(kind=str(entry["kind"]), handle=str(entry["handle"]), parent=str(entry.get("parent", "")))
        for entry in listed
    )


def qdiscs_of(interface: str) -> tuple[Qdisc, ...]:
    """Its qdiscs as they are now."""
    return qdiscs(_json("tc", "-j", "qdisc", "show", "dev", interface))


def features_of(interface: str) -> features.States:
    """Its features as they are now."""
    return features.answer(system.run(commands.offloads(interface, {}))).after


def _link(interface: str) -> dict[str, Any]:
    try:
        return dict(_json("ip", "-j", "-d", "link", "show", "dev", interface)[0])
    except RunFailed:
        raise SpecError(
            f"--interface {interface}: there is no such interface; {records.nearest(interface, _names())}"
        ) from None


def _names() -> list[str]:
    return [str(link["ifname"]) for link in _json("ip", "-j", "link", "show")]


def route_used(address: IPv4Address | IPv6Address) -> dict[str, Any]:
    """The route that packets to the host take, as it stands in its table."""
    return dict(_json("ip", "-j", "route", "get", "fibmatch", str(address))[0])


def _way(address: IPv4Address | IPv6Address, chosen: Mapping[str, Any]) -> Way:
    """The route as it stands in its table; of several next hops the one that was chosen."""
    family, target = f"-{address.version}", f"{address}/{address.max_prefixlen}"
    if chosen.get("type") in ("local", "broadcast", "multicast"):
        return Way()
    route = route_used(address)
    table = str(route.get("table", "main"))
    hosts = _json("ip", family, "-j", "route", "show", target, "table", table)
    # JSON does not say which of them are locked.
    text = system.run(("ip", family, "route", "get", "fibmatch", str(address))).splitlines()[0]
    return Way(
        next_hop=next_hop(chosen),
        source=route.get("prefsrc"),
        table=table,
        metrics=metrics(text.rpartition(f" dev {chosen.get('dev')} ")[2]),
        host_priority=min((int(host.get("metric", 0)) for host in hosts), default=None),
    )


def next_hop(route: Mapping[str, Any]) -> tuple[str, ...]:
    """The words of `ip` for a route's gateway; IPv4 may have one of IPv6 (RFC 5549), under another key."""
    if "via" in route:
        return ("via", str(route["via"]["family"]), str(route["via"]["host"]))
    return ("via", str(route["gateway"])) if "gateway" in route else ()


def metrics(text: str) -> dict[str, tuple[str, ...]]:
    """What a route says about TCP, of the words of `ip route`, each as `ip route add` takes it."""
    words = iter(text.split())
    found: dict[str, tuple[str, ...]] = {}
    for word in words:
        if word in _METRICS:
            value = next(words)
            # Of rto_min `ip` says that it is locked, but takes no such word: it always is.
            lock = ("lock",) if value == "lock" and word != "rto_min" else ()
            found[word] = (*lock, next(words) if value == "lock" else value)
    return found


def _route(address: IPv4Address | IPv6Address) -> dict[str, Any]:
    try:
        return dict(_json("ip", "-j", "route", "get", str(address))[0])
    except RunFailed as error:
        raise SpecError(f"--to {address}: no route leads there ({error})") from None


def _ipv6_mtu_bytes(interface: str) -> int | None:
    listed = _json("ip", "-6", "-j", "addr", "show", "dev", interface)
    text = _text(Path(f"/proc/sys/net/ipv6/conf/{interface}/mtu"))
    return int(text) if text and any(entry.get("addr_info") for entry in listed) else None


def _uppers(interface: str) -> Iterator[Upper]:
    """What stands on it here, from below upwards: by `link`, or as the `master` of a bridge or a bond."""
    links = [link for link in _json("ip", "-j", "-d", "link", "show") if _kind(link) != "veth"]
    masters = {link["ifname"]: link.get("master") for link in _json("ip", "-j", "link", "show")}
    seen, lowers = {interface}, [interface]
    for lower in lowers:
        for link in links:
            name = str(link["ifname"])
            if name not in seen and (link.get("link") == lower or name == masters[lower]):
                seen.add(name)
                lowers.append(name)
                yield Upper(
                    name=name,
                    index=int(link["ifindex"]),
                    mtu_bytes=int(link["mtu"]),
                    ipv6_mtu_bytes=_ipv6_mtu_bytes(name),
                )


def _uppers_elsewhere(index: int) -> Iterator[str]:
    """Names in other network namespaces. What lies in one that we may not enter, we do not know."""
    places = {}
    for path in (*Path("/proc").glob("[0-9]*/ns/net"), *Path("/run/netns").glob("*")):
        with contextlib.suppress(OSError):
            places[path.stat().st_ino] = path
    places.pop(Path("/proc/self/ns/net").stat().st_ino, None)
    for path in places.values():
        try:
            links = _json("nsenter", f"--net={path}", "ip", "-j", "-d", "link", "show")
        except RunFailed:
            continue
        for link in links:
            # Its lower one lies in another namespace and has our number there. That it is ours, `ip` does not say.
            if link.get("link_index") == index and "link_netnsid" in link and _kind(link) in _FOLLOWERS:
                yield str(link["ifname"])


def _kind(link: Mapping[str, Any]) -> str:
    return str(link.get("linkinfo", {}).get("info_kind", ""))


def _devices(route: Mapping[str, Any]) -> set[str]:
    hops = [route, *route.get("nexthops", ())]
    return {str(hop["dev"]) for hop in hops if "dev" in hop}


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return None


def _json(*argv: str) -> list[dict[str, Any]]:
    return commands.parse_json(shlex.join(argv), system.run(argv))
