"""Histories of nights, made up with steps that are known: what the search for steps is tried on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

NIGHTS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    values: list[float]
    places: list[int]
    """The first night of each new level."""
    shares: list[float]
    """Of the level before it."""


def histories(
    count: int, seed: int, steps: tuple[int, ...], sizes: tuple[float, float] | None = None
) -> Iterator[Made]:
    """So many histories with noise of 2 to 10%; half have a straight drift of 5 to 20%, half one to three odd nights.

    The numbers of steps come in turn. `sizes`: the least and the greatest, as shares; None: three standard deviations.
    """
    random = np.random.default_rng(seed)
    for number in range(count):
        noise = float(random.uniform(0.02, 0.1))
        turn = number // len(steps)
        yield _made(random, steps[number % len(steps)], noise, sizes, drifts=turn % 2 == 1, odd=turn // 2 % 2 == 1)


def _made(random: Any, steps: int, noise: float, sizes: tuple[float, float] | None, *, drifts: bool, odd: bool) -> Made:
    level = np.ones(NIGHTS)
    if drifts:
        level *= 1 + random.choice([-1, 1]) * random.uniform(0.05, 0.2) * np.linspace(0, 1, NIGHTS)
    places: list[int] = []
    if steps:
        places = [int(random.integers(6, NIGHTS - 5 if steps == 1 else NIGHTS - 24))]
    if steps == 2:
        places.append(int(random.integers(places[0] + 12, NIGHTS - 6)))
    shares = [float(random.choice([-1, 1])) * (float(random.uniform(*sizes)) if sizes else 3 * noise) for _ in places]
    for place, share in zip(places, shares, strict=True):
        level[place:] *= 1 + share
    values = level * (1 + noise * random.standard_normal(NIGHTS))
    if odd:
        for place in random.choice(NIGHTS, int(random.integers(1, 4)), replace=False):
            values[place] *= 1 + random.choice([-1, 1]) * random.uniform(0.3, 0.6)
    return Made(values=values.tolist(), places=places, shares=shares)
