"""Student's t distribution, for intervals from a handful of runs. Small enough to not need a statistics package."""

from __future__ import annotations

from functools import cache
from math import atan, cos, exp, lgamma, log, pi

_STEPS = 200


def probability(t: float, degrees: float) -> float:
    """The probability that |T| <= t with so many degrees of freedom, within 1e-7.

    Simpson's rule on the density, with t = tan(angle): that makes the tail finite, also for 1 degree.
    """
    if t <= 0:
        return 0.0
    scale = degrees**0.5
    constant: float = 2 * exp(lgamma((degrees + 1) / 2) - lgamma(degrees / 2) - log(pi) / 2)
    # With t = sqrt(degrees) * tan(a) the density becomes constant * cos(a)^(degrees - 1).
    end = atan(t / scale)
    width = end / _STEPS
    total: float = 1.0 + cos(end) ** (degrees - 1)
    total += sum((4 if step % 2 else 2) * cos(step * width) ** (degrees - 1) for step in range(1, _STEPS))
    return min(1.0, constant * total * width / 3)


@cache
def quantile(confidence: float, degrees: float) -> float:
    """The t with that probability of |T| <= t: 4.303 for 0.95 and 2 degrees."""
    low, high = 0.0, 1.0
    while probability(high, degrees) < confidence:
        high *= 2
    for _ in range(45):
        middle = (low + high) / 2
        low, high = (middle, high) if probability(middle, degrees) < confidence else (low, middle)
    return (low + high) / 2
