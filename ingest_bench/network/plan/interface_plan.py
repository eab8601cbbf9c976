"""Plan the changes to a real interface that shape some flows, and how each is undone. Pure.

    leaving:   clsact egress ── u32 filters ──▶ mirred ──▶ ifb ──▶ netem, token bucket ──▶ the interface's queues
    arriving:  clsact ingress ── u32 filters ──▶ mirred ──▶ ifb ──▶ netem, token bucket ──▶ as if it just arrived
    SSH:       first filter, one per connection: ends the search, so that no other filter applies
    MTU, MSS, congestion control: a separate route to each host

Leaving packets are on their way to the server, unless the server is on this machine. Flows of one request share the
queues. The interface's own queues are not changed: all other traffic passes the filters and enters them as before (mq,
fq, fq_codel …). An htb class as their root was rejected: it replaces all of them by one queue.

Interfaces are named by their index, which no renaming changes: `if7` is index 7 for `ip` and `tc`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ingest_bench.ledger.steps import Action, Step, Undo
from ingest_bench.model.network import Impairment, Profile
from ingest_bench.network.plan import features, link_plan, netem
from ingest_bench.network.plan.interface_rules import (
    SIDES,
    Destination,
    InterfaceFacts,
    Side,
    check_allowed,
    filter_matches,
    has_effect,
    route_options,
    tc_protocol,
)
from ingest_bench.network.plan.link_plan import Direction

# Filters of one priority have one protocol (net/sched/cls_api.c, tcf_chain_tp_find). Those of SSH precede the others.
_SSH_PRIORITIES = {"ip": "1", "ipv6": "2"}
_PRIORITIES = {"ip": "3", "ipv6": "4"}
# An otherwise unused route protocol. Those above 3 mean nothing to the kernel (include/uapi/linux/rtnetlink.h);
# /etc/iproute2/rt_protos has no 198.
ROUTE_PROTOCOL = "198"
# Our device indices and filter blocks start here; the kernel assigns its own from 1 upwards.
_FIRST_NUMBER = 1 << 28
SESSION_NUMBERS = 1 << 24
# Shows a device with its values; `{name}` is its present name.
_SHOW_LINK = ("ip", "-j", "-d", "link", "show", "dev", "{name}")


@dataclass(frozen=True, slots=True)
class SessionIds:
    """Unique numbers of a session, by which the undo recognizes what this session created.

    The kernel gives every `clsact` the same handle, but the number of a filter block can be chosen.
    """

    number: int
    """Random, below `SESSION_NUMBERS`."""

    def block(self, side: Side) -> str:
        """Return the number of the filter block of one side."""
        return str(self._number_of(side))

    def ifb(self, side: Side) -> OwnDevice:
        """Return the device to which the packets of one side are redirected."""
        number = self._number_of(side)
        # A locally administered address (IEEE 802, bit 2).
        mac = ":".join(f"{byte:02x}" for byte in (2, *number.to_bytes(5, "big")))
        return OwnDevice(index=number, name=f"ibench{number - _FIRST_NUMBER:x}", mac=mac)

    def _number_of(self, side: Side) -> int:
        return _FIRST_NUMBER + 2 * self.number + (side == "egress")


@dataclass(frozen=True, slots=True)
class OwnDevice:
    """A device that this session creates."""

    index: int
    name: str
    mac: str

    @property
    def selector(self) -> str:
        """The name by which ip and tc find it also after a renaming."""
        return f"if{self.index}"


@dataclass(frozen=True, slots=True)
class ShapedDirection:
    """A direction that is shaped, and the side of the interface on which its packets are redirected."""

    side: Side
    direction: Direction
    impairment: Impairment


def shaped_directions(facts: InterfaceFacts, profile: Profile) -> tuple[ShapedDirection, ...]:
    """Return the directions in which the profile has an effect, ingress first."""
    # On the server's machine arriving packets are on their way to it.
    directions = link_plan.DIRECTIONS if facts.link.port else link_plan.DIRECTIONS[::-1]
    both = (
        ShapedDirection(side, direction, link_plan.impairment_of(profile, direction))
        for side, direction in zip(SIDES, directions, strict=True)
    )
    return tuple(shaped for shaped in both if has_effect(shaped.impairment))


def interface_steps(facts: InterfaceFacts, profile: Profile, ids: SessionIds) -> tuple[Step, ...]:
    """Return the steps in their order; SpecError if this interface must not be changed."""
    check_allowed(facts, profile)
    return (
        *_sysctl_steps(facts, profile),
        *_offload_steps(facts, profile),
        *_size_steps(facts, profile),
        *_interface_mtu_steps(facts, profile),
        *_queue_steps(facts, profile, ids),
        *(step for to in facts.destinations for step in _route_steps(facts, profile, to)),
    )


def sysctl_files(profile: Profile) -> dict[str, str]:
    """Return the kernel files that the plan writes, by sysctl name; they also affect traffic on other interfaces."""
    return {name: f"/proc/sys/net/ipv4/{name}" for name in link_plan.tcp_buffer_sysctls(profile)}


def _sysctl_steps(facts: InterfaceFacts, profile: Profile) -> Iterator[Step]:
    values = link_plan.tcp_buffer_sysctls(profile)
    for name, path in sysctl_files(profile).items():
        if facts.sysctls.get(name) != values[name]:
            old = Action(path=path, value=facts.sysctls[name])
            yield Step(name=name, action=Action(path=path, value=values[name]), undo=(Undo(action=old),))


def _offload_steps(facts: InterfaceFacts, profile: Profile) -> Iterator[Step]:
    """Yield one command for all offloads, and one undo: some require others, and a one-by-one undo would fail.

    The undo restores the requested state of each feature, also where another feature prevents it.
    """
    changes = features.find_changes(profile.offloads, facts.features)
    if changes:
        old = {name: facts.features[name].wanted for name in changes}
        undo_action = Action(argv=link_plan.offloads_argv(facts.device, old))
        yield Step(
            name="offloads",
            action=Action(argv=link_plan.offloads_argv(facts.device, changes)),
            undo=(Undo(action=undo_action, interface_index=facts.index, interface_address=facts.address),),
        )


def _size_steps(facts: InterfaceFacts, profile: Profile) -> Iterator[Step]:
    """Yield one step for each offload size. The kernel also changes the IPv4 size, so both are restored.

    A value that another program changed meanwhile is kept; so is a device that got the index of a removed one.
    """
    for name, size in link_plan.profile_sizes(profile).items():
        if facts.sizes.get(name) == size:
            continue
        undo = [_restore_value(facts.index, name, facts.sizes[name], ours=size, address=facts.address)]
        ipv4_name = name.replace("_max_size", "_ipv4_max_size")
        if ipv4_name != name and ipv4_name in facts.sizes:
            undo.append(
                _restore_value(facts.index, ipv4_name, facts.sizes[ipv4_name], ours=size, address=facts.address)
            )
        yield Step(name=name, action=_set_value(facts.index, name, size), undo=tuple(undo))


def _interface_mtu_steps(facts: InterfaceFacts, profile: Profile) -> Iterator[Step]:
    """Yield the step that sets the interface's MTU; its undo also restores the devices above it.

    The kernel shrinks VLANs and macvlans with the interface, and does not let them grow again; an ipvlan follows it in
    both directions, also if it had its own MTU (net/8021q/vlan.c, drivers/net/macvlan.c, drivers/net/ipvlan/).
    """
    ours, old = profile.mtu_bytes, facts.mtu_bytes
    if not facts.link.interface_mtu or ours == old:
        return
    undo = list(_restore_mtu(facts.index, old, facts.ipv6_mtu_bytes, (ours,), facts.address))
    for upper in facts.upper_devices:
        undo += _restore_mtu(upper.index, upper.mtu_bytes, upper.ipv6_mtu_bytes, (ours, old))
    yield Step(name="interface mtu", action=_set_value(facts.index, "mtu", ours), undo=tuple(undo))


def _restore_mtu(
    index: int, old: int, ipv6_old: int | None, changed_to: tuple[int, ...], address: str = ""
) -> Iterator[Undo]:
    """Yield the undo for a device whose MTU may be one of `changed_to`, set by us or by the kernel.

    With the MTU the kernel also resets the IPv6 MTU, which a router may have set.
    """
    for value in changed_to:
        if value != old:
            yield _restore_value(index, "mtu", old, ours=value, address=address)
    if ipv6_old is not None:
        action = Action(path="/proc/sys/net/ipv6/conf/{name}/mtu", value=str(ipv6_old))
        yield Undo(action=action, check_argv=_SHOW_LINK, check_output=_shown_value("mtu", old), interface_index=index)


def _queue_steps(facts: InterfaceFacts, profile: Profile, ids: SessionIds) -> Iterator[Step]:
    """Yield the devices with the qdiscs of both directions, then the filters: exempt SSH connections come first.

    An exempt filter has a class and no action: u32 then accepts the packet (net/sched/cls_u32.c, u32_classify), and
    needs no act_gact in the kernel. The class 1: has minor number 0, like a packet without a class.
    """
    shaped = shaped_directions(facts, profile)
    if not shaped:
        return
    for direction in shaped:
        ifb = ids.ifb(direction.side)
        yield from _ifb_steps(direction.side, ifb, direction.impairment, profile.mtu_bytes)
        set_link = ("ip", "link", "set", "dev", ifb.selector)
        if facts.ipv6_mtu_bytes is not None:
            # Before it is up: with an IPv6 address it sends a router solicitation, which its own queue counts.
            yield Step(name=f"ifb {direction.side} without IPv6", action=_command(*set_link, "addrgenmode", "none"))
        yield Step(name=f"ifb {direction.side} up", action=_command(*set_link, "up"))
    blocks = ("ingress_block", ids.block("ingress"), "egress_block", ids.block("egress"))
    undo = Undo(
        action=_tc("qdisc", "del", "dev", facts.device, "clsact"),
        check_argv=("tc", "-j", "qdisc", "show", "dev", "{name}"),
        check_output=f'"ingress_block":{ids.block("ingress")},',
        interface_index=facts.index,
    )
    yield Step(name="clsact", action=_tc("qdisc", "add", "dev", facts.device, *blocks, "clsact"), undo=(undo,))
    for side in (direction.side for direction in shaped):
        for connection in facts.ssh_connections:
            filter_words = (*_filter_words(tc_protocol(connection.flow), side, ids, _SSH_PRIORITIES), "flowid", "1:")
            for match in filter_matches(connection.flow, side):
                yield Step(name=f"exempt ssh {side}", action=_tc(*filter_words, *match))
    for side in (direction.side for direction in shaped):
        redirect = ("action", "mirred", "egress", "redirect", "dev", ids.ifb(side).selector)
        for flow in facts.flows:
            filter_words = _filter_words(tc_protocol(flow), side, ids, _PRIORITIES)
            for match in filter_matches(flow, side):
                yield Step(name=f"filter {side}", action=_tc(*filter_words, *match, *redirect))


def _filter_words(protocol: str, side: Side, ids: SessionIds, priorities: dict[str, str]) -> tuple[str, ...]:
    return ("filter", "add", "block", ids.block(side), "protocol", protocol, "prio", priorities[protocol], "u32")


def _ifb_steps(side: Side, ifb: OwnDevice, impairment: Impairment, mtu_bytes: int) -> Iterator[Step]:
    undo = Undo(
        action=_command("ip", "link", "del", "dev", ifb.selector),
        check_argv=_SHOW_LINK,
        check_output=f'"address":"{ifb.mac}"',
        interface_index=ifb.index,
    )
    words = ("ip", "link", "add", "name", ifb.name, "index", str(ifb.index), "address", ifb.mac, "type", "ifb")
    yield Step(name=f"ifb {side}", action=_command(*words), undo=(undo,))
    for line in netem.qdisc_lines(ifb.selector, impairment, mtu_bytes):
        # Both qdiscs may be netems.
        purpose = "rate" if f" handle {netem.BOTTLENECK_HANDLE} " in line else "netem"
        yield Step(name=f"queue {side}: {purpose}", action=_tc(*line.split()))


def _route_steps(facts: InterfaceFacts, profile: Profile, to: Destination) -> Iterator[Step]:
    """Yield the step that copies the route to the host, with the profile's TCP options and a locked MTU.

    An existing route to this host stays, and ours precedes it: IPv4 takes the first route of the same metric, so
    `prepend` is enough; IPv6 would use both in turn, so ours has a lower metric.
    """
    options = route_options(facts, profile, to)
    if not options:
        return
    family, target = f"-{to.address.version}", f"{to.address}/{to.address.max_prefixlen}"
    route, metric = to.route, to.route.host_priority
    verb = "prepend" if to.address.version == 4 else "add"
    if metric is not None and to.address.version == 6:
        metric -= 1
    # onlink: the gateway is reachable, even if no other route says how.
    hop = (*route.next_hop, "dev", facts.device, *(("onlink",) if route.next_hop else ()))
    place = ("table", route.table, *(("metric", str(metric)) if metric is not None else ()))
    source = ("src", route.source) if route.source else ()
    protocol = ("proto", ROUTE_PROTOCOL)
    words = (target, *hop, *place, *source, *protocol, *options)
    undo = Undo(
        action=_command("ip", family, "route", "del", *words),
        check_argv=("ip", family, "-j", "route", "show", target, "table", route.table, *protocol, "dev", "{name}"),
        check_output=f'"{to.address}"',
        interface_index=facts.index,
    )
    yield Step(name="route", action=_command("ip", family, "route", verb, *words), undo=(undo,))


def _restore_value(index: int, name: str, old: int, *, ours: int, address: str) -> Undo:
    """Return the undo that restores an old value if the device still has ours."""
    output = _shown_value(name, ours)
    return Undo(
        action=_set_value(index, name, old),
        check_argv=_SHOW_LINK,
        check_output=output,
        interface_index=index,
        interface_address=address,
    )


def _shown_value(name: str, value: int) -> str:
    """Return how `_SHOW_LINK` prints a value. A comma always follows the MTU; after the sizes it depends on `ip`."""
    return f'"{name}":{value}{"," if name == "mtu" else ""}'


def _set_value(index: int, name: str, value: int) -> Action:
    return _command("ip", "link", "set", "dev", f"if{index}", name, str(value))


def _tc(*words: str) -> Action:
    return _command("tc", *words)


def _command(*argv: str) -> Action:
    return Action(argv=argv)
