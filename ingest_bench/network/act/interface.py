"""Flows of a real interface, shaped together for a limited time, and everything put back afterwards."""

from __future__ import annotations

import contextlib
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ingest_bench import system
from ingest_bench.errors import MissingCapability, RunFailed, SpecError
from ingest_bench.ledger import book, sessions
from ingest_bench.ledger.sessions import Applied, restore, show, unreadable
from ingest_bench.ledger.watchdog import session
from ingest_bench.network.act import interface_facts, ssh
from ingest_bench.network.plan import features, interface_plan, netem, spared
from ingest_bench.network.plan.interface_rules import Asked, Found, shapes, tcp_words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ingest_bench.ledger.steps import Step
    from ingest_bench.ledger.watchdog import Session
    from ingest_bench.model.network import Profile, RealLink
    from ingest_bench.network.plan.places import Direction

__all__ = ["Applied", "Shaped", "needs", "plan", "restore", "shaped", "show", "unreadable"]

# What each need looks like when it is tried, as lines of `tc -batch` in a namespace of its own.
_CLSACT = "qdisc add dev lo ingress_block 1 egress_block 2 clsact"
_REDIRECT = "action mirred egress redirect dev lo"
_TRIALS = {
    "netem": "qdisc add dev lo root netem delay 1ms",
    "tbf": "qdisc add dev lo root tbf rate 1mbit burst 10k latency 1s",
    "clsact": _CLSACT,
    "u32": f"{_CLSACT}\nfilter add block 1 protocol ip prio 1 u32 match u32 0 0",
    "mirred": f"{_CLSACT}\nfilter add block 2 protocol ip prio 1 u32 match u32 0 0 {_REDIRECT}",
}
_CAP_NET_ADMIN = 12


@dataclass(frozen=True, slots=True)
class Shaped:
    """Flows of a real interface while they are shaped."""

    found: Found
    profile: Profile
    session: Session
    devices: Mapping[Direction, str]
    """Our own device of each direction that is shaped: packets of the flows, and no other, leave it shaped."""
    spared: tuple[str, ...] = ()
    """The SSH connections of our terminal on this interface, each with what proves that it is spared."""

    def is_over(self) -> bool:
        """Whether everything was put back already."""
        return self.session.is_over()

    def wait(self) -> None:
        """Sleep until the time limit."""
        self.session.wait()


def plan(link: RealLink, profile: Profile) -> tuple[Step, ...]:
    """The exact commands, each with its undo. Nothing is changed; SpecError when this interface must not be touched.

    RunFailed when a session has it: what stands on it then is not what it had, and the session's to remove.
    """
    taken = book.header_of(sessions.file_of(_key(interface_facts.index_of(link.name)), ("net",)))
    if taken is not None:
        raise RunFailed(
            f"{link.name}: in use by pid {taken.pid}: {taken.what}; see `ingest-bench net show`. Is it dead? "
            "`ingest-bench net restore` puts back what it left"
        )
    asked = Asked(link=link, profile=profile)
    found, marks = _find(asked), _marks()
    steps = interface_plan.plan(found, asked, marks)
    ssh.require(found.ssh)
    return (*spared.steps(found, marks), *steps) if steps else ()


@contextlib.contextmanager
def shaped(
    link: RealLink,
    profile: Profile,
    *,
    time_limit_s: float,
    on_stage: Callable[[str], None] = lambda _: None,
) -> Iterator[Shaped]:
    """The flows of `link`, shaped until the end of the block or of the time, whichever comes first.

    Only TCP packets to and from these addresses and ports meet the profile's impairments, all of them the same queue
    of a direction. Its MTU, MSS and congestion control hold for these hosts. What other traffic feels too is changed
    only with `interface_mtu` (the interface's MTU in place of the route's) and `shared_settings` (offloads, GSO sizes,
    tcp_rmem, tcp_wmem).

    An SSH connection of our terminal over this interface goes past everything, which is proven before anything else is
    changed, and again behind it; the time is at most `ssh_limit` then.
    """
    require(profile)
    asked = Asked(link=link, profile=profile)
    index = interface_facts.index_of(link.name)
    what = f"{profile.name} on {link.name} {link.ends}"
    resources = (f"interface {index}", *interface_plan.files(profile))
    with session(
        _key(index), what, time_limit_s=time_limit_s, resources=resources, within=("net",), on_stage=on_stage
    ) as opened:
        # Looked at behind the locks, when the leftovers of an earlier session are gone.
        found = _find(asked)
        if found.index != index:
            raise RunFailed(f"{link.name}: it became another interface just now; try again")
        marks = _marks()
        steps = interface_plan.plan(found, asked, marks)
        _refuse_too_long(found, link, time_limit_s)
        ssh.require(found.ssh)
        proven = _spare(opened, found, marks, profile) if steps else ()
        opened.change(steps)
        if proven:
            proven = ssh.prove(found, marks)
        _check_queues(found)
        _check_routes(found, asked)
        _check_offloads(found, asked)
        on_stage("running")
        ways = interface_plan.ways(asked)
        yield Shaped(found, profile, opened, {way.direction: marks.ifb(way.side).name for way in ways}, proven)


