"""What one direction does to packets, as lines of `tc -batch`. Pure.

netem is the root and the token bucket its child: a packet is delayed or lost on its way, then waits for the
bottleneck, whose queue is the bucket's own. The other way round, tc hands the bucket's queue to netem, and one limit
would have to be the queue and the delay line at once.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ingest_bench.model.network import Impairment

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
# A queue that is never empty leaves packet by packet all the same: what is saved up goes at once only after a pause.
BURST_NS = 2 * 10**6
SMALLEST_BURST_FRAMES = 2

_NOTHING = Impairment()
_NETEM, _TBF = "1:", "2:"

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


def lines(device: str, impairment: Impairment, mtu_bytes: int, *, parent: str = "root") -> Lines:
    """The qdiscs of a device that has only the kernel's default; `parent` may be a class in place of the root."""
    made = []
    if uses_netem(impairment):
        made.append(
            f"qdisc replace dev {device} {parent} handle {_NETEM} netem {' '.join(netem_words(impairment, mtu_bytes))}"
        )
        parent = f"parent {_NETEM}1"
    if impairment.rate_bps is not None:
        made.append(
            f"qdisc replace dev {device} {parent} handle {_TBF} tbf {' '.join(tbf_words(impairment, mtu_bytes))}"
        )
    return tuple(made)


def change(device: str, before: Impairment, after: Impairment, mtu_bytes: int) -> Lines:
    """The lines that turn one state of a device into another.

    The same kinds of qdisc are changed where they are and keep the packets that wait in them. Others are made anew,
    and so is a netem that had an option which it shall not have any more: it would keep it.
    """
    old, new = lines(device, before, mtu_bytes), lines(device, after, mtu_bytes)
    same = [line.split(" handle ")[0] for line in old] == [line.split(" handle ")[0] for line in new]
    sticks = any(_is_set(before, name) and not _is_set(after, name) for name in _STICKY)
    if not old or (same and uses_netem(before) == uses_netem(after) and not sticks):
        return new
    return (f"qdisc del dev {device} root", *new)


def tbf_words(impairment: Impairment, mtu_bytes: int) -> Lines:
    """tc-tbf's options: the rate counts whole Ethernet frames, without preamble and checksum."""
    frame_bytes = mtu_bytes + ETHERNET_HEADER_BYTES
    rate_bps = impairment.rate_bps or 0
    if impairment.limit_packets is not None:
        queue_bytes = impairment.limit_packets * frame_bytes
    else:
        queue_bytes = max(SMALLEST_QUEUE_FRAMES * frame_bytes, int(rate_bps * QUEUE_NS / 8e9))
    return (f"rate {rate_bps}bit", f"burst {burst_bytes(impairment, mtu_bytes)}b", f"limit {queue_bytes}b")


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


def _is_set(impairment: Impairment, name: str) -> bool:
    return bool(getattr(impairment, name) != getattr(_NOTHING, name))


def uses_netem(impairment: Impairment) -> bool:
    """Whether a direction has a netem; a queue's limit alone is the token bucket's."""
    queue_packets = None if impairment.rate_bps is not None else impairment.limit_packets
    return replace(impairment, limit_packets=queue_packets).needs_netem


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
    return (*words, "ecn") if impairment.ecn else words


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
