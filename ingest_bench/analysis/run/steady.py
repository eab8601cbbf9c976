"""Detection of the steady state: where the transient at the beginning of a load ends.

Method: shapes of a transient (step, ramp, exponential approach) are fitted, each with and without a drift after it. The
simplest shape that explains the series is chosen (Bayesian information criterion, corrected for the autocorrelation of
the residuals: the sawtooth of a garbage collector is not independent noise). A shape ends at its corner; an exponential
ends where 5% of the level are left, the usual settling time in control engineering. Points 3.5 standard deviations from
a shape are a stall and are ignored. So a stall neither hides the end of a ramp nor is taken for one.

The end is found within one second in at least 95% of synthetic series of each family (tests/test_steady.py).
Rejected: MSER-5 on ranks, which finds 87% of ramps and 62% of exponentials; and change points (PELT), which cut a ramp
into steps.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingest_bench.analysis.run.sample_columns import Samples, SampleSource, iterate_batches, spread_acked
from ingest_bench.model.results import ColumnValue
from ingest_bench.model.samples import WorkerReport, response_times_ns

_Floats = np.ndarray[Any, np.dtype[np.float64]]

MIN_VALUES = 40
# The end of a warm-up of 30 s is then exact to 75 ms.
_SLOTS = 400
# Maximum requests in memory; a slot's median of 5,000 requests is as good as that of all.
_MAX_TIMES = 2 * 10**6
_NEVER = "never got steady"
# Values are averaged to at most this many points; more only cost time, because the fit averages anyway.
_MAX_POINTS = 100
# Share of the level below which a transient is ignored, and at which an exponential has ended.
_NEAR_SHARE = 0.05
# Drift over the time after the transient, as a share of the level, from which a load is not steady.
_MIN_DRIFT_SHARE = 0.10
# A transient that ends later leaves too little data to confirm its end.
_LATEST_SHARE = 0.5
# Standard deviations: beyond the first a point has less weight (Huber), beyond the second none.
_CALM, _STALL = 1.5, 3.5
_CALM_ROUNDS, _ROUNDS = 3, 6
# 80% of a normal distribution lie within 1.2816 standard deviations; a running median of 7 points follows a tenth of
# the noise. Rejected: the median instead of 80%. If a point has few requests, most points have the same value.
_PERCENT, _WITHIN, _FOLLOWED, _RUNNING = 80, 1.2816, 1.1, 7
# With a spread of zero every point that differs slightly would be a stall.
_MIN_SPREAD = 0.02
# A step that begins later and lasts to the end is a stall, too, not the level of the steady state.
_LATEST_STEP_SHARE = 0.75
# Tested corners and time constants, as shares of the length.
_CORNERS = (*np.arange(0.015, 0.5, 0.0125), *np.arange(0.5, 0.95, 0.05))
_CONSTANTS = tuple(np.geomspace(0.01, 1.0, 64))


@dataclass(frozen=True, slots=True)
class SteadyState:
    """Beginning of the steady state; None: never reached, or too little data."""

    from_s: float | None
    """Seconds after the start of the load."""
    reason: str = ""


def find_steady_start(samples: SampleSource, report: WorkerReport) -> SteadyState:
    """Return when a load got steady, judged from its start to its end.

    Closed loop: by the throughput, acknowledged documents per time. Open loop: the throughput follows the schedule from
    the first second on; therefore by the response time, which shows a cold server and one that falls behind.
    """
    end_ns = _end_ns(report)
    if not len(samples):
        return SteadyState(None, "nothing was sent")
    count = sum(int(_acked_before(batch, end_ns).sum()) for batch in iterate_batches(samples))
    # Each slot needs several requests; with fewer, its value is noise of single bulks.
    slots = min(_SLOTS, count // 4)
    if slots < MIN_VALUES:
        return SteadyState(None, f"too few requests to tell: {count}, at least {4 * MIN_VALUES}")
    if report.is_open_loop:
        # Slots with equal numbers of requests: none is empty, and a median hides a single slow request.
        times = np.concatenate(
            [_thinned_times(batch[_acked_before(batch, end_ns)], count) for batch in iterate_batches(samples)]
        )
        times = times[np.argsort(times["scheduled_ns"], kind="stable")]
        first = np.arange(slots) * len(times) // slots
        values = [float(np.median(part)) for part in np.split(response_times_ns(times), first[1:])]
        begins_ns = times["scheduled_ns"][first]
    else:
        slot_ns = (end_ns - report.started_monotonic_ns) // slots
        values = spread_acked(samples, report.started_monotonic_ns, slots, slot_ns).tolist()
        begins_ns = report.started_monotonic_ns + np.arange(slots) * slot_ns
    cut = transient_length(values)
    if cut is None:
        return SteadyState(None, f"{'response time' if report.is_open_loop else 'throughput'} {_NEVER}")
    return SteadyState(int(begins_ns[cut] - report.started_monotonic_ns) / 1e9 if cut else 0.0)


def _acked_before(batch: Samples, end_ns: int) -> Samples:
    acked: Samples = (batch["documents_acked"] > 0) & (batch["done_ns"] < end_ns)
    return acked


def _thinned_times(acked: Samples, count: int) -> Samples:
    """Return scheduled and done times; if there are more than `_MAX_TIMES` of them, every n-th."""
    chosen = acked[:: -(-count // _MAX_TIMES)]
    times = np.zeros(len(chosen), dtype=[("scheduled_ns", "<i8"), ("done_ns", "<i8")])
    for name in ("scheduled_ns", "done_ns"):
        times[name] = chosen[name]
    return times


def measure_from_steady(samples: SampleSource, report: WorkerReport, measure_ns: int) -> WorkerReport:
    """Return the report of a load with automatic warm-up: *measure_ns* are measured from the steady state on.

    The load lasted longer, and the rest is left out: otherwise a run that got steady early would count more pauses and
    more bytes than its replicate. A load that never got steady, or has too few requests to tell, is measured in its
    second half, with a note (`describe_steadiness`). Rejected: calling that run invalid. Merges and collections make a
    server unsteady in a way that engineers want to see, and the difference between replicates is the honest interval.
    """
    steady, end_ns = find_steady_start(samples, report), _end_ns(report)
    warm_up_ns = (
        (end_ns - report.started_monotonic_ns) // 2 if steady.from_s is None else math.ceil(steady.from_s * 1e9)
    )
    start_ns = report.started_monotonic_ns + warm_up_ns
    return dataclasses.replace(
        report, warm_up_end_ns=start_ns, measure_end_ns=min(end_ns, start_ns + measure_ns), load_end_ns=end_ns
    )


def _end_ns(report: WorkerReport) -> int:
    return report.load_end_ns or report.measure_end_ns


def steady_columns(samples: SampleSource, report: WorkerReport) -> dict[str, ColumnValue]:
    """Return the columns about the steady state."""
    steady = find_steady_start(samples, report)
    warm_up_s = (report.warm_up_end_ns - report.started_monotonic_ns) / 1e9
    is_late = steady.from_s is not None and steady.from_s > warm_up_s
    return {"steady_after_s": steady.from_s, "steadiness": steady.reason or ("late" if is_late else "steady")}


def describe_steadiness(values: Mapping[str, ColumnValue], *, is_automatic: bool = False) -> str:
    """Describe a warm-up that was too short, and a load that never got steady; "" otherwise.

    Too few requests to tell are worth a note only for an automatic warm-up.
    """
    after_s, steadiness = values["steady_after_s"], str(values["steadiness"])
    if is_automatic and after_s is None:
        return f"{steadiness}: the second half of the load is measured, steady or not"
    if isinstance(after_s, float) and steadiness == "late":
        return f"late steady state: {after_s:.1f} s after the start, within the measurement: give a longer warm_up"
    return f"{steadiness}: measure longer, or look for the cause of the drift" if steadiness.endswith(_NEVER) else ""


@dataclass(frozen=True, slots=True)
class _Shapes:
    """Shapes for a number of points: each row is a shape, the first one is flat."""

    transient: _Floats
    """1 at the beginning, 0 after its end."""
    drift: _Floats
    """0 until a corner, then rising by 1 over the whole length."""
    corner: _Floats
    """As a share of the length; for an exponential its time constant."""
    is_exponential: np.ndarray[Any, np.dtype[np.bool_]]


def transient_length(values: Sequence[float]) -> int | None:
    """Return how many of the first values belong to a transient; None if its end cannot be confirmed.

    That is so if it does not end in the first half, if a drift follows it, or with fewer than 40 values.
    """
    if len(values) < MIN_VALUES:
        return None
    per_point = -(-len(values) // _MAX_POINTS)
    points = len(values) // per_point
    # The remainder is dropped at the beginning.
    first = len(values) - points * per_point
    means = np.asarray(values[first:], dtype=float).reshape(points, per_point).mean(axis=1)
    level = abs(float(np.median(means)))
    if not level:
        return None
    share = _transient_share(means / level)
    if share is None:
        return None
    return first + round(share * points * per_point) if share else 0


def _transient_share(points: _Floats) -> float | None:
    shapes = _shapes(len(points))
    spread = _spread(points)
    level = np.ones_like(shapes.transient)
    plain, _, plain_loss = _fit_shapes(points, np.stack([level, shapes.transient], axis=1), spread)
    drifting, residuals, drifting_loss = _fit_shapes(
        points, np.stack([level, shapes.transient, shapes.drift], axis=1), spread
    )
    best, best_drifting = int(plain_loss.argmin()), int(drifting_loss.argmin())
    residuals = np.clip(residuals[best_drifting], -_STALL * spread, _STALL * spread)
    # Autocorrelated points count as fewer independent ones.
    correlation = float(np.clip(residuals[1:] @ residuals[:-1] / max(residuals @ residuals, 1e-12), 0, 0.95))
    variance = float(drifting_loss[best_drifting]) / len(points) * (1 + correlation) / (1 - correlation)

    def criterion(loss: float, parameters: int) -> float:
        return loss / max(variance, 1e-12) + parameters * math.log(len(points))

    choice = min((criterion(float(plain_loss[0]), 1), False, 0), (criterion(float(plain_loss[best]), 3), False, best))
    for shape, parameters in ((0, 2), (best_drifting, 4)):
        of_level, _, rise = drifting[shape]
        if abs(rise) * shapes.drift[shape, -1] > _MIN_DRIFT_SHARE * abs(of_level):
            choice = min(choice, (criterion(float(drifting_loss[shape]), parameters), True, shape))
    _, drifts, shape = choice
    if drifts:
        return None
    settled, size = (abs(float(number)) for number in plain[shape])
    if shape == 0 or size < _NEAR_SHARE * settled:
        return 0.0
    end = float(shapes.corner[shape])
    if shapes.is_exponential[shape]:
        # The time until `_NEAR_SHARE` of the level is left.
        end *= math.log(size / max(_NEAR_SHARE * settled, 1e-12))
    return end if end <= _LATEST_SHARE else None


@functools.cache
def _shapes(points: int) -> _Shapes:
    at = (np.arange(points) + 0.5) / points
    # The flat shape has a transient of 0, whose coefficient does not matter.
    transient, corner, is_exponential = [np.zeros(points)], [0.0], [False]
    for share in _CORNERS:
        steps = [(at < share).astype(float)] if share <= _LATEST_STEP_SHARE else []
        shapes = [*steps, np.clip(1 - at / share, 0, None)]
        transient += shapes
        corner += [share] * len(shapes)
        is_exponential += [False] * len(shapes)
    for share in _CONSTANTS:
        transient.append(np.exp(-at / share))
        corner.append(share)
        is_exponential.append(True)
    corners = np.array(corner)
    begins = np.where(is_exponential, 0.0, corners)
    drift = np.clip(at[None, :] - begins[:, None], 0, None)
    return _Shapes(np.array(transient), drift, corners, np.array(is_exponential))


def _spread(points: _Floats) -> float:
    """Return the standard deviation of the points around their running median."""
    padded = np.pad(points, _RUNNING // 2, mode="edge")
    running = np.median(np.lib.stride_tricks.sliding_window_view(padded, _RUNNING), axis=1)
    deviation = float(np.percentile(np.abs(points - running), _PERCENT))
    return max(_FOLLOWED * deviation / _WITHIN, _MIN_SPREAD)


def _fit_shapes(points: _Floats, shapes: _Floats, spread: float) -> tuple[_Floats, _Floats, _Floats]:
    """Return coefficients, residuals, and sums of squared residuals, clipped at stalls, of all shapes at once.

    The fits are iteratively reweighted least squares.
    """
    count, parameters, length = shapes.shape
    weights = np.ones((count, length))
    # Keeps the system solvable if two columns are equal, as for the flat shape.
    ridge = 1e-9 * length * np.eye(parameters)
    for number in range(_ROUNDS):
        weighted = shapes * weights[:, None, :]
        coefficients = np.linalg.solve(weighted @ shapes.transpose(0, 2, 1) + ridge, (weighted @ points)[..., None])
        residuals = points - (coefficients.transpose(0, 2, 1) @ shapes)[:, 0]
        size = np.abs(residuals)
        if number < _CALM_ROUNDS:
            weights = _CALM * spread / np.maximum(size, _CALM * spread)
        else:
            weights = (size < _STALL * spread).astype(float)
    loss = np.minimum(residuals**2, (_STALL * spread) ** 2).sum(axis=1)
    return coefficients[..., 0], residuals, loss
