"""What share of packets an impairment loses, and how sure a count of them is. Pure."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ingest_bench.model.network import Impairment

_MILLION = 10**6
_Z99 = NormalDist().inv_cdf(0.995)
# A chain is followed for 2 to the power of so many packets: one in a million changes a state, if any does.
_DOUBLINGS = 26


def share(impairment: Impairment) -> float | None:
    """The share of packets that do not arrive whole; None when netem does not keep to a share.

    A corrupt packet is dropped by the receiver's checksum. With a correlation netem narrows its random numbers around
    the middle (net/sched/sch_netem.c, get_crandom), and loses far less than it was told.
    """
    if impairment.loss_ppm and impairment.loss_correlation_ppm:
        return None
    if impairment.corrupt_ppm and impairment.corrupt_correlation_ppm:
        return None
    states, lost, steps = _chain(impairment)
    arrives = 1 - _mean(_settled(steps, states), lost)
    return 1 - arrives * (1 - impairment.corrupt_ppm / _MILLION)


def variance_factor(impairment: Impairment) -> float:
    """How much more a count of lost packets scatters than that of independent losses: bursts make it more than 1."""
    states, lost, steps = _chain(impairment)
    settled = _settled(steps, states)
    mean = _mean(settled, lost)
    if not 0 < mean < 1 or states == 1:
        return 1.0
    # The sum of the correlations between a packet and those after it: of twice as many it is that of the first half,
    # and the same as seen from its end.
    chain = [list(row) for row in steps]
    later = _applied(chain, [loss - mean for loss in lost])
    for _ in range(_DOUBLINGS):
        later = [one + other for one, other in zip(later, _applied(chain, later), strict=True)]
        chain = _product(chain, chain)
    total = _mean([part * loss for part, loss in zip(settled, lost, strict=True)], later)
    return max(1.0, 1 + 2 * total / (mean * (1 - mean)))


def interval(lost: int, sent: int, factor: float) -> tuple[float, float]:
    """The 99% interval of a share that was counted (Wilson 1927), with as many packets less as they depend."""
    count = sent / factor
    seen = lost / sent
    spread = _Z99 * math.sqrt(seen * (1 - seen) / count + _Z99**2 / (4 * count**2))
    middle, scale = seen + _Z99**2 / (2 * count), 1 + _Z99**2 / count
    low = (middle - spread) / scale if lost else 0.0
    return low, min(1.0, (middle + spread) / scale)


def _chain(impairment: Impairment) -> tuple[int, Sequence[float], Sequence[Sequence[float]]]:
    """States, the loss in each, and the steps between them; tc's own defaults for what was not given."""
    if impairment.loss_gemodel_ppm:
        given = [part / _MILLION for part in impairment.loss_gemodel_ppm]
        to_bad, to_good, bad_loss, good_loss = [*given, *(1 - given[0], 1.0, 0.0)[len(given) - 1 :]]
        return 2, (good_loss, bad_loss), ((1 - to_bad, to_bad), (to_good, 1 - to_good))
    if impairment.loss_state_ppm:
        given = [part / _MILLION for part in impairment.loss_state_ppm]
        p13, p31, p32, p23, p14 = [*given, *(1 - given[0], 0.0, 1.0, 0.0)[len(given) - 1 :]]
        steps = (
            (1 - p13 - p14, 0.0, p13, p14),
            (0.0, 1 - p23, p23, 0.0),
            (p31, p32, 1 - p31 - p32, 0.0),
            (1.0, 0.0, 0.0, 0.0),
        )
        return 4, (0.0, 0.0, 1.0, 1.0), steps
    return 1, (impairment.loss_ppm / _MILLION,), ((1.0,),)


def _settled(steps: Sequence[Sequence[float]], states: int) -> list[float]:
    """The share of time in each state, begun in the first. Halfway steps settle a chain that would swing for ever."""
    many = [[(part + (row == state)) / 2 for state, part in enumerate(steps[row])] for row in range(states)]
    for _ in range(_DOUBLINGS):
        many = [[part / sum(row) for part in row] for row in _product(many, many)]
    return many[0]


# By hand: in User-Mode Linux, where tests import this, numpy does not start (its log of 2 is 0).


def _product(one: Sequence[Sequence[float]], other: Sequence[Sequence[float]]) -> list[list[float]]:
    return [[_mean(row, column) for column in zip(*other, strict=True)] for row in one]


def _applied(chain: Sequence[Sequence[float]], values: Sequence[float]) -> list[float]:
    return [_mean(row, values) for row in chain]


def _mean(parts: Sequence[float], values: Sequence[float]) -> float:
    return sum(part * value for part, value in zip(parts, values, strict=True))
