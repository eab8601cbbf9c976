"""Changes between two results: whether they are comparable, and comparisons of each common cell by one number a run.

Cells are matched by the levels of their factors, whatever their names are. A factor with one level in all of the first
result and another one, or none, in all of the second is a changed setting instead: cells are matched by the others.
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
from ingest_bench.inputs import records
from ingest_bench.inputs.escaping import escape_line
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
_IGNORED_FACTS = ("load_average", "command", _FILES)
# The memory that a kernel reserves for itself varies a little.
_SAME_MEMORY = 0.02
_NO_FACTS = "unknown whether machine and settings are the same: a summary.csv has neither, a results folder has both"
# Columns that describe the server of a run. Settings have the same names without the unit.
_SERVER_COLUMNS = ("target", "java", "gc_collector", "heap_bytes", "receive_predictor_bytes")
_NOT_SET = "not set"

_Pairs = tuple[tuple[CellRuns, CellRuns], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """One side of a comparison."""

    summaries: Sequence[Summary] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Facts of its machine; empty if not recorded."""
    settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Every setting of each cell as text, by cell and key; empty if not recorded."""
    source: str = ""
    """The file of the numbers and its SHA-256, so that a verdict can be traced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """The common cells of two results, and how the two differ apart from their numbers."""

    pairs: _Pairs
    only_before: tuple[str, ...]
    """Cells that only the first has."""
    only_now: tuple[str, ...]
    conflicts: tuple[str, ...]
    """Differences that forbid a comparison."""
    changed_settings: tuple[str, ...]
    """Such as "heap was 1 GiB, is 512 MiB"."""
    notes: tuple[str, ...]
    """Further differences, such as those of the kernel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """All comparisons of two results, judged together, and why others are missing."""

    comparisons: tuple[Comparison, ...] = ()
    """By column, in the order of the cells. Never paired: the results are of different times."""
    refusals: tuple[str, ...] = ()
    """Why the two are not comparable; `comparisons` is empty then."""
    changed_settings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """Further differences, and what could not be compared."""

    @property
    def has_interval(self) -> bool:
        """Return whether any comparison has an interval."""
        return any(comparison.interval is not None for comparison in self.comparisons)


def compare_results(before: Results, now: Results, columns: Sequence[str] = comparison.DEFAULT_COLUMNS) -> Changes:
    """Return the changes of each cell in each of the columns that both sides have."""
    columns = list(dict.fromkeys(map(compared_column, columns)))
    match = match_results(before, now)
    refusals, pairs = list(match.conflicts), match.pairs
    if not pairs:
        names = (", ".join(alone) or "nothing" for alone in (match.only_before, match.only_now))
        refusals.append(f"no cell is in both: {'; and '.join(names)}")
    differences = [find_experiment_difference(first.runs, second.runs) for first, second in pairs]
    if pairs and all(differences):
        refusals.append(differences[0])
    if refusals:
        return Changes(refusals=tuple(refusals), changed_settings=match.changed_settings, notes=match.notes)
    named = list(zip(pairs, differences, strict=True))
    notes = [f"{first.name} is not compared: {reason}" for (first, _), reason in named if reason]
    pairs = tuple(pair for pair, reason in named if not reason)
    notes += [*match.notes, *_describe_uncompared(match, pairs)]
    unjudged = [comparison.compare_cells(column, *pair, paired=False) for column in columns for pair in pairs]
    comparisons = comparison.mark_distinct([item for item in unjudged if item is not None])
    measured = {item.column for item in comparisons}
    notes += [f"{column} was not measured on both sides" for column in columns if column not in measured]
    return Changes(comparisons=tuple(comparisons), changed_settings=match.changed_settings, notes=tuple(notes))


def match_results(before: Results, now: Results) -> Match:
    """Match the cells of two results by the levels of their factors, and return the other differences."""
    first_rows, second_rows = (cells.group_by_cell(side.summaries) for side in (before, now))
    keys = dict.fromkeys(key for row in (*first_rows, *second_rows) for key in row.levels)
    sides = [{key: {row.levels.get(key, "") for row in rows} for key in keys} for rows in (first_rows, second_rows)]
    # A summary.csv has an empty cell if a run has no such level.
    changed = [
        key for key in keys if all(len(side[key]) == 1 for side in sides) and sides[0][key].isdisjoint(sides[1][key])
    ]
    first_by_levels, second_by_levels = (
        _by_levels(rows, [key for key in keys if key not in changed]) for rows in (first_rows, second_rows)
    )
    pairs = tuple(
        (row, second_by_levels[levels]) for levels, row in first_by_levels.items() if levels in second_by_levels
    )
    conflicts, notes = compare_facts(before.facts, now.facts)
    return Match(
        pairs=pairs,
        only_before=tuple(row.name for levels, row in first_by_levels.items() if levels not in second_by_levels),
        only_now=tuple(row.name for levels, row in second_by_levels.items() if levels not in first_by_levels),
        conflicts=tuple(conflicts),
        changed_settings=_list_changed_settings(pairs, before, now, changed),
        notes=tuple(notes if before.facts and now.facts else [_NO_FACTS]),
    )


def _by_levels(rows: Sequence[CellRuns], keys: Sequence[str]) -> Mapping[tuple[str, ...], CellRuns]:
    """Return the cells by these levels; those with equal levels by their names, too."""
    groups: dict[tuple[str, ...], list[CellRuns]] = {}
    for row in rows:
        groups.setdefault(tuple(row.levels.get(key, "") for key in keys), []).append(row)
    return {
        levels if len(group) == 1 else (*levels, row.name): row for levels, group in groups.items() for row in group
    }


def _list_changed_settings(pairs: _Pairs, before: Results, now: Results, factors: Sequence[str]) -> tuple[str, ...]:
    """Return the settings that changed, after the name of the cell if they did not change in all cells."""
    cells_by_text: dict[str, list[str]] = {}
    for first, second in pairs:
        old, new = before.settings.get(first.name, {}), now.settings.get(second.name, {})
        if not (old and new):
            old, new = ({key: row.levels.get(key) or _NOT_SET for key in factors} for row in (first, second))
        texts = {
            key: escape_line(f"{key} was {old.get(key, _NOT_SET)}, is {new.get(key, _NOT_SET)}")
            for key in dict.fromkeys((*old, *new))
            if old.get(key) != new.get(key)
        }
        # The level of a summary.csv is what the user wrote, its column what the server had.
        for text in list_server_changes(first.runs, second.runs):
            texts[text.partition(" ")[0]] = text
        for text in texts.values():
            cells_by_text.setdefault(text, []).append(second.name)
    return tuple(
        text if len(names) == len(pairs) else f"{_join(names)}: {text}" for text, names in cells_by_text.items()
    )


def _describe_uncompared(match: Match, pairs: _Pairs) -> list[str]:
    notes = []
    for place, (side, alone) in enumerate((("first", match.only_before), ("second", match.only_now))):
        notes += [f"only the {side} has the cell {name}" for name in alone]
        notes += [
            f"{run.run} of the {side} is {run.ending}"
            for pair in pairs
            for run in pair[place].runs
            if run.state != "measured"
        ]
    return notes


def compare_facts(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return the differences between facts that forbid a verdict, and those that are only noted.

    A fact that one side lacks is not compared.
    """
    differing = {
        name: escape_line(f"{name} was {before[name]}, is {now[name]}")
        for name in before
        if name in now and name not in _IGNORED_FACTS and before[name] != now[name]
    }
    first, second = before.get("memory_bytes"), now.get("memory_bytes")
    if isinstance(first, int) and isinstance(second, int) and abs(first - second) <= _SAME_MEMORY * max(first, second):
        differing.pop("memory_bytes", None)
    forbidding = [f"another machine: {text}" for name, text in differing.items() if name in _DECISIVE_FACTS]
    files, new_files = (_fingerprints_by_name(facts.get(_FILES)) for facts in (before, now))
    forbidding += [
        escape_line(
            f"the content of {name} differs: {_join(sorted(files[name]))}, now {_join(sorted(new_files[name]))}"
        )
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


def list_server_changes(before: Iterable[Summary], now: Iterable[Summary]) -> list[str]:
    """Return differences between the servers of two cells, such as version and Java. They forbid nothing."""
    return [
        f"{records.toml_key(name)} was {first}, is {second}"
        for name, first, second in _differing_texts(_SERVER_COLUMNS, before, now)
    ]


def _differing_texts(
    names: Iterable[str], before: Iterable[Summary], now: Iterable[Summary]
) -> Iterator[tuple[str, str, str]]:
    """Yield each of these columns whose values are recorded on both sides and differ, with the values."""
    sides = list(before), list(now)
    for name in names:
        first, second = (
            {
                records.format_field(name, value)
                for run in runs
                if (value := run.experiment if name == "experiment" else run.values.get(name))
            }
            for runs in sides
        )
        if first and second and first != second:
            yield name, _join(sorted(first)), _join(sorted(second))


def _join(names: Iterable[str]) -> str:
    return " and ".join(names)
