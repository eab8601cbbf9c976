"""Profile to the lines of `ip -batch`, and the argv of sysctl; and what ip and tc answer. Pure."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ingest_bench import system
from ingest_bench.errors import MissingCapability, RunFailed, SpecError
from ingest_bench.inputs import records
from ingest_bench.model.network import Profile
from ingest_bench.network.plan import features, places

if TYPE_CHECKING:
    from collections.abc import Mapping

Lines = tuple[str, ...]

# The state of a link that no profile has changed yet.
UNTOUCHED = Profile(name="")

# tcp_no_metrics_save: what the kernel learned from the check's connections must not prime the load's.
# addr_gen_mode 1 is "none": a device whose MTU falls below IPv6's 1280 loses IPv6, and would come back with an address.
_QUIET = ("net.ipv4.tcp_no_metrics_save=1", "net.ipv6.conf.default.addr_gen_mode=1")

# Packets of 127.0.0.0/8 pass on any device: several nodes have such addresses (`places.node_address`).
ROUTE_LOCALNET = "net.ipv4.conf.all.route_localnet=1"

# Some qdiscs print their options as text, such as {default 1 } and {bands 4/4 } (iproute2 up to 7.0, tc/q_hfsc.c and
# tc/q_multiq.c: fprintf).
_TEXT_OPTIONS = re.compile(r'"options":\{[^{}"]*\}')


def parse_json(command: str, text: str) -> list[dict[str, Any]]:
    """Return what *command* printed; options that are plain text are empty. RunFailed if the rest is not JSON."""
    try:
        listed = json.loads(_TEXT_OPTIONS.sub('"options":{}', text.strip() or "[]"))
    except (ValueError, RecursionError) as error:
        raise RunFailed(f"{command}: its output is not JSON ({error}); install a newer iproute2") from None
    return list(listed)


def text(lines: Lines) -> str:
    """The standard input of `ip -batch -` or `tc -batch -`."""
    return "\n".join(lines) + "\n"


def pair(device: str, mac: str, peer: str, peer_mac: str, peer_place: str) -> Lines:
    """A veth pair: `device` here and `peer` in the namespace of that name, both born where they live."""
    return (f"link add name {device} address {mac} type veth peer name {peer} address {peer_mac} netns {peer_place}",)


def restored(
    after: Profile, before: Profile, *, tcp_rmem_bytes: tuple[int, ...], tcp_wmem_bytes: tuple[int, ...]
) -> Profile:
    """The profile, with the kernel's own values where the one before it had set something and it leaves it open.

    The numbers are those of a new veth (include/linux/netdevice.h: GSO_MAX_SEGS, GSO_LEGACY_MAX_SIZE,
    GRO_LEGACY_MAX_SIZE); the sizes of buffers are those of a new namespace.
    """
    kernels: dict[str, Any] = {
        "gso_max_segs": 65535,
        "gso_max_size_bytes": 65536,
        "gro_max_size_bytes": 65536,
        "tcp_rmem_bytes": tcp_rmem_bytes,
        "tcp_wmem_bytes": tcp_wmem_bytes,
    }
    left_open = {name for name in kernels if getattr(after, name) is None and getattr(before, name) is not None}
    return replace(after, **{name: kernels[name] for name in left_open})


def device(name: str, profile: Profile) -> Lines:
    """What the profile says about a device itself."""
    options = [f"mtu {profile.mtu_bytes}"]
    if profile.gso_max_segs is not None:
        options.append(f"gso_max_segs {profile.gso_max_segs}")
    if profile.gso_max_size_bytes is not None:
        options.append(f"gso_max_size {profile.gso_max_size_bytes}")
    if profile.gro_max_size_bytes is not None:
        options.append(f"gro_max_size {profile.gro_max_size_bytes}")
    return (f"link set dev {name} {' '.join(options)}",)


def no_solicitations(name: str, *, has_ipv6: bool) -> Lines:
    """A device without an IPv6 address of its own, whose packets would be counted; none to take where there is none."""
    return (f"link set dev {name} addrgenmode none",) if has_ipv6 else ()


def up(name: str, address: str, *, has_ipv6: bool) -> Lines:
    """An address of its own on a device that is up."""
    return (
        "link set dev lo up",
        *no_solicitations(name, has_ipv6=has_ipv6),
        f"addr add {address}/32 dev {name}",
        f"link set dev {name} up",
    )


def route(name: str, address: str, peer: str, gateway: str | None, profile: Profile) -> Lines:
    """The way to the peer, directly or through a box."""
    via = f" via {gateway} dev {name} onlink" if gateway else f" dev {name}"
    return (f"route replace {peer}/32{via} src {address}{_tcp(profile)}",)


def loopback_up() -> Lines:
    """Both ends on one `lo`."""
    client, server = places.CLIENT_ADDRESS, places.SERVER_ADDRESS
    return ("link set dev lo up", f"addr add {client}/32 dev lo", f"addr add {server}/32 dev lo")


def loopback(profile: Profile) -> Lines:
    """The state of a `lo` with both ends: a client that asks for the server gets the client's address as its own."""
    client, server = places.CLIENT_ADDRESS, places.SERVER_ADDRESS
    where = "dev lo table local proto kernel scope host"
    return (
        *device("lo", profile),
        f"route replace local {server} {where} src {client}{_tcp(profile)}",
        f"route replace local {client} {where} src {server}{_tcp(profile)}",
    )


