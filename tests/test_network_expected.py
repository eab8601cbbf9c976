from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ingest_bench import trials
from ingest_bench.analysis.run.columns import COLUMNS
from ingest_bench.model.network import Impairment, Profile
from ingest_bench.network.measure import check, expected, frames, lanes, wire
from ingest_bench.network.measure.check import typical_rtt
from ingest_bench.network.measure.lanes import Seen, fastest_bps, judged, tried
from ingest_bench.network.measure.probing import Way
from ingest_bench.network.measure.readings import parse, readings

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
def test_a_full_segment_follows_from_mtu_and_mss(profile: Profile, mss_bytes: int, frame_bytes: int) -> None:
    assert expected.mss_bytes(profile) == mss_bytes
    assert expected.full_frame_bytes(profile) == frame_bytes


def test_jitter_is_promised_where_netem_keeps_to_it() -> None:
    assert expected.jitter_ns(Impairment(delay_ns=10 * MS)) is None
    assert expected.jitter_ns(Impairment(delay_ns=10 * MS, jitter_ns=3 * MS)) == 3 * MS
    assert expected.jitter_ns(Impairment(delay_ns=10 * MS, jitter_ns=3 * MS, distribution="normal")) == pytest.approx(
        4.047 * MS
    )
    assert expected.jitter_ns(Impairment(delay_ns=10 * MS, jitter_ns=12 * MS)) is None
    assert expected.delay_ns(Impairment(delay_ns=10 * MS, jitter_ns=4 * MS, distribution="normal")) is None


def test_a_gap_lets_fewer_packets_overtake() -> None:
    half = Impairment(delay_ns=10 * MS, reorder_ppm=500_000)
    assert expected.reordered_share(half) == pytest.approx(0.5)
    assert expected.reordered_share(Impairment(delay_ns=MS, reorder_ppm=10**6, reorder_gap=5)) == pytest.approx(0.2)
    assert expected.delay_ns(half) == 10 * MS


def test_a_rarer_loss_takes_more_probes_and_a_slow_link_fewer_a_second() -> None:
    assert expected.burst(Impairment(), 1).count == 1000
    assert expected.burst(Impairment(loss_ppm=5_000), 1).count == 6000
    assert expected.burst(Impairment(loss_ppm=5_000), 2).count == 12000
    slow = expected.burst(Impairment(rate_bps=10**6), 1)
    assert slow.per_s * 142 * 8 <= 10**6 / 2
    assert slow.count <= slow.per_s


def test_overhead_and_whole_cells_leave_less_of_netems_rate_to_frames() -> None:
    dsl = Impairment(netem_rate_bps=2 * 10**6, packet_overhead_bytes=44, cell_bytes=48, cell_overhead_bytes=5)
    # 1558 bytes are 33 cells, and 102 are 3.
    assert expected.rate_bps(dsl, 1514) == 2 * 10**6 * 1514 // (33 * 53)
    assert expected.wire_ns(dsl, 58) == pytest.approx(3 * 53 * 8 / 2e6 * 1e9)
    assert expected.rate_bps(Impairment(rate_bps=10**6, netem_rate_bps=2 * 10**6), 1514) == 10**6
    assert expected.rate_bps(Impairment(), 1514) is None
    bulk = expected.bulk(dataclasses.replace(dsl, rate_bps=10**9), 1500)
    assert bulk is not None
    assert bulk.seconds == pytest.approx((bulk.frames - 1) * 33 * 53 * 8 / 2e6, rel=1e-5)


def test_a_flood_is_more_than_the_link_carries() -> None:
    plan = expected.flood(Impairment(rate_bps=10**8, loss_ppm=100_000), 1500, 1)
    assert plan.per_s * (1 - 0.1) * 1514 * 8 >= 1.49 * 10**8
    assert plan.seconds > plan.window_s >= 0.1
    assert expected.flood(Impairment(rate_bps=10**6), 1500, 1).window_s == 1.0


def test_what_a_bucket_has_saved_up_is_little_beside_the_time_of_a_rate() -> None:
    plan = expected.flood(Impairment(rate_bps=10**8, burst_bytes=125_000), 1500, 1)
    assert 125_000 * 8 / 10**8 / plan.window_s < 0.04


