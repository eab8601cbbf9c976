"""Trend of repeated results: histories of each column of each cell, level changes, and facts that changed with them.

A point of a history is one result, or several of one day whose facts agree, because the machine was the same that day.
Its number is the median over the runs. The histories of a table share the 5% level (Bonferroni): of all tables without
any change, about 1 in 20 reports one. A step is detectable three results after it.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

from ingest_bench.analysis import level_changes
from ingest_bench.analysis.compare import cells, changes, comparison
from ingest_bench.analysis.compare.cells import CellRuns
from ingest_bench.analysis.compare.changes import Results
from ingest_bench.analysis.compare.comparison import Comparison
from ingest_bench.analysis.run.columns import compared_column
from ingest_bench.units import format_count

# Experiment, cell, workload, network.
_Key = tuple[str, str, str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class DatedResult:
    """The results of one experiment at one time."""

    start: str
    """Such as 2026-11-22T04-00-00Z; the earliest if there are several."""
    experiment: str
    results: tuple[Results, ...]

    @property
    def facts(self) -> Mapping[str, Any]:
        """Return the facts of the machine, on which all results agree."""
        return self.results[0].facts


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A step of a history."""

    place: int
    """Index of the first point with the new level."""
    compared: Comparison
    """The levels before and after it, and the interval of the difference."""
    facts: tuple[str, ...]
    """Facts that changed at the same point, or one point earlier or later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """One column of one cell over time."""

    experiment: str
    cell: str
    column: str
    dates: tuple[str, ...]
    values: tuple[float, ...]
    line: tuple[float, ...]
    """The values without noise."""
    outliers: tuple[int, ...]
    """Indices of ignored points."""
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """All histories, judged together, and why others are missing."""

    histories: tuple[History, ...]
    notes: tuple[str, ...]


@dataclass(slots=True)
class _Points:
    """The points of a history."""

    results: list[DatedResult] = field(default_factory=list)
    rows: list[tuple[CellRuns, ...]] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)
    """Results since the first point that have no number, each with the reason."""


def find_trend(results: Iterable[DatedResult], columns: Sequence[str] = comparison.DEFAULT_COLUMNS) -> Trend:
    """Return the histories of these columns for all cells with at least 6 points, in the order of the columns."""
    by_history: dict[tuple[str, _Key], _Points] = {}
    columns = list(dict.fromkeys(map(compared_column, columns)))
    merged = merge_same_day(results)
    for column, result in itertools.product(columns, merged):
        _add_result(by_history, column, result)
    minimum = level_changes.MIN_RESULTS
    long_enough = {key: points for key, points in by_history.items() if len(points.values) >= minimum}
    level = level_changes.LEVEL / max(1, len(long_enough))
    notes = [
        f"{key[1]}: {column}: {format_count(len(points.values), 'result')}; at least {minimum} are required"
        for (column, key), points in by_history.items()
        if len(points.values) < minimum
    ]
    measured = {column for column, _ in by_history}
    notes += [f"{column} was not measured" for column in columns if column not in measured]
    notes += [
        f"{key[1]}: no number in {len(points.gaps)} of {len(points.gaps) + len(points.values)} results,"
        f" the last of them {points.gaps[-1]}"
        for (_, key), points in long_enough.items()
        if points.gaps
    ]
    histories = tuple(_build_history(column, key, points, level) for (column, key), points in long_enough.items())
    return Trend(histories=histories, notes=tuple(dict.fromkeys(notes)))


def merge_same_day(results: Iterable[DatedResult]) -> list[DatedResult]:
    """Return the results in order; those of one experiment and day are merged if their facts agree."""
    merged: list[DatedResult] = []
    latest: dict[str, int] = {}
    for result in sorted(results, key=lambda item: item.start):
        place = latest.get(result.experiment)
        if place is not None and _is_same_day(merged[place], result):
            merged[place] = dataclasses.replace(merged[place], results=(*merged[place].results, *result.results))
        else:
            latest[result.experiment] = len(merged)
            merged.append(result)
    return merged


def _is_same_day(first: DatedResult, second: DatedResult) -> bool:
    return first.start[:10] == second.start[:10] and not any(changes.compare_facts(first.facts, second.facts))


def _add_result(by_history: dict[tuple[str, _Key], _Points], column: str, result: DatedResult) -> None:
    """Add a point to each history that the result has a number for, and a gap to those that it lacks."""
    rows_by_key: dict[_Key, list[CellRuns]] = {}
    for row in itertools.chain.from_iterable(cells.group_by_cell(part.summaries) for part in result.results):
        run = next((run for run in row.runs if run.state == "measured"), row.runs[0])
        workload, network = (str(run.values.get(name) or "") for name in ("workload", "network"))
        rows_by_key.setdefault((result.experiment, run.cell, workload, network), []).append(row)
    for key, rows in rows_by_key.items():
        if numbers := [number for row in rows for number in row.numbers(column)]:
            points = by_history.setdefault((column, key), _Points())
            points.results.append(result)
            points.rows.append(tuple(rows))
            points.values.append(median(numbers))
    for (of_column, key), points in by_history.items():
        if of_column == column and key[0] == result.experiment and points.results[-1] is not result:
            of_name = next((rows for other, rows in rows_by_key.items() if other[1] == key[1]), [])
            points.gaps.append(f"{result.start}: {_describe_gap(rows_by_key.get(key) or of_name)}")


def _describe_gap(rows: Sequence[CellRuns]) -> str:
    runs = [run for row in rows for run in row.runs]
    if not runs:
        return "it has no such cell"
    unmeasured = next((run for run in runs if run.state != "measured"), None)
    if unmeasured is None:
        return "the column was not measured, or workload or network differ"
    return f"{unmeasured.run} is {unmeasured.ending}"


def _build_history(column: str, key: _Key, points: _Points, level: float) -> History:
    levels = level_changes.find_level_changes(points.values, level=level, least_spread=_min_spread(column, points))
    return History(
        experiment=key[0],
        cell=key[1],
        column=column,
        dates=tuple(result.start for result in points.results),
        values=tuple(points.values),
        line=levels.line,
        outliers=levels.outliers,
        changes=tuple(_build_change(column, key[1], points, step) for step in levels.steps),
    )


def _min_spread(column: str, points: _Points) -> float:
    """Return the lower limit of a point's standard deviation, as caused by events."""
    floor = comparison.variance_floor(column, list(itertools.chain.from_iterable(points.rows)))
    runs = median(sum(len(row.numbers(column)) for row in rows) for rows in points.rows)
    # Variance of a median relative to a run's (Chu and Hotelling 1955): 0.44 for 3 runs; of a mean of 3 it is 0.33.
    share = math.pi / (2 * (runs - 1) + math.pi)
    return math.sqrt(share * (floor.event * max(fmean(points.values), 0.0) + floor.constant))


def _build_change(column: str, cell: str, points: _Points, step: level_changes.Step) -> Change:
    name = f"{cell} from {points.results[step.place].start}"
    compared = Comparison(
        column=column,
        first=name,
        second=name,
        first_runs=step.place,
        second_runs=len(points.values) - step.place,
        first_mean=step.before,
        second_mean=step.before + step.size,
        error=step.error,
        freedom=step.freedom,
        step_interval=step.relative,
        is_distinct=True,
    )
    return Change(place=step.place, compared=compared, facts=_changed_facts(points, step.place))


def _changed_facts(points: _Points, place: int) -> tuple[str, ...]:
    """Return the facts that changed at *place*, and one point earlier and later: the place may be off by one."""
    facts = []
    for index, prefix in ((place, ""), (place - 1, "one result earlier: "), (place + 1, "one result later: ")):
        if 0 < index < len(points.results):
            before, now = points.results[index - 1].facts, points.results[index].facts
            runs = ((run for row in points.rows[number] for run in row.valid) for number in (index - 1, index))
            texts = [*itertools.chain(*changes.compare_facts(before, now)), *changes.list_server_changes(*runs)]
            facts += [f"{prefix}{text}" for text in texts]
    return tuple(facts)
