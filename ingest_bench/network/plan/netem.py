"""What one direction does to packets, as lines of `tc -batch`. Pure.

netem is the root and the bottleneck its child: a packet is delayed or lost on its way, then waits for the bottleneck,
which has a queue of its own. The other way round, tc hands the bottleneck's queue to netem, and one limit would have
to be the queue and the delay line at once.

A wire sends packet after packet, also after a pause. A token bucket does not: what it has saved up goes at once, and
one that saves nothing misses its rate on a busy machine, whose timers are late. So the bottleneck is a second netem
with a rate where there is netem: it gives each packet its time, and what is late goes as soon as it can. Else it is a
bucket with a peak rate a little above the rate. Medians of the time in which the frames of 200 KB came after 200 ms of
rest, on two cores beside other work, and the rate that was left of full packets:

                            100 Mbit/s: 16.7 ms on a wire   1 Gbit/s: 1.67 ms
                            beside 5 busy processes
    kernel  bucket of 2 ms          14.7 ms  100%           0.65 ms  100%       beside 5 busy processes
            the same with a peak    15.0 ms  100%           1.46 ms  96 to 100%
    guest   bucket of 10 ms          6.9 ms  100%           2.3 ms   100%       without them
            the same with a peak    22.5 ms  45 to 49%      3.2 ms   82 to 91%
            netem's rate            16.6 ms  100%           5.1 ms   48 to 63%
            and slots                                       1.84 ms  89 to 98%

hfsc in the guest gave 148% of 200 Mbit/s. No other netem may be in one tree with one that duplicates
(net/sched/sch_netem.c, check_netem_in_tree); its bottleneck is a bucket with a peak. A queue that manages itself has a
bottleneck of its own (`queues`).
"""

from __future__ import annotations

import math
from dataclasses import replace

from ingest_bench.model.network import Impairment
from ingest_bench.network.plan import queues

Lines = tuple[str, ...]

ETHERNET_HEADER_BYTES = 14
SMALLEST_FRAME_BYTES = 64
# The queue of a netem counts packets in 32 bits, that of a token bucket bytes (net/sched/sch_netem.c, sch_tbf.c).
LARGEST_QUEUE = 2**32 - 1
# Without a rate the machine itself is the bottleneck; two namespaces of one machine do not pass this.
UNLIMITED_BPS = 10 * 10**9
# tc's own default limit for netem (iproute2, tc/q_netem.c), here the queue in front of netem's own bottleneck.
QUEUE_PACKETS = 1000
# The queue of a bucket holds one round trip of a wide-area path at full rate (Villamizar and Song 1994, "High
# performance TCP in ANSNET"), and on a slow line a few packets.
QUEUE_NS = 50 * 10**6
SMALLEST_QUEUE_FRAMES = 32
# How late the kernel may be before the rate is missed: on a busy machine its network work waits like any other
# (ksoftirqd). Measured with six busy processes on two cores: with 0.5 ms, 74 to 93% of the rate; with 2 ms, 98 to 102%.
BURST_NS = 2 * 10**6
SMALLEST_BURST_FRAMES = 2
# What a bucket has saved up goes at this share of the rate and no faster: at 125%, 200 KB at 1 Gbit/s took 1.32 ms.
PEAK_PERCENT = 110
# What may leave in one moment, and at least two frames: a timer for each packet is more than a guest of User-Mode Linux
# has at 1 Gbit/s, and a kernel at 105% with two frames gave 6% of the rate. A card that moderates its interrupts
# does the same to its reader.
MOMENT_NS = 100 * 10**3

_NOTHING = Impairment()
NETEM, BOTTLENECK = "1:", "2:"

# What a netem keeps when a change does not name it (net/sched/sch_netem.c, netem_change): measured, too, when 2% of
# corrupt packets outlived the profile that had asked for them.
_STICKY = (
    "delay_correlation_ppm",
    "distribution",
    "loss_correlation_ppm",
    "duplicate_correlation_ppm",
    "corrupt_ppm",
    "corrupt_correlation_ppm",
    "reorder_ppm",
    "reorder_correlation_ppm",
    "netem_rate_bps",
    "packet_overhead_bytes",
    "cell_bytes",
    "cell_overhead_bytes",
    "slot_min_ns",
    "ecn",
)


