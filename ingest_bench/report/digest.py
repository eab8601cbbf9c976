"""The end of a run in a few lines of 80 columns: a small table of the cells, and a sentence about each topic."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from ingest_bench.analysis.compare import cells
from ingest_bench.analysis.run.summary import REFUSED
from ingest_bench.analysis.stalls.attribution import STALL_SOURCE
from ingest_bench.model.results import Summary
from ingest_bench.report.cell_tables import FORMATS, TABLES, Rows
from ingest_bench.report.formatting import format_axis_number, format_key, format_number, format_range, shorten
from ingest_bench.units import format_count

COLUMNS: Sequence[tuple[str, str, str, bool]] = TABLES["digest"]
"""Column of summary.csv, head, format, and whether a difference to the first row follows."""
# Causes that a reader suspects first, with short names.
_USUAL_SUSPECTS = {
    "garbage collection": "GC",
    "packets lost on the network": "loss",
    "the load generator's event loop stalled": "load generator",
}
_MAX_NAMED, _MAX_KINDS = 3, 8
_MAX_RATIO = 10
_MAX_REASON = 240
# A note's kind is its text before a colon, without numbers of the run.
_KIND = re.compile(r"([^:0-9]{3,50}): ")


def digest_rows(summaries: Sequence[Summary]) -> Rows:
    """Return a head and a row for each cell: its factors in one column, and at most five medians.

    A column without any number is left out. A cell without numbers says how its runs ended.
    """
    rows, keys = cells.group_by_cell(summaries), cells.varying_keys(summaries)
    medians = [[row.measured_or_oom.median(column) for column, *_ in COLUMNS] for row in rows]
    shown = [at for at, numbers in enumerate(zip(*medians, strict=True)) if any(value is not None for value in numbers)]
    table = [[" · ".join(map(format_key, keys)) or "cell", *(COLUMNS[at][1] for at in shown)]]
    for row, numbers in zip(rows, medians, strict=True):
        name = " · ".join(row.levels.get(key, "") for key in keys) or row.name
        texts = [_format_cell(numbers[at], None if row is rows[0] else medians[0][at], at) for at in shown]
        kinds = f" ({row.exhausted_memory})" if row.exhausted_memory else ""
        table.append([f"{name} · OOM{kinds}" if row.oom_runs else name, *texts])
        if not any(texts):
            table[-1][1:2] = [", ".join(sorted({run.state for run in row.runs}))]
    return table


def _format_cell(value: float | None, first: float | None, at: int) -> str:
    """Format a median, with its difference to that of the first row in columns that compare it."""
    _, _, name, is_compared = COLUMNS[at]
    if value is None:
        return ""
    text = FORMATS[name](value)
    if not (is_compared and first):
        return text
    # A share of ten digits would take the place of the cell's name.
    ratio = value / first
    return f"{text} {ratio - 1:+5.0%}" if ratio < _MAX_RATIO else f"{text} x{format_axis_number(ratio)}"


def describe_stalls(summaries: Sequence[Summary]) -> str:
    """Return one sentence about all stalls: how many, how long, by what cause, and which usual causes are ruled out."""
    watched = [run for run in summaries if run.state == "measured" and run.values.get("stalls") == len(run.stalls)]
    stalls = [stall for run in watched for stall in run.stalls]
    if not stalls:
        return "No stalls." if watched else ""
    length = format_range([(stall.end_ns - stall.start_ns) / 1e9 for stall in stalls], format_number)
    text = f"{format_count(len(stalls), 'stall')} of {length} s"
    causes = Counter(cause for stall in stalls for cause in {item.cause for item in stall.causes} or {"unexplained"})
    text += f", {_join_counts(causes, len(stalls))}."
    ruled_out = [
        short for cause, short in _USUAL_SUSPECTS.items()
        if all(any(other.cause == cause for other in stall.ruled_out) for stall in stalls)
    ]  # fmt: skip
    return f"{text} Ruled out: {', '.join(ruled_out)}." if ruled_out else text


def describe_warnings(summaries: Sequence[Summary]) -> str:
    """Return the kinds of notes with the number of runs that have each, and what one run per cell cannot tell."""
    measured = [run for run in summaries if run.state != "inapplicable"]
    kinds = Counter(kind for run in measured for kind in {_find_kind(note.source, note.text) for note in run.notes})
    # Stalls and errors have lines of their own.
    for kind in ("", REFUSED.removesuffix(": ")):
        kinds.pop(kind, 0)
    texts = [f"{kind} ({count} of {len(measured)})" for kind, count in kinds.most_common(_MAX_KINDS)]
    texts += [f"{len(kinds) - _MAX_KINDS} other kinds"] if len(kinds) > _MAX_KINDS else []
    groups = cells.group_by_cell(measured)
    parts = [f"Warnings: {'; '.join(texts)}."] if texts else []
    if len(groups) > 1 and all(len(row.valid) == 1 for row in groups):
        parts.append("1 run per cell: no verdict; --replicates 3 would tell.")
    return " ".join(parts)


def describe_errors(summaries: Sequence[Summary]) -> str:
    """Return how many requests and documents failed, and the server's reason for the first ones; "" without errors."""
    failed, requests, documents = (
        sum(int(run.values.get(name) or 0) for run in summaries if run.state in ("measured", "oom", "aborted"))
        for name in ("requests_failed", "requests", "documents_failed")
    )
    if not failed and not documents:
        return ""
    share = f" ({failed / requests:.2%})" if requests else ""
    text = f"Errors: {failed:,} of {requests:,} requests{share} failed or were refused in part"
    text += f", {format_count(documents, 'document')} refused."
    notes = (note.text for run in summaries for note in run.notes if note.text.startswith(REFUSED))
    reason = next(notes, "").removeprefix(REFUSED)
    return f"{text} {shorten(reason, _MAX_REASON)}" if reason else text


