"""Whether what a server acknowledged is there at the end: a row a fault, a column a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ingest_bench.analysis.compare import cells
from ingest_bench.analysis.run import integrity
from ingest_bench.model.results import Summary
from ingest_bench.report.tables.words import key_text, whole

_FAULT = "fault"


def table(summaries: Sequence[Summary]) -> list[list[str]]:
    """A head and a row for each fault; empty where the fault does not vary."""
    varying = cells.varying(summaries)
    if _FAULT not in varying:
        return []
    others = [key for key in varying if key != _FAULT]
    found: dict[str, dict[str, list[str]]] = {}
    columns: dict[str, None] = {}
    for summary in summaries:
        column = _column(summary.levels, others)
        columns[column] = None
        said = found.setdefault(summary.levels[_FAULT], {}).setdefault(column, [])
        if (text := _said(summary)) not in said:
            said.append(text)
    body = [[fault, *("; ".join(row.get(column, ())) for column in columns)] for fault, row in found.items()]
    return [[_FAULT, *columns], *body]


def _column(levels: Mapping[str, str], others: Sequence[str]) -> str:
    """The levels of the other factors: a target by its name alone."""
    named = [levels[key] if key == "target" else f"{key_text(key)} {levels[key]}" for key in others]
    return ", ".join(named) or "acknowledged documents"


def _said(run: Summary) -> str:
    """What became of one run's acknowledged documents."""
    if run.state == "inapplicable":
        return f"does not apply: {run.reason}"
    expected, counted = integrity.documents_expected(run.values), run.values.get("documents_counted")
    if run.state in ("measured", "invalid") and expected is not None and isinstance(counted, int):
        # By their numbers it is known which are lost; otherwise at least those that are missing.
        told = run.values.get("lost_documents")
        lost = told if isinstance(told, int) else max(0, expected - counted)
        if lost:
            return f"{whole(lost)} of {whole(expected)} lost"
        if run.state == "measured":
            return f"all {whole(expected)} there"
    first, *_ = run.reason.splitlines() or [""]
    return "cannot be counted" if run.state == "measured" else f"{run.state}: {first}"
