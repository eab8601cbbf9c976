"""The search for the highest rate of each cell: decide a step, plan it, run it, judge it.

Steps depend on earlier results. plan.json has the decided ones, each written before it runs; the next one follows from
the results alone. So an interrupted search resumes from its folder.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterable, Mapping, Sequence

from ingest_bench.analysis import search
from ingest_bench.analysis.search import NextStep
from ingest_bench.errors import SpecError
from ingest_bench.experiment import spec
from ingest_bench.model.experiment import Cell, Factor, Plan, Run, Search
from ingest_bench.model.load import MAX_MEASURE_NS, Arrivals, Rate
from ingest_bench.model.results import Summary
from ingest_bench.results.layout import Results
from ingest_bench.units import format_time

# The confirmation is longer than a step, to show a queue that grows slowly.
_CONFIRM_FACTOR = 2
_SHAPES = ("closed", "constant")


def plan_search(ordered: Plan, rules: Search) -> Plan:
    """Return the initial plan of a search: one estimate per cell, without costly probes."""
    try:
        rules = dataclasses.replace(rules, goal=search.parse_goal(rules.goal).text)
    except ValueError as error:
        raise SpecError(f"--find-max: {error}") from None
    plain = {run.cell.name: run.cell for run in ordered.runs if not run.instrumented and run.replicate == 1}
    for cell in plain.values():
        _check(cell)
    estimates = [_run(cell, NextStep("estimate", None)) for cell in plain.values()]
    return _with(dataclasses.replace(ordered, search=rules), estimates)


def max_runs(plan: Plan) -> int:
    """Return the maximum number of runs."""
    return len(search.first_steps(plan)) * plan.search.max_runs if plan.search else len(plan.runs)


def extend_search(results: Results, runs: int) -> None:
    """Set the maximum number of runs per cell. The caller holds the lock of the results (`lock_results`)."""
    plan = results.plan
    if plan.search is not None:
        results.replace_plan(dataclasses.replace(plan, search=dataclasses.replace(plan.search, max_runs=runs)))


def next_run(results: Results, summaries: Mapping[str, Summary], done: Container[str]) -> Run | None:
    """Return the next run of a search, written to plan.json; None at its end."""
    plan, rules = results.plan, results.plan.search
    assert rules is not None  # noqa: S101 - only a search has steps
    goal = search.parse_goal(rules.goal)
    for first in search.first_steps(plan):
        steps = search.steps_of(plan, first)
        if undone := next((run for run in steps if run.id not in done), None):
            return undone
        decided = search.decide_next(search.judge_steps(steps, summaries, goal), rules)
        if isinstance(decided, NextStep):
            planned = _run(search.without_rate(first.cell), decided, steps)
            results.replace_plan(_with(plan, [*plan.runs, planned]))
            return planned
    return None


def _check(cell: Cell) -> None:
    if cell.load.track is not None:
        raise SpecError("--find-max conflicts with a track, which sets its rates. Use a workload or --documents.")
    if cell.load.measure_documents is not None:
        raise SpecError("--find-max: steps have a duration, not a number of documents. Use --measure.")
    if cell.load.measure_ns * _CONFIRM_FACTOR > MAX_MEASURE_NS:
        raise SpecError(
            f"--find-max: its last run measures {_CONFIRM_FACTOR} times as long as the others, and at most "
            f"{format_time(MAX_MEASURE_NS)}. Reduce --measure from {format_time(cell.load.measure_ns)} to "
            f"{format_time(MAX_MEASURE_NS / _CONFIRM_FACTOR)} or less."
        )
    if any(key.removeprefix("load.").startswith(search.RATE_KEY) for key in cell.levels):
        raise SpecError("--find-max conflicts with the factor arrivals: it sets the rate")
    if cell.load.arrivals.shape not in _SHAPES:
        shape = cell.load.arrivals.shape
        raise SpecError(f'--find-max: "{shape}" arrivals have no constant rate. Use {" or ".join(_SHAPES)}.')


def _run(cell: Cell, decided: NextStep, earlier: Iterable[Run] = ()) -> Run:
    """Return a step as an ordinary run of a cell with one more level: its rate."""
    level, arrivals = "closed", Arrivals()
    if decided.per_s is not None:
        level, arrivals = f"{decided.per_s:.6g}/s", Arrivals(shape="constant", rate=Rate(decided.per_s))
    factor = _CONFIRM_FACTOR if decided.step == "confirm" else 1
    load = dataclasses.replace(cell.load, arrivals=arrivals, measure_ns=cell.load.measure_ns * factor)
    cell = spec.add_level(dataclasses.replace(cell, load=load), search.RATE_KEY, level)
    replicate = 1 + sum(run.cell.name == cell.name for run in earlier)
    return Run(id=f"{cell.name}/{replicate}", cell=cell, replicate=replicate, step=decided.step)


def _with(plan: Plan, runs: Sequence[Run]) -> Plan:
    """Return the plan with these runs, and their rates as levels of a factor."""
    rates = {run.cell.levels[search.RATE_KEY]: run.cell.load.arrivals.rate for run in runs}
    ordered = sorted(rates, key=lambda level: rate.per_s if (rate := rates[level]) else 0.0)
    other_factors = (factor for factor in plan.factors if factor.key != search.RATE_KEY)
    factors = (*other_factors, Factor(key=search.RATE_KEY, levels=tuple(ordered)))
    return dataclasses.replace(plan, runs=tuple(runs), factors=factors)
