"""Advice (`recommend`) for the terminal and the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ingest_bench.analysis.advice import Finding
from ingest_bench.model.results import ColumnValue
from ingest_bench.report.formatting import format_gb, format_number, format_size


def describe_findings(findings: Sequence[Finding]) -> list[str]:
    """Return a block of lines for each advice: the advice, its evidence, and the command that tests it."""
    blocks = []
    for finding in findings:
        runs = "" if finding.of_runs == 1 else f" ({len(finding.runs)} of {finding.of_runs} runs)"
        evidence = ", ".join(_list_evidence(finding))
        blocks.append(f"{finding.rule}: {finding.advice.text}{runs}\n  evidence: {evidence}\n  test: {finding.test}")
    return blocks or ["no advice: no rule holds for these runs"]


def describe_unchecked(unchecked: Mapping[str, str]) -> str:
    """Return one line about the rules without evidence, and what records it; "" if there are none."""
    rules = "; ".join(f"{rule} ({recorder})" for rule, recorder in unchecked.items())
    return f"not checked, because it was not recorded: {rules}" if rules else ""


def finding_rows(findings: Sequence[Finding]) -> list[list[str]]:
    """Return a head and a row for each advice."""
    return [
        ["advice", "evidence", "test", "runs"],
        *(
            [
                f"{finding.rule}: {finding.advice.text}",
                ", ".join(_list_evidence(finding)),
                finding.test,
                f"{len(finding.runs)} of {finding.of_runs}",
            ]
            for finding in findings
        ),
    ]


def _list_evidence(finding: Finding) -> list[str]:
    return [f"{name} {_format_value(name, value)}" for name, value in finding.advice.evidence.items()]


def _format_value(name: str, value: ColumnValue) -> str:
    if not isinstance(value, (int, float)):
        return str(value)
    if name.endswith("_bytes_per_gb"):
        return format_gb(value)
    return format_size(value) if name.endswith(("_bytes", "bytes_mean")) else format_number(value)
