"""What a shaped path to somebody else's server does, as far as our end can tell.

The far end is not ours: nothing is sent to it but handshakes and the load itself. What only it could tell, or what the
load never used up, is "not measured": that is no promise kept, and none broken.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ingest_bench import system, units
from ingest_bench.model.network import Promise
from ingest_bench.network.act import interface
from ingest_bench.network.measure import diag, expected, qdiscs
from ingest_bench.network.measure.check import typical_rtt
from ingest_bench.network.measure.lanes import fastest_bps
from ingest_bench.network.plan import losses
from ingest_bench.network.plan.link_plan import impairment_of
from ingest_bench.network.plan.netem import ETHERNET_HEADER_BYTES, burst_bytes
from ingest_bench.network.plan.places import DIRECTIONS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ingest_bench.model.network import Impairment, Profile, RealLink
    from ingest_bench.model.results import Value
    from ingest_bench.model.target import Endpoint
    from ingest_bench.network.act.interface import Shaped
    from ingest_bench.network.plan.places import Direction

NOT_MEASURED = "not measured"
_HANDSHAKES, _HANDSHAKES_S, _HANDSHAKE_S, _REST_S, _REFUSED_S = 20, 20.0, 10.0, 0.01, 0.5
# Of a SYN with its options and an Ethernet header, there and back (RFC 9293, RFC 7323).
_SYN_BYTES = 20 + 40 + ETHERNET_HEADER_BYTES
_RTT_SHARE, _RTT_NS = 0.05, 10**6
_TRIES = 3
# The rate is taken over so long, of what was counted so often.
_WINDOW_S, _SAMPLE_S = 1.0, 0.25
_RATE_SHARE = 0.05
# A load that used less than this of the rate proves nothing about it.
_USED_SHARE = 0.9
_FEW_PACKETS = 1000
_MILLION = 10**6


@dataclass(frozen=True, slots=True)
class Handshakes:
    """How long connections took to open, shortest first, and what TCP knows of the path then."""

    rtts_ns: list[int]
    mss_bytes: int
    path_mtu_bytes: int
    is_ipv6: bool = False


@dataclass(slots=True)
class OneEnd:
    """The path while it is shaped."""

    shaped: Shaped
    promises: tuple[Promise, ...]
    """What was found before the load."""
    idle_rtt_ms: float | None = None
    idle_rtts: int = 0
    """How many round trips that is the median of."""
    points: dict[Direction, list[tuple[float, int]]] = field(default_factory=dict)
    """Moments, and bytes that had passed the queue until then."""
    before: dict[Direction, qdiscs.Counters] = field(default_factory=dict)

    def of_load(self) -> tuple[Promise, ...]:
        """What the load tells of its path: the share of packets that were lost, and the rate."""
        return tuple(promise for direction in self.shaped.devices for promise in self._of_direction(direction))

    def readings(self) -> dict[str, Value]:
        """The columns of a link that our end can fill; the others stay empty."""
        counted = {direction: self._counted(direction) for direction in self.shaped.devices}
        there = counted.get("to-server", qdiscs.Counters())
        total = there.packets + there.drops
        return {
            "wire_packets": sum(one.packets for one in counted.values()) if len(counted) == len(DIRECTIONS) else None,
            "qdisc_drops": sum(one.drops for one in counted.values()) if counted else None,
            "loss_ppm": round(there.drops * _MILLION / total) if total else None,
            "idle_rtt_ms": self.idle_rtt_ms,
            "idle_rtts": self.idle_rtts or None,
        }

    def _counted(self, direction: Direction) -> qdiscs.Counters:
        now = qdiscs.counters(system.run(qdiscs.show(self.shaped.devices[direction])))
        before = self.before[direction]
        return qdiscs.Counters(packets=now.packets - before.packets, drops=now.drops - before.drops)

    def _of_direction(self, direction: Direction) -> Iterator[Promise]:
        impairment = impairment_of(self.shaped.profile, direction)
        frame_bytes = self.shaped.profile.mtu_bytes + ETHERNET_HEADER_BYTES
        rate_bps, share = expected.rate_bps(impairment, frame_bytes), losses.share(impairment)
        if share:
            yield _loss(f"loss {direction}", share, impairment, self._counted(direction))
        if rate_bps is not None:
            saved_bytes = burst_bytes(impairment, self.shaped.profile.mtu_bytes)
            yield rate(f"rate {direction}", rate_bps, saved_bytes, self.points.get(direction, []))


@contextlib.contextmanager
def one_end(link: RealLink, profile: Profile, endpoint: Endpoint, *, time_limit_s: float) -> Iterator[OneEnd]:
    """The path to the server, shaped for the block's time, with what handshakes tell of it unshaped and shaped.

    InvalidRun at the end of the block where the path was put back before: by `net restore`, or by the time limit.
    """
    # Handshakes with ourselves would not cross the interface.
    before = None if link.port else handshakes(endpoint)
    with interface.shaped(link, profile, time_limit_s=time_limit_s) as shaped:
        found = OneEnd(shaped=shaped, promises=(*_of_ssh(shaped), *_of_queues(shaped)))
        if before is None:
            found.promises += tuple(_unknown(name, "", "the server is at this end") for name in ("rtt", "mtu", "mss"))
        else:
            now, promises = _handshaken(profile, endpoint, before)
            found.promises += promises
            found.idle_rtts = len(now.rtts_ns)
            found.idle_rtt_ms = now.rtts_ns[len(now.rtts_ns) // 2] / 1e6 if now.rtts_ns else None
        for direction, device in shaped.devices.items():
            found.before[direction] = qdiscs.counters(system.run(qdiscs.show(device)))
        with _sampled(found):
            yield found


def handshakes(endpoint: Endpoint) -> Handshakes:
    """Connections that are opened and closed one after the other; none are in it when nobody answered in time."""
    found: list[int] = []
    mss_bytes = path_mtu_bytes = 0
    until = time.monotonic() + _HANDSHAKES_S
    # A name may have several addresses, and not all of them the server.
    addresses = itertools.cycle(socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM))
    family, _, _, _, address = next(addresses)
    while len(found) < _HANDSHAKES and time.monotonic() < until:
        with socket.socket(family, socket.SOCK_STREAM) as opened:
            opened.settimeout(_HANDSHAKE_S)
            begun_ns = time.monotonic_ns()
            try:
                opened.connect(address)
            except OSError:
                # Who refuses does so at once, and is not to be flooded.
                time.sleep(_REFUSED_S)
                family, _, _, _, address = next(addresses)
                continue
            found.append(time.monotonic_ns() - begun_ns)
            # One that opened them at once would fill the server's queue, and wait a second for its next SYN.
            time.sleep(_REST_S)
            info = diag.parse(0, endpoint.port, opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, diag.INFO_BYTES))
            mss_bytes, path_mtu_bytes = info.send_mss_bytes, info.path_mtu_bytes
    return Handshakes(sorted(found), mss_bytes, path_mtu_bytes, is_ipv6=family == socket.AF_INET6)


def _of_queues(shaped: Shaped) -> Iterator[Promise]:
    for direction, device in shaped.devices.items():
        impairment = impairment_of(shaped.profile, direction)
        wrong = qdiscs.differences(system.run(qdiscs.show(device)), impairment, shaped.profile.mtu_bytes)
        yield Promise(
            name=f"qdisc {direction}",
            promised="what the profile says",
            measured="; ".join(wrong) or "as promised",
            tolerance="2%, for what tc rounds",
            kept=not wrong,
        )


def _of_ssh(shaped: Shaped) -> Iterator[Promise]:
    for words in shaped.spared:
        yield Promise(name="ssh", promised="past the shaped queues", measured=words, tolerance="none", kept=True)


def _handshaken(profile: Profile, endpoint: Endpoint, before: Handshakes) -> tuple[Handshakes, tuple[Promise, ...]]:
    """The shaped path's handshakes, tried again where a promise is broken: a busy machine makes them longer."""
    for _ in range(_TRIES):
        now = handshakes(endpoint)
        promises = tuple(of_handshakes(profile, before, now))
        if not any(promise.kept is False for promise in promises):
            break
    return now, promises


