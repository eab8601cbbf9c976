"""What this machine can emulate, each found by trying."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingest_bench import system
from ingest_bench.errors import IngestBenchError
from ingest_bench.model.capability import Capability
from ingest_bench.network import offload
from ingest_bench.network.box import BOXES
from ingest_bench.network.sandbox import sandbox

if TYPE_CHECKING:
    from ingest_bench.network.sandbox import Namespace

_PROGRAMS = {
    "ip": "iproute2",
    "tc": "iproute2",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "setpriv": "util-linux",
    "sysctl": "procps",
}


def capabilities() -> tuple[Capability, ...]:
    """Programs, namespaces and what works in them for the user that we are, and the backends of netem."""
    missing = [program for program in _PROGRAMS if system.which(program) is None]
    if missing:
        packages = " ".join(sorted({_PROGRAMS[program] for program in missing}))
        return (_absent("programs", f"{', '.join(missing)} not found", f"Install {packages}."),)
    return (_present("programs", ", ".join(_PROGRAMS)), *_inside(), *map(_box, BOXES))


def _inside() -> tuple[Capability, ...]:
    user = "root" if system.is_root() else "an ordinary user, in a user namespace"
    try:
        with sandbox() as opened:
            first = opened.add()
            opened.add()
            return (_present("namespaces", f"as {user}"), *_tried(first))
    except IngestBenchError as error:
        said, _, remedy = str(error).partition("\n")
        return (_absent("namespaces", said, remedy),)


def _tried(place: Namespace) -> tuple[Capability, ...]:
    bucket = ("rate", "1gbit", "burst", "250000b", "limit", "1m")
    tries = (
        ("veth pairs", ("ip", "link", "add", "name", "try0", "type", "veth", "peer", "name", "try1"), "veth"),
        ("token bucket", ("tc", "qdisc", "add", "dev", "try0", "root", "tbf", *bucket), "sch_tbf"),
        ("offloads", offload.argv("try0", {"tso": False}), "veth"),
    )
    found = []
    for name, argv, module in tries:
        try:
            place.run(argv)
            found.append(_present(name, "works"))
        except IngestBenchError as error:
            found.append(_absent(name, str(error), f"As root: modprobe {module}"))
    known = place.run(("sysctl", "-n", "net.ipv4.tcp_available_congestion_control"), check=False).strip()
    return (*found, _present("congestion control", known))


def _box(name: str) -> Capability:
    said = BOXES[name].complaint()
    if not said:
        return _present(f"netem by {name}", "works")
    remedy = "As root: modprobe sch_netem; or use --netem uml." if name == "kernel" else ""
    return _absent(f"netem by {name}", said, remedy)


def _present(name: str, detail: str) -> Capability:
    return Capability(name=name, present=True, detail=detail)


def _absent(name: str, detail: str, remedy: str) -> Capability:
    return Capability(name=name, present=False, detail=detail, remedy=remedy)
