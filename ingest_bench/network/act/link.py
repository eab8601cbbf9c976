"""Create links between network namespaces, in the state that a profile describes, and change that state.

A run has one link from the clients to each node of the server, and one between each two nodes. Each has its own
devices, qdiscs and netem router, and its own promises. One switch for all was rejected: what a profile says of a link,
its delay above all, would then apply to two hops.

The netem router is a third namespace that routes between the two ends, with this kernel's netem on its egresses, or a
User-Mode Linux that does the same (`act.uml`). It is in the middle because packets that netem drops on the sender's own
egress are reported to the sender, and TCP then behaves as if nothing was lost. An ifb on the receiver's ingress was
rejected: it is one more kernel module that may be missing.
"""

from __future__ import annotations

import dataclasses
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import cache
from itertools import groupby, pairwise
from pathlib import Path
from typing import Protocol, cast

from ingest_bench import system
from ingest_bench.errors import MissingCapability, RunFailed, SpecError
from ingest_bench.ledger.steps import Step
from ingest_bench.model.network import Impairment, LinkName, Profile, Queue
from ingest_bench.network.act import uml
from ingest_bench.network.act.sandbox import Namespace, Sandbox, has_ipv6, require_process_namespaces, sandbox
from ingest_bench.network.plan import link_plan, netem
from ingest_bench.network.plan.link_plan import Direction, EndNames, EndPlan, Layout

# These take many commands at once: one process per command would make a link slow to create.
_BATCH_PROGRAMS = {"ip", "tc"}
# Local ports of connections that nodes open among themselves. Those of the clients are below (32768 to 60999,
# net.ipv4.ip_local_port_range), so that a port tells a probe whose connection it sees.
FIRST_NODE_PORT = 61000
# Makes 127.0.0.0/8 addresses of other namespaces reachable: by default all of them are lo's own.
_NARROW_LOOPBACK = ("link set dev lo up", "addr del 127.0.0.1/8 dev lo", "addr add 127.0.0.1/32 dev lo")


