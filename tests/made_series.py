"""Generated series of rates with a known end of the warm-up: 30 s in 400 values.

The warm-up of a ramp or a step ends at its corner, also with a stall or a sawtooth. That of an exponential approach
ends where 5% of the level are left. A sawtooth, such as that of a garbage collector, is steady from its start. A series
that drifts by a fifth or more until its end is never steady (None).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

LENGTH_S, VALUES = 30.0, 400
NOISE = 0.08
_Floats = np.ndarray[Any, np.dtype[np.float64]]
_Random = np.random.Generator
AT_S = (np.arange(VALUES) + 0.5) * LENGTH_S / VALUES


def flat(_: _Random) -> tuple[_Floats, float | None]:
    return np.ones(VALUES), 0.0


def ramp(random: _Random) -> tuple[_Floats, float | None]:
    ends_s, first = random.uniform(2, 10), random.uniform(0.1, 0.5)
    return np.minimum(1, first + (1 - first) * AT_S / ends_s), ends_s


def exponential(random: _Random) -> tuple[_Floats, float | None]:
    ends_s, first = random.uniform(2, 10), random.uniform(0.1, 0.5)
    constant_s = ends_s / np.log((1 - first) / 0.05)
    return 1 - (1 - first) * np.exp(-AT_S / constant_s), ends_s


def step(random: _Random) -> tuple[_Floats, float | None]:
    ends_s = random.uniform(2, 10)
    return np.where(ends_s > AT_S, random.uniform(0.2, 0.7), 1.0), ends_s


def sawtooth(random: _Random) -> tuple[_Floats, float | None]:
    period_s, size, phase = random.uniform(0.5, 3), random.uniform(0.1, 0.4), random.uniform()
    return 1 - size * ((AT_S / period_s + phase) % 1), 0.0


def drift(random: _Random) -> tuple[_Floats, float | None]:
    size = random.uniform(0.2, 0.6) * random.choice([-1, 1])
    return 1 + size * AT_S / LENGTH_S, None


def ramp_and_drift(random: _Random) -> tuple[_Floats, float | None]:
    values, ends_s = ramp(random)
    assert ends_s is not None
    size = random.uniform(0.25, 0.6) * random.choice([-1, 1])
    return values * (1 + size * np.maximum(AT_S - ends_s, 0) / (LENGTH_S - ends_s)), None


def ramp_and_sawtooth(random: _Random) -> tuple[_Floats, float | None]:
    values, ends_s = ramp(random)
    return values * sawtooth(random)[0], ends_s


def stalled(of: Callable[[_Random], tuple[_Floats, float | None]]) -> Callable[[_Random], tuple[_Floats, float | None]]:
    """Return the family with one stall of 1 to 3 s at any time, during which the rate is below 30%."""

    def with_stall(random: _Random) -> tuple[_Floats, float | None]:
        values, truth_s = of(random)
        begins_s, lasts_s = random.uniform(1, LENGTH_S - 4), random.uniform(1, 3)
        stands = (begins_s <= AT_S) & (begins_s + lasts_s > AT_S)
        return np.where(stands, values * random.uniform(0, 0.3), values), truth_s

    return with_stall


FAMILIES: dict[str, Callable[[_Random], tuple[_Floats, float | None]]] = {
    "flat": flat,
    "ramp": ramp,
    "exponential": exponential,
    "step": step,
    "stall": stalled(flat),
    "ramp and stall": stalled(ramp),
    "exponential and stall": stalled(exponential),
    "sawtooth": sawtooth,
    "ramp and sawtooth": ramp_and_sawtooth,
    "drift": drift,
    "ramp and drift": ramp_and_drift,
}


def noisy(values: _Floats, random: _Random, noise: float = NOISE) -> list[float]:
    """Return 1,000 times the values with relative noise, at least 0."""
    rates: list[float] = (1000 * np.maximum(values * (1 + noise * random.standard_normal(len(values))), 0)).tolist()
    return rates
