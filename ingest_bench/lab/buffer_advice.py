"""From the recorded reads of a results folder to what other receive buffers would have cost. It runs nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ingest_bench.analysis.buffers import agreement, receive_buffers
from ingest_bench.analysis.buffers.agreement import Recorded
from ingest_bench.analysis.buffers.netty import Buffers, Fixed
from ingest_bench.analysis.buffers.predictions import Prediction
from ingest_bench.analysis.buffers.receive_buffers import CANDIDATES, FRUGAL, NO_LIMITS, Cost, Limits, Recommendation
from ingest_bench.analysis.compare import cells
from ingest_bench.analysis.compare.cells import CellRuns
from ingest_bench.model.experiment import Cell, Run
from ingest_bench.model.results import Summary
from ingest_bench.results.layout import Results


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The costs of other buffers in one cell, and which of them to use; without a recommendation, why."""

    cell: str
    costs: Sequence[Cost] = ()
    limits: Limits = NO_LIMITS
    recommendation: Recommendation | None = None
    problem: str = ""
    errors: tuple[float, ...] = ()
    """How far predictions for other sizes were off on this network, each as a share of what was measured."""
    disagreement: str = ""
    """Why two recordings of this network do not say the same; empty: they do, or there is one."""


def advice(results: Results, summaries: Sequence[Summary]) -> list[Advice]:
    """One for each cell, over all its valid runs whose reads were recorded to the end."""
    planned = {run.id: run for run in results.plan.runs}
    rows = cells.group(summaries)
    limits = {row.name: _limits(row) for row in rows}
    recorded = {row.name: _recorded(results, row, planned, limits[row.name]) for row in rows}
    networks = {row.name: _but_buffers(planned[row.runs[0].run].cell) for row in rows}
    checked = [found for found in predictions(results, summaries) if found.source != found.cell]
    found = []
    for row in rows:
        alike = [name for name, network in networks.items() if network == networks[row.name]]
        found.append(
            _advice(
                row.name,
                recorded[row.name],
                limits[row.name],
                tuple(each.error for each in checked if each.cell in alike and not each.cost.is_extrapolated),
                agreement.disagreement([each for name in alike for each in recorded[name]]),
            )
        )
    return found


def predictions(results: Results, summaries: Sequence[Summary]) -> list[Prediction]:
    """For each cell whose buffers were counted: what they allocated, and what the reads of another cell say.

    The server counted its own, or the kernel saw the room of each read. The other cell differs in the receive buffer
    only and has the largest fixed one: a smaller one hides what lay behind it.
    """
    planned = {run.id: run for run in results.plan.runs}
    known = [(row, planned[row.runs[0].run].cell) for row in cells.group(summaries) if _share(row) is not None]
    found = []
    for row, cell in known:
        wanted = receive_buffers.made_with(cell.target)
        alike = [(other, its) for other, its in known if _but_buffers(its) == _but_buffers(cell)]
        fixed = [pair for pair in alike if len(pair[1].target.receive_predictor_bytes) == 1]
        if wanted is None or not fixed:
            continue
        source, _ = max(fixed, key=lambda pair: pair[1].target.receive_predictor_bytes)
        recorded = _recorded(results, source, planned, NO_LIMITS, (wanted,))
        measured = _share(row)
        if recorded and measured is not None:
            (cost,) = receive_buffers.together([each.costs for each in recorded])
            found.append(Prediction(cell=row.name, source=source.name, cost=cost, measured_share=measured))
    return found


def _advice(
    name: str, recorded: Sequence[Recorded], limits: Limits, errors: tuple[float, ...], disagreement: str
) -> Advice:
    costs = receive_buffers.together([each.costs for each in recorded])
    # Where predictions were too low by a quarter, a buffer that is said to waste a quarter wastes more.
    found = receive_buffers.recommend(costs, frugal=FRUGAL * (1 + min((*errors, 0.0))))
    problem = "" if found else "no valid run of this cell recorded its reads; add the probe reads"
    return Advice(
        cell=name,
        costs=costs,
        limits=limits,
        recommendation=found,
        problem=problem,
        errors=errors,
        disagreement=disagreement,
    )


def _limits(row: CellRuns) -> Limits:
    """Of the threads that read, and of the heap."""
    total, count = (sum(row.numbers(f"tlab_network_{what}")) for what in ("bytes", "count"))
    region = row.typical("g1_region_bytes")
    return Limits(tlab_bytes=total / count if count else None, region_bytes=None if region is None else int(region))


def _recorded(
    results: Results,
    row: CellRuns,
    planned: dict[str, Run],
    limits: Limits,
    candidates: Sequence[Buffers] = CANDIDATES,
) -> list[Recorded]:
    each = []
    for summary in row.valid:
        run = planned[summary.run]
        reads = results.run(run).reads()
        # Without a sum of bytes the recording is not whole, and what is missing would look like another buffer.
        if summary.values.get("bytes_read") is None or not len(reads):
            continue
        connections = receive_buffers.sequences(reads)
        buffers = receive_buffers.made_with(run.cell.target) or Fixed(receive_buffers.recorded_size(connections))
        found = [receive_buffers.available(sequence, buffers) for sequence in connections]
        each.append(
            Recorded(
                run=summary.run,
                costs=receive_buffers.what_if(reads, buffers, candidates=candidates, limits=limits),
                found_bytes=np.concatenate(found),
                largest_bytes=buffers.largest_bytes,
                filled=sum(int((sequence >= buffers.largest_bytes).sum()) for sequence in connections),
                reads=len(reads),
                length_s=int(reads["end_ns"].max() - reads["end_ns"].min()) / 1e9,
            )
        )
    return each


def _share(row: CellRuns) -> float | None:
    """Bytes allocated for each byte read: by the server's own count, else by the room that the kernel saw in reads."""
    counted = _pairs(row, "sink_buffer_bytes", "sink_bytes_read")
    if not counted:
        seen = _pairs(row, "read_requested_bytes_mean", "read_waste_bytes_mean", "kernel_reads")
        counted = [(room * reads, (room - waste) * reads) for room, waste, reads in seen]
    total = sum(pair[1] for pair in counted)
    return sum(pair[0] for pair in counted) / total if total else None


def _pairs(row: CellRuns, *columns: str) -> list[tuple[float, ...]]:
    """These columns of each valid run that has them all."""
    found = ([run.values.get(column) for column in columns] for run in row.valid)
    return [
        tuple(each for each in values if isinstance(each, (int, float)))
        for values in found
        if all(isinstance(each, (int, float)) for each in values)
    ]


def _but_buffers(cell: Cell) -> Cell:
    target = dataclasses.replace(cell.target, receive_predictor_bytes=())
    return dataclasses.replace(cell, name="", levels={}, target=target)
