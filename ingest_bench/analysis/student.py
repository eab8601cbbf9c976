"""Student's t: quantiles, p values, intervals of a ratio, and the power of Welch's test.

scipy is imported on first use: that takes 0.2 s, and most commands compare nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
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


def p_value(freedom: float, t: float) -> float:
    """Return the probability that |T| exceeds |*t*|."""
    from scipy import special  # noqa: PLC0415

    return float(2 * special.stdtr(freedom, -abs(t)))


def quantile(freedom: float, probability: float) -> float:
    """Return the t that T stays below with this probability."""
    from scipy import special  # noqa: PLC0415

    return float(special.stdtrit(freedom, probability))


def ratio_interval(
    estimate: float, deviation: Callable[[float], tuple[float, float]], confidence: float
) -> tuple[float, float]:
    """Return the interval of `second / first`, two uncertain means of a quantity that is never negative.

    Fieller's method (1954, "Some problems in interval estimation"): a ratio is inside if Student's t does not
    distinguish `second` from `ratio * first`. *deviation* returns the standard error of `second - ratio * first`, as a
    share of `first`, and its degrees of freedom. The upper end is infinite if `first` is not distinguishable from 0. If
    "no change" (1) is outside, nothing beyond it is inside.
    """
    from scipy import optimize  # noqa: PLC0415

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
        return float(optimize.brentq(excess, *ratios[last : last + 2])) if last + 1 < len(ratios) else ratios[-1]

    # The inside may have a gap, because the degrees of freedom change with the ratio: the outermost end counts.
    steps = [4.0**power for power in range(1, _STEPS)]
    lower = [estimate, *sorted(ratio for ratio in (1.0, *(size / step for step in steps)) if ratio < estimate)[::-1], 0]
    upper = [neighbour, *sorted(ratio for ratio in (1.0, *(size * step for step in steps)) if ratio > neighbour)]
    unbounded = upper[-1]
    if excess(1.0) > 0:
        lower, upper = (ratios[: ratios.index(1.0) + 1] if 1.0 in ratios else ratios for ratios in (lower, upper))
    high = end(upper)
    return min(end(lower), estimate), math.inf if high == unbounded else high


@dataclass(frozen=True, slots=True, kw_only=True)
class WelchTest:
    """A planned two-sided Welch test with `runs` per side and a previous estimate of the noise."""

    runs: int
    level: float
    """Probability of a difference being reported where there is none."""
    noise_freedom: float
    """Degrees of freedom of the noise estimate. Fewer require a larger effect, because the noise may be larger."""
    first_share: float = 0.5
    """The first side's share of the variance of the difference of two runs."""

    def power(self, effect: float) -> float:
        """Return the probability of detecting a difference of *effect* estimated standard deviations."""
        from scipy import special  # noqa: PLC0415

        threshold, weights = _thresholds(self)
        noise, noise_weights = _variances(self.noise_freedom)
        shift = effect * math.sqrt(self.runs) * np.sqrt(noise)
        powers = special.ndtr(shift - threshold[:, None]) + special.ndtr(-shift - threshold[:, None])
        return float(weights @ powers @ noise_weights)


@lru_cache(maxsize=4096)
def min_effect(test: WelchTest, power: float) -> float:
    """Return the smallest effect that the test detects with this power."""
    from scipy import optimize  # noqa: PLC0415

    upper = 1.0
    while test.power(upper) < power:
        upper *= 2
    return float(optimize.brentq(lambda effect: test.power(effect) - power, 0.0, upper))


@lru_cache(maxsize=256)
def _thresholds(test: WelchTest) -> tuple[_Floats, _Floats]:
    """Return thresholds for the difference of the means in units of the true noise, and their weights.

    Thresholds depend on both sample variances; given these, the difference is normal and independent of them.
    """
    from scipy import special  # noqa: PLC0415

    freedom = test.runs - 1
    variances, weights = _variances(freedom)
    first, second = test.first_share * variances[:, None], (1 - test.first_share) * variances[None, :]
    welch = freedom * (first + second) ** 2 / (first**2 + second**2)
    threshold = special.stdtrit(welch, 1 - test.level / 2) * np.sqrt(first + second)
    return threshold.ravel(), np.outer(weights, weights).ravel()


def _variances(freedom: float) -> tuple[_Floats, _Floats]:
    """Return sample variances of a normal distribution with variance 1, and their weights."""
    from scipy import special  # noqa: PLC0415

    places, weights = np.polynomial.legendre.leggauss(_NODES)
    return special.chdtri(freedom, (1 - places) / 2) / freedom, weights / 2
