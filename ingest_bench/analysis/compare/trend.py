"""What changed over nights: each column of each cell as a history, its steps, and which facts changed with them. Pure.

A night is one result, or several of one day whose facts agree: runs of one day share what the machine was that day.
Its number is the median over the runs. The histories of a table share the 5% (Bonferroni): of all tables in which
nothing changed, about one in twenty says that something did. A step is known when it is three nights old.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

from ingest_bench.analysis.compare import cells, comparable, comparison
from ingest_bench.analysis.compare.cells import CellRuns
from ingest_bench.analysis.compare.comparable import Results
from ingest_bench.analysis.compare.comparison import Comparison
from ingest_bench.analysis.numbers import level_changes
from ingest_bench.analysis.run import per_gb
from ingest_bench.inputs.visible import one_line
from ingest_bench.model.results import Summary
from ingest_bench.units import count_of

# What a row says of its server. Workload and network are what a history is of.
_OF_SERVER = ("target", "java", "gc_collector", "heap_bytes", "receive_predictor_bytes")
_Key = tuple[str, str, str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Night:
    """What one experiment gave at one time."""

    start: str
    """Such as 2026-11-22T04-00-00Z; the first one's, of several."""
    experiment: str
    results: tuple[Results, ...]

    @property
    def facts(self) -> Mapping[str, Any]:
        """Of all of them: they agree."""
        return self.results[0].facts


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A step of a history."""

    place: int
    """Of the first night that has the new level, among those of the history."""
    compared: Comparison
    """The level before and after it, as of that night, and the interval of the difference."""
    facts: tuple[str, ...]
    """What else changed then, or one night earlier or later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """One column of one cell, night by night."""

    experiment: str
    cell: str
    column: str
    nights: tuple[str, ...]
    values: tuple[float, ...]
    line: tuple[float, ...]
    """The same without its noise."""
    odd: tuple[int, ...]
    """Places of nights that lie alone, far from it."""
    changes: tuple[Change, ...]
    gaps: tuple[str, ...] = ()
    """The nights since its first that have no number, each with the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """All histories, judged together, and why others are not there."""

    histories: tuple[History, ...]
    notes: tuple[str, ...]


@dataclass(slots=True)
class _Points:
    """A history before it is judged."""

    nights: list[Night] = field(default_factory=list)
    runs: list[tuple[CellRuns, ...]] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)


def trend(nights: Iterable[Night], columns: Sequence[str] = comparison.COMPARED) -> Trend:
    """The histories of these columns in every cell that has 6 nights of them, in the order of the columns."""
    found: dict[tuple[str, _Key], _Points] = {}
    columns = list(dict.fromkeys(map(per_gb.compared, columns)))
    ordered = together(nights)
    for column in columns:
        for night in ordered:
            _add(found, column, night)
    enough = {key: points for key, points in found.items() if len(points.values) >= level_changes.FEWEST_NIGHTS}
    level = level_changes.LEVEL / max(1, len(enough))
    histories = tuple(_history(column, key, points, level) for (column, key), points in enough.items())
    few = [
        f"{key[1]}: {column}: {count_of(len(points.values), 'night')}; it takes {level_changes.FEWEST_NIGHTS}"
        for (column, key), points in found.items()
        if len(points.values) < level_changes.FEWEST_NIGHTS
    ]
    has = {column for column, _ in found}
    notes = [*few, *(f"{column} was not measured" for column in columns if column not in has), *_gaps(histories)]
    return Trend(histories=histories, notes=tuple(dict.fromkeys(notes)))


def together(nights: Iterable[Night]) -> list[Night]:
    """In their order, those of one experiment and one day as one night, where their facts agree."""
    found: list[Night] = []
    last: dict[str, int] = {}
    for night in sorted(nights, key=lambda each: each.start):
        place = last.get(night.experiment)
        if place is not None and _is_same(found[place], night):
            before = found[place]
            merged = (*before.results, *night.results)
            found[place] = Night(start=before.start, experiment=before.experiment, results=merged)
        else:
            last[night.experiment] = len(found)
            found.append(night)
    return found


def _is_same(one: Night, other: Night) -> bool:
    return one.start[:10] == other.start[:10] and not any(comparable.machines(one.facts, other.facts))


def _add(found: dict[tuple[str, _Key], _Points], column: str, night: Night) -> None:
    """The night's point in each history that it has, and a gap in those that it should have."""
    rows: dict[_Key, list[CellRuns]] = {}
    for row in itertools.chain.from_iterable(cells.group(result.summaries) for result in night.results):
        rows.setdefault(_key(night.experiment, row.runs), []).append(row)
    for key, of_cell in rows.items():
        numbers = [number for row in of_cell for number in row.numbers(column)]
        if numbers:
            points = found.setdefault((column, key), _Points())
            points.nights.append(night)
            points.runs.append(tuple(of_cell))
            points.values.append(median(numbers))
    for (of_column, key), points in found.items():
        if of_column == column and key[0] == night.experiment and points.nights[-1] is not night:
            points.gaps.append(f"{night.start}: {_why_not(rows.get(key) or _of_name(rows, key[1]))}")


