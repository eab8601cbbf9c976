from __future__ import annotations

import pytest

from ingest_bench.model.network import Impairment
from ingest_bench.network.plan import netem


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
