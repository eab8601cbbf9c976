"""Shape some flows of a real interface for a limited time, and undo everything afterwards."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import secrets
import shlex
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from pathlib import Path
from typing import Any

from ingest_bench import system
from ingest_bench.errors import MissingCapability, RunFailed, SpecError
from ingest_bench.inputs import urls
from ingest_bench.inputs.names import suggest
from ingest_bench.ledger import journal, sessions
from ingest_bench.ledger.steps import Step
from ingest_bench.ledger.watchdog import Session, open_session
from ingest_bench.model.network import Profile, RealInterface
from ingest_bench.network.plan import features, interface_plan, link_plan, netem
from ingest_bench.network.plan.interface_rules import (
    Connection,
    Destination,
    Flow,
    InterfaceFacts,
    Qdisc,
    Route,
    UpperDevice,
    has_effect,
    route_options,
)
from ingest_bench.network.plan.link_plan import Direction

# Lines of `tc -batch` that try each part of a kernel in a temporary namespace.
_CLSACT = "qdisc add dev lo ingress_block 1 egress_block 2 clsact"
_REDIRECT = "action mirred egress redirect dev lo"
_KERNEL_PARTS = {
    "netem": "qdisc add dev lo root netem delay 1ms",
    "tbf": "qdisc add dev lo root tbf rate 1mbit burst 10k latency 1s",
    "clsact": _CLSACT,
    "u32": f"{_CLSACT}\nfilter add block 1 protocol ip prio 1 u32 match u32 0 0",
    "mirred": f"{_CLSACT}\nfilter add block 2 protocol ip prio 1 u32 match u32 0 0 {_REDIRECT}",
}
_CAP_NET_ADMIN = 12
_ANYWHERE = (ipaddress.ip_network("0.0.0.0/0"), ipaddress.ip_network("::/0"))
_SIZES = ("gso_max_segs", "gso_max_size", "gso_ipv4_max_size", "gro_max_size", "gro_ipv4_max_size")
# The names of iproute2's ip/iproute.c, mx_names.
_METRICS = {
    *("mtu", "window", "rtt", "rttvar", "ssthresh", "cwnd", "advmss", "reordering", "hoplimit", "initcwnd", "features"),
    *("rto_min", "initrwnd", "quickack", "congctl", "fastopen_no_cookie"),
}
# Kinds of devices whose MTU follows that of the device below them.
_MTU_FOLLOWERS = ("vlan", "macvlan", "macvtap", "ipvlan", "ipvtap", "macsec")


@dataclass(frozen=True, slots=True)
class ShapedInterface:
    """Flows of a real interface while they are shaped."""

    facts: InterfaceFacts
    profile: Profile
    session: Session
    devices: Mapping[Direction, str]
    """The ifb device of each shaped direction: only the flows' packets leave it, shaped."""


def plan_steps(link: RealInterface, profile: Profile) -> tuple[Step, ...]:
    """Return the exact commands, each with its undo, without any change.

    SpecError if this interface must not be changed. RunFailed if a session has changed it.
    """
    header = journal.read_header(sessions.locate_journal(_session_key(interface_index(link.name)), ("net",)))
    if header is not None:
        raise RunFailed(
            f"{link.name}: in use by pid {header.pid}: {header.description}; see `ingest-bench net show`. "
            "If that process is dead, run `ingest-bench net restore`."
        )
    facts = read_facts(link, profile)
    steps = interface_plan.interface_steps(facts, profile, _new_session_ids())
    require_established(facts.ssh_connections)
    return steps


