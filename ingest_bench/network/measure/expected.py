"""What a profile promises, as numbers, and how much must be sent to find out. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ingest_bench.network.plan import losses, queues
from ingest_bench.network.plan.netem import (
    ETHERNET_HEADER_BYTES,
    burst_bytes,
    moment_bytes,
    queue_frames,
    uses_netem,
)

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
_FEWEST_PROBES, _MOST_PROBES = 1000, 10_000
# How long a machine beside other work may keep probes back, which then come together: with 9 ms of them in the queue,
# 8% of the probes of a line that loses 1% were lost.
_PAUSE_S = 0.05
# A share is known well enough when so many of its events are expected.
_EVENTS = 30
# From the first to the third quartile, in jitters: of what is even between -1 and 1, and of iproute2's tables.
_MIDDLE_HALF = {"uniform": 1.0, "normal": 1.349, "pareto": 0.649, "paretonormal": 0.824}
_LONG_S = 0.15
# A try has more probes the later it is, up to so many times as many.
_TIMES = 3
# How late a timer of the guest of User-Mode Linux may be beside busy processes; its netem then makes up for it at once:
# over 0.1 s that was up to 115% of the rate.
_LATE_S = 0.01
# Of a bulk that must take its time after a pause: short, so that a bucket of 2 ms shows, but of fewer frames the two
# that may go at once would be too many. 200 KB are what ingest sends, and what a socket of UDP holds.
_BULK_BYTES, _BULK_S, _FEWEST_FRAMES = 200_000, 0.003, 24
_BULKS, _FEWEST_BULKS, _BULKS_S = 20, 3, 1.0
_LONGEST_PAUSE_S = 0.03


def mss_bytes(profile: Profile) -> int:
    """The payload of a full TCP segment."""
    announced = min(profile.mtu_bytes, LARGEST_PACKET_BYTES) - IP_TCP_HEADERS_BYTES
    return min(announced, profile.mss_bytes or announced) - TIMESTAMPS_BYTES


def full_frame_bytes(profile: Profile) -> int:
    """A full segment on the wire, with its Ethernet header."""
    return mss_bytes(profile) + TIMESTAMPS_BYTES + IP_TCP_HEADERS_BYTES + ETHERNET_HEADER_BYTES


def rate_bps(impairment: Impairment, frame_bytes: int) -> int | None:
    """How fast frames of that size pass the narrower of the two bottlenecks that a direction may have."""
    rates = [] if impairment.rate_bps is None else [impairment.rate_bps]
    if impairment.netem_rate_bps is not None:
        rates.append(max(1, impairment.netem_rate_bps * frame_bytes // _netem_bytes(impairment, frame_bytes)))
    return min(rates, default=None)


def wire_ns(impairment: Impairment, frame_bytes: int) -> float:
    """How long such a frame takes at both bottlenecks, where it meets none that has saved up something."""
    takes = ((impairment.rate_bps, frame_bytes), (impairment.netem_rate_bps, _netem_bytes(impairment, frame_bytes)))
    return sum(size_bytes * 8e9 / rate for rate, size_bytes in takes if rate is not None)


def _netem_bytes(impairment: Impairment, frame_bytes: int) -> int:
    """As what netem's own rate counts a frame: with its overhead, in whole cells (sch_netem.c, packet_time_ns)."""
    whole, cell = frame_bytes + impairment.packet_overhead_bytes, impairment.cell_bytes
    return -(-whole // cell) * (cell + impairment.cell_overhead_bytes) if cell else whole


def delay_ns(impairment: Impairment) -> float | None:
    """The mean delay of those packets that do not overtake; None where none is promised.

    Slots add a wait that depends on when a packet comes, and a negative delay is none, which makes the mean larger.
    """
    if impairment.slot_min_ns is not None or not jitter_fits(impairment):
        return None
    return impairment.delay_ns


def jitter_fits(impairment: Impairment) -> bool:
    """Whether hardly any random delay would be negative: it becomes none."""
    sigmas = 1 if impairment.distribution == "uniform" else 3
    return impairment.delay_ns >= sigmas * impairment.jitter_ns


def longest_delay_s(impairment: Impairment) -> float:
    """Long enough for all but a freak of a packet, on an idle link."""
    slot_ns = impairment.slot_max_ns or impairment.slot_min_ns or 0
    return (impairment.delay_ns + 4 * impairment.jitter_ns + slot_ns) / 1e9


def jitter_ns(impairment: Impairment) -> float | None:
    """The middle half of the delay, from its first to its third quartile; None where none is promised.

    Not the standard deviation: a busy machine's pauses make that as large as a jitter. Each random number keeps its
    correlation's share of the last one, which narrows the spread.
    """
    if not impairment.jitter_ns or not jitter_fits(impairment) or impairment.delay_correlation_ppm:
        return None
    return impairment.jitter_ns * _MIDDLE_HALF[impairment.distribution]


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
    """Enough probes to tell the shares of loss and its kin, at most half of what the link carries.

    The bottleneck's queue, which counts packets where it is a netem's, holds those of a busy machine's pause.
    """
    rate = rate_bps(impairment, _PROBE_FRAME_BYTES)
    per_s = _MOST_PROBES_PER_S if rate is None else min(_MOST_PROBES_PER_S, rate // (2 * 8 * _PROBE_FRAME_BYTES))
    if impairment.rate_bps is not None:
        # MTU 1500: of a larger one the default queue holds fewer, and never less than its least.
        per_s = min(per_s, int(queue_frames(impairment, 1500) / _PAUSE_S))
    shares = [losses.share(impairment) or 0, impairment.duplicate_ppm / _MILLION, reordered_share(impairment) or 0]
    wanted = [_EVENTS * losses.variance_factor(impairment) / share for share in shares if share]
    count = min(_MOST_PROBES, max(_FEWEST_PROBES, *map(math.ceil, wanted), 0))
    # On a slow link so many would take too long; a wider interval says so.
    most = 2 * per_s if wanted else per_s // 2
    return Burst(count=max(50, min(count, most)) * min(attempt, _TIMES), per_s=max(1, per_s))


def pings(impairments: tuple[Impairment, Impairment], attempt: int) -> Burst:
    """A round trip's probes: more where jitter scatters them, slower where the link is slow."""
    count = 300 if any(impairment.jitter_ns for impairment in impairments) else 50
    return Burst(
        count=count * min(attempt, _TIMES), per_s=min(1000, *(burst(impairment, 1).per_s for impairment in impairments))
    )


@dataclass(frozen=True, slots=True)
class Flood:
    """How long and how fast packets are sent to find a rate, and over what time it is taken."""

    seconds: float
    per_s: int
    pieces: int
    """How many packets at a time: the kernel cuts them apart, or the queue does if they may not leave at once."""
    window_s: float


def flood(impairment: Impairment, mtu_bytes: int, attempt: int) -> Flood:
    """Half more than the link carries after its losses.

    The time is long enough for 100 full packets, and for thirty times what a bucket has saved up or a late netem makes
    up: 3% of it.
    It grows with the attempt, against what a receiver that was paused reads at once, up to three times: the longer it
    is, the likelier a busy machine pauses the sender in it.
    """
    frame_bytes = mtu_bytes + ETHERNET_HEADER_BYTES
    rate = rate_bps(impairment, frame_bytes) or 1
    frames_per_s = rate / (8 * frame_bytes)
    arrives = 1 - min(0.5, losses.share(impairment) or 0)
    if queues.is_managed(impairment) or (uses_netem(impairment) and impairment.burst_bytes is None):
        bucket_s = _LATE_S
    else:
        bucket_s = burst_bytes(impairment, mtu_bytes) * 8 / rate if impairment.rate_bps else 0
    window_s = min(1.0, max(0.1, 100 / frames_per_s, 30 * bucket_s)) * (1 + (attempt - 1) % 3)
    per_s = math.ceil(1.5 * frames_per_s / arrives)
    return Flood(seconds=2.5 * window_s, per_s=per_s, pieces=_pieces(impairment, mtu_bytes, per_s), window_s=window_s)


def _pieces(impairment: Impairment, mtu_bytes: int, per_s: int) -> int:
    """Half of what may leave in a moment, which a queue need not cut, and a late timer loses nothing.

    With 44 packets at a time a queue had to cut them: beside 5 busy processes 32 to 39% of 1 Gbit/s was left, in place
    of 99%. Where a moment has too few, the time of a block is short beside the queue, which drops what it cannot hold.
    """
    frames = moment_bytes(impairment, mtu_bytes) // (mtu_bytes + ETHERNET_HEADER_BYTES)
    # A datagram has less than 64 KiB.
    return max(1, min(44, 65000 // mtu_bytes, frames // 2 if frames > 3 else per_s // 500))


@dataclass(frozen=True, slots=True)
class Bulk:
    """So many frames at once after a pause, how often, and how long the wire needs from the first to the last."""

    frames: int
    times: int
    frame_bytes: int
    seconds: float

    @property
    def pause_s(self) -> float:
        """How long nothing is sent before the next one: a bucket that let a bulk pass at once is full again.

        It takes the bulk's own time to fill; the longest is what each pause was before it depended on that.
        """
        return min(2 * self.seconds, _LONGEST_PAUSE_S)


def bulk(impairment: Impairment, mtu_bytes: int) -> Bulk | None:
    """The bulk that shows whether a bottleneck spaces packets also after a pause; None where none is promised.

    A bucket that was asked for lets as much pass at once as it holds; jitter, reordering and slots spread a bulk; and
    where a queue holds or spares only a few frames, or a line has only a few in seconds, there is nothing to see.
    """
    frame_bytes = mtu_bytes + ETHERNET_HEADER_BYTES
    rate = rate_bps(impairment, frame_bytes)
    scattered = impairment.jitter_ns or impairment.reorder_ppm or impairment.slot_min_ns is not None
    if rate is None or impairment.rate_bps is None or impairment.burst_bytes is not None or scattered:
        return None
    frame_s = frame_bytes * 8 / rate
    wanted = max(_FEWEST_FRAMES, min(_BULK_BYTES // frame_bytes, int(_BULK_S / frame_s)))
    room = queue_frames(impairment, mtu_bytes)
    if queues.is_managed(impairment):
        room = queues.spared_frames(impairment, frame_bytes=frame_bytes, frames=room)
    frames = min(wanted, room * 3 // 4)
    seconds = (frames - 1) * frame_s
    if frames < _FEWEST_FRAMES or seconds > 2 * _BULKS_S:
        return None
    times = max(_FEWEST_BULKS, min(_BULKS, int(_BULKS_S / seconds)))
    return Bulk(frames=frames, times=times, frame_bytes=frame_bytes, seconds=seconds)


def transfer_bytes(profile: Profile, impairment: Impairment, seconds: float) -> int:
    """How much a short transfer may write: what the link carries in that time, and always some full segments.

    On a long link only what TCP sends before the first acknowledgement: ten segments (RFC 6928).
    """
    rate = rate_bps(impairment, full_frame_bytes(profile))
    first = 10 * mss_bytes(profile)
    if is_long(profile):
        return first
    return 16 << 20 if rate is None else max(2 * first, int(rate * seconds / 8))


def is_long(profile: Profile) -> bool:
    """Whether a round trip is what a measurement mostly waits for."""
    return longest_delay_s(profile.to_server) + longest_delay_s(profile.to_client) > _LONG_S
