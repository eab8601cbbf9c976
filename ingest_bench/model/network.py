"""Links: network profiles, what each direction does to packets, real interfaces, and link checks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from ingest_bench.model.values import GIB, HOUR, Between, Host, Label, Length, Line, Pattern, Port, S, Share

DelayDistribution = Literal["uniform", "normal", "pareto", "paretonormal"]
Medium = Literal["loopback", "veth"]
Queue = Literal["fifo", "fq_codel", "cake", "red"]

# TCP's longest retransmission timeout is 120 s (include/net/tcp.h, TCP_RTO_MAX). tc's limit is 274 s: 32 bits of 64 ns.
Delay = Annotated[int, Between(0, 60 * S, "a round trip of two such ways is the longest that TCP waits for")]
# Slower, a packet of 1,500 bytes takes more than a second; two namespaces of one machine do not exceed the maximum.
Rate = Annotated[int, Between(10_000, 100 * 10**9, "one full packet a second; more than one machine passes on")]
# TCP gives up after 15 losses of one segment (tcp_retries2). At 99% loss it hardly ever succeeds.
Loss = Annotated[int, Between(0, 990_000, 'a link without any packet is a fault: kind = "partition"')]
Packets = Annotated[int, Between(0, 10**7, "ten million full packets are 15 GB of memory")]
Overhead = Annotated[int, Between(0, 65535, "the largest packet")]
# SOCK_MIN_RCVBUF is 2048 and the size of an sk_buff (include/net/sock.h); sysctl_tcp_rmem is an array of int.
BufferSizes = Annotated[
    tuple[Annotated[int, Between(2048, 2**31 - 1, "the smallest socket buffer; a C int")], ...],
    Length(3, 3, rising=True),
]
# dev_valid_name of the kernel allows 15 bytes except space, slash and colon; names in practice use only these.
InterfaceName = Annotated[
    str,
    Pattern(
        r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,14}",
        "an interface's name: at most 15 of A-Z, a-z, 0-9, dot, hyphen and underscore",
    ),
]
# TCP_CA_NAME_MAX is 16, including the terminating zero (include/net/tcp.h).
CongestionControl = Annotated[
    str,
    Pattern(r"[a-z0-9][a-z0-9_-]{0,14}", "a congestion control's name: at most 15 of a-z, 0-9, hyphen and underscore"),
]
# ETH_GSTRING_LEN is 32, including the terminating zero (include/uapi/linux/ethtool.h).
Feature = Annotated[
    str, Pattern(r"[a-z0-9][a-z0-9_-]{0,30}", "an offload's name: at most 31 of a-z, 0-9, hyphen and underscore")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Impairment:
    """Impairment of the packets in one direction of a link. The defaults do nothing.

    `rate_bps` is a bottleneck that spaces its packets, and with `burst_bytes` a token bucket (tc-tbf) that lets this
    many bytes pass at once after an idle period. `queue` is the queue of the bottleneck. The rest is netem (tc-netem).
    """

    rate_bps: Rate | None = None
    """Rate of the bottleneck."""
    queue: Queue = "fifo"
    """Queue of the bottleneck. All except `fifo` require `rate`, no `burst`, and `gso_max_segs = 1`."""
    burst_bytes: Annotated[int, Between(1, GIB, "100 ms at the highest rate")] | None = None
    """Bytes that pass at once after an idle period, at least one frame. None: packets are spaced."""
    delay_ns: Delay = 0
    """One-way delay of each packet."""
    jitter_ns: Delay = 0
    """Variation of the delay."""
    delay_correlation_ppm: Share = 0
    """Correlation of a packet's jitter with that of its predecessor."""
    distribution: DelayDistribution = "uniform"
    """Distribution of the jitter."""
    loss_ppm: Loss = 0
    """The share of packets that are lost, independently of each other."""
    loss_correlation_ppm: Share = 0
    """Correlation of a loss with the previous packet's."""
    loss_state_ppm: Annotated[tuple[Share, ...], Length(0, 5)] = ()
    """The 4-state model: p13 [p31 [p32 [p23 [p14]]]]."""
    loss_gemodel_ppm: Annotated[tuple[Share, ...], Length(0, 4)] = ()
    """Gilbert-Elliott: p [r [1-h [1-k]]]."""
    duplicate_ppm: Share = 0
    """The share of packets that are duplicated."""
    duplicate_correlation_ppm: Share = 0
    """Correlation with the previous packet."""
    corrupt_ppm: Loss = 0
    """The share of packets with one wrong bit, which TCP drops."""
    corrupt_correlation_ppm: Share = 0
    """Correlation with the previous packet."""
    reorder_ppm: Share = 0
    """The share of packets that are sent without delay and overtake delayed ones."""
    reorder_correlation_ppm: Share = 0
    """Correlation with the previous packet."""
    reorder_gap: Packets = 0
    """Every packet of this number is a candidate for reordering."""
    netem_rate_bps: Rate | None = None
    """netem's own rate: each packet is delayed by its size. For a bottleneck use `rate`."""
    packet_overhead_bytes: Overhead = 0
    """`netem_rate`: bytes added to each packet, such as a frame header."""
    cell_bytes: Overhead = 0
    """`netem_rate`: cell size, for links that send cells."""
    cell_overhead_bytes: Overhead = 0
    """`netem_rate`: bytes added to each cell."""
    slot_min_ns: Delay | None = None
    """Packets leave in slots: the shortest interval between slots."""
    slot_max_ns: Delay | None = None
    """The longest interval between slots."""
    slot_packets: Packets = 0
    """Maximum packets per slot; 0: unlimited."""
    slot_bytes: Annotated[int, Between(0, GIB, "netem counts them in a C int")] = 0
    """Maximum bytes per slot; 0: unlimited."""
    ecn: bool = False
    """Mark packets instead of dropping them, if both ends of the connection support ECN."""
    limit_packets: Annotated[int, Between(1, 10**7, "ten million full packets are 15 GB of memory")] | None = None
    """Queue limit; None: computed from rate and delay."""

    @property
    def needs_netem(self) -> bool:
        """Return whether a plain token bucket is not enough, so that the kernel's netem or another queue is needed."""
        plain = Impairment(rate_bps=self.rate_bps, burst_bytes=self.burst_bytes)
        return self != plain


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A named link state. `None` keeps the kernel's value."""

    name: Label
    """For a profile in a file the file's name, unless the file sets another one."""
    description: Line = ""
    """The kind of link, in one sentence."""
    medium: Medium = "veth"
    """Both ends on one `lo`, or a veth pair between two namespaces."""
    mtu_bytes: Annotated[int, Between(576, 65536, "what every IPv4 host takes, RFC 791; lo's own")] = 1500
    """The largest IP packet."""
    gso_max_segs: Annotated[int, Between(1, 65535, "GSO_MAX_SEGS of Linux")] | None = None
    """Maximum segments that the kernel hands to the link at once; 1: each packet has its real size."""
    # The kernel refuses less than a TCP header (net/core/rtnetlink.c); the maximum is GSO_MAX_SIZE.
    gso_max_size_bytes: Annotated[int, Between(512, 524280, "GSO_MAX_SIZE of Linux")] | None = None
    """Maximum bytes that the kernel hands to the link at once."""
    gro_max_size_bytes: Annotated[int, Between(512, 524280, "GRO_MAX_SIZE of Linux")] | None = None
    """Maximum received bytes that it merges into one packet."""
    offloads: Annotated[dict[Feature, bool], Length(0, 64)] = field(default_factory=dict)
    """Features by ethtool's names ("tso", "gso", "gro", "lro" …) or the kernel's ("rx-udp-gro-forwarding" …)."""
    congestion_control: CongestionControl | None = None
    """None: cubic on a simulated link; the host's setting on a real interface."""
    tcp_rmem_bytes: BufferSizes | None = None
    """Minimum, default and maximum, as net.ipv4.tcp_rmem: "4096 131072 6291456"."""
    tcp_wmem_bytes: BufferSizes | None = None
    """The same for the send buffer, as net.ipv4.tcp_wmem."""
    mss_bytes: Annotated[int, Between(88, 65495, "TCP_MIN_MSS of Linux; the largest packet without headers")] | None = (
        None
    )
    """The MSS that each side announces (advmss of the route); None: derived from the MTU."""
    to_server: Impairment = Impairment()
    """Impairment of packets towards the server."""
    to_client: Impairment = Impairment()
    """Impairment of packets towards the client."""

    @property
    def link_congestion_control(self) -> str:
        """Return the congestion control of a simulated link, the same on all machines (kernel defaults differ)."""
        return self.congestion_control or "cubic"

    @property
    def needs_netem(self) -> bool:
        """Return whether either direction needs the kernel's netem."""
        return self.to_server.needs_netem or self.to_client.needs_netem


