"""An Experiment to its ordered runs: one block a replicate, each block shuffled by the seed."""

from __future__ import annotations

import dataclasses
import random

from ingest_bench.errors import SpecError
from ingest_bench.experiment import spec
from ingest_bench.model.experiment import MOST_RUNS, SIDES, Cell, Experiment, Factor, Plan, Run


def order(experiment: Experiment) -> Plan:
    """Every cell once in each replicate. A drift of the machine then meets all cells, not the last ones."""
    cells = spec.cells(experiment)
    runs = []
    for replicate in range(1, experiment.replicates + 1):
        block = [Run(id=f"{cell.name}/{replicate}", cell=cell, replicate=replicate) for cell in cells]
        if experiment.costly_probes:
            block += [_instrumented(cell, replicate, experiment.costly_probes) for cell in cells]
        random.Random(f"{experiment.seed}/{replicate}").shuffle(block)  # noqa: S311 - an order, not a secret
        runs += block
    return Plan(
        experiment=experiment.name,
        description=experiment.description,
        seed=experiment.seed,
        factors=experiment.factors,
        runs=tuple(runs),
    )


def against_itself(ordered: Plan) -> Plan:
    """Each run twice, for one side and right after it for the other, and which is first is drawn: an A/A test."""
    if len(SIDES) * len(ordered.runs) > MOST_RUNS:
        raise SpecError(
            f"--aa: that makes {len(SIDES) * len(ordered.runs):,} runs, and at most {MOST_RUNS:,} are done; take fewer"
        )
    runs = []
    for run in ordered.runs:
        sides = list(SIDES)
        random.Random(f"{ordered.seed}/{run.id}").shuffle(sides)  # noqa: S311 - an order, not a secret
        runs += [_on(run, side) for side in sides]
    return dataclasses.replace(ordered, factors=(*ordered.factors, Factor(key="side", levels=SIDES)), runs=tuple(runs))


def _on(run: Run, side: str) -> Run:
    levels = {**run.cell.levels, "side": side}
    cell = dataclasses.replace(run.cell, name=spec.cell_name(levels), levels=levels)
    return dataclasses.replace(run, id=cell.name + run.id.removeprefix(run.cell.name), cell=cell)


def _instrumented(cell: Cell, replicate: int, costly: tuple[str, ...]) -> Run:
    watched = dataclasses.replace(cell, probes=(*cell.probes, *costly))
    return Run(id=f"{cell.name}/{replicate}-instrumented", cell=watched, replicate=replicate, instrumented=True)
