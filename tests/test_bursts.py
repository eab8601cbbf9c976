"""Columns of bursts: the spread of their requests, and the memory that is left after them."""

from __future__ import annotations

import example_runs as made
import numpy as np
import pytest

from ingest_bench.analysis.run import bursts
from ingest_bench.load.supervisor import merge_reports
from ingest_bench.model.results import ColumnValue, Note, Reading, Series

SECOND = made.SECOND
MIB = 1 << 20
# CLOCK_REALTIME of the start of the load, which is the first burst.
BEGIN = made.START + made.OFFSET
# Two bursts of four requests, 10 s apart, each answered within a second; the second one is measured.
BURSTS = made.samples([made.sample(at, at + 1 - number / 10) for at in (0, 10) for number in range(4)])
REPORT = made.report(warm_up_end_ns=made.START + 10 * SECOND, measure_end_ns=made.START + 20 * SECOND)


def level(name: str, *points: tuple[float, float]) -> Series:
    """Return a series of MiB at seconds after the start of the load."""
    at_ns, values = zip(*((BEGIN + round(at * SECOND), value * MIB) for at, value in points), strict=True)
    return Series(name, at_ns, values)


def retained(*outputs: Series) -> dict[str, ColumnValue]:
    readings = bursts.retained_outputs(outputs, BURSTS, REPORT)
    return {item.name: item.value for item in readings if isinstance(item, Reading)}


@pytest.mark.parametrize(
    ("points", "left_mib", "kept_s"),
    [
        # The level of the warm-up's burst, 300 MiB, is no baseline.
        ([(-1, 100), (0.5, 300), (9, 300), (10.5, 300), (12, 300), (19, 300)], 200, 9),
        # Back to 5% of the rise at 13 s, 2 s after the last response at 11 s.
        ([(-1, 100), (0.5, 300), (10.5, 300), (12, 300), (13, 110), (19, 104)], 4, 2),
        ([(-1, 100), (10.5, 300), (12, 105), (14, 300), (15, 100), (19, 90)], -10, 4),
        ([(-1, 100), (10.5, 100.5), (12, 100.9), (19, 100)], 0, 0),
        # The samples before the load, or in the idle span, are missing.
        ([(0.5, 100), (12, 200)], None, None),
        ([(-1, 100), (10.5, 200), (20.1, 200)], None, None),
    ],
)
def test_memory_is_left_if_it_is_above_the_level_before_the_first_burst(
    points: list[tuple[float, float]], left_mib: float | None, kept_s: float | None
) -> None:
    values = retained(level("server_rss_bytes", *points))
    assert values.get("rss_retained_after_idle_bytes") == (None if left_mib is None else left_mib * MIB)
    assert values.get("rss_retained_s") == kept_s


def test_live_heap_is_that_after_the_collections_around_the_load() -> None:
    around = [(-0.5, 20), (20.5, 27)]
    assert retained(level("live_heap_bytes", (-9, 50), *around)) == {"heap_retained_after_idle_bytes": 7 * MIB}
    # A fault collected the heap in between, and the collection after the load failed.
    assert retained(level("live_heap_bytes", (-0.5, 20), (15, 27))) == {}


def test_an_unanswered_burst_has_no_idle_span_and_a_note_says_so() -> None:
    late = np.concatenate([BURSTS, made.samples([made.sample(10, 20.5)])])
    rss = level("server_rss_bytes", (-1, 100), (12, 200), (19, 200))
    (note,) = bursts.retained_outputs([rss], late, REPORT)
    assert isinstance(note, Note)
    assert "no idle span was observed" in note.text


def test_the_spread_of_a_burst_is_between_its_first_bytes() -> None:
    rows = BURSTS.copy()
    # The 900 ms are of the burst of the warm-up. Two of four workers have another clock, a microsecond off.
    rows["sent_ns"] += np.array([0, 0, 0, 900, 5, 0, 3, 7]) * 10**6
    rows["scheduled_ns"] += np.array([0, 0, -1000, 1000] * 2)
    unsent = made.samples([made.sample(10, 20, bytes_sent=0, sent_ns=made.START + 20 * SECOND)])
    other_clock = made.report(
        started_monotonic_ns=REPORT.started_monotonic_ns - 1000,
        warm_up_end_ns=REPORT.warm_up_end_ns - 1000,
        measure_end_ns=REPORT.measure_end_ns - 1000,
    )
    for report in (REPORT, merge_reports([REPORT, other_clock])):
        for samples, spread_ms in ((np.concatenate([rows, unsent]), 7), (unsent, None)):
            assert bursts.spread_column(samples, report, 10 * SECOND) == {"burst_spread_ms_max": spread_ms}
    # The load continued after the server ran out of memory.
    cut = made.report(warm_up_end_ns=made.START, measure_end_ns=made.START + 10 * SECOND)
    assert bursts.spread_column(rows, cut, 10 * SECOND) == {"burst_spread_ms_max": 900}
