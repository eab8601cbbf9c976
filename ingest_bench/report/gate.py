"""Judge results by thresholds and a baseline: pass, fail, or no verdict; as Markdown, JSON and JUnit XML. Pure.

The 95% interval of the change decides against a baseline (`analysis.compare`). All of it within the allowance passes,
all of it beyond fails. Anything else is no verdict, and the text says how many replicates would decide it. With one run
a side there is no interval.

Totals, such as `gc_pause_ms_total`, are compared for each GB: a longer measurement or a faster server has more of
everything.

Two results are comparable if they have the same experiment, workload and network, on machines that agree in what
decides how fast a server is (`analysis.compare.comparable`). Other differences become notes.
"""

from __future__ import annotations

import html
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal
from xml.etree import ElementTree

from ingest_bench.analysis.compare import cells, changes, comparison
from ingest_bench.analysis.compare.cells import CellRuns
from ingest_bench.analysis.compare.changes import Results
from ingest_bench.analysis.run import columns as columns_module
from ingest_bench.analysis.run.columns import COLUMNS
from ingest_bench.errors import SpecError
from ingest_bench.inputs import records
from ingest_bench.model.results import Summary
from ingest_bench.model.values import Between, Line, Share
from ingest_bench.report import change_tables
from ingest_bench.report.summary_files import to_markdown
from ingest_bench.units import quote_name, quote_value