class Place(Protocol):
    """A place where commands run: a namespace, or User-Mode Linux."""

    def run(self, argv: Sequence[str], *, stdin: str | None = None, check: bool = True) -> str:
        """Run a command and return its standard output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class End(EndPlan):
    """One end of an existing link."""

    namespace: Namespace


@dataclass(frozen=True, slots=True)
class LinkCounters:
    """Counters of a link at some moment."""

    queues: dict[str, int]
    """By direction: "packets to-server", "drops to-client" …"""
    tcp: dict[int, dict[str, int]]
    """TCP counters of each namespace, by the pid of its holder."""


@dataclass(slots=True, kw_only=True)
class Link:
    """Two namespaces and the connection between them. It exists as long as its `open_link` block."""

    profile: Profile
    client: Namespace
    server: Namespace
    layout: Layout
    router: Place | None = None
    name: str = ""
    """Its name if there are several links: "clients-1", "peers-1-2"."""
    counters_at_start: LinkCounters = field(default_factory=lambda: LinkCounters({}, {}))
    """The origin of `readings.link_columns`."""
    idle_rtt_ms: float | None = None
    """The median round trip that `check_link` measured."""
    idle_rtt_count: int = 0
    """The number of round trips of that median."""
    active_faults: Counter[tuple[str, Direction]] = field(default_factory=Counter)
    """The number of active faults of each kind and direction."""
    overrides: list[Callable[[Profile], Profile]] = field(default_factory=list)
    """Changes of active faults to the profile, in the order in which they began."""
    lock: threading.RLock = field(default_factory=threading.RLock)
    """Held while the state changes: faults end in several threads."""
    base_profile: Profile = field(init=False)
    """The profile without the overrides of faults."""
    _kernel_offloads: dict[str, dict[str, bool]] = field(default_factory=dict)
    """By place: the features that profiles changed, with the kernel's values."""

    def __post_init__(self) -> None:
        self.base_profile = self.profile

    @property
    def backend(self) -> str:
        """The kind of router, "kernel" or "uml"; "plain" if no netem is needed."""
        return self.layout.backend

    @property
    def client_address(self) -> str:
        """Address of the client's end."""
        return self.layout.names.client_address

    @property
    def server_address(self) -> str:
        """Address of the server's end."""
        return self.layout.names.server_address

    @property
    def places(self) -> dict[str, Place]:
        """The places of its plan's steps."""
        ends: dict[str, Place] = {"client": self.client, "server": self.server}
        return ends if self.router is None else {**ends, "router": self.router}

    @property
    def ends(self) -> tuple[End, End]:
        """The client's end and the server's."""
        ends = self.layout.ends
        client, server = asdict(ends["client"]), asdict(ends["server"])
        return End(**client, namespace=self.client), End(**server, namespace=self.server)

    def shaping_device(self, direction: Direction) -> tuple[Place, str]:
        """Return the place and device of a direction's qdiscs: the router's egress, or the sender's."""
        place, device = self.layout.shaping_device(direction)
        return self.places[place], device

    def set_profile(self, profile: Profile) -> None:
        """Change the link to another profile; connections stay open."""
        if profile.medium != self.profile.medium:
            raise SpecError(f'profile "{profile.name}": an existing link cannot become {profile.medium}')
        if profile.needs_netem and self.router is None:
            raise SpecError(f'profile "{profile.name}" requires netem, and this link was created without it')
        conflict = link_plan.find_uml_conflict(profile) if self.layout.has_uml_router else ""
        max_mtu_bytes = self.layout.max_mtu_bytes
        if self.router is not None and profile.mtu_bytes > max_mtu_bytes:
            conflict = f"this link was created for MTUs of at most {max_mtu_bytes}, not {profile.mtu_bytes}"
        if conflict:
            raise SpecError(f'profile "{profile.name}": {conflict}')
        before, self.profile = self.profile, self.layout.adapt(profile)
        self._apply_profile(before)

    def set_cut(self, direction: Direction, *, is_cut: bool) -> None:
        """Silently drop all frames of a direction: their MAC address has no receiver. Or let them pass again."""
        if is_cut and self.profile.medium == "loopback":
            raise SpecError('a loopback link cannot be cut. Use a profile with medium = "veth".')
        sender = "client" if direction == "to-server" else "server"
        run_steps(link_plan.neighbour_steps(self.layout, sender, is_cut=is_cut), self.places)

    def _apply_profile(self, before: Profile) -> None:
        """Apply the profile in the namespaces, on the devices and in the qdiscs."""
        defaults = link_plan.KernelDefaults(
            tcp_rmem_bytes=_default_buffers("rmem"),
            tcp_wmem_bytes=_default_buffers("wmem"),
            offloads=self._kernel_offloads,
        )
        steps = link_plan.change_steps(self.layout, before, self.profile, defaults)
        try:
            outputs = run_steps(steps, self.places)
        except RunFailed as error:
            if "congestion" not in str(error):
                raise
            available = system.run(("sysctl", "-n", "net.ipv4.tcp_available_congestion_control")).strip()
            raise MissingCapability(
                f"congestion_control: this kernel does not have the profile's. Available: {available}. "
                "Choose one of them, or load the module as root (modprobe tcp_NAME)."
            ) from None
        for step, output in outputs:
            if step.name == link_plan.OFFLOADS_STEP:
                saved = self._kernel_offloads.get(step.namespace, {})
                changed = link_plan.parse_offload_changes(output, {**saved, **self.profile.offloads})
                self._kernel_offloads[step.namespace] = {**changed, **saved}


@contextmanager
def open_link(profile: Profile, *, netem: str = "auto", later_profiles: Sequence[Profile] = ()) -> Iterator[Link]:
    """Yield a link with that profile. If it has netem, it can also be changed to each of `later_profiles`."""
    with sandbox() as opened:
        client = opened.add_namespace()
        server = client if profile.medium == "loopback" else opened.add_namespace()
        with join_namespaces(opened, client, server, (profile, *later_profiles), netem=netem) as link:
            yield link


@contextmanager
def join_namespaces(
    opened: Sandbox,
    client: Namespace,
    server: Namespace,
    profiles: Sequence[Profile],
    *,
    netem: str,
    names: EndNames = link_plan.DEFAULT_NAMES,
    name: str = "",
) -> Iterator[Link]:
    """Yield a link between two namespaces with the first of these profiles, that can be changed to the others.

    With the same namespace twice it is a loopback link.
    """
    profile = profiles[0]
    backend = choose_backend(netem, profiles)
    layout = Layout(
        medium=profile.medium,
        backend=backend,
        names=names,
        max_mtu_bytes=max(state.mtu_bytes for state in profiles),
        has_ipv6=has_ipv6(),
        uml_kernel_options=uml.uml_kernel_options() if backend == "uml" else (),
    )
    with ExitStack() as stack:
        places: dict[str, Place] = {"client": client, "server": server}
        if layout.router_namespace is not None:
            places[layout.router_namespace] = opened.add_namespace()

        def boot_router(argv: Sequence[str]) -> Place:
            return stack.enter_context(uml.boot_uml(cast(Namespace, places["router host"]), argv))

        run_steps(link_plan.creation_steps(layout), places, boot_router)
        link = Link(
            profile=layout.adapt(profile),
            client=client,
            server=server,
            layout=layout,
            router=places.get("router"),
            name=name,
        )
        try:
            link._apply_profile(before=link_plan.INITIAL_PROFILE)  # noqa: SLF001 - the last part of its creation
        except RunFailed as error:
            raise MissingCapability(
                f'profile "{profile.name}": this machine did not accept its values: {error}\n'
                "Leave the key out, or see `ingest-bench doctor`."
            ) from None
        yield link


