"""What changed between two results: rows for the terminal, numbers for a CSV."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ingest_bench.analysis.compare.changes import Changes
from ingest_bench.analysis.compare.comparison import Comparison
from ingest_bench.report.tables.words import short

NO_VERDICT = "no verdict: one run a side"


def rows(changes: Changes) -> list[list[str]]:
    """A head and a row for each comparison, for people."""
    head = ["column", "cell", "runs", "mean before", "mean now", "change", "95% interval", "verdict"]
    return [head, *(_row(found) for found in changes.found)]


def values(changes: Changes) -> list[list[object]]:
    """The same as numbers: shares of the first mean. An unknown one is an empty cell."""
    head: list[object] = [
        *("column", "first", "second", "first_runs", "second_runs", "first_mean", "second_mean"),
        *("change", "change_low", "change_high", "changed"),
    ]
    return [head, *(_values(found) for found in changes.found)]


def summed_up(found: Sequence[Comparison]) -> str:
    """One line: what changed, beside how much did not."""
    changed = [each for each in found if each.is_distinct]
    unknown = sum(each.is_distinct is None for each in found)
    rest = f"; no verdict on {unknown}, with one run a side" if unknown else ""
    known = len(found) - unknown
    if not changed:
        return f"Of {known} comparisons none shows a change{rest}" if known else "No verdict: one run a side"
    named = [f"{each.column} {change(each)} ({each.second})" for each in changed[:3]]
    more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
    return f"{len(changed)} of {known} changed: {', '.join(named)}{more}{rest}"


def change(found: Comparison) -> str:
    """The change as a share: "+5.9%"; from 0 there is none."""
    return "from 0" if found.relative is None else f"{found.relative:+.1%}"


def interval(found: Comparison) -> str:
    """Return the ends of the change, as shares; empty where they are unknown. The upper one may have no bound."""
    if found.relative_interval is None:
        return ""
    low, high = found.relative_interval
    return f"{low:+.1%} or more" if high == math.inf else f"{low:+.1%} to {high:+.1%}"


def ends(change: Comparison) -> tuple[object, object]:
    """Return the ends as numbers for a CSV; one that is unknown or has no bound is an empty cell."""
    low, high = change.relative_interval or ("", "")
    return low, "" if high == math.inf else high


def verdict(found: Comparison) -> str:
    """Whether it changed. Of many intervals some leave 0 out by chance: such a one alone is no change (Holm)."""
    if found.is_distinct is None:
        return NO_VERDICT
    if found.is_distinct:
        return "changed"
    low, high = found.interval or (0.0, 0.0)
    return "no change seen" if low <= 0 <= high else "may be chance, as one of so many"


def cell(found: Comparison) -> str:
    """The name of both cells, or the two names."""
    return found.first if found.first == found.second else f"{found.first} → {found.second}"


def _row(found: Comparison) -> list[str]:
    means = (short(found.first_mean), short(found.second_mean))
    runs = f"{found.first_runs}, {found.second_runs}"
    return [found.column, cell(found), runs, *means, change(found), interval(found), verdict(found)]


def _values(found: Comparison) -> list[object]:
    relative = "" if found.relative is None else found.relative
    changed = {True: "yes", False: "no", None: ""}[found.is_distinct]
    return [
        *(found.column, found.first, found.second, found.first_runs, found.second_runs),
        *(found.first_mean, found.second_mean, relative, *ends(found), changed),
    ]
