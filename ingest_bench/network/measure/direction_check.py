"""Measure one direction of a link by a meter at each end, and compare each property with its profile."""

from __future__ import annotations

import functools
import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from ingest_bench import system, units
from ingest_bench.errors import RunFailed
from ingest_bench.host.cpu import compute_stolen_share, read_stolen_ticks
from ingest_bench.model.network import Impairment, LinkCheck, Profile
from ingest_bench.network.act.link import Link
from ingest_bench.network.measure import expected
from ingest_bench.network.measure.wire import sampling_ratio
from ingest_bench.network.plan import netem
from ingest_bench.network.plan.link_plan import Direction
from ingest_bench.network.plan.netem import ETHERNET_HEADER_BYTES

# Waits before each attempt. A busy machine can spoil a measurement; it does not make a bad link look good.
_NO_WAITS_S = (0, 0, 0)
# A JVM that starts meanwhile keeps two cores busy for seconds, in which the sender is too slow: three attempts without
# waits all failed in that time. For rates only: a busy machine also spreads delays, and would soon look like a jitter.
_RATE_WAITS_S = (*_NO_WAITS_S, 2, 4)
# An idle virtual machine reports less than 1%. One with more stolen CPU time sent 931 Mbit/s for 12 s over a link of
# 1 Gbit/s, and 1000 in each of 22 checks after that.
_MAX_STOLEN_SHARE = 0.02
PATIENCE_S = 45.0
_REPLY_LIMIT_S = 60.0
_PROBE_BYTES = 128
_RATE_TOLERANCE = 0.05
# For a peak rate of 110% with two frames at once, and what a busy machine adds.
_BURST_TOLERANCE = 0.25
_JITTER_TOLERANCE, _MIN_JITTER_TOLERANCE_NS = 0.25, 500 * 10**3
_TRANSFER_S = 0.1
_FEW_FRAMES = 1000
_MILLION = 10**6

# Takes the number of the attempt; returns the measurement as text, and True if it is as expected.
Measure = Callable[[int], tuple[str, bool]]


def measure_repeatedly(
    name: str,
    expected_text: str,
    tolerance: str,
    measure: Measure,
    waits_s: Sequence[float] = _NO_WAITS_S,
    patience_s: float = 0.0,
) -> LinkCheck:
    """Measure until the result is as expected, after each of these waits.

    An attempt during which a hypervisor stole CPU time proves nothing: within `patience_s` it is repeated.
    """
    deadline_s, valid_attempts = time.monotonic() + patience_s, 0
    for attempt in itertools.count(1):
        time.sleep(waits_s[min(attempt, len(waits_s)) - 1])
        before = read_stolen_ticks()
        text, passed = measure(attempt)
        stolen = compute_stolen_share(before, read_stolen_ticks())
        valid_attempts += stolen < _MAX_STOLEN_SHARE
        is_late = attempt >= len(waits_s) and time.monotonic() >= deadline_s
        if passed or valid_attempts == len(waits_s) or is_late:
            break
    if attempt > 1:
        text += f"; attempt {attempt}"
    if not passed and stolen >= _MAX_STOLEN_SHARE:
        text += f"; a hypervisor stole {stolen:.0%} of this machine's CPU time"
    return LinkCheck(name=name, expected=expected_text, measured=text, tolerance=tolerance, passed=passed)


@dataclass(slots=True)
class RemoteMeter:
    """Our end of a `meter` child."""

    child: system.Child
    sockets: dict[str, list[Any]]
    """Addresses and ports of its "udp" and "tcp" socket."""

    def start(self, operation: str, **arguments: Any) -> None:
        """Start an operation; `read_reply` returns its reply."""
        self.child.write_line(json.dumps({"operation": operation, **arguments}))

    def read_reply(self, limit_s: float = _REPLY_LIMIT_S) -> dict[str, Any]:
        """Return the meter's next line."""
        reply: dict[str, Any] = json.loads(self.child.read_line(limit_s))
        if "error" in reply:
            raise RunFailed(f"{self.child.name}: {reply['error']}")
        return reply


