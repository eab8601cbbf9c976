"""Bisection of releases by one column: the verdict on each release, the next one to measure, and the result. Pure.

The gate's statistics judge (`analysis.compare.comparison`). Both ends are measured first; they must be distinct. A
release is good if the 95% interval of its change from the good end is below half of the change between the ends, and
bad if it is above. An interval that contains the half is undecided: the release gets as many runs again, and so does
the good end. After three times the replicates the bisection stops.

All follows from the results alone, so that an interrupted bisection resumes from its folder.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ingest_bench.analysis.compare import cells, comparison
from ingest_bench.analysis.compare.cells import CellRuns
from ingest_bench.analysis.compare.comparison import Comparison
from ingest_bench.model.experiment import Bisection
from ingest_bench.model.results import Summary
from ingest_bench.units import format_count

Verdict = Literal["good end", "bad end", "good", "bad", "undecided", "skipped", ""]
# One run without a number is chance. Two are the release, unless more runs have one.
_MAX_BROKEN_RUNS = 2
# An undecided release gets this many times the replicates.
_MAX_ROUNDS = 3
# Releases that are measured in addition to those of a bisection without skipped ones.
_SPARE_STEPS = 3
# A value is like an end within a quarter of the distance between the ends.
_TOLERANCE = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedRelease:
    """A release with all its runs so far."""

    version: str
    row: CellRuns
    verdict: Verdict
    change: Comparison | None = None
    """From the good end; None without a number."""
    is_like_neither: bool = False
    """Its value is far from those of both ends: this range has more than one change."""
    reason: str = ""
    """Why it was skipped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A bisection so far: the verdicts, the range that is left, and what follows."""

    rules: Bisection
    judged: tuple[JudgedRelease, ...]
    """The releases with runs, in the order of releases."""
    last_good: str
    first_bad: str
    between: tuple[str, ...]
    """The releases between these two, in the order of releases."""
    next_release: str | None = None
    """The release whose next run follows; None at the end."""
    problem: str = ""
    """Why there is no result."""

    @property
    def is_solved(self) -> bool:
        """Return True if the two releases on both sides of the change are known."""
        return self.next_release is None and not self.problem


def count_steps(bisection: Bisection) -> int:
    """Return the number of releases between the ends that are measured if none is skipped."""
    return math.ceil(math.log2(len(bisection.releases) - 1))


def judge_releases(bisection: Bisection, summaries: Iterable[Summary]) -> Progress:
    """Return the verdict on each release, and what follows from all runs so far."""
    rows = {row.levels[bisection.key]: row for row in cells.group_by_cell(summaries)}
    judge = _Judge(bisection, rows)
    return judge.measure_ends() or judge.narrow()


class _Judge:
    """The verdicts on a bisection's runs, replayed from its start."""

    def __init__(self, bisection: Bisection, rows: Mapping[str, CellRuns]) -> None:
        self._bisection, self._rows = bisection, rows
        self._order = bisection.from_good_to_bad
        self._low, self._high = 0, len(self._order) - 1
        self._good, self._bad = self._order[0], self._order[-1]
        self._judged: dict[str, JudgedRelease] = {}

    def measure_ends(self) -> Progress | None:
        """Judge the ends; return what follows, or None if they are distinct."""
        for end in (self._good, self._bad):
            if reason := self._find_defect(end):
                return self._progress(problem=f"{end} could not be measured, and it is an end: {reason}")
        for end in (self._good, self._bad):
            if self._count(end) < self._bisection.replicates:
                return self._progress(end)
        self._add(self._good, "good end")
        (ends,) = comparison.mark_distinct([self._compare(self._bad)])
        self._add(self._bad, "bad end" if ends.is_distinct else "undecided", change=ends)
        return None if ends.is_distinct else self._progress(problem="the ends do not differ")

    def narrow(self) -> Progress:
        """Judge the releases between the ends in their order of measurement; return what follows."""
        most = count_steps(self._bisection) + _SPARE_STEPS
        while (version := self._find_middle()) is not None:
            if version not in self._rows and len(self._judged) - 2 >= most:
                return self._progress(problem=f"{most} releases were tried, the most that a bisection takes")
            if reason := self._find_defect(version):
                self._add(version, "skipped", reason=reason)
                continue
            if incomplete := self._find_incomplete(version):
                return self._progress(incomplete)
            verdict, runs = self._judge(version), self._count(version)
            if verdict == "undecided":
                is_last = runs >= _MAX_ROUNDS * self._bisection.replicates
                problem = f"{version} is undecided after {format_count(runs, 'run')}"
                return self._progress(problem=problem) if is_last else self._progress(version)
            place = self._order.index(version)
            self._low, self._high = (place, self._high) if verdict == "good" else (self._low, place)
        return self._progress(problem="all releases between were skipped" if self._high - self._low > 1 else "")

    def _find_middle(self) -> str | None:
        """Return the release nearest to the middle of the range that was not skipped; None without any."""
        places = [place for place in range(self._low + 1, self._high) if self._order[place] not in self._judged]
        nearest = min(places, key=lambda place: abs(2 * place - self._low - self._high), default=None)
        return None if nearest is None else self._order[nearest]

    def _find_incomplete(self, version: str) -> str | None:
        """Return the release, or the good end, if it lacks runs of a round. The end has as many rounds."""
        replicates = self._bisection.replicates
        wanted = max(1, math.ceil(self._count(version) / replicates)) * replicates
        return next((name for name in (version, self._good) if self._count(name) < wanted), None)

    def _judge(self, version: str) -> Verdict:
        """Add the verdict on a measured release, by the place of its interval between the ends, and return it."""
        change, ends = self._compare(version), self._compare(self._bad)
        # From 0, the good end, to 1, the bad end.
        low, high = sorted(end / ends.difference for end in change.interval or (-math.inf, math.inf))
        is_near = any(low <= end + _TOLERANCE and high >= end - _TOLERANCE for end in (0, 1))
        verdict: Verdict = "good" if high < 0.5 else "bad" if low > 0.5 else "undecided"
        self._add(version, verdict, change=change, is_like_neither=not is_near)
        return verdict

    def _add(self, version: str, verdict: Verdict, **fields: Any) -> None:
        self._judged[version] = JudgedRelease(version=version, row=self._rows[version], verdict=verdict, **fields)

    def _compare(self, version: str) -> Comparison:
        first, second = self._rows[self._good], self._rows[version]
        # Not paired: only the runs of the ends are from the same blocks.
        change = comparison.compare_cells(self._bisection.column, first, second, paired=False)
        assert change is not None  # noqa: S101 - both have numbers
        return change

    def _count(self, version: str) -> int:
        row = self._rows.get(version)
        return len(row.numbers(self._bisection.column)) if row else 0

    def _find_defect(self, version: str) -> str:
        """Return why the release has no numbers; "" if it has, or may get some."""
        row, measured = self._rows.get(version), self._count(version)
        if row is None or len(row.runs) - measured < max(_MAX_BROKEN_RUNS, measured):
            return ""
        reasons = (run.ending for run in row.runs if run.state != "measured")
        return next(reasons, f"no run measured {self._bisection.column}")

    def _progress(self, next_release: str | None = None, problem: str = "") -> Progress:
        between = self._order[self._low + 1 : self._high]
        unjudged = {version: JudgedRelease(version=version, row=row, verdict="") for version, row in self._rows.items()}
        judged = unjudged | self._judged
        return Progress(
            rules=self._bisection,
            judged=tuple(judged[version] for version in self._bisection.releases if version in judged),
            last_good=self._order[self._low],
            first_bad=self._order[self._high],
            between=tuple(version for version in self._bisection.releases if version in between),
            next_release=next_release,
            problem=problem,
        )
