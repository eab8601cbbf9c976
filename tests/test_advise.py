"""What other buffers would have cost, from a results folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import made_summaries as made
import numpy as np
import pytest

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


def test_what_does_not_fit_a_tlab_is_known_when_tlabs_were_measured(results: Results) -> None:
    advice = buffer_advice.advice(results, summaries(results, tlab_mean_bytes=100_000))[1]
    over = {str(cost.buffers): cost.over_limit_bytes for cost in advice.costs}
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