def suggest_next(summaries: Sequence[Summary], folder: str) -> str:
    """Return the command for the next question: what to change; "" if no run has a result."""
    has_result = any(run.state in ("measured", "oom") for run in summaries)
    return f"next: ingest-bench recommend {folder}   (what to change, and why)" if has_result else ""


def describe_endings(summaries: Sequence[Summary], folder: str = "") -> list[str]:
    """Return a line for each of the first causes that ended runs without a result: the cause once, with its runs.

    Paths in *folder*, which are absolute in a reason, are relative to it, and without that of the run.
    """
    ended: dict[tuple[str, str], list[str]] = {}
    for run in cells.excluded_runs(summaries):
        reason = " ".join(run.reason.split())
        reason = reason.replace(folder, "").replace(f"{run.run}/", "") if folder else reason
        ended.setdefault((run.state, shorten(reason, _MAX_REASON)), []).append(run.run)
    lines = [
        f"{state}: {runs[0]}: {reason}" if len(runs) == 1 else f"{state} in {len(runs)} runs: {reason}"
        for (state, reason), runs in ended.items()
    ]
    if more := sum(len(runs) for runs in list(ended.values())[_MAX_NAMED:]):
        lines[_MAX_NAMED:] = [f"{more} more runs without a result; the page has the reason of each in its cell"]
    return lines


def _join_counts(counts: Counter[str], total: int) -> str:
    """Format causes with their numbers of stalls: "all: X", or "3: X, 2: Y"."""
    (top, number), *others = counts.most_common()
    if number == total:
        named = [f"{count}: {name}" for name, count in others[: _MAX_NAMED - 1]]
        return ", ".join([f"{'' if total == 1 else 'all: '}{top}", *named])
    return ", ".join(f"{count}: {name}" for name, count in counts.most_common(_MAX_NAMED))


def _find_kind(source: str, text: str) -> str:
    """Return what a note is about; "" for a note on a stall, which has a line of its own."""
    if source == STALL_SOURCE:
        return ""
    if source != "load":
        return f"probe {source}"
    kind = _KIND.match(text)
    return kind[1] if kind else "other notes"
