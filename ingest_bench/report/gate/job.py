"""A verdict for the page of a CI job: Markdown for its summary, JSON for its history of numbers."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Sequence

from ingest_bench.analysis.compare import cells
from ingest_bench.analysis.compare.cells import CellRuns
from ingest_bench.model.results import Summary
from ingest_bench.report.gate import Threshold, Verdict, matching
from ingest_bench.report.tables.text_tables import markdown

_SIGNS = {"pass": "✅ pass", "fail": "❌ fail", "no verdict": "⚠️ no verdict"}
_UNITS = ("bytes", "ms", "s", "ppm", "percent")


def summary(verdict: Verdict, name: str) -> str:
    """Markdown: the verdict, then a table of the checks, what did not pass first."""
    checks = sorted(verdict.checks, key=lambda check: ("fail", "no verdict", "pass").index(check.outcome))
    rows = [[_SIGNS[check.outcome], *map(_plain, (check.cell, check.column, check.text))] for check in checks]
    notes = "".join(f"- {_plain(note)}\n" for note in verdict.notes)
    table = markdown([["", "cell", "column", "found"], *rows], 4)
    return f"## {_SIGNS[verdict.outcome]}: {_plain(name)}\n\n{table}" + (f"\n{notes}" if notes else "")


def smaller_is_better(summaries: Sequence[Summary], wanted: Sequence[Threshold]) -> str:
    """JSON as `customSmallerIsBetter` of github-action-benchmark has it (README, "Using charts"; src/extract.ts).

    A list of name, unit, value, range and extra: the median over the runs of each cell and column that a threshold
    names. Of a rate it is the time that one takes: a smaller rate is not better. A column of which only a lower limit
    is given, and which is no rate, is left out.
    """
    rows = cells.group(summaries)
    asked = dict.fromkeys(
        (row.name, item.column)
        for item in wanted
        for row in matching(rows, item)
        if _is_rate(item.column) or item.at_most is not None or item.may_rise_ppm is not None
    )
    named = {row.name: row for row in rows}
    found = [_entry(named[cell], column) for cell, column in asked]
    return json.dumps([entry for entry in found if entry], indent=1, allow_nan=False) + "\n"


def _entry(row: CellRuns, column: str) -> dict[str, str | float] | None:
    numbers = row.numbers(column)
    value = row.typical(column)
    if value is None:
        return None
    name, unit = f"{row.name}: {column}", _unit(column)
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


def _unit(column: str) -> str:
    words = column.split("_")
    unit = next((unit for unit in _UNITS if unit in words), "count")
    return f"{unit}/GB" if column.endswith("_per_gb") else unit


def _is_rate(column: str) -> bool:
    return "_per_s_" in column or column.endswith("_per_s")


def _plain(text: str) -> str:
    """The text in one line as it is, whatever Markdown or HTML would make of it."""
    return re.sub(r"([\\`*_\[\]~#])", r"\\\1", html.escape(" ".join(text.split()), quote=False))