def lines(
    device: str, impairment: Impairment, mtu_bytes: int, *, parent: str = "root", rate_by_netem: bool = False
) -> Lines:
    """The qdiscs of a device that has only the kernel's default; `parent` may be a class in place of the root.

    With `rate_by_netem` also a direction that needs no netem for anything else has its rate from one.
    """
    made = []
    if uses_netem(impairment):
        made.append(
            f"qdisc replace dev {device} {parent} handle {NETEM} netem {' '.join(netem_words(impairment, mtu_bytes))}"
        )
        parent = f"parent {NETEM}1"
    if queues.is_managed(impairment):
        frames = queue_frames(impairment, mtu_bytes)
        frame_bytes = mtu_bytes + ETHERNET_HEADER_BYTES
        made += queues.lines(device, parent, impairment, frame_bytes=frame_bytes, frames=frames)
    elif impairment.rate_bps is not None:
        made.append(
            f"qdisc replace dev {device} {parent} handle {BOTTLENECK} "
            + " ".join(bottleneck_words(impairment, mtu_bytes, rate_by_netem=rate_by_netem))
        )
    return tuple(made)


def change(device: str, before: Impairment, after: Impairment, mtu_bytes: int, *, rate_by_netem: bool = False) -> Lines:
    """The lines that turn one state of a device into another.

    The same kinds of qdisc are changed where they are and keep the packets that wait in them. Others are made anew,
    and so is a netem that had an option which it shall not have any more: it would keep it. Only RED drops what waits.
    """
    old, new = (lines(device, state, mtu_bytes, rate_by_netem=rate_by_netem) for state in (before, after))
    same = [_kind(line) for line in old if _is_qdisc(line)] == [_kind(line) for line in new if _is_qdisc(line)]
    sticks = any(_is_set(before, name) and not _is_set(after, name) for name in _STICKY)
    if not old or (same and not sticks):
        return new
    return (f"qdisc del dev {device} root", *new)


def bottleneck_words(impairment: Impairment, mtu_bytes: int, *, rate_by_netem: bool) -> Lines:
    """The bottleneck's kind and options: its rate counts whole Ethernet frames, without preamble and checksum."""
    if not is_spaced_by_netem(impairment, rate_by_netem=rate_by_netem):
        return ("tbf", *tbf_words(impairment, mtu_bytes))
    moment_ns = slot_ns(impairment, mtu_bytes)
    # A netem that is changed keeps a slot that is not named.
    slot = f"slot {microseconds(moment_ns)} {microseconds(moment_ns)}"
    return ("netem", f"limit {queue_frames(impairment, mtu_bytes)}", f"rate {impairment.rate_bps}bit", slot)


def is_spaced_by_netem(impairment: Impairment, *, rate_by_netem: bool) -> bool:
    """Whether the bottleneck is a netem; a bucket that was asked for is one, and so is what another queue needs."""
    if impairment.rate_bps is None or impairment.burst_bytes is not None or impairment.duplicate_ppm:
        return False
    if queues.is_managed(impairment):
        return False
    return rate_by_netem or uses_netem(impairment)


def slot_ns(impairment: Impairment, mtu_bytes: int) -> int:
    """How long the bottleneck's netem gathers packets; 0 where no two frames leave in that time."""
    return MOMENT_NS if moment_bytes(impairment, mtu_bytes) <= _bytes_a_moment(impairment) else 0


def moment_bytes(impairment: Impairment, mtu_bytes: int) -> int:
    """What may leave a bottleneck in one moment."""
    return max(2 * (mtu_bytes + ETHERNET_HEADER_BYTES), _bytes_a_moment(impairment))


