"""Shape the path to a server that is not ours, and check it as far as our end can.

Nothing is sent to the server except handshakes and the load. What only the other end could measure, or what the load
never used up, is "not measured": neither passed nor failed.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from ingest_bench import system, units
from ingest_bench.model.network import Impairment, LinkCheck, Profile, RealInterface
from ingest_bench.model.results import ColumnValue
from ingest_bench.model.target import Endpoint
from ingest_bench.network.act import interface
from ingest_bench.network.act.interface import ShapedInterface
from ingest_bench.network.measure import expected, qdiscs, tcp_info
from ingest_bench.network.measure.check import report_qdiscs, typical_rtt
from ingest_bench.network.measure.direction_check import fastest_bps, judge_share
from ingest_bench.network.measure.wire import read_device_counters
from ingest_bench.network.plan import netem
from ingest_bench.network.plan.link_plan import DIRECTIONS, Direction, impairment_of
from ingest_bench.network.plan.netem import ETHERNET_HEADER_BYTES, bucket_bytes

NOT_MEASURED = "not measured"
_HANDSHAKES, _HANDSHAKES_S, _CONNECT_TIMEOUT_S, _PAUSE_S, _REFUSED_PAUSE_S = 20, 20.0, 10.0, 0.01, 0.5
# A SYN with its options and an Ethernet header, in both directions (RFC 9293, RFC 7323).
_SYN_BYTES = 20 + 40 + ETHERNET_HEADER_BYTES
_ATTEMPTS = 3
# The rate is measured over this window, of counters that are read at this interval.
_WINDOW_S, _SAMPLE_S = 1.0, 0.25
_RATE_TOLERANCE = 0.05
# A load that used less than this share of the rate proves nothing about it.
_MIN_USED_SHARE = 0.9
_FEW_PACKETS = 1000
_MILLION = 10**6


@dataclass(frozen=True, slots=True)
class Handshakes:
    """Times that connections took to open, shortest first, and TCP's data about the path."""

    rtts_ns: list[int]
    mss_bytes: int
    path_mtu_bytes: int
    is_ipv6: bool = False


@dataclass(slots=True)
class ShapedPath:
    """The path while it is shaped."""

    interface: ShapedInterface
    checks: tuple[LinkCheck, ...]
    """Checks before the load."""
    idle_rtt_ms: float | None = None
    idle_rtt_count: int = 0
    """The number of round trips of that median."""
    points: dict[Direction, list[tuple[float, int]]] = field(default_factory=dict)
    """Times, and bytes that had passed the qdisc until then."""
    counters_at_start: dict[Direction, qdiscs.Counters] = field(default_factory=dict)

    def check_load(self) -> tuple[LinkCheck, ...]:
        """Check what the load shows of its path: the share of lost packets, and the rate."""
        return tuple(check for direction in self.interface.devices for check in self._check_direction(direction))

    def columns(self) -> dict[str, ColumnValue]:
        """Return the columns of a link that our end can fill; the others stay empty."""
        counters = {direction: self._count(direction) for direction in self.interface.devices}
        to_server = counters.get("to-server", qdiscs.Counters())
        total = to_server.packets + to_server.drops
        is_complete = len(counters) == len(DIRECTIONS)
        return {
            "wire_packets": sum(counter.packets for counter in counters.values()) if is_complete else None,
            "qdisc_drops": sum(counter.drops for counter in counters.values()) if counters else None,
            "loss_ppm": round(to_server.drops * _MILLION / total) if total else None,
            "idle_rtt_ms": self.idle_rtt_ms,
            "idle_rtt_samples": self.idle_rtt_count or None,
        }

    def _count(self, direction: Direction) -> qdiscs.Counters:
        now = qdiscs.parse_counters(system.run(qdiscs.show_argv(self.interface.devices[direction])))
        before = self.counters_at_start[direction]
        return qdiscs.Counters(packets=now.packets - before.packets, drops=now.drops - before.drops)

    def _check_direction(self, direction: Direction) -> Iterator[LinkCheck]:
        profile = self.interface.profile
        impairment = impairment_of(profile, direction)
        rate_bps = expected.rate_bps(impairment, profile.mtu_bytes + ETHERNET_HEADER_BYTES)
        share = netem.lost_share(impairment)
        if share:
            yield _check_loss(f"loss {direction}", share, impairment, self._count(direction))
        if rate_bps is not None:
            saved_bytes = bucket_bytes(impairment, profile.mtu_bytes)
            yield check_rate(f"rate {direction}", rate_bps, saved_bytes, self.points.get(direction, []))


