"""What other buffers would have cost, from a results folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import made_summaries as made
import numpy as np
import pytest

from ingest_bench.cli.recommend import _checked
from ingest_bench.experiment import order, spec
from ingest_bench.lab import buffer_advice
from ingest_bench.model.results import Summary
from ingest_bench.report.tables import whatif_table
from ingest_bench.results import layout, run_folder
from ingest_bench.results.layout import Results

KIB = 1024
# The sizes of four reads of one connection, for each level of the receive buffer; 50,000 bytes lay there each time.
READS = {"16KiB": [16 * KIB, 16 * KIB, 16 * KIB, 848], "64KiB": [50_000] * 4}


@pytest.fixture
def results(tmp_path: Path) -> Results:
    ordered = order.order(
        spec.load("verify-recommendation", ["receive_predictor=16KiB,64KiB", "network=loopback"], replicates=2)
    )
    made_results = layout.create(tmp_path, ordered, {})
    for run in ordered.runs:
        folder = made_results.run(run)
        folder.create()
        sizes = READS[run.cell.levels["receive_predictor"]]
        reads = np.zeros(len(sizes), dtype=run_folder.READ)
        reads["end_ns"], reads["bytes"], reads["port"] = range(len(sizes)), sizes, 40_000
        reads.tofile(folder.raw / "reads.bin")
    return made_results


def summaries(results: Results, **values: Any) -> list[Summary]:
    found = []
    for run in results.plan.runs:
        read = sum(READS[run.cell.levels["receive_predictor"]])
        size = 16 * KIB if run.cell.levels["receive_predictor"] == "16KiB" else 64 * KIB
        own = {"bytes_read": read, "sink_bytes_read": read, "sink_buffer_bytes": 4 * size}
        row = made.summary(run.cell.levels, run.replicate, run=run.id, cell=run.cell.name)
        found.append(made.changed(row, values=own | values))
    return sorted(found, key=lambda row: row.run)


def test_each_cell_has_the_costs_of_all_its_runs_and_a_recommendation(results: Results) -> None:
    small, large = buffer_advice.advice(results, summaries(results))
    assert {cost.ingested_bytes for cost in large.costs} == {2 * 4 * 50_000}
    by_size = {str(cost.buffers): cost for cost in large.costs}
    assert by_size["16KiB"].allocations == 2 * 4 * 4
    assert not any(cost.is_extrapolated for cost in large.costs)
    assert small.recommendation is not None  # 16 KiB takes 1.31 bytes for each byte, more than a thrifty buffer may
    assert str(small.recommendation.best.buffers) == "8KiB"


def test_what_does_not_fit_a_tlab_of_the_network_is_known_when_tlabs_were_measured(results: Results) -> None:
    advice = buffer_advice.advice(
        results, summaries(results, tlab_network_bytes=400_000, tlab_network_count=4, tlab_mean_bytes=10**6)
    )[1]
    over = {str(cost.buffers): cost.over_tlab_bytes for cost in advice.costs}
    assert over["64KiB"] == 0
    assert over["128KiB"] == 2 * 4 * 128 * KIB


def test_without_recorded_reads_it_says_so_and_recommends_nothing(results: Results) -> None:
    unknown = summaries(results, bytes_read=None)
    invalid = [made.changed(row, state="invalid") for row in summaries(results)]
    for rows in (unknown, invalid):
        for advice in buffer_advice.advice(results, rows):
            assert advice.recommendation is None
            assert "add the probe reads" in advice.problem


def test_the_largest_buffer_predicts_the_others_and_the_error_is_said(results: Results) -> None:
    small, large = buffer_advice.predictions(results, summaries(results))
    assert small.source == large.source == large.cell
    # 50,000 bytes are four buffers of 16 KiB; this sink says that it took four for each 50,000.
    assert small.cost.share == pytest.approx(16 * KIB * 4 / 50_000)
    assert large.error == 0
    rows = whatif_table.predicted([small, large])
    assert rows[1][2] == large.cell
    assert rows[2][2:] == ["its own reads", "1.31", "1.31", "+0.0%"]


def test_a_server_that_does_not_count_has_no_predictions_beside_it(results: Results) -> None:
    rows = summaries(results, sink_buffer_bytes=None)
    assert buffer_advice.predictions(results, rows) == []
    assert whatif_table.predicted([]) == []


def test_what_is_humongous_is_known_when_regions_are(results: Results) -> None:
    advice = buffer_advice.advice(results, summaries(results, g1_region_bytes=64 * KIB))[1]
    humongous = {str(cost.buffers): cost.humongous_bytes for cost in advice.costs}
    assert humongous["16KiB"] == 0
    assert humongous["32KiB"] == 2 * 4 * 2 * 32 * KIB
    assert advice.recommendation is not None
    assert str(advice.recommendation.best.buffers) == "8KiB"


def test_the_room_of_each_read_checks_the_prediction_where_the_server_does_not_count(results: Results) -> None:
    rows = summaries(results, sink_buffer_bytes=None)
    seen = []
    for row in rows:
        size = 16 * KIB if row.levels["receive_predictor"] == "16KiB" else 64 * KIB
        read = sum(READS[row.levels["receive_predictor"]])
        waste = size - read / 4
        kernel = {"kernel_reads": 4, "read_requested_bytes_mean": float(size), "read_waste_bytes_mean": waste}
        seen.append(made.changed(row, values={**row.values, **kernel}))
    small, large = buffer_advice.predictions(results, seen)
    assert small.measured_share == pytest.approx(4 * 16 * KIB / 50_000)
    assert small.error == pytest.approx(0)
    assert large.error == pytest.approx(0)
    advice = buffer_advice.advice(results, seen)
    assert [len(each.errors) for each in advice] == [1, 1]
    assert "of 1 other size it said +0.0%" in _checked(advice[0].errors)
    assert "is not known: measure another receive buffer" in _checked(())


def test_a_prediction_that_was_too_low_leaves_less_room_for_waste(results: Results) -> None:
    """It said 1.31 where 1.70 was measured: 1.25 of its own would be 1.62."""
    rows = summaries(results)
    low = [
        made.changed(row, values={**row.values, "sink_buffer_bytes": 85_000})
        if row.levels["receive_predictor"] == "16KiB"
        else row
        for row in rows
    ]
    plain, wary = buffer_advice.advice(results, rows)[1], buffer_advice.advice(results, low)[1]
    (error,) = wary.errors
    assert error == pytest.approx(4 * 16 * KIB / 50_000 / 1.7 - 1)
    assert plain.recommendation is not None
    assert wary.recommendation is not None
    assert wary.recommendation.best.buffers.largest_bytes < plain.recommendation.best.buffers.largest_bytes


def test_two_recordings_of_one_network_agree_or_it_is_said_why_not(results: Results) -> None:
    assert [each.disagreement for each in buffer_advice.advice(results, summaries(results))] == ["", ""]
    # With the small buffer the same network brought 5,000 bytes at a time.
    for run in results.plan.runs:
        if run.cell.levels["receive_predictor"] == "16KiB":
            reads = np.zeros(40, dtype=run_folder.READ)
            reads["end_ns"], reads["bytes"], reads["port"] = range(0, 40 * 10**9, 10**9), 5_000, 40_000
            reads.tofile(results.run(run).raw / "reads.bin")
    small, large = buffer_advice.advice(results, summaries(results))
    assert small.disagreement == large.disagreement != ""
    assert "disagree: 16KiB allocate 3.28 bytes for each byte ingested by the first, 1.31 by the second" in (
        small.disagreement
    )
    assert "4.88KiB lay in a socket on average, and 48.8KiB: the server took" in small.disagreement
