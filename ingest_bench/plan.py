"""An Experiment to its ordered runs: one block a replicate, each block shuffled by the seed."""

from __future__ import annotations

import random

from ingest_bench import spec
from ingest_bench.model.experiment import Experiment, Plan, Run


def order(experiment: Experiment) -> Plan:
    """Every cell once in each replicate. A drift of the machine then meets all cells, not the last ones."""
    cells = spec.cells(experiment)
    runs = []
    for replicate in range(1, experiment.replicates + 1):
        block = list(cells)
        random.Random(f"{experiment.seed}/{replicate}").shuffle(block)  # noqa: S311 - an order, not a secret
        runs += [Run(id=f"{cell.name}/{replicate}", cell=cell, replicate=replicate) for cell in block]
    return Plan(
        experiment=experiment.name,
        description=experiment.description,
        seed=experiment.seed,
        factors=experiment.factors,
        runs=tuple(runs),
    )
