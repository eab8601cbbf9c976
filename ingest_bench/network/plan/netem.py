"""Translate an impairment into qdiscs: lines for `tc -batch`, and the loss that netem then produces. Pure.

netem is the root and the bottleneck its child: a packet is first delayed or lost, then waits for the bottleneck, which
has its own queue. In the other order, tc gives the bottleneck's queue to netem, and one limit would be both the queue
and the delay line.

A wire spaces packets, also after a pause. A token bucket releases its saved tokens at once, and a bucket without
tokens misses its rate on a busy machine, whose timers are late. So where there is netem, the bottleneck is a second
netem with a rate: it schedules each packet, and sends late packets as soon as possible. Otherwise it is a bucket with
a peak rate a little above the rate. Median time of 200 KB sent after a pause of 200 ms, and the rate that full packets
reached, on two cores with other work:

                            100 Mbit/s: 16.7 ms on a wire   1 Gbit/s: 1.67 ms
                            with 5 busy processes
    kernel  bucket of 2 ms          14.7 ms  100%           0.65 ms  100%       with 5 busy processes
            the same with a peak    15.0 ms  100%           1.46 ms  96 to 100%
    UML     bucket of 10 ms          6.9 ms  100%           2.3 ms   100%       without them
            the same with a peak    22.5 ms  45 to 49%      3.2 ms   82 to 91%
            netem's rate            16.6 ms  100%           5.1 ms   48 to 63%
            and slots                                       1.84 ms  89 to 98%

hfsc in User-Mode Linux gave 148% of 200 Mbit/s. A netem that duplicates packets must be the only netem of its tree
(net/sched/sch_netem.c, check_netem_in_tree); its bottleneck is a bucket with a peak.

An AQM queue works only while packets wait in it, so it needs a bottleneck that makes packets wait: netem with a rate
takes each packet at once and delays it afterwards. cake has its own rate. The others are below an hfsc class with a
real-time curve alone: it schedules each packet, also after a pause, and makes up for late timers while packets wait
(Stoica, Zhang and Ng 1997, "A hierarchical fair service curve algorithm"). With a link-sharing curve it would also send
what no curve has earned. In User-Mode Linux on a busy machine, hfsc and cake kept 98 to 102% of 100 to 500 Mbit/s; of
1 Gbit/s, hfsc kept 84% and cake 40 to 56%.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import NamedTuple

from ingest_bench.model.network import Impairment, Queue

Lines = tuple[str, ...]

ETHERNET_HEADER_BYTES = 14
SMALLEST_FRAME_BYTES = 64
# netem's limit counts packets in 32 bits, that of a token bucket bytes (net/sched/sch_netem.c, sch_tbf.c).
LARGEST_LIMIT = 2**32 - 1
# Without a rate the machine is the bottleneck; two namespaces of one machine do not pass more than this.
UNLIMITED_BPS = 10 * 10**9
# tc's default limit for netem (iproute2, tc/q_netem.c), here the queue in front of netem's own rate.
QUEUE_PACKETS = 1000
# A bucket's queue holds one round trip of a wide-area path at full rate (Villamizar and Song 1994, "High performance
# TCP in ANSNET"), and on a slow line a few packets.
QUEUE_NS = 50 * 10**6
SMALLEST_QUEUE_FRAMES = 32
# How late the kernel may be before the rate is missed: on a busy machine its network work waits like any other
# (ksoftirqd). Measured with six busy processes on two cores: with 0.5 ms, 74 to 93% of the rate; with 2 ms, 98 to 102%.
BUCKET_NS = 2 * 10**6
SMALLEST_BUCKET_FRAMES = 2
# Saved tokens are sent at this percentage of the rate: at 125%, 200 KB at 1 Gbit/s took 1.32 ms.
PEAK_PERCENT = 110
# Packets of this time, and at least two frames, may leave together: User-Mode Linux cannot run a timer for each packet
# at 1 Gbit/s, and a kernel at 105% with two frames gave 6% of the rate. A network card that moderates its interrupts
# does the same to its reader.
BATCH_NS = 100 * 10**3

NETEM_HANDLE, BOTTLENECK_HANDLE = "1:", "2:"
SHAPER_HANDLE, QUEUE_HANDLE = "2:", "3:"

# The kernel modules of each AQM queue: sch_hfsc …
QUEUE_MODULES: Mapping[Queue, Lines] = {"fq_codel": ("hfsc", "fq_codel"), "cake": ("cake",), "red": ("hfsc", "red")}
AQM_QUEUES = tuple(QUEUE_MODULES)
# RFC 8290, 5.2: the defaults of fq_codel, in Linux too.
CODEL_TARGET_NS, CODEL_INTERVAL_NS = 5 * 10**6, 100 * 10**6
CODEL_PACKETS = 10240
# The unit in which tc-red counts a burst: "1000 is a good value".
_RED_PACKET_BYTES = 1000
# The kernel's average has 32 bits, and its weight takes more of them the longer a burst may be (include/net/red.h,
# red_check_params): with tc's own parts of the limit, 8 MB leave 2 bits, and 10 MB none.
RED_LARGEST_BYTES = 8 * 10**6

_NO_IMPAIRMENT = Impairment()
# Options that a netem keeps if a change does not name them (net/sched/sch_netem.c, netem_change). Also measured: 2% of
# corrupt packets outlived the profile that had set them.
_STICKY_OPTIONS = (
    *("delay_correlation_ppm", "distribution", "loss_correlation_ppm", "duplicate_correlation_ppm", "corrupt_ppm"),
    *("corrupt_correlation_ppm", "reorder_ppm", "reorder_correlation_ppm", "netem_rate_bps", "packet_overhead_bytes"),
    *("cell_bytes", "cell_overhead_bytes", "slot_min_ns", "ecn"),
)

# A line's place in the tree, and the kind of its qdisc.
_QDISC_LINE = re.compile(r"^(qdisc .*) handle \S+ (\S+)", re.MULTILINE)

_MILLION = 10**6
_Z99 = NormalDist().inv_cdf(0.995)
# A Markov chain is followed for 2**26 packets: if a state change has a probability, it is at least one in a million.
_DOUBLINGS = 26


def qdisc_lines(device: str, impairment: Impairment, mtu_bytes: int, *, rate_by_netem: bool = False) -> Lines:
    """Return the lines that add the qdiscs to a device without any.

    With `rate_by_netem` netem also sets the rate of a direction that needs no netem for anything else. A bottleneck's
    rate counts Ethernet frames without preamble and checksum.
    """
    added, parent = [], "root"
    if has_netem(impairment):
        options = " ".join(netem_options(impairment, mtu_bytes))
        added.append(f"qdisc replace dev {device} root handle {NETEM_HANDLE} netem {options}")
        parent = f"parent {NETEM_HANDLE}1"
    if is_aqm(impairment):
        added += _aqm_lines(device, parent, impairment, mtu_bytes)
    elif impairment.rate_bps is not None:
        if is_netem_bottleneck(impairment, rate_by_netem=rate_by_netem):
            batch = format_microseconds(slot_ns(impairment, mtu_bytes))
            # The slot is always named: a netem keeps its slot if a change does not name one.
            words = f"rate {impairment.rate_bps}bit slot {batch} {batch}"
            options = f"netem limit {queue_frames(impairment, mtu_bytes)} {words}"
        else:
            options = " ".join(("tbf", *tbf_options(impairment, mtu_bytes)))
        added.append(f"qdisc replace dev {device} {parent} handle {BOTTLENECK_HANDLE} {options}")
    return tuple(added)


def change_lines(
    device: str, before: Impairment, after: Impairment, mtu_bytes: int, *, rate_by_netem: bool = False
) -> Lines:
    """Return the lines that change a device's qdiscs from one impairment to another.

    Qdiscs of the same kind are changed and keep their waiting packets. Other kinds are replaced, and so is a netem
    that would keep an option that it must lose. Only RED drops waiting packets.
    """
    old, new = (qdisc_lines(device, state, mtu_bytes, rate_by_netem=rate_by_netem) for state in (before, after))
    old_kinds, new_kinds = (_QDISC_LINE.findall("\n".join(lines)) for lines in (old, new))
    keeps_option = any(
        getattr(before, name) != getattr(_NO_IMPAIRMENT, name) == getattr(after, name) for name in _STICKY_OPTIONS
    )
    return new if not old or (old_kinds == new_kinds and not keeps_option) else (f"qdisc del dev {device} root", *new)


def has_netem(impairment: Impairment) -> bool:
    """Return True if a netem precedes the bottleneck. A limit or ECN marks alone belong to the bottleneck's queue."""
    limit_packets = None if impairment.rate_bps is not None else impairment.limit_packets
    return replace(impairment, limit_packets=limit_packets, queue="fifo", ecn=False).needs_netem