@dataclass(slots=True)
class MeterPair:
    """The meters of one direction: sender and receiver."""

    sender: RemoteMeter
    receiver: RemoteMeter
    run_numbers: Iterator[int]
    longest_rtt_s: float = 0.0
    """The shortest TCP transfer takes some round trips, so long ones extend the limits."""

    @property
    def _max_s(self) -> float:
        """The limit of an operation, in addition to its sending time."""
        return _REPLY_LIMIT_S / 2 + 3 * self.longest_rtt_s

    def send_probes(
        self, operation: str, *, quiet_s: float, tail_s: float = 0.0, seconds: float = 0.0, **sending: Any
    ) -> tuple[Any, Any]:
        """Send probes, which takes `seconds`; return the replies of sender and receiver."""
        run = {"run": next(self.run_numbers)}
        receiving = {"quiet_s": quiet_s, "tail_s": tail_s, "max_s": self._max_s + seconds}
        return self.run_both(operation, run | sending, "collect", run | receiving, seconds)

    def measure_rtts_ns(self, count: int, every_s: float, wait_s: float) -> list[int]:
        """Return round-trip times, shortest first."""
        run, seconds = {"run": next(self.run_numbers)}, count * every_s
        sending = {"count": count, "every_s": every_s, "wait_s": wait_s}
        receiving = {"quiet_s": wait_s + 1, "max_s": self._max_s + seconds}
        reply, _ = self.run_both("ping", run | sending, "echo", run | receiving, seconds)
        return sorted(reply["rtts_ns"])

    def run_transfer(self, seconds: float, max_bytes: int, sampling: int) -> tuple[Any, Any]:
        """Make a short TCP transfer; return the sender's TCP data about it, and the receiver's frame sizes."""
        sending = {"seconds": seconds, "max_bytes": max_bytes, "connect_s": self._max_s}
        return self.run_both("pour", sending, "sink", {"max_s": self._max_s, "sampling": sampling})

    def run_both(
        self, send: str, sending: dict[str, Any], receive: str, receiving: dict[str, Any], seconds: float = 0.0
    ) -> tuple[Any, Any]:
        """Start both operations, the receiver's first; return the replies of sender and receiver."""
        self.receiver.start(receive, **receiving)
        self.receiver.read_reply()
        self.sender.start(send, to=self.receiver.sockets["tcp" if send == "pour" else "udp"], **sending)
        # Each ends earlier by itself: its own limit is half of this.
        limit_s = 2 * self._max_s + seconds
        return self.sender.read_reply(limit_s), self.receiver.read_reply(limit_s)


@contextmanager
def start_meters(link: Link, *, pairs: int) -> Iterator[list[tuple[RemoteMeter, RemoteMeter]]]:
    """Yield pairs of a meter in the client's and one in the server's namespace."""
    with ExitStack() as stack:
        children = []
        for end in link.ends * pairs:
            argv = system.build_module_argv("ingest_bench.network.measure.meter", end.address, end.device)
            child = system.Child(end.namespace.command(argv), name=f"link check: the meter at {end.address}")
            children.append(stack.enter_context(child))
        ready = [RemoteMeter(child, json.loads(child.read_line())) for child in children]
        yield list(zip(ready[::2], ready[1::2], strict=True))


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """Outcome of a series of numbered probes."""

    sent: int
    numbers: list[int]
    delays_ns: list[int]
    overflowed: int

    def lost(self) -> int:
        """Return how many probes the link lost: not those for which the receiving socket had no room."""
        return max(0, self.sent - len(set(self.numbers)) - self.overflowed)

    def duplicated(self) -> int:
        """Return how many probes arrived more than once."""
        return len(self.numbers) - len(set(self.numbers))

    def reordered(self, delay_ns: float) -> int:
        """Return how many probes arrived in less than half of the delay: netem sent them early."""
        return sum(delay < delay_ns / 2 for delay in self.delays_ns)


