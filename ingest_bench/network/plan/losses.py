"""What share of packets an impairment loses, and how sure a count of them is. Pure."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ingest_bench.model.network import Impairment

_MILLION = 10**6
_Z99 = NormalDist().inv_cdf(0.995)
# A chain is followed for 2 to the power of so many packets: one in a million changes a state, if any does.
_DOUBLINGS = 40


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
    arrives = 1 - float(_settled(steps, states) @ np.array(lost))
    return 1 - arrives * (1 - impairment.corrupt_ppm / _MILLION)


def variance_factor(impairment: Impairment) -> float:
    """How much more a count of lost packets scatters than that of independent losses: bursts make it more than 1."""
    states, lost, steps = _chain(impairment)
    settled, chain, apart = _settled(steps, states), np.array(steps), np.array(lost)
    mean = float(settled @ apart)
    if not 0 < mean < 1 or states == 1:
        return 1.0
    apart -= mean
    # The sum of the correlations between a packet and all after it, by the chain's fundamental matrix (Kemeny and Snell
    # 1960, "Finite Markov Chains").
    later = np.linalg.lstsq(np.eye(states) - chain + np.outer(np.ones(states), settled), apart, rcond=None)[0]
    total = float((settled * np.array(lost)) @ (later - apart))
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


def _settled(steps: Sequence[Sequence[float]], states: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The share of time in each state, begun in the first. Halfway steps settle a chain that would swing for ever."""
    many = (np.eye(states) + np.array(steps)) / 2
    for _ in range(_DOUBLINGS):
        many = many @ many
        many /= many.sum(axis=1, keepdims=True)
    found: np.ndarray[Any, np.dtype[np.float64]] = many[0]
    return found
