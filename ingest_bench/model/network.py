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
    queue: Queue = "fifo"
    burst_bytes: Annotated[int, Between(1, GIB, "100 ms at the highest rate")] | None = None
    delay_ns: Delay = 0
    jitter_ns: Delay = 0
    delay_correlation_ppm: Share = 0
    distribution: DelayDistribution = "uniform"
    loss_ppm: Loss = 0
    loss_correlation_ppm: Share = 0
    loss_state_ppm: Annotated[tuple[Share, ...], Several(0, 5)] = ()
    """The 4-state model: p13 [p31 [p32 [p23 [p14]]]]."""
    loss_gemodel_ppm: Annotated[tuple[Share, ...], Several(0, 4)] = ()
    """Gilbert-Elliott: p [r [1-h [1-k]]]."""
    duplicate_ppm: Share = 0
    duplicate_correlation_ppm: Share = 0
    corrupt_ppm: Loss = 0
    corrupt_correlation_ppm: Share = 0
    reorder_ppm: Share = 0
    reorder_correlation_ppm: Share = 0
    reorder_gap: Packets = 0
    netem_rate_bps: Rate | None = None
    packet_overhead_bytes: Overhead = 0
    cell_bytes: Overhead = 0
    cell_overhead_bytes: Overhead = 0
    slot_min_ns: Delay | None = None
    slot_max_ns: Delay | None = None
    slot_packets: Packets = 0
    slot_bytes: Annotated[int, Between(0, GIB, "netem counts them in a C int")] = 0
    ecn: bool = False
    limit_packets: Annotated[int, Between(1, 10**7, "so many full packets are 15 GB of memory")] | None = None

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
    description: Line = ""
    medium: Medium = "veth"
    mtu_bytes: Annotated[int, Between(576, 65536, "what every IPv4 host takes, RFC 791; lo's own")] = 1500
    gso_max_segs: Annotated[int, Between(1, 65535, "GSO_MAX_SEGS of Linux")] | None = None
    # Less than a header of TCP is refused by the kernel (net/core/rtnetlink.c); the end is GSO_MAX_SIZE.
    gso_max_size_bytes: Annotated[int, Between(512, 524280, "GSO_MAX_SIZE of Linux")] | None = None
    gro_max_size_bytes: Annotated[int, Between(512, 524280, "GRO_MAX_SIZE of Linux")] | None = None
    offloads: Annotated[dict[Feature, bool], Several(0, 64)] = field(default_factory=dict)
    """Features by ethtool's names ("tso", "gso", "gro", "lro" …) or the kernel's ("rx-udp-gro-forwarding" …)."""
    congestion_control: CongestionControl | None = None
    """None: on a link of ours `LINK_CONGESTION_CONTROL`, on a real interface what the host has for this way."""
    tcp_rmem_bytes: BufferSizes | None = None
    """Least, default, most, as net.ipv4.tcp_rmem: "4096 131072 6291456"."""
    tcp_wmem_bytes: BufferSizes | None = None
    mss_bytes: Annotated[int, Between(88, 65495, "TCP_MIN_MSS of Linux; the largest packet without headers")] | None = (
        None
    )
    """The MSS that each side announces (advmss of the route); None: what the MTU gives."""
    to_server: Impairment = Impairment()
    to_client: Impairment = Impairment()

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
    to: Annotated[tuple[FarEnd, ...], Several(0, 50)] = ()
    port: Ports = ()
    """Ports of our own: the server is here, and `to` says whose connections (none: anybody's)."""
    allow_default_route: bool = False
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