@dataclass(frozen=True, slots=True)
class DirectionCheck:
    """One direction of a link under test."""

    meters: MeterPair
    direction: Direction
    profile: Profile
    impairment: Impairment

    def check_all(self) -> list[LinkCheck]:
        """Check all properties: packets before the transfers, which fill a queue."""
        return [*self.check_packets(), *self.check_transfers()]

    def check_packets(self) -> Iterator[LinkCheck]:
        """Check what single packets show: path MTU, loss, duplicates, reordering, jitter."""
        mtu = str(self.profile.mtu_bytes)
        yield measure_repeatedly(f"mtu {self.direction}", mtu, "exact", self._measure_mtu)

        probe, impairment = functools.cache(self._send_probes), self.impairment
        lost_share = netem.lost_share(impairment)
        if lost_share is not None:
            factor = netem.variance_factor(impairment)
            yield self._check_share(
                "loss", lost_share, lambda attempt: (probe(attempt).lost(), probe(attempt).sent), factor
            )
        if impairment.duplicate_ppm and not impairment.duplicate_correlation_ppm:
            share = impairment.duplicate_ppm / _MILLION * (1 - (lost_share or 0))
            yield self._check_share(
                "duplicates", share, lambda attempt: (probe(attempt).duplicated(), probe(attempt).sent)
            )
        reordered_share = expected.reordered_share(impairment)
        if reordered_share is not None and impairment.delay_ns >= 4 * _MILLION:
            yield self._check_share(
                "reordered",
                reordered_share,
                lambda attempt: (probe(attempt).reordered(impairment.delay_ns), len(probe(attempt).numbers)),
            )
        jitter_ns = expected.jitter_ns(impairment)
        if jitter_ns is not None:
            tolerance_ns = max(_JITTER_TOLERANCE * jitter_ns, _MIN_JITTER_TOLERANCE_NS)
            yield measure_repeatedly(
                f"jitter {self.direction}",
                f"{jitter_ns / 1e6:.2f} ms",
                f"{tolerance_ns / 1e6:.2f} ms, the larger of 25% and 0.5 ms; quartile to quartile of the one-way delay",
                lambda attempt: _compare_jitter(probe(attempt).delays_ns, jitter_ns, tolerance_ns),
                patience_s=PATIENCE_S,
            )

    def check_transfers(self) -> Iterator[LinkCheck]:
        """Check what transfers show: MSS, congestion control, frame sizes, rate, bursts."""
        yield from self._check_tcp()
        rate_bps = self._rate_bps
        if rate_bps is not None:
            yield measure_repeatedly(
                f"rate {self.direction}",
                units.format_bps(rate_bps),
                "5%, of Ethernet frames without preamble and checksum",
                functools.partial(self._measure_rate, rate_bps),
                _RATE_WAITS_S,
                PATIENCE_S,
            )

        plan = expected.plan_burst(self.impairment, self.profile.mtu_bytes)
        if plan is not None:
            yield measure_repeatedly(
                f"burst {self.direction}",
                f"{plan.frames * plan.frame_bytes / 1000:.3g} kB in {plan.seconds * 1000:.4g} ms",
                "25%, from the first to the last frame of a burst after a pause",
                functools.partial(self._measure_bursts, plan),
                _RATE_WAITS_S,
                PATIENCE_S,
            )

    @property
    def _frame_bytes(self) -> int:
        return self.profile.mtu_bytes + ETHERNET_HEADER_BYTES

    @property
    def _rate_bps(self) -> int | None:
        """The rate of full frames."""
        return expected.rate_bps(self.impairment, self._frame_bytes)

    @property
    def _quiet_s(self) -> float:
        """The time after which no more packets arrive: the delay, a frame's time, and a busy machine's pause."""
        wire_s = expected.wire_ns(self.impairment, self._frame_bytes) / 1e9
        return expected.longest_delay_s(self.impairment) + wire_s + 0.3

    @property
    def _tail_s(self) -> float:
        """The time after the end in which earlier packets may arrive: 0 if packets keep their order.

        With the delay alone a busy machine lost up to 44 of 3000 packets: the end had overtaken them.
        """
        keeps_order = not (self.impairment.jitter_ns or self.impairment.reorder_ppm)
        return 0.0 if keeps_order else self._quiet_s

    def _send_probes(self, attempt: int) -> ProbeResult:
        plan = expected.plan_probes(self.impairment, attempt)
        _, reply = self.meters.send_probes(
            "probes",
            quiet_s=self._quiet_s,
            tail_s=self._tail_s,
            seconds=plan.count / plan.per_s,
            count=plan.count,
            per_s=plan.per_s,
            packet_bytes=_PROBE_BYTES,
        )
        return ProbeResult(plan.count, reply["numbers"], reply["delays_ns"], reply["overflowed"])

    def _measure_mtu(self, attempt: int) -> tuple[str, bool]:
        fits = min(self.profile.mtu_bytes, expected.LARGEST_PACKET_BYTES)
        sizes = [size for size in (fits + 1, fits) if size <= expected.LARGEST_PACKET_BYTES]
        # Several of each size: the link may lose some.
        sent, received = self.meters.send_probes(
            "sizes", quiet_s=self._quiet_s, tail_s=self._tail_s, packets_bytes=sizes * 3 * attempt
        )
        passed = set(received["packets_bytes"])
        results = [f"{size} {'passes' if size in passed else 'does not'}" for size in sorted(sizes)]
        refused = " (the sender's stack refuses it)" if fits + 1 in sent["refused"] else ""
        return ", ".join(results) + refused, passed == {fits}

    def _check_share(
        self, name: str, share: float, count: Callable[[int], tuple[int, int]], factor: float = 1.0
    ) -> LinkCheck:
        return measure_repeatedly(
            f"{name} {self.direction}",
            units.format_ppm(share * _MILLION),
            "inside the 99% interval" if share else "none",
            lambda attempt: judge_share(*count(attempt), share, factor),
        )

    def _check_tcp(self) -> Iterator[LinkCheck]:
        @functools.cache
        def transfer(attempt: int) -> tuple[dict[str, Any], dict[int, int]]:
            max_bytes = expected.transfer_bytes(self.profile, self.impairment, _TRANSFER_S)
            is_short = attempt > 1 or max_bytes < _FEW_FRAMES * expected.mss_bytes(self.profile)
            sampling = 1 if is_short else sampling_ratio(self._rate_bps)
            sent, received = self.meters.run_transfer(_TRANSFER_S * attempt, max_bytes, sampling)
            return sent, {int(size): count for size, count in received["frames"].items()}

        mss_bytes = expected.mss_bytes(self.profile)

        def measure_mss(attempt: int) -> tuple[str, bool]:
            measured = transfer(attempt)[0]["mss_bytes"]
            return str(measured), measured == mss_bytes

        yield measure_repeatedly(f"mss {self.direction}", str(mss_bytes), "exact", measure_mss)
        used = transfer(1)[0]["congestion_control"]
        control = self.profile.link_congestion_control
        name = f"congestion control {self.direction}"
        yield LinkCheck(name=name, expected=control, measured=used, tolerance="exact", passed=used == control)
        if self.profile.gso_max_segs == 1:
            full = expected.full_frame_bytes(self.profile)
            yield measure_repeatedly(
                f"frames {self.direction}",
                f"{full} bytes",
                "the size of most bytes, and none larger",
                lambda attempt: _compare_sizes(transfer(attempt)[1], full),
            )

    def _measure_rate(self, rate_bps: int, attempt: int) -> tuple[str, bool]:
        plan = expected.plan_flood(self.impairment, self.profile.mtu_bytes, attempt)
        max_s = plan.seconds * 2 + self._quiet_s + 1
        sending = {
            "seconds": plan.seconds,
            "mtu_bytes": self.profile.mtu_bytes,
            "per_s": plan.per_s,
            "packets_per_send": plan.packets_per_send,
        }
        # With busy processes User-Mode Linux paused for 50 ms in the middle of a flood, and then made up for it.
        _, reply = self.meters.run_both("flood", sending, "wire", {"seconds": max_s, "quiet_s": 0.2})
        points = [(at, count) for at, count in reply["points"]]
        # The first bytes are what the bucket had saved.
        began = next((at for at, count in points if count != points[0][1]), 0.0)
        steady = [point for point in points if point[0] > began + plan.seconds / 10]
        measured_bps = fastest_bps(keep_changes(steady), plan.window_s)
        return f"{measured_bps / 1e6:.4g} Mbit/s", abs(measured_bps - rate_bps) <= _RATE_TOLERANCE * rate_bps

    def _measure_bursts(self, plan: expected.BurstPlan, attempt: int) -> tuple[str, bool]:
        # Longer than a frame takes: it ends each burst that lost some.
        quiet_s = self._quiet_s + 2 * plan.seconds / plan.frames
        sending = {"packets": plan.frames, "mtu_bytes": self.profile.mtu_bytes}
        receiving = {
            "frames": plan.frames,
            "frame_bytes": plan.frame_bytes,
            "quiet_s": quiet_s,
            "max_s": quiet_s + 1,
            "pause_s": plan.pause_s,
        }
        bursts: list[list[int]] = []
        for left in reversed(range(plan.times * min(attempt, len(_RATE_WAITS_S)))):
            _, reply = self.meters.run_both("burst", sending, "arrivals", receiving | {"last": left == 0})
            bursts.append(reply["moments_ns"])
        return judge_bursts(bursts, plan)


