"""Plan a link between two namespaces: names, addresses, the commands that create it, and those that change it. Pure.

The same list of steps is carried out (`act.link`) and printed by `--dry-run`. The place of a step is a namespace:
"client", "server", "router", or "router host" for the namespace in which User-Mode Linux runs. No step has an undo: the
kernel removes everything with the namespaces.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ingest_bench import system
from ingest_bench.errors import MissingCapability, RunFailed
from ingest_bench.inputs.names import check_name
from ingest_bench.ledger.steps import Action, Step
from ingest_bench.model.network import Impairment, LinkName, Medium, Profile
from ingest_bench.network.plan import features, netem
from ingest_bench.network.plan.netem import Lines

Direction = Literal["to-server", "to-client"]
DIRECTIONS: tuple[Direction, ...] = ("to-server", "to-client")

# The namespaces are private, so names and addresses are fixed. 198.18.0.0/15 is reserved for benchmarks of network
# devices (RFC 2544, RFC 6890).
CLIENT_ADDRESS = "198.18.1.1"
SERVER_ADDRESS = "198.18.2.1"
CLIENT_GATEWAY = "198.18.1.254"
# Locally administered; the last four bytes are the address on a link between one client and one server. Other links use
# the same: each is its own segment. Fixed neighbour entries need no ARP, whose packets would cross the link.
CLIENT_MAC = "02:00:c6:12:01:01"
SERVER_MAC = "02:00:c6:12:02:01"
# No device has it: a receiver silently drops frames to another MAC address.
UNUSED_MAC = "02:00:c6:12:ff:ff"


class RouterSide(NamedTuple):
    """One side of the netem router, whose qdiscs shape what leaves for an end."""

    device: Direction
    """Named after where it leads; vec0 and vec1 of User-Mode Linux."""
    gateway: str
    """Its address, a /32 with a route to the end."""
    mac: str
    outside: str
    """Name of the veth device that User-Mode Linux reads by a packet socket."""


# By the places of the ends.
ROUTER_SIDES = {
    "server": RouterSide("to-server", "198.18.2.254", "02:00:c6:12:02:fe", "router-server"),
    "client": RouterSide("to-client", CLIENT_GATEWAY, "02:00:c6:12:01:fe", "router-client"),
}

# The state of a link before a profile is applied.
INITIAL_PROFILE = Profile(name="")
# The step whose output tells what became of each offload.
OFFLOADS_STEP = "offloads"

# tcp_no_metrics_save: what the kernel learned from the check's connections must not affect those of the load.
# addr_gen_mode 1 is "none": a device whose MTU falls below IPv6's 1280 loses IPv6, and would come back with an address.
_NAMESPACE_SYSCTLS = ("net.ipv4.tcp_no_metrics_save=1", "net.ipv6.conf.default.addr_gen_mode=1")
# Any device forwards packets of 127.0.0.0/8: the nodes of a cluster have such addresses (`node_address`).
ROUTE_LOCALNET = "net.ipv4.conf.all.route_localnet=1"

# Some qdiscs print their options as text, such as {default 1 } and {bands 4/4 } (iproute2 up to 7.0, tc/q_hfsc.c and
# tc/q_multiq.c: fprintf).
_TEXT_OPTIONS = re.compile(r'"options":\{[^{}"]*\}')

UML_MODULES = Path("/usr/lib/uml/modules")
# The largest that User-Mode Linux's driver takes as its mtu=: 65534 passed, 65535 was ignored. It is fixed at boot: the
# driver's own maximum for `ip link set mtu` is 1500.
UML_MAX_MTU_BYTES = 65534
# Of 1 Gbit/s, 84% (hfsc) and 40 to 56% (cake) were left: see `netem`.
UML_MAX_AQM_BPS = 500 * 10**6
# Keeps the host's glibc, which the UML kernel runs too, from using AVX (glibc manual, Hardware Capability Tunables).
# Words of the kernel command line that the kernel does not know are in the environment of its first process.
NO_AVX = "GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX,-AVX2,-AVX512F,-AVX512VL,-AVX512BW,-AVX_Fast_Unaligned_Load"
# The first version whose register buffer has the processor's own size (arch/um, "switch to regset API").
_UML_ANY_XSTATE = (6, 13)
# An upper limit, allocated on use: netem's delay line holds whole packets.
_UML_MEMORY = "256M"


class EndNames(NamedTuple):
    """Device names and addresses of the two ends of a link."""

    client_device: str = "client0"
    client_address: str = CLIENT_ADDRESS
    server_device: str = "server0"
    server_address: str = SERVER_ADDRESS


DEFAULT_NAMES = EndNames()


def cluster_link_names(name: LinkName, *, in_loopback_range: bool = True) -> EndNames:
    """Return the names on a link of a cluster. Of two nodes the first takes the client's end."""
    *first_node, last_node = name.nodes
    *first_address, last_address = (node_address(number, in_loopback_range=in_loopback_range) for number in name.nodes)
    if not first_node:
        return EndNames(client_device=f"client{last_node - 1}", server_address=last_address)
    return EndNames(f"peer{last_node}", first_address[0], f"peer{first_node[0]}", last_address)