def has_losses(impairment: Impairment) -> bool:
    """Return True if netem loses packets, or marks them instead (a queue has its own marks)."""
    return bool(impairment.loss_ppm or impairment.loss_state_ppm or impairment.loss_gemodel_ppm)


def is_aqm(impairment: Impairment) -> bool:
    """Return True if the bottleneck's queue is not the FIFO."""
    return impairment.queue != "fifo"


def has_hfsc_class(impairment: Impairment) -> bool:
    """Return True if an hfsc class sets the rate; cake has its own."""
    return is_aqm(impairment) and impairment.queue != "cake"


def is_netem_bottleneck(impairment: Impairment, *, rate_by_netem: bool) -> bool:
    """Return True if the bottleneck is a netem, not a token bucket (`burst`) or an AQM queue's shaper."""
    if impairment.rate_bps is None or impairment.burst_bytes is not None or impairment.duplicate_ppm:
        return False
    return not is_aqm(impairment) and (rate_by_netem or has_netem(impairment))


def slot_ns(impairment: Impairment, mtu_bytes: int) -> int:
    """Return how long the netem bottleneck gathers packets; 0 if two frames take longer than that."""
    return BATCH_NS if batch_bytes(impairment, mtu_bytes) <= _bytes_in(impairment, BATCH_NS) else 0


