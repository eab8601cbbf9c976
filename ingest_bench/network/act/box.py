"""The box in the middle of a path that needs netem: which one this machine can give, and the kernel's own.

In the middle, because what netem drops on the sender's own egress is reported to the sender, and TCP then behaves as
if nothing had been lost. An ifb on the receiver's ingress was rejected: it is one more module that may be missing.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Protocol

from ingest_bench import system
from ingest_bench.errors import MissingCapability, SpecError
from ingest_bench.network.act import uml
from ingest_bench.network.act.sandbox import has_ipv6, sandbox
from ingest_bench.network.plan import commands, places
from ingest_bench.network.plan.backends import BACKENDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from ingest_bench.model.network import Profile
    from ingest_bench.network.act.sandbox import Namespace, Sandbox
    from ingest_bench.network.plan.places import Box, Ends


@contextmanager
def kernel_box(
    opened: Sandbox, client: Namespace, server: Namespace, ends: Ends, *, mtu_bytes: int
) -> Iterator[Namespace]:
    """A third namespace that routes between the two, with this kernel's netem on its egresses. Any MTU will do."""
    del mtu_bytes
    middle = opened.add()
    to_server, to_client = places.BOX_DEVICES["to-server"], places.BOX_DEVICES["to-client"]
    pairs = (
        *commands.pair(
            to_client, places.CLIENT_GATEWAY_MAC, ends.client_device, places.CLIENT_MAC, peer_pid=client.pid
        ),
        *commands.pair(
            to_server, places.SERVER_GATEWAY_MAC, ends.server_device, places.SERVER_MAC, peer_pid=server.pid
        ),
    )
    middle.run(("ip", "-batch", "-"), stdin=commands.text(pairs))
    middle.run(("sysctl", "-q", "-w", "net.ipv4.ip_forward=1", commands.ROUTE_LOCALNET))
    middle.run(("ip", "-batch", "-"), stdin=commands.text(commands.box_sides(ends, has_ipv6=has_ipv6())))
    yield middle


@cache
def kernel_complaint() -> str:
    """Why this kernel has no netem for us; empty when it has. Found by trying."""
    if system.which("tc") is None:
        return "netem: tc not found. Install iproute2."
    with sandbox() as opened:
        said = opened.add().run(("tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"), check=False)
    return f'netem: this kernel has no sch_netem (tc: "{said.strip().removeprefix("Error: ")}").' if said else ""


class Opener(Protocol):
    """How a box is opened between two namespaces, for profiles up to that MTU."""

    def __call__(
        self, opened: Sandbox, client: Namespace, server: Namespace, ends: Ends, *, mtu_bytes: int
    ) -> AbstractContextManager[Box]:
        """The open box."""


@dataclass(frozen=True, slots=True)
class BoxKind:
    """One way to get a box: why it cannot be had here (empty: it can), and how to open it."""

    complaint: Callable[[], str]
    open: Opener


# In the order of preference.
BOXES: Mapping[str, BoxKind] = {
    "kernel": BoxKind(kernel_complaint, kernel_box),
    "uml": BoxKind(uml.complaint, uml.uml_box),
}


def choose(wanted: str, states: Sequence[Profile]) -> str:
    """The kind of box that this machine has and that can carry all those states of a link.

    MissingCapability when there is none, or when the one that was asked for will not do.
    """
    complaints = []
    for name, kind in BOXES.items():
        if wanted in ("auto", name):
            said = kind.complaint() or next(filter(None, map(BACKENDS[name].refusal, states)), "")
            if not said:
                return name
            complaints.append(said)
    if not complaints:
        raise SpecError(f'--netem: unknown backend "{wanted}"; known: auto, {", ".join(BOXES)}')
    needy = next((state.name for state in states if state.needs_netem), states[0].name)
    raise MissingCapability(
        "\n".join(complaints)
        + f'\nProfile "{needy}" needs it. `ingest-bench doctor` lists what this machine can emulate.'
    )
