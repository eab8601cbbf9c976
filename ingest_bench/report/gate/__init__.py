"""Thresholds and a baseline to a verdict: pass, fail, or no verdict. Pure.

    [[threshold]]
    column = "docs_per_s_mean"     # a column of summary.csv
    at_least = 20000                 # or at_most: absolute, by the median of the cell's runs
    [[threshold]]
    column = "gc_pause_ms_total_per_gb"
    may_rise = "10%"                 # or may_fall: against the baseline
    cells = "network=ethernet*"      # which cells; all of them when it is left out

Against a baseline the 95% interval of the change decides (`analysis.compare`). All of it within the allowance passes,
all of it beyond fails. Anything else is no verdict, and the text says how many replicates would decide it. With one run
a side there is no interval.

Of a total, such as `gc_pause_ms_total`, the share of a GB is compared with the baseline's: a longer measurement or a
quicker server has more of everything.

Two results are compared where they are of the same experiment, workload and network, on machines that agree in what
decides how fast a server is (`analysis.compare.comparable`). How else they differ is said in notes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal

from ingest_bench.analysis.compare import cells, comparable, comparison
from ingest_bench.analysis.compare.cells import CellRuns
from ingest_bench.analysis.compare.comparable import Results
from ingest_bench.analysis.run import per_gb
from ingest_bench.analysis.run.columns import COLUMNS
from ingest_bench.errors import SpecError
from ingest_bench.inputs import records
from ingest_bench.model.values import Between, Line, Share
from ingest_bench.report.tables import changes_table
from ingest_bench.units import quoted, spelled

Outcome = Literal["pass", "fail", "no verdict"]
Limit = Annotated[float, Between(-1e18, 1e18)]
EXIT_CODES: Mapping[Outcome, int] = {"pass": 0, "fail": 1, "no verdict": 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """What a column must keep."""

    column: Line
    """A column of summary.csv."""
    cells: Line = "*"
    """The cells that it holds for: a pattern with `*`."""
    at_least: Limit | None = None
    """The median of the cell's runs must not be below it."""
    at_most: Limit | None = None
    """The median of the cell's runs must not be above it."""
    may_fall_ppm: Share | None = None
    """How far it may fall against the baseline."""
    may_rise_ppm: Share | None = None
    """How far it may rise against the baseline."""


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
    notes: tuple[str, ...] = ()
    """How the baseline differs, where that forbids nothing."""

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


def judge(now: Results, wanted: Iterable[Threshold], baseline: Results | None = None) -> Verdict:
    """The verdict on all runs. An invalid or failed run is no verdict on its cell: never a pass."""
    found = _cells(now)
    before = {} if baseline is None else {row.name: row for row in _cells(baseline)}
    checks = [check for row in found for check in _runs(row, before.get(row.name))]
    notes: list[str] = []
    if baseline is not None:
        forbidden, notes = comparable.machines(baseline.facts, now.facts)
        checks += [Check(cell="*", column="facts", outcome="no verdict", text=each) for each in forbidden]
        if not (baseline.facts and now.facts):
            notes = [comparable.NO_FACTS]
        notes += [f"the baseline is {baseline.source}"] if baseline.source else []
        told = [
            text for row in found if row.name in before for text in comparable.servers(before[row.name].runs, row.runs)
        ]
        notes += dict.fromkeys(told)
    for item in wanted:
        is_relative = item.may_fall_ppm is not None or item.may_rise_ppm is not None
        rows = matching(found, item)
        if not rows:
            checks.append(_missing(item.cells, item, f'no cell matches "{item.cells}"'))
        for row in rows:
            judged = _absolute(row, item)
            if is_relative:
                judged.append(_relative(row, item, None if baseline is None else before))
            checks += [_of_all(row, item, check) for check in judged]
        if is_relative:
            here = {row.name for row in found}
            gone = [name for name in before if name not in here and fnmatchcase(name, item.cells)]
            checks += [_missing(name, item, "the baseline has this cell, and these results have not") for name in gone]
    return Verdict(checks=tuple(checks), notes=tuple(notes))


def _cells(results: Results) -> list[CellRuns]:
    """The cells that can have a verdict: one whose fault cannot happen to its server was never to be run."""
    return cells.group(run for run in results.summaries if run.state != "inapplicable")