def run_steps(
    steps: Iterable[Step],
    places: MutableMapping[str, Place],
    boot_router: Callable[[Sequence[str]], Place] | None = None,
) -> list[tuple[Step, str]]:
    """Run the steps in order; return the output of each command that is not batched. RunFailed at the first failure.

    A place that does not exist yet is the router, which `boot_router` starts by the place's first command. Steps of a
    real interface are run by the ledger, which writes their undo to disk first (`ledger.watchdog.session`).
    """
    outputs = []
    for (place, program), group in groupby(steps, lambda step: (step.namespace, step.action.argv[0])):
        batch = list(group)
        if place not in places:
            assert boot_router is not None  # noqa: S101 - all other places exist
            places[place] = boot_router(batch.pop(0).action.argv)
        if program in _BATCH_PROGRAMS and batch:
            lines = tuple(" ".join(_resolve_namespaces(step.action.argv[1:], places)) for step in batch)
            places[place].run((program, "-batch", "-"), stdin=link_plan.batch_text(lines))
        else:
            outputs += [(step, places[place].run(step.action.argv)) for step in batch]
    return outputs


def _resolve_namespaces(argv: Sequence[str], places: Mapping[str, Place]) -> Iterator[str]:
    """Yield the words of the argv, with the holder's pid instead of a namespace's name after the word "netns"."""
    for before, word in pairwise(("", *argv)):
        # A plan puts devices into namespaces only.
        yield str(cast(Namespace, places[word]).pid) if before == "netns" else word


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """The links of a run. They exist as long as their block."""

    by_name: Mapping[LinkName, Link]

    @property
    def clients(self) -> tuple[Link, ...]:
        """The clients' link to each node, in the order of the nodes."""
        return tuple(link for name, link in sorted(self.by_name.items()) if name.kind == "clients")

    @property
    def client(self) -> Namespace:
        """The clients' namespace."""
        return self.clients[0].client

    @property
    def backend(self) -> str:
        """The kinds of router of these links; "plain" if there is none."""
        return _join_backends(link.backend for link in self.by_name.values())


@contextmanager
def open_links(
    profiles_by_link: Mapping[LinkName, Sequence[Profile]], *, netem: str = "auto", in_loopback_range: bool = True
) -> Iterator[Links]:
    """Yield a link for each name, with the first of its profiles, that can be changed to its other profiles.

    `in_loopback_range`: several nodes have addresses of 127.0.0.0/8 (`link_plan.node_address`).
    """
    numbers = sorted({number for name in profiles_by_link for number in name.nodes})
    with ExitStack() as stack:
        opened = stack.enter_context(sandbox())
        client = opened.add_namespace()
        is_loopback = any(
            profile.medium == "loopback" for profiles in profiles_by_link.values() for profile in profiles
        )
        nodes = {number: client if is_loopback else opened.add_namespace() for number in numbers}
        is_cluster = len(nodes) > 1
        if is_cluster:
            for namespace in (client, *nodes.values()):
                namespace.run(("sysctl", "-q", "-w", link_plan.ROUTE_LOCALNET))
                namespace.run(("ip", "-batch", "-"), stdin=link_plan.batch_text(_NARROW_LOOPBACK))
            for namespace in nodes.values():
                namespace.run(("sysctl", "-q", "-w", f"net.ipv4.ip_local_port_range={FIRST_NODE_PORT} 65535"))
        links = {}
        for name, profiles in profiles_by_link.items():
            ends = [nodes[number] for number in name.nodes]
            first, last = ends if name.kind == "peers" else (client, *ends)
            names = link_plan.DEFAULT_NAMES
            if is_cluster:
                names = link_plan.cluster_link_names(name, in_loopback_range=in_loopback_range)
            joined = join_namespaces(opened, first, last, profiles, netem=netem, names=names, name=str(name))
            links[name] = stack.enter_context(joined)
        yield Links(by_name=links)