def node_address(number: int, *, in_loopback_range: bool = True) -> str:
    """Return the one address that a node of a cluster has on all of its links.

    An address of 127.0.0.0/8: on any other, OpenSearch and Elasticsearch form no cluster unless the host's
    vm.max_map_count and limit of open files are raised (BootstrapChecks), which requires root and affects the whole
    host. A server that takes such an address for its own loopback gets one of 198.18.0.0/15.
    """
    return f"127.18.2.{number}" if in_loopback_range else f"198.19.2.{number}"


def impairment_of(profile: Profile, direction: Direction) -> Impairment:
    """Return the profile's impairment of a direction."""
    return profile.to_server if direction == "to-server" else profile.to_client


# Output of ip and tc, and lines for `ip -batch`.


def parse_json(command: str, text: str) -> list[dict[str, Any]]:
    """Return what *command* printed; options that are plain text are empty. RunFailed if the rest is not JSON."""
    try:
        entries = json.loads(_TEXT_OPTIONS.sub('"options":{}', text.strip() or "[]"))
    except (ValueError, RecursionError) as error:
        raise RunFailed(f"{command}: its output is not JSON ({error}). Install a newer iproute2.") from None
    return list(entries)


def batch_text(lines: Lines) -> str:
    """Return the standard input of `ip -batch -` or `tc -batch -`."""
    return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelDefaults:
    """The kernel's values before any profile was applied."""

    tcp_rmem_bytes: tuple[int, ...] = ()
    tcp_wmem_bytes: tuple[int, ...] = ()
    offloads: Mapping[str, Mapping[str, bool]] = field(default_factory=dict)
    """By place: the features that profiles changed."""


def with_kernel_defaults(after: Profile, before: Profile, defaults: KernelDefaults) -> Profile:
    """Return the profile *after*, with the kernel's defaults for values that *before* set and *after* leaves open.

    Device values are those of a new veth (include/linux/netdevice.h: GSO_MAX_SEGS, GSO_LEGACY_MAX_SIZE,
    GRO_LEGACY_MAX_SIZE); buffer sizes are those of a new namespace.
    """
    values: dict[str, Any] = {
        "gso_max_segs": 65535,
        "gso_max_size_bytes": 65536,
        "gro_max_size_bytes": 65536,
        "tcp_rmem_bytes": defaults.tcp_rmem_bytes,
        "tcp_wmem_bytes": defaults.tcp_wmem_bytes,
    }
    reset = {name for name in values if getattr(after, name) is None and getattr(before, name) is not None}
    return replace(after, **{name: values[name] for name in reset})


def tcp_buffer_sysctls(profile: Profile) -> dict[str, str]:
    """Return the TCP buffer sizes that the profile sets, by sysctl name below net.ipv4."""
    sizes = {"tcp_rmem": profile.tcp_rmem_bytes, "tcp_wmem": profile.tcp_wmem_bytes}
    return {name: " ".join(map(str, values)) for name, values in sizes.items() if values is not None}


def sysctl_argv(profile: Profile) -> tuple[str, ...]:
    """Return the argv that sets the profile's TCP settings in a namespace; -e because there may be no IPv6."""
    buffers = (f"net.ipv4.{name}={value}" for name, value in tcp_buffer_sysctls(profile).items())
    return ("sysctl", "-q", "-e", "-w", *_NAMESPACE_SYSCTLS, *buffers)