@contextlib.contextmanager
def shape_interface(
    link: RealInterface,
    profile: Profile,
    *,
    time_limit_s: float,
    on_stage: Callable[[str], None] = lambda _: None,
) -> Iterator[ShapedInterface]:
    """Shape the flows of `link` until the end of the block or of the time limit, whichever is first.

    Only TCP packets to and from these addresses and ports meet the profile's impairments; all flows share one queue of
    each direction. MTU, MSS and congestion control apply to these hosts. Values that affect other traffic are changed
    only with `interface_mtu` (the interface's MTU instead of the route's) and `shared_settings` (offloads, GSO sizes,
    tcp_rmem, tcp_wmem). SSH connections of the user's terminal on this interface are exempt, and limit the time to
    `ssh_limit`.
    """
    require_support(profile)
    index = interface_index(link.name)
    with open_session(
        _session_key(index),
        f"{profile.name} on {link.name} {link.traffic}",
        time_limit_s=time_limit_s,
        resources=(f"interface {index}", *interface_plan.sysctl_files(profile).values()),
        namespace_kinds=("net",),
        on_stage=on_stage,
    ) as opened:
        # Read after locking, when the leftovers of an earlier session are undone.
        facts = read_facts(link, profile)
        if facts.index != index:
            raise RunFailed(f"{link.name}: it was replaced by another interface. Try again.")
        ids = _new_session_ids()
        steps = interface_plan.interface_steps(facts, profile, ids)
        limit_s = link.ssh_limit_ns / 1e9
        if facts.ssh_connections and time_limit_s > limit_s:
            raise SpecError(
                f"{link.name}: it carries your SSH connection {facts.ssh_connections[0]}, and can be shaped for "
                f"{limit_s:g} s, not for {time_limit_s:g} s. Shorten the time, or raise --ssh-limit."
            )
        require_established(facts.ssh_connections)
        opened.apply(steps)
        _verify(facts, profile)
        on_stage("running")
        shaped = interface_plan.shaped_directions(facts, profile)
        yield ShapedInterface(facts, profile, opened, {item.direction: ids.ifb(item.side).name for item in shaped})


def capped_limit_s(link: RealInterface, time_limit_s: float) -> float:
    """Return the time limit, at most `ssh_limit` if the interface carries the user's SSH connection."""
    return min(time_limit_s, link.ssh_limit_ns / 1e9) if ssh_connections_over(link.name) else time_limit_s


