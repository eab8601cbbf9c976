"""Detection of level changes in a history of numbers, one per result.

Model: a straight line with steps; the line is a slow drift of the machine. Steps are added one by one where they
explain most, and moved to where they fit best with the others. The weakest is removed until each has a p value
(Student's t in the joint model) below the level, divided by the number of possible places, and remains without the two
results that show it most. A single result four standard deviations from the model is an outlier and is ignored. If a
straight line or a curve of second or third degree explains the history as well (Bayesian information criterion), it is
a drift. From 20 results on, errors are enlarged for the correlation of consecutive results (AR(1)).

Found and false steps in 100 synthetic histories of 60 results (99 steps of 3 to 30%, noise of 2 to 10%, outliers,
drifts), and histories with a step among 200 without any:

| method | found | false | of 200 |
|---|---|---|---|
| this one | 57 | 7 | 3 |
| PELT (`ruptures`, l2, penalty 3 ln n) | 59 | 132 | 117 |
| binary segmentation with Student's t | 52 | 42 | 63 |
| e-divisive with permutations | 63 | 65 | 86 |

Known weakness: a drift that turns (a sine, one to three times the noise) is called a step in 44% of histories.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingest_bench.analysis import student

_Floats = np.ndarray[Any, np.dtype[np.float64]]
_Places = Sequence[int]

LEVEL = 0.05
_CONFIDENCE = 0.95
# Rounding errors, relative to the largest number.
_ROUNDING = 1e-9
MIN_RESULTS = 6
# On each side of a step, and between two steps: one or two outliers are not a new level.
MIN_LEVEL_RESULTS = 3
# A step on a slope needs many results to be detected: with fewer there is no slope. With fewer than the second number a
# curve of second or third degree would explain any step.
_SLOPE_FROM, _CURVES_FROM = 20, 12
# By how much, in Bayes' criterion, steps must explain a history without a slope better than a straight drift does.
_BETTER = 5.0
# The correlation of consecutive results counts if it is significant at 5%. A higher one is an undetected step.
_SIGNIFICANT, _MAX_CORRELATION = 1.645, 0.8
_MAX_STEPS = 4
# Minimum t of a step to be considered, and of a step without the results that show it most.
_MIN_T = 2.5
# Standard deviations from the neighbours, and from the model, beyond which a result is an outlier.
_AROUND, _OUTLIER = 3.0, 4.0
# The median of |x| of a normal distribution is 0.6745 of its standard deviation.
_BY_MEDIAN = 1.4826


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A change of the level, and its uncertainty."""

    place: int
    """Index of the first result with the new level."""
    before: float
    """The level just before it, without noise."""
    size: float
    error: float
    """Standard error of the size."""
    freedom: float
    """Its degrees of freedom."""
    relative: tuple[float, float] | None
    """95% interval of the size as a share of the level before; None if that is not above 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelChanges:
    """The steps of a history in order, and the history without noise."""

    steps: tuple[Step, ...]
    line: tuple[float, ...]
    """Drift and steps at each result."""
    outliers: tuple[int, ...]
    """Indices of ignored results."""


def find_level_changes(values: Sequence[float], *, level: float = LEVEL, least_spread: float = 0.0) -> LevelChanges:
    """Return the steps of a history of at least 6 results.

    *level* is the probability of a false step. *least_spread* is a lower limit of the noise's standard deviation, as
    counts have.
    """
    # Relative to the largest: squares stay finite, whatever a file contains.
    unit = max(abs(value) for value in values) or 1.0
    x = np.asarray(values, dtype=np.float64) / unit
    spread = max(least_spread / unit, _ROUNDING)
    degree = 1 if len(x) >= _SLOPE_FROM else 0
    at = np.arange(len(x), dtype=np.float64)
    # Moving outliers towards the median of five neighbours preserves steps.
    around = np.array([np.median(x[max(0, place - 2) : place + 3]) for place in range(len(x))])
    limit = _AROUND * _robust_spread(np.abs(x - around))
    damped = _Model(at, around + np.clip(x - around, -limit, limit), degree, spread)
    residuals = np.abs(x - damped.line(damped.find_steps(LEVEL), at))
    kept = np.flatnonzero(residuals <= _OUTLIER * max(_robust_spread(residuals), spread))
    if len(kept) < MIN_RESULTS:
        kept = np.arange(len(x))
    model = _Model(at[kept], x[kept], degree, spread)
    places = model.find_steps(level)
    if places and model.is_drift(places):
        places = []
    return LevelChanges(
        steps=tuple(model.step(place, places, index=int(kept[place]), unit=unit) for place in places),
        line=tuple((model.line(places, at) * unit).tolist()),
        outliers=tuple(sorted(set(range(len(x))) - set(kept.tolist()))),
    )


class _Model:
    """A history as a polynomial in time plus steps. Places are indices of its own results."""

    def __init__(self, at: _Floats, values: _Floats, degree: int, least_spread: float) -> None:
        self._at, self._values = at, values
        self._degree, self._least = degree, least_spread

    def find_steps(self, level: float) -> list[int]:
        """Return the places of all steps that are significant at *level*."""
        places: list[int] = []
        while len(places) < _MAX_STEPS and (best := self._best(places)) and best[1] >= _MIN_T:
            places.append(best[0])
        while places:
            self._settle(places)
            p_values = [self._p_value(place, _without(places, place)) for place in places]
            if max(p_values) <= level:
                break
            places.pop(p_values.index(max(p_values)))
        return sorted(places)

    def _p_value(self, place: int, others: _Places) -> float:
        """Return an upper limit of the probability of such a step at any place (Bonferroni).

        It is 1 unless the step remains without the two results of either side that show it most. Only results up to the
        neighbouring steps are candidates.
        """
        begin = max((other for other in others if other < place), default=0)
        end = min((other for other in others if other > place), default=len(self._values))
        sizes, errors, freedom = self._sizes([place], others)
        sign = float(np.sign(sizes[0]))
        upwards = np.argsort(self._values * sign, kind="stable")
        before = upwards[(upwards >= begin) & (upwards < place)][:2]
        after = upwards[(upwards >= place) & (upwards < end)][-2:]
        for left_out in (before, after):
            kept = np.setdiff1d(np.arange(len(self._values)), left_out)
            model = _Model(self._at[kept], self._values[kept], self._degree, self._least)
            own, *other_places = np.searchsorted(kept, [place, *others]).tolist()
            own_sizes, own_errors, _ = model._sizes([own], other_places)
            if float(own_sizes[0] / own_errors[0]) * sign < _MIN_T:
                return 1.0
        candidates = len(self._values) - 2 * MIN_LEVEL_RESULTS + 1
        t = float(sizes[0] / errors[0]) / self._error_factor([*others, place])
        return min(1.0, student.p_value(freedom, t) * candidates)

    def is_drift(self, places: _Places) -> bool:
        """Return whether a curve without steps explains the history better. A step costs a place and a size."""
        with_steps = self._criterion(self._degree, places)
        max_degree = 3 if len(self._values) >= _CURVES_FROM else 1
        return any(
            self._criterion(degree, ()) < with_steps + (_BETTER if degree == 1 else 0.0)
            for degree in range(self._degree + 1, max_degree + 1)
        )

    def step(self, place: int, places: _Places, *, index: int, unit: float) -> Step:
        """Return one of the steps. *index* and *unit* refer to the whole history."""
        sizes, errors, freedom = self._sizes([place], _without(places, place))
        error = float(errors[0]) * self._error_factor(places)
        after = self._base(self._at[[place]], self._degree, places)[0]
        before = after.copy()
        before[self._degree + 1 + list(places).index(place)] = 0
        coefficients, _ = self._fit(self._degree, places)
        first, second = float(before @ coefficients), float(after @ coefficients)
        relative = None
        if first > _ROUNDING and second >= 0:
            weights = np.linalg.pinv(self._base(self._at, self._degree, places))
            spread = error / float(np.linalg.norm((after - before) @ weights)) / first

            def deviation(ratio: float) -> tuple[float, float]:
                return spread * float(np.linalg.norm((after - ratio * before) @ weights)), freedom

            low, high = student.ratio_interval(second / first, deviation, _CONFIDENCE)
            relative = low - 1, high - 1
        return Step(
            place=index,
            before=first * unit if abs(first) > _ROUNDING else 0.0,
            size=float(sizes[0]) * unit,
            error=error * unit,
            freedom=freedom,
            relative=relative,
        )

    def line(self, places: _Places, at: _Floats) -> _Floats:
        """Return the fitted values at these times."""
        fitted: _Floats = self._base(at, self._degree, places) @ self._fit(self._degree, places)[0]
        return fitted

    def _base(self, at: _Floats, degree: int, places: _Places) -> _Floats:
        """Return the design matrix: a row per time with its powers, and whether it is at or after each step."""
        middle, half = self._at.mean(), max(float(np.ptp(self._at)) / 2, 1.0)
        powers = np.vander((at - middle) / half, degree + 1)
        base: _Floats = np.column_stack([powers, *((at >= self._at[place]).astype(np.float64) for place in places)])
        return base

    def _fit(self, degree: int, places: _Places) -> tuple[_Floats, _Floats]:
        """Return the least-squares coefficients, and the residuals."""
        base = self._base(self._at, degree, places)
        coefficients = np.asarray(np.linalg.lstsq(base, self._values, rcond=None)[0], dtype=np.float64)
        return coefficients, self._values - base @ coefficients

    def _sizes(self, places: _Places, others: _Places) -> tuple[_Floats, _Floats, int]:
        """Return size and standard error of each step alone, in addition to *others*, and degrees of freedom."""
        base = self._base(self._at, self._degree, others)
        orthogonal, _ = np.linalg.qr(base)
        residuals = self._values - orthogonal @ (orthogonal.T @ self._values)
        steps = (self._at[:, None] >= self._at[list(places)][None, :]).astype(np.float64)
        steps -= orthogonal @ (orthogonal.T @ steps)
        # A step that the others already contain has no size of its own.
        squares = np.maximum((steps**2).sum(axis=0), 1e-12)
        sizes = steps.T @ residuals / squares
        freedom = len(self._values) - base.shape[1] - 1
        unexplained = np.maximum(float(residuals @ residuals) - sizes**2 * squares, 0.0)
        spread = np.maximum(np.sqrt(unexplained / freedom), max(self._least, 1e-300))
        return sizes, spread / np.sqrt(squares), freedom

    def _best(self, others: _Places) -> tuple[int, float] | None:
        """Return where one more step explains most, and its t; None if no place is free."""
        places = [
            place
            for place in range(MIN_LEVEL_RESULTS, len(self._values) - MIN_LEVEL_RESULTS + 1)
            if all(abs(place - other) >= MIN_LEVEL_RESULTS for other in others)
        ]
        if not places or len(self._values) - self._degree - len(others) < MIN_LEVEL_RESULTS + 1:
            return None
        sizes, errors, _ = self._sizes(places, others)
        t = np.abs(sizes) / errors
        best = int(t.argmax())
        return places[best], float(t[best])

    def _settle(self, places: list[int]) -> None:
        """Move each step to where it fits best with the others, until none moves."""
        for _ in range(5):
            before = list(places)
            for number, place in enumerate(before):
                best = self._best(_without(places, places[number]))
                places[number] = best[0] if best else place
            if places == before:
                return

    def _error_factor(self, places: _Places) -> float:
        """Return the factor by which the correlation of consecutive results (AR(1)) enlarges errors; 1 without any.

        Residuals have less correlation than the history; each fitted number reduces it by 1/n.
        """
        _, residuals = self._fit(self._degree, places)
        count, squares = len(residuals), float(residuals @ residuals)
        if not squares or count < _SLOPE_FROM:
            return 1.0
        estimate = float(residuals[1:] @ residuals[:-1]) / squares + (self._degree + 1 + 2 * len(places)) / count
        if estimate < _SIGNIFICANT / math.sqrt(count):
            return 1.0
        correlation = min(estimate, _MAX_CORRELATION)
        return math.sqrt((1 + correlation) / (1 - correlation))

    def _criterion(self, degree: int, places: _Places) -> float:
        _, residuals = self._fit(degree, places)
        count = len(self._values)
        variance = max(float(residuals @ residuals) / count, self._least**2)
        return count * math.log(variance or 1e-300) + math.log(count) * (degree + 2 * len(places))


def _without(places: _Places, place: int) -> list[int]:
    return [other for other in places if other != place]


def _robust_spread(residuals: _Floats) -> float:
    """Return the standard deviation estimated from the median, which ignores outliers; from all if that is 0."""
    return _BY_MEDIAN * float(np.median(residuals)) or math.sqrt(float((residuals**2).mean()))