def offloads_argv(device: str, offloads: Mapping[str, bool]) -> tuple[str, ...]:
    """Return the argv that sets a device's offloads all at once and prints the result; without any it only prints."""
    arguments = (f"{name}={'on' if on else 'off'}" for name, on in offloads.items())
    return system.build_program_argv(features.__file__, device, *arguments)


def parse_offload_changes(output: str, offloads: Mapping[str, bool]) -> dict[str, bool]:
    """Return the features that `offloads_argv` changed, each with its previously requested state.

    SpecError for an unknown feature, MissingCapability if a feature read back does not have the requested state.
    """
    reply = features.parse_reply(output)
    for name in reply.unknown:
        check_name(name, features.known_names(reply.before), f'offloads: unknown feature "{name}"')
    for reason in features.find_unmet(offloads, reply.after):
        raise MissingCapability(f"offloads: on this link {reason}. Leave the key out.")
    return {name: state.wanted for name, state in reply.before.items() if reply.after[name].wanted != state.wanted}


def profile_sizes(profile: Profile) -> dict[str, int]:
    """Return the offload sizes that the profile sets, by the names of `ip link`."""
    sizes = {
        "gso_max_segs": profile.gso_max_segs,
        "gso_max_size": profile.gso_max_size_bytes,
        "gro_max_size": profile.gro_max_size_bytes,
    }
    return {name: size for name, size in sizes.items() if size is not None}


def set_device(name: str, profile: Profile) -> str:
    """Return the line that sets the profile's MTU and offload sizes on a device."""
    options = {"mtu": profile.mtu_bytes, **profile_sizes(profile)}
    return f"link set dev {name} {' '.join(f'{option} {value}' for option, value in options.items())}"


def disable_ipv6_autoconf(name: str, *, has_ipv6: bool) -> Lines:
    """Return the line that keeps a device from having an IPv6 address, whose packets would be counted."""
    return (f"link set dev {name} addrgenmode none",) if has_ipv6 else ()


def set_neighbour(name: str, address: str, mac: str) -> str:
    """Return the line that fixes the MAC address of a neighbour."""
    return f"neigh replace {address} lladdr {mac} dev {name} nud permanent"


def set_route(name: str, address: str, peer: str, gateway: str | None, profile: Profile) -> str:
    """Return the line that sets the route to the peer, direct or through a router."""
    via = f" via {gateway} dev {name} onlink" if gateway else f" dev {name}"
    return f"route replace {peer}/32{via} src {address}{_tcp_route_options(profile)}"


def set_loopback(profile: Profile) -> Lines:
    """Return the lines that set the state of a `lo` with both ends; a client's packets have the client's address."""
    where = "dev lo table local proto kernel scope host"
    pairs = ((SERVER_ADDRESS, CLIENT_ADDRESS), (CLIENT_ADDRESS, SERVER_ADDRESS))
    return (
        set_device("lo", profile),
        *(f"route replace local {to} {where} src {source}{_tcp_route_options(profile)}" for to, source in pairs),
    )


def set_up_router(layout: Layout, *, has_ipv6: bool) -> Iterator[str]:
    """Yield the lines that set up both sides of a router: gateway addresses, and routes to the ends."""
    for place, side in ROUTER_SIDES.items():
        end = layout.ends[place]
        yield from disable_ipv6_autoconf(side.device, has_ipv6=has_ipv6)
        yield from (f"addr add {side.gateway}/32 dev {side.device}", f"link set dev {side.device} up")
        yield set_neighbour(side.device, end.address, end.mac)
        yield f"route replace {end.address}/32 dev {side.device} src {side.gateway}"


