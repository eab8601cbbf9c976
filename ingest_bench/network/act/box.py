"""The box in the middle of a path that needs netem: which one this machine can give.

It is a third namespace that routes between the two, with this kernel's netem on its egresses, or a guest of User-Mode
Linux that does.

In the middle, because what netem drops on the sender's own egress is reported to the sender, and TCP then behaves as
if nothing had been lost. An ifb on the receiver's ingress was rejected: it is one more module that may be missing.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from ingest_bench import system
from ingest_bench.errors import MissingCapability, SpecError
from ingest_bench.model.network import Impairment
from ingest_bench.network.act import uml
from ingest_bench.network.act.sandbox import sandbox
from ingest_bench.network.plan import commands, netem, queues
from ingest_bench.network.plan.backends import BACKENDS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ingest_bench.model.network import Profile, Queue


@cache
def kernel_complaint() -> str:
    """Why this kernel has no netem for us; empty when it has. Found by trying."""
    if system.which("tc") is None:
        return "netem: tc not found. Install iproute2."
    with sandbox() as opened:
        said = opened.add().run(("tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"), check=False)
    return f'netem: this kernel has no sch_netem (tc: "{said.strip().removeprefix("Error: ")}").' if said else ""


def kernel_queue_complaint(queue: Queue) -> str:
    """Why this kernel has no such queue for us; empty when it has. Found by trying."""
    tried = netem.lines("lo", Impairment(rate_bps=10**8, queue=queue, ecn=True), 1500)
    with sandbox() as opened:
        said = opened.add().run(("tc", "-batch", "-"), stdin=commands.text(tried), check=False).strip()
    return f'{queue}: not in this kernel (tc: "{said.splitlines()[0].removeprefix("Error: ")}").' if said else ""


# Why each kind cannot be had here (empty: it can), in the order of preference.
BOXES: Mapping[str, Callable[[], str]] = {"kernel": kernel_complaint, "uml": uml.complaint}

# Why there is no such queue in a box of that kind (empty: there is).
QUEUES: Mapping[str, Callable[[Queue], str]] = {"kernel": kernel_queue_complaint, "uml": uml.queue_complaint}


def choose(wanted: str, states: Sequence[Profile]) -> str:
    """The kind of box that this machine has and that can carry all those states of a link; "plain": they need none.

    MissingCapability when there is none, or when the one that was asked for will not do.
    """
    if not any(state.needs_netem for state in states):
        return "plain"
    complaints = []
    for name, complaint in BOXES.items():
        if wanted in ("auto", name):
            said = complaint() or next(filter(None, map(BACKENDS[name].refusal, states)), "")
            said = said or next(filter(None, map(QUEUES[name], _managed(states))), "")
            if not said:
                return name
            complaints.append(said)
    if not complaints:
        raise SpecError(f'--netem: unknown backend "{wanted}"; known: auto, {", ".join(BOXES)}')
    needy = next(state.name for state in states if state.needs_netem)
    raise MissingCapability(
        "\n".join(complaints)
        + f'\nProfile "{needy}" needs it. `ingest-bench doctor` lists what this machine can emulate.'
    )


def _managed(states: Sequence[Profile]) -> list[Queue]:
    """The queues that those states have, but for the FIFO."""
    ways = (way for state in states for way in (state.to_server, state.to_client))
    return sorted({way.queue for way in ways if queues.is_managed(way)})