def require_support(profile: Profile) -> None:
    """Raise MissingCapability unless we may change an interface, and this kernel has what the profile requires."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    effective = int(next(line for line in status.splitlines() if line.startswith("CapEff:")).split()[1], 16)
    if not effective >> _CAP_NET_ADMIN & 1:
        raise MissingCapability(
            "only root can change a real interface (CAP_NET_ADMIN). "
            "`ingest-bench net exec` shapes a virtual link without root."
        )
    impairments = (profile.to_server, profile.to_client)
    if not any(map(has_effect, impairments)):
        return
    lines = " ".join(line for impairment in impairments for line in netem.qdisc_lines("", impairment, 1500))
    for part in ("clsact", "u32", "netem", "tbf", "mirred", "ifb"):
        if part not in ("netem", "tbf") or f" {part} " in lines:
            _require_kernel_part(part, profile)


def _session_key(index: int) -> str:
    return f"net-{index}"


def _new_session_ids() -> interface_plan.SessionIds:
    return interface_plan.SessionIds(secrets.randbelow(interface_plan.SESSION_NUMBERS))


def _require_kernel_part(name: str, profile: Profile) -> None:
    try:
        if name == "ifb":
            # Without the two devices that the module creates when the kernel loads it on demand.
            if not Path("/sys/module/ifb").exists():
                with contextlib.suppress(RunFailed):
                    system.run(("modprobe", "ifb", "numifbs=0"))
            system.run(("unshare", "--net", "ip", "link", "add", "name", "ibench", "type", "ifb"))
        else:
            system.run(("unshare", "--net", "tc", "-batch", "-"), stdin=f"{_KERNEL_PARTS[name]}\n")
    except RunFailed as error:
        raise MissingCapability(
            f'profile "{profile.name}": cannot be applied to a real interface: this kernel has no {name}.\n'
            f"{error}\n"
            "`ingest-bench net exec` shapes a virtual link, with User-Mode Linux if the kernel has no netem."
        ) from None


def _verify(facts: InterfaceFacts, profile: Profile) -> None:
    """Raise an error if another program or a policy rule has prevented a change, or the kernel did silently."""
    before, now = (
        [qdisc for qdisc in qdiscs if not qdisc.is_filter_block]
        for qdiscs in (facts.qdiscs, read_qdiscs(facts.link.name))
    )
    if before != now:
        # Other traffic would be affected.
        raise RunFailed(f"{facts.link.name}: another program changed its queues from {before} to {now}")
    for to in facts.destinations:
        route = read_used_route(to.address) if route_options(facts, profile, to) else {}
        if route and str(route.get("protocol")) != interface_plan.ROUTE_PROTOCOL:
            raise RunFailed(
                f"{to.address}: the route with the profile's values is not used, but {route}. See `ip rule`."
            )
    if profile.offloads:
        for reason in features.find_unmet(profile.offloads, read_features(facts.link.name)):
            raise MissingCapability(f"{facts.link.name}: offloads: {reason}. Leave the key out.")


# State of an interface, from the output of ip and tc.


def read_facts(link: RealInterface, profile: Profile) -> InterfaceFacts:
    """Read the state of the interface and the routes over it; SpecError if there is no such interface.

    Features are read only if some will change, because that starts a Python process. Upper devices are searched only if
    the interface's MTU will change, because that visits all network namespaces.
    """
    interface = link.name
    flows = tuple(
        Flow(
            network=urls.parse_network(end)
            if end.prefix_bits is not None
            else ipaddress.ip_network(resolve_host(end.host)),
            remote_ports=end.ports,
            local_ports=link.port,
        )
        for end in link.to
    )
    shown = _show_link(interface)
    index = int(shown["ifindex"])
    buffers = {name: system.read_text(f"/proc/sys/net/ipv4/{name}") for name in ("tcp_rmem", "tcp_wmem")}
    return InterfaceFacts(
        link=link,
        index=index,
        address=str(shown.get("address", "")),
        mtu_bytes=int(shown["mtu"]),
        sizes={name: int(shown[name]) for name in _SIZES if name in shown},
        qdiscs=read_qdiscs(interface),
        is_name_taken=f"if{index}" in _interface_names(),
        features=read_features(interface) if profile.offloads else {},
        flows=flows or tuple(Flow(network=network, local_ports=link.port) for network in _ANYWHERE),
        destinations=tuple(
            map(_find_destination, dict.fromkeys(flow.network for flow in flows if flow.network.prefixlen))
        ),
        has_default_route=any(
            interface == hop.get("dev")
            for version in ("-4", "-6")
            for route in _run_json("ip", version, "-j", "route", "show", "default")
            for hop in (route, *route.get("nexthops", ()))
        ),
        ssh_connections=ssh_connections_over(interface),
        ipv6_mtu_bytes=_read_ipv6_mtu(interface),
        upper_devices=tuple(_find_upper_devices(interface)) if link.interface_mtu else (),
        foreign_upper_devices=tuple(_find_foreign_upper_devices(index)) if link.interface_mtu else (),
        sysctls={name: " ".join(value.split()) for name, value in buffers.items() if value},
    )


def interface_index(interface: str) -> int:
    """Return the interface's index; SpecError if there is no such interface."""
    return int(_show_link(interface)["ifindex"])


