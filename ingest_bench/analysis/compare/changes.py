"""What changed from one result to another: the same cells, compared by one number a run. Pure.

Two cells are the same where their names are. Where no name is on both sides, what is compared are the settings with one
level in all of the first result and another in all of the second, such as the Java: cells whose other levels agree
belong together then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ingest_bench.analysis.compare import cells, comparable, comparison
from ingest_bench.analysis.compare.cells import CellRuns
from ingest_bench.analysis.compare.comparable import Results
from ingest_bench.analysis.compare.comparison import Comparison
from ingest_bench.analysis.run import per_gb
from ingest_bench.model.results import Summary

_Pairs = list[tuple[CellRuns, CellRuns]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """All comparisons of two results, judged together, and why others are not there."""

    found: tuple[Comparison, ...] = ()
    """By column, in the order of the cells. Never paired: the results are of different times."""
    refused: tuple[str, ...] = ()
    """Why the two may not be compared at all; `found` is empty then."""
    notes: tuple[str, ...] = ()
    """How else they differ, and what could not be compared."""

    @property
    def is_verdict(self) -> bool:
        """Whether anything has an interval."""
        return any(each.interval is not None for each in self.found)


def between(before: Results, now: Results, columns: Sequence[str] = comparison.COMPARED) -> Changes:
    """What changed, cell by cell, in each of the columns that both sides have."""
    columns = list(dict.fromkeys(map(per_gb.compared, columns)))
    refused, notes = comparable.machines(before.facts, now.facts)
    if not (before.facts and now.facts):
        notes = [comparable.NO_FACTS]
    pairs, differing = _same_cells(before.summaries, now.summaries)
    if not pairs:
        refused.append(f"no cell is in both: {_names(before.summaries)}; and {_names(now.summaries)}")
    others = [comparable.experiments(one.runs, other.runs) for one, other in pairs]
    if pairs and all(others):
        refused.append(others[0])
    if refused:
        return Changes(refused=tuple(refused), notes=tuple(notes))
    notes = [*differing, *notes]
    notes += [f"{one.name} is not compared: {why}" for (one, _), why in zip(pairs, others, strict=True) if why]
    pairs = [pair for pair, why in zip(pairs, others, strict=True) if not why]
    told = [text for one, other in pairs for text in comparable.servers(one.runs, other.runs)]
    notes += [text for text in dict.fromkeys(told) if text not in notes]
    notes += _left_out(pairs, before.summaries, now.summaries)
    found = [comparison.of_cells(column, *pair, paired=False) for column in columns for pair in pairs]
    known = comparison.judged([each for each in found if each is not None])
    has = {each.column for each in known}
    notes += [f"{column} was not measured on both sides" for column in columns if column not in has]
    return Changes(found=tuple(known), notes=tuple(notes))


def _same_cells(before: Sequence[Summary], now: Sequence[Summary]) -> tuple[_Pairs, list[str]]:
    """The cells that belong together, and which settings are what is compared."""
    ones, others = cells.group(before), cells.group(now)
    named = {row.name: row for row in others}
    if pairs := [(row, named[row.name]) for row in ones if row.name in named]:
        return pairs, []
    keys = dict.fromkeys(key for run in (*before, *now) for key in run.levels)
    sides = [{key: {run.levels.get(key, "") for run in side} for key in keys} for side in (before, now)]
    # A summary.csv has an empty cell where a run has no such level.
    compared = [
        key for key in keys if all(len(side[key]) == 1 for side in sides) and sides[0][key].isdisjoint(sides[1][key])
    ]
    by_rest = [_by_levels(rows, [key for key in keys if key not in compared]) for rows in (ones, others)]
    pairs = [(row, by_rest[1][levels]) for levels, row in by_rest[0].items() if levels in by_rest[1]]
    texts = [tuple(next(iter(side[key])) or "not set" for side in sides) for key in compared]
    return pairs, [f"compared: {key}, {one} to {other}" for key, (one, other) in zip(compared, texts, strict=True)]


def _by_levels(rows: Sequence[CellRuns], keys: Sequence[str]) -> Mapping[tuple[str, ...], CellRuns]:
    """The cells by these levels, without those of which several have the same."""
    found: dict[tuple[str, ...], list[CellRuns]] = {}
    for row in rows:
        found.setdefault(tuple(row.levels.get(key, "") for key in keys), []).append(row)
    return {levels: several[0] for levels, several in found.items() if len(several) == 1}


def _left_out(pairs: _Pairs, before: Sequence[Summary], now: Sequence[Summary]) -> list[str]:
    notes = []
    for side, runs, place in (("first", before, 0), ("second", now, 1)):
        there = {pair[place].name for pair in pairs}
        notes += [f"only the {side} has the cell {row.name}" for row in cells.group(runs) if row.name not in there]
        notes += [
            f"{run.run} of the {side} is {run.state}{': ' + run.reason if run.reason else ''}"
            for run in runs
            if run.cell in there and run.state != "measured"
        ]
    return notes


def _names(runs: Sequence[Summary]) -> str:
    return ", ".join(row.name for row in cells.group(runs)) or "nothing"
