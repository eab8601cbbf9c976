"""Judge results by thresholds and a baseline: pass, fail, or no verdict; as Markdown, JSON and JUnit XML. Pure.

The 95% interval of the change decides against a baseline (`analysis.compare`). All of it within the allowance passes,
all of it beyond fails. Anything else is no verdict, and the text says how many replicates would decide it. Without a
baseline such a check is skipped, so that a first result can become the baseline. Totals are compared for each GB.
`analysis.compare.changes` decides whether two results are comparable; other differences become notes.
"""

from __future__ import annotations

import html
import json
import math
import operator
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from statistics import fmean
from typing import Annotated, Any, Literal
from xml.etree import ElementTree

from ingest_bench.analysis.compare import cells, changes, comparison
from ingest_bench.analysis.compare.cells import CellRuns
from ingest_bench.analysis.compare.changes import Match, Results
from ingest_bench.analysis.run import columns as columns_module
from ingest_bench.analysis.run.columns import COLUMNS
from ingest_bench.errors import SpecError
from ingest_bench.inputs import records
from ingest_bench.inputs.escaping import escape_line, escape_text
from ingest_bench.inputs.names import check_name
from ingest_bench.model.results import Summary
from ingest_bench.model.values import Between, Line, Share
from ingest_bench.report import change_tables
from ingest_bench.report.summary_files import to_markdown
from ingest_bench.units import format_ppm, quote_name, quote_value

