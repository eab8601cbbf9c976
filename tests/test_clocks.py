from __future__ import annotations

from pathlib import Path

import made_runs as made
import numpy as np

from ingest_bench.load.remote import shift_samples, shifted
from ingest_bench.model.load import ClockOffset
from ingest_bench.model.samples import SAMPLE


def test_samples_and_report_of_a_clock_that_is_ahead_come_back_on_ours(tmp_path: Path) -> None:
    ahead_ns = 3 * 10**12
    ours = made.samples([made.sample(1.0, 1.5), made.sample(2.0, 2.25)])
    theirs = ours.copy()
    for name in ("planned_ns", "sent_ns", "done_ns"):
        theirs[name] += ahead_ns
    path = tmp_path / "samples-0.bin"
    theirs.tofile(path)
    shift_samples(path, -ahead_ns)
    assert np.fromfile(path, dtype=SAMPLE).tolist() == ours.tolist()

    report = made.report()
    there = made.report(
        started_monotonic_ns=report.started_monotonic_ns + ahead_ns,
        warm_up_end_ns=report.warm_up_end_ns + ahead_ns,
        measure_end_ns=report.measure_end_ns + ahead_ns,
    )
    here = shifted(there, ClockOffset(worker=0, before_ns=ahead_ns, after_ns=ahead_ns), ahead_ns)
    assert here.started_monotonic_ns == report.started_monotonic_ns
    assert (here.warm_up_end_ns, here.measure_end_ns) == (report.warm_up_end_ns, report.measure_end_ns)
    assert here.clock_offsets[0].before_ns == ahead_ns