def require_links(profiles_by_link: Mapping[LinkName, Sequence[Profile]], netem: str = "auto") -> None:
    """Raise MissingCapability if this machine cannot create a link with these profiles: tries it without netem."""
    tried = set()
    for profiles in profiles_by_link.values():
        choose_backend(netem, profiles)
        for profile in profiles:
            plain = dataclasses.replace(profile, to_server=Impairment(), to_client=Impairment())
            if repr(plain) in tried:
                continue
            tried.add(repr(plain))
            try:
                with open_link(plain):
                    continue
            except RunFailed as error:
                raise MissingCapability(
                    f'network profile "{profile.name}": this machine cannot create such a link: {error}\n'
                    "`ingest-bench doctor` lists what this machine can emulate."
                ) from None
    require_process_namespaces()


@cache
def find_kernel_netem_problem() -> str:
    """Return why this kernel's netem cannot be used; empty if it can. Tries it."""
    if system.which("tc") is None:
        return "netem: tc not found. Install iproute2."
    error = _try_qdiscs(("qdisc add dev lo root netem delay 1ms",))
    return f'netem: this kernel has no sch_netem (tc: "{error}").' if error else ""


def find_kernel_queue_problem(queue: Queue) -> str:
    """Return why this kernel's queue cannot be used; empty if it can. Tries it."""
    error = _try_qdiscs(netem.qdisc_lines("lo", Impairment(rate_bps=10**8, queue=queue, ecn=True), 1500))
    return f'{queue}: not in this kernel (tc: "{error}").' if error else ""


def _try_qdiscs(lines: netem.Lines) -> str:
    """Return the first error that tc reports for these lines in a new namespace; empty if they work."""
    with sandbox() as opened:
        batch = link_plan.batch_text(lines)
        output = opened.add_namespace().run(("tc", "-batch", "-"), stdin=batch, check=False).strip()
    return output.partition("\n")[0].removeprefix("Error: ")


# By kind of router, in the order of preference: returns why it cannot be used on this machine; empty if it can.
NETEM_CHECKS: Mapping[str, Callable[[], str]] = {"kernel": find_kernel_netem_problem, "uml": uml.find_uml_problem}
# The same for a queue in a router of that kind.
QUEUE_CHECKS: Mapping[str, Callable[[Queue], str]] = {
    "kernel": find_kernel_queue_problem,
    "uml": uml.find_uml_queue_problem,
}


def choose_backend(netem: str, profiles: Sequence[Profile]) -> str:
    """Return the kind of router that this machine has and that can carry all profiles; "plain" if they need none.

    `netem` is "auto" or a kind. MissingCapability if there is none, or if that kind cannot be used.
    """
    if not any(profile.needs_netem for profile in profiles):
        return "plain"
    impairments = (impairment for profile in profiles for impairment in (profile.to_server, profile.to_client))
    queues = sorted({impairment.queue for impairment in impairments} - {"fifo"})
    problems = []
    for backend, find_problem in NETEM_CHECKS.items():
        if netem in ("auto", backend):
            conflicts = map(link_plan.find_uml_conflict, profiles if backend == "uml" else ())
            problem = find_problem() or next(filter(None, (*conflicts, *map(QUEUE_CHECKS[backend], queues))), "")
            if not problem:
                return backend
            problems.append(problem)
    if not problems:
        raise SpecError(f'--netem: unknown backend "{netem}"; known: auto, {", ".join(NETEM_CHECKS)}')
    name = next(profile.name for profile in profiles if profile.needs_netem)
    raise MissingCapability(
        "\n".join(problems)
        + f'\nProfile "{name}" requires netem. `ingest-bench doctor` lists what this machine can emulate.'
    )


def choose_backends(profiles_by_link: Mapping[LinkName, Sequence[Profile]], netem: str = "auto") -> str:
    """Return what `Links.backend` of such links would be here; MissingCapability as `require_links`."""
    return _join_backends(choose_backend(netem, profiles) for profiles in profiles_by_link.values())


def _join_backends(backends: Iterable[str]) -> str:
    return ", ".join(sorted({*backends} - {"plain"})) or "plain"


def _default_buffers(kind: str) -> tuple[int, ...]:
    """Return the TCP buffer sizes of a new namespace, which are those of the first namespace."""
    return tuple(map(int, Path(f"/proc/sys/net/ipv4/tcp_{kind}").read_text(encoding="ascii").split()))
