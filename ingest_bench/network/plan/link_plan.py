"""The commands that make a link and put it into the state of a profile, for those who want to read them. Pure."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from ingest_bench.network.plan import commands, guest, netem, places
from ingest_bench.network.plan.backends import BACKENDS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ingest_bench.model.network import Profile

# (device, address, peer, gateway, MAC of who takes its frames) of each end, directly and through a box.
_ENDS = {
    "client": (places.CLIENT_DEVICE, places.CLIENT_ADDRESS, places.SERVER_ADDRESS, places.CLIENT_GATEWAY),
    "server": (places.SERVER_DEVICE, places.SERVER_ADDRESS, places.CLIENT_ADDRESS, places.SERVER_GATEWAY),
}
_DIRECT_MACS = {"client": places.SERVER_MAC, "server": places.CLIENT_MAC}
_BOX_MACS = {"client": places.CLIENT_GATEWAY_MAC, "server": places.SERVER_GATEWAY_MAC}


def lines(profile: Profile, backend: str, *, has_ipv6: bool = True) -> tuple[str, ...]:
    """One command a line, each after the name of the namespace that it runs in: "client: ip link …".

    `backend` is a link's: "plain", "kernel" or "uml". The namespaces themselves have no name and no command: they
    are those of processes that do nothing.
    """
    profile = profile if backend == "plain" else BACKENDS[backend].carried(profile)
    made = _loopback(profile) if profile.medium == "loopback" else _veth(profile, backend, has_ipv6)
    return tuple(f"{place}: {command}" for place, command in made)


def _loopback(profile: Profile) -> Iterator[tuple[str, str]]:
    yield from _ip("client", (*commands.loopback_up(), *commands.loopback(profile)))
    yield from _rest("client", "lo", profile)
    for impairment in (profile.to_server, profile.to_client):
        yield from _tc("client", netem.lines("lo", impairment, profile.mtu_bytes))


def _veth(profile: Profile, backend: str, has_ipv6: bool) -> Iterator[tuple[str, str]]:
    yield from _middle(profile, backend, has_ipv6)
    macs = _DIRECT_MACS if backend == "plain" else _BOX_MACS
    for place, (device, address, peer, gateway) in _ENDS.items():
        next_hop = peer if backend == "plain" else gateway
        up = commands.up(device, address, has_ipv6=has_ipv6)
        yield from _ip(place, (*up, *commands.neighbour(device, next_hop, macs[place])))
    for place, (device, address, peer, gateway) in _ENDS.items():
        via = None if backend == "plain" else gateway
        yield from _ip(place, (*commands.device(device, profile), *commands.route(device, address, peer, via, profile)))
        yield from _rest(place, device, profile)
    if backend != "plain" and not BACKENDS[backend].has_fixed_mtu:
        yield from _ip("box", commands.box_mtu(profile.mtu_bytes))
    for direction, impairment in (("to-server", profile.to_server), ("to-client", profile.to_client)):
        sender = "client" if direction == "to-server" else "server"
        place, device = (sender, _ENDS[sender][0]) if backend == "plain" else ("box", direction)
        by_netem = backend != "plain" and BACKENDS[backend].rate_by_netem
        yield from _tc(place, netem.lines(device, impairment, profile.mtu_bytes, rate_by_netem=by_netem))


def _middle(profile: Profile, backend: str, has_ipv6: bool) -> Iterator[tuple[str, str]]:
    """What connects the two: one pair, or a box with a pair on each side."""
    client = (places.CLIENT_DEVICE, places.CLIENT_MAC)
    server = (places.SERVER_DEVICE, places.SERVER_MAC)
    if backend == "plain":
        yield from _ip("client", _pair(client, server, "server"))
    elif backend == "kernel":
        to_client = (places.BOX_DEVICES["to-client"], places.CLIENT_GATEWAY_MAC)
        to_server = (places.BOX_DEVICES["to-server"], places.SERVER_GATEWAY_MAC)
        yield from _ip("box", (*_pair(to_client, client, "client"), *_pair(to_server, server, "server")))
        yield "box", f"sysctl -q -w net.ipv4.ip_forward=1 {commands.ROUTE_LOCALNET}"
        yield from _ip("box", commands.box_sides(places.ENDS, has_ipv6=has_ipv6))
    else:
        for side, place in zip(guest.SIDES, ("server", "client"), strict=True):
            yield from _ip("around the box", guest.wiring(side, _ENDS[place][0], place, has_ipv6=has_ipv6))
        yield "box", shlex.join(guest.guest_argv(profile.mtu_bytes))
        yield "box", guest.setup_script()
        yield from _ip("box", commands.box_sides(places.ENDS, has_ipv6=False))


def _pair(here: tuple[str, str], there: tuple[str, str], where: str) -> tuple[str, ...]:
    # In place of the process that holds the namespace, which is not there yet.
    return tuple(line.replace(" netns 0", f" netns {where}") for line in commands.pair(*here, *there, peer_pid=0))


def _rest(place: str, device: str, profile: Profile) -> Iterator[tuple[str, str]]:
    yield place, shlex.join(commands.sysctl(profile))
    if profile.offloads:
        yield place, shlex.join(commands.offloads(device, profile.offloads))


def _ip(place: str, batch: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    return ((place, f"ip {line}") for line in batch)


def _tc(place: str, batch: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    return ((place, f"tc {line}") for line in batch)
