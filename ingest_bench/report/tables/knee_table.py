"""The steps of a search as tables: which rates met the goal, and where the knee is."""

from __future__ import annotations

from collections.abc import Sequence

from ingest_bench.analysis.search.knees import Knee
from ingest_bench.analysis.search.next_step import Tried
from ingest_bench.model.results import Summary
from ingest_bench.report.tables import text_tables
from ingest_bench.report.tables.words import short, whole

HEAD = ("cell", "step", "requests/s", "answered/s", "docs/s", "response p99, ms", "errors", "goal")
_SAID = {"met": "met", "missed": "missed", "generator": "generator-bound", "broken": "broken"}


def rows(knees: Sequence[Knee]) -> list[list[str]]:
    """A head and a row for each step, in the order in which they were decided."""
    return [list(HEAD), *(_row(knee, tried, summary) for knee in knees for tried, summary in knee.steps)]


def said(knees: Sequence[Knee]) -> list[str]:
    """The result of each cell in a sentence."""
    return [f"{knee.cell}: {knee.found.said}" if knee.cell else knee.found.said for knee in knees]


def files(knees: Sequence[Knee]) -> dict[str, bytes]:
    """The table of the steps and the picture; nothing when nothing was searched."""
    if not knees:
        return {}
    from ingest_bench.report.plots import plots_knee  # noqa: PLC0415 - as all pictures: `report.pictures`

    values = [["cell", "run", "step", "requests_per_s", "outcome", "why", "reached_per_s", "response_ms_p99"]]
    for knee in knees:
        for tried, summary in knee.steps:
            planned, p99 = tried.per_s or "", summary.values.get("response_ms_p99")
            found = [tried.outcome, tried.why, f"{tried.reached_per_s:.6g}", "" if p99 is None else str(p99)]
            values.append([knee.cell, summary.run, tried.step, str(planned), *found])
    table = text_tables.markdown(rows(knees), 2) + "".join(f"\n{line}\n" for line in said(knees))
    return {
        "report/knee.png": plots_knee.knee(knees),
        "report/knee.md": table.encode(),
        "report/steps.csv": text_tables.csv_text(values).encode(),
    }


def _row(knee: Knee, tried: Tried, summary: Summary) -> list[str]:
    number = summary.values.get
    p99, docs, failed, requests = number("response_ms_p99"), number("docs_per_s_mean"), *_errors(summary)
    outcome = "" if tried.step == "estimate" else _SAID[tried.outcome]
    return [
        knee.cell or "only",
        tried.step,
        "closed" if tried.per_s is None else f"{tried.per_s:,.6g}",
        short(tried.reached_per_s),
        whole(docs) if isinstance(docs, (int, float)) else "",
        short(p99) if isinstance(p99, (int, float)) else "",
        f"{failed / requests:.2%}" if requests else "",
        outcome,
    ]


def _errors(summary: Summary) -> tuple[int, int]:
    failed, requests = summary.values.get("requests_failed"), summary.values.get("requests")
    return (failed, requests) if isinstance(failed, int) and isinstance(requests, int) else (0, 0)
