"""What a profile promises, as numbers, and how much must be sent to find out. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ingest_bench.network import losses
from ingest_bench.network.netem import ETHERNET_HEADER_BYTES

if TYPE_CHECKING:
    from ingest_bench.model.network import Impairment, Profile

_MILLION = 10**6
IP_TCP_HEADERS_BYTES = 40
# RFC 7323: each segment carries 10 bytes of timestamps, padded to 12.
TIMESTAMPS_BYTES = 12
# The largest IPv4 packet; an MTU above it (lo has 65536) cannot be tried to the last byte.
LARGEST_PACKET_BYTES = 65535

_PROBE_FRAME_BYTES = 128 + ETHERNET_HEADER_BYTES
# Python sends and receives this many datagrams a second beside other work.
_MOST_PROBES_PER_S = 20_000
_FEWEST_PROBES, _MOST_PROBES = 1000, 20_000
# A share is known well enough when so many of its events are expected.
_EVENTS = 30


def mss_bytes(profile: Profile) -> int:
    """The payload of a full TCP segment."""
    announced = min(profile.mtu_bytes, LARGEST_PACKET_BYTES) - IP_TCP_HEADERS_BYTES
    return min(announced, profile.mss_bytes or announced) - TIMESTAMPS_BYTES


def full_frame_bytes(profile: Profile) -> int:
    """A full segment on the wire, with its Ethernet header."""
    return mss_bytes(profile) + TIMESTAMPS_BYTES + IP_TCP_HEADERS_BYTES + ETHERNET_HEADER_BYTES


def rate_bps(impairment: Impairment) -> int | None:
    """The narrower of the two bottlenecks that a direction may have."""
    rates = [rate for rate in (impairment.rate_bps, impairment.netem_rate_bps) if rate is not None]
    return min(rates) if rates else None


def delay_ns(impairment: Impairment) -> float:
    """The delay of most packets; with jitter the mean delay, which those that overtake make less."""
    hurried = (reordered_share(impairment) or 0) if impairment.jitter_ns else 0
    return impairment.delay_ns * (1 - hurried)


def longest_delay_s(impairment: Impairment) -> float:
    """Long enough for all but a freak of a packet, on an idle link."""
    slot_ns = impairment.slot_max_ns or impairment.slot_min_ns or 0
    return (impairment.delay_ns + 4 * impairment.jitter_ns + slot_ns) / 1e9


def jitter_ns(impairment: Impairment) -> float | None:
    """The standard deviation of the delay; None where none is promised.

    netem's tables have the jitter as their standard deviation; without a table it is uniform between -jitter and
    jitter. Each random number keeps its correlation's share of the last one, which narrows the spread. A delay that
    would be negative is none, so twice the jitter must fit into the delay.
    """
    if not impairment.jitter_ns or impairment.delay_ns < 2 * impairment.jitter_ns or impairment.delay_correlation_ppm:
        return None
    return impairment.jitter_ns / math.sqrt(3) if impairment.distribution == "uniform" else float(impairment.jitter_ns)


def reordered_share(impairment: Impairment) -> float | None:
    """The share of packets that overtake: of each `gap` packets one may, with the reorder's chance."""
    if not impairment.reorder_ppm or impairment.reorder_correlation_ppm:
        return None
    chance, gap = impairment.reorder_ppm / _MILLION, max(1, impairment.reorder_gap)
    return 1 / (gap - 1 + 1 / chance)


@dataclass(frozen=True, slots=True)
class Burst:
    """How many probes are sent, and how fast."""

    count: int
    per_s: int


def burst(impairment: Impairment, attempt: int) -> Burst:
    """Enough probes to tell the shares of loss and its kin, at most half of what the link carries."""
    rate = rate_bps(impairment)
    per_s = _MOST_PROBES_PER_S if rate is None else min(_MOST_PROBES_PER_S, rate // (2 * 8 * _PROBE_FRAME_BYTES))
    shares = [losses.share(impairment) or 0, impairment.duplicate_ppm / _MILLION, reordered_share(impairment) or 0]
    wanted = [_EVENTS * losses.variance_factor(impairment) / share for share in shares if share]
    count = min(_MOST_PROBES, max(_FEWEST_PROBES, *map(math.ceil, wanted), 0))
    # On a slow link so many would take too long; a wider interval says so.
    return Burst(count=max(50, min(count, per_s)) * attempt, per_s=max(1, per_s))


def pings(impairments: tuple[Impairment, Impairment], attempt: int) -> Burst:
    """A round trip's probes: more where jitter scatters them, slower where the link is slow."""
    count = 300 if any(impairment.jitter_ns for impairment in impairments) else 50
    return Burst(count=count * attempt, per_s=min(1000, *(burst(impairment, 1).per_s for impairment in impairments)))


@dataclass(frozen=True, slots=True)
class Flood:
    """How long and how fast packets are sent to find a rate."""

    seconds: float
    per_s: int


def flood(impairment: Impairment, mtu_bytes: int, attempt: int) -> Flood:
    """Half more than the link carries after its losses, long enough for 300 full packets."""
    frames_per_s = (rate_bps(impairment) or 0) / (8 * (mtu_bytes + ETHERNET_HEADER_BYTES))
    arrives = 1 - min(0.5, losses.share(impairment) or 0)
    seconds = min(3.0, max(0.3, 300 / frames_per_s))
    return Flood(seconds=seconds * attempt, per_s=math.ceil(1.5 * frames_per_s / arrives))


def transfer_bytes(impairment: Impairment, seconds: float) -> int:
    """How much a short transfer may write: what the link carries in that time, and always some full segments."""
    rate = rate_bps(impairment)
    return 16 << 20 if rate is None else max(64 << 10, int(rate * seconds / 8))
