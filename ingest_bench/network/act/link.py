"""A link of our own between a client's and a server's namespace, in the state that a profile describes."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ingest_bench import system
from ingest_bench.errors import MissingCapability, RunFailed, SpecError
from ingest_bench.model.network import Impairment, Profile
from ingest_bench.network.act import box as boxes
from ingest_bench.network.act import offload
from ingest_bench.network.act.sandbox import Namespace, Sandbox, has_ipv6, sandbox
from ingest_bench.network.plan import commands, netem, places
from ingest_bench.network.plan.backends import BACKENDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ingest_bench.network.plan.places import Box, Direction


@dataclass(frozen=True, slots=True)
class End:
    """One end of a link, and whom it sends to."""

    namespace: Namespace
    device: str
    address: str
    peer: str
    gateway: str | None
    next_mac: str
    """The device that takes its frames: the peer's own or the gateway's."""


@dataclass(frozen=True, slots=True)
class Counted:
    """What was counted until some moment."""

    queues: dict[str, int]
    """By direction: "packets to-server", "drops to-client" …"""
    tcp: dict[int, dict[str, int]]
    """Of each namespace, by the process that holds it."""


@dataclass(slots=True, kw_only=True)
class Link:
    """Two namespaces and what is between them. It stands as long as its `link` block."""

    profile: Profile
    client: Namespace
    server: Namespace
    backend: str
    """"plain": no netem is needed; else the kind of box, "kernel" or "uml"."""
    box: Box | None = None
    largest_mtu_bytes: int = 0
    """What a box was made for; it may not be changed to more."""
    at: places.Ends = places.ENDS
    name: str = ""
    """Which one it is, where there are several: "clients-1", "peers-1-2"."""
    counted_before: Counted = field(default_factory=lambda: Counted({}, {}))
    """Where the counts of `readings` start."""
    idle_rtt_ms: float | None = None
    """The median round trip that `check` measured."""
    layers: Counter[tuple[str, Direction]] = field(default_factory=Counter)
    """How many faults do each thing to it now."""
    changes: list[Callable[[Profile], Profile]] = field(default_factory=list)
    """What faults make of its state, in the order in which they began."""
    changing: threading.RLock = field(default_factory=threading.RLock)
    """Held while its state changes: faults end in several threads."""
    unchanged: Profile = field(init=False)
    """Its state without any change of a fault."""
    _kernels_offloads: dict[str, dict[str, bool]] = field(default_factory=dict)
    """Of each end, the features that profiles changed, as the kernel had them."""

    def __post_init__(self) -> None:
        self.unchanged = self.profile

    @property
    def client_address(self) -> str:
        """Where the client is."""
        return self.at.client_address

    @property
    def server_address(self) -> str:
        """Where the server is."""
        return self.at.server_address

    @property
    def ends(self) -> tuple[End, End]:
        """The client's end and the server's."""
        if self.profile.medium == "loopback":
            return (
                End(self.client, "lo", self.client_address, self.server_address, None, ""),
                End(self.server, "lo", self.server_address, self.client_address, None, ""),
            )
        gateways: tuple[str, str] | tuple[None, None] = (None, None)
        macs = (places.SERVER_MAC, places.CLIENT_MAC)
        if self.box is not None:
            gateways = (places.CLIENT_GATEWAY, places.SERVER_GATEWAY)
            macs = (places.CLIENT_GATEWAY_MAC, places.SERVER_GATEWAY_MAC)
        client, server = self.client_address, self.server_address
        return (
            End(self.client, self.at.client_device, client, server, gateways[0], macs[0]),
            End(self.server, self.at.server_device, server, client, gateways[1], macs[1]),
        )

    @property
    def rate_by_netem(self) -> bool:
        """Whether each rate is a netem's."""
        return self.box is not None and BACKENDS[self.backend].rate_by_netem

    def shaper(self, direction: Direction) -> tuple[Namespace | Box, str]:
        """Where the qdiscs of a direction are, and on which device: the box's egress, or the sender's."""
        if self.box is not None:
            return self.box, places.BOX_DEVICES[direction]
        sender = self.ends[0 if direction == "to-server" else 1]
        return sender.namespace, sender.device

    def change(self, profile: Profile) -> None:
        """The same link in another state; connections stay."""
        if profile.medium != self.profile.medium:
            raise SpecError(f'profile "{profile.name}": a link cannot turn into {profile.medium} while it stands')
        if profile.needs_netem and self.box is None:
            raise SpecError(f'profile "{profile.name}" needs netem, which this link was not made with')
        if self.box is not None:
            said = BACKENDS[self.backend].refusal(profile)
            if profile.mtu_bytes > self.largest_mtu_bytes:
                said = f"this link was made for MTUs of at most {self.largest_mtu_bytes}, not {profile.mtu_bytes}"
            if said:
                raise SpecError(f'profile "{profile.name}": {said}')
            profile = BACKENDS[self.backend].carried(profile)
        before, self.profile = self.profile, profile
        self._settle(before)

    def cut(self, direction: Direction) -> None:
        """Silence in that direction: frames go to nobody, and no one is told. `mend` ends it."""
        self._address(direction, places.NOBODY_MAC)

    def mend(self, direction: Direction) -> None:
        """The end of a `cut`."""
        self._address(direction, self._sender(direction).next_mac)

    def _sender(self, direction: Direction) -> End:
        return self.ends[0 if direction == "to-server" else 1]

    def _address(self, direction: Direction, mac: str) -> None:
        if self.profile.medium == "loopback":
            raise SpecError('a loopback link cannot be cut; use a profile with medium = "veth"')
        sender = self._sender(direction)
        lines = commands.neighbour(sender.device, sender.gateway or sender.peer, mac)
        sender.namespace.run(("ip", "-batch", "-"), stdin=commands.text(lines))

    def _settle(self, before: Profile) -> None:
        """Everything that the profile says, in the namespaces, on the devices and in the queues."""
        profile = commands.restored(
            self.profile, before, tcp_rmem_bytes=_buffers("rmem"), tcp_wmem_bytes=_buffers("wmem")
        )
        for end in self.ends[:1] if profile.medium == "loopback" else self.ends:
            lines = commands.loopback(profile)
            if profile.medium == "veth":
                device = commands.device(end.device, profile)
                lines = (*device, *commands.route(end.device, end.address, end.peer, end.gateway, profile))
            _ip(end.namespace, lines)
            end.namespace.run(commands.sysctl(profile))
            kernels = self._kernels_offloads.setdefault(end.address, {})
            changed = offload.apply(end.namespace, end.device, {**kernels, **profile.offloads})
            self._kernels_offloads[end.address] = {**changed, **kernels}
        if self.box is not None and not BACKENDS[self.backend].has_fixed_mtu:
            _ip(self.box, commands.box_mtu(profile.mtu_bytes))
        pairs: tuple[tuple[Direction, Impairment, Impairment], ...] = (
            ("to-server", before.to_server, profile.to_server),
            ("to-client", before.to_client, profile.to_client),
        )
        for direction, old, new in pairs:
            place, device_name = self.shaper(direction)
            changes = netem.change(device_name, old, new, profile.mtu_bytes, rate_by_netem=self.rate_by_netem)
            if changes:
                place.run(("tc", "-batch", "-"), stdin=commands.text(changes))