def judge_share(events: int, sent: int, share: float, factor: float) -> tuple[str, bool]:
    """Return the 99% interval of a share as text, and True if the expected share is inside.

    A share of 0 allows no event: an interval around one lost packet would contain 0 only by its width.
    """
    low, high = netem.wilson_interval(events, sent, factor) if sent else (0.0, 1.0)
    text = f"{units.format_ppm(low * _MILLION)} to {units.format_ppm(high * _MILLION)} ({events} of {sent})"
    return text, bool(sent) and (low <= share <= high if share else events == 0)


def judge_bursts(bursts: list[list[int]], plan: expected.BurstPlan) -> tuple[str, bool]:
    """Return how long a complete burst took by its arrival times (ns), and True if a wire would take that long.

    The median decides if it was too fast, and the fastest quarter if it was too slow: a busy machine delays most.
    """
    durations_s = sorted(
        (max(moments) - min(moments)) / 1e9 * (plan.frames - 1) / (len(moments) - 1)
        for moments in bursts
        if len(moments) >= plan.frames / 2
    )
    if len(durations_s) < len(bursts) / 2:
        return f"{len(bursts) - len(durations_s)} of {len(bursts)} bursts lost more than half of their frames", False
    fast_s, median_s = durations_s[len(durations_s) // 4], durations_s[len(durations_s) // 2]
    text = f"{median_s * 1000:.4g} ms (median of {len(durations_s)}; 25%: {fast_s * 1000:.4g} ms)"
    low_s, high_s = (1 - _BURST_TOLERANCE) * plan.seconds, (1 + _BURST_TOLERANCE) * plan.seconds
    return text, median_s >= low_s and fast_s <= high_s


def keep_changes(points: list[tuple[float, int]]) -> list[tuple[float, int]]:
    """Return the points right after an arrival: between two of them a slow line has up to a frame too many."""
    return [point for before, point in itertools.pairwise(points) if point[1] != before[1]]


def fastest_bps(points: list[tuple[float, int]], window_s: float) -> float:
    """Return the highest rate over any time of at least `window_s`.

    A busy machine may pause the sender, which lowers a rate; it cannot make a token bucket exceed its rate.
    """
    fastest, first = 0.0, 0
    for index, (at_s, count_bytes) in enumerate(points):
        while first + 1 < index and points[first + 1][0] <= at_s - window_s:
            first += 1
        passed_s = at_s - points[first][0]
        if passed_s >= window_s:
            fastest = max(fastest, (count_bytes - points[first][1]) * 8 / passed_s)
    return fastest


def _compare_jitter(delays_ns: list[int], expected_ns: float, tolerance_ns: float) -> tuple[str, bool]:
    if len(delays_ns) < 4:
        return "too few packets arrived", False
    first, _, third = statistics.quantiles(delays_ns, n=4)
    return f"{(third - first) / 1e6:.2f} ms", abs(third - first - expected_ns) <= tolerance_ns


def _compare_sizes(counts: dict[int, int], full_bytes: int) -> tuple[str, bool]:
    if not counts:
        return "no frame was observed", False
    # By bytes: there are as many acknowledgements of the other direction.
    common, largest = max(counts, key=lambda size: size * counts[size]), max(counts)
    text = f"{common} bytes in {counts[common]} of {sum(counts.values())} frames, largest {largest}"
    return text, common == full_bytes and largest <= full_bytes
