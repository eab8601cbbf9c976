"""All links of a run: one from the clients to each node of the server, and one between each two nodes.

Each is a link like the only one of a run with one node: of its own devices, queues and box, held to its own promises.
One switch for all was rejected: what a profile says of a link, its delay above all, would then be that of two hops.
"""

from __future__ import annotations

import dataclasses
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ingest_bench.errors import MissingCapability, RunFailed
from ingest_bench.model.network import Impairment, LinkName, Profile
from ingest_bench.network.act import box, inside
from ingest_bench.network.act.link import Link, joined, link
from ingest_bench.network.act.sandbox import sandbox
from ingest_bench.network.plan import commands, places

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ingest_bench.network.act.sandbox import Namespace

# Of what nodes open among themselves. The clients' are below (32768 to 60999, net.ipv4.ip_local_port_range), so that a
# port alone tells a probe whose connection it sees.
_NODES_PORTS = "61000 65535"
# An address of 127.0.0.0/8 is that of another namespace, and not lo's own.
_LOOPBACK_ELSEWHERE = ("link set dev lo up", "addr del 127.0.0.1/8 dev lo", "addr add 127.0.0.1/32 dev lo")


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """The links of a run. They stand as long as their block."""

    by_name: Mapping[LinkName, Link]

    @property
    def clients(self) -> tuple[Link, ...]:
        """The clients' link to each node, in the order of the nodes."""
        return tuple(link for name, link in sorted(self.by_name.items()) if name.kind == "clients")

    @property
    def client(self) -> Namespace:
        """Where the clients are."""
        return self.clients[0].client

    @property
    def backend(self) -> str:
        """The kind of box of the links that have one; "plain" where none has."""
        return _named(each.backend for each in self.by_name.values())


@contextmanager
def links(
    states: Mapping[LinkName, Sequence[Profile]], *, netem: str = "auto", seen_as_local: bool = True
) -> Iterator[Links]:
    """A link for each name, in the first of its states and made for all of them.

    `seen_as_local`: the addresses of several nodes are of 127.0.0.0/8 (`places.node_address`).
    """
    numbers = sorted({number for name in states for number in name.nodes})
    with ExitStack() as stack:
        opened = stack.enter_context(sandbox())
        client = opened.add()
        is_loopback = any(state.medium == "loopback" for each in states.values() for state in each)
        nodes = {number: client if is_loopback else opened.add() for number in numbers}
        are_several = len(nodes) > 1
        if are_several:
            for place in (client, *nodes.values()):
                place.run(("sysctl", "-q", "-w", commands.ROUTE_LOCALNET))
                place.run(("ip", "-batch", "-"), stdin=commands.text(_LOOPBACK_ELSEWHERE))
            for node in nodes.values():
                node.run(("sysctl", "-q", "-w", f"net.ipv4.ip_local_port_range={_NODES_PORTS}"))
        found = {}
        for name, wanted in states.items():
            *before, last = (nodes[number] for number in name.nodes)
            at = places.ENDS
            if are_several:
                ends = places.between if before else places.to_node
                at = ends(*name.nodes, seen_as_local=seen_as_local)
            made = joined(opened, before[0] if before else client, last, wanted, netem=netem, at=at, name=str(name))
            found[name] = stack.enter_context(made)
        yield Links(by_name=found)


def backend(states: Mapping[LinkName, Sequence[Profile]], netem: str = "auto") -> str:
    """What `Links.backend` of such links would be here; MissingCapability as of `require`."""
    return _named(box.choose(netem, wanted) for wanted in states.values())


def _named(backends: Iterable[str]) -> str:
    return ", ".join(sorted({*backends} - {"plain"})) or "plain"


def require(states: Mapping[LinkName, Sequence[Profile]], netem: str = "auto") -> None:
    """MissingCapability when this machine cannot make a link for these states: found by making it, without netem."""
    tried = set()
    for wanted in states.values():
        box.choose(netem, wanted)
        for state in wanted:
            plain = dataclasses.replace(state, to_server=Impairment(), to_client=Impairment())
            if repr(plain) in tried:
                continue
            tried.add(repr(plain))
            try:
                with link(plain):
                    continue
            except RunFailed as error:
                raise MissingCapability(
                    f'network profile "{state.name}": this machine cannot make such a link: {error}\n'
                    "`ingest-bench doctor` says what it can."
                ) from None
    inside.require()
