from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ingest_bench.analysis.run.columns import COLUMNS
from ingest_bench.host.cpu import compute_stolen_share, read_stolen_ticks
from ingest_bench.model.network import Impairment, Profile
from ingest_bench.network.measure import check, direction_check, expected, wire
from ingest_bench.network.measure.check import typical_rtt
from ingest_bench.network.measure.direction_check import (
    MeterPair,
    ProbeResult,
    fastest_bps,
    judge_bursts,
    measure_repeatedly,
)
from ingest_bench.network.measure.readings import link_columns, parse_proc_net

MS = 10**6


@pytest.mark.parametrize(
    ("profile", "mss_bytes", "frame_bytes"),
    [
        (Profile(name="x", mtu_bytes=1500), 1448, 1514),
        (Profile(name="x", mtu_bytes=9000), 8948, 9014),
        (Profile(name="x", mtu_bytes=1500, mss_bytes=536), 524, 590),
        (Profile(name="x", mtu_bytes=65536), 65483, 65549),
    ],
)
def test_full_segment_follows_from_mtu_and_mss(profile: Profile, mss_bytes: int, frame_bytes: int) -> None:
    assert expected.mss_bytes(profile) == mss_bytes
    assert expected.full_frame_bytes(profile) == frame_bytes


def test_jitter_is_expected_only_if_netem_keeps_to_it() -> None:
    delay = Impairment(delay_ns=10 * MS)
    assert expected.jitter_ns(delay) is None
    assert expected.jitter_ns(dataclasses.replace(delay, jitter_ns=3 * MS)) == 3 * MS
    normal = dataclasses.replace(delay, jitter_ns=3 * MS, distribution="normal")
    assert expected.jitter_ns(normal) == pytest.approx(4.047 * MS)
    assert expected.jitter_ns(dataclasses.replace(delay, jitter_ns=12 * MS)) is None
    assert expected.delay_ns(dataclasses.replace(normal, jitter_ns=4 * MS)) is None


def test_reorder_gap_reduces_the_reordered_share() -> None:
    half = Impairment(delay_ns=10 * MS, reorder_ppm=500_000)
    assert expected.reordered_share(half) == pytest.approx(0.5)
    assert expected.reordered_share(Impairment(delay_ns=MS, reorder_ppm=10**6, reorder_gap=5)) == pytest.approx(0.2)
    assert expected.delay_ns(half) == 10 * MS


def test_rare_loss_takes_more_probes_and_slow_link_fewer_per_second() -> None:
    assert expected.plan_probes(Impairment(), 1).count == 1000
    assert expected.plan_probes(Impairment(loss_ppm=5_000), 1).count == 6000
    assert expected.plan_probes(Impairment(loss_ppm=5_000), 2).count == 12000
    slow = expected.plan_probes(Impairment(rate_bps=10**6), 1)
    assert slow.per_s * 142 * 8 <= 10**6 / 2
    assert slow.count <= slow.per_s


def test_overhead_and_cells_reduce_netems_rate() -> None:
    dsl = Impairment(netem_rate_bps=2 * 10**6, packet_overhead_bytes=44, cell_bytes=48, cell_overhead_bytes=5)
    # 1558 bytes are 33 cells, and 102 are 3.
    assert expected.rate_bps(dsl, 1514) == 2 * 10**6 * 1514 // (33 * 53)
    assert expected.wire_ns(dsl, 58) == pytest.approx(3 * 53 * 8 / 2e6 * 1e9)
    assert expected.rate_bps(Impairment(rate_bps=10**6, netem_rate_bps=2 * 10**6), 1514) == 10**6
    assert expected.rate_bps(Impairment(), 1514) is None
    burst = expected.plan_burst(dataclasses.replace(dsl, rate_bps=10**9), 1500)
    assert burst is not None
    assert burst.seconds == pytest.approx((burst.frames - 1) * 33 * 53 * 8 / 2e6, rel=1e-5)


def test_flood_exceeds_the_links_rate() -> None:
    plan = expected.plan_flood(Impairment(rate_bps=10**8, loss_ppm=100_000), 1500, 1)
    assert plan.per_s * (1 - 0.1) * 1514 * 8 >= 1.49 * 10**8
    assert plan.seconds > plan.window_s >= 0.1
    assert expected.plan_flood(Impairment(rate_bps=10**6), 1500, 1).window_s == 1.0
    with_bucket = expected.plan_flood(Impairment(rate_bps=10**8, burst_bytes=125_000), 1500, 1)
    assert 125_000 * 8 / 10**8 / with_bucket.window_s < 0.04