def batch_bytes(impairment: Impairment, mtu_bytes: int) -> int:
    """Return how many bytes may leave a bottleneck together."""
    return max(2 * (mtu_bytes + ETHERNET_HEADER_BYTES), _bytes_in(impairment, BATCH_NS))


def queue_frames(impairment: Impairment, mtu_bytes: int) -> int:
    """Return how many full frames the bottleneck's queue holds."""
    if impairment.limit_packets is not None:
        return impairment.limit_packets
    return max(SMALLEST_QUEUE_FRAMES, _bytes_in(impairment, QUEUE_NS) // (mtu_bytes + ETHERNET_HEADER_BYTES))


def tbf_options(impairment: Impairment, mtu_bytes: int) -> Lines:
    """Return tc-tbf's options. A bucket with a `burst` from the profile has no peak rate."""
    frame_bytes = mtu_bytes + ETHERNET_HEADER_BYTES
    if impairment.limit_packets is not None:
        queue_bytes = impairment.limit_packets * frame_bytes
    else:
        queue_bytes = max(SMALLEST_QUEUE_FRAMES * frame_bytes, _bytes_in(impairment, QUEUE_NS))
    rate_bps = impairment.rate_bps or 0
    options = (f"rate {rate_bps}bit", f"burst {bucket_bytes(impairment, mtu_bytes)}b", f"limit {queue_bytes}b")
    if impairment.burst_bytes is not None:
        return options
    peak_bps = math.ceil(rate_bps * PEAK_PERCENT / 100)
    return (*options, f"peakrate {peak_bps}bit", f"mtu {batch_bytes(impairment, mtu_bytes)}b")


def bucket_bytes(impairment: Impairment, mtu_bytes: int) -> int:
    """Return the size of the token bucket: the profile's `burst`, or what keeps the rate on a busy machine."""
    if impairment.burst_bytes is not None:
        return impairment.burst_bytes
    frames_bytes = SMALLEST_BUCKET_FRAMES * (mtu_bytes + ETHERNET_HEADER_BYTES)
    return max(frames_bytes, _bytes_in(impairment, BUCKET_NS))


def netem_options(impairment: Impairment, mtu_bytes: int) -> Lines:
    """Return tc-netem's options in the order of its manual."""
    words = [f"limit {netem_limit_packets(impairment, mtu_bytes)}"]
    if impairment.delay_ns or impairment.jitter_ns:
        words.append(f"delay {format_microseconds(impairment.delay_ns)}")
    if impairment.jitter_ns:
        words += (format_microseconds(impairment.jitter_ns), *_nonzero_percent(impairment.delay_correlation_ppm))
        # Uniform is tc's default, and Debian ships no table for it.
        if impairment.distribution != "uniform":
            words.append(f"distribution {impairment.distribution}")
    if impairment.loss_state_ppm:
        words += ("loss state", *map(_format_percent, impairment.loss_state_ppm))
    elif impairment.loss_gemodel_ppm:
        words += ("loss gemodel", *map(_format_percent, impairment.loss_gemodel_ppm))
    else:
        words += _ratio_options("loss random", impairment.loss_ppm, impairment.loss_correlation_ppm)
    if impairment.ecn and has_losses(impairment):
        words.append("ecn")
    words += _ratio_options("corrupt", impairment.corrupt_ppm, impairment.corrupt_correlation_ppm)
    words += _ratio_options("duplicate", impairment.duplicate_ppm, impairment.duplicate_correlation_ppm)
    words += _ratio_options("reorder", impairment.reorder_ppm, impairment.reorder_correlation_ppm)
    if impairment.reorder_gap:
        words.append(f"gap {impairment.reorder_gap}")
    if impairment.netem_rate_bps is not None:
        words.append(f"rate {impairment.netem_rate_bps}bit")
        overheads = (impairment.packet_overhead_bytes, impairment.cell_bytes, impairment.cell_overhead_bytes)
        words += map(str, overheads if any(overheads) else ())
    if impairment.slot_min_ns is not None:
        words.append(f"slot {format_microseconds(impairment.slot_min_ns)}")
        if impairment.slot_max_ns is not None:
            words.append(format_microseconds(impairment.slot_max_ns))
        limits = {"packets": impairment.slot_packets, "bytes": impairment.slot_bytes}
        words += (f"{name} {limit}" for name, limit in limits.items() if limit)
    return tuple(words)


def netem_limit_packets(impairment: Impairment, mtu_bytes: int) -> int:
    """Return netem's limit: large enough that delay alone never drops a packet.

    tc's default is 1000. At 1 Gbit/s and 50 ms a link holds 4167 full packets, so the default would add loss. With
    netem's own rate the limit is the delay line and the bottleneck's queue, in full packets. Otherwise it only bounds
    the delay line and counts the smallest frames: a fast other direction is acknowledged by nearly as many packets.
    """
    slot_ns = impairment.slot_max_ns or impairment.slot_min_ns or 0
    longest_ns = impairment.delay_ns + 4 * impairment.jitter_ns + slot_ns
    if impairment.rate_bps is None:
        if impairment.limit_packets is not None:
            return impairment.limit_packets
        if impairment.netem_rate_bps is not None:
            return in_flight_packets(impairment.netem_rate_bps, longest_ns, mtu_bytes) + QUEUE_PACKETS
    queued = impairment.limit_packets or QUEUE_PACKETS
    in_flight = in_flight_packets(impairment.rate_bps or UNLIMITED_BPS, longest_ns, SMALLEST_FRAME_BYTES)
    return min(in_flight + queued, LARGEST_LIMIT)


def in_flight_packets(rate_bps: int, delay_ns: int, packet_bytes: int) -> int:
    """Return how many packets of that size are on a line with that rate and delay."""
    return math.ceil(rate_bps * delay_ns / (8e9 * packet_bytes))


def _bytes_in(impairment: Impairment, time_ns: int) -> int:
    return int((impairment.rate_bps or 0) * time_ns / 8e9)


def _ratio_options(keyword: str, ratio_ppm: int, correlation_ppm: int) -> Lines:
    return (keyword, _format_percent(ratio_ppm), *_nonzero_percent(correlation_ppm)) if ratio_ppm else ()


def _nonzero_percent(ratio_ppm: int) -> Lines:
    return (_format_percent(ratio_ppm),) if ratio_ppm else ()


def format_microseconds(time_ns: int) -> str:
    """Return a time as tc reads it. tc rejects "ns" for a delay: Illegal "latency" (iproute2 6.1)."""
    return f"{time_ns / 1000:.3f}".rstrip("0").rstrip(".") + "us"


def _format_percent(ratio_ppm: int) -> str:
    """Return a ratio as tc reads it: "0.5%"."""
    return f"{ratio_ppm / 10**4:.4f}".rstrip("0").rstrip(".") + "%"


class RedLimits(NamedTuple):
    """Queue lengths of RED in bytes; the burst in packets. All but the limit are of the average length."""

    limit_bytes: int
    max_bytes: int
    """From this length on all packets are marked."""
    min_bytes: int
    """From this length on some packets are marked."""
    burst_packets: int


def _aqm_lines(device: str, parent: str, impairment: Impairment, mtu_bytes: int) -> Lines:
    frame_bytes = mtu_bytes + ETHERNET_HEADER_BYTES
    rate_bps = impairment.rate_bps
    if impairment.queue == "cake":
        # raw: count Ethernet frames, as everywhere. cake always marks ECN-capable packets and drops others.
        return (f"qdisc replace dev {device} {parent} handle {SHAPER_HANDLE} cake bandwidth {rate_bps}bit raw",)
    if impairment.queue == "red":
        limits = red_limits(frame_bytes=frame_bytes, frames=queue_frames(impairment, mtu_bytes))
        # Adaptive: a fixed ratio of marks suits one number of flows (Floyd et al. 2001).
        queue = (
            f"red limit {limits.limit_bytes} min {limits.min_bytes} max {limits.max_bytes} avpkt {_RED_PACKET_BYTES} "
            f"burst {limits.burst_packets} bandwidth {rate_bps}bit adaptive{' ecn' if impairment.ecn else ''}"
        )
    else:
        # The quantum is a frame of the link: a router's own MTU may be larger.
        queue = (
            f"fq_codel limit {impairment.limit_packets or CODEL_PACKETS} quantum {frame_bytes} target "
            f"{CODEL_TARGET_NS // 1000}us interval {CODEL_INTERVAL_NS // 1000}us {'' if impairment.ecn else 'no'}ecn"
        )
    return (
        f"qdisc replace dev {device} {parent} handle {SHAPER_HANDLE} hfsc default 1",
        f"class replace dev {device} parent {SHAPER_HANDLE} classid {SHAPER_HANDLE}1 hfsc rt m2 {rate_bps}bit",
        f"qdisc replace dev {device} parent {SHAPER_HANDLE}1 handle {QUEUE_HANDLE} {queue}",
    )


def red_limits(*, frame_bytes: int, frames: int) -> RedLimits:
    """Return tc-red's defaults for a limit, and the burst of its manual, rounded up."""
    limit_bytes = min(frames * frame_bytes, RED_LARGEST_BYTES)
    max_bytes = limit_bytes // 4
    min_bytes = max_bytes // 3
    return RedLimits(limit_bytes, max_bytes, min_bytes, -(-(2 * min_bytes + max_bytes) // (3 * _RED_PACKET_BYTES)))


def unmarked_frames(impairment: Impairment, *, frame_bytes: int, frames: int) -> int:
    """Return how many full frames an AQM queue takes at once after a pause without marking or dropping one.

    CoDel waits for an interval in which its target is missed; RED's average is never longer than the queue.
    """
    if impairment.queue == "red":
        return red_limits(frame_bytes=frame_bytes, frames=frames).min_bytes // frame_bytes
    return min(frames, _bytes_in(impairment, CODEL_INTERVAL_NS) // frame_bytes)


def lost_share(impairment: Impairment) -> float | None:
    """Return the share (0 to 1) of packets that do not arrive intact; None if netem does not keep to a share.

    The receiver's checksum drops corrupt packets. With a correlation netem narrows its random numbers around the
    middle (net/sched/sch_netem.c, get_crandom), and loses far less than configured.
    """
    if impairment.loss_ppm and impairment.loss_correlation_ppm:
        return None
    if impairment.corrupt_ppm and impairment.corrupt_correlation_ppm:
        return None
    states, loss_by_state, transitions = _markov_chain(impairment)
    arriving = 1 - _dot(_stationary_distribution(transitions, states), loss_by_state)
    return 1 - arriving * (1 - impairment.corrupt_ppm / _MILLION)


def variance_factor(impairment: Impairment) -> float:
    """Return the variance of a count of lost packets relative to independent losses: more than 1 if they cluster."""
    states, loss_by_state, transitions = _markov_chain(impairment)
    stationary = _stationary_distribution(transitions, states)
    mean = _dot(stationary, loss_by_state)
    if not 0 < mean < 1 or states == 1:
        return 1.0
    # The sum of the correlations between a packet and its successors. For twice as many successors it is the sum of
    # the first half plus the same sum as seen from the end of that half.
    chain = [list(row) for row in transitions]
    sums = _apply(chain, [loss - mean for loss in loss_by_state])
    for _ in range(_DOUBLINGS):
        sums = [first + second for first, second in zip(sums, _apply(chain, sums), strict=True)]
        chain = _multiply(chain, chain)
    total = _dot([part * loss for part, loss in zip(stationary, loss_by_state, strict=True)], sums)
    return max(1.0, 1 + 2 * total / (mean * (1 - mean)))


def wilson_interval(lost: int, sent: int, factor: float) -> tuple[float, float]:
    """Return the 99% confidence interval of a counted share (Wilson 1927); `factor` divides the sample size."""
    count = sent / factor
    share = lost / sent
    spread = _Z99 * math.sqrt(share * (1 - share) / count + _Z99**2 / (4 * count**2))
    middle, scale = share + _Z99**2 / (2 * count), 1 + _Z99**2 / count
    low = (middle - spread) / scale if lost else 0.0
    return low, min(1.0, (middle + spread) / scale)


def _markov_chain(impairment: Impairment) -> tuple[int, Sequence[float], Sequence[Sequence[float]]]:
    """Return the states, the loss in each, and the transitions; tc's defaults fill in missing parameters."""
    if impairment.loss_gemodel_ppm:
        parameters = [part / _MILLION for part in impairment.loss_gemodel_ppm]
        to_bad, to_good, bad_loss, good_loss = [*parameters, *(1 - parameters[0], 1.0, 0.0)[len(parameters) - 1 :]]
        return 2, (good_loss, bad_loss), ((1 - to_bad, to_bad), (to_good, 1 - to_good))
    if impairment.loss_state_ppm:
        parameters = [part / _MILLION for part in impairment.loss_state_ppm]
        p13, p31, p32, p23, p14 = [*parameters, *(1 - parameters[0], 0.0, 1.0, 0.0)[len(parameters) - 1 :]]
        transitions = (
            (1 - p13 - p14, 0.0, p13, p14),
            (0.0, 1 - p23, p23, 0.0),
            (p31, p32, 1 - p31 - p32, 0.0),
            (1.0, 0.0, 0.0, 0.0),
        )
        return 4, (0.0, 0.0, 1.0, 1.0), transitions
    return 1, (impairment.loss_ppm / _MILLION,), ((1.0,),)


def _stationary_distribution(transitions: Sequence[Sequence[float]], states: int) -> list[float]:
    """Return the share of time in each state. Averaging with the identity makes a periodic chain converge."""
    chain = [[(part + (row == state)) / 2 for state, part in enumerate(transitions[row])] for row in range(states)]
    for _ in range(_DOUBLINGS):
        chain = [[part / sum(row) for part in row] for row in _multiply(chain, chain)]
    return chain[0]


# Without numpy: in User-Mode Linux, where tests import this module, numpy does not start (its log of 2 is 0).


def _multiply(left: Sequence[Sequence[float]], right: Sequence[Sequence[float]]) -> list[list[float]]:
    return [[_dot(row, column) for column in zip(*right, strict=True)] for row in left]


def _apply(chain: Sequence[Sequence[float]], values: Sequence[float]) -> list[float]:
    return [_dot(row, values) for row in chain]


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    return sum(first * second for first, second in zip(left, right, strict=True))