@dataclass(frozen=True, slots=True, order=True)
class LinkName:
    """One link of a run: from the clients to one node, or between two nodes, by node numbers."""

    nodes: tuple[int, ...]

    @property
    def kind(self) -> Literal["clients", "peers"]:
        """Return "clients" for a link with one node, "peers" for a link between nodes."""
        return "clients" if len(self.nodes) == 1 else "peers"

    def __str__(self) -> str:
        return "-".join((self.kind, *map(str, self.nodes)))


@dataclass(frozen=True, slots=True)
class PortRange:
    """TCP ports from first to last, both included."""

    first: Port
    last: Port

    def __str__(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


Ports = Annotated[tuple[PortRange, ...], Length(0, 50, separator=",")]


@dataclass(frozen=True, slots=True)
class RemoteAddress:
    """The remote end of connections: a host or a network, and its ports."""

    host: Host
    prefix_bits: Annotated[int, Between(0, 128, "the bits of an IPv6 address")] | None = None
    """Prefix length of a network; None: a single host."""
    ports: Ports = ()
    """Empty: all."""

    def __str__(self) -> str:
        network = self.host if self.prefix_bits is None else f"{self.host}/{self.prefix_bits}"
        ports = ",".join(map(str, self.ports))
        return f"{f'[{network}]' if ':' in network else network}:{ports}" if ports else network


@dataclass(frozen=True, slots=True, kw_only=True)
class RealInterface:
    """A real interface, the connections over it that are shaped, and which shared settings may be changed."""

    name: InterfaceName
    """The interface."""
    to: Annotated[tuple[RemoteAddress, ...], Length(0, 50)] = ()
    """Remote ends of the shaped connections."""
    port: Ports = ()
    """Local ports: the server runs here, and `to` restricts the clients (empty: all)."""
    allow_default_route: bool = False
    """Shape the interface even if it has the default route."""
    interface_mtu: bool = False
    """Change the MTU of the interface instead of the route's."""
    shared_settings: bool = False
    """Allow changes that affect other traffic: the interface's offloads and GSO sizes, tcp_rmem and tcp_wmem."""
    ssh_limit_ns: Annotated[int, Between(S, 7 * 24 * HOUR, "at most 7 days")] = 600 * S
    """Maximum duration if the terminal's SSH connection uses the interface, so that a lockout ends by itself."""

    @property
    def traffic(self) -> str:
        """Return the shaped connections in words."""
        ends = ", ".join(map(str, self.to))
        return f"from {ends or 'any client'} to port {','.join(map(str, self.port))}" if self.port else f"to {ends}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLimit:
    """Time limit of a shaped real interface."""

    for_ns: Annotated[int, Between(S, 7 * 24 * HOUR, "at most 7 days")]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkCheck:
    """One expected property of the link, and its measurement before the load."""

    name: Line
    expected: Line
    measured: Line
    tolerance: Line
    passed: bool | None
    """None: it could not be measured."""
    link: Line = ""
    """The link's name if there are several."""
