from __future__ import annotations

import random

import pytest

from ingest_bench.model.network import Impairment
from ingest_bench.network.plan import losses


def test_a_random_loss_is_its_own_share() -> None:
    assert losses.share(Impairment(loss_ppm=10_000)) == pytest.approx(0.01)
    assert losses.share(Impairment()) == 0
    assert losses.variance_factor(Impairment(loss_ppm=10_000)) == 1


def test_a_corrupt_packet_does_not_arrive_whole() -> None:
    assert losses.share(Impairment(loss_ppm=100_000, corrupt_ppm=100_000)) == pytest.approx(1 - 0.9 * 0.9)


def test_a_correlated_loss_promises_no_share() -> None:
    assert losses.share(Impairment(loss_ppm=10_000, loss_correlation_ppm=250_000)) is None


def test_gilbert_elliott_loses_what_its_chain_says() -> None:
    # Bad for p / (p + r) of the time: 1% / 11%, and then 70% are lost; 0.1% of the others.
    model = Impairment(loss_gemodel_ppm=(10_000, 100_000, 700_000, 1_000))
    assert losses.share(model) == pytest.approx(1 / 11 * 0.7 + 10 / 11 * 0.001, rel=1e-6)
    assert losses.variance_factor(model) > 5


def test_what_tc_adds_to_a_short_model_is_in_its_share() -> None:
    # tc -j shows for "gemodel 1%": r 99%, 1-h 100%, 1-k 0; for "state 1%": p31 99%, p32 0, p23 100%, p14 0.
    assert losses.share(Impairment(loss_gemodel_ppm=(10_000,))) == pytest.approx(0.01)
    assert losses.share(Impairment(loss_state_ppm=(10_000,))) == pytest.approx(0.01, rel=1e-3)


def test_the_scatter_of_bursts_is_that_of_a_simulation() -> None:
    p, r = 0.02, 0.2
    model = Impairment(loss_gemodel_ppm=(20_000, 200_000))
    chance = random.Random(1)  # noqa: S311 - a repeatable simulation
    counts = []
    bad = False
    for _ in range(400):
        lost = 0
        for _ in range(500):
            bad = chance.random() >= r if bad else chance.random() < p
            lost += bad
        counts.append(lost)
    mean = sum(counts) / 400
    variance = sum((count - mean) ** 2 for count in counts) / 399
    share = p / (p + r)
    assert losses.variance_factor(model) == pytest.approx(variance / (500 * share * (1 - share)), rel=0.25)


def test_the_interval_holds_what_was_counted_and_narrows_with_more_packets() -> None:
    low, high = losses.interval(10, 1000, factor=1)
    assert low < 0.01 < high
    wide_low, wide_high = losses.interval(10, 1000, factor=5)
    assert wide_low < low < high < wide_high
    assert losses.interval(0, 1000, factor=1)[0] == 0
    assert losses.interval(0, 2000, factor=1)[1] < 0.01


@pytest.mark.parametrize(
    ("to_bad", "to_good"), [(0.02, 0.2), (0.001, 0.01), (0.3, 0.1), (0.9, 0.95), (0.0001, 0.0001), (1e-6, 1e-5)]
)
def test_the_scatter_of_a_gilbert_chain_is_its_closed_form(to_bad: float, to_good: float) -> None:
    model = Impairment(loss_gemodel_ppm=(round(to_bad * 1e6), round(to_good * 1e6)))
    # What is left of a state after a packet; where it is below 0 losses are more even than by chance: no less is said.
    left = 1 - to_bad - to_good
    assert losses.variance_factor(model) == pytest.approx(max(1, (1 + left) / (1 - left)), rel=1e-6)
    assert losses.share(model) == pytest.approx(to_bad / (to_bad + to_good))


@pytest.mark.parametrize("given", [(0.02, 0.3, 0.1, 0.4, 0.01), (0.1, 0.5, 0.2), (0.001, 0.9, 0.05, 0.01, 0.2)])
def test_four_states_are_settled_where_as_much_enters_each_as_leaves_it(given: tuple[float, ...]) -> None:
    p13, p31, p32, p23, p14 = [*given, *(0.0, 1.0, 0.0)[len(given) - 2 :]]
    of_burst = p13 / p31
    states = 1, of_burst * p32 / p23, of_burst, p14
    model = Impairment(loss_state_ppm=tuple(round(part * 1e6) for part in given))
    assert losses.share(model) == pytest.approx((states[2] + states[3]) / sum(states))


@pytest.mark.parametrize(("lost", "sent", "factor"), [(0, 9, 1), (1, 7, 1), (10, 1000, 1), (30, 400, 5), (7, 7, 2)])
def test_a_share_at_an_end_of_the_interval_is_as_far_from_what_was_counted_as_99_of_100_samples(
    lost: int, sent: int, factor: float
) -> None:
    seen, ends = lost / sent, losses.interval(lost, sent, factor)
    for end in ends:
        # 2.5758 standard deviations, where the interval does not end with what a share can be.
        assert abs(seen - end) == pytest.approx(2.5758 * (end * (1 - end) * factor / sent) ** 0.5, rel=1e-4)
    assert ends[0] <= seen <= ends[1]
    assert (ends[0] == 0, ends[1] == 1) == (lost == 0, lost == sent)


def test_the_interval_holds_the_truth_in_about_99_of_100_samples() -> None:
    chance = random.Random(2)  # noqa: S311 - a repeatable simulation
    held = 0
    for _ in range(1000):
        lost = sum(chance.random() < 0.02 for _ in range(500))
        low, high = losses.interval(lost, 500, factor=1)
        held += low <= 0.02 <= high
    assert 975 <= held <= 1000
