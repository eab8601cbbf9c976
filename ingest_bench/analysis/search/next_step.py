"""The search for the highest rate that meets a goal: what was tried decides what is tried next.

A closed loop says roughly what the server can do. Half of that is tried first, then each double until the goal is
missed (or each half until it is met), then the geometric middle until the two sides are close, and last the best rate
again in a run twice as long, in which a queue that grows slowly shows. A rate at which the queue grows is missed,
whatever the goal is: it only takes a longer run to miss a loose one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ingest_bench.analysis.numbers import student
from ingest_bench.analysis.search.goals import Goal
from ingest_bench.model.experiment import Search, SearchStep
from ingest_bench.model.load import LEAST_PER_S, MOST_PER_S
from ingest_bench.model.results import Summary
from ingest_bench.units import count_of

Outcome = Literal["met", "missed", "generator", "broken"]

# Below this share of the closed loop's rate the search gives up: the server cannot meet the goal at all.
_LEAST_SHARE = 1 / 128
# A response time that rises by 0.02 s each second is that of a server that answers 2% less than is due. Servers with
# exponential service times and 20 to 500 answers a second, in steps of 10 and 20 s: at 50% to 80% of what they can do 2
# of 1,440 steps were taken for a queue that grows; at 114% of it, with 500 answers a second, 80 of 80.
_LEAST_RISE, _RISE_CONFIDENCE, _FEWEST_SECONDS = 0.02, 0.99, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One step that was done."""

    step: SearchStep
    per_s: float | None
    """Requests in a second, as planned; None: a closed loop."""
    outcome: Outcome
    why: str = ""
    reached_per_s: float = 0.0
    """Requests answered in a second."""


@dataclass(frozen=True, slots=True)
class Next:
    """The next step."""

    step: SearchStep
    per_s: float | None


@dataclass(frozen=True, slots=True)
class Found:
    """The end of a search."""

    per_s: float | None
    """The highest rate that met the goal and was confirmed; None: there is none."""
    beyond: Tried | None
    """The lowest rate that did not meet it."""
    said: str
    """The result in a sentence."""

    @property
    def is_knee(self) -> bool:
        """Whether the server was the limit, and not the load generator."""
        return self.per_s is not None and self.beyond is not None and self.beyond.outcome == "missed"


def judge(step: SearchStep, per_s: float | None, summary: Summary, goal: Goal) -> Tried:
    """What that run says about its rate. A run that is invalid for a reason of its own says nothing: broken."""
    reached = _reached_per_s(summary)
    outcome: Outcome = "met"
    why = ""
    if step == "estimate":
        outcome, why = ("met", "") if reached else ("broken", summary.reason or "no request was answered")
    elif summary.state == "measured":
        missed = goal.broken(summary.values)
        if rise := _steady_rise(summary):
            missed.append(f"the queue grew: response time rose by {rise * 1000:.0f}ms each second")
        outcome, why = ("missed", ", ".join(missed)) if missed else ("met", "")
    elif summary.state in {"oom", "aborted"} or summary.invalid_for[:1] == ("no answer",):
        outcome, why = "missed", summary.reason
    elif summary.invalid_for[:1] == ("generator",):
        outcome, why = "generator", summary.reason
    else:
        outcome, why = "broken", f"{summary.state}: {summary.reason}"
    return Tried(step=step, per_s=per_s, outcome=outcome, why=why, reached_per_s=reached)


