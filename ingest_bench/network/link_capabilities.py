"""Check what links this machine can emulate, by trying."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ingest_bench import system
from ingest_bench.errors import MissingCapability
from ingest_bench.host.capability_checks import PACKAGES, advise_install, run_check, skip_check
from ingest_bench.model.experiment import Capability
from ingest_bench.model.network import Profile
from ingest_bench.network.act import sandbox as sandbox_module
from ingest_bench.network.act.link import NETEM_CHECKS, QUEUE_CHECKS, open_link
from ingest_bench.network.plan import link_plan, netem

_VETH = "ip link add name try0 type veth peer name try1"
_BUCKET = "tc qdisc add dev lo root tbf rate 1gbit burst 250000b limit 1m"


def capabilities() -> tuple[Capability, ...]:
    """Check programs, namespaces and what works in them for the current user, and the netem backends."""
    namespaces = run_check("namespaces", _try_namespaces, ("nsenter", "setpriv", "unshare"))

    def check_inside(name: str, attempt: Callable[[], str], *programs: str, remedy: str = "") -> Capability:
        return run_check(name, attempt, programs, remedy) if namespaces.present else skip_check(name, "namespaces")

    return (
        run_check("programs", _try_programs),
        namespaces,
        check_inside("process namespaces", sandbox_module.require_process_namespaces),
        check_inside("veth pairs", lambda: _try_command(_VETH), "ip", remedy="As root: modprobe veth"),
        check_inside("token bucket", lambda: _try_command(_BUCKET), "tc", remedy="As root: modprobe sch_tbf"),
        check_inside("offloads", _try_offloads),
        check_inside("links", _try_link, "ip", "tc", "sysctl"),
        check_inside(
            "netem by kernel",
            lambda: _try_netem("kernel"),
            "tc",
            remedy="As root: modprobe sch_netem; or use --netem uml.",
        ),
        check_inside("netem by uml", lambda: _try_netem("uml")),
        check_inside("queues by kernel", lambda: _try_queues("kernel"), "tc", remedy="Use --netem uml."),
        check_inside("queues by uml", lambda: _try_queues("uml")),
        run_check("congestion control", _read_congestion_controls),
    )


def _try_programs() -> str:
    missing = [program for program in PACKAGES if system.which(program) is None]
    if missing:
        raise MissingCapability(f"{', '.join(missing)} not found\n{advise_install(missing)}")
    return ", ".join(PACKAGES)


def _try_namespaces() -> str:
    with sandbox_module.sandbox() as opened:
        opened.add_namespace()
        opened.add_namespace()
    return "as root" if system.is_root() else "as an ordinary user, in a user namespace"


def _try_command(command: str) -> str:
    with sandbox_module.sandbox() as opened:
        opened.add_namespace().run(command.split())
    return "works"


def _try_offloads() -> str:
    offloads = {"tso": False}
    with sandbox_module.sandbox() as opened:
        output = opened.add_namespace().run(link_plan.offloads_argv("lo", offloads))
        link_plan.parse_offload_changes(output, offloads)
    return "works"


def _read_congestion_controls() -> str:
    return Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text(encoding="ascii").strip()


def _try_link() -> str:
    with open_link(Profile(name="any")):
        return "works"


def _try_netem(backend: str) -> str:
    problem = NETEM_CHECKS[backend]()
    if problem:
        raise MissingCapability(problem)
    return "works"


def _try_queues(backend: str) -> str:
    _try_netem(backend)
    problems = [problem for queue in netem.AQM_QUEUES if (problem := QUEUE_CHECKS[backend](queue))]
    if problems:
        raise MissingCapability(" ".join(problems))
    return ", ".join(netem.AQM_QUEUES)