def resolve_host(host: str) -> IPv4Address | IPv6Address:
    """Return the first address of a host; SpecError if there is none."""
    try:
        return ipaddress.ip_address(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except (OSError, ValueError) as error:
        raise SpecError(f"--to {host}: no address found ({error})") from None


def read_qdiscs(interface: str) -> tuple[Qdisc, ...]:
    """Return the interface's present qdiscs."""
    return tuple(
        Qdisc(kind=str(entry["kind"]), handle=str(entry["handle"]), parent=str(entry.get("parent", "")))
        for entry in _run_json("tc", "-j", "qdisc", "show", "dev", interface)
    )


def read_features(interface: str) -> features.FeatureStates:
    """Return the interface's present features."""
    return features.parse_reply(system.run(link_plan.offloads_argv(interface, {}))).after


def read_used_route(address: IPv4Address | IPv6Address) -> dict[str, Any]:
    """Return the route that packets to the host take, as it is in its table."""
    return dict(_run_json("ip", "-j", "route", "get", "fibmatch", str(address))[0])


def next_hop_options(route: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the words of `ip` for a route's gateway; an IPv4 route may have one of IPv6 (RFC 5549)."""
    if "via" in route:
        return ("via", str(route["via"]["family"]), str(route["via"]["host"]))
    return ("via", str(route["gateway"])) if "gateway" in route else ()


def parse_route_metrics(text: str) -> dict[str, tuple[str, ...]]:
    """Return the TCP options in the output of `ip route`, each as `ip route add` takes it."""
    words = iter(text.split())
    metrics: dict[str, tuple[str, ...]] = {}
    for word in words:
        if word in _METRICS:
            value = next(words)
            # `ip` prints that rto_min is locked, but does not accept the word: rto_min always is.
            lock = ("lock",) if value == "lock" and word != "rto_min" else ()
            metrics[word] = (*lock, next(words) if value == "lock" else value)
    return metrics


def _find_destination(network: IPv4Network | IPv6Network) -> Destination:
    """Return the route to a host, or to the first host of a network: a table may have other routes for parts of it."""
    # Neither a network's own address, to which no TCP packets go, nor one of this machine.
    for number in (*range(1, min(4, network.num_addresses)), 0):
        address = network[number]
        route = _get_route(address)
        is_own_address = route.get("type") == "local"
        if not is_own_address:
            break
    return Destination(
        address=address,
        device=str(route.get("dev", "")),
        route=Route() if network.num_addresses > 1 else _read_route(address, route),
        is_own_address=is_own_address,
    )


def _read_route(address: IPv4Address | IPv6Address, chosen: Mapping[str, Any]) -> Route:
    """Return the route as it is in its table; of several next hops the chosen one."""
    family, target = f"-{address.version}", f"{address}/{address.max_prefixlen}"
    if chosen.get("type") in ("local", "broadcast", "multicast"):
        return Route()
    route = read_used_route(address)
    table = str(route.get("table", "main"))
    host_routes = _run_json("ip", family, "-j", "route", "show", target, "table", table)
    # JSON does not tell which metrics are locked.
    text = system.run(("ip", family, "route", "get", "fibmatch", str(address))).splitlines()[0]
    return Route(
        next_hop=next_hop_options(chosen),
        source=route.get("prefsrc"),
        table=table,
        metrics=parse_route_metrics(text.rpartition(f" dev {chosen.get('dev')} ")[2]),
        host_priority=min((int(host_route.get("metric", 0)) for host_route in host_routes), default=None),
    )


def _get_route(address: IPv4Address | IPv6Address) -> dict[str, Any]:
    try:
        return dict(_run_json("ip", "-j", "route", "get", str(address))[0])
    except RunFailed as error:
        raise SpecError(f"--to {address}: there is no route to it ({error})") from None


def _show_link(interface: str) -> dict[str, Any]:
    try:
        return dict(_run_json("ip", "-j", "-d", "link", "show", "dev", interface)[0])
    except RunFailed:
        suggestion = suggest(interface, _interface_names())
        raise SpecError(f"--interface {interface}: there is no such interface; {suggestion}") from None


def _interface_names() -> list[str]:
    return [str(link["ifname"]) for link in _run_json("ip", "-j", "link", "show")]


def _read_ipv6_mtu(interface: str) -> int | None:
    addresses = _run_json("ip", "-6", "-j", "addr", "show", "dev", interface)
    text = system.read_text(f"/proc/sys/net/ipv6/conf/{interface}/mtu")
    return int(text) if text and any(entry.get("addr_info") for entry in addresses) else None


def _find_upper_devices(interface: str) -> Iterator[UpperDevice]:
    """Yield the devices above it in this namespace, lowest first: by `link`, or by `master` of a bridge or bond."""
    links = _run_json("ip", "-j", "-d", "link", "show")
    masters = {link["ifname"]: link.get("master") for link in links}
    visited = [interface]
    for lower in visited:
        for link in links:
            name = str(link["ifname"])
            is_above = (link.get("link") == lower and _device_kind(link) != "veth") or name == masters[lower]
            if is_above and name not in visited:
                visited.append(name)
                mtu_bytes, ipv6_mtu_bytes = int(link["mtu"]), _read_ipv6_mtu(name)
                index = int(link["ifindex"])
                yield UpperDevice(name=name, index=index, mtu_bytes=mtu_bytes, ipv6_mtu_bytes=ipv6_mtu_bytes)


def _find_foreign_upper_devices(index: int) -> Iterator[str]:
    """Yield the names of upper devices in other network namespaces, except in those that we may not enter."""
    paths = {}
    for path in (*Path("/proc").glob("[0-9]*/ns/net"), *Path("/run/netns").glob("*")):
        with contextlib.suppress(OSError):
            paths[path.stat().st_ino] = path
    paths.pop(Path("/proc/self/ns/net").stat().st_ino, None)
    for path in paths.values():
        try:
            links = _run_json("nsenter", f"--net={path}", "ip", "-j", "-d", "link", "show")
        except RunFailed:
            continue
        for link in links:
            # Its lower device is in another namespace and has our index there. `ip` does not tell which namespace.
            if link.get("link_index") == index and "link_netnsid" in link and _device_kind(link) in _MTU_FOLLOWERS:
                yield str(link["ifname"])


def _device_kind(link: Mapping[str, Any]) -> str:
    return str(link.get("linkinfo", {}).get("info_kind", ""))


def _run_json(*argv: str) -> list[dict[str, Any]]:
    return link_plan.parse_json(shlex.join(argv), system.run(argv))


# SSH connections of the user's terminal.


def ssh_connections_over(interface: str) -> tuple[Connection, ...]:
    """Return the SSH connections of the user's terminal that use the interface or a device above it, such as a bridge.

    They are in SSH_CONNECTION, ours or an ancestor's: sudo does not pass the variable on. A connection uses a device
    that has its local address, or by which packets to the client leave.
    """
    parsed = map(parse_ssh_connection, sorted(_read_ssh_variables(os.getpid())))
    connections = [connection for connection in dict.fromkeys(parsed) if connection is not None]
    if not connections:
        return ()
    devices = {interface, *(upper.name for upper in _find_upper_devices(interface))}
    addresses = _run_json("ip", "-j", "addr", "show")
    owners = {
        info["local"]: link["ifname"] for link in addresses for info in link.get("addr_info", ()) if "local" in info
    }

    def route_device(address: IPv4Address | IPv6Address) -> str:
        try:
            return str(_get_route(address).get("dev", ""))
        except SpecError:
            return ""

    return tuple(item for item in connections if devices & {owners.get(str(item.local)), route_device(item.remote)})


def parse_ssh_connection(text: str) -> Connection | None:
    """Parse an SSH_CONNECTION; None if it is malformed."""
    try:
        remote, remote_port, local, local_port = text.split()
        return Connection(
            remote=_parse_address(remote),
            remote_port=int(remote_port),
            local=_parse_address(local),
            local_port=int(local_port),
        )
    except ValueError:
        return None


def require_established(connections: Iterable[Connection]) -> None:
    """Raise SpecError for a connection that is not established: an outdated SSH_CONNECTION exempts the wrong one.

    If systemd listens, the socket is an IPv6 socket.
    """
    lines = system.run(("ss", "-H", "-t", "-n", "-O")).splitlines()
    established = {tuple(map(_parse_end, line.split()[3:5])) for line in lines if line.startswith("ESTAB")}
    for connection in connections:
        ends = ((connection.local, connection.local_port), (connection.remote, connection.remote_port))
        if ends not in established:
            raise SpecError(
                f"SSH_CONNECTION names {connection}, which is not established here, so that your present connection "
                "would be shaped. Start this in a shell of that connection, not in an older one of tmux or screen."
            )


def _parse_end(text: str) -> tuple[IPv4Address | IPv6Address | None, int]:
    """Parse the address and port of "192.0.2.1:22", "[fe80::1%eth0]:22" or "[::ffff:192.0.2.1]:22"."""
    host, _, port = text.rpartition(":")
    try:
        return _parse_address(host.strip("[]")), int(port)
    except ValueError:
        return None, 0


def _parse_address(text: str) -> IPv4Address | IPv6Address:
    address = ipaddress.ip_address(text.partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address


def _read_ssh_variables(pid: int) -> set[str]:
    variables = {os.environ.get("SSH_CONNECTION", "")}
    while pid > 1:
        folder = Path("/proc") / str(pid)
        try:
            for line in (folder / "environ").read_bytes().split(b"\0"):
                if line.startswith(b"SSH_CONNECTION="):
                    variables.add(line.partition(b"=")[2].decode(errors="replace"))
            pid = int((folder / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[1])
        except OSError:
            # We may not read an ancestor of another user: its child's value has to do.
            break
    return variables
