"""The box in the middle of a path that needs netem: which one this machine can give, and the kernel's own.

In the middle, because what netem drops on the sender's own egress is reported to the sender, and TCP then behaves as
if nothing had been lost. An ifb on the receiver's ingress was rejected: it is one more module that may be missing.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from ingest_bench.errors import MissingCapability, SpecError
from ingest_bench.network import commands, places
from ingest_bench.network.sandbox import sandbox

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from ingest_bench.network.places import Box
    from ingest_bench.network.sandbox import Namespace, Sandbox


@contextmanager
def kernel_box(opened: Sandbox, client: Namespace, server: Namespace) -> Iterator[Namespace]:
    """A third namespace that routes between the two, with this kernel's netem on its egresses."""
    middle = opened.add()
    to_server, to_client = places.BOX_DEVICES["to-server"], places.BOX_DEVICES["to-client"]
    pairs = (
        *commands.pair(
            to_client, places.CLIENT_GATEWAY_MAC, places.CLIENT_DEVICE, places.CLIENT_MAC, peer_pid=client.pid
        ),
        *commands.pair(
            to_server, places.SERVER_GATEWAY_MAC, places.SERVER_DEVICE, places.SERVER_MAC, peer_pid=server.pid
        ),
    )
    middle.run(("ip", "-batch", "-"), stdin=commands.text(pairs))
    middle.run(("sysctl", "-q", "-w", "net.ipv4.ip_forward=1"))
    middle.run(("ip", "-batch", "-"), stdin=commands.text(commands.box_sides()))
    yield middle


@cache
def kernel_complaint() -> str:
    """Why this kernel has no netem for us; empty when it has. Found by trying."""
    with sandbox() as opened:
        said = opened.add().run(("tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"), check=False)
    return f'netem: this kernel has no sch_netem (tc: "{said.strip().removeprefix("Error: ")}").' if said else ""


@dataclass(frozen=True, slots=True)
class BoxKind:
    """One way to get a box: why it cannot be had here (empty: it can), and how to open it."""

    complaint: Callable[[], str]
    open: Callable[[Sandbox, Namespace, Namespace], AbstractContextManager[Box]]


# In the order of preference.
BOXES: Mapping[str, BoxKind] = {
    "kernel": BoxKind(kernel_complaint, kernel_box),
}


def choose(wanted: str, profile_name: str) -> str:
    """The kind of box that this machine has; MissingCapability when it has none, or not the one that was asked for."""
    complaints = []
    for name, kind in BOXES.items():
        if wanted in ("auto", name):
            said = kind.complaint()
            if not said:
                return name
            complaints.append(said)
    if not complaints:
        raise SpecError(f'--netem: unknown backend "{wanted}"; known: auto, {", ".join(BOXES)}')
    raise MissingCapability(
        "\n".join(complaints)
        + f'\nProfile "{profile_name}" needs it. `ingest-bench doctor` lists what this machine can emulate.'
    )
