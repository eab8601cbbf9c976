"""Student's t: quantiles, p values, intervals of a ratio, and the power of Welch's test. Pure.

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

# Powers of 4 of the estimate: a ratio above 4^20 times it is not bounded.
_STEPS = 21
# An interval that is narrower than that, as a share, is a point.
_ROUNDING = 1e-9
# Values that stand for a chi-square distribution (Gauss-Legendre over its quantiles).
_NODES = 24


def p_value(freedom: float, t: float) -> float:
    """How often |T| is larger than that."""
    from scipy import special  # noqa: PLC0415

    return float(2 * special.stdtr(freedom, -abs(t)))


def quantile(freedom: float, share: float) -> float:
    """The t that T stays below with that probability."""
    from scipy import special  # noqa: PLC0415

    return float(special.stdtrit(freedom, share))


def ratio_interval(
    estimate: float, deviation: Callable[[float], tuple[float, float]], confidence: float
) -> tuple[float, float]:
    """Return the interval of `second / first`, two means of a quantity that is never negative, both uncertain.

    Fieller's method (1954, "Some problems in interval estimation"): a ratio is inside where Student's t does not tell
    `second` from `ratio * first`. *deviation* returns the standard error of `second - ratio * first`, as a share of
    `first`, and its degrees of freedom. The upper end is infinite where `first` cannot be told from 0. If "no change"
    (1) is outside, nothing beyond it is inside.
    """
    from scipy import optimize  # noqa: PLC0415

    def excess(ratio: float) -> float:
        error, freedom = deviation(ratio)
        return (estimate - ratio) ** 2 - (quantile(freedom, (1 + confidence) / 2) * error) ** 2

    size = max(abs(estimate), _ROUNDING)
    beside = estimate + _ROUNDING * size
    if excess(beside) >= 0:
        return estimate, estimate

    def end(ratios: list[float]) -> float:
        """Return where the interval ends among these, the last of them if it does not."""
        last = max((place for place, ratio in enumerate(ratios) if excess(ratio) <= 0), default=0)
        return float(optimize.brentq(excess, *ratios[last : last + 2])) if last + 1 < len(ratios) else ratios[-1]

    # What is inside may have a gap, as the degrees of freedom change with the ratio: the outermost end counts.
    steps = [4.0**power for power in range(1, _STEPS)]
    lower = [estimate, *sorted(ratio for ratio in (1.0, *(size / step for step in steps)) if ratio < estimate)[::-1], 0]
    upper = [beside, *sorted(ratio for ratio in (1.0, *(size * step for step in steps)) if ratio > beside)]
    unbounded = upper[-1]
    if excess(1.0) > 0:
        lower, upper = (ratios[: ratios.index(1.0) + 1] if 1.0 in ratios else ratios for ratios in (lower, upper))
    high = end(upper)
    return min(end(lower), estimate), math.inf if high == unbounded else high


@dataclass(frozen=True, slots=True, kw_only=True)
class WelchTest:
    """A planned two-sided Welch test of `runs` on each side, for which the noise was estimated beforehand."""

    runs: int
    level: float
    """Share of tests that may find a difference where there is none."""
    noise_freedom: float
    """Degrees of freedom of the estimate of the noise. Few of them ask for a larger effect: the noise may be larger."""
    first_share: float = 0.5
    """The first side's share of the variance of the difference of two runs."""

    def power(self, effect: float) -> float:
        """Return how often the test finds a difference of `effect` estimated standard deviations of one difference."""
        from scipy import special  # noqa: PLC0415

        threshold, weights = _thresholds(self)
        noise, noise_weights = _variances(self.noise_freedom)
        shift = effect * math.sqrt(self.runs) * np.sqrt(noise)
        powers = special.ndtr(shift - threshold[:, None]) + special.ndtr(-shift - threshold[:, None])
        return float(weights @ powers @ noise_weights)


@lru_cache(maxsize=4096)
def least_effect(test: WelchTest, power: float) -> float:
    """Return the least effect that the test finds with that power."""
    from scipy import optimize  # noqa: PLC0415

    most = 1.0
    while test.power(most) < power:
        most *= 2
    return float(optimize.brentq(lambda effect: test.power(effect) - power, 0.0, most))


@lru_cache(maxsize=256)
def _thresholds(test: WelchTest) -> tuple[_Floats, _Floats]:
    """Return the thresholds of the difference of the means, where true noise is 1, and the weight of each.

    Both sample variances decide it; given these, the difference is normal, and independent of them.
    """
    from scipy import special  # noqa: PLC0415

    freedom = test.runs - 1
    variances, weights = _variances(freedom)
    ones, others = test.first_share * variances[:, None], (1 - test.first_share) * variances[None, :]
    welch = freedom * (ones + others) ** 2 / (ones**2 + others**2)
    threshold = special.stdtrit(welch, 1 - test.level / 2) * np.sqrt(ones + others)
    return threshold.ravel(), np.outer(weights, weights).ravel()


def _variances(freedom: float) -> tuple[_Floats, _Floats]:
    """Return sample variances of a normal distribution with variance 1, and the weight of each."""
    from scipy import special  # noqa: PLC0415

    places, weights = np.polynomial.legendre.leggauss(_NODES)
    return special.chdtri(freedom, (1 - places) / 2) / freedom, weights / 2
