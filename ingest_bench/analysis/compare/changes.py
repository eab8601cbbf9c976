"""Changes between two results: whether they are comparable, and comparisons of each common cell by one number a run.

Cells are matched by name. If no name is on both sides, the compared factors are those with one level in all of the
first result and another one in all of the second, such as the Java version: cells are then matched by their
other levels.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from ingest_bench.analysis.compare import cells, comparison
from ingest_bench.analysis.compare.cells import CellRuns
from ingest_bench.analysis.compare.comparison import Comparison
from ingest_bench.analysis.run.columns import compared_column
from ingest_bench.model.results import Summary

# Facts of the machine that determine how fast a server is. A different kernel, or version of ingest-bench, may be what
# the user wants to compare: such differences are only noted.
_DECISIVE_FACTS = (
    *("machine", "cpu", "cores", "memory_bytes", "cpu_governor"),
    *("transparent_hugepages", "transparent_hugepages_defrag", "numa_balancing", "numad_runs", "swappiness"),
    *("dirty_bytes", "dirty_ratio", "dirty_background_bytes", "dirty_background_ratio", "max_map_count"),
    "tcp_congestion_control",
)
# Contents of the plan's files (`fingerprints`).
_FILES = "files"
_IGNORED_FACTS = ("load_average", _FILES)
# The memory that a kernel reserves for itself varies a little.
_SAME_MEMORY = 0.02
NO_FACTS_NOTE = "unknown whether the machines are the same: a summary.csv has no facts, a results folder has"

_Pairs = list[tuple[CellRuns, CellRuns]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """One side of a comparison."""

    summaries: Sequence[Summary] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Facts of its machine; empty if not recorded."""
    source: str = ""
    """The file of the numbers and its SHA-256, so that a verdict can be traced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """All comparisons of two results, judged together, and why others are missing."""

    comparisons: tuple[Comparison, ...] = ()
    """By column, in the order of the cells. Never paired: the results are of different times."""
    refusals: tuple[str, ...] = ()
    """Why the two are not comparable; `comparisons` is empty then."""
    notes: tuple[str, ...] = ()
    """Further differences, and what could not be compared."""

    @property
    def has_interval(self) -> bool:
        """Return whether any comparison has an interval."""
        return any(comparison.interval is not None for comparison in self.comparisons)


def compare_results(before: Results, now: Results, columns: Sequence[str] = comparison.DEFAULT_COLUMNS) -> Changes:
    """Return the changes of each cell in each of the columns that both sides have."""
    columns = list(dict.fromkeys(map(compared_column, columns)))
    refusals, notes = compare_facts(before.facts, now.facts)
    if not (before.facts and now.facts):
        notes = [NO_FACTS_NOTE]
    pairs, compared_factors = _match_cells(before.summaries, now.summaries)
    if not pairs:
        refusals.append(f"no cell is in both: {_cell_names(before.summaries)}; and {_cell_names(now.summaries)}")
    differences = [find_experiment_difference(first.runs, second.runs) for first, second in pairs]
    if pairs and all(differences):
        refusals.append(differences[0])
    if refusals:
        return Changes(refusals=tuple(refusals), notes=tuple(notes))
    notes = [*compared_factors, *notes]
    named = list(zip(pairs, differences, strict=True))
    notes += [f"{first.name} is not compared: {reason}" for (first, _), reason in named if reason]
    pairs = [pair for pair, reason in named if not reason]
    server_changes = [text for first, second in pairs for text in list_server_changes(first.runs, second.runs)]
    notes += [text for text in dict.fromkeys(server_changes) if text not in notes]
    notes += _describe_uncompared(pairs, before.summaries, now.summaries)
    unjudged = [comparison.compare_cells(column, *pair, paired=False) for column in columns for pair in pairs]
    comparisons = comparison.mark_distinct([item for item in unjudged if item is not None])
    measured = {item.column for item in comparisons}
    notes += [f"{column} was not measured on both sides" for column in columns if column not in measured]
    return Changes(comparisons=tuple(comparisons), notes=tuple(notes))


def _match_cells(before: Sequence[Summary], now: Sequence[Summary]) -> tuple[_Pairs, list[str]]:
    """Return the matching cells, and notes on the compared factors if cells were matched by their other levels."""
    first_rows, second_rows = cells.group_by_cell(before), cells.group_by_cell(now)
    by_name = {row.name: row for row in second_rows}
    if pairs := [(row, by_name[row.name]) for row in first_rows if row.name in by_name]:
        return pairs, []
    keys = dict.fromkeys(key for run in (*before, *now) for key in run.levels)
    sides = [{key: {run.levels.get(key, "") for run in side} for key in keys} for side in (before, now)]
    # A summary.csv has an empty cell if a run has no such level.
    compared = [
        key for key in keys if all(len(side[key]) == 1 for side in sides) and sides[0][key].isdisjoint(sides[1][key])
    ]
    others = [key for key in keys if key not in compared]
    first_by_levels, second_by_levels = (_by_levels(rows, others) for rows in (first_rows, second_rows))
    pairs = [(row, second_by_levels[levels]) for levels, row in first_by_levels.items() if levels in second_by_levels]
    texts = [tuple(next(iter(side[key])) or "not set" for side in sides) for key in compared]
    notes = [f"compared: {key}, {first} to {second}" for key, (first, second) in zip(compared, texts, strict=True)]
    return pairs, notes


def _by_levels(rows: Sequence[CellRuns], keys: Sequence[str]) -> Mapping[tuple[str, ...], CellRuns]:
    """Return the cells by these levels, without ambiguous ones."""
    groups: dict[tuple[str, ...], list[CellRuns]] = {}
    for row in rows:
        groups.setdefault(tuple(row.levels.get(key, "") for key in keys), []).append(row)
    return {levels: group[0] for levels, group in groups.items() if len(group) == 1}


def _describe_uncompared(pairs: _Pairs, before: Sequence[Summary], now: Sequence[Summary]) -> list[str]:
    notes = []
    for side, runs, place in (("first", before, 0), ("second", now, 1)):
        names = {pair[place].name for pair in pairs}
        rows = cells.group_by_cell(runs)
        notes += [f"only the {side} has the cell {row.name}" for row in rows if row.name not in names]
        notes += [
            f"{run.run} of the {side} is {run.state}{': ' + run.reason if run.reason else ''}"
            for run in runs
            if run.cell in names and run.state != "measured"
        ]
    return notes


def _cell_names(runs: Sequence[Summary]) -> str:
    return ", ".join(row.name for row in cells.group_by_cell(runs)) or "nothing"


def compare_facts(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return the differences between facts that forbid a verdict, and those that are only noted.

    A fact that one side lacks is not compared.
    """
    differing = {
        name: f"{name} was {before[name]}, is {now[name]}"
        for name in before
        if name in now and name not in _IGNORED_FACTS and before[name] != now[name]
    }
    first, second = before.get("memory_bytes"), now.get("memory_bytes")
    if isinstance(first, int) and isinstance(second, int) and abs(first - second) <= _SAME_MEMORY * max(first, second):
        differing.pop("memory_bytes", None)
    forbidding = [f"another machine: {text}" for name, text in differing.items() if name in _DECISIVE_FACTS]
    files, new_files = (_fingerprints_by_name(facts.get(_FILES)) for facts in (before, now))
    forbidding += [
        f"the content of {name} differs: {_join(files[name])}, now {_join(new_files[name])}"
        for name in files.keys() & new_files.keys()
        if files[name] != new_files[name]
    ]
    return forbidding, [text for name, text in differing.items() if name not in _DECISIVE_FACTS]


