"""The link: profiles, and what each direction does to packets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from ingest_bench.model.values import GIB, HOUR, Between, Form, Host, Label, Line, Port, S, Several, Share

DelayDistribution = Literal["uniform", "normal", "pareto", "paretonormal"]
Medium = Literal["loopback", "veth"]
Queue = Literal["fifo", "fq_codel", "cake", "red"]

# TCP waits 120 s for a round trip at most (include/net/tcp.h, TCP_RTO_MAX). tc's own end is 274 s: 32 bits of 64 ns.
Delay = Annotated[int, Between(0, 60 * S, "a round trip of two such ways is the longest that TCP waits for")]
# Slower, one packet of 1,500 bytes takes more than a second; faster is more than two namespaces of one machine do.
Rate = Annotated[int, Between(10_000, 100 * 10**9, "one full packet a second; more than one machine passes on")]
# TCP sends nothing more after 15 losses of one segment (tcp_retries2): at 99% it hardly ever gets there.
Loss = Annotated[int, Between(0, 990_000, 'a link without any packet is a fault: kind = "partition"')]
Packets = Annotated[int, Between(0, 10**7, "so many full packets are 15 GB of memory")]
Overhead = Annotated[int, Between(0, 65535, "the largest packet")]
# include/net/sock.h, SOCK_MIN_RCVBUF is 2048 and the size of an sk_buff; sysctl_tcp_rmem is an array of int.
BufferSizes = Annotated[
    tuple[Annotated[int, Between(2048, 2**31 - 1, "what a socket has at least; a C int")], ...],
    Several(3, 3, rising=True),
]
# The kernel's dev_valid_name has 15 bytes of anything but space, slash and colon. Nobody uses more than these.
InterfaceName = Annotated[
    str,
    Form(
        r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,14}",
        "an interface's name: at most 15 of A-Z, a-z, 0-9, dot, hyphen and underscore",
    ),
]
# include/net/tcp.h, TCP_CA_NAME_MAX is 16 with the end of the text.
CongestionControl = Annotated[
    str,
    Form(r"[a-z0-9][a-z0-9_-]{0,14}", "a congestion control's name: at most 15 of a-z, 0-9, hyphen and underscore"),
]
# include/uapi/linux/ethtool.h, ETH_GSTRING_LEN is 32 with the end of the text.
Feature = Annotated[
    str, Form(r"[a-z0-9][a-z0-9_-]{0,30}", "an offload's name: at most 31 of a-z, 0-9, hyphen and underscore")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Impairment:
    """What one direction of a link does to its packets. The defaults do nothing.

    `rate_bps` is a bottleneck that spaces its packets, and with `burst_bytes` a token bucket (tc-tbf) that lets as much
    pass at once after a pause. `queue` is what waits there. Everything else is netem (tc-netem).
    """

    rate_bps: Rate | None = None
    """The bottleneck: packets leave one after the other at this rate."""
    queue: Queue = "fifo"
    """What waits before the bottleneck. All but `fifo` need a `rate`, no `burst`, and `gso_max_segs = 1`."""
    burst_bytes: Annotated[int, Between(1, GIB, "100 ms at the highest rate")] | None = None
    """So much passes at once after a pause, at least a frame. None: packets are spaced."""
    delay_ns: Delay = 0
    """How long each packet is under way."""
    jitter_ns: Delay = 0
    """How far the delay varies around that."""
    delay_correlation_ppm: Share = 0
    """How much a packet's jitter depends on that of the one before."""
    distribution: DelayDistribution = "uniform"
    """How the jitter is distributed."""
    loss_ppm: Loss = 0
    """The share of packets that are lost, each by itself."""
    loss_correlation_ppm: Share = 0
    """How much a loss depends on the one before."""
    loss_state_ppm: Annotated[tuple[Share, ...], Several(0, 5)] = ()
    """The 4-state model: p13 [p31 [p32 [p23 [p14]]]]."""
    loss_gemodel_ppm: Annotated[tuple[Share, ...], Several(0, 4)] = ()
    """Gilbert-Elliott: p [r [1-h [1-k]]]."""
    duplicate_ppm: Share = 0
    """The share of packets that come twice."""
    duplicate_correlation_ppm: Share = 0
    """How much that depends on the packet before."""
    corrupt_ppm: Loss = 0
    """The share of packets in which a bit is wrong, which TCP throws away."""
    corrupt_correlation_ppm: Share = 0
    """How much that depends on the packet before."""
    reorder_ppm: Share = 0
    """The share of packets that are sent at once and overtake those that are delayed."""
    reorder_correlation_ppm: Share = 0
    """How much that depends on the packet before."""
    reorder_gap: Packets = 0
    """Every packet of this number is a candidate for it."""
    netem_rate_bps: Rate | None = None
    """netem's own rate: each packet is delayed by its size. A bottleneck is `rate`."""
    packet_overhead_bytes: Overhead = 0
    """Of `netem_rate`: bytes that are added to each packet, such as its frame's."""
    cell_bytes: Overhead = 0
    """Of `netem_rate`: the size of a cell, for links that send cells."""
    cell_overhead_bytes: Overhead = 0
    """Of `netem_rate`: bytes that are added to each cell."""
    slot_min_ns: Delay | None = None
    """Packets leave in slots: the shortest time from one to the next."""
    slot_max_ns: Delay | None = None
    """The longest time from one slot to the next."""
    slot_packets: Packets = 0
    """How many packets leave in a slot; 0: any number."""
    slot_bytes: Annotated[int, Between(0, GIB, "netem counts them in a C int")] = 0
    """How many bytes leave in a slot; 0: any number."""
    ecn: bool = False
    """Mark packets in place of dropping them, where both ends of the connection can do ECN."""
    limit_packets: Annotated[int, Between(1, 10**7, "so many full packets are 15 GB of memory")] | None = None
    """How many packets may wait; None: computed from rate and delay."""

    @property
    def needs_netem(self) -> bool:
        """Whether the kernel's netem or another queue is needed, and so a box, and not just a token bucket."""
        plain = Impairment(rate_bps=self.rate_bps, burst_bytes=self.burst_bytes)
        return self != plain