def matching(rows: Iterable[CellRuns], item: Threshold) -> list[CellRuns]:
    """The cells that the threshold is for."""
    return [row for row in rows if fnmatchcase(row.name, item.cells)]


def _missing(cell: str, item: Threshold, text: str) -> Check:
    return Check(cell=cell, column=item.column, outcome="no verdict", text=text)


def _runs(row: CellRuns, before: CellRuns | None) -> list[Check]:
    checks = []
    for run in row.runs:
        if run.state not in ("measured", "oom"):
            text = f"{run.run} is {run.state}{': ' + run.reason if run.reason else ''}"
            checks.append(Check(cell=row.name, column="state", outcome="no verdict", text=text))
    if row.out_of_memory:
        text = f"{row.out_of_memory} of {len(row.runs)} runs ended out of memory"
        outcome: Outcome = "fail"
        if before is not None:
            text += f", in the baseline {before.out_of_memory} of {len(before.runs)}"
            if row.out_of_memory * len(before.runs) <= before.out_of_memory * len(row.runs):
                outcome = "pass"
        checks.append(Check(cell=row.name, column="state", outcome=outcome, text=text))
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


def _relative(row: CellRuns, item: Threshold, baseline: Mapping[str, CellRuns] | None) -> Check:
    if baseline is None:
        return _check(row, item, "no verdict", "may_fall and may_rise need --baseline")
    before = baseline.get(row.name)
    if before is None:
        return _check(row, item, "no verdict", "the baseline has no such cell")
    if other := comparable.experiments(before.runs, row.runs):
        return _check(row, item, "no verdict", other)
    column = per_gb.compared(item.column)
    # Never paired: the runs of a baseline were made at another time.
    found = comparison.of_cells(column, before, row, paired=False)
    if found is None:
        return _check(row, item, "no verdict", "it was not measured on both sides")
    means = f"{found.first_mean:,.6g} to {found.second_mean:,.6g}{' for each GB' if column != item.column else ''}"
    if found.interval is None:
        runs = f"{found.first_runs} and {found.second_runs} runs"
        text = f"{means}, of {runs}: one run a side has no interval; take 3 replicates or more"
        return _check(row, item, "no verdict", text)
    if found.relative_interval is None:
        return _from_nothing(row, item, means, before.numbers(column), row.numbers(column))
    low, high = found.relative_interval
    text = f"{found.relative:+.1%} against the baseline ({means}, 95% interval {changes_table.interval(found)})"
    least = -math.inf if item.may_fall_ppm is None else -item.may_fall_ppm / 1e6
    most = math.inf if item.may_rise_ppm is None else item.may_rise_ppm / 1e6
    if least <= low and high <= most:
        return _check(row, item, "pass", text)
    if high < least or low > most:
        return _check(row, item, "fail", text)
    # Nothing falls by more than all of it.
    enough = comparison.replicates(found, [limit for limit in (least, most) if -1 < limit < math.inf])
    advice = f"about {enough} replicates a side would tell" if enough else "it is too near to what is allowed to tell"
    return _check(row, item, "no verdict", f"{text}: {advice}")


def _from_nothing(row: CellRuns, item: Threshold, means: str, before: Sequence[float], now: Sequence[float]) -> Check:
    """Where the baseline's mean is not above 0, or next to it, there are no shares: no run may be outside its runs."""
    up = item.may_rise_ppm is not None and max(now) > max(before)
    down = item.may_fall_ppm is not None and min(now) < min(before)
    if not up and not down:
        return _check(row, item, "pass", means)
    always = (up and min(now) > max(before)) or (down and max(now) < min(before))
    return _check(row, item, "fail" if always else "no verdict", f"{means}: in {'all' if always else 'some'} runs")


def _of_all(row: CellRuns, item: Threshold, check: Check) -> Check:
    """The same check; no pass where a run has no number: nobody knows whether it would have kept it."""
    unknown = row.unknown(item.column)
    if check.outcome != "pass" or not unknown:
        return check
    return _check(row, item, "no verdict", f"{check.text}; but {', '.join(unknown)} did not measure it")


def _check(row: CellRuns, item: Threshold, outcome: Outcome, text: str) -> Check:
    return Check(cell=row.name, column=item.column, outcome=outcome, text=text)
