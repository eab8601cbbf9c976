"""Changes as tables: cell to cell, result to result (`compare`), over a history (`trend`), and noise (A/A runs)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ingest_bench.analysis.compare import cells, comparison
from ingest_bench.analysis.compare.changes import Changes
from ingest_bench.analysis.compare.comparison import Comparison
from ingest_bench.analysis.compare.trend import Change, History, Trend
from ingest_bench.analysis.run import columns as columns_module
from ingest_bench.analysis.run.columns import COLUMNS
from ingest_bench.model.results import Summary
from ingest_bench.report.formatting import format_number

NO_VERDICT = "1 run per cell: no verdict; --replicates 3"
EVERY_COLUMN = tuple(dict.fromkeys(columns_module.compared_column(column.name) for column in COLUMNS))
"""All columns that `gate`, `compare` and `trend` accept; of a total, its share of a GB."""
_DISTINCT = {True: "yes", False: "no", None: "one run a side"}


def change_rows(changes: Changes) -> list[list[str]]:
    """Return a head and a row for each comparison of two results, for people."""
    head = ["column", "cell", "runs", "mean before", "mean now", "change", "95% interval", "verdict"]
    body = [
        [
            *(change.column, format_cells(change), f"{change.first_runs}, {change.second_runs}"),
            *(format_number(change.first_mean), format_number(change.second_mean)),
            *(format_change(change), format_interval(change), describe_verdict(change)),
        ]
        for change in changes.comparisons
    ]
    return [head, *body]


def change_numbers(changes: Sequence[Comparison]) -> list[list[object]]:
    """Return comparisons as numbers for a CSV: shares of the first mean. An unknown one is an empty cell."""
    names = ("column", "first", "second", "first_runs", "second_runs", "first_mean", "second_mean")
    rows: list[list[object]] = [[*names, "change", "change_low", "change_high", "changed"]]
    for change in changes:
        distinct = {True: "yes", False: "no", None: ""}[change.is_distinct]
        rows.append([*(getattr(change, name) for name in names), *_relative_numbers(change), distinct])
    return rows


def summarise_changes(changes: Sequence[Comparison]) -> str:
    """Return one line: what changed, and how many comparisons show no change."""
    distinct = [change for change in changes if change.is_distinct]
    unknown = sum(change.is_distinct is None for change in changes)
    undecided = f"; no verdict on {unknown}, with one run a side" if unknown else ""
    decided = len(changes) - unknown
    if not distinct:
        return f"Of {decided} comparisons none shows a change{undecided}" if decided else "No verdict: one run a side"
    named = [f"{change.column} {format_change(change)} ({change.second})" for change in distinct[:3]]
    more = f" and {len(distinct) - 3} more" if len(distinct) > 3 else ""
    return f"{len(distinct)} of {decided} changed: {', '.join(named)}{more}{undecided}"


def format_change(change: Comparison) -> str:
    """Format the change as a share: "+5.9%"; a change from 0 has no share."""
    return "from 0" if change.relative is None else f"{change.relative:+.1%}"


def format_interval(change: Comparison) -> str:
    """Format the interval of the ratio of both means: "0.95 to 1.1 times"; "" if unknown. It may have no end."""
    if change.relative_interval is None:
        return ""
    low, high = (end + 1 for end in change.relative_interval)
    if high == math.inf:
        return f"{format_number(low)} times or more"
    return f"{format_number(low)} to {format_number(high)} times"


def describe_verdict(change: Comparison) -> str:
    """Describe whether the cell changed. An interval without 0 may be chance among many comparisons (Holm)."""
    if change.is_distinct is None:
        return NO_VERDICT
    if change.is_distinct:
        return "changed"
    low, high = change.interval or (0.0, 0.0)
    return "no change seen" if low <= 0 <= high else "may be chance, among this many comparisons"


def format_cells(change: Comparison) -> str:
    """Format the name of both cells, or the two names."""
    return change.first if change.first == change.second else f"{change.first} → {change.second}"


def noise_rows(summaries: Sequence[Summary], columns: Sequence[str] = comparison.DEFAULT_COLUMNS) -> list[list[str]]:
    """Return the table of an A/A experiment: a row for each column of each cell; empty for other experiments."""
    measured = comparison.measure_noise(summaries, columns)
    if not measured:
        return []
    keys = [key for key in cells.varying_keys(summaries) if key != "side"]
    wanted = [f"replicates for {change:.0%}" for change in comparison.WANTED_CHANGES]
    table = [[*keys, "column", "mean", "runs a side", "comparisons", "spread", "they show", *wanted, "sides differ"]]
    for item in measured:
        shares = ["" if share is None else f"{share:.1%}" for share in (item.spread, item.detectable)]
        needed = [
            "" if item.spread is None else str(item.replicates(change) or "> 1,000")
            for change in comparison.WANTED_CHANGES
        ]
        table.append(
            [
                *(item.levels.get(key, "") for key in keys),
                *(item.sides.column, format_number(item.mean), str(item.runs), str(item.comparisons)),
                *(*shares, *needed, _DISTINCT[item.sides.is_distinct]),
            ]
        )
    return table


def newest_changes(trend: Trend) -> list[tuple[History, Change]]:
    """Return every change with its history, the newest first, and of one date the most significant first."""
    changes = [(history, change) for history in trend.histories for change in history.changes]
    changes.sort(key=lambda item: item[1].compared.p_value or 0.0)
    return sorted(changes, key=lambda item: date_of(*item), reverse=True)


def order_histories(trend: Trend) -> list[History]:
    """Return the histories that changed, by their newest change, then the others."""
    changed = list({id(history): history for history, _ in newest_changes(trend)}.values())
    return [*changed, *(history for history in trend.histories if not history.changes)]


def date_of(history: History, change: Change) -> str:
    """Return the start of the first result that has the new level."""
    return history.dates[change.place]


def format_history(history: History, trend: Trend) -> str:
    """Format the cell, after its experiment where there are several."""
    has_several = len({other.experiment for other in trend.histories}) > 1
    return f"{history.experiment}: {history.cell}" if has_several else history.cell


def trend_rows(trend: Trend) -> list[list[str]]:
    """Return a head and a row for each change, for people."""
    head = ["column", "cell", "since", "before", "after", "change", "95% interval", "results", "what changed with it"]
    body = [
        [
            *(history.column, format_history(history, trend), date_of(history, change)),
            *(format_number(change.compared.first_mean), format_number(change.compared.second_mean)),
            *(format_change(change.compared), format_interval(change.compared)),
            f"{change.compared.first_runs}, {change.compared.second_runs}",
            "; ".join(change.facts) or "no fact",
        ]
        for history, change in newest_changes(trend)
    ]
    return [head, *body]


def trend_numbers(trend: Trend) -> list[list[object]]:
    """Return a head and a row for each result of each history.

    The result that begins a new level also has the change as a share, its ends, and the facts.
    """
    table: list[list[object]] = [
        [
            *("experiment", "cell", "column", "result", "value", "level", "outlier"),
            *("change", "change_low", "change_high", "facts"),
        ]
    ]
    for history in trend.histories:
        by_place = {change.place: change for change in history.changes}
        for place, (start, value, level) in enumerate(zip(history.dates, history.values, history.line, strict=True)):
            change = by_place.get(place)
            step = [*_relative_numbers(change.compared), "; ".join(change.facts)] if change else [""] * 4
            outlier = "yes" if place in history.outliers else "no"
            table.append([history.experiment, history.cell, history.column, start, value, level, outlier, *step])
    return table


def summarise_trend(trend: Trend) -> str:
    """Return one line: how many histories changed, and the newest change with the facts that changed with it."""
    total, changes = len(trend.histories), newest_changes(trend)
    if not total:
        return "No verdict: no cell has enough results"
    if not changes:
        return f"Of {total} histories none has a step"
    history, change = changes[0]
    since = f"since {date_of(history, change)} ({format_history(history, trend)})"
    with_it = f", with it: {'; '.join(change.facts)}" if change.facts else ", and no fact changed with it"
    changed = len({id(history) for history, _ in changes})
    newest = f"{history.column} {describe_direction(change.compared)} {since}"
    return f"{changed} of {total} histories changed, the newest change: {newest}{with_it}"


def describe_direction(change: Comparison) -> str:
    """Return the change with "faster" or "slower" where the column is a rate or a time."""
    is_rate, is_time = "_per_s" in change.column, "_ms" in change.column
    if not (is_rate or is_time) or not change.relative:
        return format_change(change)
    return f"{abs(change.relative):.1%} {'faster' if (change.difference > 0) == is_rate else 'slower'}"


def _relative_numbers(change: Comparison) -> tuple[object, object, object]:
    """Return the change and its ends as numbers; an unknown one, or one without a bound, is an empty cell."""
    relative = "" if change.relative is None else change.relative
    low, high = change.relative_interval or ("", "")
    return relative, low, "" if high == math.inf else high
