"""The measurement of a run: where it lies within its load.

With `warm_up = "auto"` the samples say where it begins. That is computed anew each time and written into nothing that
the load left, so that a better detector can be applied to old results.
"""

from __future__ import annotations

from typing import Any

from ingest_bench.analysis.run import steady
from ingest_bench.model.experiment import Cell
from ingest_bench.model.load import WorkerReport
from ingest_bench.results.run_folder import RunFolder


def report(folder: RunFolder, cell: Cell) -> WorkerReport | None:
    """What the load said, with the measurement that counts; None when the load never came to its end."""
    said = folder.load_report()
    if said is None or cell.load.warm_up_ns != "auto":
        return said
    return steady.settled(folder.samples(), said, cell.load.measure_ns)


def fields(folder: RunFolder, cell: Cell, *, until_ns: int | None = None) -> dict[str, Any]:
    """The measurement on the wall's clock and whose clocks it was compared with, as fields of the run's record.

    `until_ns`: when the server ended, on CLOCK_REALTIME. What is measured then is the warm-up, when the measurement
    did not last a second. Empty when the load never came to its end.
    """
    found = report(folder, cell)
    if found is None:
        return {}
    offset_ns = found.realtime_minus_monotonic_ns
    start_ns, end_ns = found.warm_up_end_ns + offset_ns, found.measure_end_ns + offset_ns
    if until_ns is not None:
        if until_ns - start_ns < 10**9:
            start_ns = found.started_monotonic_ns + offset_ns
        end_ns = max(start_ns, min(until_ns, end_ns))
    return {
        "warm_up_ns": found.warm_up_end_ns - found.started_monotonic_ns,
        "measure_start_realtime_ns": start_ns,
        "measure_end_realtime_ns": end_ns,
        "clock_offsets": found.clock_offsets,
    }