def test_a_flood_comes_in_pieces_that_the_queue_need_not_cut() -> None:
    assert expected.flood(Impairment(rate_bps=10**9), 1500, 1).pieces == 4
    assert expected.flood(Impairment(rate_bps=10**8), 1500, 1).pieces == 24
    assert expected.flood(Impairment(rate_bps=10**9), 9000, 1).pieces == 7
    # All of them are one datagram, of less than 64 KiB.
    for mtu_bytes in (68, 576, 1500, 9000, 65535):
        pieces = expected.flood(Impairment(rate_bps=10**11), mtu_bytes, 1).pieces
        assert 1 <= pieces * (mtu_bytes - 28) < 65_508 or pieces == 1


def test_a_bulk_after_a_pause_takes_the_time_of_its_frames() -> None:
    bulk = expected.bulk(Impairment(rate_bps=10**9), 1500)
    assert bulk is not None
    assert (bulk.frames, bulk.times, bulk.frame_bytes) == (132, 20, 1514)
    assert bulk.seconds == pytest.approx(131 * 1514 * 8e-9)
    slow = expected.bulk(Impairment(rate_bps=3 * 10**6), 1500)
    assert slow is not None
    # Three quarters of a queue of 32 frames.
    assert (slow.frames, slow.times) == (24, 10)
    # A bucket of 2 ms would let most of it through.
    fast = expected.bulk(Impairment(rate_bps=10**8), 1500)
    assert fast is not None
    assert fast.seconds < 0.003


def test_a_bucket_is_full_again_before_the_next_bulk() -> None:
    fast, slow = (expected.bulk(Impairment(rate_bps=rate), 1500) for rate in (10**9, 3 * 10**6))
    assert fast is not None
    assert slow is not None
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
def test_where_nothing_spaces_a_bulk_there_is_no_such_promise(impairment: Impairment) -> None:
    assert expected.bulk(impairment, 1500) is None


def arrivals(frames: int, every_ns: float, saved: int = 0) -> list[int]:
    return [round(max(0, number - saved) * every_ns) for number in range(frames)]


def test_a_bulk_that_a_bucket_lets_through_breaks_the_promise_and_a_busy_machine_does_not() -> None:
    bulk = expected.bulk(Impairment(rate_bps=10**9), 1500)
    assert bulk is not None
    wire, late = arrivals(132, 12112), arrivals(132, 40_000)
    assert judged([wire] * 9, bulk) == ("1.587 ms (median of 9; 25%: 1.587 ms)", True)
    assert judged([wire] * 3 + [late] * 6, bulk)[1]
    assert not judged([late] * 9, bulk)[1]
    # What 2 ms of the rate had let through, measured: 0.55 to 0.9 ms.
    quick = arrivals(132, 12112, saved=70)
    assert not judged([quick] * 9, bulk)[1]
    assert not judged([quick] * 5 + [late] * 4, bulk)[1]


def test_lost_frames_do_not_shorten_a_bulk_and_a_bulk_that_never_came_is_none() -> None:
    bulk = expected.bulk(Impairment(rate_bps=10**9, loss_ppm=300_000), 1500)
    assert bulk is not None
    assert judged([arrivals(90, 12112)] * 9, bulk) == ("1.587 ms (median of 9; 25%: 1.587 ms)", True)
    assert judged([[0] * 60] * 9, bulk) == ("more than half was lost of 9 of 9 bulks", False)
    assert not judged([[]] * 9, bulk)[1]


def test_frames_are_sampled_by_a_power_of_two() -> None:
    for rate_bps in (None, 10**9, 10**8, 10**6):
        sampled = frames.one_of(rate_bps)
        assert sampled & (sampled - 1) == 0
    assert frames.one_of(10**6) == 1


def test_the_rate_is_that_of_the_fastest_stretch_and_a_paused_sender_does_not_lower_it() -> None:
    # 125 bytes a millisecond (1 Mbit/s), with a pause of 0.2 s.
    points = [(at / 1000, 125 * (min(at, 400) + max(0, at - 600))) for at in range(0, 1000, 5)]
    assert fastest_bps(points, 0.3) == pytest.approx(10**6)
    assert fastest_bps(points, 0.9) < 0.85 * 10**6
    assert fastest_bps([(0.0, 5), (1.0, 5)], 0.5) == 0
    assert fastest_bps([(0.0, 0), (1.0, 5)], 2.0) == 0


