"""The report of several workers as one, and of several loads as one."""

from __future__ import annotations

import dataclasses
import json
import os
from collections import Counter
from typing import TYPE_CHECKING

from ingest_bench.inputs.records import to_json
from ingest_bench.model.load import WorkerReport
from ingest_bench.model.schemas import SCHEMAS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def joined(reports: Sequence[WorkerReport]) -> WorkerReport:
    """One report for loads that came one after another: measured is from the first end of a warm-up to the last end.

    A load that was over before its warm-up was has nothing else to measure: it is measured from its start.
    """
    starts = (
        report.warm_up_end_ns if report.warm_up_end_ns < report.measure_end_ns else report.started_monotonic_ns
        for report in reports
    )
    return dataclasses.replace(
        merge(reports),
        warm_up_end_ns=next(starts),
        measure_end_ns=max(report.measure_end_ns for report in reports),
        is_open=any(report.is_open for report in reports),
    )


def write(report: WorkerReport, folder: Path) -> None:
    """`load.json` in that folder, whole or not at all: whoever is killed meanwhile leaves results that can be read."""
    new = folder / ".load.json.new"
    with new.open("w") as file:
        file.write(json.dumps({"schema": SCHEMAS["load.json"], **to_json(report)}, indent=1))
        file.flush()
        os.fsync(file.fileno())
    new.replace(folder / "load.json")


def merge(reports: Sequence[WorkerReport]) -> WorkerReport:
    """One report for all workers: sums are exact, a quantile is the worst worker's."""
    if len(reports) == 1:
        return reports[0]
    failures: Counter[str] = Counter()
    for report in reports:
        failures.update(report.item_failures)
    return WorkerReport(
        started_monotonic_ns=min(report.started_monotonic_ns for report in reports),
        realtime_minus_monotonic_ns=reports[0].realtime_minus_monotonic_ns,
        warm_up_end_ns=max(report.warm_up_end_ns for report in reports),
        measure_end_ns=max(report.measure_end_ns for report in reports),
        bytes_written=sum(report.bytes_written for report in reports),
        bytes_unread=sum(report.bytes_unread for report in reports),
        local_ports=tuple(sorted({port for report in reports for port in report.local_ports})),
        item_failures=dict(failures),
        cpu_ns=sum(report.cpu_ns for report in reports),
        loop_lag_p99_ns=max(report.loop_lag_p99_ns for report in reports),
        loop_lags=max(reports, key=lambda report: report.loop_lag_p99_ns).loop_lags,
        queue_delays=max(reports, key=lambda report: report.queue_p99_ns).queue_delays,
        errors=tuple(error for report in reports for error in report.errors),
        documents_resent=sum(report.documents_resent for report in reports),
        documents_repeated=sum(report.documents_repeated for report in reports),
        tickets_waited=sum(report.tickets_waited for report in reports),
        tickets_unsent=sum(report.tickets_unsent for report in reports),
        queue_p99_ns=max(report.queue_p99_ns for report in reports),
        is_open=reports[0].is_open,
        longest_silence_ns=max(report.longest_silence_ns for report in reports),
        addresses=reports[0].addresses,
        clock_offsets=tuple(offset for report in reports for offset in report.clock_offsets),
    )
