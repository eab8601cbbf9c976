"""`recommend`: predicted cost of other receive buffers, from a results folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import example_summaries as made
import numpy as np
import pytest

from ingest_bench.cli.report import describe_errors
from ingest_bench.experiment import spec
from ingest_bench.lab import buffer_advice
from ingest_bench.model.results import Summary
from ingest_bench.report import buffer_tables
from ingest_bench.results import layout
from ingest_bench.results.layout import Results

KIB = 1024
# The sizes of four reads of one connection, for each level of the receive buffer; 50,000 bytes lay there each time.
READS = {"16KiB": [16 * KIB, 16 * KIB, 16 * KIB, 848], "64KiB": [50_000] * 4}


@pytest.fixture
def results(tmp_path: Path) -> Results:
    ordered = spec.build_plan(
        spec.load_experiment(
            "verify-recommendation", ["receive_predictor=16KiB,64KiB", "network=loopback"], replicates=2
        )
    )
    made_results = layout.create_results(tmp_path, ordered, {})
    for run in ordered.runs:
        folder = made_results.run_folder(run)
        folder.create()
        sizes = READS[run.cell.levels["receive_predictor"]]
        reads = np.zeros(len(sizes), dtype=layout.READ)
        reads["end_ns"], reads["bytes"], reads["port"] = range(len(sizes)), sizes, 40_000
        reads.tofile(folder.raw / "reads.bin")
    return made_results


def summaries(results: Results, **values: Any) -> list[Summary]:
    rows = []
    for run in results.plan.runs:
        read = sum(READS[run.cell.levels["receive_predictor"]])
        size = 16 * KIB if run.cell.levels["receive_predictor"] == "16KiB" else 64 * KIB
        own = {"bytes_read": read, "sink_bytes_read": read, "sink_buffer_bytes": 4 * size}
        row = made.summary(run.cell.levels, run.replicate, run=run.id, cell=run.cell.name)
        rows.append(made.changed(row, values=own | values))
    return sorted(rows, key=lambda row: row.run)


def test_cell_has_the_costs_of_all_its_runs_and_a_recommendation(results: Results) -> None:
    small, large = buffer_advice.advise_cells(results, summaries(results))
    assert {cost.ingested_bytes for cost in large.costs} == {2 * 4 * 50_000}
    by_size = {str(cost.buffers): cost for cost in large.costs}
    assert by_size["16KiB"].allocations == 2 * 4 * 4
    assert not any(cost.is_extrapolated for cost in large.costs)
    assert small.recommendation is not None  # 16 KiB takes 1.31 bytes for each byte, more than a thrifty buffer may
    assert str(small.recommendation.best.buffers) == "8KiB"


@pytest.mark.parametrize(
    ("values", "name", "fits", "exceeds"),
    [
        ({"tlab_network_bytes": 400_000, "tlab_network_count": 4, "tlab_mean_bytes": 10**6}, "over_tlab", 64, 128),
        ({"g1_region_bytes": 64 * KIB}, "humongous", 16, 32),
    ],
)
def test_buffers_are_compared_with_measured_tlabs_and_regions(
    results: Results, values: dict[str, int], name: str, fits: int, exceeds: int
) -> None:
    advice = buffer_advice.advise_cells(results, summaries(results, **values))[1]
    beyond = {str(cost.buffers): (getattr(cost, f"{name}_bytes"), cost.allocated_bytes) for cost in advice.costs}
    assert beyond[f"{fits}KiB"][0] == 0
    assert beyond[f"{exceeds}KiB"][0] == beyond[f"{exceeds}KiB"][1]


def test_missing_reads_give_no_recommendation(results: Results) -> None:
    unknown = summaries(results, bytes_read=None)
    invalid = [made.changed(row, state="invalid") for row in summaries(results)]
    for rows in (unknown, invalid):
        for advice in buffer_advice.advise_cells(results, rows):
            assert advice.recommendation is None
            assert "add the probe reads" in advice.problem


def test_largest_buffer_predicts_the_others_with_an_error(results: Results) -> None:
    small, large = buffer_advice.predict_costs(results, summaries(results))
    assert small.source == large.source == large.cell
    # 50,000 bytes are four buffers of 16 KiB; this sink says that it took four for each 50,000.
    assert small.cost.share == pytest.approx(16 * KIB * 4 / 50_000)
    assert large.error == 0
    rows = buffer_tables.prediction_rows([small, large])
    assert rows[1][2] == large.cell
    assert rows[2][2:] == ["its own reads", "1.31", "1.31", "+0.0%"]


def test_server_without_counters_has_no_predictions(results: Results) -> None:
    rows = summaries(results, sink_buffer_bytes=None)
    assert buffer_advice.predict_costs(results, rows) == []
    assert buffer_tables.prediction_rows([]) == []


def test_requested_read_sizes_check_the_prediction_without_counters(results: Results) -> None:
    rows = summaries(results, sink_buffer_bytes=None)
    with_kernel_reads = []
    for row in rows:
        size = 16 * KIB if row.levels["receive_predictor"] == "16KiB" else 64 * KIB
        read = sum(READS[row.levels["receive_predictor"]])
        waste = size - read / 4
        kernel = {"kernel_reads": 4, "read_requested_bytes_mean": float(size), "read_waste_bytes_mean": waste}
        with_kernel_reads.append(made.changed(row, values={**row.values, **kernel}))
    small, large = buffer_advice.predict_costs(results, with_kernel_reads)
    assert small.measured_share == pytest.approx(4 * 16 * KIB / 50_000)
    assert small.error == pytest.approx(0)
    assert large.error == pytest.approx(0)
    advice = buffer_advice.advise_cells(results, with_kernel_reads)
    assert [len(item.errors) for item in advice] == [1, 1]
    assert "the prediction error for 1 other size was +0.0%" in describe_errors(advice[0].errors)
    assert "is unknown: measure another receive buffer" in describe_errors(())


def test_low_prediction_reduces_the_allowed_waste(results: Results) -> None:
    # Predicted 1.31, measured 1.70: 1.25 of the prediction would be 1.62.
    rows = summaries(results)
    low = [
        made.changed(row, values={**row.values, "sink_buffer_bytes": 85_000})
        if row.levels["receive_predictor"] == "16KiB"
        else row
        for row in rows
    ]
    before, after = buffer_advice.advise_cells(results, rows)[1], buffer_advice.advise_cells(results, low)[1]
    (error,) = after.errors
    assert error == pytest.approx(4 * 16 * KIB / 50_000 / 1.7 - 1)
    assert before.recommendation is not None
    assert after.recommendation is not None
    assert after.recommendation.best.buffers.maximum_bytes < before.recommendation.best.buffers.maximum_bytes


def test_disagreement_of_two_recordings_is_described(results: Results) -> None:
    assert [item.disagreement for item in buffer_advice.advise_cells(results, summaries(results))] == ["", ""]
    # With the small buffer the same network brought 5,000 bytes at a time.
    for run in results.plan.runs:
        if run.cell.levels["receive_predictor"] == "16KiB":
            reads = np.zeros(40, dtype=layout.READ)
            reads["end_ns"], reads["bytes"], reads["port"] = range(0, 40 * 10**9, 10**9), 5_000, 40_000
            reads.tofile(results.run_folder(run).raw / "reads.bin")
    small, large = buffer_advice.advise_cells(results, summaries(results))
    assert small.disagreement == large.disagreement != ""
    assert "disagree: 16KiB allocate 3.28 bytes for each byte ingested by the first, 1.31 by the second" in (
        small.disagreement
    )
    assert "a socket held 4.88KiB on average, and 48.8KiB" in small.disagreement
