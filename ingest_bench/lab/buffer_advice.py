"""Predicted costs of other receive buffers, from the recorded reads of a results folder. Executes nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from ingest_bench.analysis import receive_buffers
from ingest_bench.analysis.compare import cells
from ingest_bench.analysis.compare.cells import CellRuns
from ingest_bench.analysis.receive_buffers import (
    CANDIDATES,
    MAX_SHARE,
    NO_LIMITS,
    Buffers,
    Cost,
    Limits,
    Prediction,
    Recommendation,
    Recording,
)
from ingest_bench.model.experiment import Cell, Run
from ingest_bench.model.results import Summary
from ingest_bench.results.layout import Results


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferAdvice:
    """Predicted costs of other buffers in one cell, and the recommended one; `problem` says why there is none."""

    cell: str
    costs: Sequence[Cost] = ()
    limits: Limits = NO_LIMITS
    recommendation: Recommendation | None = None
    problem: str = ""
    errors: tuple[float, ...] = ()
    """Errors of predictions for other sizes on this network, as a fraction of the measured cost."""
    disagreement: str = ""
    """Difference between two recordings of this network; empty if they agree or if there is only one."""


def advise_cells(results: Results, summaries: Sequence[Summary]) -> list[BufferAdvice]:
    """Return the advice for each cell, from all its valid runs with complete recordings of reads."""
    planned = {run.id: run for run in results.plan.runs}
    rows = cells.group_by_cell(summaries)
    limits = {row.name: _limits(row) for row in rows}
    recordings = {row.name: _load_recordings(results, row, planned, limits[row.name]) for row in rows}
    networks = {row.name: _without_buffers(planned[row.runs[0].run].cell) for row in rows}
    predictions = [item for item in predict_costs(results, summaries) if item.source != item.cell]
    advice = []
    for row in rows:
        peers = [name for name, network in networks.items() if network == networks[row.name]]
        on_network = [item for item in predictions if item.cell in peers and not item.cost.is_extrapolated]
        errors = tuple(item.error for item in on_network)
        costs = receive_buffers.sum_costs([recording.costs for recording in recordings[row.name]])
        # If predictions were a quarter too low, a buffer with a predicted waste of a quarter wastes more.
        recommendation = receive_buffers.recommend(costs, max_share=MAX_SHARE * (1 + min((*errors, 0.0))))
        advice.append(
            BufferAdvice(
                cell=row.name,
                costs=costs,
                limits=limits[row.name],
                recommendation=recommendation,
                problem="" if recommendation else "no valid run of this cell recorded its reads; add the probe reads",
                errors=errors,
                disagreement=receive_buffers.find_disagreement([item for name in peers for item in recordings[name]]),
            )
        )
    return advice


def predict_costs(results: Results, summaries: Sequence[Summary]) -> list[Prediction]:
    """Return measured and predicted allocations of each cell whose buffers were counted.

    The server counted its own buffers, or the kernel traced the room of each read. The prediction is from the reads of
    the cell that differs only in the receive buffer and has the largest fixed one: a smaller one hides later bytes.
    """
    planned = {run.id: run for run in results.plan.runs}
    rows = cells.group_by_cell(summaries)
    counted = [(row, planned[row.runs[0].run].cell) for row in rows if _allocated_per_byte(row) is not None]
    predictions = []
    for row, cell in counted:
        buffers = receive_buffers.configured_buffers(cell.target)
        network = _without_buffers(cell)
        fixed = [
            (peer, peer_cell)
            for peer, peer_cell in counted
            if _without_buffers(peer_cell) == network and len(peer_cell.target.receive_predictor_bytes) == 1
        ]
        if buffers is None or not fixed:
            continue
        source, _ = max(fixed, key=lambda pair: pair[1].target.receive_predictor_bytes)
        recordings = _load_recordings(results, source, planned, NO_LIMITS, (buffers,))
        measured = _allocated_per_byte(row)
        if recordings and measured is not None:
            (cost,) = receive_buffers.sum_costs([recording.costs for recording in recordings])
            predictions.append(Prediction(cell=row.name, source=source.name, cost=cost, measured_share=measured))
    return predictions


def _limits(row: CellRuns) -> Limits:
    """Return the mean TLAB of reading threads and the region size of the heap."""
    total, count = (sum(row.numbers(f"tlab_network_{column}")) for column in ("bytes", "count"))
    region = row.median("g1_region_bytes")
    return Limits(tlab_bytes=total / count if count else None, region_bytes=None if region is None else int(region))


def _load_recordings(
    results: Results,
    row: CellRuns,
    planned: dict[str, Run],
    limits: Limits,
    candidates: Sequence[Buffers] = CANDIDATES,
) -> list[Recording]:
    recordings = []
    for summary in row.valid:
        run = planned[summary.run]
        reads = results.run_folder(run).read_socket_reads()
        # Without a sum of bytes the recording is incomplete, and missing reads would look like another buffer.
        if summary.values.get("bytes_read") is None or not len(reads):
            continue
        buffers = receive_buffers.configured_buffers(run.cell.target)
        recordings.append(
            receive_buffers.analyse_reads(reads, buffers, run=summary.run, candidates=candidates, limits=limits)
        )
    return recordings


def _allocated_per_byte(row: CellRuns) -> float | None:
    """Return allocated bytes per byte read: by the server's count, otherwise by the room of reads in the kernel."""
    pairs = _complete_values(row, "sink_buffer_bytes", "sink_bytes_read")
    if not pairs:
        kernel = _complete_values(row, "read_requested_bytes_mean", "read_waste_bytes_mean", "kernel_reads")
        pairs = [(room * reads, (room - waste) * reads) for room, waste, reads in kernel]
    total = sum(pair[1] for pair in pairs)
    return sum(pair[0] for pair in pairs) / total if total else None


def _complete_values(row: CellRuns, *columns: str) -> list[tuple[float, ...]]:
    """Return these columns of each valid run that has them all."""
    rows = ([run.values.get(column) for column in columns] for run in row.valid)
    numbers = [tuple(value for value in values if isinstance(value, (int, float))) for values in rows]
    return [values for values in numbers if len(values) == len(columns)]


def _without_buffers(cell: Cell) -> Cell:
    target = dataclasses.replace(cell.target, receive_predictor_bytes=())
    return dataclasses.replace(cell, name="", levels={}, target=target)