def queue_frames(impairment: Impairment, mtu_bytes: int) -> int:
    """The full frames for which the bottleneck's queue has room."""
    if impairment.limit_packets is not None:
        return impairment.limit_packets
    frame_bytes = mtu_bytes + ETHERNET_HEADER_BYTES
    return max(SMALLEST_QUEUE_FRAMES, int((impairment.rate_bps or 0) * QUEUE_NS / 8e9) // frame_bytes)


def tbf_words(impairment: Impairment, mtu_bytes: int) -> Lines:
    """tc-tbf's options. A bucket that was asked for has no peak: it lets as much pass at once as was asked for."""
    frame_bytes = mtu_bytes + ETHERNET_HEADER_BYTES
    rate_bps = impairment.rate_bps or 0
    if impairment.limit_packets is not None:
        queue_bytes = impairment.limit_packets * frame_bytes
    else:
        queue_bytes = max(SMALLEST_QUEUE_FRAMES * frame_bytes, int(rate_bps * QUEUE_NS / 8e9))
    words = (f"rate {rate_bps}bit", f"burst {burst_bytes(impairment, mtu_bytes)}b", f"limit {queue_bytes}b")
    if impairment.burst_bytes is not None:
        return words
    peak_bps = math.ceil(rate_bps * PEAK_PERCENT / 100)
    return (*words, f"peakrate {peak_bps}bit", f"mtu {moment_bytes(impairment, mtu_bytes)}b")


def burst_bytes(impairment: Impairment, mtu_bytes: int) -> int:
    """The bucket: as given, or what keeps the rate on a busy machine."""
    if impairment.burst_bytes is not None:
        return impairment.burst_bytes
    frames_bytes = SMALLEST_BURST_FRAMES * (mtu_bytes + ETHERNET_HEADER_BYTES)
    return max(frames_bytes, int((impairment.rate_bps or 0) * BURST_NS / 8e9))


def netem_words(impairment: Impairment, mtu_bytes: int) -> Lines:
    """tc-netem's options in the order of its manual."""
    return (
        f"limit {queue_limit_packets(impairment, mtu_bytes)}",
        *_delay(impairment),
        *_loss(impairment),
        *_share("corrupt", impairment.corrupt_ppm, impairment.corrupt_correlation_ppm),
        *_share("duplicate", impairment.duplicate_ppm, impairment.duplicate_correlation_ppm),
        *_share("reorder", impairment.reorder_ppm, impairment.reorder_correlation_ppm),
        *([f"gap {impairment.reorder_gap}"] if impairment.reorder_gap else []),
        *_rate(impairment),
        *_slot(impairment),
    )


def queue_limit_packets(impairment: Impairment, mtu_bytes: int) -> int:
    """Packets netem must hold so that delay alone never drops one.

    tc's default is 1000. At 1 Gbit/s and 50 ms a link holds 4167 full packets, so the default would add loss that
    nobody asked for. With netem's own rate the limit is the delay line and the bottleneck's queue, in full packets.
    Else it only bounds the delay line and counts the smallest frames: a fast other direction is acknowledged by
    nearly as many packets as it has itself.
    """
    slot_ns = impairment.slot_max_ns or impairment.slot_min_ns or 0
    longest_ns = impairment.delay_ns + 4 * impairment.jitter_ns + slot_ns
    if impairment.rate_bps is None:
        if impairment.limit_packets is not None:
            return impairment.limit_packets
        if impairment.netem_rate_bps is not None:
            return held_packets(impairment.netem_rate_bps, longest_ns, mtu_bytes) + QUEUE_PACKETS
    behind = impairment.limit_packets or QUEUE_PACKETS
    held = held_packets(impairment.rate_bps or UNLIMITED_BPS, longest_ns, SMALLEST_FRAME_BYTES)
    return min(held + behind, LARGEST_QUEUE)


def held_packets(rate_bps: int, delay_ns: int, packet_bytes: int) -> int:
    """Packets of that size on a line of that length."""
    return math.ceil(rate_bps * delay_ns / (8e9 * packet_bytes))


def _bytes_a_moment(impairment: Impairment) -> int:
    return int((impairment.rate_bps or 0) * MOMENT_NS / 8e9)


def _is_qdisc(line: str) -> bool:
    return line.startswith("qdisc ")


def _kind(line: str) -> tuple[str, str]:
    """Where a line's qdisc is, and what it is."""
    where, _, rest = line.partition(" handle ")
    return where, rest.split()[1]


def _is_set(impairment: Impairment, name: str) -> bool:
    return bool(getattr(impairment, name) != getattr(_NOTHING, name))


def uses_netem(impairment: Impairment) -> bool:
    """Whether a direction has a netem; a queue's limit alone is the bottleneck's, and its marks are, too."""
    queue_packets = None if impairment.rate_bps is not None else impairment.limit_packets
    return replace(impairment, limit_packets=queue_packets, queue="fifo", ecn=False).needs_netem


def has_losses(impairment: Impairment) -> bool:
    """Whether netem loses packets, or marks them in place of that: a queue's marks are its own."""
    return bool(impairment.loss_ppm or impairment.loss_state_ppm or impairment.loss_gemodel_ppm)


def _delay(impairment: Impairment) -> Lines:
    if not (impairment.delay_ns or impairment.jitter_ns):
        return ()
    words = f"delay {microseconds(impairment.delay_ns)}"
    if not impairment.jitter_ns:
        return (words,)
    words += f" {microseconds(impairment.jitter_ns)}"
    if impairment.delay_correlation_ppm:
        words += f" {percent(impairment.delay_correlation_ppm)}"
    # Uniform is what tc does without the word, and Debian ships no table for it.
    return (words,) if impairment.distribution == "uniform" else (words, f"distribution {impairment.distribution}")


def _loss(impairment: Impairment) -> Lines:
    words: Lines = ()
    if impairment.loss_state_ppm:
        words = (f"loss state {' '.join(map(percent, impairment.loss_state_ppm))}",)
    elif impairment.loss_gemodel_ppm:
        words = (f"loss gemodel {' '.join(map(percent, impairment.loss_gemodel_ppm))}",)
    elif impairment.loss_ppm:
        words = _share("loss random", impairment.loss_ppm, impairment.loss_correlation_ppm)
    return (*words, "ecn") if impairment.ecn and has_losses(impairment) else words


def _share(word: str, share_ppm: int, correlation_ppm: int) -> Lines:
    if not share_ppm:
        return ()
    return (f"{word} {percent(share_ppm)}" + (f" {percent(correlation_ppm)}" if correlation_ppm else ""),)


def _rate(impairment: Impairment) -> Lines:
    if impairment.netem_rate_bps is None:
        return ()
    overheads = (impairment.packet_overhead_bytes, impairment.cell_bytes, impairment.cell_overhead_bytes)
    words = f"rate {impairment.netem_rate_bps}bit"
    return (words + "".join(f" {overhead}" for overhead in overheads) if any(overheads) else words,)


def _slot(impairment: Impairment) -> Lines:
    if impairment.slot_min_ns is None:
        return ()
    words = f"slot {microseconds(impairment.slot_min_ns)}"
    if impairment.slot_max_ns is not None:
        words += f" {microseconds(impairment.slot_max_ns)}"
    if impairment.slot_packets:
        words += f" packets {impairment.slot_packets}"
    if impairment.slot_bytes:
        words += f" bytes {impairment.slot_bytes}"
    return (words,)


def microseconds(time_ns: int) -> str:
    """A time as tc reads it. It takes no "ns" for a delay: it says: Illegal "latency" (iproute2 6.1)."""
    return f"{time_ns / 1000:.3f}".rstrip("0").rstrip(".") + "us"


def percent(share_ppm: int) -> str:
    """A share as tc reads it: "0.5%"."""
    return f"{share_ppm / 10**4:.4f}".rstrip("0").rstrip(".") + "%"