@contextlib.contextmanager
def shape_path(
    link: RealInterface, profile: Profile, endpoint: Endpoint, *, time_limit_s: float
) -> Iterator[ShapedPath]:
    """Shape the path to the server during the block, and check it by handshakes before and after shaping.

    InvalidRun at the end of the block if the shaping ended before: by `net restore`, or by the time limit.
    """
    # Handshakes with a server on this machine would not cross the interface.
    before = None if link.port else measure_handshakes(endpoint)
    with interface.shape_interface(link, profile, time_limit_s=time_limit_s) as shaped:
        path = ShapedPath(interface=shaped, checks=tuple(_check_qdiscs(shaped)))
        if before is None:
            path.checks += tuple(_not_measured(name, "", "the server is at this end") for name in ("rtt", "mtu", "mss"))
        else:
            # Again if a check fails: a busy machine makes handshakes longer.
            for _ in range(_ATTEMPTS):
                now = measure_handshakes(endpoint)
                checks = tuple(check_handshakes(profile, before, now))
                if not any(check.passed is False for check in checks):
                    break
            path.checks += checks
            path.idle_rtt_count = len(now.rtts_ns)
            path.idle_rtt_ms = now.rtts_ns[len(now.rtts_ns) // 2] / 1e6 if now.rtts_ns else None
        for direction, device in shaped.devices.items():
            path.counters_at_start[direction] = qdiscs.parse_counters(system.run(qdiscs.show_argv(device)))
        with _sample_bytes(path):
            yield path


def measure_handshakes(endpoint: Endpoint) -> Handshakes:
    """Open and close connections one after the other; those that failed are left out."""
    rtts_ns: list[int] = []
    mss_bytes = path_mtu_bytes = 0
    deadline = time.monotonic() + _HANDSHAKES_S
    # A name may have several addresses, and the server may listen on some only.
    addresses = itertools.cycle(socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM))
    family, _, _, _, address = next(addresses)
    while len(rtts_ns) < _HANDSHAKES and time.monotonic() < deadline:
        with socket.socket(family, socket.SOCK_STREAM) as connection:
            connection.settimeout(_CONNECT_TIMEOUT_S)
            begun_ns = time.monotonic_ns()
            try:
                connection.connect(address)
            except OSError:
                # A refusal is immediate, and its sender must not be flooded.
                time.sleep(_REFUSED_PAUSE_S)
                family, _, _, _, address = next(addresses)
                continue
            rtts_ns.append(time.monotonic_ns() - begun_ns)
            # Without the pause the server's queue would fill, and the next SYN would wait a second.
            time.sleep(_PAUSE_S)
            raw_info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, tcp_info.INFO_BYTES)
            info = tcp_info.parse_tcp_info(0, endpoint.port, raw_info)
            mss_bytes, path_mtu_bytes = info.send_mss_bytes, info.path_mtu_bytes
    return Handshakes(sorted(rtts_ns), mss_bytes, path_mtu_bytes, is_ipv6=family == socket.AF_INET6)


def check_handshakes(profile: Profile, before: Handshakes, now: Handshakes) -> Iterator[LinkCheck]:
    """Check what shaping adds to the round trip, and the largest packets and segments. Pure."""
    yield _check_rtt(profile, before, now)
    headers_bytes = expected.IP_TCP_HEADERS_BYTES + (20 if now.is_ipv6 else 0)
    mss_bytes = min(profile.mtu_bytes - headers_bytes, profile.mss_bytes or profile.mtu_bytes)
    # With timestamps, or without if one of the two hosts has disabled them.
    mss_sizes = (mss_bytes - expected.TIMESTAMPS_BYTES, mss_bytes)
    yield _check_size("mtu", (profile.mtu_bytes,), before.path_mtu_bytes, now.path_mtu_bytes)
    yield _check_size("mss", mss_sizes, before.mss_bytes, now.mss_bytes)


def check_rate(name: str, rate_bps: int, saved_bytes: int, points: list[tuple[float, int]]) -> LinkCheck:
    """Check the rate by times and bytes, if the load used it up. Pure.

    `saved_bytes` is what a bucket has saved in a pause, or two frames: the fastest second may have that in addition.
    """
    expected_text = units.format_bps(rate_bps)
    tolerance = f"{_RATE_TOLERANCE:.0%} and {units.format_bytes(saved_bytes)} more"
    fastest = fastest_bps(points, _WINDOW_S) if len(points) > 1 else 0.0
    measured = f"{units.format_bps(round(fastest))} in the fastest second"
    is_too_fast = fastest > rate_bps * (1 + _RATE_TOLERANCE) + saved_bytes * 8 / _WINDOW_S
    if not is_too_fast and fastest < rate_bps * _MIN_USED_SHARE:
        return _not_measured(name, expected_text, f"the load used at most {measured}")
    return LinkCheck(name=name, expected=expected_text, measured=measured, tolerance=tolerance, passed=not is_too_fast)


