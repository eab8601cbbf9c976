"""The link: profiles, and what each direction does to packets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

DelayDistribution = Literal["uniform", "normal", "pareto", "paretonormal"]
Medium = Literal["loopback", "veth"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Impairment:
    """What one direction of a link does to its packets. The defaults do nothing.

    `rate_bps` with `burst_bytes` is a token bucket (tc-tbf); everything else is netem (tc-netem).
    """

    rate_bps: int | None = None
    burst_bytes: int | None = None
    delay_ns: int = 0
    jitter_ns: int = 0
    delay_correlation_ppm: int = 0
    distribution: DelayDistribution = "uniform"
    loss_ppm: int = 0
    loss_correlation_ppm: int = 0
    loss_state_ppm: tuple[int, ...] = ()
    """The 4-state model: p13 [p31 [p32 [p23 [p14]]]]."""
    loss_gemodel_ppm: tuple[int, ...] = ()
    """Gilbert-Elliott: p [r [1-h [1-k]]]."""
    duplicate_ppm: int = 0
    duplicate_correlation_ppm: int = 0
    corrupt_ppm: int = 0
    corrupt_correlation_ppm: int = 0
    reorder_ppm: int = 0
    reorder_correlation_ppm: int = 0
    reorder_gap: int = 0
    netem_rate_bps: int | None = None
    packet_overhead_bytes: int = 0
    cell_bytes: int = 0
    cell_overhead_bytes: int = 0
    slot_min_ns: int | None = None
    slot_max_ns: int | None = None
    slot_packets: int = 0
    slot_bytes: int = 0
    ecn: bool = False
    limit_packets: int | None = None

    @property
    def needs_netem(self) -> bool:
        """Whether the kernel's netem is needed, and not just a token bucket."""
        plain = Impairment(rate_bps=self.rate_bps, burst_bytes=self.burst_bytes)
        return self != plain


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A named state of the link. `None` leaves what the kernel chose."""

    name: str
    description: str = ""
    medium: Medium = "veth"
    mtu_bytes: int = 1500
    gso_max_segs: int | None = None
    gso_max_size_bytes: int | None = None
    gro_max_size_bytes: int | None = None
    offloads: dict[str, bool] = field(default_factory=dict)
    """Features by ethtool's names ("tso", "gso", "gro", "lro" …) or the kernel's ("rx-udp-gro-forwarding" …)."""
    congestion_control: str | None = "cubic"
    tcp_rmem: str | None = None
    """"min default max" in bytes, as net.ipv4.tcp_rmem."""
    tcp_wmem: str | None = None
    mss_bytes: int | None = None
    """The MSS that each side announces (advmss of the route); None: what the MTU gives."""
    to_server: Impairment = Impairment()
    to_client: Impairment = Impairment()

    @property
    def needs_netem(self) -> bool:
        """Whether either direction needs the kernel's netem."""
        return self.to_server.needs_netem or self.to_client.needs_netem


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """One thing that a profile promised about the link, and what was measured before the load started."""

    name: str
    promised: str
    measured: str
    tolerance: str
    kept: bool
