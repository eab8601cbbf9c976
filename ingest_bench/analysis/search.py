"""Search for the highest rate that meets a goal: goals, the judgement of each step, the next step, and the result.

A goal is a list of limits, such as "p99 < 500ms, errors < 0.1%". A closed loop estimates the server's capacity. Half of
that is tried first, then doubled until the goal is missed (or halved until it is met). Then the geometric mean of the
highest rate that meets the goal and the lowest that misses it is tried, until they are close. Last, the best rate is
confirmed in a run twice as long, in which a slowly growing queue shows. A rate at which the queue grows misses any
goal: it only takes a longer run to miss a loose one.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ingest_bench.analysis import student
from ingest_bench.inputs import load_values
from ingest_bench.inputs.escaping import escape_line
from ingest_bench.model.experiment import Cell, Plan, Run, Search, SearchStep
from ingest_bench.model.load import ERRORS, MAX_PER_S, MIN_PER_S
from ingest_bench.model.results import ColumnValue, Summary
from ingest_bench.units import format_count

Outcome = Literal["met", "missed", "generator", "broken"]
# A step is an ordinary cell with an additional factor: its rate.
RATE_KEY = "arrivals"

# Response times (done - scheduled) of all requests: waits count, and so does the time of hung requests.
_TIMES = {
    "p50": "response_ms_p50",
    "p99": "response_ms_p99",
    "p99.9": "response_ms_p999",
    "max": "response_ms_max",
    "service p50": "service_ms_p50",
    "service p99": "service_ms_p99",
}
# Default limit: without it, a server that quickly rejects what it cannot take would meet the goal.
_DEFAULT_ERRORS = f"{ERRORS} < 0.1%"
_ALLOWED = (
    'write it like "p99 < 500ms, errors < 0.1%"; allowed are '
    f"{', '.join(_TIMES)} (times of the response unless they say service) and {ERRORS} (a share of the requests)"
)
# The search gives up below this share of the closed loop's rate.
_MIN_SHARE = 1 / 128
# A response time that rises by 0.02 s per second means that the server answers 2% less than is due. Tested on servers
# with exponential service times and 20 to 500 responses a second, in steps of 10 and 20 s: at 50% to 80% of capacity 2
# of 1,440 steps were taken for a growing queue; at 114%, with 500 responses a second, 80 of 80.
_MIN_RISE, _RISE_CONFIDENCE, _MIN_SECONDS = 0.02, 0.99, 4


@dataclass(frozen=True, slots=True)
class Limit:
    """One condition: a number that must stay below a limit."""

    name: str
    below: float
    """Milliseconds; for errors a fraction, 0 to 1."""
    text: str
    """As the user wrote it, because formatting would round it."""

    @property
    def column(self) -> str:
        """Return the limited column; "" for errors, which are computed from two columns."""
        return _TIMES.get(self.name, "")

    def value_of(self, values: Mapping[str, ColumnValue]) -> float | None:
        """Return the run's number in the limit's unit; None if unknown."""
        if self.column:
            value = values.get(self.column)
            return value if isinstance(value, (int, float)) else None
        failed, requests = values.get("requests_failed"), values.get("requests")
        return failed / requests if isinstance(failed, int) and isinstance(requests, int) and requests else None

    def upper_bound(self, values: Mapping[str, ColumnValue]) -> float:
        """Return the number or an upper bound: for response times the longest, infinity if unknown."""
        value = self.value_of(values)
        longest = values.get("response_ms_max") if self.column.startswith("response_ms") else None
        return value if value is not None else longest if isinstance(longest, (int, float)) else math.inf


@dataclass(frozen=True, slots=True)
class Goal:
    """Limits that must all be met."""

    limits: tuple[Limit, ...]

    @property
    def text(self) -> str:
        """Return the complete goal as text."""
        return ", ".join(limit.text for limit in self.limits)

    @property
    def plotted_limit(self) -> Limit:
        """Return the limit to plot: the first about a time, or the first."""
        return next((limit for limit in self.limits if limit.column), self.limits[0])

    def list_misses(self, values: Mapping[str, ColumnValue]) -> list[str]:
        """Return the missed limits with their values, such as "p99 812ms"; an unknown number is a miss.

        A high percentile of few requests is unknown (`nearest_rank`), but it does not exceed the longest.
        """
        missed = ((item.name, item.value_of(values)) for item in self.limits if item.upper_bound(values) >= item.below)
        return [
            f"{name} {'unknown' if value is None else load_values.format_limit(name, value)}" for name, value in missed
        ]


def parse_goal(text: str) -> Goal:
    """Return the goal, with the default limit for errors if it has none; ValueError says what is allowed."""
    limits = tuple(_parse_limit(part) for part in text.split(","))
    names = [limit.name for limit in limits]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"{text!r} limits {', '.join(sorted(twice))} twice: keep one")
    return Goal(limits if ERRORS in names else (*limits, _parse_limit(_DEFAULT_ERRORS)))


def _parse_limit(text: str) -> Limit:
    name, below = load_values.parse_condition(text, "<", _TIMES, _ALLOWED)
    if below <= 0:
        raise ValueError(f"{text.strip()!r} can never be met: nothing is below 0")
    return Limit(name, below, " ".join(text.split()))


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedStep:
    """A completed step."""

    step: SearchStep
    per_s: float | None
    """Planned requests per second; None: a closed loop."""
    outcome: Outcome
    reason: str = ""
    reached_per_s: float = 0.0
    """Responses per second."""


@dataclass(frozen=True, slots=True)
class NextStep:
    """The next step."""

    step: SearchStep
    per_s: float | None


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The end of a search."""

    per_s: float | None
    """The highest confirmed rate that met the goal; None: none."""
    beyond: JudgedStep | None
    """The lowest rate that did not meet it."""
    text: str
    """The result in one sentence."""

    @property
    def is_knee(self) -> bool:
        """Return whether the server was the limit, not the load generator."""
        return self.per_s is not None and self.beyond is not None and self.beyond.outcome == "missed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Knee:
    """The search of one cell."""

    cell: str
    """Its levels; "" if nothing varies."""
    goal: Goal
    steps: tuple[tuple[JudgedStep, Summary], ...]
    result: SearchResult