def test_flood_sends_blocks_that_the_queue_need_not_split() -> None:
    assert expected.plan_flood(Impairment(rate_bps=10**9), 1500, 1).packets_per_send == 4
    assert expected.plan_flood(Impairment(rate_bps=10**8), 1500, 1).packets_per_send == 24
    assert expected.plan_flood(Impairment(rate_bps=10**9), 9000, 1).packets_per_send == 7
    # A block is one datagram of less than 64 KiB.
    for mtu_bytes in (68, 576, 1500, 9000, 65535):
        packets = expected.plan_flood(Impairment(rate_bps=10**11), mtu_bytes, 1).packets_per_send
        assert 1 <= packets * (mtu_bytes - 28) < 65_508 or packets == 1


def plan_burst(**values: Any) -> expected.BurstPlan:
    plan = expected.plan_burst(Impairment(**values), 1500)
    assert plan is not None
    return plan


def test_burst_takes_the_time_of_its_frames() -> None:
    fast, medium, slow = (plan_burst(rate_bps=rate) for rate in (10**9, 10**8, 3 * 10**6))
    assert (fast.frames, fast.times, fast.frame_bytes) == (132, 20, 1514)
    assert fast.seconds == pytest.approx(131 * 1514 * 8e-9)
    # A bucket of 2 ms would let most of it pass.
    assert medium.seconds < 0.003
    # Three quarters of a queue of 32 frames.
    assert (slow.frames, slow.times) == (24, 10)
    # A bucket is full again before the next burst.
    assert fast.pause_s == pytest.approx(2 * fast.seconds)
    assert slow.pause_s == 0.03


@pytest.mark.parametrize(
    "impairment",
    [
        Impairment(),
        Impairment(delay_ns=MS, loss_ppm=10_000),
        Impairment(rate_bps=10**8, burst_bytes=125_000),
        Impairment(rate_bps=10**8, limit_packets=20),
        Impairment(rate_bps=10**8, delay_ns=10 * MS, jitter_ns=MS),
        Impairment(rate_bps=10**5),
    ],
)
def test_burst_is_not_planned_if_packets_need_no_spacing(impairment: Impairment) -> None:
    assert expected.plan_burst(impairment, 1500) is None


def arrivals(frames: int, every_ns: float, saved: int = 0) -> list[int]:
    return [round(max(0, number - saved) * every_ns) for number in range(frames)]


def test_burst_through_a_bucket_fails_and_one_on_a_busy_machine_passes() -> None:
    plan = plan_burst(rate_bps=10**9)
    wire_times, late = arrivals(132, 12112), arrivals(132, 40_000)
    assert judge_bursts([wire_times] * 9, plan) == ("1.587 ms (median of 9; 25%: 1.587 ms)", True)
    assert judge_bursts([wire_times] * 3 + [late] * 6, plan)[1]
    assert not judge_bursts([late] * 9, plan)[1]
    # Measured with a bucket of 2 ms: 0.55 to 0.9 ms.
    fast = arrivals(132, 12112, saved=70)
    assert not judge_bursts([fast] * 9, plan)[1]
    assert not judge_bursts([fast] * 5 + [late] * 4, plan)[1]


def test_lost_frames_do_not_shorten_a_burst() -> None:
    plan = plan_burst(rate_bps=10**9, loss_ppm=300_000)
    assert judge_bursts([arrivals(90, 12112)] * 9, plan) == ("1.587 ms (median of 9; 25%: 1.587 ms)", True)
    assert judge_bursts([[0] * 60] * 9, plan) == ("9 of 9 bursts lost more than half of their frames", False)
    assert not judge_bursts([[]] * 9, plan)[1]


def test_sampling_ratio_is_a_power_of_two_and_1_on_a_slow_link() -> None:
    ratios = [wire.sampling_ratio(rate_bps) for rate_bps in (None, 10**9, 10**8, 10**6)]
    assert all(ratio & (ratio - 1) == 0 for ratio in ratios)
    assert ratios[-1] == 1


def test_rate_is_that_of_the_fastest_window_despite_a_paused_sender() -> None:
    # 125 bytes a millisecond (1 Mbit/s), with a pause of 0.2 s.
    points = [(at / 1000, 125 * (min(at, 400) + max(0, at - 600))) for at in range(0, 1000, 5)]
    assert fastest_bps(points, 0.3) == pytest.approx(10**6)
    assert fastest_bps(points, 0.9) < 0.85 * 10**6
    assert fastest_bps([(0.0, 5), (1.0, 5)], 0.5) == 0
    assert fastest_bps([(0.0, 0), (1.0, 5)], 2.0) == 0