Outcome = Literal["pass", "fail", "no verdict"]
Limit = Annotated[float, Between(-1e18, 1e18)]
_Judged = tuple[Outcome, str]
EXIT_CODES: Mapping[Outcome, int] = {"pass": 0, "fail": 1, "no verdict": 3}
_SIGNS = {"pass": "✅ pass", "fail": "❌ fail", "no verdict": "⚠️ no verdict"}
_UNITS = ("bytes", "ms", "s", "ppm", "percent")
# Characters that XML 1.0 cannot represent, not even by an escape (section 2.2, Char).
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
# A check without a verdict is an error: neither a pass nor the server's failure.
_JUNIT_ELEMENTS = {"fail": "failure", "no verdict": "error"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """Limits of one column."""

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

    @property
    def is_relative(self) -> bool:
        """True if it needs a baseline."""
        return self.may_fall_ppm is not None or self.may_rise_ppm is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One threshold in one cell, and the sentence that explains its outcome."""

    cell: str
    column: str
    outcome: Outcome
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """All checks. One failure fails; without one, a check without a verdict makes the whole one "no verdict"."""

    checks: tuple[Check, ...]
    notes: tuple[str, ...] = ()
    """Differences from the baseline that do not prevent the comparison."""

    @property
    def outcome(self) -> Outcome:
        """The overall verdict."""
        outcomes = {check.outcome for check in self.checks}
        return "fail" if "fail" in outcomes else "no verdict" if "no verdict" in outcomes or not outcomes else "pass"

    @property
    def exit_code(self) -> int:
        """0 pass, 1 fail, 3 no verdict."""
        return EXIT_CODES[self.outcome]


def parse_thresholds(table: Mapping[str, Any], where: str) -> tuple[Threshold, ...]:
    """Return the thresholds of a TOML file; SpecError names file, key, value and the remedy."""
    for key in table:
        if key != "threshold":
            raise SpecError(f'{where}: unknown key "{quote_name(key)}"; a gate has [[threshold]] only')
    entries = table.get("threshold", [])
    if not isinstance(entries, list):
        raise SpecError(f"{where}: threshold: {quote_value(entries)} is not written as [[threshold]]")
    thresholds = tuple(records.from_toml(Threshold, entry, f"{where}: threshold") for entry in entries)
    if not thresholds:
        raise SpecError(f"{where}: there is no [[threshold]], so nothing could fail. Add one.")
    columns = [column.name for column in COLUMNS]
    for item in thresholds:
        if item.column not in columns:
            raise SpecError(
                f'{where}: threshold: unknown column "{item.column}"; {records.suggest(item.column, columns)}'
            )
        if item.at_least is None and item.at_most is None and not item.is_relative:
            raise SpecError(f'{where}: threshold of "{item.column}": give at_least, at_most, may_fall or may_rise')
    return thresholds


def judge(now: Results, thresholds: Iterable[Threshold], baseline: Results | None = None) -> Verdict:
    """Judge all runs. An invalid or failed run is no verdict on its cell, never a pass."""
    rows = _group_applicable(now)
    before = None if baseline is None else {row.name: row for row in _group_applicable(baseline)}
    checks = [check for row in rows for check in _check_states(row, (before or {}).get(row.name))]
    notes: list[str] = []
    if baseline is not None:
        conflicts, notes = _compare_conditions(now, baseline, rows, before or {})
        checks += [Check(cell="*", column="facts", outcome="no verdict", reason=reason) for reason in conflicts]
    checks += [
        Check(cell=cell, column=item.column, outcome=outcome, reason=reason)
        for item in thresholds
        for cell, (outcome, reason) in _judge_threshold(item, rows, before)
    ]
    return Verdict(checks=tuple(checks), notes=tuple(notes))


def select_cells(rows: Iterable[CellRuns], item: Threshold) -> list[CellRuns]:
    """Return the cells that the threshold is for."""
    return [row for row in rows if fnmatchcase(row.name, item.cells)]


def format_job_summary(verdict: Verdict, name: str) -> str:
    """Format Markdown for the summary of a CI job: the verdict, then a table of the checks, failures first."""
    checks = sorted(verdict.checks, key=lambda check: ("fail", "no verdict", "pass").index(check.outcome))
    rows = [
        [_SIGNS[check.outcome], *map(_escape_markdown, (check.cell, check.column, check.reason))] for check in checks
    ]
    notes = "".join(f"- {_escape_markdown(note)}\n" for note in verdict.notes)
    table = to_markdown([["", "cell", "column", "reason"], *rows], 4)
    return f"## {_SIGNS[verdict.outcome]}: {_escape_markdown(name)}\n\n{table}" + (f"\n{notes}" if notes else "")


def format_benchmark_json(summaries: Sequence[Summary], thresholds: Sequence[Threshold]) -> str:
    """Format JSON as `customSmallerIsBetter` of github-action-benchmark (README, "Using charts"; src/extract.ts).

    A list of name, unit, value, range and extra: the median over the runs of each cell and column that a threshold
    names. A rate is written as the time for one, because a smaller rate is not better. Other columns with only a
    lower limit are left out.
    """
    rows = cells.group_by_cell(summaries)
    selected = dict.fromkeys(
        (row.name, item.column)
        for item in thresholds
        for row in select_cells(rows, item)
        if _is_rate(item.column) or item.at_most is not None or item.may_rise_ppm is not None
    )
    by_name = {row.name: row for row in rows}
    entries = [_benchmark_entry(by_name[cell], column) for cell, column in selected]
    return json.dumps([entry for entry in entries if entry], indent=1, allow_nan=False) + "\n"


def format_junit(verdict: Verdict, name: str) -> str:
    """Format JUnit XML: one suite of that name, one test for each check.

    Elements and attributes are those of Jenkins' junit-10.xsd, in its order.
    """
    outcomes = Counter(check.outcome for check in verdict.checks)
    counts = {
        "tests": str(len(verdict.checks)),
        "failures": str(outcomes["fail"]),
        "errors": str(outcomes["no verdict"]),
    }
    root = ElementTree.Element("testsuites", counts)
    suite = ElementTree.SubElement(root, "testsuite", {"name": _xml_text(name), **counts})
    names: Counter[tuple[str, str]] = Counter()
    for check in verdict.checks:
        names[check.cell, check.column] += 1
        number = names[check.cell, check.column]
        # Jenkins merges two tests of one name.
        title = check.column if number == 1 else f"{check.column} ({number})"
        test = ElementTree.SubElement(suite, "testcase", {"name": _xml_text(title), "classname": _xml_text(check.cell)})
        if check.outcome == "pass":
            ElementTree.SubElement(test, "system-out").text = _xml_text(check.reason)
        else:
            attributes = {"message": _xml_text(check.reason), "type": check.outcome}
            element = ElementTree.SubElement(test, _JUNIT_ELEMENTS[check.outcome], attributes)
            element.text = _xml_text(check.reason)
    if verdict.notes:
        ElementTree.SubElement(suite, "system-out").text = _xml_text("\n".join(verdict.notes))
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _group_applicable(results: Results) -> list[CellRuns]:
    """Group the runs by cell, without cells whose fault does not apply to their server: those are never run."""
    return cells.group_by_cell(run for run in results.summaries if run.state != "inapplicable")


def _compare_conditions(
    now: Results, baseline: Results, rows: Sequence[CellRuns], before: Mapping[str, CellRuns]
) -> tuple[Sequence[str], list[str]]:
    """Return what forbids the comparison with the baseline, and notes on other differences."""
    conflicts, notes = changes.compare_facts(baseline.facts, now.facts)
    if not (baseline.facts and now.facts):
        notes = [changes.NO_FACTS_NOTE]
    if baseline.source:
        notes = [*notes, f"the baseline is {baseline.source}"]
    servers = [
        note
        for row in rows
        if row.name in before
        for note in changes.list_server_changes(before[row.name].runs, row.runs)
    ]
    return conflicts, [*notes, *dict.fromkeys(servers)]


def _check_states(row: CellRuns, before: CellRuns | None) -> list[Check]:
    checks = []
    for run in row.runs:
        if run.state not in ("measured", "oom"):
            reason = f"{run.run} is {run.state}{': ' + run.reason if run.reason else ''}"
            checks.append(Check(cell=row.name, column="state", outcome="no verdict", reason=reason))
    if row.oom_runs:
        reason = f"{row.oom_runs} of {len(row.runs)} runs ended out of memory"
        outcome: Outcome = "fail"
        if before is not None:
            reason += f", in the baseline {before.oom_runs} of {len(before.runs)}"
            if row.oom_runs * len(before.runs) <= before.oom_runs * len(row.runs):
                outcome = "pass"
        checks.append(Check(cell=row.name, column="state", outcome=outcome, reason=reason))
    return checks


def _judge_threshold(
    item: Threshold, rows: Sequence[CellRuns], before: Mapping[str, CellRuns] | None
) -> Iterator[tuple[str, _Judged]]:
    """Yield each cell that the threshold is for, and the outcome with its reason."""
    selected = select_cells(rows, item)
    if not selected:
        yield item.cells, ("no verdict", f'no cell matches "{item.cells}"')
    for row in selected:
        judged = [*_judge_absolute(row, item), *([_judge_relative(row, item, before)] if item.is_relative else [])]
        unknown = ", ".join(row.runs_without(item.column))
        for outcome, reason in judged:
            # A run without a number might have exceeded the limit.
            is_unsure = outcome == "pass" and unknown
            yield (
                row.name,
                ("no verdict", f"{reason}; but {unknown} did not measure it") if is_unsure else (outcome, reason),
            )
    if item.is_relative:
        present = {row.name for row in rows}
        for name in before or ():
            if name not in present and fnmatchcase(name, item.cells):
                yield name, ("no verdict", "the baseline has this cell, and these results do not")


def _judge_absolute(row: CellRuns, item: Threshold) -> list[_Judged]:
    if item.at_least is None and item.at_most is None:
        return []
    value = row.median(item.column)
    if value is None:
        return [("no verdict", "no valid run measured it")]
    judged: list[_Judged] = []
    if item.at_least is not None:
        outcome: Outcome = "pass" if value >= item.at_least else "fail"
        judged.append((outcome, f"{value:,.6g}, wanted at least {item.at_least:,.6g}"))
    if item.at_most is not None:
        outcome = "pass" if value <= item.at_most else "fail"
        judged.append((outcome, f"{value:,.6g}, wanted at most {item.at_most:,.6g}"))
    return judged


def _judge_relative(row: CellRuns, item: Threshold, baseline: Mapping[str, CellRuns] | None) -> _Judged:
    if baseline is None:
        return "no verdict", "may_fall and may_rise require --baseline"
    before = baseline.get(row.name)
    if before is None:
        return "no verdict", "the baseline has no such cell"
    if difference := changes.find_experiment_difference(before.runs, row.runs):
        return "no verdict", difference
    column = columns_module.compared_column(item.column)
    # Never paired: the runs of a baseline were measured at another time.
    change = comparison.compare_cells(column, before, row, paired=False)
    if change is None:
        return "no verdict", "it was not measured on both sides"
    means = f"{change.first_mean:,.6g} to {change.second_mean:,.6g}{' for each GB' if column != item.column else ''}"
    if change.interval is None:
        runs = f"{change.first_runs} and {change.second_runs} runs"
        return "no verdict", f"{means}, of {runs}: one run a side has no interval; take 3 replicates or more"
    if change.relative_interval is None:
        return _judge_near_zero(item, means, before.numbers(column), row.numbers(column))
    low, high = change.relative_interval
    interval = change_tables.format_interval(change)
    reason = f"{change.relative:+.1%} against the baseline ({means}, 95% interval {interval})"
    least = -math.inf if item.may_fall_ppm is None else -item.may_fall_ppm / 1e6
    most = math.inf if item.may_rise_ppm is None else item.may_rise_ppm / 1e6
    if least <= low and high <= most:
        return "pass", reason
    if high < least or low > most:
        return "fail", reason
    # A limit of -100% cannot be exceeded.
    enough = comparison.replicates_for_verdict(change, [limit for limit in (least, most) if -1 < limit < math.inf])
    advice = f"about {enough} replicates a side would decide" if enough else "it is too close to the limit to decide"
    return "no verdict", f"{reason}: {advice}"


def _judge_near_zero(item: Threshold, means: str, before: Sequence[float], now: Sequence[float]) -> _Judged:
    """Judge a column whose baseline mean is 0 or almost 0, which has no shares: no run may be outside its range."""
    is_up = item.may_rise_ppm is not None and max(now) > max(before)
    is_down = item.may_fall_ppm is not None and min(now) < min(before)
    if not is_up and not is_down:
        return "pass", means
    is_in_all = (is_up and min(now) > max(before)) or (is_down and max(now) < min(before))
    return ("fail", f"{means}: in all runs") if is_in_all else ("no verdict", f"{means}: in some runs")


def _benchmark_entry(row: CellRuns, column: str) -> dict[str, str | float] | None:
    numbers, value = row.numbers(column), row.median(column)
    if value is None:
        return None
    words = column.split("_")
    unit = next((unit for unit in _UNITS if unit in words), "count")
    name, unit = f"{row.name}: {column}", f"{unit}/GB" if column.endswith("_per_gb") else unit
    if _is_rate(column):
        if min(numbers) <= 0:
            return None
        numbers, value = [1e6 / number for number in numbers], 1e6 / value
        name, unit = f"{row.name}: time for one, by {column}", "µs"
    runs = f"{len(numbers)} run{'s' * (len(numbers) > 1)}"
    return {
        "name": name,
        "unit": unit,
        "value": value,
        "range": f"{min(numbers):.6g} to {max(numbers):.6g}",
        "extra": f"{runs}: {', '.join(f'{number:.6g}' for number in numbers)}",
    }


def _is_rate(column: str) -> bool:
    return "_per_s_" in column or column.endswith("_per_s")


def _escape_markdown(text: str) -> str:
    """Return the text in one line, without Markdown or HTML in it."""
    return re.sub(r"([\\`*_\[\]~#])", r"\\\1", html.escape(" ".join(text.split()), quote=False))


def _xml_text(text: str) -> str:
    return _NOT_XML.sub("\ufffd", text)