def find_knees(plan: Plan, summaries: Sequence[Summary]) -> list[Knee]:
    """Return the result of each cell's search so far; empty for a plan that is not a search."""
    if plan.search is None:
        return []
    goal = parse_goal(plan.search.goal)
    by_run = {summary.run: summary for summary in summaries}
    knees = []
    for first in first_steps(plan):
        runs = [run for run in steps_of(plan, first) if run.id in by_run]
        judged = judge_steps(runs, by_run, goal)
        following = decide_next(judged, plan.search)
        unfinished = SearchResult(None, None, "not finished: continue with --resume")
        result = following if isinstance(following, SearchResult) else unfinished
        name = " · ".join(escape_line(level) for key, level in first.cell.levels.items() if key != RATE_KEY)
        rows = tuple((step, by_run[run.id]) for step, run in zip(judged, runs, strict=True))
        knees.append(Knee(cell=name, goal=goal, steps=rows, result=result))
    return knees


def first_steps(plan: Plan) -> list[Run]:
    """Return the first step of each cell's search."""
    return [run for run in plan.runs if run.step == "estimate" and run.replicate == 1]


def steps_of(plan: Plan, first: Run) -> list[Run]:
    """Return all steps of the search that begins with *first*, in order."""
    levels = without_rate(first.cell).levels
    return [run for run in plan.runs if run.step and without_rate(run.cell).levels == levels]


def judge_steps(steps: Sequence[Run], summaries: Mapping[str, Summary], goal: Goal) -> list[JudgedStep]:
    """Return the judgement of each step."""
    rates = ((run, run.cell.load.arrivals.rate) for run in steps)
    return [judge_step(run.step, rate.per_s if rate else None, summaries[run.id], goal) for run, rate in rates]


def without_rate(cell: Cell) -> Cell:
    """Return the cell whose rate is searched."""
    levels = {key: level for key, level in cell.levels.items() if key != RATE_KEY}
    # The rate is the last part of the name.
    return dataclasses.replace(cell, name=cell.name.rpartition("+")[0] or "only", levels=levels)


def judge_step(step: SearchStep, per_s: float | None, summary: Summary, goal: Goal) -> JudgedStep:
    """Return what a run says about its rate. A run that is invalid for another reason says nothing: "broken"."""
    answered = summary.values.get("requests_answered")
    reached_per_s = answered / summary.measured_s if isinstance(answered, int) and summary.measured_s else 0.0
    outcome: Outcome = "met"
    reason = ""
    if step == "estimate":
        if not reached_per_s:
            outcome, reason = "broken", summary.reason or "no request was answered"
    elif summary.state == "measured":
        misses = goal.list_misses(summary.values)
        if rise := _steady_rise(summary):
            misses.append(f"the queue grew: response time rose by {rise * 1000:.0f}ms each second")
        if misses:
            outcome, reason = "missed", ", ".join(misses)
    elif summary.state in {"oom", "aborted"} or summary.invalid_for[:1] == ("no response",):
        outcome, reason = "missed", summary.reason
    elif summary.invalid_for[:1] == ("generator",):
        outcome, reason = "generator", summary.reason
    else:
        outcome, reason = "broken", f"{summary.state}: {summary.reason}"
    return JudgedStep(step=step, per_s=per_s, outcome=outcome, reason=reason, reached_per_s=reached_per_s)


