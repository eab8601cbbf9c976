"""What this machine can emulate, each found by trying."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ingest_bench import system
from ingest_bench.errors import MissingCapability
from ingest_bench.model.network import Profile
from ingest_bench.network.act import inside
from ingest_bench.network.act.box import BOXES, QUEUES
from ingest_bench.network.act.link import link
from ingest_bench.network.act.sandbox import sandbox
from ingest_bench.network.plan import commands, queues
from ingest_bench.trials import PACKAGES, Trial, installing, not_tried, tried

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ingest_bench.model.capability import Capability

_VETH = "ip link add name try0 type veth peer name try1"
_BUCKET = "tc qdisc add dev lo root tbf rate 1gbit burst 250000b limit 1m"


def capabilities() -> tuple[Capability, ...]:
    """Programs, namespaces and what works in them for the user that we are, and the backends of netem."""
    namespaces = tried(Trial(name="namespaces", attempt=_namespaces, needs=("nsenter", "setpriv", "unshare")))
    return (
        tried(Trial(name="programs", attempt=_programs)),
        namespaces,
        *(tried(trial) if namespaces.present else not_tried(trial, "namespaces") for trial in _in_namespaces()),
        tried(Trial(name="congestion control", attempt=_congestion_control)),
    )


def _in_namespaces() -> Iterator[Trial]:
    yield Trial(name="process namespaces", attempt=_process_namespaces)
    yield Trial(name="veth pairs", attempt=partial(_inside, _VETH), needs=("ip",), remedy="As root: modprobe veth")
    yield Trial(
        name="token bucket", attempt=partial(_inside, _BUCKET), needs=("tc",), remedy="As root: modprobe sch_tbf"
    )
    yield Trial(name="offloads", attempt=_offloads)
    yield Trial(name="links", attempt=_link, needs=("ip", "tc", "sysctl"))
    yield Trial(
        name="netem by kernel",
        attempt=partial(_box, "kernel"),
        needs=("tc",),
        remedy="As root: modprobe sch_netem; or use --netem uml.",
    )
    yield Trial(name="netem by uml", attempt=partial(_box, "uml"))
    yield Trial(name="queues by kernel", attempt=partial(_queues, "kernel"), needs=("tc",), remedy="Use --netem uml.")
    yield Trial(name="queues by uml", attempt=partial(_queues, "uml"))


def _programs() -> str:
    missing = [program for program in PACKAGES if system.which(program) is None]
    if missing:
        raise MissingCapability(f"{', '.join(missing)} not found\n{installing(missing)}")
    return ", ".join(PACKAGES)


def _namespaces() -> str:
    with sandbox() as opened:
        opened.add()
        opened.add()
    return "as root" if system.is_root() else "as an ordinary user, in a user namespace"


def _process_namespaces() -> str:
    inside.require()
    return "works"


def _inside(command: str) -> str:
    with sandbox() as opened:
        opened.add().run(command.split())
    return "works"


def _offloads() -> str:
    asked = {"tso": False}
    with sandbox() as opened:
        commands.changed(opened.add().run(commands.offloads("lo", asked)), asked)
    return "works"


def _congestion_control() -> str:
    return Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text(encoding="ascii").strip()


def _link() -> str:
    with link(Profile(name="any")):
        return "works"


def _box(name: str) -> str:
    said = BOXES[name]()
    if said:
        raise MissingCapability(said)
    return "works"


def _queues(name: str) -> str:
    """A box of that kind, and every queue in it."""
    _box(name)
    missing = [said for queue in queues.MANAGED if (said := QUEUES[name](queue))]
    if missing:
        raise MissingCapability(" ".join(missing))
    return ", ".join(queues.MANAGED)
