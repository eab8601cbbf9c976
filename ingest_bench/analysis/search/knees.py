"""What the steps of a search say: for each cell its knee, the highest rate that meets the goal."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ingest_bench.analysis.search import goals, next_step
from ingest_bench.analysis.search.goals import Goal
from ingest_bench.analysis.search.next_step import Found, Tried
from ingest_bench.inputs.visible import one_line
from ingest_bench.model.experiment import Cell, Plan, Run
from ingest_bench.model.results import Summary

# A step is an ordinary cell with one factor more: its rate.
KEY = "arrivals"


@dataclass(frozen=True, slots=True, kw_only=True)
class Knee:
    """The search of one cell."""

    cell: str
    """Its levels; "" where nothing varies."""
    goal: Goal
    steps: tuple[tuple[Tried, Summary], ...]
    found: Found


def knees(plan: Plan, summaries: Sequence[Summary]) -> list[Knee]:
    """The result of each cell's search, as far as it came; none for a plan that is no search."""
    rules = plan.search
    if rules is None:
        return []
    goal = goals.parse(rules.goal)
    by_run = {summary.run: summary for summary in summaries}
    found = []
    for first in beginnings(plan):
        steps = [run for run in steps_of(plan, first) if run.id in by_run]
        seen = tried(steps, by_run, goal)
        decided = next_step.decide(seen, rules)
        end = decided if isinstance(decided, Found) else Found(None, None, "not finished: go on by --resume")
        name = " · ".join(one_line(level) for key, level in first.cell.levels.items() if key != KEY)
        rows = tuple((each, by_run[run.id]) for each, run in zip(seen, steps, strict=True))
        found.append(Knee(cell=name, goal=goal, steps=rows, found=end))
    return found


def beginnings(plan: Plan) -> list[Run]:
    """The first step of each cell's search: there is one such run a cell."""
    return [run for run in plan.runs if run.step == "estimate" and run.replicate == 1]


def steps_of(plan: Plan, first: Run) -> list[Run]:
    """All steps of the search that begins with that run, in the order in which they were decided."""
    own = without_rate(first.cell).levels
    return [run for run in plan.runs if run.step and without_rate(run.cell).levels == own]


def tried(steps: Sequence[Run], found: Mapping[str, Summary], goal: Goal) -> list[Tried]:
    """The steps, judged."""
    return [next_step.judge(run.step, _per_s(run.cell), found[run.id], goal) for run in steps]


def without_rate(cell: Cell) -> Cell:
    """The cell whose rate is searched."""
    return dataclasses.replace(cell, levels={key: level for key, level in cell.levels.items() if key != KEY})


def _per_s(cell: Cell) -> float | None:
    rate = cell.load.arrivals.rate
    return None if rate is None else rate.per_s