def box_sides(ends: places.Ends, *, has_ipv6: bool) -> Lines:
    """Both sides of a box: its gateway addresses, and the ways to the ends."""
    return (
        *(line for name in places.BOX_DEVICES.values() for line in no_solicitations(name, has_ipv6=has_ipv6)),
        *_box_side("to-client", places.CLIENT_GATEWAY, ends.client_address, places.CLIENT_MAC),
        *_box_side("to-server", places.SERVER_GATEWAY, ends.server_address, places.SERVER_MAC),
    )


def _box_side(direction: places.Direction, address: str, end: str, end_mac: str) -> Lines:
    name = places.BOX_DEVICES[direction]
    return (
        f"addr add {address}/32 dev {name}",
        f"link set dev {name} up",
        *neighbour(name, end, end_mac),
        f"route replace {end}/32 dev {name} src {address}",
    )


def box_mtu(mtu_bytes: int) -> Lines:
    """The MTU of a box's devices."""
    return tuple(f"link set dev {name} mtu {mtu_bytes}" for name in places.BOX_DEVICES.values())


def neighbour(name: str, address: str, mac: str) -> Lines:
    """Who answers to that address, for good."""
    return (f"neigh replace {address} lladdr {mac} dev {name} nud permanent",)


def sysctl(profile: Profile) -> tuple[str, ...]:
    """The argv that sets what the profile says about TCP in a namespace; -e: there may be no IPv6."""
    asked = (f"net.ipv4.{name}={value}" for name, value in buffers(profile).items())
    return ("sysctl", "-q", "-e", "-w", *_QUIET, *asked)


def offloads(device: str, asked: Mapping[str, bool]) -> tuple[str, ...]:
    """The argv that sets a device's offloads all at once and tells what came of it; without any it only tells."""
    return system.program(features.__file__, device, *features.words(asked))


def changed(said: str, asked: Mapping[str, bool]) -> dict[str, bool]:
    """What `offloads` changed, by what it said: each feature with what was asked of it before.

    MissingCapability when one is not as it shall be, by what was read back.
    """
    answer = features.answer(said)
    for name in answer.unknown:
        raise SpecError(f'offloads: unknown feature "{name}"; {records.nearest(name, features.names(answer.before))}')
    for reason in features.unmet(asked, answer.after):
        raise MissingCapability(f"offloads: on this link {reason}. Leave the key out.")
    return {name: state.wanted for name, state in answer.before.items() if answer.after[name].wanted != state.wanted}


def buffers(profile: Profile) -> dict[str, str]:
    """The sizes of TCP's buffers that the profile sets, by their names below net.ipv4."""
    wanted = {"tcp_rmem": profile.tcp_rmem_bytes, "tcp_wmem": profile.tcp_wmem_bytes}
    return {name: " ".join(map(str, sizes)) for name, sizes in wanted.items() if sizes is not None}


def _tcp(profile: Profile) -> str:
    """The route's say on TCP.

    The congestion control comes by the route, not by net.ipv4.tcp_congestion_control: in any namespace but the
    first, that one takes only what tcp_allowed_congestion_control lists (net/ipv4/tcp_cong.c,
    tcp_set_default_congestion_control). Linux 6.18 whose default is bbr refused cubic there, even to root.
    """
    words = f" advmss {profile.mss_bytes}" if profile.mss_bytes is not None else ""
    words += f" congctl {profile.link_congestion_control}"
    if profile.to_server.ecn or profile.to_client.ecn:
        # By default TCP accepts ECN and asks for none (tcp_ecn is 2): no packet could be marked, and all are dropped.
        words += " features ecn"
    return words