def _tcp_route_options(profile: Profile) -> str:
    """Return a route's TCP options.

    The congestion control is set by the route, not by net.ipv4.tcp_congestion_control: in any namespace but the first,
    that sysctl takes only what tcp_allowed_congestion_control lists (net/ipv4/tcp_cong.c,
    tcp_set_default_congestion_control). Linux 6.18 whose default is bbr refused cubic there, even to root.
    """
    options = f" advmss {profile.mss_bytes}" if profile.mss_bytes is not None else ""
    options += f" congctl {profile.link_congestion_control}"
    if profile.to_server.ecn or profile.to_client.ecn:
        # By default TCP accepts ECN and does not request it (tcp_ecn is 2): packets would be dropped, not marked.
        options += " features ecn"
    return options


# The router as User-Mode Linux.


def uml_argv(mtu_bytes: int) -> tuple[str, ...]:
    """Return the argv that boots a shell on the host's files, read-only. "@N" stands for the packet socket of device N.

    `loglevel=0`: only the shell writes to the console.
    """
    devices = (
        f"vec{number}:transport=fd,fd=@{number},mtu={mtu_bytes},depth=128" for number in range(len(ROUTER_SIDES))
    )
    root = ("rootfstype=hostfs", "rootflags=/", "root=98:0", "ro", "init=/bin/sh")
    console = ("con=null", "con0=fd:0,fd:1", "quiet", "loglevel=0")
    return (
        *("linux.uml", f"mem={_UML_MEMORY}", *root, *console),
        *("panic=-1", "uml_dir=/dev/shm", "umid=router", *devices),
    )


def needs_xstate_workaround(version: str, cpuinfo: str) -> bool:
    """Return True if User-Mode Linux of that version panics on such a processor (see `act.uml_process`)."""
    if " amx_tile" not in cpuinfo:
        return False
    match = re.match(r"(\d+)\.(\d+)", version)
    if match is None:
        raise RunFailed(
            f"linux.uml --version: {version.strip()!r} is not a Linux version, and versions before 6.13 need a "
            "workaround on processors with AMX. Install another version, or use --netem kernel."
        )
    return (int(match[1]), int(match[2])) < _UML_ANY_XSTATE


def uml_setup_argv() -> tuple[str, ...]:
    """Return the argv that User-Mode Linux runs once: load modules, name devices, enable forwarding.

    Without GRO: with it netem saw aggregates, and dropped 4 of 4147 segments of a TCP stream instead of 21. No
    aggregate becomes as large as gro_max_size (net/core/gro.c, skb_gro_receive), so 1 byte disables it; the driver's
    own gro=0 only sets the size of its buffers (arch/um/drivers/vector_kern.c, get_req_size).
    """
    set_names = (
        f"ip link set dev vec{number} name {side.device} address {side.mac} gro_max_size 1"
        for number, side in enumerate(ROUTER_SIDES.values())
    )
    queue_modules = sorted({name for names in netem.QUEUE_MODULES.values() for name in names})
    files = " ".join(f"$modules/sch_{name}.ko" for name in queue_modules)
    lines = (
        "busybox mount -t proc none /proc",
        f"modules={UML_MODULES}/$(busybox uname -r)/kernel/net/sched",
        "busybox insmod $modules/sch_netem.ko",
        "busybox insmod $modules/sch_tbf.ko",
        # Missing queue modules are reported before anything that needs them starts (`uml.find_uml_queue_problem`).
        f"for file in {files}; do if [ -e $file ]; then busybox insmod $file || exit 1; fi; done",
        *set_names,
        "echo 1 > /proc/sys/net/ipv4/ip_forward",
        "echo 1 > /proc/sys/net/ipv4/conf/all/route_localnet",
    )
    return ("sh", "-c", " && ".join(lines))


def find_uml_conflict(profile: Profile) -> str:
    """Return why User-Mode Linux cannot carry the profile; empty if it can."""
    if profile.mtu_bytes > UML_MAX_MTU_BYTES:
        return f"mtu {profile.mtu_bytes}: the User-Mode Linux router passes at most {UML_MAX_MTU_BYTES}."
    if profile.gso_max_segs not in (None, 1):
        return (
            f"gso_max_segs {profile.gso_max_segs}: the User-Mode Linux router takes single segments only. "
            "Leave the key out, or set it to 1."
        )
    for impairment in (profile.to_server, profile.to_client):
        if netem.is_aqm(impairment) and (impairment.rate_bps or 0) > UML_MAX_AQM_BPS:
            return (
                f'queue = "{impairment.queue}": the User-Mode Linux router keeps a rate of at most '
                f"{UML_MAX_AQM_BPS // 10**6} Mbit/s with it."
            )
    for name, on in profile.offloads.items():
        if on and (name == "tx" or name.startswith("tx-checksum")):
            return f"offloads: {name} is off on the User-Mode Linux router, which requires complete checksums."
    return ""