def _fingerprints_by_name(fingerprints: object) -> dict[str, set[str]]:
    """Return fingerprints by file name: folders differ between users, and several may contain the same name."""
    by_name: dict[str, set[str]] = {}
    for path, text in fingerprints.items() if isinstance(fingerprints, Mapping) else ():
        by_name.setdefault(PurePath(str(path)).name, set()).add(str(text))
    return by_name


def find_experiment_difference(before: Sequence[Summary], now: Sequence[Summary]) -> str:
    """Return how the experiments of two cells of the same name differ; "" if they do not."""
    differing = _differing_texts(("experiment", "workload", "network", "netem_backend"), before, now)
    return next((f"the baseline's {name} is {first}, this one's {second}" for name, first, second in differing), "")


def list_server_changes(before: Sequence[Summary], now: Sequence[Summary]) -> list[str]:
    """Return differences between the servers of two cells: version and Java. They are noted and forbid nothing."""
    differing = _differing_texts(("target", "java"), before, now)
    return [f"{name} was {first}, is {second}" for name, first, second in differing]


def _differing_texts(
    names: Iterable[str], before: Sequence[Summary], now: Sequence[Summary]
) -> Iterator[tuple[str, str, str]]:
    """Yield each of these columns whose values are recorded on both sides and differ, with the values."""
    for name in names:
        first, second = (
            {str(text) for run in runs if (text := run.experiment if name == "experiment" else run.values.get(name))}
            for runs in (before, now)
        )
        if first and second and first != second:
            yield name, _join(first), _join(second)


def _join(names: set[str]) -> str:
    return " and ".join(sorted(names))
