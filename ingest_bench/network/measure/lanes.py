"""One direction of a link under test, and the promises that it can be held to."""

from __future__ import annotations

import functools
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ingest_bench import units
from ingest_bench.model.network import Promise
from ingest_bench.network.measure import expected, frames
from ingest_bench.network.plan import losses
from ingest_bench.network.plan.netem import ETHERNET_HEADER_BYTES
from ingest_bench.trials import processor_ticks, stolen_share

if TYPE_CHECKING:
    from ingest_bench.model.network import Impairment, Profile
    from ingest_bench.network.measure.probing import Way
    from ingest_bench.network.plan.places import Direction

# How long is waited before each try. A busy machine can spoil a measurement; it does not make a bad link look good.
_AT_ONCE_S = (0, 0, 0)
# A JVM that starts beside it keeps two cores busy for seconds, in which the sender is too slow: three tries at once all
# fell into that. For a rate alone: a busy machine also spreads delays, and would soon look like a jitter.
_RATE_RESTS_S = (*_AT_ONCE_S, 2, 4)
# An idle virtual machine is told of less than 1%. One of which more was taken sent 931 Mbit/s for 12 s over a link of
# 1 Gbit/s, and 1000 in each of 22 checks after that.
_MUCH_STOLEN = 0.02
PATIENCE_S = 45.0
_PROBE_BYTES = 128
_RATE_SHARE = 0.05
# A peak of 110% with two frames at once, and what a busy machine adds.
_BULK_SHARE = 0.25
_JITTER_SHARE, _JITTER_NS = 0.25, 500 * 10**3
_TRANSFER_S = 0.1
_FEW_FRAMES = 1000
_MILLION = 10**6

# What was measured, in words, and whether that keeps the promise; the argument says which try it is.
Measure = Callable[[int], tuple[str, bool]]


def tried(
    name: str,
    promised: str,
    tolerance: str,
    measure: Measure,
    rests_s: Sequence[float] = _AT_ONCE_S,
    patience_s: float = 0.0,
) -> Promise:
    """The promise, measured until it is kept, after each of these rests.

    A try while a hypervisor took the processors proves nothing against a link: for so long another takes its place.
    """
    until_s, proving = time.monotonic() + patience_s, 0
    for attempt in itertools.count(1):
        time.sleep(rests_s[min(attempt, len(rests_s)) - 1])
        before = processor_ticks()
        words, kept = measure(attempt)
        stolen = stolen_share(before, processor_ticks())
        proving += stolen < _MUCH_STOLEN
        if kept or proving == len(rests_s) or (attempt >= len(rests_s) and time.monotonic() >= until_s):
            break
    again = f"; try {attempt}" if attempt > 1 else ""
    why = "" if kept or stolen < _MUCH_STOLEN else f"; a hypervisor took {stolen:.0%} of this machine's processors"
    return Promise(name=name, promised=promised, measured=words + again + why, tolerance=tolerance, kept=kept)


@dataclass(frozen=True, slots=True)
class Seen:
    """What became of a burst of numbered probes."""

    sent: int
    numbers: list[int]
    delays_ns: list[int]
    overflowed: int

    def lost(self) -> int:
        """Probes that never came. Those for which the receiving socket had no room were not lost on the link."""
        return max(0, self.sent - len(set(self.numbers)) - self.overflowed)

    def doubled(self) -> int:
        """Probes that came more than once."""
        return len(self.numbers) - len(set(self.numbers))

    def hurried(self, delay_ns: float) -> int:
        """Probes that came in less than half of the delay: netem let them overtake."""
        return sum(delay < delay_ns / 2 for delay in self.delays_ns)