def decide_next(steps: Sequence[JudgedStep], search: Search) -> NextStep | SearchResult:
    """Return the next step, or the result."""
    if not steps:
        return NextStep("estimate", None)
    if steps[-1].outcome == "broken":
        # One broken run is chance, two are the machine.
        if len(steps) > 1 and steps[-2].outcome == "broken":
            return SearchResult(None, None, f"given up after two broken runs: {steps[-1].reason}")
        return _unless_exhausted(NextStep(steps[-1].step, steps[-1].per_s), steps, search)
    estimate = next(item.reached_per_s for item in steps if item.step == "estimate" and item.outcome != "broken")
    lowest_miss = min((item for item in steps if item.outcome in ("missed", "generator")), key=_rate, default=None)
    below = math.inf if lowest_miss is None else _rate(lowest_miss)
    met = [item for item in steps if item.per_s is not None and item.outcome == "met" and item.per_s < below]
    best = max(met, key=_rate, default=None)
    if best is None:
        if lowest_miss is None:
            return NextStep("ramp", round_rate(estimate / 2))
        if below / 2 < estimate * _MIN_SHARE or round_rate(below / 2) >= below:
            return SearchResult(None, lowest_miss, f"not even {_format(below)} meets the goal: {lowest_miss.reason}")
        return _unless_exhausted(NextStep("ramp", round_rate(below / 2)), steps, search)
    at = _rate(best)
    is_last = search.max_runs - len(steps) <= 1
    middle = round_rate(math.sqrt(at * below)) if lowest_miss is not None else round_rate(at * 2)
    is_close = below / at <= 1 + search.tolerance_ppm / 1e6 or middle in (at, below)
    # A confirmation as the last allowed run is no end if more runs were allowed since.
    if (is_close or is_last) and any(item.step == "confirm" and item.per_s == at for item in met):
        return SearchResult(at, lowest_miss, _describe_result(at, lowest_miss))
    step: SearchStep = "confirm" if is_close or is_last else "bisect" if lowest_miss is not None else "ramp"
    return _unless_exhausted(NextStep(step, at if step == "confirm" else middle), steps, search)


def round_rate(per_s: float) -> float:
    """Return the rate with three digits, because it is a name, too; limited to the rates that a load can have."""
    return float(f"{min(max(per_s, MIN_PER_S), MAX_PER_S['requests']):.3g}")


def _unless_exhausted(following: NextStep, steps: Sequence[JudgedStep], search: Search) -> NextStep | SearchResult:
    if len(steps) < search.max_runs:
        return following
    runs = format_count(len(steps), "run")
    return SearchResult(None, None, f"given up after {runs} without a confirmed rate; allow more by --max-runs")


def _rate(step: JudgedStep) -> float:
    return step.per_s or 0.0


def _format(per_s: float) -> str:
    return f"{per_s:,.6g} requests/s"


def _describe_result(per_s: float, beyond: JudgedStep | None) -> str:
    if beyond is None:
        return f"{_format(per_s)} meets the goal, and nothing higher was tried: allow more by --max-runs"
    higher = _format(_rate(beyond))
    if beyond.outcome == "generator":
        return f"{_format(per_s)} meets the goal; at {higher} the load generator was the limit: {beyond.reason}"
    return f"{_format(per_s)} meets the goal, {higher} does not: {beyond.reason}"


def _steady_rise(summary: Summary) -> float:
    """Return the rise of the response time in seconds per second; 0 if it is small or may be chance.

    The last second is excluded, because it contains the requests that were answered after the end.
    """
    series, start_ns, end_ns = summary.series.get("response_ms_p50"), summary.measure_start_ns, summary.measure_end_ns
    if series is None or start_ns is None or end_ns is None:
        return 0.0
    last_ns = start_ns + ((end_ns - start_ns) // 10**9 - 1) * 10**9
    points = [(at, ms) for at, ms in zip(series.at_ns, series.values, strict=True) if start_ns <= at < last_ns]
    if len(points) < _MIN_SECONDS:
        return 0.0
    seconds, response_s = [(at - start_ns) / 1e9 for at, _ in points], [ms / 1e3 for _, ms in points]
    (rise, _), covariance = np.polyfit(seconds, response_s, 1, cov=True)
    is_significant = rise > student.quantile(len(points) - 2, _RISE_CONFIDENCE) * math.sqrt(covariance[0, 0])
    return float(rise) if rise > _MIN_RISE and is_significant else 0.0
