"""Derive from a profile what a link must measure, and how much must be sent to find out. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ingest_bench.model.network import Impairment, Profile
from ingest_bench.network.plan import netem
from ingest_bench.network.plan.netem import (
    ETHERNET_HEADER_BYTES,
    batch_bytes,
    bucket_bytes,
    has_netem,
    queue_frames,
)

_MILLION = 10**6
IP_TCP_HEADERS_BYTES = 40
# RFC 7323: each segment carries 10 bytes of timestamps, padded to 12.
TIMESTAMPS_BYTES = 12
# The largest IPv4 packet; an MTU above it (lo has 65536) cannot be tried to the last byte.
LARGEST_PACKET_BYTES = 65535

_PROBE_FRAME_BYTES = 128 + ETHERNET_HEADER_BYTES
# Python sends and receives this many datagrams a second on a busy machine.
_MAX_PROBES_PER_S = 20_000
_MIN_PROBES, _MAX_PROBES = 1000, 10_000
# How long a busy machine may delay probes, which then arrive together: with 9 ms of them in the queue, 8% of the probes
# of a line that loses 1% were lost.
_PAUSE_S = 0.05
# This many expected events determine a share well enough.
_EVENTS = 30
# From the first to the third quartile, in jitters: of a uniform distribution, and of iproute2's tables.
_INTERQUARTILE_RANGES = {"uniform": 1.0, "normal": 1.349, "pareto": 0.649, "paretonormal": 0.824}
_LONG_RTT_S = 0.15
_RTT_TOLERANCE, _MIN_RTT_TOLERANCE_NS = 0.05, 10**6
# Later attempts send more probes, up to this many times as many.
_MAX_SCALE = 3
# How late a timer of User-Mode Linux may be with busy processes; its netem then makes up for it at once: over 0.1 s
# that was up to 115% of the rate.
_LATE_TIMER_S = 0.01
# A burst after a pause: short, so that a bucket of 2 ms shows, but with fewer frames the two that may leave together
# would be too many. 200 KB is what ingest sends, and what a UDP socket holds.
_BURST_BYTES, _BURST_S, _MIN_FRAMES = 200_000, 0.003, 24
_MAX_BURSTS, _MIN_BURSTS, _BURSTS_S = 20, 3, 1.0
_LONGEST_PAUSE_S = 0.03


def mss_bytes(profile: Profile) -> int:
    """Return the payload of a full TCP segment."""
    announced = min(profile.mtu_bytes, LARGEST_PACKET_BYTES) - IP_TCP_HEADERS_BYTES
    return min(announced, profile.mss_bytes or announced) - TIMESTAMPS_BYTES


def full_frame_bytes(profile: Profile) -> int:
    """Return the size of a full segment on the wire, with its Ethernet header."""
    return mss_bytes(profile) + TIMESTAMPS_BYTES + IP_TCP_HEADERS_BYTES + ETHERNET_HEADER_BYTES


def rate_bps(impairment: Impairment, frame_bytes: int) -> int | None:
    """Return the rate of frames of that size at the slower of the two bottlenecks that a direction may have."""
    rates = [] if impairment.rate_bps is None else [impairment.rate_bps]
    if impairment.netem_rate_bps is not None:
        rates.append(max(1, impairment.netem_rate_bps * frame_bytes // _bytes_for_netem(impairment, frame_bytes)))
    return min(rates, default=None)


def wire_ns(impairment: Impairment, frame_bytes: int) -> float:
    """Return how long such a frame takes at both bottlenecks, if they have no saved tokens."""
    netem_bytes = _bytes_for_netem(impairment, frame_bytes)
    stages = ((impairment.rate_bps, frame_bytes), (impairment.netem_rate_bps, netem_bytes))
    return sum(size_bytes * 8e9 / rate for rate, size_bytes in stages if rate is not None)


def _bytes_for_netem(impairment: Impairment, frame_bytes: int) -> int:
    """Return the size that netem's own rate counts: with overhead, in complete cells (sch_netem.c, packet_time_ns)."""
    packet_bytes, cell_bytes = frame_bytes + impairment.packet_overhead_bytes, impairment.cell_bytes
    if not cell_bytes:
        return packet_bytes
    return -(-packet_bytes // cell_bytes) * (cell_bytes + impairment.cell_overhead_bytes)


def delay_ns(impairment: Impairment) -> float | None:
    """Return the mean delay of packets that are not reordered; None if the profile does not define it.

    Slots add a wait that depends on when a packet arrives. A negative delay becomes 0, which raises the mean.
    """
    if impairment.slot_min_ns is not None or not has_full_jitter(impairment):
        return None
    return impairment.delay_ns


def round_trip_ns(impairments: Sequence[Impairment], frame_bytes: int) -> tuple[float, float] | None:
    """Return the delay of both directions, and its tolerance; None if the profile does not define it.

    The tolerance is the larger of 5% and 1 ms, and the time of such a frame on the wire.
    """
    total_ns = 0.0
    for impairment in impairments:
        one_way_ns = delay_ns(impairment)
        if one_way_ns is None or (impairment.reorder_ppm and impairment.jitter_ns):
            return None
        total_ns += one_way_ns
    wires_ns = sum(wire_ns(impairment, frame_bytes) for impairment in impairments)
    return total_ns, max(_RTT_TOLERANCE * total_ns, _MIN_RTT_TOLERANCE_NS) + wires_ns


def has_full_jitter(impairment: Impairment) -> bool:
    """Return True if hardly any random delay would be negative: netem turns these into 0."""
    sigmas = 1 if impairment.distribution == "uniform" else 3
    return impairment.delay_ns >= sigmas * impairment.jitter_ns


def longest_delay_s(impairment: Impairment) -> float:
    """Return a time that almost no packet exceeds on an idle link."""
    slot_ns = impairment.slot_max_ns or impairment.slot_min_ns or 0
    return (impairment.delay_ns + 4 * impairment.jitter_ns + slot_ns) / 1e9


def jitter_ns(impairment: Impairment) -> float | None:
    """Return the interquartile range of the delay; None if the profile does not define it.

    Not the standard deviation: pauses of a busy machine make it as large as a jitter. With a correlation each random
    number depends on the one before, which narrows the range.
    """
    if not impairment.jitter_ns or not has_full_jitter(impairment) or impairment.delay_correlation_ppm:
        return None
    return impairment.jitter_ns * _INTERQUARTILE_RANGES[impairment.distribution]


def reordered_share(impairment: Impairment) -> float | None:
    """Return the share of packets that are sent early: one in `gap` is a candidate, with the reorder probability."""
    if not impairment.reorder_ppm or impairment.reorder_correlation_ppm:
        return None
    probability, gap = impairment.reorder_ppm / _MILLION, max(1, impairment.reorder_gap)
    return 1 / (gap - 1 + 1 / probability)


@dataclass(frozen=True, slots=True)
class ProbePlan:
    """Number and rate of probes."""

    count: int
    per_s: int


def plan_probes(impairment: Impairment, attempt: int) -> ProbePlan:
    """Return enough probes to measure the shares of loss, duplicates and reordering, at most half of the link's rate.

    The bottleneck's queue, which a netem counts in packets, must hold the probes of a busy machine's pause.
    """
    rate = rate_bps(impairment, _PROBE_FRAME_BYTES)
    per_s = _MAX_PROBES_PER_S if rate is None else min(_MAX_PROBES_PER_S, rate // (2 * 8 * _PROBE_FRAME_BYTES))
    if impairment.rate_bps is not None:
        # MTU 1500: with a larger one the default queue holds fewer frames, but at least its minimum.
        per_s = min(per_s, int(queue_frames(impairment, 1500) / _PAUSE_S))
    shares = [netem.lost_share(impairment) or 0, impairment.duplicate_ppm / _MILLION, reordered_share(impairment) or 0]
    counts = [_EVENTS * netem.variance_factor(impairment) / share for share in shares if share]
    count = min(_MAX_PROBES, max(_MIN_PROBES, *map(math.ceil, counts), 0))
    # On a slow link this many would take too long; the confidence interval is wider then.
    max_count = 2 * per_s if counts else per_s // 2
    return ProbePlan(count=max(50, min(count, max_count)) * min(attempt, _MAX_SCALE), per_s=max(1, per_s))


def plan_pings(impairments: tuple[Impairment, Impairment], attempt: int) -> ProbePlan:
    """Return the probes of a round trip: more if jitter scatters them, slower if the link is slow."""
    count = 300 if any(impairment.jitter_ns for impairment in impairments) else 50
    per_s = min(1000, *(plan_probes(impairment, 1).per_s for impairment in impairments))
    return ProbePlan(count=count * min(attempt, _MAX_SCALE), per_s=per_s)


@dataclass(frozen=True, slots=True)
class FloodPlan:
    """Duration and rate of the packets that measure a rate, and the window over which it is measured."""

    seconds: float
    per_s: int
    packets_per_send: int
    """The kernel splits a send into packets, or the queue does if they may not leave together."""
    window_s: float


def plan_flood(impairment: Impairment, mtu_bytes: int, attempt: int) -> FloodPlan:
    """Return a flood of 1.5 times what the link carries after its losses.

    The window fits 100 full packets, and 30 times what a bucket has saved or a late netem makes up: 3% of it. It grows
    with the attempt, up to three times, against data that a paused receiver reads at once. It does not grow further,
    because a busy machine more likely pauses the sender in a longer one.
    """
    frame_bytes = mtu_bytes + ETHERNET_HEADER_BYTES
    rate = rate_bps(impairment, frame_bytes) or 1
    frames_per_s = rate / (8 * frame_bytes)
    arriving = 1 - min(0.5, netem.lost_share(impairment) or 0)
    if netem.is_aqm(impairment) or (has_netem(impairment) and impairment.burst_bytes is None):
        saved_s = _LATE_TIMER_S
    else:
        saved_s = bucket_bytes(impairment, mtu_bytes) * 8 / rate if impairment.rate_bps else 0
    window_s = min(1.0, max(0.1, 100 / frames_per_s, 30 * saved_s)) * (1 + (attempt - 1) % 3)
    per_s = math.ceil(1.5 * frames_per_s / arriving)
    # Half of what may leave together, so that the queue need not split it and a late timer loses nothing. With 44
    # packets at a time a queue had to split them: with 5 busy processes 32 to 39% of 1 Gbit/s was left, instead of 99%.
    # If less than 4 frames may leave together, a send is short compared to the queue, which drops the rest.
    together = batch_bytes(impairment, mtu_bytes) // frame_bytes
    # A datagram is smaller than 64 KiB.
    packets_per_send = max(1, min(44, 65000 // mtu_bytes, together // 2 if together > 3 else per_s // 500))
    return FloodPlan(2.5 * window_s, per_s, packets_per_send, window_s)


@dataclass(frozen=True, slots=True)
class BurstPlan:
    """Bursts of frames sent at once after a pause, and how long the wire takes from the first to the last frame."""

    frames: int
    times: int
    frame_bytes: int
    seconds: float

    @property
    def pause_s(self) -> float:
        """The pause before each burst: a bucket that let one pass at once fills again in the burst's own time."""
        return min(2 * self.seconds, _LONGEST_PAUSE_S)


def plan_burst(impairment: Impairment, mtu_bytes: int) -> BurstPlan | None:
    """Return the bursts that show if a bottleneck spaces packets also after a pause; None if it need not.

    A bucket from the profile lets its content pass at once; jitter, reordering and slots spread a burst; and nothing
    can be measured if a queue takes only a few frames unmarked, or a line carries only a few in seconds.
    """
    frame_bytes = mtu_bytes + ETHERNET_HEADER_BYTES
    rate = rate_bps(impairment, frame_bytes)
    scattered = impairment.jitter_ns or impairment.reorder_ppm or impairment.slot_min_ns is not None
    if rate is None or impairment.rate_bps is None or impairment.burst_bytes is not None or scattered:
        return None
    frame_s = frame_bytes * 8 / rate
    frames = max(_MIN_FRAMES, min(_BURST_BYTES // frame_bytes, int(_BURST_S / frame_s)))
    room = queue_frames(impairment, mtu_bytes)
    if netem.is_aqm(impairment):
        room = netem.unmarked_frames(impairment, frame_bytes=frame_bytes, frames=room)
    frames = min(frames, room * 3 // 4)
    seconds = (frames - 1) * frame_s
    if frames < _MIN_FRAMES or seconds > 2 * _BURSTS_S:
        return None
    times = max(_MIN_BURSTS, min(_MAX_BURSTS, int(_BURSTS_S / seconds)))
    return BurstPlan(frames=frames, times=times, frame_bytes=frame_bytes, seconds=seconds)


def transfer_bytes(profile: Profile, impairment: Impairment, seconds: float) -> int:
    """Return how much a short transfer may write: what the link carries in that time, at least some full segments.

    On a long link only what TCP sends before the first acknowledgement: ten segments (RFC 6928).
    """
    rate = rate_bps(impairment, full_frame_bytes(profile))
    initial_window_bytes = 10 * mss_bytes(profile)
    if is_long(profile):
        return initial_window_bytes
    return 16 << 20 if rate is None else max(2 * initial_window_bytes, int(rate * seconds / 8))


def is_long(profile: Profile) -> bool:
    """Return True if a measurement mostly waits for round trips."""
    return longest_delay_s(profile.to_server) + longest_delay_s(profile.to_client) > _LONG_RTT_S