@pytest.mark.parametrize("rate_bps", [10_000, 20_000, 64_000, 10**6])
@pytest.mark.parametrize("window_s", [1.0, 2.0, 3.0])
def test_a_slow_line_has_no_frame_too_many(rate_bps: int, window_s: float) -> None:
    frames_a_ms = rate_bps / (1514 * 8 * 1000)
    points = [(ms / 1000, 1514 * int(ms * frames_a_ms)) for ms in range(0, 9000, 5)]
    assert fastest_bps(lanes.arrivals(points), window_s) == pytest.approx(rate_bps, rel=0.02)


def test_probes_that_found_no_room_in_the_socket_are_not_lost_on_the_link() -> None:
    seen = Seen(10, [0, 1, 2, 2, 4, 5], [5, 1, 5, 5, 5, 5], overflowed=2)
    assert (seen.lost(), seen.doubled(), seen.hurried(5)) == (3, 1, 1)
    assert Seen(3, [0, 1, 2], [5, 5, 5], overflowed=1).lost() == 0


def test_a_promise_is_tried_again_before_it_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[int] = []
    rested: list[float] = []
    monkeypatch.setattr(f"{lanes.__name__}.time.sleep", rested.append)

    def measure(attempt: int) -> tuple[str, bool]:
        tries.append(attempt)
        return "no", attempt == 2

    assert tried("x", "y", "z", measure).measured == "no; try 2"
    assert tries == [1, 2]
    broken = tried("x", "y", "z", lambda _: ("no", False))
    assert (broken.kept, broken.measured) == (False, "no; try 3")
    assert tried("x", "y", "z", lambda _: ("no", False), (0, 2)).measured == "no; try 2"
    assert rested[-2:] == [0, 2]