@dataclass(frozen=True, slots=True)
class Lane:
    """One direction of a link under test."""

    way: Way
    direction: Direction
    profile: Profile
    impairment: Impairment

    def promises(self) -> list[Promise]:
        """Each promise with what was measured: packets before the transfers, which leave a queue behind."""
        return [*self.packets(), *self.transfers()]

    def packets(self) -> Iterator[Promise]:
        """The promises that single packets can prove: path MTU, loss, duplicates, reordering, jitter."""
        yield tried(f"mtu {self.direction}", str(self.profile.mtu_bytes), "exact", self._mtu)

        @functools.cache
        def burst(attempt: int) -> Seen:
            plan = expected.burst(self.impairment, attempt)
            sending = {"count": plan.count, "per_s": plan.per_s, "packet_bytes": _PROBE_BYTES}
            took_s = plan.count / plan.per_s
            _, came = self.way.probes("burst", quiet_s=self._quiet_s, tail_s=self._tail_s, seconds=took_s, **sending)
            return Seen(plan.count, came["numbers"], came["delays_ns"], came["overflowed"])

        impairment = self.impairment
        lost = losses.share(impairment)
        if lost is not None:
            factor = losses.variance_factor(impairment)
            yield self._share("loss", lost, lambda attempt: (burst(attempt).lost(), burst(attempt).sent), factor)
        if impairment.duplicate_ppm and not impairment.duplicate_correlation_ppm:
            doubled = impairment.duplicate_ppm / _MILLION * (1 - (lost or 0))
            yield self._share("duplicates", doubled, lambda attempt: (burst(attempt).doubled(), burst(attempt).sent))
        hurried = expected.reordered_share(impairment)
        if hurried is not None and impairment.delay_ns >= 4 * _MILLION:
            yield self._share(
                "reordered",
                hurried,
                lambda attempt: (burst(attempt).hurried(impairment.delay_ns), len(burst(attempt).numbers)),
            )
        spread_ns = expected.jitter_ns(impairment)
        if spread_ns is not None:
            tolerance_ns = max(_JITTER_SHARE * spread_ns, _JITTER_NS)
            yield tried(
                f"jitter {self.direction}",
                f"{spread_ns / 1e6:.2f} ms",
                f"{tolerance_ns / 1e6:.2f} ms, the larger of 25% and 0.5 ms; quartile to quartile of the one-way delay",
                lambda attempt: _spread(burst(attempt).delays_ns, spread_ns, tolerance_ns),
                patience_s=PATIENCE_S,
            )

    def transfers(self) -> Iterator[Promise]:
        """The promises that a transfer can prove: MSS, congestion control, sizes on the wire, rate."""
        yield from self._tcp()
        rate_bps = self._rate_bps
        if rate_bps is not None:
            yield tried(
                f"rate {self.direction}",
                units.format_bps(rate_bps),
                "5%, of Ethernet frames without preamble and checksum",
                functools.partial(self._rate, rate_bps),
                _RATE_RESTS_S,
                PATIENCE_S,
            )

        plan = expected.bulk(self.impairment, self.profile.mtu_bytes)
        if plan is not None:
            yield tried(
                f"bulk {self.direction}",
                f"{plan.frames * plan.frame_bytes / 1000:.3g} kB in {plan.seconds * 1000:.4g} ms",
                "25%, from the first to the last frame of what is sent at once after a pause",
                functools.partial(self._bulk, plan),
                _RATE_RESTS_S,
                PATIENCE_S,
            )

    @property
    def _frame_bytes(self) -> int:
        return self.profile.mtu_bytes + ETHERNET_HEADER_BYTES

    @property
    def _rate_bps(self) -> int | None:
        """Of full frames."""
        return expected.rate_bps(self.impairment, self._frame_bytes)

    @property
    def _quiet_s(self) -> float:
        """How long nothing may come before nothing more will: the delay, a frame's time, and a busy machine's pause."""
        wire_s = expected.wire_ns(self.impairment, self._frame_bytes) / 1e9
        return expected.longest_delay_s(self.impairment) + wire_s + 0.3

    @property
    def _tail_s(self) -> float:
        """How long after the end an earlier packet may come: not at all where packets keep their order.

        With the delay alone a busy machine lost up to 44 of 3000 packets: the end had overtaken them.
        """
        keeps = not (self.impairment.jitter_ns or self.impairment.reorder_ppm)
        return 0.0 if keeps else self._quiet_s

    def _mtu(self, attempt: int) -> tuple[str, bool]:
        fits = min(self.profile.mtu_bytes, expected.LARGEST_PACKET_BYTES)
        sizes = [size for size in (fits + 1, fits) if size <= expected.LARGEST_PACKET_BYTES]
        # More than one of each: the link may be one that loses some.
        sent, came = self.way.probes(
            "sizes", quiet_s=self._quiet_s, tail_s=self._tail_s, packets_bytes=sizes * 3 * attempt
        )
        passed = set(came["packets_bytes"])
        words = [f"{size} {'passes' if size in passed else 'does not'}" for size in sorted(sizes)]
        refused = " (the sender's stack refuses it)" if fits + 1 in sent["refused"] else ""
        return ", ".join(words) + refused, passed == {fits}

    def _share(self, name: str, share: float, count: Callable[[int], tuple[int, int]], factor: float = 1.0) -> Promise:
        def measure(attempt: int) -> tuple[str, bool]:
            events, sent = count(attempt)
            low, high = losses.interval(events, sent, factor) if sent else (0.0, 1.0)
            words = f"{units.format_ppm(low * _MILLION)} to {units.format_ppm(high * _MILLION)} ({events} of {sent})"
            # Nothing promised is nothing found: an interval around one lost packet would hold 0 only by its width.
            return words, bool(sent) and (low <= share <= high if share else events == 0)

        tolerance = "inside the 99% interval" if share else "none"
        return tried(f"{name} {self.direction}", units.format_ppm(share * _MILLION), tolerance, measure)

    def _tcp(self) -> Iterator[Promise]:
        @functools.cache
        def transfer(attempt: int) -> tuple[dict[str, int], dict[int, int], str]:
            most_bytes = expected.transfer_bytes(self.profile, self.impairment, _TRANSFER_S)
            few = attempt > 1 or most_bytes < _FEW_FRAMES * expected.mss_bytes(self.profile)
            sampled = 1 if few else frames.one_of(self._rate_bps)
            sent, came = self.way.transfer(_TRANSFER_S * attempt, most_bytes, sampled)
            return sent, {int(size): count for size, count in came["frames"].items()}, sent["congestion_control"]

        mss_bytes = expected.mss_bytes(self.profile)

        def mss(attempt: int) -> tuple[str, bool]:
            found = transfer(attempt)[0]["mss_bytes"]
            return str(found), found == mss_bytes

        yield tried(f"mss {self.direction}", str(mss_bytes), "exact", mss)
        found = transfer(1)[2]
        wanted = self.profile.link_congestion_control
        yield tried(f"congestion control {self.direction}", wanted, "exact", lambda _: (found, found == wanted))
        if self.profile.gso_max_segs == 1:
            full = expected.full_frame_bytes(self.profile)
            yield tried(
                f"frames {self.direction}",
                f"{full} bytes",
                "what most bytes came in, and none larger",
                lambda attempt: _sizes(transfer(attempt)[1], full),
            )

    def _rate(self, rate_bps: int, attempt: int) -> tuple[str, bool]:
        plan = expected.flood(self.impairment, self.profile.mtu_bytes, attempt)
        most_s = plan.seconds * 2 + self._quiet_s + 1
        points = self.way.flood(plan.seconds, self.profile.mtu_bytes, plan.per_s, plan.pieces, most_s)
        # The first bytes are what the bucket had saved up.
        began = next((at for at, count in points if count != points[0][1]), 0.0)
        steady = [point for point in points if point[0] > began + plan.seconds / 10]
        found_bps = fastest_bps(arrivals(steady), plan.window_s)
        return f"{found_bps / 1e6:.4g} Mbit/s", abs(found_bps - rate_bps) <= _RATE_SHARE * rate_bps

    def _bulk(self, plan: expected.Bulk, attempt: int) -> tuple[str, bool]:
        # Longer than a frame takes: the end of each bulk that lost some.
        quiet_s = self._quiet_s + 2 * plan.seconds / plan.frames
        bulks = self.way.bulks(
            plan.times * min(attempt, len(_RATE_RESTS_S)),
            packets=plan.frames,
            mtu_bytes=self.profile.mtu_bytes,
            frame_bytes=plan.frame_bytes,
            quiet_s=quiet_s,
            pause_s=plan.pause_s,
        )
        return judged(bulks, plan)


