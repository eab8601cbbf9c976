"""The verdict on each release of a bisection, and the release in which the column changed."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from ingest_bench.analysis.compare.bisection import JudgedRelease, Progress
from ingest_bench.report.change_tables import format_interval
from ingest_bench.report.formatting import shorten
from ingest_bench.report.headline import format_value

_MAX_REASON, _MAX_NAMED = 60, 4


def release_rows(progress: Progress) -> list[list[str]]:
    """Return a head and a row for each measured release."""
    column = progress.rules.column
    return [
        ["version", "runs", "value", "against the good end", "verdict"],
        *(
            [
                item.version,
                str(len(item.row.numbers(column))),
                _format_mean(column, item),
                _format_interval(column, item).strip(" ()"),
                item.verdict,
            ]
            for item in progress.judged
        ),
    ]


def describe_result(progress: Progress) -> list[str]:
    """Return the result in a sentence, and one for each release that it does not explain."""
    unlike = ", ".join(item.version for item in progress.judged if item.is_like_neither)
    changes = [f"more than one change: {unlike} is like neither end. Bisect again up to it."] if unlike else []
    if progress.next_release:
        return ["not finished: continue with --resume", *changes]
    column, is_fix = progress.rules.column, progress.rules.is_good_last
    by_version = {item.version: item for item in progress.judged}
    steps = (progress.last_good, progress.first_bad)
    before, after = steps[::-1] if is_fix else steps
    word = "good" if is_fix else "bad"
    values = " → ".join(_format_mean(column, by_version.get(version)) for version in (before, after))
    if progress.is_solved:
        sentences = [f"first {word} release: {after} (after {before}): {column} {values}"]
    else:
        interval = _format_interval(column, by_version.get(progress.first_bad))
        sentences = [f"no verdict: {progress.problem}", f"{before} → {after}: {column} {values}{interval}"]
        if progress.between and any(item.verdict == "bad end" for item in progress.judged):
            sentences.append(f"first {word} release: one of {_list_names([*progress.between, after])}")
    reasons = ((item.version, shorten(item.reason, _MAX_REASON)) for item in progress.judged if item.reason)
    return [*sentences, *(f"skipped: {version}: {reason}" for version, reason in reasons), *changes]


def to_document(progress: Progress) -> dict[str, Any]:
    """Return the result for JSON; the interval is that of the change from the good end."""
    column = progress.rules.column
    return {
        "column": column,
        "is_solved": progress.is_solved,
        "last_good": progress.last_good,
        "first_bad": progress.first_bad,
        "between": progress.between,
        "problem": progress.problem,
        "releases": [
            {
                "version": item.version,
                "values": (numbers := item.row.numbers(column)),
                "mean": fmean(numbers) if numbers else None,
                "change_interval": item.change and item.change.interval,
                "ratio_interval": item.change and item.change.relative_interval,
                "verdict": item.verdict,
                "is_like_neither": item.is_like_neither,
                "reason": item.reason,
            }
            for item in progress.judged
        ],
    }


def _format_mean(column: str, item: JudgedRelease | None) -> str:
    numbers = item.row.numbers(column) if item else []
    return format_value(column, fmean(numbers)) if numbers else "unknown"


def _format_interval(column: str, item: JudgedRelease | None) -> str:
    """Format the interval of the change from the good end, in brackets; as a difference if that end is 0."""
    if item is None or item.change is None or item.change.interval is None:
        return ""
    text = format_interval(item.change)
    return f" ({text or ' to '.join(format_value(column, end) for end in item.change.interval)})"


def _list_names(names: Sequence[str]) -> str:
    """List the first and last names of many."""
    return ", ".join(names if len(names) <= _MAX_NAMED else [*names[: _MAX_NAMED - 1], "…", names[-1]])
