from __future__ import annotations

import dataclasses

import pytest

from ingest_bench.model.network import Impairment
from ingest_bench.network.plan import netem

MS = 10**6


@pytest.mark.parametrize(
    ("impairment", "lines"),
    [
        (Impairment(), ()),
        (
            Impairment(rate_bps=10**9),
            (
                (
                    "qdisc replace dev d root handle 2: tbf rate 1000000000bit burst 250000b limit 6250000b "
                    "peakrate 1100000000bit mtu 12500b"
                ),
            ),
        ),
        (
            Impairment(rate_bps=10**6, burst_bytes=1600),
            ("qdisc replace dev d root handle 2: tbf rate 1000000bit burst 1600b limit 48448b",),
        ),
        (
            Impairment(rate_bps=10**7, limit_packets=1000),
            (
                (
                    "qdisc replace dev d root handle 2: tbf rate 10000000bit burst 3028b limit 1514000b "
                    "peakrate 11000000bit mtu 3028b"
                ),
            ),
        ),
        (
            Impairment(rate_bps=10**8, delay_ns=25 * MS),
            (
                "qdisc replace dev d root handle 1: netem limit 5883 delay 25000us",
                "qdisc replace dev d parent 1:1 handle 2: netem limit 412 rate 100000000bit slot 0us 0us",
            ),
        ),
        # A bucket of the profile stays one, and a netem that duplicates must be the only one.
        (
            Impairment(rate_bps=10**8, delay_ns=25 * MS, burst_bytes=25_000),
            (
                "qdisc replace dev d root handle 1: netem limit 5883 delay 25000us",
                "qdisc replace dev d parent 1:1 handle 2: tbf rate 100000000bit burst 25000b limit 625000b",
            ),
        ),
        (
            Impairment(rate_bps=10**8, duplicate_ppm=10_000),
            (
                "qdisc replace dev d root handle 1: netem limit 1000 duplicate 1%",
                (
                    "qdisc replace dev d parent 1:1 handle 2: tbf rate 100000000bit burst 25000b limit 625000b "
                    "peakrate 110000000bit mtu 3028b"
                ),
            ),
        ),
    ],
)
def test_impairment_becomes_these_tc_lines(impairment: Impairment, lines: tuple[str, ...]) -> None:
    assert netem.qdisc_lines("d", impairment, 1500) == lines


def test_netem_sets_rate_and_gathers_packets_if_timers_are_late() -> None:
    def rate_only(rate_bps: int) -> tuple[str, ...]:
        return netem.qdisc_lines("d", Impairment(rate_bps=rate_bps), 1500, rate_by_netem=True)

    prefix = "qdisc replace dev d root handle 2: netem limit"
    assert rate_only(10**9) == (f"{prefix} 4128 rate 1000000000bit slot 100us 100us",)
    # 100 us are not two frames. The slot is named: a changed netem would keep its old one.
    assert rate_only(2 * 10**8) == (f"{prefix} 825 rate 200000000bit slot 0us 0us",)
    short_queue = netem.qdisc_lines("d", Impairment(rate_bps=10**9, limit_packets=7), 1500, rate_by_netem=True)
    assert short_queue == (f"{prefix} 7 rate 1000000000bit slot 100us 100us",)


@pytest.mark.parametrize(
    ("impairment", "options"),
    [
        (Impairment(delay_ns=10 * MS, jitter_ns=3 * MS), "delay 10000us 3000us"),
        (
            Impairment(delay_ns=MS, jitter_ns=500, delay_correlation_ppm=250_000, distribution="paretonormal"),
            "delay 1000us 0.5us 25% distribution paretonormal",
        ),
        (Impairment(loss_ppm=10_000), "loss random 1%"),
        (Impairment(loss_ppm=5, loss_correlation_ppm=500_000), "loss random 0.0005% 50%"),
        (Impairment(loss_state_ppm=(10_000, 300_000, 1_000_000)), "loss state 1% 30% 100%"),
        (Impairment(loss_gemodel_ppm=(10_000, 100_000, 700_000, 1_000), ecn=True), "loss gemodel 1% 10% 70% 0.1% ecn"),
        (Impairment(corrupt_ppm=1_000, corrupt_correlation_ppm=100_000), "corrupt 0.1% 10%"),
        (Impairment(duplicate_ppm=10_000, duplicate_correlation_ppm=250_000), "duplicate 1% 25%"),
        (
            Impairment(delay_ns=MS, reorder_ppm=250_000, reorder_correlation_ppm=500_000, reorder_gap=5),
            "delay 1000us reorder 25% 50% gap 5",
        ),
        (Impairment(netem_rate_bps=10**6), "rate 1000000bit"),
        (
            Impairment(netem_rate_bps=10**6, packet_overhead_bytes=20, cell_bytes=53, cell_overhead_bytes=5),
            "rate 1000000bit 20 53 5",
        ),
        (Impairment(slot_min_ns=800_000), "slot 800us"),
        (
            Impairment(slot_min_ns=800_000, slot_max_ns=MS, slot_packets=42, slot_bytes=64_000),
            "slot 800us 1000us packets 42 bytes 64000",
        ),
    ],
)
def test_netem_options(impairment: Impairment, options: str) -> None:
    limit, *others = netem.netem_options(impairment, 1500)
    assert limit.startswith("limit ")
    assert " ".join(others) == options


