"""What makes a link of our own and puts it into the state of a profile: one list of steps. Pure.

The same list is carried out (`network.act.executor`) and printed by `--dry-run`. A step's place is a namespace of ours:
"client", "server", "box", or "around the box" for the one in which User-Mode Linux runs. No step has an undo: what was
done in a namespace goes with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ingest_bench.ledger.steps import Action, Step
from ingest_bench.network.plan import commands, guest, netem, places
from ingest_bench.network.plan.backends import BACKENDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ingest_bench.model.network import Impairment, Medium, Profile

# The step whose answer says what became of each offload.
OFFLOADS = "offloads"
_NOTHING: Mapping[str, bool] = {}


def impairment_of(profile: Profile, direction: places.Direction) -> Impairment:
    """What the profile does to that direction."""
    return profile.to_server if direction == "to-server" else profile.to_client


@dataclass(frozen=True, slots=True, kw_only=True)
class EndPlan:
    """One end of a link, and whom it sends to."""

    device: str
    address: str
    peer: str
    gateway: str | None
    next_mac: str
    """The device that takes its frames: the peer's own or the gateway's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What a link is made of, whatever state it is in."""

    medium: Medium
    backend: str
    """"plain": no netem is needed; else the kind of box, "kernel" or "uml"."""
    at: places.Ends = places.ENDS
    largest_mtu_bytes: int
    has_ipv6: bool
    kernel_words: tuple[str, ...] = ()
    """What a guest of User-Mode Linux is told beside the rest on this processor."""

    @property
    def has_box(self) -> bool:
        """Whether there is a box in the middle."""
        return self.backend != "plain" and self.medium != "loopback"

    @property
    def middle(self) -> str | None:
        """The namespace beside the two ends that it needs."""
        return {"kernel": "box", "uml": "around the box"}[self.backend] if self.has_box else None

    @property
    def rate_by_netem(self) -> bool:
        """Whether each rate is a netem's."""
        return self.has_box and BACKENDS[self.backend].rate_by_netem

    @property
    def ends(self) -> dict[str, EndPlan]:
        """The ends by their places."""
        client, server = self.at.client_address, self.at.server_address
        if self.medium == "loopback":
            return {
                "client": EndPlan(device="lo", address=client, peer=server, gateway=None, next_mac=""),
                "server": EndPlan(device="lo", address=server, peer=client, gateway=None, next_mac=""),
            }
        gateways: tuple[str | None, str | None] = (None, None)
        macs = (places.SERVER_MAC, places.CLIENT_MAC)
        if self.has_box:
            gateways = (places.CLIENT_GATEWAY, places.SERVER_GATEWAY)
            macs = (places.CLIENT_GATEWAY_MAC, places.SERVER_GATEWAY_MAC)
        devices = (self.at.client_device, self.at.server_device)
        return {
            place: EndPlan(device=device, address=address, peer=peer, gateway=gateway, next_mac=mac)
            for place, device, address, peer, gateway, mac in zip(
                ("client", "server"), devices, (client, server), (server, client), gateways, macs, strict=True
            )
        }

    def carried(self, profile: Profile) -> Profile:
        """The profile with what a box itself decides where it leaves that open."""
        return BACKENDS[self.backend].carried(profile) if self.has_box else profile

    def shaper(self, direction: places.Direction) -> tuple[str, str]:
        """The place and the device of a direction's qdiscs: the box's egress, or the sender's."""
        if self.has_box:
            return "box", places.BOX_DEVICES[direction]
        sender = "client" if direction == "to-server" else "server"
        return sender, self.ends[sender].device


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """What the kernel had before any profile said otherwise."""

    tcp_rmem_bytes: tuple[int, ...] = ()
    tcp_wmem_bytes: tuple[int, ...] = ()
    offloads: Mapping[str, Mapping[str, bool]] = field(default_factory=dict)
    """By place: the features that profiles changed."""


def steps(
    profile: Profile, backend: str, *, has_ipv6: bool = True, kernel_words: tuple[str, ...] = ()
) -> tuple[Step, ...]:
    """All that makes a link in the state of a profile. The namespaces are made by no command."""
    layout = Layout(
        medium=profile.medium,
        backend=backend,
        largest_mtu_bytes=profile.mtu_bytes,
        has_ipv6=has_ipv6,
        kernel_words=kernel_words,
    )
    return (*made(layout), *changed(layout, commands.UNTOUCHED, layout.carried(profile), Kernels()))