def _check_qdiscs(shaped: ShapedInterface) -> Iterator[LinkCheck]:
    for direction, device in shaped.devices.items():
        impairment = impairment_of(shaped.profile, direction)
        output = system.run(qdiscs.show_argv(device))
        differences = qdiscs.find_differences(output, impairment, shaped.profile.mtu_bytes)
        yield report_qdiscs(shaped.profile, direction, differences)


def _check_rtt(profile: Profile, before: Handshakes, now: Handshakes) -> LinkCheck:
    impairments = (profile.to_server, profile.to_client)
    round_trip_ns = expected.round_trip_ns(impairments, _SYN_BYTES)
    if round_trip_ns is None:
        return _not_measured("rtt", "", "the profile has no defined delay")
    expected_ns, tolerance_ns = round_trip_ns
    expected_text = f"{expected_ns / 1e6:.2f} ms more than unshaped"
    if not before.rtts_ns:
        return _not_measured("rtt", expected_text)
    unshaped_ns = before.rtts_ns[len(before.rtts_ns) // 10]
    third_quartile_ns = before.rtts_ns[len(before.rtts_ns) * 3 // 4]
    if third_quartile_ns - unshaped_ns > tolerance_ns:
        reason = f"unshaped it is {unshaped_ns / 1e6:.2f} to {third_quartile_ns / 1e6:.2f} ms"
        return _not_measured("rtt", expected_text, reason)
    tolerance = f"{tolerance_ns / 1e6:.2f} ms: the larger of 5% and 1 ms, and a SYN's time on the wire"
    if not now.rtts_ns:
        return LinkCheck(name="rtt", expected=expected_text, measured="no reply", tolerance=tolerance, passed=False)
    name, rtt_ns, uncertainty_ns = typical_rtt(now.rtts_ns, unshaped_ns + expected_ns, impairments)
    added_ns = rtt_ns - unshaped_ns
    counts = f"{name} of {len(now.rtts_ns)} handshakes; unshaped {unshaped_ns / 1e6:.2f} ms"
    return LinkCheck(
        name="rtt",
        expected=expected_text,
        measured=f"{added_ns / 1e6:.2f} ms ({counts})",
        tolerance=tolerance,
        passed=abs(added_ns - expected_ns) <= tolerance_ns + uncertainty_ns,
    )


def _check_size(name: str, sizes: tuple[int, ...], before_bytes: int, now_bytes: int) -> LinkCheck:
    """Check a packet size: that of the profile, or that of a path that is narrower without shaping."""
    text = f"{sizes[-1]} bytes" if len(sizes) == 1 else f"{sizes[0]} bytes, or {sizes[1]} without timestamps"
    if now_bytes not in sizes and now_bytes == before_bytes < sizes[0]:
        return _not_measured(name, text, f"the unshaped path takes {now_bytes} bytes" if now_bytes else "")
    measured = f"{now_bytes} bytes"
    return LinkCheck(name=name, expected=text, measured=measured, tolerance="none", passed=now_bytes in sizes)


def _check_loss(name: str, share: float, impairment: Impairment, counters: qdiscs.Counters) -> LinkCheck:
    """Check the share of packets that our qdisc dropped. Further losses of the path are not visible at one end."""
    total, expected_text = counters.packets + counters.drops, units.format_ppm(share * _MILLION)
    is_mixed = impairment.rate_bps or impairment.netem_rate_bps or impairment.corrupt_ppm or impairment.ecn
    if is_mixed or total < _FEW_PACKETS:
        reason = "corrupt, marked and excess packets are counted too" if is_mixed else f"only {total} packets"
        return _not_measured(name, expected_text, reason)
    measured, passed = judge_share(counters.drops, total, share, netem.variance_factor(impairment))
    tolerance = "inside the 99% interval"
    return LinkCheck(name=name, expected=expected_text, measured=measured, tolerance=tolerance, passed=passed)


def _not_measured(name: str, expected_text: str, reason: str = "") -> LinkCheck:
    measured = f"{NOT_MEASURED}: {reason}" if reason else NOT_MEASURED
    return LinkCheck(name=name, expected=expected_text, measured=measured, tolerance="", passed=None)


@contextlib.contextmanager
def _sample_bytes(path: ShapedPath) -> Iterator[None]:
    """Sample the bytes that pass the qdiscs during the block; a device that was removed is not sampled any more."""
    is_over = threading.Event()

    def sample() -> None:
        while not is_over.wait(_SAMPLE_S):
            counters = read_device_counters()
            for direction, device in path.interface.devices.items():
                if device in counters:
                    path.points.setdefault(direction, []).append((time.monotonic(), counters[device][8]))

    sampler = threading.Thread(target=sample, daemon=True)
    sampler.start()
    try:
        yield
    finally:
        is_over.set()
        sampler.join()
