"""Where the level of a history of numbers changed, one number a night. Pure.

A history is a straight line with steps: the line is a slow drift of the machine, which nobody changed. Steps are added
one by one where they explain most, moved to where they fit best beside the others, and taken away again, the weakest
first, until each has a p value (Student's t in the joint model) that is below the level, divided by the places where
it could be, and is still there without the two nights that show it most. A night that lies four standard deviations
from that model alone counts nowhere. Where a straight line or a curve of second or third degree explains the history as
well (Bayes' information criterion), it is a drift. From 20 nights on errors are larger by what the correlation of a
night with the one before makes of them (AR(1)).

Tried on 100 made-up histories of 60 nights (99 steps of 3 to 30%, noise of 2 to 10%, odd nights, straight drifts) this
finds 57 steps within one night and says 7 that are none; of 200 histories without a step 3 have one. Rejected for what
they make of drifts: PELT (`ruptures`, l2, penalty 3 ln n: 59 found, 132 that are none, 117 of 200), also with odd
nights calmed and twice the penalty (57, 31, 53), binary segmentation with Student's t (52, 42, 63), and e-divisive with
permutations (63, 65, 86). Of single steps of three standard deviations this finds 95%, of two in one history 81%, and
of steps of six in 6, 8 and 12 nights 69, 86 and 95%. Two odd nights at an end are a step in at most 4% of histories, a
straight drift in at most 7% (6 to 60 nights, each 2 to 10 times the noise). Nights with a correlation of 0.5 still have
a false step in 2 to 9% of histories with fewer than 20 nights, and in 15 to 25% of longer ones; it was 10 to 57%.
A drift that turns within the nights (a sine, one to three times the noise from top to bottom) is still called a step in
44% of histories; without the curves it was 79%. Of the intervals, which are of the place that was chosen, 93% hold.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingest_bench.analysis.numbers import student

_Floats = np.ndarray[Any, np.dtype[np.float64]]
_Indices = np.ndarray[Any, np.dtype[np.intp]]
_Places = Sequence[int]

LEVEL = 0.05
_CONFIDENCE = 0.95
# Of the largest number: less than that is left by rounding.
_ROUNDING = 1e-9
FEWEST_NIGHTS = 6
# On each side of a step, and between two. One or two nights that are odd are no new level.
LEAST_NIGHTS = 3
# A step beside a slope takes many nights to be seen: with fewer there is no slope. With fewer than the second number a
# curve of second or third degree would explain any step.
_SLOPE_FROM, _CURVES_FROM = 20, 12
# How much better, by Bayes' criterion, steps must explain a history without a slope than a straight drift does.
_BETTER = 5.0
# The correlation of a night with the one before it counts where it is clear at 5%. More than this is a step not found.
_CLEAR, _MOST_CORRELATED = 1.645, 0.8
_MOST_STEPS = 4
# Of a step that is tried at all, and of one that is left without the nights that show it most.
_LEAST_T = 2.5
# Standard deviations from the nights around it, and from the model, beyond which a night is odd.
_AROUND, _ODD = 3.0, 4.0
# The median of |x| of a normal distribution is 0.6745 of its standard deviation.
_BY_MEDIAN = 1.4826


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A change of the level, and how sure it is."""

    place: int
    """Of the first night that has the new level."""
    before: float
    """The level just before it, without the noise."""
    size: float
    error: float
    """The standard error of the size."""
    freedom: float
    """Its degrees of freedom."""
    relative: tuple[float, float] | None
    """The 95% interval of the size as a share of the level before; None where that is not above 0."""
    p_value: float
    """How often a history without a step would show one as clear anywhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The steps of a history, in order, and what it looks like without its noise."""

    steps: tuple[Step, ...]
    line: tuple[float, ...]
    """Of each night: the drift and the steps."""
    odd: tuple[int, ...]
    """The nights that counted nowhere."""


def find(values: Sequence[float], *, level: float = LEVEL, least_spread: float = 0.0) -> Found:
    """The steps of a history that has at least 6 nights.

    `level` is how often a history without any may have one. The standard deviation of its noise is taken to be at
    least `least_spread`, as that of counts is.
    """
    # As shares of the largest: whatever a file says, squares stay finite.
    unit = max(abs(value) for value in values) or 1.0
    x = np.asarray(values, dtype=np.float64) / unit
    least = max(least_spread / unit, _ROUNDING)
    degree = 1 if len(x) >= _SLOPE_FROM else 0
    all_nights = np.arange(len(x), dtype=np.float64)
    calm = _Model(all_nights, _calmed(x), degree, least)
    away = np.abs(x - calm.line(calm.steps(LEVEL), all_nights))
    kept = np.flatnonzero(away <= _ODD * max(_spread(away), least))
    if len(kept) < FEWEST_NIGHTS:
        kept = np.arange(len(x))
    model = _Model(all_nights[kept], x[kept], degree, least)
    places = model.steps(level)
    if places and model.is_drift(places):
        places = []
    return Found(
        steps=tuple(model.step(place, places, night=int(kept[place]), unit=unit) for place in places),
        line=tuple((model.line(places, all_nights) * unit).tolist()),
        odd=tuple(sorted(set(range(len(x))) - set(kept.tolist()))),
    )