@pytest.mark.parametrize("rate_bps", [10_000, 20_000, 64_000, 10**6])
@pytest.mark.parametrize("window_s", [1.0, 2.0, 3.0])
def test_rate_of_a_slow_line_does_not_count_a_frame_too_many(rate_bps: int, window_s: float) -> None:
    frames_per_ms = rate_bps / (1514 * 8 * 1000)
    points = [(ms / 1000, 1514 * int(ms * frames_per_ms)) for ms in range(0, 9000, 5)]
    assert fastest_bps(direction_check.keep_changes(points), window_s) == pytest.approx(rate_bps, rel=0.02)


def test_probes_without_room_in_the_socket_are_not_lost_on_the_link() -> None:
    result = ProbeResult(10, [0, 1, 2, 2, 4, 5], [5, 1, 5, 5, 5, 5], overflowed=2)
    assert (result.lost(), result.duplicated(), result.reordered(5)) == (3, 1, 1)
    assert ProbeResult(3, [0, 1, 2], [5, 5, 5], overflowed=1).lost() == 0


def test_measurement_is_repeated_before_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts: list[int] = []
    waits: list[float] = []
    monkeypatch.setattr(f"{direction_check.__name__}.time.sleep", waits.append)

    def measure(attempt: int) -> tuple[str, bool]:
        attempts.append(attempt)
        return "no", attempt == 2

    assert measure_repeatedly("x", "y", "z", measure).measured == "no; attempt 2"
    assert attempts == [1, 2]
    failed = measure_repeatedly("x", "y", "z", lambda _: ("no", False))
    assert (failed.passed, failed.measured) == (False, "no; attempt 3")
    assert measure_repeatedly("x", "y", "z", lambda _: ("no", False), (0, 2)).measured == "no; attempt 2"
    assert waits[-2:] == [0, 2]