def judged(bulks: list[list[int]], plan: expected.Bulk) -> tuple[str, bool]:
    """How long a whole bulk took by the arrivals of each, in ns, and whether that is what the wire would take.

    Too quick is what the median says, and too slow only the quickest quarter: a busy machine makes most of them longer.
    """
    took_s = sorted(
        (max(moments) - min(moments)) / 1e9 * (plan.frames - 1) / (len(moments) - 1)
        for moments in bulks
        if len(moments) >= plan.frames / 2
    )
    if len(took_s) < len(bulks) / 2:
        return f"more than half was lost of {len(bulks) - len(took_s)} of {len(bulks)} bulks", False
    quick_s, middle_s = took_s[len(took_s) // 4], took_s[len(took_s) // 2]
    words = f"{middle_s * 1000:.4g} ms (median of {len(took_s)}; 25%: {quick_s * 1000:.4g} ms)"
    return words, middle_s >= (1 - _BULK_SHARE) * plan.seconds and quick_s <= (1 + _BULK_SHARE) * plan.seconds


def arrivals(points: list[tuple[float, int]]) -> list[tuple[float, int]]:
    """The moments at which something had just come: between two others a slow line has up to a frame too many."""
    return [point for before, point in itertools.pairwise(points) if point[1] != before[1]]


def fastest_bps(points: list[tuple[float, int]], window_s: float) -> float:
    """The highest rate over any time of at least `window_s`.

    A busy machine may pause the sender, which makes a rate too low; it cannot make a token bucket give more.
    """
    best, first = 0.0, 0
    for index, (at_s, count_bytes) in enumerate(points):
        while first + 1 < index and points[first + 1][0] <= at_s - window_s:
            first += 1
        passed_s = at_s - points[first][0]
        if passed_s >= window_s:
            best = max(best, (count_bytes - points[first][1]) * 8 / passed_s)
    return best


def _spread(delays_ns: list[int], promised_ns: float, tolerance_ns: float) -> tuple[str, bool]:
    if len(delays_ns) < 4:
        return "too few packets came", False
    first, _, third = statistics.quantiles(delays_ns, n=4)
    return f"{(third - first) / 1e6:.2f} ms", abs(third - first - promised_ns) <= tolerance_ns


def _sizes(counts: dict[int, int], full_bytes: int) -> tuple[str, bool]:
    if not counts:
        return "no frame was seen", False
    # By bytes: the acknowledgements of the other direction are as many.
    common, largest = max(counts, key=lambda size: size * counts[size]), max(counts)
    words = f"{common} bytes in {counts[common]} of {sum(counts.values())} frames, largest {largest}"
    return words, common == full_bytes and largest <= full_bytes
