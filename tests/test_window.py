"""The measurement on the wall's clock, and whether it can be that of its load."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import made_runs as made
import pytest

from ingest_bench.errors import SpecError
from ingest_bench.lab import evaluation, window
from ingest_bench.results.run_folder import LONGEST_LOAD_NS

SECOND = made.SECOND
BEGAN_NS = made.START + made.OFFSET


def folder(report: Any) -> Any:
    return SimpleNamespace(load_report=lambda: report, path=Path("run"))


@pytest.mark.parametrize(
    ("ended_s", "start_s", "end_s"),
    [
        (None, 2, 7),
        (9, 2, 7),
        (6.5, 2, 6.5),
        (3, 2, 3),
        # Less than a second of it: what is measured is the warm-up.
        (2.999, 0, 2.999),
        (1, 0, 1),
        (-1, 0, 0),
    ],
)
def test_a_measurement_ends_with_its_server_and_without_a_second_is_its_warm_up(
    ended_s: float | None, start_s: float, end_s: float
) -> None:
    until_ns = None if ended_s is None else BEGAN_NS + round(ended_s * SECOND)
    found = window.fields(folder(made.report()), made.cell(), until_ns=until_ns)
    assert found["warm_up_ns"] == 2 * SECOND
    assert found["measure_start_realtime_ns"] == BEGAN_NS + start_s * SECOND
    assert found["measure_end_realtime_ns"] == BEGAN_NS + round(end_s * SECOND)


def test_a_load_that_left_no_report_has_no_measurement() -> None:
    assert window.fields(folder(None), made.cell()) == {}


@pytest.mark.parametrize(
    ("start_ns", "end_ns", "fits"),
    [
        (0, 0, True),
        (0, LONGEST_LOAD_NS, True),
        (5, 7, True),
        (-1, 5, False),
        (7, 6, False),
        (1, LONGEST_LOAD_NS + 1, False),
    ],
)
def test_a_measurement_lies_within_the_time_of_its_load(start_ns: int, end_ns: int, fits: bool) -> None:
    record = made.record(measure_start_realtime_ns=BEGAN_NS + start_ns, measure_end_realtime_ns=BEGAN_NS + end_ns)
    with contextlib.nullcontext() if fits else pytest.raises(SpecError, match="does not lie within the load's time"):
        evaluation._check_times(folder(made.report()), record)
