"""Runs grouped by their cell: what a table or a picture shows as one row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from ingest_bench.analysis.numbers import histogram
from ingest_bench.analysis.run.columns import COLUMNS
from ingest_bench.model.experiment import Factor
from ingest_bench.model.results import Summary

# Nothing that is measured is larger, and squares of shares of it stay finite.
_MOST = 1e30
# What costly probes change: how fast the server is.
SLOWED = frozenset(
    column.name
    for column in COLUMNS
    if column.name.startswith(("docs_per_s", "response_", "service_ms"))
    or column.name in ("stalled_s", "silent_s", "recovery_s")
)


@dataclass(frozen=True, slots=True)
class CellRuns:
    """All runs of one cell. Only `valid` ones have numbers; the others stay to be counted and named."""

    name: str
    levels: Mapping[str, str]
    runs: tuple[Summary, ...]

    @property
    def valid(self) -> tuple[Summary, ...]:
        """The runs whose numbers may be shown. One that ended out of memory is a result, not a measurement."""
        return tuple(run for run in self.runs if run.state == "measured")

    @property
    def out_of_memory(self) -> int:
        """How many runs ended in an OutOfMemoryError."""
        return sum(run.state == "oom" for run in self.runs)

    @property
    def ran_out_of(self) -> str:
        """What they ran out of: "heap", "direct"; empty when no run did, or nobody knows."""
        return ", ".join(
            sorted({str(run.values["out_of_memory"]) for run in self.runs if run.values.get("out_of_memory")})
        )

    @property
    def measured_or_oom(self) -> CellRuns:
        """For a table that says OOM in its row: without any valid run, what was measured until memory ran out."""
        if self.valid:
            return self
        ended = (replace(run, state="measured") for run in self.runs if run.state == "oom")
        return replace(self, runs=tuple(ended))

    def by_replicate(self, column: str) -> dict[int, float]:
        """The column's value of each valid run that has one, by replicate.

        A run under costly probes gives only what no other run can: never a rate or a time.
        """
        plain = _values(column, (run for run in self.valid if not run.instrumented))
        return plain if plain or column in SLOWED else _values(column, self.valid)

    def unknown(self, column: str) -> list[str]:
        """The runs without that number, where others that are watched by the same probes have it."""
        known = [run for run in self.valid if _number(run, column) is not None]
        instrumented = all(run.instrumented for run in known)
        return [run.run for run in self.valid if known and run.instrumented == instrumented and run not in known]

    def numbers(self, column: str) -> list[float]:
        """These values alone."""
        return list(self.by_replicate(column).values())

    def typical(self, column: str) -> float | None:
        """The median over the replicates; None without any."""
        numbers = self.numbers(column)
        return median(numbers) if numbers else None

    def counts(self, name: str) -> dict[int, int]:
        """A histogram over all valid runs, without those under costly probes when there are others."""
        runs = [run for run in self.valid if name in run.histograms]
        plain = [run for run in runs if not run.instrumented]
        return histogram.merge(run.histograms[name] for run in plain or runs)


def _values(column: str, runs: Iterable[Summary]) -> dict[int, float]:
    values = ((run.replicate, _number(run, column)) for run in runs)
    return {replicate: value for replicate, value in values if value is not None}


def _number(run: Summary, column: str) -> float | None:
    """None for what is no number, also to arithmetic."""
    value = run.values.get(column)
    return float(value) if isinstance(value, (int, float)) and abs(value) <= _MOST else None


def group(summaries: Iterable[Summary]) -> list[CellRuns]:
    """One entry a cell, in the order in which the cells come first."""
    found: dict[str, list[Summary]] = {}
    for summary in summaries:
        found.setdefault(summary.cell, []).append(summary)
    return [
        CellRuns(name, runs[0].levels, tuple(sorted(runs, key=lambda run: run.replicate)))
        for name, runs in found.items()
    ]


def in_order(summaries: Iterable[Summary], factors: Sequence[Factor]) -> list[Summary]:
    """The summaries as the experiment lists its levels, not as the runs were shuffled."""

    def place(summary: Summary) -> tuple[tuple[int, ...], int]:
        levels = (
            factor.levels.index(summary.levels[factor.key]) if summary.levels.get(factor.key) in factor.levels else -1
            for factor in factors
        )
        return tuple(levels), summary.replicate

    return sorted(summaries, key=place)


def varying(summaries: Iterable[Summary]) -> list[str]:
    """The keys of the factors that have more than one level among these runs."""
    seen: dict[str, set[str]] = {}
    for summary in summaries:
        for key, level in summary.levels.items():
            seen.setdefault(key, set()).add(level)
    return [key for key, levels in seen.items() if len(levels) > 1]


def left_out(summaries: Iterable[Summary]) -> list[Summary]:
    """The runs without numbers to show, each with its reason: invalid, failed, or not finished."""
    return [summary for summary in summaries if summary.state not in ("measured", "oom")]
