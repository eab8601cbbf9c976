"""From the recorded reads of a results folder to what other receive buffers would have cost. It runs nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from ingest_bench.analysis.buffers import receive_buffers
from ingest_bench.analysis.buffers.netty import Buffers
from ingest_bench.analysis.buffers.predictions import Prediction
from ingest_bench.analysis.buffers.receive_buffers import CANDIDATES, Cost, Recommendation
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
    tlab_bytes: float | None = None
    recommendation: Recommendation | None = None
    problem: str = ""


def advice(results: Results, summaries: Sequence[Summary]) -> list[Advice]:
    """One for each cell, over all its valid runs whose reads were recorded to the end."""
    planned = {run.id: run for run in results.plan.runs}
    return [_advice(results, row, planned) for row in cells.group(summaries)]


def predictions(results: Results, summaries: Sequence[Summary]) -> list[Prediction]:
    """For each cell whose server counted its own buffers: what it allocated, and what the reads of another cell say.

    The other cell differs in the receive buffer only and has the largest fixed one: a smaller one hides what lay
    behind it.
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
        costs = _costs(results, source, planned, (wanted,), None)
        measured = _share(row)
        if costs and measured is not None:
            found.append(Prediction(cell=row.name, source=source.name, cost=costs[0], measured_share=measured))
    return found


def _advice(results: Results, row: CellRuns, planned: dict[str, Run]) -> Advice:
    tlab_bytes = row.typical("tlab_mean_bytes")
    costs = _costs(results, row, planned, CANDIDATES, tlab_bytes)
    found = receive_buffers.recommend(costs)
    problem = "" if found else "no valid run of this cell recorded its reads; add the probe reads"
    return Advice(cell=row.name, costs=costs, tlab_bytes=tlab_bytes, recommendation=found, problem=problem)


def _costs(
    results: Results,
    row: CellRuns,
    planned: dict[str, Run],
    candidates: Sequence[Buffers],
    tlab_bytes: float | None,
) -> list[Cost]:
    each = []
    for summary in row.valid:
        run = planned[summary.run]
        reads = results.run(run).reads()
        # Without a sum of bytes the recording is not whole, and what is missing would look like another buffer.
        if summary.values.get("bytes_read") is not None and len(reads):
            made_with = receive_buffers.made_with(run.cell.target)
            each.append(receive_buffers.what_if(reads, made_with, candidates=candidates, tlab_bytes=tlab_bytes))
    return receive_buffers.together(each)


def _share(row: CellRuns) -> float | None:
    """Bytes that the server says it allocated for each byte that it says it read."""
    pairs = [(run.values.get("sink_buffer_bytes"), run.values.get("sink_bytes_read")) for run in row.valid]
    known = [(allocated, read) for allocated, read in pairs if isinstance(allocated, int) and isinstance(read, int)]
    total = sum(read for _, read in known)
    return sum(allocated for allocated, _ in known) / total if total else None


def _but_buffers(cell: Cell) -> Cell:
    target = dataclasses.replace(cell.target, receive_predictor_bytes=())
    return dataclasses.replace(cell, name="", levels={}, target=target)
