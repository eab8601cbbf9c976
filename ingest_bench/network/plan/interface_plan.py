"""What is done to a real interface so that one flow is shaped, and how it is taken back. Pure.

    to the server:  root htb ── u32 filter ──▶ class ──▶ netem, token bucket      everything else: htb's direct queue
    to the client:  ingress ── u32 filter ──▶ mirred ──▶ ifb ──▶ netem, token bucket      everything else: untouched
    MTU, MSS, congestion control: a route of its own to that host

htb and not prio: both put a filter's choice into a class, but htb lets the rest pass by any class at full speed, and
kernels that are built small have it more often.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingest_bench.ledger import Action, Step, Undo
from ingest_bench.network.plan import commands, features, netem
from ingest_bench.network.plan.commands import buffers
from ingest_bench.network.plan.interface_rules import refuse, shapes, tcp_words, wanted_sizes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ingest_bench.model.network import Profile
    from ingest_bench.network.plan.interface_rules import Asked, Found

# Handles and a route protocol that nobody else has, so that the undo meets only what is ours. Protocols above 3 mean
# nothing to the kernel (include/uapi/linux/rtnetlink.h); /etc/iproute2/rt_protos has no 198.
ROOT, INGRESS = "5be7:", "ffff:"
ROUTE_PROTOCOL = "198"
# What ip and tc say of a device that is not there any more.
_GONE = ("Cannot find device", "does not exist")
# More than any link of today, so that the class itself never shapes; the burst is what it sends in 0.1 ms.
_CLASS = ("rate", "100gbit", "burst", "1m", "cburst", "1m", "quantum", "200000")
# The length of htb's direct queue is the device's txqueuelen, which may be 0; 1000 is Ethernet's.
_HTB = ("default", "0", "direct_qlen", "1000")


def plan(found: Found, asked: Asked) -> tuple[Step, ...]:
    """The steps in their order; SpecError when this interface must not be touched."""
    refuse(found, asked)
    return (
        *_sysctls(found, asked.profile),
        *_offloads(found, asked.profile),
        *_sizes(found, asked.profile),
        *_interface_mtu(found, asked),
        *_to_client(found, asked),
        *_to_server(found, asked),
        *_route(found, asked),
    )


def _sysctls(found: Found, profile: Profile) -> Iterator[Step]:
    for name, value in buffers(profile).items():
        path = f"/proc/sys/net/ipv4/{name}"
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
            do=Action(argv=commands.offloads(found.interface, changes)),
            undo=(_while_there(found, *commands.offloads(found.interface, old)),),
        )


def _sizes(found: Found, profile: Profile) -> Iterator[Step]:
    """One step for each size. The kernel changes the IPv4 size with the other one, so both are put back."""
    for name, size in wanted_sizes(profile).items():
        if found.sizes.get(name) == size:
            continue
        old = [(name, found.sizes[name])]
        twin = name.replace("_max_size", "_ipv4_max_size")
        if twin != name and twin in found.sizes:
            old.append((twin, found.sizes[twin]))
        yield Step(
            name=name,
            do=_command("ip", "link", "set", "dev", found.interface, name, str(size)),
            undo=tuple(_while_there(found, "ip", "link", "set", "dev", found.interface, n, str(v)) for n, v in old),
        )


def _interface_mtu(found: Found, asked: Asked) -> Iterator[Step]:
    """The MTU of the interface. The kernel resets the MTU of its IPv6 with it, which a router may have set."""
    if not asked.interface_mtu or asked.profile.mtu_bytes == found.mtu_bytes:
        return
    undo = [_while_there(found, "ip", "link", "set", "dev", found.interface, "mtu", str(found.mtu_bytes))]
    if found.ipv6_mtu_bytes is not None:
        path = f"/proc/sys/net/ipv6/conf/{found.interface}/mtu"
        undo.append(Undo(action=Action(path=path, value=str(found.ipv6_mtu_bytes))))
    mtu = str(asked.profile.mtu_bytes)
    yield Step(
        name="interface mtu", do=_command("ip", "link", "set", "dev", found.interface, "mtu", mtu), undo=tuple(undo)
    )


def _to_server(found: Found, asked: Asked) -> Iterator[Step]:
    if not shapes(asked.profile.to_server):
        return
    device, flow = found.interface, f"{ROOT}1"
    yield Step(
        name="root",
        do=_tc("qdisc", "add", "dev", device, "root", "handle", ROOT, "htb", *_HTB),
        undo=(_qdisc_gone(device, ROOT, "root"),),
    )
    yield Step(name="class", do=_tc("class", "add", "dev", device, "parent", ROOT, "classid", flow, "htb", *_CLASS))
    for line in netem.lines(device, asked.profile.to_server, asked.profile.mtu_bytes, parent=f"parent {flow}"):
        yield Step(name=f"queue to server: {_kind(line)}", do=_tc(*line.split()))
    yield Step(
        name="filter to server",
        do=_tc("filter", "add", "dev", device, "parent", ROOT, *_match(found, "d", asked.port), "flowid", flow),
    )


def _to_client(found: Found, asked: Asked) -> Iterator[Step]:
    """The other direction: what arrives is led through a device of its own, and goes on as if it just arrived."""
    if not shapes(asked.profile.to_client):
        return
    device, ifb = found.interface, found.ifb
    there = ("ip", "-j", "link", "show", "dev", ifb)
    yield Step(
        name="ifb",
        do=_command("ip", "link", "add", "name", ifb, "type", "ifb"),
        undo=(Undo(action=_command("ip", "link", "del", "dev", ifb), look=there, shows=f'"{ifb}"', gone=_GONE),),
    )
    for line in netem.lines(ifb, asked.profile.to_client, asked.profile.mtu_bytes):
        yield Step(name=f"queue to client: {_kind(line)}", do=_tc(*line.split()))
    yield Step(name="ifb up", do=_command("ip", "link", "set", "dev", ifb, "up"))
    yield Step(
        name="ingress",
        do=_tc("qdisc", "add", "dev", device, "handle", INGRESS, "ingress"),
        undo=(_qdisc_gone(device, INGRESS, "ingress"),),
    )
    redirect = ("action", "mirred", "egress", "redirect", "dev", ifb)
    yield Step(
        name="redirect to client",
        do=_tc("filter", "add", "dev", device, "parent", INGRESS, *_match(found, "s", asked.port), *redirect),
    )


def _route(found: Found, asked: Asked) -> Iterator[Step]:
    """The way to the host, as it is, but with its own MTU (locked: no discovery), MSS and congestion control."""
    words = tcp_words(found, asked)
    if not words:
        return
    family, target = f"-{found.address.version}", f"{found.address}/{found.address.max_prefixlen}"
    way = [target, *(("via", found.gateway) if found.gateway else ()), "dev", found.interface]
    source = ("src", found.source) if found.source else ()
    ours = ("proto", ROUTE_PROTOCOL)
    undo = Undo(
        action=_command("ip", family, "route", "del", *way, *ours),
        look=("ip", family, "-j", "route", "show", target, *ours, "dev", found.interface),
        shows=f'"{found.address}"',
        gone=_GONE,
    )
    yield Step(name="route", do=_command("ip", family, "route", "add", *way, *source, *ours, *words), undo=(undo,))


def _match(found: Found, side: str, port: int) -> tuple[str, ...]:
    """The u32 filter for TCP packets to ("d") or from ("s") the host and port."""
    ip, protocol = ("ip", "ip") if found.address.version == 4 else ("ip6", "ipv6")
    end = {"d": ("dst", "dport"), "s": ("src", "sport")}[side]
    return (
        *("protocol", protocol, "prio", "1", "u32"),
        *("match", ip, end[0], f"{found.address}/{found.address.max_prefixlen}"),
        *("match", ip, "protocol", "6", "0xff"),
        *("match", ip, end[1], str(port), "0xffff"),
    )


def _kind(line: str) -> str:
    """What a queue is for: two of them may be netems."""
    return "rate" if f" handle {netem.BOTTLENECK} " in line else "netem"


def _qdisc_gone(device: str, handle: str, place: str) -> Undo:
    return Undo(
        action=_tc("qdisc", "del", "dev", device, *(("root", "handle", handle) if place == "root" else (place,))),
        look=("tc", "-j", "qdisc", "show", "dev", device),
        shows=f'"handle":"{handle}"',
        gone=_GONE,
    )


def _while_there(found: Found, *argv: str) -> Undo:
    """An undo that is needed as long as the interface exists."""
    look = ("ip", "-j", "link", "show", "dev", found.interface)
    return Undo(action=_command(*argv), look=look, shows=f'"ifname":"{found.interface}"', gone=_GONE)


def _tc(*words: str) -> Action:
    return _command("tc", *words)


def _command(*argv: str) -> Action:
    return Action(argv=argv)