def limit_s(link: RealLink, time_limit_s: float) -> float:
    """That time limit, but no more than the interface may be shaped while our SSH connection runs over it."""
    return min(time_limit_s, link.ssh_limit_ns / 1e9) if interface_facts.ssh_over(link.name) else time_limit_s


def _refuse_too_long(found: Found, link: RealLink, time_limit_s: float) -> None:
    limit_s = link.ssh_limit_ns / 1e9
    if found.ssh and time_limit_s > limit_s:
        raise SpecError(
            f"{found.interface}: it carries your SSH connection {found.ssh[0]}, and may be shaped for {limit_s:g} s "
            f"then, not for {time_limit_s:g} s; take less, or allow more with --ssh-limit"
        )


def _spare(opened: Session, found: Found, marks: interface_plan.Marks, profile: Profile) -> tuple[str, ...]:
    """The SSH connections of our terminal are led past all that comes, and how that is proven, in words."""
    if not found.ssh:
        return ()
    for name in spared.NEEDS:
        _require(name, profile)
    opened.change(spared.steps(found, marks))
    opened.on_stage("proving")
    return ssh.prove(found, marks)


def _key(index: int) -> str:
    return f"net-{index}"


def require(profile: Profile) -> None:
    """MissingCapability unless we may change an interface, and this kernel has what the profile needs for that."""
    _refuse_without_rights()
    for name in needs(profile):
        _require(name, profile)


def needs(profile: Profile) -> tuple[str, ...]:
    """What a kernel must have for this profile on a real interface: the names of tc's parts."""
    to_server, to_client = shapes(profile.to_server), shapes(profile.to_client)
    both = (profile.to_server, profile.to_client)
    wanted = {
        "clsact": to_server or to_client,
        "u32": to_server or to_client,
        "netem": any(" netem " in line for impairment in both for line in netem.lines("", impairment, 1500)),
        "tbf": any(" tbf " in line for impairment in both for line in netem.lines("", impairment, 1500)),
        "mirred": to_server or to_client,
        "ifb": to_server or to_client,
    }
    return tuple(name for name, is_wanted in wanted.items() if is_wanted)


def _find(asked: Asked) -> Found:
    with_features = bool(asked.profile.offloads)
    return interface_facts.find(asked.link, with_features=with_features, with_uppers=asked.link.interface_mtu)


def _marks() -> interface_plan.Marks:
    return interface_plan.Marks(secrets.randbelow(interface_plan.MARKS))


def _require(name: str, profile: Profile) -> None:
    """MissingCapability unless the kernel has it, found by trying in a namespace that is gone at once."""
    try:
        if name == "ifb":
            _load_ifb()
            system.run(("unshare", "--net", "ip", "link", "add", "name", "ibench", "type", "ifb"))
        else:
            system.run(("unshare", "--net", "tc", "-batch", "-"), stdin=f"{_TRIALS[name]}\n")
    except RunFailed as error:
        raise MissingCapability(
            f'profile "{profile.name}": this kernel has no {name}, so it cannot be applied on a real interface\n'
            f"{error}\n"
            "`ingest-bench net exec` shapes a link of its own, with User-Mode Linux where the kernel has no netem"
        ) from None


def _load_ifb() -> None:
    """The module ifb without the two devices that it makes on its own when the kernel loads it."""
    if not Path("/sys/module/ifb").exists():
        with contextlib.suppress(RunFailed):
            system.run(("modprobe", "ifb", "numifbs=0"))


def _check_queues(found: Found) -> None:
    """RunFailed when the interface's own queues are not those that it had: other traffic would feel it."""
    before, now = (
        [qdisc for qdisc in listed if not qdisc.is_filter]
        for listed in (found.qdiscs, interface_facts.qdiscs_of(found.interface))
    )
    if before != now:
        raise RunFailed(f"{found.interface}: it had the queues {before}, and now it has {now}; somebody changed them")


def _check_routes(found: Found, asked: Asked) -> None:
    """RunFailed when packets to a host do not take the route that was made: rules may choose other tables."""
    for to in found.destinations:
        if not tcp_words(found, asked, to):
            continue
        route = interface_facts.route_used(to.address)
        if str(route.get("protocol")) != interface_plan.ROUTE_PROTOCOL:
            raise RunFailed(f"{to.address}: the route with its own MTU and MSS is not used, but {route}; see `ip rule`")


def _check_offloads(found: Found, asked: Asked) -> None:
    """MissingCapability when an offload is not as asked: the kernel does not say so by itself."""
    if asked.profile.offloads:
        for reason in features.unmet(asked.profile.offloads, interface_facts.features_of(found.interface)):
            raise MissingCapability(f"{found.interface}: offloads: {reason}. Leave the key out.")


def _refuse_without_rights() -> None:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    effective = int(next(line for line in status.splitlines() if line.startswith("CapEff:")).split()[1], 16)
    if not effective >> _CAP_NET_ADMIN & 1:
        raise MissingCapability(
            "a real interface can be changed only by root (CAP_NET_ADMIN); "
            "`ingest-bench net exec` shapes a link of its own without root"
        )