def of_handshakes(profile: Profile, before: Handshakes, now: Handshakes) -> Iterator[Promise]:
    """What the shaped path adds to the round trip, and the largest packets and segments. Pure."""
    yield _rtt(profile, before, now)
    headers_bytes = expected.IP_TCP_HEADERS_BYTES + (20 if now.is_ipv6 else 0)
    mss_bytes = min(profile.mtu_bytes - headers_bytes, profile.mss_bytes or profile.mtu_bytes)
    # Timestamps are on, or one of the two hosts has switched them off.
    likely = (mss_bytes - expected.TIMESTAMPS_BYTES, mss_bytes)
    yield _size("mtu", (profile.mtu_bytes,), before.path_mtu_bytes, now.path_mtu_bytes)
    yield _size("mss", likely, before.mss_bytes, now.mss_bytes)


def _rtt(profile: Profile, before: Handshakes, now: Handshakes) -> Promise:
    impairments = (profile.to_server, profile.to_client)
    delays = [expected.delay_ns(one) for one in impairments]
    delays_ns = [delay_ns for delay_ns in delays if delay_ns is not None]
    promised_ns = sum(delays_ns)
    promised = f"{promised_ns / 1e6:.2f} ms more than unshaped"
    reorders = any(one.reorder_ppm and one.jitter_ns for one in impairments)
    if len(delays_ns) < len(impairments) or reorders or not before.rtts_ns:
        return _unknown("rtt", promised)
    base_ns, high_ns = _low(before.rtts_ns), before.rtts_ns[len(before.rtts_ns) * 3 // 4]
    wire_ns = sum(expected.wire_ns(one, _SYN_BYTES) for one in impairments)
    tolerance_ns = max(_RTT_SHARE * promised_ns, _RTT_NS) + wire_ns
    if high_ns - base_ns > tolerance_ns:
        return _unknown("rtt", promised, f"unshaped it is {base_ns / 1e6:.2f} to {high_ns / 1e6:.2f} ms")
    words = f"{tolerance_ns / 1e6:.2f} ms: the larger of 5% and 1 ms, and a SYN's time on the wire"
    if not now.rtts_ns:
        return Promise(name="rtt", promised=promised, measured="no answer", tolerance=words, kept=False)
    name, found_ns, uncertain_ns = typical_rtt(now.rtts_ns, base_ns + promised_ns, impairments)
    added_ns = found_ns - base_ns
    return Promise(
        name="rtt",
        promised=promised,
        measured=f"{added_ns / 1e6:.2f} ms ({name} of {len(now.rtts_ns)} handshakes; unshaped {base_ns / 1e6:.2f} ms)",
        tolerance=words,
        kept=abs(added_ns - promised_ns) <= tolerance_ns + uncertain_ns,
    )


def _size(name: str, likely: tuple[int, ...], before_bytes: int, now_bytes: int) -> Promise:
    """A size of packets: that of the profile, or that of a path which is narrower by itself."""
    promised = f"{likely[-1]} bytes" if len(likely) == 1 else f"{likely[0]} bytes, or {likely[1]} without timestamps"
    if now_bytes not in likely and now_bytes == before_bytes < likely[0]:
        return _unknown(name, promised, f"the path itself takes {now_bytes} bytes" if now_bytes else "")
    measured = f"{now_bytes} bytes"
    return Promise(name=name, promised=promised, measured=measured, tolerance="none", kept=now_bytes in likely)


def _unknown(name: str, promised: str, why: str = "") -> Promise:
    measured = f"{NOT_MEASURED}: {why}" if why else NOT_MEASURED
    return Promise(name=name, promised=promised, measured=measured, tolerance="", kept=None)


def _loss(name: str, share: float, impairment: Impairment, seen: qdiscs.Counters) -> Promise:
    """The share of packets that our own queue dropped. What the path loses beside it nobody knows at one end."""
    total, promised = seen.packets + seen.drops, units.format_ppm(share * _MILLION)
    rates = (impairment.rate_bps, impairment.netem_rate_bps)
    mixed = any(rate is not None for rate in rates) or impairment.corrupt_ppm or impairment.ecn
    if mixed or total < _FEW_PACKETS:
        why = "what is corrupt, marked or too fast is counted with it" if mixed else f"only {total} packets"
        return _unknown(name, promised, why)
    low, high = losses.interval(seen.drops, total, losses.variance_factor(impairment))
    return Promise(
        name=name,
        promised=promised,
        measured=f"{units.format_ppm(low * _MILLION)} to {units.format_ppm(high * _MILLION)} ({seen.drops} of {total})",
        tolerance="inside the 99% interval",
        kept=low <= share <= high,
    )


def rate(name: str, rate_bps: int, saved_bytes: int, points: list[tuple[float, int]]) -> Promise:
    """The rate, from moments and bytes: known only where the load used it up. Pure.

    `saved_bytes` is what a bucket has saved up in a pause, or two frames: in the fastest second that comes besides.
    """
    promised, tolerance = units.format_bps(rate_bps), f"{_RATE_SHARE:.0%} and {units.format_bytes(saved_bytes)} more"
    fastest = fastest_bps(points, _WINDOW_S) if len(points) > 1 else 0.0
    words = f"{units.format_bps(round(fastest))} in the fastest second"
    if fastest > rate_bps * (1 + _RATE_SHARE) + saved_bytes * 8 / _WINDOW_S:
        return Promise(name=name, promised=promised, measured=words, tolerance=tolerance, kept=False)
    if fastest < rate_bps * _USED_SHARE:
        return _unknown(name, promised, f"the load used no more than {words}")
    return Promise(name=name, promised=promised, measured=words, tolerance=tolerance, kept=True)


def _low(rtts_ns: list[int]) -> int:
    return rtts_ns[len(rtts_ns) // 10]


@contextlib.contextmanager
def _sampled(found: OneEnd) -> Iterator[None]:
    """The bytes that pass the queues are noted four times a second; a device that is gone is noted no more."""
    over = threading.Event()

    def sample() -> None:
        while not over.wait(_SAMPLE_S):
            # Not /sys: that shows the devices of the namespace in which it was mounted.
            lines = Path("/proc/net/dev").read_text(encoding="ascii", errors="replace").splitlines()
            passed = {name.strip(): counts.split() for name, _, counts in (line.partition(":") for line in lines)}
            for direction, device in found.shaped.devices.items():
                if device in passed:
                    # The ninth number is the first one of those of packets that left (net/core/net-procfs.c).
                    found.points.setdefault(direction, []).append((time.monotonic(), int(passed[device][8])))

    sampler = threading.Thread(target=sample, daemon=True)
    sampler.start()
    try:
        yield
    finally:
        over.set()
        sampler.join()