class _Model:
    """A history as a polynomial in time and steps; places are those of its own nights."""

    def __init__(self, nights: _Floats, values: _Floats, degree: int, least_spread: float) -> None:
        self._nights, self._values = nights, values
        self._degree, self._least = degree, least_spread

    def steps(self, level: float) -> list[int]:
        """The places of all steps that are surer than that."""
        places: list[int] = []
        while len(places) < _MOST_STEPS and (best := self._best(places)) and best[1] >= _LEAST_T:
            places.append(best[0])
        while places:
            self._settle(places)
            p_values = [
                self._p_value(place, _without(places, place)) if self._is_level(place, places) else 1.0
                for place in places
            ]
            if max(p_values) <= level:
                break
            places.pop(p_values.index(max(p_values)))
        return sorted(places)

    def _is_level(self, place: int, places: _Places) -> bool:
        """Return True if the step remains without the two nights of either side that show it most.

        Only nights up to the next steps are left out.
        """
        begin = max((other for other in places if other < place), default=0)
        end = min((other for other in places if other > place), default=len(self._values))
        sizes, _, _ = self._sizes([place], _without(places, place))
        sign = float(np.sign(sizes[0]))
        upwards = np.argsort(self._values * sign, kind="stable")
        before = upwards[(upwards >= begin) & (upwards < place)][:2]
        after = upwards[(upwards >= place) & (upwards < end)][-2:]
        return all(self._t_without(nights, place, places) * sign >= _LEAST_T for nights in (before, after))

    def _t_without(self, nights: _Indices, place: int, places: _Places) -> float:
        """Return Student's t of that step without these nights."""
        kept = np.setdiff1d(np.arange(len(self._values)), nights)
        model = _Model(self._nights[kept], self._values[kept], self._degree, self._least)
        own, *others = np.searchsorted(kept, [place, *_without(places, place)]).tolist()
        sizes, errors, _ = model._sizes([own], others)
        return float(sizes[0] / errors[0])

    def is_drift(self, places: _Places) -> bool:
        """Whether a curve without steps explains it better, for what it takes; a step takes a place and a size."""
        with_steps = self._criterion(self._degree, places)
        most = 3 if len(self._values) >= _CURVES_FROM else 1
        return any(
            self._criterion(degree, ()) < with_steps + (_BETTER if degree == 1 else 0.0)
            for degree in range(self._degree + 1, most + 1)
        )

    def step(self, place: int, places: _Places, *, night: int, unit: float) -> Step:
        """One of its steps, with its size beside the others; `night` and `unit` are those of the whole history."""
        others = _without(places, place)
        sizes, errors, freedom = self._sizes([place], others)
        after = float((self._base(self._nights[[place]], self._degree, places) @ self._solved(places))[0])
        before, error = after - float(sizes[0]), float(errors[0]) * self._correlated(places)
        return Step(
            place=night,
            before=before * unit if abs(before) > _ROUNDING else 0.0,
            size=float(sizes[0]) * unit,
            error=error * unit,
            freedom=freedom,
            relative=self._relative(place, places, error, freedom),
            p_value=self._p_value(place, others),
        )

    def _relative(self, place: int, places: _Places, error: float, freedom: float) -> tuple[float, float] | None:
        """Return the interval of a step as a share of the level before it; *error* is that of its size."""
        after = self._base(self._nights[[place]], self._degree, places)[0]
        before = after.copy()
        before[self._degree + 1 + list(places).index(place)] = 0
        solved = self._solved(places)
        first, second = float(before @ solved), float(after @ solved)
        if first <= _ROUNDING or second < 0:
            return None
        weights = np.linalg.pinv(self._base(self._nights, self._degree, places))
        spread = error / float(np.linalg.norm((after - before) @ weights))

        def deviation(ratio: float) -> tuple[float, float]:
            return spread / first * float(np.linalg.norm((after - ratio * before) @ weights)), freedom

        low, high = student.ratio_interval(second / first, deviation, _CONFIDENCE)
        return low - 1, high - 1

    def line(self, places: _Places, nights: _Floats) -> _Floats:
        """What it says of these nights."""
        found: _Floats = self._base(nights, self._degree, places) @ self._solved(places)
        return found

    def _base(self, nights: _Floats, degree: int, places: _Places) -> _Floats:
        """A row for each night: the powers of time, and whether it is at or after each step."""
        middle, half = self._nights.mean(), max(float(np.ptp(self._nights)) / 2, 1.0)
        powers = np.vander((nights - middle) / half, degree + 1)
        found: _Floats = np.column_stack(
            [powers, *((nights >= self._nights[place]).astype(np.float64) for place in places)]
        )
        return found

    def _solved(self, places: _Places) -> _Floats:
        base = self._base(self._nights, self._degree, places)
        return np.asarray(np.linalg.lstsq(base, self._values, rcond=None)[0], dtype=np.float64)

    def _sizes(self, places: _Places, beside: _Places) -> tuple[_Floats, _Floats, int]:
        """Of each of these steps alone beside the others: its size, the standard error, and degrees of freedom."""
        base = self._base(self._nights, self._degree, beside)
        free, _ = np.linalg.qr(base)
        rest = self._values - free @ (free.T @ self._values)
        steps = (self._nights[:, None] >= self._nights[list(places)][None, :]).astype(np.float64)
        steps -= free @ (free.T @ steps)
        # A step that the others already make has none of its own.
        own = np.maximum((steps**2).sum(axis=0), 1e-12)
        sizes = steps.T @ rest / own
        freedom = len(self._values) - base.shape[1] - 1
        left = np.maximum(float(rest @ rest) - sizes**2 * own, 0.0)
        spread = np.maximum(np.sqrt(left / freedom), max(self._least, 1e-300))
        return sizes, spread / np.sqrt(own), freedom

    def _free_places(self, beside: _Places) -> list[int]:
        places = range(LEAST_NIGHTS, len(self._values) - LEAST_NIGHTS + 1)
        return [place for place in places if all(abs(place - other) >= LEAST_NIGHTS for other in beside)]

    def _best(self, beside: _Places) -> tuple[int, float] | None:
        """Where one more step explains most, and its t; None where there is no room for one."""
        places = self._free_places(beside)
        if not places or len(self._values) - self._degree - len(beside) < LEAST_NIGHTS + 1:
            return None
        sizes, errors, _ = self._sizes(places, beside)
        found = np.abs(sizes) / errors
        best = int(found.argmax())
        return places[best], float(found[best])

    def _settle(self, places: list[int]) -> None:
        """Move each to where it fits best beside the others, until none moves."""
        for _ in range(5):
            before = list(places)
            for number, place in enumerate(before):
                best = self._best(_without(places, places[number]))
                places[number] = best[0] if best else place
            if places == before:
                return

    def _p_value(self, place: int, beside: _Places) -> float:
        """How often any place would have a step like this, at most (Bonferroni)."""
        sizes, errors, freedom = self._sizes([place], beside)
        tried = len(self._values) - 2 * LEAST_NIGHTS + 1
        t = float(sizes[0] / errors[0]) / self._correlated([*beside, place])
        return min(1.0, student.p_value(freedom, t) * tried)

    def _correlated(self, places: _Places) -> float:
        """Return how many times larger errors are, as a night resembles the one before it (AR(1)); 1 if it does not.

        What is left of the history has less correlation than the history had; each fitted number takes 1/n of it.
        """
        left = self._values - self._base(self._nights, self._degree, places) @ self._solved(places)
        nights, squares = len(left), float(left @ left)
        if not squares or nights < _SLOPE_FROM:
            return 1.0
        estimate = float(left[1:] @ left[:-1]) / squares + (self._degree + 1 + 2 * len(places)) / nights
        if estimate < _CLEAR / math.sqrt(nights):
            return 1.0
        correlation = min(estimate, _MOST_CORRELATED)
        return math.sqrt((1 + correlation) / (1 - correlation))

    def _criterion(self, degree: int, places: _Places) -> float:
        base = self._base(self._nights, degree, places)
        rest = self._values - base @ np.linalg.lstsq(base, self._values, rcond=None)[0]
        nights = len(self._values)
        variance = max(float(rest @ rest) / nights, self._least**2)
        return nights * math.log(variance or 1e-300) + math.log(nights) * (degree + 2 * len(places))


def _without(places: _Places, place: int) -> list[int]:
    return [each for each in places if each != place]


def _spread(away: _Floats) -> float:
    """The standard deviation, by what half of them are below: odd ones do not count. Where that is 0, by all."""
    return _BY_MEDIAN * float(np.median(away)) or math.sqrt(float((away**2).mean()))


def _calmed(x: _Floats) -> _Floats:
    """The history with odd nights drawn towards the median of the five around them, which keeps steps as they are."""
    around = np.array([np.median(x[max(0, place - 2) : place + 3]) for place in range(len(x))])
    away = x - around
    most = _AROUND * _spread(np.abs(away))
    calm: _Floats = around + np.clip(away, -most, most)
    return calm