def decide(tried: Sequence[Tried], rules: Search) -> Next | Found:
    """The next step, or the result."""
    if not tried:
        return Next("estimate", None)
    if tried[-1].outcome == "broken":
        # Once is an accident of the machine; twice is the machine.
        if len(tried) > 1 and tried[-2].outcome == "broken":
            return Found(None, None, f"given up after two broken runs: {tried[-1].why}")
        return _bounded(Next(tried[-1].step, tried[-1].per_s), tried, rules)
    estimate = next(each.reached_per_s for each in tried if each.step == "estimate" and each.outcome != "broken")
    lowest_miss = min((each for each in tried if each.outcome in ("missed", "generator")), key=_rate, default=None)
    below = math.inf if lowest_miss is None else _rate(lowest_miss)
    met = [each for each in tried if each.per_s is not None and each.outcome == "met" and each.per_s < below]
    best = max(met, key=_rate, default=None)
    if best is None:
        if lowest_miss is None:
            return Next("ramp", rounded(estimate / 2))
        if below / 2 < estimate * _LEAST_SHARE or rounded(below / 2) >= below:
            return Found(None, lowest_miss, f"not even {_text(below)} meets the goal: {lowest_miss.why}")
        return _bounded(Next("ramp", rounded(below / 2)), tried, rules)
    at = _rate(best)
    last = rules.most_runs - len(tried) <= 1
    middle = rounded(math.sqrt(at * below)) if lowest_miss is not None else rounded(at * 2)
    close = below / at <= 1 + rules.tolerance_ppm / 1e6 or middle in (at, below)
    # Confirmed as the last run of a search that was allowed more since, it is no end.
    if (close or last) and any(each.step == "confirm" and each.per_s == at for each in met):
        return Found(at, lowest_miss, _result(at, lowest_miss))
    step: SearchStep = "confirm" if close or last else "bisect" if lowest_miss is not None else "ramp"
    return _bounded(Next(step, at if step == "confirm" else middle), tried, rules)


def rounded(per_s: float) -> float:
    """The rate with three digits: it is a name, too. One that no load can have becomes the nearest that it can."""
    return float(f"{min(max(per_s, LEAST_PER_S), MOST_PER_S['requests']):.3g}")


def _bounded(wanted: Next, tried: Sequence[Tried], rules: Search) -> Next | Found:
    if len(tried) < rules.most_runs:
        return wanted
    return Found(
        None, None, f"given up after {count_of(len(tried), 'run')} without a confirmed rate; allow more by --most-runs"
    )


def _rate(tried: Tried) -> float:
    return tried.per_s or 0.0


def _text(per_s: float) -> str:
    return f"{per_s:,.6g} requests/s"


def _result(per_s: float, beyond: Tried | None) -> str:
    if beyond is None:
        return f"{_text(per_s)} meets the goal, and nothing higher was tried: allow more by --most-runs"
    if beyond.outcome == "generator":
        return (
            f"{_text(per_s)} meets the goal; at {_text(_rate(beyond))} the load generator was the limit: {beyond.why}"
        )
    return f"{_text(per_s)} meets the goal, {_text(_rate(beyond))} does not: {beyond.why}"


def _reached_per_s(summary: Summary) -> float:
    requests, start_ns, end_ns = (
        summary.values.get("requests_answered"),
        summary.measure_start_ns,
        summary.measure_end_ns,
    )
    if not isinstance(requests, int) or start_ns is None or end_ns is None or end_ns <= start_ns:
        return 0.0
    return requests / ((end_ns - start_ns) / 1e9)


def _steady_rise(summary: Summary) -> float:
    """Return by how many seconds the response time rose each second of the measurement; 0 where that may be chance.

    The last second is left out: it has the requests that were answered after the end.
    """
    series, start_ns, end_ns = summary.series.get("response_ms_p50"), summary.measure_start_ns, summary.measure_end_ns
    if series is None or start_ns is None or end_ns is None:
        return 0.0
    last_ns = start_ns + ((end_ns - start_ns) // 10**9 - 1) * 10**9
    points = [(at, ms) for at, ms in zip(series.at_ns, series.values, strict=True) if start_ns <= at < last_ns]
    if len(points) < _FEWEST_SECONDS:
        return 0.0
    seconds = np.array([(at - start_ns) / 1e9 for at, _ in points])
    response_s = np.array([ms / 1e3 for _, ms in points])
    seconds -= seconds.mean()
    # Least squares, and how well the slope is known.
    spread = float(seconds @ seconds)
    rise = float(seconds @ response_s) / spread
    left = response_s - response_s.mean() - rise * seconds
    freedom = len(points) - 2
    error = math.sqrt(float(left @ left) / freedom / spread)
    is_certain = rise > student.quantile(freedom, _RISE_CONFIDENCE) * error
    return rise if rise > _LEAST_RISE and is_certain else 0.0
