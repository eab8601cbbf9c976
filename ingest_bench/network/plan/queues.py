"""A bottleneck's queue that manages itself (AQM), as lines of `tc -batch`. Pure.

Such a queue does nothing unless packets wait in it, and they wait only below what holds them back. netem with a rate
takes each packet at once and only then lets it wait; a bucket with a peak is too late in a guest of User-Mode Linux
(45 to 49% of 100 Mbit/s). cake has a rate of its own. The others stand below a class of hfsc with a real-time curve
alone: it gives each packet its time, also after a pause, and makes up for a late timer as long as packets wait (Stoica,
Zhang and Ng 1997, "A hierarchical fair service curve algorithm"). With a link-sharing curve it would also send what no
curve has earned. Medians in the guest, behind a delay and beside a busy machine, of the time of a bulk after 0.3 s of
rest (on a wire 2.8 to 2.9 ms), and the rate of full packets:

             100 Mbit/s       300 Mbit/s       500 Mbit/s      1 Gbit/s: 1.59 ms on a wire
    hfsc     2.78 ms  102%    2.91 ms  100%    2.90 ms  101%   1.50 ms   84%
    cake     2.79 ms  101%    3.00 ms  101%    3.91 ms   98%   3.09 ms   40 to 56%
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ingest_bench.model.network import Impairment, Queue

Lines = tuple[str, ...]

SHAPER, QUEUE = "2:", "3:"
# What each needs of a kernel, by the names of its modules: sch_hfsc …
MODULES: Mapping[Queue, Lines] = {"fq_codel": ("hfsc", "fq_codel"), "cake": ("cake",), "red": ("hfsc", "red")}
MANAGED = tuple(MODULES)

# RFC 8290, 5.2: the defaults of fq_codel, those of Linux too.
CODEL_TARGET_NS, CODEL_INTERVAL_NS = 5 * 10**6, 100 * 10**6
CODEL_PACKETS = 10240
# The unit in which tc-red counts a burst: "1000 is a good value".
_RED_PACKET_BYTES = 1000
# The kernel's average has 32 bits, and more of them are its weight the longer a burst may be (include/net/red.h,
# red_check_params): at tc's own shares of the limit 8 MB leave 2 bits, and 10 MB none.
RED_LARGEST_BYTES = 8 * 10**6


class Red(NamedTuple):
    """RED's lengths, all in bytes but for the burst, and of the average but for the limit."""

    limit: int
    marks_all_from: int
    marks_from: int
    burst_packets: int


def is_managed(impairment: Impairment) -> bool:
    """Whether the bottleneck's queue is another than the FIFO."""
    return impairment.queue != "fifo"


def has_class(impairment: Impairment) -> bool:
    """Whether its rate is a class's; cake has its own."""
    return is_managed(impairment) and impairment.queue != "cake"


def lines(device: str, parent: str, impairment: Impairment, *, frame_bytes: int, frames: int) -> Lines:
    """The bottleneck and its queue, of so many full frames unless it has its own measure; `parent` may be the root."""
    rate_bps = impairment.rate_bps
    if impairment.queue == "cake":
        # raw: whole Ethernet frames, as everywhere. It marks what asks for ECN and drops the rest, whatever it is told.
        return (f"qdisc replace dev {device} {parent} handle {SHAPER} cake bandwidth {rate_bps}bit raw",)
    if impairment.queue == "red":
        words = red_words(impairment, frame_bytes=frame_bytes, frames=frames)
    else:
        words = codel_words(impairment, frame_bytes=frame_bytes)
    return (
        f"qdisc replace dev {device} {parent} handle {SHAPER} hfsc default 1",
        f"class replace dev {device} parent {SHAPER} classid {SHAPER}1 hfsc rt m2 {rate_bps}bit",
        f"qdisc replace dev {device} parent {SHAPER}1 handle {QUEUE} {impairment.queue} {' '.join(words)}",
    )


def codel_words(impairment: Impairment, *, frame_bytes: int) -> Lines:
    """tc-fq_codel's options: the quantum is a frame of the link, not of a box whose own MTU is larger."""
    return (
        f"limit {impairment.limit_packets or CODEL_PACKETS}",
        f"quantum {frame_bytes}",
        f"target {CODEL_TARGET_NS // 1000}us interval {CODEL_INTERVAL_NS // 1000}us",
        "ecn" if impairment.ecn else "noecn",
    )


def red_words(impairment: Impairment, *, frame_bytes: int, frames: int) -> Lines:
    """tc-red's options. Adaptive: one share of marks suits one number of flows (Floyd, Gummadi and Shenker 2001)."""
    red = red_lengths(frame_bytes=frame_bytes, frames=frames)
    words = (
        f"limit {red.limit} min {red.marks_from} max {red.marks_all_from} avpkt {_RED_PACKET_BYTES}",
        f"burst {red.burst_packets} bandwidth {impairment.rate_bps}bit adaptive",
    )
    return (*words, "ecn") if impairment.ecn else words


def red_lengths(*, frame_bytes: int, frames: int) -> Red:
    """What tc-red makes of a limit by default, and the burst of its manual, rounded up."""
    limit = min(frames * frame_bytes, RED_LARGEST_BYTES)
    marks_all_from = limit // 4
    marks_from = marks_all_from // 3
    return Red(limit, marks_all_from, marks_from, -(-(2 * marks_from + marks_all_from) // (3 * _RED_PACKET_BYTES)))


def spared_frames(impairment: Impairment, *, frame_bytes: int, frames: int) -> int:
    """How many full frames may come at once after a pause and none is marked or dropped.

    CoDel waits a whole interval in which its target is missed; RED's average is never longer than the queue.
    """
    if impairment.queue == "red":
        return red_lengths(frame_bytes=frame_bytes, frames=frames).marks_from // frame_bytes
    return min(frames, int((impairment.rate_bps or 0) * CODEL_INTERVAL_NS / 8e9) // frame_bytes)
