"""A link of our own between a client's and a server's namespace, in the state that a profile describes."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ingest_bench import system
from ingest_bench.errors import MissingCapability, RunFailed, SpecError
from ingest_bench.model.network import Profile
from ingest_bench.network.act import box as boxes
from ingest_bench.network.act import executor, uml
from ingest_bench.network.act.sandbox import Namespace, Sandbox, has_ipv6, sandbox
from ingest_bench.network.plan import commands, link_plan
from ingest_bench.network.plan.backends import BACKENDS
from ingest_bench.network.plan.commands import UNTOUCHED
from ingest_bench.network.plan.link_plan import OFFLOADS, EndPlan, Layout
from ingest_bench.network.plan.places import ENDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ingest_bench.network.act.executor import Place
    from ingest_bench.network.plan.places import Direction, Ends


@dataclass(frozen=True, slots=True, kw_only=True)
class End(EndPlan):
    """One end of a link that stands."""

    namespace: Namespace


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
    layout: Layout
    box: Place | None = None
    name: str = ""
    """Which one it is, where there are several: "clients-1", "peers-1-2"."""
    counted_before: Counted = field(default_factory=lambda: Counted({}, {}))
    """Where the counts of `readings` start."""
    idle_rtt_ms: float | None = None
    """The median round trip that `check` measured."""
    idle_rtts: int = 0
    """How many that is the median of."""
    layers: Counter[tuple[str, Direction]] = field(default_factory=Counter)
    """How many faults do each thing to it now."""
    changes: list[Callable[[Profile], Profile]] = field(default_factory=list)
    """What faults make of its state, in the order in which they began."""
    changing: threading.RLock = field(default_factory=threading.RLock)
    """Held while its state changes: faults end in several threads."""
    unchanged: Profile = field(init=False)
    """Its state without any change of a fault."""
    _kernels_offloads: dict[str, dict[str, bool]] = field(default_factory=dict)
    """By place: the features that profiles changed, as the kernel had them."""

    def __post_init__(self) -> None:
        self.unchanged = self.profile

    @property
    def backend(self) -> str:
        """The kind of box, "kernel" or "uml"; "plain" where no netem is needed."""
        return self.layout.backend

    @property
    def client_address(self) -> str:
        """Where the client is."""
        return self.layout.at.client_address

    @property
    def server_address(self) -> str:
        """Where the server is."""
        return self.layout.at.server_address

    @property
    def places(self) -> dict[str, Place]:
        """Where the steps of its plan are carried out."""
        found: dict[str, Place] = {"client": self.client, "server": self.server}
        return found if self.box is None else {**found, "box": self.box}

    @property
    def ends(self) -> tuple[End, End]:
        """The client's end and the server's."""
        ends = self.layout.ends
        client, server = asdict(ends["client"]), asdict(ends["server"])
        return End(**client, namespace=self.client), End(**server, namespace=self.server)

    def shaper(self, direction: Direction) -> tuple[Place, str]:
        """Where the qdiscs of a direction are, and on which device: the box's egress, or the sender's."""
        place, device = self.layout.shaper(direction)
        return self.places[place], device

    def change(self, profile: Profile) -> None:
        """The same link in another state; connections stay."""
        if profile.medium != self.profile.medium:
            raise SpecError(f'profile "{profile.name}": a link cannot turn into {profile.medium} while it stands')
        if profile.needs_netem and self.box is None:
            raise SpecError(f'profile "{profile.name}" needs netem, which this link was not made with')
        if self.box is not None:
            most_bytes, said = self.layout.largest_mtu_bytes, BACKENDS[self.backend].refusal(profile)
            if profile.mtu_bytes > most_bytes:
                said = f"this link was made for MTUs of at most {most_bytes}, not {profile.mtu_bytes}"
            if said:
                raise SpecError(f'profile "{profile.name}": {said}')
        profile = self.layout.carried(profile)
        before, self.profile = self.profile, profile
        self._settle(before)

    def cut(self, direction: Direction) -> None:
        """Silence in that direction: frames go to nobody, and no one is told. `mend` ends it."""
        self._address(direction, is_cut=True)

    def mend(self, direction: Direction) -> None:
        """The end of a `cut`."""
        self._address(direction, is_cut=False)

    def _address(self, direction: Direction, *, is_cut: bool) -> None:
        if self.profile.medium == "loopback":
            raise SpecError('a loopback link cannot be cut; use a profile with medium = "veth"')
        sender = "client" if direction == "to-server" else "server"
        executor.carry_out(link_plan.neighbour(self.layout, sender, is_cut=is_cut), self.places)

    def _settle(self, before: Profile) -> None:
        """Everything that the profile says, in the namespaces, on the devices and in the queues."""
        kernels = link_plan.Kernels(
            tcp_rmem_bytes=_buffers("rmem"), tcp_wmem_bytes=_buffers("wmem"), offloads=self._kernels_offloads
        )
        steps = link_plan.changed(self.layout, before, self.profile, kernels)
        try:
            answers = executor.carry_out(steps, self.places)
        except RunFailed as error:
            raise _without_congestion_control(error) from None
        for step, said in answers:
            if step.name == OFFLOADS:
                known = self._kernels_offloads.get(step.place, {})
                changed = commands.changed(said, {**known, **self.profile.offloads})
                self._kernels_offloads[step.place] = {**changed, **known}


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
    at: Ends = ENDS,
    name: str = "",
) -> Iterator[Link]:
    """A link between two namespaces in the first of these states, and made for all of them.

    With one namespace twice it is a loopback link.
    """
    profile = states[0]
    backend = boxes.choose(netem, states)
    layout = Layout(
        medium=profile.medium,
        backend=backend,
        at=at,
        largest_mtu_bytes=max(state.mtu_bytes for state in states),
        has_ipv6=has_ipv6(),
        kernel_words=uml.kernel_words() if backend == "uml" else (),
    )
    profile = layout.carried(profile)
    with ExitStack() as stack:
        places: dict[str, Place] = {"client": client, "server": server}
        around = None
        if layout.middle is not None:
            around = places[layout.middle] = opened.add()

        def boot(argv: Sequence[str]) -> Place:
            assert around is not None  # noqa: S101 - a guest has one
            return stack.enter_context(uml.booted(around, argv))

        executor.carry_out(link_plan.made(layout), places, {"box": boot})
        box = places.get("box")
        made = Link(profile=profile, client=client, server=server, layout=layout, box=box, name=name)
        try:
            made._settle(before=UNTOUCHED)  # noqa: SLF001 - the rest of its making
        except RunFailed as error:
            raise MissingCapability(
                f'profile "{profile.name}": this machine did not take what it asks for: {error}\n'
                "Leave the key out, or see `ingest-bench doctor`."
            ) from None
        yield made


def _buffers(kind: str) -> tuple[int, ...]:
    """The sizes of TCP's buffers that a new namespace has: they are the first namespace's."""
    return tuple(map(int, Path(f"/proc/sys/net/ipv4/tcp_{kind}").read_text(encoding="ascii").split()))


def _without_congestion_control(error: RunFailed) -> RunFailed | MissingCapability:
    """The error, in better words where a congestion control is unknown."""
    if "congestion" not in str(error):
        return error
    known = system.run(("sysctl", "-n", "net.ipv4.tcp_available_congestion_control")).strip()
    return MissingCapability(
        f"congestion_control: this kernel does not know what the profile asks for; it has: {known}. "
        "Choose one of them, or load the module as root (modprobe tcp_NAME)."
    )
