"""Student's t: quantiles, p values, intervals of a ratio, and the power of Welch's test."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

_Floats = np.ndarray[Any, np.dtype[np.float64]]

# Powers of 4 of the estimate: a ratio above 4^20 times it counts as unbounded.
_STEPS = 21
# A narrower interval, relative to the estimate, is a point.
_ROUNDING = 1e-9
# Nodes that represent a chi-square distribution (Gauss-Legendre over its quantiles).
_NODES = 24


def _scipy() -> Any:
    """Return scipy, imported on first use: that takes 0.2 s, and most commands compare nothing."""
    import scipy  # noqa: PLC0415

    return scipy


def p_value(freedom: float, t: float) -> float:
    """Return the probability that |T| exceeds |*t*|."""
    return float(2 * _scipy().special.stdtr(freedom, -abs(t)))


def quantile(freedom: float, probability: float) -> float:
    """Return the t that T stays below with this probability."""
    return float(_scipy().special.stdtrit(freedom, probability))


def ratio_interval(
    estimate: float, deviation: Callable[[float], tuple[float, float]], confidence: float
) -> tuple[float, float]:
    """Return the interval of `second / first`, two uncertain means of a quantity that is never negative.

    Fieller's method (1954, "Some problems in interval estimation"): a ratio is inside if Student's t does not
    distinguish `second` from `ratio * first`. *deviation* returns the standard error of `second - ratio * first`, as a
    share of `first`, and its degrees of freedom. The upper end is infinite if `first` is not distinguishable from 0. If
    "no change" (1) is outside, nothing beyond it is inside.
    """

    def excess(ratio: float) -> float:
        error, freedom = deviation(ratio)
        return (estimate - ratio) ** 2 - (quantile(freedom, (1 + confidence) / 2) * error) ** 2

    size = max(abs(estimate), _ROUNDING)
    neighbour = estimate + _ROUNDING * size
    if excess(neighbour) >= 0:
        return estimate, estimate

    def end(ratios: list[float]) -> float:
        """Return where the interval ends among *ratios*; the last of them if it does not end."""
        last = max((place for place, ratio in enumerate(ratios) if excess(ratio) <= 0), default=0)
        is_unbounded = last + 1 == len(ratios)
        return ratios[-1] if is_unbounded else float(_scipy().optimize.brentq(excess, *ratios[last : last + 2]))

    # The inside may have a gap, because the degrees of freedom change with the ratio: the outermost end counts.
    steps = [4.0**power for power in range(1, _STEPS)]
    lower = [estimate, *sorted(ratio for ratio in (1.0, *(size / step for step in steps)) if ratio < estimate)[::-1], 0]
    upper = [neighbour, *sorted(ratio for ratio in (1.0, *(size * step for step in steps)) if ratio > neighbour)]
    unbounded = upper[-1]
    if excess(1.0) > 0:
        lower, upper = (ratios[: ratios.index(1.0) + 1] if 1.0 in ratios else ratios for ratios in (lower, upper))
    high = end(upper)
    return min(end(lower), estimate), math.inf if high == unbounded else high


def welch_power(effect: float, runs: int, *, level: float, noise_freedom: float, first_share: float = 0.5) -> float:
    """Return the probability that a two-sided Welch test detects a difference of *effect* standard deviations.

    The test has *runs* per side, and reports a difference where there is none with probability *level*. The standard
    deviation is an estimate with *noise_freedom* degrees of freedom: with fewer, the noise may be larger. *first_share*
    is the first side's share of the variance of the difference of two runs.
    """
    threshold, weights = _thresholds(runs, level, first_share)
    noise, noise_weights = _variances(noise_freedom)
    shift = effect * math.sqrt(runs) * np.sqrt(noise)
    ndtr = _scipy().special.ndtr
    powers = ndtr(shift - threshold[:, None]) + ndtr(-shift - threshold[:, None])
    return float(weights @ powers @ noise_weights)


@lru_cache(maxsize=4096)
def min_effect(power: float, runs: int, *, level: float, noise_freedom: float) -> float:
    """Return the smallest effect that the test of `welch_power` detects with this power."""

    def excess(effect: float) -> float:
        return welch_power(effect, runs, level=level, noise_freedom=noise_freedom) - power

    upper = 1.0
    while excess(upper) < 0:
        upper *= 2
    return float(_scipy().optimize.brentq(excess, 0.0, upper))


@lru_cache(maxsize=256)
def _thresholds(runs: int, level: float, first_share: float) -> tuple[_Floats, _Floats]:
    """Return thresholds for the difference of the means in units of the true noise, and their weights.

    Thresholds depend on both sample variances; given these, the difference is normal and independent of them.
    """
    freedom = runs - 1
    variances, weights = _variances(freedom)
    first, second = first_share * variances[:, None], (1 - first_share) * variances[None, :]
    welch = freedom * (first + second) ** 2 / (first**2 + second**2)
    threshold = _scipy().special.stdtrit(welch, 1 - level / 2) * np.sqrt(first + second)
    return threshold.ravel(), np.outer(weights, weights).ravel()


def _variances(freedom: float) -> tuple[_Floats, _Floats]:
    """Return sample variances of a normal distribution with variance 1, and their weights."""
    places, weights = np.polynomial.legendre.leggauss(_NODES)
    return _scipy().special.chdtri(freedom, (1 - places) / 2) / freedom, weights / 2