@pytest.mark.parametrize(("stolen", "attempts"), [((0.5, 0.0, 0.5, 0.0), 4), ((0.0, 0.0), 2), ((0.5,) * 10, 10)])
def test_attempt_with_stolen_cpu_time_does_not_count(
    stolen: tuple[float, ...], attempts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares, measured = iter(stolen), list[int]()
    clock = itertools.count(1000.0, 5.0)

    def measure(attempt: int) -> tuple[str, bool]:
        measured.append(attempt)
        return "931 Mbit/s", False

    monkeypatch.setattr(f"{direction_check.__name__}.time.sleep", lambda _: None)
    monkeypatch.setattr(f"{direction_check.__name__}.time.monotonic", lambda: next(clock))
    monkeypatch.setattr(direction_check, "compute_stolen_share", lambda _before, _after: next(shares))
    failed = measure_repeatedly("x", "y", "z", measure, (0, 0), 45.0)
    assert not failed.passed
    assert measured == list(range(1, attempts + 1))
    assert failed.measured.endswith("stole 50% of this machine's CPU time") == (stolen[-1] > 0)


def test_stolen_cpu_time_is_a_share_of_all_cpus() -> None:
    assert compute_stolen_share((0, 0), (10, 100)) == 0.1
    assert 0 <= compute_stolen_share((0, 0), read_stolen_ticks()) < 1


def test_kernel_counters_are_parsed_by_name() -> None:
    assert parse_proc_net("Tcp: A B\nTcp: 1 -1\nTcpExt: C\nTcpExt: 3\n") == {"A": 1, "B": -1, "C": 3}


@pytest.mark.parametrize(
    ("rtts_ms", "impairment", "statistic"),
    [
        # Pauses of a busy machine do not lengthen the result.
        ([10] * 30 + [25] * 70, Impairment(delay_ns=10 * MS), ("10% quantile", 10 * MS, 0.0)),
        # Reordered packets are left out.
        ([1] * 50 + [10] * 50, Impairment(delay_ns=10 * MS, reorder_ppm=500_000), ("10% quantile", 10 * MS, 0.0)),
        ([8, 10, 12, 20], Impairment(delay_ns=10 * MS, jitter_ns=2 * MS), ("median", 11 * MS, 3 * MS)),
        (
            [8, 10, 12, 20],
            Impairment(delay_ns=10 * MS, jitter_ns=2 * MS, distribution="pareto"),
            ("mean", 12.5 * MS, 3 * MS),
        ),
    ],
)
def test_typical_rtt_depends_on_the_impairment(
    rtts_ms: list[int], impairment: Impairment, statistic: tuple[str, float, float]
) -> None:
    assert typical_rtt([rtt * MS for rtt in rtts_ms], 10 * MS, (impairment,)) == statistic


@pytest.mark.parametrize(("rtt_ms", "passed"), [(10, True), (12.38, True), (12.9, False), (7.1, False)])
def test_rtt_tolerance_includes_the_probes_time_on_the_wire(rtt_ms: float, passed: bool) -> None:
    # 58 bytes take 1.8 ms of 256 kbit/s.
    slow = Profile(name="x", to_server=Impairment(rate_bps=256_000, delay_ns=10 * MS))
    meters = SimpleNamespace(measure_rtts_ns=lambda *_: [round(rtt_ms * MS)] * 50)
    (result,) = check._check_rtt(meters, SimpleNamespace(profile=slow))  # type: ignore[arg-type]
    assert (result.passed, result.expected) == (passed, "10.00 ms")


class RecordingMeter:
    """A meter that records its last request, and the time limits of its replies."""

    def __init__(self) -> None:
        self.arguments: dict[str, Any] = {}
        self.limits_s: list[float] = []
        self.sockets = {"udp": ["198.18.2.1", 1], "tcp": ["198.18.2.1", 1]}

    def start(self, operation: str, **arguments: Any) -> None:
        self.arguments = {"operation": operation, **arguments}

    def read_reply(self, limit_s: float = 60.0) -> dict[str, Any]:
        self.limits_s.append(limit_s)
        return {"rtts_ns": []}


def test_limits_allow_for_the_longest_and_the_slowest_link() -> None:
    rtt_s = 120.0
    sender, receiver = RecordingMeter(), RecordingMeter()
    pair = MeterPair(sender, receiver, itertools.count(), rtt_s)  # type: ignore[arg-type]
    pair.run_transfer(0.3, 20_000, 1)
    # A handshake, the data, and its end.
    assert sender.arguments["connect_s"] > rtt_s
    assert receiver.arguments["max_s"] > 2 * rtt_s
    shortest_limit_s = min(sender.limits_s[-1], receiver.limits_s[-1])
    assert shortest_limit_s > receiver.arguments["max_s"] + sender.arguments["connect_s"] - 1
    pair = MeterPair(sender, receiver, itertools.count())  # type: ignore[arg-type]
    # 10 kbit/s: four probes a second.
    pair.measure_rtts_ns(900, 0.25, 1.0)
    assert receiver.arguments["max_s"] > 225
    assert min(sender.limits_s[-1], receiver.limits_s[-1]) > receiver.arguments["max_s"]
    pair.send_probes("probes", quiet_s=0.3, seconds=37.5, count=150, per_s=4)
    assert receiver.arguments["max_s"] > 37.5
    assert min(sender.limits_s[-1], receiver.limits_s[-1]) > receiver.arguments["max_s"]
    assert "seconds" not in sender.arguments
    # A full frame takes 1.2 s.
    slow = Impairment(rate_bps=10_000, delay_ns=MS)
    assert direction_check.DirectionCheck(pair, "to-server", Profile(name="x", to_server=slow), slow)._quiet_s > 1.5


class FrameSource:
    """Stands in for `FrameSampler`: frames at a constant rate."""

    def __init__(self, sampling: int) -> None:
        self.sampling, self.counts, self.waiting = sampling, Counter[int](), 0.0

    def set_sampling(self, sampling: int) -> None:
        self.sampling = sampling

    def drain(self) -> None:
        sampled = round(self.waiting / self.sampling)
        self.waiting -= sampled * self.sampling
        self.counts[1514] += sampled


@pytest.mark.parametrize("frames_per_s", [300, 3000, 80_000, 800_000])
def test_sampler_takes_some_hundred_frames_a_second_at_any_rate(frames_per_s: int) -> None:
    source: Any = FrameSource(wire._FIRST_SAMPLING)
    sampler = wire.AdaptiveSampler(source)
    for _ in range(20 * 50):
        source.waiting += frames_per_s / 50
        sampler.read()
    assert sampler.frames.total() == pytest.approx(20 * frames_per_s, rel=0.02)
    assert 20 * 100 <= sampler.sampled <= 20 * 1000


def test_every_value_of_a_link_has_a_column(tmp_path: Path) -> None:
    values = link_columns(wires=[tmp_path / "not watched"])
    assert values.keys() >= {"wire_packets", "qdisc_drops", "loss_ppm", "retransmits", "wire_bytes_p50"}
    assert values.keys() - {column.name for column in COLUMNS} == set()
    assert {values[name] for name in ("wire_bytes_p50", "mss", "loss_ppm", "rtt_samples")} == {None}
