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
_CHAIN_STEPS = 4096


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
    arrives = 1 - sum(part * loss for part, loss in zip(_settled(steps, states), lost, strict=True))
    return 1 - arrives * (1 - impairment.corrupt_ppm / _MILLION)


def variance_factor(impairment: Impairment) -> float:
    """How much more a count of lost packets scatters than that of independent losses: bursts make it more than 1."""
    states, lost, steps = _chain(impairment)
    settled = _settled(steps, states)
    mean = sum(part * loss for part, loss in zip(settled, lost, strict=True))
    if not 0 < mean < 1 or states == 1:
        return 1.0
    # The sum of the correlations between a packet and those after it.
    weights = [part * loss for part, loss in zip(settled, lost, strict=True)]
    total = 0.0
    for _ in range(_CHAIN_STEPS):
        weights = _step(weights, steps)
        after = sum(weight * loss for weight, loss in zip(weights, lost, strict=True)) - mean * mean
        total += after
        if abs(after) < 1e-12:
            break
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
    """The share of time in each state. Halfway steps settle a chain that would swing for ever, too."""
    parts = [1.0, *[0.0] * (states - 1)]
    for _ in range(_CHAIN_STEPS * 4):
        after = [(old + new) / 2 for old, new in zip(parts, _step(parts, steps), strict=True)]
        if max(abs(old - new) for old, new in zip(parts, after, strict=True)) < 1e-13:
            break
        parts = after
    return parts


def _step(parts: Sequence[float], steps: Sequence[Sequence[float]]) -> list[float]:
    return [sum(part * row[state] for part, row in zip(parts, steps, strict=True)) for state in range(len(parts))]