Outcome = Literal["pass", "fail", "no verdict", "skipped"]
Limit = Annotated[float, Between(-1e18, 1e18)]
EXIT_CODES: Mapping[Outcome, int] = {"pass": 0, "fail": 1, "no verdict": 3}
_SIGNS: Mapping[Outcome, str] = {
    "fail": "❌ fail",
    "no verdict": "⚠️ no verdict",
    "skipped": "⏭️ skipped",
    "pass": "✅ pass",
}
HEAD = ("", "cell", "column", "measured", "allowed", "baseline", "change (95% interval)", "reason")
_UNMEASURED = "no valid run measured it"
_UNITS = ("bytes", "ms", "s", "ppm", "percent")
# A check without a verdict is an error: neither a pass nor the server's failure.
_JUNIT_ELEMENTS = {"pass": "system-out", "fail": "failure", "no verdict": "error", "skipped": "skipped"}


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
    """One threshold in one cell, its outcome, and the numbers as text."""

    cell: str
    column: str
    outcome: Outcome = "no verdict"
    measured: str = ""
    allowed: str = ""
    baseline: str = ""
    change: str = ""
    """The change from the baseline, with its interval."""
    reason: str = ""
    """What the numbers do not say: why there is no verdict."""

    @property
    def numbers(self) -> tuple[str, ...]:
        """Return the columns of a table after the outcome."""
        return (self.cell, self.column, self.measured, self.allowed, self.baseline, self.change, self.reason)

    @property
    def sentence(self) -> str:
        """Return all of it except cell, column and outcome."""
        named = zip(HEAD[3:7], self.numbers[2:6], strict=True)
        numbers = ", ".join(f"{name.partition(' ')[0]} {text}" for name, text in named if text)
        return ": ".join(filter(None, (numbers, self.reason)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """All checks. One failure fails; without one, a check without a verdict makes the whole one "no verdict"."""

    checks: tuple[Check, ...]
    changed_settings: tuple[str, ...] = ()
    """Settings that differ from the baseline's."""
    notes: tuple[str, ...] = ()
    """Other differences from the baseline that do not prevent the comparison."""

    @property
    def outcome(self) -> Outcome:
        """The overall verdict. A skipped check changes nothing."""
        outcomes = {check.outcome for check in self.checks}
        return "fail" if "fail" in outcomes else "no verdict" if "no verdict" in outcomes or not outcomes else "pass"

    @property
    def counts(self) -> str:
        """Return the number of checks of each outcome: "1 fail, 3 pass"."""
        counts = Counter(check.outcome for check in self.checks)
        return ", ".join(f"{counts[outcome]} {outcome}" for outcome in _SIGNS if outcome in counts) or "no checks"

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
        check_name(item.column, columns, f'{where}: threshold: unknown column "{item.column}"', "docs/columns.md")
        if item.at_least is None and item.at_most is None and not item.is_relative:
            raise SpecError(f'{where}: threshold of "{item.column}": give at_least, at_most, may_fall or may_rise')
    return thresholds


def judge(now: Results, thresholds: Iterable[Threshold], baseline: Results | None = None) -> Verdict:
    """Judge all runs. An invalid or failed run is no verdict on its cell, never a pass."""
    now = _without_inapplicable(now)
    rows = cells.group_by_cell(now.summaries)
    match = None if baseline is None else changes.match_results(_without_inapplicable(baseline), now)
    before = {second.name: first for first, second in match.pairs} if match else {}
    checks = [check for row in rows for check in _check_states(row, before.get(row.name))]
    if match:
        checks += [Check(cell="*", column="facts", reason=text) for text in match.conflicts]
    checks += [check for item in thresholds for check in _judge_threshold(item, rows, match, before)]
    source = [f"the baseline is {baseline.source}"] if baseline and baseline.source else []
    return Verdict(
        checks=tuple(checks),
        changed_settings=match.changed_settings if match else (),
        notes=(*match.notes, *source) if match else (),
    )


def select_cells(rows: Iterable[CellRuns], item: Threshold) -> list[CellRuns]:
    """Return the cells that the threshold is for."""
    return [row for row in rows if fnmatchcase(row.name, item.cells)]


def format_markdown(verdict: Verdict, name: str) -> str:
    """Format Markdown for a pull request or a job: verdict, changed settings, and checks, those that passed folded."""
    parts = [f"## {_SIGNS[verdict.outcome]}: {_escape_markdown(name)}\n", f"{verdict.counts}\n"]
    if verdict.changed_settings:
        parts.append(_markdown_list(f"**Changed:** {text}" for text in map(_escape_markdown, verdict.changed_settings)))
    open_rows = [check for sign in _SIGNS for check in verdict.checks if sign == check.outcome != "pass"]
    if open_rows:
        parts.append(_markdown_table(open_rows))
    if passed := [check for check in verdict.checks if check.outcome == "pass"]:
        parts.append(f"<details><summary>{len(passed)} passed</summary>\n\n{_markdown_table(passed)}\n</details>\n")
    if verdict.notes:
        parts.append(_markdown_list(map(_escape_markdown, verdict.notes)))
    return "\n".join(parts)


def _markdown_table(checks: Iterable[Check]) -> str:
    rows = [[_SIGNS[check.outcome], *map(_escape_markdown, check.numbers)] for check in checks]
    # A column without any text is left out.
    used = [place for place in range(len(HEAD)) if place < 3 or any(row[place] for row in rows)]
    return to_markdown([[row[place] for place in used] for row in ([*HEAD], *rows)], len(used))


def _markdown_list(texts: Iterable[str]) -> str:
    return "".join(f"- {text}\n" for text in texts)


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

    Elements and attributes are those of Jenkins' junit-10.xsd, in its order. XML 1.0 cannot represent control
    characters, not even by an escape of its own (section 2.2, Char).
    """
    outcomes = Counter(check.outcome for check in verdict.checks)
    counts = {
        "tests": str(len(verdict.checks)),
        "failures": str(outcomes["fail"]),
        "errors": str(outcomes["no verdict"]),
    }
    root = ElementTree.Element("testsuites", counts)
    attributes = {"name": escape_text(name), **counts, "skipped": str(outcomes["skipped"])}
    suite = ElementTree.SubElement(root, "testsuite", attributes)
    names: Counter[tuple[str, str]] = Counter()
    for check in verdict.checks:
        names[check.cell, check.column] += 1
        number = names[check.cell, check.column]
        # Jenkins merges two tests of one name.
        title = check.column if number == 1 else f"{check.column} ({number})"
        test = ElementTree.SubElement(
            suite, "testcase", {"name": escape_text(title), "classname": escape_text(check.cell)}
        )
        sentence = escape_text(check.sentence)
        attributes = {} if check.outcome == "pass" else {"message": sentence, "type": check.outcome}
        ElementTree.SubElement(test, _JUNIT_ELEMENTS[check.outcome], attributes).text = sentence
    if texts := [*verdict.changed_settings, *verdict.notes]:
        ElementTree.SubElement(suite, "system-out").text = escape_text("\n".join(texts))
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _without_inapplicable(results: Results) -> Results:
    """Return the results without cells whose fault does not apply to their server: those are never run."""
    return replace(results, summaries=[run for run in results.summaries if run.state != "inapplicable"])


def _check_states(row: CellRuns, before: CellRuns | None) -> list[Check]:
    excluded = cells.excluded_runs(row.runs)
    checks = [Check(cell=row.name, column="state", reason=f"{run.run} is {run.ending}") for run in excluded]
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
    item: Threshold, rows: Sequence[CellRuns], match: Match | None, before: Mapping[str, CellRuns]
) -> Iterator[Check]:
    """Yield a check for each limit in each cell that the threshold is for."""
    selected = select_cells(rows, item)
    if not selected:
        yield Check(cell=item.cells, column=item.column, reason=f'no cell matches "{item.cells}"')
    for row in selected:
        unknown = ", ".join(row.runs_without(item.column))
        relative = [_judge_relative(row, item, before.get(row.name), match)] if item.is_relative else []
        for check in (*_judge_absolute(row, item), *relative):
            # A run without a number might have exceeded the limit.
            if unknown and check.outcome in ("pass", "skipped"):
                reason = "; ".join(filter(None, (check.reason, f"{unknown} did not measure it")))
                yield replace(check, outcome="no verdict", reason=reason)
            else:
                yield check
    for name in match.only_before if match and item.is_relative else ():
        if fnmatchcase(name, item.cells):
            yield Check(cell=name, column=item.column, reason="the baseline has this cell, and these results do not")


def _judge_absolute(row: CellRuns, item: Threshold) -> Iterator[Check]:
    value = row.median(item.column)
    for limit, words, is_within in ((item.at_least, "at least", operator.ge), (item.at_most, "at most", operator.le)):
        if limit is not None:
            check = Check(
                cell=row.name, column=item.column, allowed=f"{words} {_format_number(limit)}", reason=_UNMEASURED
            )
            if value is not None:
                outcome: Outcome = "pass" if is_within(value, limit) else "fail"
                check = replace(check, outcome=outcome, measured=_format_number(value), reason="")
            yield check


def _format_number(value: float) -> str:
    """Format a number with six digits, or all before the point: a size in bytes has more."""
    return f"{value:,.0f}" if abs(value) >= 100_000 else f"{value:,.6g}"


def _judge_relative(row: CellRuns, item: Threshold, before: CellRuns | None, match: Match | None) -> Check:
    column = columns_module.compared_column(item.column)
    limits = (("fall", item.may_fall_ppm), ("rise", item.may_rise_ppm))
    allowed = ", ".join(f"may {verb} {format_ppm(ppm)}" for verb, ppm in limits if ppm is not None)
    check = Check(cell=row.name, column=column, allowed=allowed, reason=_UNMEASURED)
    numbers = row.numbers(column)
    if not numbers:
        return check
    check = replace(check, measured=_format_number(fmean(numbers)))
    if match is None:
        return replace(check, outcome="skipped", reason="requires --baseline")
    if before is None:
        return replace(check, reason="the baseline has no such cell")
    if difference := changes.find_experiment_difference(before.runs, row.runs):
        return replace(check, reason=difference)
    # Never paired: the runs of a baseline were measured at another time.
    change = comparison.compare_cells(column, before, row, paired=False)
    if change is None:
        return replace(check, reason="the baseline did not measure it")
    check = replace(check, baseline=_format_number(change.first_mean), change=change_tables.format_change(change))
    if change.interval is None:
        runs = f"{change.first_runs} and {change.second_runs} runs"
        return replace(check, reason=f"{runs}: one run a side has no interval; take 3 replicates or more")
    if change.relative_interval is None:
        return _judge_near_zero(item, check, before.numbers(column), numbers)
    low, high = change.relative_interval
    check = replace(check, change=f"{check.change} ({change_tables.format_interval(change)})", reason="")
    least = -math.inf if item.may_fall_ppm is None else -item.may_fall_ppm / 1e6
    most = math.inf if item.may_rise_ppm is None else item.may_rise_ppm / 1e6
    if least <= low and high <= most:
        return replace(check, outcome="pass")
    if high < least or low > most:
        return replace(check, outcome="fail")
    # A limit of -100% cannot be exceeded.
    enough = comparison.replicates_for_verdict(change, [limit for limit in (least, most) if -1 < limit < math.inf])
    advice = f"about {enough} replicates a side would decide" if enough else "it is too close to the limit to decide"
    return replace(check, reason=advice)


def _judge_near_zero(item: Threshold, check: Check, before: Sequence[float], now: Sequence[float]) -> Check:
    """Judge a column whose baseline mean is 0 or almost 0, which has no shares: no run may be outside its range."""
    is_up = item.may_rise_ppm is not None and max(now) > max(before)
    is_down = item.may_fall_ppm is not None and min(now) < min(before)
    if not is_up and not is_down:
        return replace(check, outcome="pass", reason="")
    is_in_all = (is_up and min(now) > max(before)) or (is_down and max(now) < min(before))
    return replace(
        check, outcome="fail" if is_in_all else "no verdict", reason=f"in {'all' if is_in_all else 'some'} runs"
    )


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
    """Return the text in one line, without Markdown, HTML and mentions of users in it."""
    escaped = re.sub(r"([\\`*_\[\]~#])", r"\\\1", html.escape(escape_line(" ".join(text.split())), quote=False))
    # GitHub and GitLab notify the user after an @, also in HTML entities; not across a space without width.
    return escaped.replace("@", "@&#8203;")
