"""An Experiment to its ordered runs: one block a replicate, each block shuffled by the seed."""

from __future__ import annotations

import dataclasses
import random

from ingest_bench import spec
from ingest_bench.model.experiment import Cell, Experiment, Plan, Run


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


def _instrumented(cell: Cell, replicate: int, costly: tuple[str, ...]) -> Run:
    watched = dataclasses.replace(cell, probes=(*cell.probes, *costly))
    return Run(id=f"{cell.name}/{replicate}-instrumented", cell=watched, replicate=replicate, instrumented=True)
