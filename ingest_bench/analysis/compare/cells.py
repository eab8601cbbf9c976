"""Runs grouped by cell: one row of a table or one point of a plot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from statistics import median

from ingest_bench.analysis import quantiles
from ingest_bench.analysis.run.columns import COLUMNS
from ingest_bench.model.experiment import Factor
from ingest_bench.model.results import Summary

# No measured value is larger, and squares of ratios of such values stay finite.
_MAX_VALUE = 1e30
# Columns that costly probes affect, because they slow the server.
AFFECTED_BY_PROBES = frozenset(
    column.name
    for column in COLUMNS
    if column.name.startswith(("docs_per_s", "response_", "service_ms"))
    or column.name in ("stalled_s", "zero_throughput_s", "recovery_s")
)


@dataclass(frozen=True, slots=True)
class CellRuns:
    """All runs of one cell. Only `valid` runs have numbers; the others are counted and named."""

    name: str
    levels: Mapping[str, str]
    runs: tuple[Summary, ...]
    _by_column: dict[str, dict[int, float]] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Numbers that were asked for: each pair of cells asks again."""

    @property
    def valid(self) -> tuple[Summary, ...]:
        """Return the measured runs. A run that ended out of memory is a result, but not a measurement."""
        return tuple(run for run in self.runs if run.state == "measured")

    @property
    def oom_runs(self) -> int:
        """Return the number of runs that ended in an OutOfMemoryError."""
        return sum(run.state == "oom" for run in self.runs)

    @property
    def exhausted_memory(self) -> str:
        """Return the kinds of memory that ran out: "heap", "direct"; "" for none or unknown."""
        return ", ".join(sorted({str(kind) for run in self.runs if (kind := run.values.get("out_of_memory"))}))

    @property
    def measured_or_oom(self) -> CellRuns:
        """Return the cell for a table that marks OOM: without valid runs, those measured until memory ran out."""
        if self.valid:
            return self
        return replace(self, runs=tuple(replace(run, state="measured") for run in self.runs if run.state == "oom"))

    def by_replicate(self, column: str) -> dict[int, float]:
        """Return the column's value of each valid run that has one, by replicate.

        Runs with costly probes provide only columns that no other run has, and never a rate or a time.
        """
        if column not in self._by_column:
            plain = _values(column, (run for run in self.valid if not run.instrumented))
            keeps = plain or column in AFFECTED_BY_PROBES
            self._by_column[column] = plain if keeps else _values(column, self.valid)
        return self._by_column[column]

    def runs_without(self, column: str) -> list[str]:
        """Return the runs that lack the number although other runs with the same probes have it."""
        with_value = [run for run in self.valid if _number(run, column) is not None]
        instrumented = all(run.instrumented for run in with_value)
        return [
            run.run for run in self.valid if with_value and run.instrumented == instrumented and run not in with_value
        ]

    def numbers(self, column: str) -> list[float]:
        """Return the values of `by_replicate`."""
        return list(self.by_replicate(column).values())

    def median(self, column: str) -> float | None:
        """Return the median over the replicates; None without values."""
        numbers = self.numbers(column)
        return median(numbers) if numbers else None

    def counts(self, name: str) -> dict[int, int]:
        """Return a histogram over all valid runs, without instrumented runs if there are others."""
        runs = [run for run in self.valid if name in run.histograms]
        plain = [run for run in runs if not run.instrumented]
        return quantiles.merge_counts(run.histograms[name] for run in plain or runs)


def _values(column: str, runs: Iterable[Summary]) -> dict[int, float]:
    values = ((run.replicate, _number(run, column)) for run in runs)
    return {replicate: value for replicate, value in values if value is not None}


def _number(run: Summary, column: str) -> float | None:
    """Return the value as a number; None for text, NaN and infinity."""
    value = run.values.get(column)
    return float(value) if isinstance(value, (int, float)) and abs(value) <= _MAX_VALUE else None


def group_by_cell(summaries: Iterable[Summary]) -> list[CellRuns]:
    """Return one entry per cell, in order of first appearance."""
    groups: dict[str, list[Summary]] = {}
    for summary in summaries:
        groups.setdefault(summary.cell, []).append(summary)
    return [
        CellRuns(name, runs[0].levels, tuple(sorted(runs, key=lambda run: run.replicate)))
        for name, runs in groups.items()
    ]


def find_neighbours(rows: Sequence[CellRuns]) -> Iterator[tuple[str, CellRuns, CellRuns]]:
    """Yield the pairs of cells that differ in exactly one factor, and its key."""
    for first, second in combinations(rows, 2):
        keys = first.levels.keys() | second.levels.keys()
        differing = [key for key in keys if first.levels.get(key) != second.levels.get(key)]
        if len(differing) == 1:
            yield differing[0], first, second


def in_factor_order(summaries: Iterable[Summary], factors: Sequence[Factor]) -> list[Summary]:
    """Return the summaries in the order of the experiment's levels instead of the shuffled order of the runs."""

    def place(summary: Summary) -> tuple[tuple[int, ...], int]:
        levels = (
            factor.levels.index(summary.levels[factor.key]) if summary.levels.get(factor.key) in factor.levels else -1
            for factor in factors
        )
        return tuple(levels), summary.replicate

    return sorted(summaries, key=place)


def varying_keys(summaries: Iterable[Summary]) -> list[str]:
    """Return the factor keys with more than one level among these runs."""
    levels_by_key: dict[str, set[str]] = {}
    for summary in summaries:
        for key, level in summary.levels.items():
            levels_by_key.setdefault(key, set()).add(level)
    return [key for key, levels in levels_by_key.items() if len(levels) > 1]


def excluded_runs(summaries: Iterable[Summary]) -> list[Summary]:
    """Return the runs without numbers: invalid, failed, or unfinished."""
    return [summary for summary in summaries if summary.state not in ("measured", "oom")]