@contextmanager
def link(profile: Profile, *, netem: str = "auto", later: Sequence[Profile] = ()) -> Iterator[Link]:
    """A link in that state. `later` are the states that it may be changed to: with netem, it is made for them too."""
    states = (profile, *later)
    with sandbox() as opened:
        client = opened.add()
        server = client if profile.medium == "loopback" else opened.add()
        with joined(opened, client, server, states, netem=netem) as made:
            yield made


@contextmanager
def joined(
    opened: Sandbox,
    client: Namespace,
    server: Namespace,
    states: Sequence[Profile],
    *,
    netem: str,
    at: places.Ends = places.ENDS,
    name: str = "",
) -> Iterator[Link]:
    """A link between two namespaces in the first of these states, and made for all of them.

    With one namespace twice it is a loopback link.
    """
    profile = states[0]
    backend = boxes.choose(netem, states) if any(state.needs_netem for state in states) else "plain"
    mtu_bytes = max(state.mtu_bytes for state in states)
    with ExitStack() as stack:
        if profile.medium == "loopback":
            made = Link(profile=profile, client=client, server=server, backend=backend, name=name)
            _ip(client, commands.loopback_up())
        else:
            box = None
            if backend != "plain":
                kind = boxes.BOXES[backend]
                profile = BACKENDS[backend].carried(profile)
                box = stack.enter_context(kind.open(opened, client, server, at, mtu_bytes=mtu_bytes))
            made = Link(profile=profile, client=client, server=server, backend=backend, box=box, at=at, name=name)
            made.largest_mtu_bytes = mtu_bytes
            if box is None:
                ends = (at.client_device, places.CLIENT_MAC, at.server_device, places.SERVER_MAC)
                _ip(client, commands.pair(*ends, peer_pid=server.pid))
            for end in made.ends:
                neighbour = commands.neighbour(end.device, end.gateway or end.peer, end.next_mac)
                _ip(end.namespace, (*commands.up(end.device, end.address, has_ipv6=has_ipv6()), *neighbour))
        try:
            made._settle(before=Profile(name=""))  # noqa: SLF001 - the rest of its making
        except RunFailed as error:
            raise MissingCapability(
                f'profile "{profile.name}": this machine did not take what it asks for: {error}\n'
                "Leave the key out, or see `ingest-bench doctor`."
            ) from None
        yield made


def _buffers(kind: str) -> tuple[int, ...]:
    """The sizes of TCP's buffers that a new namespace has: they are the first namespace's."""
    return tuple(map(int, Path(f"/proc/sys/net/ipv4/tcp_{kind}").read_text(encoding="ascii").split()))


def _ip(place: Namespace | Box, lines: commands.Lines) -> None:
    try:
        place.run(("ip", "-batch", "-"), stdin=commands.text(lines))
    except RunFailed as error:
        if "congestion" not in str(error):
            raise
        known = system.run(("sysctl", "-n", "net.ipv4.tcp_available_congestion_control")).strip()
        raise MissingCapability(
            f"congestion_control: this kernel does not know what the profile asks for; it has: {known}. "
            "Choose one of them, or load the module as root (modprobe tcp_NAME)."
        ) from None
