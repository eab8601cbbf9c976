"""Thresholds and a baseline to a verdict: pass, fail, or no verdict. Pure.

    [[threshold]]
    column = "docs_per_s_median"     # a column of summary.csv
    at_least = 20000                 # or at_most: absolute, by the median of the cell's runs
    [[threshold]]
    column = "gc_pause_ms_total"
    may_rise = "10%"                 # or may_fall: against the baseline
    cells = "network=ethernet*"      # which cells; all of them when it is left out

Against a baseline a change beyond the allowance fails when it is distinct from no change (`analysis.compare`). One that
runs of the same cell could show as well is no verdict: more replicates decide it. With a single run on a side there is
no interval, and the allowance alone decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal

from ingest_bench import records
from ingest_bench.analysis import cells, compare
from ingest_bench.analysis.cells import CellRuns
from ingest_bench.analysis.columns import COLUMNS
from ingest_bench.errors import SpecError
from ingest_bench.model.results import Summary
from ingest_bench.model.values import Between, Line, Share
from ingest_bench.units import quoted, spelled

Outcome = Literal["pass", "fail", "no verdict"]
Limit = Annotated[float, Between(-1e18, 1e18)]
EXIT_CODES: Mapping[Outcome, int] = {"pass": 0, "fail": 1, "no verdict": 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """What a column must keep."""

    column: Line
    cells: Line = "*"
    at_least: Limit | None = None
    at_most: Limit | None = None
    may_fall_ppm: Share | None = None
    may_rise_ppm: Share | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One threshold in one cell, and the sentence that explains its outcome."""

    cell: str
    column: str
    outcome: Outcome
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """All checks. One failure fails; without one, anything that could not be judged is no verdict."""

    checks: tuple[Check, ...]

    @property
    def outcome(self) -> Outcome:
        """The whole verdict."""
        found = {check.outcome for check in self.checks}
        return "fail" if "fail" in found else "no verdict" if "no verdict" in found or not found else "pass"

    @property
    def exit_code(self) -> int:
        """0 pass, 1 fail, 3 no verdict."""
        return EXIT_CODES[self.outcome]


def thresholds(table: Mapping[str, Any], where: str) -> tuple[Threshold, ...]:
    """The thresholds of a TOML file; SpecError names file and key, what was found and the remedy."""
    for key in table:
        if key != "threshold":
            raise SpecError(f'{where}: unknown key "{spelled(key)}"; a gate has [[threshold]] only')
    entries = table.get("threshold", [])
    if not isinstance(entries, list):
        raise SpecError(f"{where}: threshold: {quoted(entries)} is not written as [[threshold]]")
    found = tuple(records.from_toml(Threshold, entry, f"{where}: threshold") for entry in entries)
    if not found:
        raise SpecError(f"{where}: there is no [[threshold]]; without one nothing could fail")
    columns = [column.name for column in COLUMNS]
    for item in found:
        if item.column not in columns:
            raise SpecError(
                f'{where}: threshold: unknown column "{item.column}"; {records.nearest(item.column, columns)}'
            )
        if all(limit is None for limit in (item.at_least, item.at_most, item.may_fall_ppm, item.may_rise_ppm)):
            raise SpecError(f'{where}: threshold of "{item.column}": give at_least, at_most, may_fall or may_rise')
    return found


def judge(summaries: Sequence[Summary], wanted: Iterable[Threshold], baseline: Sequence[Summary] = ()) -> Verdict:
    """The verdict on all runs. An invalid or failed run is no verdict on its cell: never a pass."""
    found = cells.group(summaries)
    before = {row.name: row for row in cells.group(baseline)}
    checks = [check for row in found for check in _runs(row)]
    for item in wanted:
        matching = [row for row in found if fnmatchcase(row.name, item.cells)]
        if not matching:
            text = f'no cell matches "{item.cells}"'
            checks.append(Check(cell=item.cells, column=item.column, outcome="no verdict", text=text))
        for row in matching:
            judged = _absolute(row, item)
            if item.may_fall_ppm is not None or item.may_rise_ppm is not None:
                judged.append(_relative(row, item, before.get(row.name)))
            checks += [_of_all(row, item, check) for check in judged]
    return Verdict(checks=tuple(checks))


def _runs(row: CellRuns) -> list[Check]:
    checks = []
    for run in row.runs:
        if run.state == "oom":
            text = f"{run.run} ended out of memory"
            checks.append(Check(cell=row.name, column="state", outcome="fail", text=text))
        elif run.state != "measured":
            text = f"{run.run} is {run.state}{': ' + run.reason if run.reason else ''}"
            checks.append(Check(cell=row.name, column="state", outcome="no verdict", text=text))
    return checks


def _absolute(row: CellRuns, item: Threshold) -> list[Check]:
    if item.at_least is None and item.at_most is None:
        return []
    value = row.typical(item.column)
    if value is None:
        return [_check(row, item, "no verdict", "no valid run measured it")]
    checks = []
    for limit, kept, word in (
        (item.at_least, item.at_least is not None and value >= item.at_least, "at least"),
        (item.at_most, item.at_most is not None and value <= item.at_most, "at most"),
    ):
        if limit is not None:
            checks.append(_check(row, item, "pass" if kept else "fail", f"{value:,.6g}, wanted {word} {limit:,.6g}"))
    return checks


def _relative(row: CellRuns, item: Threshold, before: CellRuns | None) -> Check:
    if before is None:
        return _check(row, item, "no verdict", "the baseline has no such cell")
    sides = [(name, side.by_replicate(item.column)) for name, side in (("baseline", before), (row.name, row))]
    # Never paired: the runs of a baseline were made at another time.
    found = compare.numbers(item.column, sides[0], sides[1], paired=False)
    if found is None:
        return _check(row, item, "no verdict", "it was not measured on both sides")
    change = found.relative if found.relative is not None else float("inf") * found.difference
    interval = ""
    if found.low is not None and found.high is not None and found.first_mean:
        ends = sorted(end / found.first_mean for end in (found.low, found.high))
        interval = f", 95% interval {ends[0]:+.1%} to {ends[1]:+.1%}"
    text = f"{change:+.1%} against the baseline ({found.first_mean:,.6g} to {found.second_mean:,.6g}{interval})"
    fell = item.may_fall_ppm is not None and change < -item.may_fall_ppm / 1e6
    rose = item.may_rise_ppm is not None and change > item.may_rise_ppm / 1e6
    if not (fell or rose):
        return _check(row, item, "pass", text)
    if found.is_distinct is False:
        return _check(row, item, "no verdict", f"{text}: not distinct from noise; give both sides more replicates")
    return _check(row, item, "fail", text)


def _of_all(row: CellRuns, item: Threshold, check: Check) -> Check:
    """The same check; no pass where a run has no number: nobody knows whether it would have kept it."""
    unknown = row.unknown(item.column)
    if check.outcome != "pass" or not unknown:
        return check
    return _check(row, item, "no verdict", f"{check.text}; but {', '.join(unknown)} did not measure it")


def _check(row: CellRuns, item: Threshold, outcome: Outcome, text: str) -> Check:
    return Check(cell=row.name, column=item.column, outcome=outcome, text=text)