# The link.


@dataclass(frozen=True, slots=True, kw_only=True)
class EndPlan:
    """One end of a link, and its next hop."""

    device: str
    mac: str
    address: str
    peer: str
    gateway: str | None
    next_mac: str
    """MAC address of the device that takes its frames: the peer's or the gateway's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Parts of a link, independent of its state."""

    medium: Medium
    backend: str
    """"plain": no netem is needed; otherwise the kind of router, "kernel" or "uml"."""
    names: EndNames = DEFAULT_NAMES
    max_mtu_bytes: int
    has_ipv6: bool
    uml_kernel_options: tuple[str, ...] = ()
    """Additional kernel options that User-Mode Linux needs on this processor."""

    @property
    def has_router(self) -> bool:
        """True if there is a netem router between the ends."""
        return self.backend != "plain" and self.medium != "loopback"

    @property
    def router_namespace(self) -> str | None:
        """The place of the third namespace, if one is needed."""
        return {"kernel": "router", "uml": "router host"}[self.backend] if self.has_router else None

    @property
    def has_uml_router(self) -> bool:
        """True if the router is User-Mode Linux.

        Its timers are too late for a token bucket, so that netem sets every rate. Its devices keep the MTU of its
        start, so that only the ends' devices have the profile's.
        """
        return self.has_router and self.backend == "uml"

    @property
    def ends(self) -> dict[str, EndPlan]:
        """The ends by their places."""
        names = self.names
        rows = (
            ("client", names.client_device, CLIENT_MAC, names.client_address, names.server_address, SERVER_MAC),
            ("server", names.server_device, SERVER_MAC, names.server_address, names.client_address, CLIENT_MAC),
        )
        return {
            place: EndPlan(
                device="lo" if self.medium == "loopback" else device,
                mac=mac,
                address=address,
                peer=peer,
                gateway=ROUTER_SIDES[place].gateway if self.has_router else None,
                next_mac=ROUTER_SIDES[place].mac if self.has_router else peer_mac,
            )
            for place, device, mac, address, peer, peer_mac in rows
        }

    def adapt(self, profile: Profile) -> Profile:
        """Return the profile with the values that the router fixes: User-Mode Linux reads frames by packet sockets.

        These see a frame before an offloaded checksum would be computed, and super-packets undivided.
        """
        if not self.has_uml_router:
            return profile
        return replace(profile, gso_max_segs=1, offloads={**profile.offloads, "tx": False})

    def shaping_device(self, direction: Direction) -> tuple[str, str]:
        """Return the place and the device of a direction's qdiscs: the router's egress, or the sender's."""
        if self.has_router:
            return "router", direction
        sender = "client" if direction == "to-server" else "server"
        return sender, self.ends[sender].device


def link_steps(
    profile: Profile, backend: str, *, has_ipv6: bool = True, uml_kernel_options: tuple[str, ...] = ()
) -> tuple[Step, ...]:
    """Return all steps that create a link in the state of a profile. No command creates the namespaces."""
    layout = Layout(
        medium=profile.medium,
        backend=backend,
        max_mtu_bytes=profile.mtu_bytes,
        has_ipv6=has_ipv6,
        uml_kernel_options=uml_kernel_options,
    )
    changes = change_steps(layout, INITIAL_PROFILE, layout.adapt(profile), KernelDefaults())
    return (*creation_steps(layout), *changes)


def creation_steps(layout: Layout) -> Iterator[Step]:
    """Yield the steps that connect the namespaces, without a profile."""
    if layout.medium == "loopback":
        addresses = (f"addr add {address}/32 dev lo" for address in (CLIENT_ADDRESS, SERVER_ADDRESS))
        yield from _ip_steps("client", ("link set dev lo up", *addresses))
        return
    yield from _connection_steps(layout)
    for place, end in layout.ends.items():
        lines = (
            "link set dev lo up",
            *disable_ipv6_autoconf(end.device, has_ipv6=layout.has_ipv6),
            f"addr add {end.address}/32 dev {end.device}",
            f"link set dev {end.device} up",
        )
        yield from _ip_steps(place, lines)
        yield from neighbour_steps(layout, place, is_cut=False)