@pytest.mark.parametrize(("stolen", "tries"), [((0.5, 0.0, 0.5, 0.0), 4), ((0.0, 0.0), 2), ((0.5,) * 10, 10)])
def test_while_a_hypervisor_takes_the_processors_a_try_proves_nothing_against_a_link(
    stolen: tuple[float, ...], tries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, made = iter(stolen), list[int]()
    clock = itertools.count(1000.0, 5.0)

    def measure(attempt: int) -> tuple[str, bool]:
        made.append(attempt)
        return "931 Mbit/s", False

    monkeypatch.setattr(f"{lanes.__name__}.time.sleep", lambda _: None)
    monkeypatch.setattr(f"{lanes.__name__}.time.monotonic", lambda: next(clock))
    monkeypatch.setattr(lanes, "stolen_share", lambda _before, _after: next(left))
    broken = tried("x", "y", "z", measure, (0, 0), 45.0)
    assert not broken.kept
    assert made == list(range(1, tries + 1))
    assert broken.measured.endswith("took 50% of this machine's processors") == (stolen[-1] > 0)


def test_what_was_stolen_is_a_share_of_all_processors() -> None:
    assert trials.stolen_share((0, 0), (10, 100)) == 0.1
    assert 0 <= trials.stolen_share((0, 0), trials.processor_ticks()) < 1


def test_the_kernels_tables_of_counters_are_read_by_name() -> None:
    assert parse("Tcp: A B\nTcp: 1 -1\nTcpExt: C\nTcpExt: 3\n") == {"A": 1, "B": -1, "C": 3}


def test_a_busy_machines_pauses_do_not_make_a_link_look_longer() -> None:
    rtts = sorted([10 * MS] * 30 + [25 * MS] * 70)
    assert typical_rtt(rtts, 10 * MS, (Impairment(delay_ns=10 * MS),)) == ("10% quantile", 10 * MS, 0.0)


@pytest.mark.parametrize(("took_ms", "kept"), [(10, True), (12.38, True), (12.9, False), (7.1, False)])
def test_a_probe_of_a_slow_line_takes_its_time_on_the_wire(took_ms: float, kept: bool) -> None:
    # 58 bytes take 1.8 ms of 256 kbit/s.
    slow = Profile(name="x", to_server=Impairment(rate_bps=256_000, delay_ns=10 * MS))
    link, way = SimpleNamespace(profile=slow), SimpleNamespace(round_trips_ns=lambda *_: [round(took_ms * MS)] * 50)
    (promise,) = check._rtt(way, link)  # type: ignore[arg-type]
    assert (promise.kept, promise.promised) == (kept, "10.00 ms")


class Asked:
    """A meter that writes down what it is asked, and how long its answer is awaited."""

    def __init__(self) -> None:
        self.told: dict[str, Any] = {}
        self.limits_s: list[float] = []

    def start(self, operation: str, **arguments: Any) -> None:
        self.told = {"operation": operation, **arguments}

    def answer(self, limit_s: float = 60.0) -> dict[str, Any]:
        self.limits_s.append(limit_s)
        return {"rtts_ns": []}

    def where(self, _: str) -> list[Any]:
        return ["198.18.2.1", 1]


def test_nobody_is_cut_off_on_the_longest_link_nor_on_the_slowest() -> None:
    rtt_s = 120.0
    sender, receiver = Asked(), Asked()
    way = Way(sender, receiver, itertools.count(), rtt_s)  # type: ignore[arg-type]
    way.transfer(0.3, 20_000, 1)
    # A handshake, the data, and its end.
    assert sender.told["connect_s"] > rtt_s
    assert receiver.told["most_s"] > 2 * rtt_s
    assert min(sender.limits_s[-1], receiver.limits_s[-1]) > receiver.told["most_s"] + sender.told["connect_s"] - 1
    way = Way(sender, receiver, itertools.count())  # type: ignore[arg-type]
    # 10 kbit/s: four probes a second.
    way.round_trips_ns(900, 0.25, 1.0)
    assert receiver.told["most_s"] > 225
    assert min(sender.limits_s[-1], receiver.limits_s[-1]) > receiver.told["most_s"]
    way.probes("burst", quiet_s=0.3, seconds=37.5, count=150, per_s=4)
    assert receiver.told["most_s"] > 37.5
    assert min(sender.limits_s[-1], receiver.limits_s[-1]) > receiver.told["most_s"]
    assert "seconds" not in sender.told
    # A full frame takes 1.2 s.
    slow = Impairment(rate_bps=10_000, delay_ns=MS)
    assert lanes.Lane(way, "to-server", Profile(name="x", to_server=slow), slow)._quiet_s > 1.5


def test_packets_that_overtook_are_left_out_of_the_round_trip() -> None:
    rtts = sorted([1 * MS] * 50 + [10 * MS] * 50)
    reordering = Impairment(delay_ns=10 * MS, reorder_ppm=500_000)
    assert typical_rtt(rtts, 10 * MS, (reordering,))[1] == 10 * MS


def test_jitter_leaves_a_middle_that_is_uncertain() -> None:
    rtts = [8 * MS, 10 * MS, 12 * MS, 20 * MS]
    uniform = Impairment(delay_ns=10 * MS, jitter_ns=2 * MS)
    assert typical_rtt(rtts, 10 * MS, (uniform,)) == ("median", 11 * MS, 3 * MS)
    pareto = Impairment(delay_ns=10 * MS, jitter_ns=2 * MS, distribution="pareto")
    assert typical_rtt(rtts, 10 * MS, (pareto,))[:2] == ("mean", 12.5 * MS)


class Made:
    """Frames of a rate that a look sees as dense as it asks for."""

    def __init__(self, sampled: int) -> None:
        self.sampled, self.counts, self.waiting = sampled, Counter[int](), 0.0

    def sample(self, sampled: int) -> None:
        self.sampled = sampled

    def drain(self) -> None:
        seen = round(self.waiting / self.sampled)
        self.waiting -= seen * self.sampled
        self.counts[1514] += seen


@pytest.mark.parametrize("frames_per_s", [300, 3000, 80_000, 800_000])
def test_whatever_the_rate_some_hundred_frames_a_second_are_looked_at(frames_per_s: int) -> None:
    made: Any = Made(wire._FIRST)
    sample = wire.Sample(made)
    for _ in range(20 * 50):
        made.waiting += frames_per_s / 50
        sample.look()
    assert sample.frames.total() == pytest.approx(20 * frames_per_s, rel=0.02)
    assert 20 * 100 <= sample.looked_at <= 20 * 1000


def test_each_number_of_a_link_has_its_column(tmp_path: Path) -> None:
    numbers = readings(wires=[tmp_path / "nobody-watched"])
    assert numbers.keys() >= {"wire_packets", "qdisc_drops", "loss_ppm", "retransmits", "wire_bytes_p50"}
    assert numbers.keys() - {column.name for column in COLUMNS} == set()