@pytest.mark.parametrize(
    ("rate_bps", "frames", "bucket_bytes", "batch_bytes", "slot_ns"),
    [
        (1, 32, 3000, 3000, 0),
        (7_919_999, 32, 3000, 3000, 0),
        (7_920_000, 33, 3000, 3000, 0),
        (12_004_000, 50, 3001, 3000, 0),
        (239_999_999, 999, 59_999, 3000, 0),
        (240_000_000, 1000, 60_000, 3000, 100_000),
        (240_080_000, 1000, 60_020, 3001, 100_000),
    ],
)
def test_bottleneck_sizes_are_frames_on_slow_and_times_on_fast_lines(
    rate_bps: int, frames: int, bucket_bytes: int, batch_bytes: int, slot_ns: int
) -> None:
    """Frames of 1500 bytes: a queue of 32 frames or 50 ms, a bucket of two or 2 ms, a batch of two or 100 us."""
    impairment = Impairment(rate_bps=rate_bps)
    assert netem.queue_frames(impairment, 1486) == frames
    assert netem.bucket_bytes(impairment, 1486) == bucket_bytes
    assert netem.batch_bytes(impairment, 1486) == batch_bytes
    assert netem.slot_ns(impairment, 1486) == slot_ns
    queue_bytes = max(32 * 1500, rate_bps // 160)
    peak = f"peakrate {-(-rate_bps * 11 // 10)}bit"
    assert netem.tbf_options(impairment, 1486)[1:4] == (f"burst {bucket_bytes}b", f"limit {queue_bytes}b", peak)


@pytest.mark.parametrize(
    ("impairment", "packets"),
    [
        (Impairment(delay_ns=MS), 19_532 + 1000),
        (Impairment(delay_ns=MS, jitter_ns=MS, slot_min_ns=MS), 117_188 + 1000),
        (Impairment(delay_ns=MS, jitter_ns=MS, slot_min_ns=MS, slot_max_ns=3 * MS), 156_250 + 1000),
        (Impairment(rate_bps=5_120_000, delay_ns=8 * MS), 80 + 1000),
        (Impairment(rate_bps=5_120_000, delay_ns=8 * MS, limit_packets=7), 80 + 7),
        (Impairment(netem_rate_bps=12_000_000, delay_ns=8 * MS), 8 + 1000),
        (Impairment(delay_ns=60_000 * MS, jitter_ns=60_000 * MS), 2**32 - 1),
        (Impairment(delay_ns=50 * MS, limit_packets=7), 7),
        # At 1 Gbit/s and 50 ms a link holds 4167 full packets.
        (Impairment(netem_rate_bps=10**9, delay_ns=50 * MS), 4167 + 1000),
    ],
)
def test_netem_limit_holds_the_smallest_packets_of_the_longest_delay(impairment: Impairment, packets: int) -> None:
    """Packets of 64 bytes at 10 Gbit/s or at the bottleneck's rate; full ones if netem has a rate itself."""
    assert netem.netem_limit_packets(impairment, 1500) == packets


SLOW, DISTANT = Impairment(rate_bps=10**6), Impairment(rate_bps=10**6, delay_ns=MS)
FAIR = Impairment(rate_bps=10**8, delay_ns=25 * MS, queue="fq_codel")
CLEAN, CORRUPTING = Impairment(delay_ns=2 * MS), Impairment(delay_ns=MS, corrupt_ppm=20_000)


@pytest.mark.parametrize(
    ("before", "after", "is_replaced"),
    [
        (Impairment(), SLOW, False),
        (Impairment(rate_bps=10**7), SLOW, False),
        (DISTANT, Impairment(rate_bps=10**7, delay_ns=MS), False),
        (FAIR, dataclasses.replace(FAIR, rate_bps=10**6), False),
        # Another kind of qdisc.
        (SLOW, DISTANT, True),
        (DISTANT, Impairment(rate_bps=10**7, delay_ns=MS, burst_bytes=5000), True),
        (DISTANT, Impairment(), True),
        (FAIR, dataclasses.replace(FAIR, queue="red"), True),
        (FAIR, dataclasses.replace(FAIR, queue="cake"), True),
        (FAIR, dataclasses.replace(FAIR, queue="fifo"), True),
        # A netem would keep some of its old options.
        (CORRUPTING, CLEAN, True),
        (CLEAN, CORRUPTING, False),
        (Impairment(delay_ns=MS, loss_ppm=10_000), CLEAN, False),
    ],
)
def test_qdiscs_are_changed_in_place_unless_their_kind_or_an_old_option_prevents_it(
    before: Impairment, after: Impairment, *, is_replaced: bool
) -> None:
    lines = netem.qdisc_lines("d", after, 1500)
    expected = ("qdisc del dev d root", *lines) if is_replaced else lines
    assert netem.change_lines("d", before, after, 1500) == expected


def test_random_loss_is_the_lost_share() -> None:
    assert netem.lost_share(Impairment(loss_ppm=10_000)) == pytest.approx(0.01)
    assert netem.lost_share(Impairment()) == 0
    assert netem.variance_factor(Impairment(loss_ppm=10_000)) == 1


def test_corrupt_packets_count_as_lost() -> None:
    assert netem.lost_share(Impairment(loss_ppm=100_000, corrupt_ppm=100_000)) == pytest.approx(1 - 0.9 * 0.9)


def test_correlated_loss_has_no_defined_share() -> None:
    assert netem.lost_share(Impairment(loss_ppm=10_000, loss_correlation_ppm=250_000)) is None


def test_gilbert_elliott_share_follows_from_its_chain() -> None:
    # In the bad state for p / (p + r) of the time: 1% / 11%. It loses 70%, the good state 0.1%.
    model = Impairment(loss_gemodel_ppm=(10_000, 100_000, 700_000, 1_000))
    assert netem.lost_share(model) == pytest.approx(1 / 11 * 0.7 + 10 / 11 * 0.001, rel=1e-6)
    assert netem.variance_factor(model) > 5


def test_defaults_of_tc_complete_a_short_loss_model() -> None:
    # tc -j prints for "gemodel 1%": r 99%, 1-h 100%, 1-k 0; for "state 1%": p31 99%, p32 0, p23 100%, p14 0.
    assert netem.lost_share(Impairment(loss_gemodel_ppm=(10_000,))) == pytest.approx(0.01)
    assert netem.lost_share(Impairment(loss_state_ppm=(10_000,))) == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize(
    ("to_bad", "to_good"), [(0.02, 0.2), (0.001, 0.01), (0.3, 0.1), (0.9, 0.95), (0.0001, 0.0001), (1e-6, 1e-5)]
)
def test_variance_factor_of_a_gilbert_chain_equals_its_closed_form(to_bad: float, to_good: float) -> None:
    model = Impairment(loss_gemodel_ppm=(round(to_bad * 1e6), round(to_good * 1e6)))
    # The correlation of successive states. Below 0, losses are more even than independent ones: the factor stays 1.
    correlation = 1 - to_bad - to_good
    assert netem.variance_factor(model) == pytest.approx(max(1, (1 + correlation) / (1 - correlation)), rel=1e-6)
    assert netem.lost_share(model) == pytest.approx(to_bad / (to_bad + to_good))


@pytest.mark.parametrize("parameters", [(0.02, 0.3, 0.1, 0.4, 0.01), (0.1, 0.5, 0.2), (0.001, 0.9, 0.05, 0.01, 0.2)])
def test_four_state_share_is_that_of_the_balanced_chain(parameters: tuple[float, ...]) -> None:
    p13, p31, p32, p23, p14 = [*parameters, *(0.0, 1.0, 0.0)[len(parameters) - 2 :]]
    burst = p13 / p31
    states = 1, burst * p32 / p23, burst, p14
    model = Impairment(loss_state_ppm=tuple(round(part * 1e6) for part in parameters))
    assert netem.lost_share(model) == pytest.approx((states[2] + states[3]) / sum(states))


@pytest.mark.parametrize(("lost", "sent", "factor"), [(0, 9, 1), (1, 7, 1), (10, 1000, 1), (30, 400, 5), (7, 7, 2)])
def test_interval_ends_are_99_percent_quantiles_of_the_count(lost: int, sent: int, factor: float) -> None:
    share, ends = lost / sent, netem.wilson_interval(lost, sent, factor)
    for end in ends:
        # 2.5758 standard deviations, unless the interval ends at 0 or 1.
        assert abs(share - end) == pytest.approx(2.5758 * (end * (1 - end) * factor / sent) ** 0.5, rel=1e-4)
    assert ends[0] <= share <= ends[1]
    assert (ends[0] == 0, ends[1] == 1) == (lost == 0, lost == sent)
