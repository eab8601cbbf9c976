"""The search for the highest rate of each cell: decide a step, plan it, run it, judge it.

The steps cannot be known before. plan.json holds those that were decided, each written before it runs; which one comes
next follows from the results alone. A search that was interrupted goes on from its folder.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from ingest_bench.analysis.compare import cells
from ingest_bench.analysis.search import goals, knees, next_step
from ingest_bench.analysis.search.next_step import Found, Next
from ingest_bench.errors import SpecError
from ingest_bench.experiment import spec
from ingest_bench.lab import campaign, evaluation, runner
from ingest_bench.model.experiment import Cell, Factor, Plan, Run, Search
from ingest_bench.model.load import LONGEST_NS, Arrivals, LoadOptions, Rate
from ingest_bench.model.results import Summary
from ingest_bench.results.layout import Results
from ingest_bench.units import format_time

# The confirmation measures so much longer than a step: a queue that grows slowly shows.
_CONFIRM_LONGER = 2
_SHAPES = ("closed", "constant")


def plan_of(ordered: Plan, rules: Search) -> Plan:
    """The plan with which a search begins: the estimate of each cell, once, without costly probes."""
    try:
        rules = dataclasses.replace(rules, goal=goals.parse(rules.goal).text)
    except ValueError as error:
        raise SpecError(f"--find-max: {error}") from None
    plain = {run.cell.name: run.cell for run in ordered.runs if not run.instrumented and run.replicate == 1}
    for cell in plain.values():
        _check(cell)
    estimates = [_run(cell, Next("estimate", None), 1) for cell in plain.values()]
    return _with(dataclasses.replace(ordered, search=rules), estimates)


def most_runs(plan: Plan) -> int:
    """How many runs there are at most."""
    return len(knees.beginnings(plan)) * plan.search.most_runs if plan.search else len(plan.runs)


def allow(results: Results, runs: int) -> None:
    """Let the search take so many runs in each cell from now on; whoever calls this has `taken` the results."""
    plan = results.plan
    if plan.search is not None:
        results.replace_plan(dataclasses.replace(plan, search=dataclasses.replace(plan.search, most_runs=runs)))


def carry_out(results: Results, options: runner.RunOptions, watcher: campaign.Watcher) -> list[Summary]:
    """The summaries of all steps, after doing what the search still needs; tables are up to date after each."""
    found = {summary.run: summary for summary in evaluation.summaries(results, options.java_home, campaign.DONE)}
    done = {name for name, record in results.records().items() if record.state in campaign.DONE}
    number = len(done)
    for first in knees.beginnings(results.plan):
        while (planned := _next(results, first, found, done)) is not None:
            number += 1
            watcher.begin(number, f"{planned.id} ({planned.step})", left=most_runs(results.plan) - number + 1)
            found[planned.id] = campaign.one(results, planned, options, watcher)
            # A run that failed is done for now; --resume does it again.
            done.add(planned.id)
            evaluation.write_tables(results, list(found.values()))
    return cells.in_order(found.values(), results.plan.factors)


def _next(results: Results, first: Run, found: dict[str, Summary], done: set[str]) -> Run | None:
    """The run that this search needs now, written to plan.json; None at its end."""
    plan = results.plan
    rules = plan.search
    if rules is None:
        raise SpecError(f"{results.path}: its plan is not a search")
    steps = knees.steps_of(plan, first)
    undone = next((run for run in steps if run.id not in done), None)
    if undone is not None:
        return undone
    decided = next_step.decide(knees.tried(steps, found, goals.parse(rules.goal)), rules)
    if isinstance(decided, Found):
        return None
    planned = _run(knees.without_rate(first.cell), decided, 1)
    same = sum(run.cell.name == planned.cell.name for run in steps)
    planned = dataclasses.replace(planned, id=f"{planned.cell.name}/{same + 1}", replicate=same + 1)
    results.replace_plan(_with(plan, [*plan.runs, planned]))
    return planned


def _check(cell: Cell) -> None:
    if cell.load.track is not None:
        raise SpecError("--find-max: a track says its own rates; search with a workload or with --documents")
    if cell.load.measure_documents is not None:
        raise SpecError("--find-max: its steps last a time, not a number of documents; take --measure")
    if cell.load.measure_ns * _CONFIRM_LONGER > LONGEST_NS:
        raise SpecError(
            f"--find-max: its last run measures {_CONFIRM_LONGER} times as long as the others, and no run longer than "
            f"{format_time(LONGEST_NS)}; {format_time(cell.load.measure_ns)} is too long, take --measure "
            f"{format_time(LONGEST_NS / _CONFIRM_LONGER)} or less"
        )
    if any(key.removeprefix("load.").startswith(knees.KEY) for key in cell.levels):
        raise SpecError("--find-max chooses the rate: take the factor arrivals out")
    if cell.load.arrivals.shape not in _SHAPES:
        shape = cell.load.arrivals.shape
        raise SpecError(f'--find-max: "{shape}" arrivals have no one rate; take one of {", ".join(_SHAPES)}')


def _run(cell: Cell, decided: Next, replicate: int) -> Run:
    """A step as an ordinary run of a cell with one level more: its rate."""
    level = "closed" if decided.per_s is None else f"{decided.per_s:.6g}/s"
    levels = cell.levels | {knees.KEY: level}
    cell = dataclasses.replace(cell, name=spec.cell_name(levels), levels=levels, load=_load(cell.load, decided))
    return Run(id=f"{cell.name}/{replicate}", cell=cell, replicate=replicate, step=decided.step)


def _load(options: LoadOptions, decided: Next) -> LoadOptions:
    arrivals = Arrivals()
    if decided.per_s is not None:
        arrivals = Arrivals(shape="constant", rate=Rate(decided.per_s))
    longer = _CONFIRM_LONGER if decided.step == "confirm" else 1
    return dataclasses.replace(options, arrivals=arrivals, measure_ns=options.measure_ns * longer)


def _with(plan: Plan, runs: Iterable[Run]) -> Plan:
    """The plan with these runs, its factors listing the rates that there are."""
    runs = tuple(runs)
    rates = {run.cell.levels[knees.KEY]: run.cell.load.arrivals.rate for run in runs}
    ordered = sorted(rates, key=lambda level: rate.per_s if (rate := rates[level]) else 0.0)
    kept = tuple(factor for factor in plan.factors if factor.key != knees.KEY)
    return dataclasses.replace(plan, runs=runs, factors=(*kept, Factor(key=knees.KEY, levels=tuple(ordered))))