def _key(experiment: str, runs: Sequence[Summary]) -> _Key:
    """What a history is of: experiment, cell, workload, network."""
    known = next((run for run in runs if run.state == "measured"), runs[0])
    return experiment, known.cell, str(known.values.get("workload") or ""), str(known.values.get("network") or "")


def _of_name(rows: Mapping[_Key, list[CellRuns]], cell: str) -> list[CellRuns]:
    return next((several for key, several in rows.items() if key[1] == cell), [])


def _why_not(rows: Sequence[CellRuns]) -> str:
    runs = [run for row in rows for run in row.runs]
    if not runs:
        return "it has no such cell"
    broken = next((run for run in runs if run.state != "measured"), None)
    if broken is None:
        return "it was not measured, or of another workload or network"
    return f"{broken.run} is {broken.state}{': ' + broken.reason if broken.reason else ''}"


def _history(column: str, key: _Key, points: _Points, level: float) -> History:
    found = level_changes.find(points.values, level=level, least_spread=_least_spread(column, points))
    changes = tuple(_change(column, key[1], points, step) for step in found.steps)
    return History(
        experiment=key[0],
        cell=key[1],
        column=column,
        nights=tuple(night.start for night in points.nights),
        values=tuple(points.values),
        line=found.line,
        odd=found.odd,
        changes=changes,
        gaps=tuple(points.gaps),
    )


def _least_spread(column: str, points: _Points) -> float:
    """Return the least standard deviation of a night's number, as far as the numbers of its runs are made of events."""
    floor = comparison.floor_of(column, list(itertools.chain.from_iterable(points.runs)))
    runs = median(sum(len(row.numbers(column)) for row in rows) for rows in points.runs)
    # The variance of a median (Chu and Hotelling 1955), here 0.44 of a run's for 3 runs; a mean of 3 has 0.33.
    share = math.pi / (2 * (runs - 1) + math.pi)
    return math.sqrt(share * (floor.event * max(fmean(points.values), 0.0) + floor.constant))


def _change(column: str, cell: str, points: _Points, step: level_changes.Step) -> Change:
    name = f"{cell} from {points.nights[step.place].start}"
    compared = Comparison(
        column=column,
        first=name,
        second=name,
        first_runs=step.place,
        second_runs=len(points.values) - step.place,
        first_mean=step.before,
        second_mean=step.before + step.size,
        paired=False,
        error=step.error,
        freedom=step.freedom,
        relative_interval=step.relative,
        is_distinct=True,
    )
    return Change(place=step.place, compared=compared, facts=_facts(points, step.place))


def _facts(points: _Points, place: int) -> tuple[str, ...]:
    """What differs there from the night before; the same one night earlier and later, as the place may be one off."""
    found = list(_differing(points, place))
    for near, word in ((place - 1, "one night earlier"), (place + 1, "one night later")):
        if 0 < near < len(points.nights):
            found += [f"{word}: {text}" for text in _differing(points, near)]
    return tuple(found)


def _differing(points: _Points, place: int) -> Iterable[str]:
    before, now = points.nights[place - 1].facts, points.nights[place].facts
    texts = itertools.chain(*comparable.machines(before, now))
    of_server = (_of_server(points.runs[each]) for each in (place - 1, place))
    texts = itertools.chain(texts, comparable.machines(*of_server)[1])
    return [one_line(text) for text in texts]


def _of_server(rows: Sequence[CellRuns]) -> dict[str, str]:
    """What the rows of a night say of the server."""
    runs = [run for row in rows for run in row.valid]
    told = {name: sorted({str(run.values.get(name) or "") for run in runs} - {""}) for name in _OF_SERVER}
    return {name: " and ".join(values) for name, values in told.items() if values}


def _gaps(histories: Iterable[History]) -> list[str]:
    return [
        f"{each.cell}: no number in {len(each.gaps)} of {len(each.gaps) + len(each.nights)} nights, the last of them"
        f" {each.gaps[-1]}"
        for each in histories
        if each.gaps
    ]