def made(layout: Layout) -> tuple[Step, ...]:
    """What joins the namespaces, with no state yet."""
    if layout.medium == "loopback":
        return tuple(_ip("client", commands.loopback_up()))
    return (*_middle(layout), *_ends(layout))


def changed(layout: Layout, before: Profile, after: Profile, kernels: Kernels) -> tuple[Step, ...]:
    """What turns one state of a link into another: in the namespaces, on the devices and in the queues."""
    return tuple(_changed(layout, before, after, kernels))


def neighbour(layout: Layout, place: str, *, is_cut: bool) -> tuple[Step, ...]:
    """Who takes the frames of an end: nobody while its direction is cut."""
    end = layout.ends[place]
    mac = places.NOBODY_MAC if is_cut else end.next_mac
    return tuple(_ip(place, commands.neighbour(end.device, end.gateway or end.peer, mac)))


def _middle(layout: Layout) -> Iterator[Step]:
    """What connects the two: one pair, or a box with a pair on each side. The box of User-Mode Linux begins here."""
    at = layout.at
    client, server = (at.client_device, places.CLIENT_MAC), (at.server_device, places.SERVER_MAC)
    if not layout.has_box:
        yield from _ip("client", commands.pair(*client, *server, "server"))
    elif layout.backend == "kernel":
        to_client, to_server = places.BOX_DEVICES["to-client"], places.BOX_DEVICES["to-server"]
        yield from _ip("box", commands.pair(to_client, places.CLIENT_GATEWAY_MAC, *client, "client"))
        yield from _ip("box", commands.pair(to_server, places.SERVER_GATEWAY_MAC, *server, "server"))
        yield _step("box", "sysctl", "-q", "-w", "net.ipv4.ip_forward=1", commands.ROUTE_LOCALNET)
        yield from _ip("box", commands.box_sides(at, has_ipv6=layout.has_ipv6))
    else:
        for side, place in zip(guest.SIDES, ("server", "client"), strict=True):
            device = layout.ends[place].device
            yield from _ip("around the box", guest.wiring(side, device, place, has_ipv6=layout.has_ipv6))
        yield _step("box", *guest.guest_argv(layout.largest_mtu_bytes), *layout.kernel_words)
        yield _step("box", *guest.setup_argv())
        yield from _ip("box", commands.box_sides(at, has_ipv6=False))


def _ends(layout: Layout) -> Iterator[Step]:
    for place, end in layout.ends.items():
        yield from _ip(place, commands.up(end.device, end.address, has_ipv6=layout.has_ipv6))
        yield from neighbour(layout, place, is_cut=False)


def _changed(layout: Layout, before: Profile, after: Profile, kernels: Kernels) -> Iterator[Step]:
    profile = commands.restored(
        after, before, tcp_rmem_bytes=kernels.tcp_rmem_bytes, tcp_wmem_bytes=kernels.tcp_wmem_bytes
    )
    is_loopback = layout.medium == "loopback"
    for place, end in list(layout.ends.items())[: 1 if is_loopback else 2]:
        if is_loopback:
            yield from _ip(place, commands.loopback(profile))
        else:
            yield from _ip(place, commands.device(end.device, profile))
            yield from _ip(place, commands.route(end.device, end.address, end.peer, end.gateway, profile))
        yield _step(place, *commands.sysctl(profile))
        offloads = {**kernels.offloads.get(place, _NOTHING), **profile.offloads}
        if offloads:
            yield _step(place, *commands.offloads(end.device, offloads), name=OFFLOADS)
    if layout.has_box and not BACKENDS[layout.backend].has_fixed_mtu:
        yield from _ip("box", commands.box_mtu(profile.mtu_bytes))
    states: tuple[tuple[places.Direction, Impairment, Impairment], ...] = (
        ("to-server", before.to_server, profile.to_server),
        ("to-client", before.to_client, profile.to_client),
    )
    for direction, old, new in states:
        place, device = layout.shaper(direction)
        for line in netem.change(device, old, new, profile.mtu_bytes, rate_by_netem=layout.rate_by_netem):
            yield _step(place, "tc", *line.split())


def _ip(place: str, lines: commands.Lines) -> Iterator[Step]:
    return (_step(place, "ip", *line.split()) for line in lines)


def _step(place: str, *argv: str, name: str = "") -> Step:
    return Step(name=name or argv[0], place=place, do=Action(argv=argv))