LINK_CONGESTION_CONTROL = "cubic"


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A named state of the link. `None` leaves what the kernel chose."""

    name: Label
    """Of a profile in a file the file's name, unless it says another one."""
    description: Line = ""
    """What the link is like, in a sentence."""
    medium: Medium = "veth"
    """Both ends on one `lo`, or a veth pair between two namespaces."""
    mtu_bytes: Annotated[int, Between(576, 65536, "what every IPv4 host takes, RFC 791; lo's own")] = 1500
    """The largest IP packet."""
    gso_max_segs: Annotated[int, Between(1, 65535, "GSO_MAX_SEGS of Linux")] | None = None
    """How many segments the kernel hands to the link at once; 1: each packet is one of real size."""
    # Less than a header of TCP is refused by the kernel (net/core/rtnetlink.c); the end is GSO_MAX_SIZE.
    gso_max_size_bytes: Annotated[int, Between(512, 524280, "GSO_MAX_SIZE of Linux")] | None = None
    """How many bytes it hands to the link at once."""
    gro_max_size_bytes: Annotated[int, Between(512, 524280, "GRO_MAX_SIZE of Linux")] | None = None
    """How many received bytes it joins to one packet."""
    offloads: Annotated[dict[Feature, bool], Several(0, 64)] = field(default_factory=dict)
    """Features by ethtool's names ("tso", "gso", "gro", "lro" …) or the kernel's ("rx-udp-gro-forwarding" …)."""
    congestion_control: CongestionControl | None = None
    """None: on a link of ours cubic, on a real interface what the host has for this way."""
    tcp_rmem_bytes: BufferSizes | None = None
    """Least, default, most, as net.ipv4.tcp_rmem: "4096 131072 6291456"."""
    tcp_wmem_bytes: BufferSizes | None = None
    """The same of the send buffer, as net.ipv4.tcp_wmem."""
    mss_bytes: Annotated[int, Between(88, 65495, "TCP_MIN_MSS of Linux; the largest packet without headers")] | None = (
        None
    )
    """The MSS that each side announces (advmss of the route); None: what the MTU gives."""
    to_server: Impairment = Impairment()
    """What is done to packets on their way to the server."""
    to_client: Impairment = Impairment()
    """What is done to packets on their way back."""

    @property
    def link_congestion_control(self) -> str:
        """What a link of ours has: the same on every machine. Kernels differ in their own default."""
        return self.congestion_control or LINK_CONGESTION_CONTROL

    @property
    def needs_netem(self) -> bool:
        """Whether either direction needs the kernel's netem."""
        return self.to_server.needs_netem or self.to_client.needs_netem


