"""The steps of a search for a rate: which rates met the goal, and where the knee is."""

from __future__ import annotations

from collections.abc import Sequence

from ingest_bench.analysis.search import JudgedStep, Knee
from ingest_bench.model.results import Summary
from ingest_bench.report.formatting import format_integer, format_number
from ingest_bench.report.summary_files import to_csv, to_markdown


def step_rows(knees: Sequence[Knee]) -> list[list[str]]:
    """Return a head and a row for each step, in the order in which they were decided."""
    head = ["cell", "step", "requests/s", "answered/s", "docs/s", "response p99, ms", "errors", "goal"]
    return [head, *(_step_row(knee, step, summary) for knee in knees for step, summary in knee.steps)]


def describe_knees(knees: Sequence[Knee]) -> list[str]:
    """Return the result of each cell in a sentence."""
    return [f"{knee.cell}: {knee.result.text}" if knee.cell else knee.result.text for knee in knees]


def search_files(knees: Sequence[Knee]) -> dict[str, bytes]:
    """Build the picture, the table of the steps and its CSV; nothing without a search."""
    if not knees:
        return {}
    from ingest_bench.report import plot_search  # noqa: PLC0415 - matplotlib takes most of a second

    rows = [["cell", "run", "step", "requests_per_s", "outcome", "why", "reached_per_s", "response_ms_p99"]]
    for knee in knees:
        for step, summary in knee.steps:
            planned, p99 = step.per_s or "", summary.values.get("response_ms_p99")
            outcome = [step.outcome, step.reason, f"{step.reached_per_s:.6g}", "" if p99 is None else str(p99)]
            rows.append([knee.cell, summary.run, step.step, str(planned), *outcome])
    table = to_markdown(step_rows(knees), 2) + "".join(f"\n{line}\n" for line in describe_knees(knees))
    return {
        "report/knee.png": plot_search.draw_knee(knees),
        "report/knee.md": table.encode(),
        "report/steps.csv": to_csv(rows).encode(),
    }


def _step_row(knee: Knee, step: JudgedStep, summary: Summary) -> list[str]:
    p99, docs, failed, requests = (
        value if isinstance(value := summary.values.get(name), (int, float)) else None
        for name in ("response_ms_p99", "docs_per_s_mean", "requests_failed", "requests")
    )
    return [
        knee.cell or "only",
        step.step,
        "closed" if step.per_s is None else f"{step.per_s:,.6g}",
        format_number(step.reached_per_s),
        "" if docs is None else format_integer(docs),
        "" if p99 is None else format_number(p99),
        f"{failed / requests:.2%}" if requests and failed is not None else "",
        "" if step.step == "estimate" else "generator-bound" if step.outcome == "generator" else step.outcome,
    ]