def neighbour_steps(layout: Layout, place: str, *, is_cut: bool) -> Iterator[Step]:
    """Yield the step that sets the next hop's MAC address of an end: an unused one while its direction is cut."""
    end = layout.ends[place]
    mac = UNUSED_MAC if is_cut else end.next_mac
    return _ip_steps(place, (set_neighbour(end.device, end.gateway or end.peer, mac),))


def change_steps(layout: Layout, before: Profile, after: Profile, defaults: KernelDefaults) -> tuple[Step, ...]:
    """Return the steps from one state of a link to another: in the namespaces, on the devices and in the qdiscs."""
    profile = with_kernel_defaults(after, before, defaults)
    steps: list[Step] = []
    is_loopback = layout.medium == "loopback"
    for place, end in list(layout.ends.items())[: 1 if is_loopback else 2]:
        if is_loopback:
            steps += _ip_steps(place, set_loopback(profile))
        else:
            route = set_route(end.device, end.address, end.peer, end.gateway, profile)
            steps += _ip_steps(place, (set_device(end.device, profile), route))
        steps.append(_step(place, *sysctl_argv(profile)))
        offloads = {**defaults.offloads.get(place, {}), **profile.offloads}
        if offloads:
            steps.append(_step(place, *offloads_argv(end.device, offloads), name=OFFLOADS_STEP))
    if layout.has_router and not layout.has_uml_router:
        mtus = (f"link set dev {side.device} mtu {profile.mtu_bytes}" for side in ROUTER_SIDES.values())
        steps += _ip_steps("router", mtus)
    for direction in DIRECTIONS:
        place, device = layout.shaping_device(direction)
        old, new = impairment_of(before, direction), impairment_of(profile, direction)
        lines = netem.change_lines(device, old, new, profile.mtu_bytes, rate_by_netem=layout.has_uml_router)
        steps += [_step(place, "tc", *line.split()) for line in lines]
    return tuple(steps)


def _connection_steps(layout: Layout) -> Iterator[Step]:
    """Yield the steps that connect the two: one veth pair, or a router with a pair on each side."""
    peers = {
        place: f"type veth peer name {end.device} address {end.mac} netns {place}" for place, end in layout.ends.items()
    }
    if not layout.has_router:
        client = layout.ends["client"]
        yield from _ip_steps("client", (f"link add name {client.device} address {client.mac} {peers['server']}",))
    elif not layout.has_uml_router:
        pairs = (
            f"link add name {side.device} address {side.mac} {peers[place]}" for place, side in ROUTER_SIDES.items()
        )
        yield from _ip_steps("router", pairs)
        yield _step("router", "sysctl", "-q", "-w", "net.ipv4.ip_forward=1", ROUTE_LOCALNET)
        yield from _ip_steps("router", set_up_router(layout, has_ipv6=layout.has_ipv6))
    else:
        for place, side in ROUTER_SIDES.items():
            lines = (
                # 65535 is veth's largest: only the MTU of User-Mode Linux limits packets.
                f"link add name {side.outside} mtu 65535 {peers[place]}",
                *disable_ipv6_autoconf(side.outside, has_ipv6=layout.has_ipv6),
                f"link set dev {side.outside} up",
            )
            yield from _ip_steps("router host", lines)
        # The first command of the place "router" starts User-Mode Linux.
        yield _step("router", *uml_argv(layout.max_mtu_bytes), *layout.uml_kernel_options)
        yield _step("router", *uml_setup_argv())
        yield from _ip_steps("router", set_up_router(layout, has_ipv6=False))


def _ip_steps(place: str, lines: Iterable[str]) -> Iterator[Step]:
    return (_step(place, "ip", *line.split()) for line in lines)


def _step(place: str, *argv: str, name: str = "") -> Step:
    return Step(name=name or argv[0], namespace=place, action=Action(argv=argv))