@dataclass(frozen=True, slots=True, order=True)
class LinkName:
    """One link of a run, by the numbers of the nodes that it leads to: one from the clients, two between nodes."""

    nodes: tuple[int, ...]

    @property
    def kind(self) -> Literal["clients", "peers"]:
        """Whose link it is."""
        return "clients" if len(self.nodes) == 1 else "peers"

    def __str__(self) -> str:
        return "-".join((self.kind, *map(str, self.nodes)))


@dataclass(frozen=True, slots=True)
class PortRange:
    """TCP ports from the first to the last one, both among them."""

    first: Port
    last: Port

    def __str__(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


Ports = Annotated[tuple[PortRange, ...], Several(0, 50, separator=",")]


@dataclass(frozen=True, slots=True)
class FarEnd:
    """The far end of connections: a host or a network, and its ports."""

    host: Host
    prefix_bits: Annotated[int, Between(0, 128, "the bits of an IPv6 address")] | None = None
    """Of a network, the bits that all its addresses have in common; None: it is one host."""
    ports: Ports = ()
    """Empty: any."""

    def __str__(self) -> str:
        network = self.host if self.prefix_bits is None else f"{self.host}/{self.prefix_bits}"
        ports = ",".join(map(str, self.ports))
        return f"{f'[{network}]' if ':' in network else network}:{ports}" if ports else network


@dataclass(frozen=True, slots=True, kw_only=True)
class RealLink:
    """A real interface, the connections over it that are shaped together, and what else may be changed for them."""

    name: InterfaceName
    """The interface."""
    to: Annotated[tuple[FarEnd, ...], Several(0, 50)] = ()
    """The far ends of the connections that are shaped."""
    port: Ports = ()
    """Ports of our own: the server is here, and `to` says whose connections (none: anybody's)."""
    allow_default_route: bool = False
    """Shape an interface that has the default route, too."""
    interface_mtu: bool = False
    """Change the MTU of the interface and not that of the route."""
    shared_settings: bool = False
    """Change what other traffic feels too: offloads and GSO sizes of the interface, tcp_rmem and tcp_wmem."""
    ssh_limit_ns: Annotated[int, Between(S, 7 * 24 * HOUR, "longer, nobody remembers it")] = 600 * S
    """How long at most, where an SSH connection of our terminal runs over it: who is cut off gets in again then."""

    @property
    def ends(self) -> str:
        """Whose connections, in words."""
        ends = ", ".join(map(str, self.to))
        return f"from {ends or 'anybody'} to port {','.join(map(str, self.port))}" if self.port else f"to {ends}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLimit:
    """How long a real interface is shaped."""

    for_ns: Annotated[int, Between(S, 7 * 24 * HOUR, "longer, nobody remembers it")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """One thing that a profile promised about the link, and what was measured before the load started."""

    name: str
    promised: str
    measured: str
    tolerance: str
    kept: bool | None
    """None: it could not be measured."""
    link: str = ""
    """Which link, where there are several."""
