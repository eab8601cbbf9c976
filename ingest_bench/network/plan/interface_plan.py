"""What is done to a real interface so that some flows are shaped, and how it is taken back. Pure.

    leaving:   clsact egress ── u32 filters ──▶ mirred ──▶ ifb ──▶ netem, token bucket ──▶ the interface's queues
    arriving:  clsact ingress ── u32 filters ──▶ mirred ──▶ ifb ──▶ netem, token bucket ──▶ as if it just arrived
    MTU, MSS, congestion control: a route of its own to each host

What leaves is on its way to the server, but where the server is here. Flows that are given together share the queues.

The interface's queues are not touched: all else passes the filter and goes on into them as before (mq, fq, fq_codel …).
A class of htb as their root was rejected: it puts one queue in the place of all of them.

Interfaces are named by their index, which no renaming changes: `if7` is what `ip` and `tc` call number 7.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ingest_bench.ledger.steps import Action, Step, Undo
from ingest_bench.network.plan import commands, features, flows, netem
from ingest_bench.network.plan.commands import buffers
from ingest_bench.network.plan.flows import SIDES, Side
from ingest_bench.network.plan.interface_rules import refuse, shapes, tcp_words, wanted_sizes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ingest_bench.model.network import Impairment, Profile
    from ingest_bench.network.plan.interface_rules import Asked, Destination, Found
    from ingest_bench.network.plan.places import Direction

# Filters of one priority have one protocol (net/sched/cls_api.c, tcf_chain_tp_find).
_PRIORITIES = {"ip": "3", "ipv6": "4"}
# A route protocol that nobody else has. Those above 3 mean nothing to the kernel (include/uapi/linux/rtnetlink.h);
# /etc/iproute2/rt_protos has no 198.
ROUTE_PROTOCOL = "198"
# Numbers of our devices and of our blocks of filters begin here; the kernel gives its own from 1 upwards.
_NUMBERS = 1 << 28
MARKS = 1 << 24

_LINK = ("ip", "-j", "-d", "link", "show", "dev", "{name}")


@dataclass(frozen=True, slots=True)
class Marks:
    """What nobody else has: by these the undo knows what this session made, whoever has made something like it.

    The kernel gives every `clsact` the same handle, but a block of filters has a number of our choice.
    """

    number: int
    """Drawn for this session, below `MARKS`."""

    @property
    def counted(self) -> Device:
        """The device at which copies of packets end that are counted."""
        return _device(_NUMBERS + 2 * MARKS + self.number)

    def block(self, side: Side) -> str:
        """The number of the block of filters of the packets that arrive or that leave."""
        return str(self._own(side))

    def ifb(self, side: Side) -> Device:
        """The device that these packets are redirected to. A locally administered address (IEEE 802, bit 2)."""
        return _device(self._own(side))

    def _own(self, side: Side) -> int:
        return _NUMBERS + 2 * self.number + (side == "egress")


@dataclass(frozen=True, slots=True)
class Device:
    """A device of our own."""

    index: int
    name: str
    mac: str

    @property
    def word(self) -> str:
        """What ip and tc call it, whatever its name is."""
        return f"if{self.index}"


def _device(number: int) -> Device:
    mac = ":".join(f"{byte:02x}" for byte in (2, *number.to_bytes(5, "big")))
    return Device(index=number, name=f"ibench{number - _NUMBERS:x}", mac=mac)


@dataclass(frozen=True, slots=True)
class Way:
    """A direction that is shaped, and on which side of the interface its packets are met."""

    side: Side
    direction: Direction
    impairment: Impairment


def ways(asked: Asked) -> tuple[Way, ...]:
    """Those directions in which the profile does anything."""
    profile = asked.profile
    to_client, to_server = reversed(SIDES) if asked.is_server else SIDES
    both = (Way(to_client, "to-client", profile.to_client), Way(to_server, "to-server", profile.to_server))
    return tuple(sorted((way for way in both if shapes(way.impairment)), key=lambda way: SIDES.index(way.side)))


def plan(found: Found, asked: Asked, marks: Marks) -> tuple[Step, ...]:
    """The steps in their order; SpecError when this interface must not be touched."""
    refuse(found, asked)
    return (
        *_sysctls(found, asked.profile),
        *_offloads(found, asked.profile),
        *_sizes(found, asked.profile),
        *_interface_mtu(found, asked),
        *_queues(found, asked, marks),
        *(step for to in found.destinations for step in _route(found, asked, to)),
    )


def files(profile: Profile) -> tuple[str, ...]:
    """The files of the kernel that it writes to: what flows on other interfaces feel too."""
    return tuple(map(_file, buffers(profile)))


def _file(name: str) -> str:
    return f"/proc/sys/net/ipv4/{name}"


def _sysctls(found: Found, profile: Profile) -> Iterator[Step]:
    for name, value in buffers(profile).items():
        path = _file(name)
        if found.sysctls.get(name) != value:
            old = Action(path=path, value=found.sysctls[name])
            yield Step(name=name, do=Action(path=path, value=value), undo=(Undo(action=old),))


def _offloads(found: Found, profile: Profile) -> Iterator[Step]:
    """One command for all offloads, and one back: some allow others, and one by one the way back would fail.

    What comes back is what was asked of each feature, also where another one does not allow it.
    """
    changes = features.changes(profile.offloads, found.features)
    if changes:
        old = {name: found.features[name].wanted for name in changes}
        yield Step(
            name="offloads",
            do=Action(argv=commands.offloads(found.device, changes)),
            undo=(
                Undo(
                    action=Action(argv=commands.offloads(found.device, old)), index=found.index, address=found.address
                ),
            ),
        )


def _sizes(found: Found, profile: Profile) -> Iterator[Step]:
    """One step for each size. The kernel changes the IPv4 size with the other one, so both are put back.

    What somebody else changed meanwhile stays; so does a device that has got the number of one that is gone.
    """
    for name, size in wanted_sizes(profile).items():
        if found.sizes.get(name) == size:
            continue
        undo = [_put_back(found.index, name, found.sizes[name], ours=size, address=found.address)]
        twin = name.replace("_max_size", "_ipv4_max_size")
        if twin != name and twin in found.sizes:
            undo.append(_put_back(found.index, twin, found.sizes[twin], ours=size, address=found.address))
        yield Step(name=name, do=_set(found.index, name, size), undo=tuple(undo))


def _interface_mtu(found: Found, asked: Asked) -> Iterator[Step]:
    """The MTU of the interface, and back also that of what stands on it.

    The kernel shrinks VLANs and macvlans with the interface, and does not let them grow again; an ipvlan follows it
    both ways, also where it had an MTU of its own (net/8021q/vlan.c, drivers/net/macvlan.c, drivers/net/ipvlan/).
    """
    ours, old = asked.profile.mtu_bytes, found.mtu_bytes
    if not asked.link.interface_mtu or ours == old:
        return
    undo = list(_mtu_back(found.index, old, found.ipv6_mtu_bytes, (ours,), found.address))
    for upper in found.uppers:
        undo += _mtu_back(upper.index, upper.mtu_bytes, upper.ipv6_mtu_bytes, (ours, old))
    yield Step(name="interface mtu", do=_set(found.index, "mtu", ours), undo=tuple(undo))


def _mtu_back(index: int, old: int, ipv6_old: int | None, mtus: tuple[int, ...], address: str = "") -> Iterator[Undo]:
    """The undo for a device whose MTU may be one of `mtus`: by our doing, or by the kernel's.

    The kernel resets the MTU of its IPv6 with it, which a router may have set.
    """
    for value in mtus:
        if value != old:
            yield _put_back(index, "mtu", old, ours=value, address=address)
    if ipv6_old is not None:
        back = Action(path="/proc/sys/net/ipv6/conf/{name}/mtu", value=str(ipv6_old))
        yield Undo(action=back, look=_LINK, shows=_word("mtu", old), index=index)


def _queues(found: Found, asked: Asked, marks: Marks) -> Iterator[Step]:
    """Devices with the queues of both directions, and then the filters that lead the flows there."""
    shaped = ways(asked)
    if not shaped:
        return
    for way in shaped:
        yield from _ifb(way.side, marks.ifb(way.side), way.impairment, asked.profile.mtu_bytes)
    if not found.ssh:
        yield clsact(found, marks)
    for side in (way.side for way in shaped):
        redirect = ("action", "mirred", "egress", "redirect", "dev", marks.ifb(side).word)
        for flow in found.flows:
            protocol = flows.protocol(flow)
            where = ("block", marks.block(side), "protocol", protocol, "prio", _PRIORITIES[protocol], "u32")
            for match in flows.matches(flow, side):
                yield Step(name=f"filter {side}", do=_tc("filter", "add", *where, *match, *redirect))


def clsact(found: Found, marks: Marks) -> Step:
    """The place for our filters on the interface: a block for each side, which has no filter yet."""
    blocks = ("ingress_block", marks.block("ingress"), "egress_block", marks.block("egress"))
    undo = Undo(
        action=_tc("qdisc", "del", "dev", found.device, "clsact"),
        look=("tc", "-j", "qdisc", "show", "dev", "{name}"),
        shows=f'"ingress_block":{marks.block("ingress")},',
        index=found.index,
    )
    return Step(name="clsact", do=_tc("qdisc", "add", "dev", found.device, *blocks, "clsact"), undo=(undo,))


def _ifb(side: Side, ifb: Device, impairment: Impairment, mtu_bytes: int) -> Iterator[Step]:
    yield made(f"ifb {side}", ifb)
    for line in netem.lines(ifb.word, impairment, mtu_bytes):
        yield Step(name=f"queue {side}: {_kind(line)}", do=_tc(*line.split()))
    yield up(f"ifb {side}", ifb)


def made(name: str, ifb: Device) -> Step:
    """The step that makes a device of ours."""
    undo = Undo(
        action=_command("ip", "link", "del", "dev", ifb.word),
        look=_LINK,
        shows=f'"address":"{ifb.mac}"',
        index=ifb.index,
    )
    words = ("ip", "link", "add", "name", ifb.name, "index", str(ifb.index), "address", ifb.mac, "type", "ifb")
    return Step(name=name, do=_command(*words), undo=(undo,))


def up(name: str, ifb: Device) -> Step:
    """The step after which it takes packets."""
    return Step(name=f"{name} up", do=_command("ip", "link", "set", "dev", ifb.word, "up"))


def _route(found: Found, asked: Asked, to: Destination) -> Iterator[Step]:
    """The way to the host, as it is, but with its own MTU (locked: no discovery), MSS and congestion control.

    A route to this host that is there already stays, and ours goes before it: IPv4 takes the first one of the same
    metric and `prepend` makes it that; IPv6 would take both in turn, so ours has a lower metric.
    """
    words = tcp_words(found, asked, to)
    if not words:
        return
    family, target = f"-{to.address.version}", f"{to.address}/{to.address.max_prefixlen}"
    way, priority = to.way, to.way.host_priority
    verb = "prepend" if to.address.version == 4 else "add"
    if priority is not None and to.address.version == 6:
        priority -= 1
    # onlink: the gateway was reached until now, also where no other route says how.
    hop = (*way.next_hop, "dev", found.device, *(("onlink",) if way.next_hop else ()))
    place = ("table", way.table, *(("metric", str(priority)) if priority is not None else ()))
    source = ("src", way.source) if way.source else ()
    ours = ("proto", ROUTE_PROTOCOL)
    whole = (target, *hop, *place, *source, *ours, *words)
    undo = Undo(
        action=_command("ip", family, "route", "del", *whole),
        look=("ip", family, "-j", "route", "show", target, "table", way.table, *ours, "dev", "{name}"),
        shows=f'"{to.address}"',
        index=found.index,
    )
    yield Step(name="route", do=_command("ip", family, "route", verb, *whole), undo=(undo,))


def _kind(line: str) -> str:
    """What a queue is for: two of them may be netems."""
    return "rate" if f" handle {netem.BOTTLENECK} " in line else "netem"


def _put_back(index: int, name: str, old: int, *, ours: int, address: str) -> Undo:
    """The undo that writes an old value in the place of ours, where ours still stands."""
    return Undo(action=_set(index, name, old), look=_LINK, shows=_word(name, ours), index=index, address=address)


def _word(name: str, value: int) -> str:
    """How `_LINK` shows a value. Behind the MTU stands always something; behind the sizes, it depends on `ip`."""
    return f'"{name}":{value}{"," if name == "mtu" else ""}'


def _set(index: int, name: str, value: int) -> Action:
    return _command("ip", "link", "set", "dev", f"if{index}", name, str(value))


def _tc(*words: str) -> Action:
    return _command("tc", *words)


def _command(*argv: str) -> Action:
    return Action(argv=argv)
