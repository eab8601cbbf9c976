"""Random histories with known steps, and results folders of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ingest_bench.analysis.run import columns
from ingest_bench.model.experiment import Plan, Run
from ingest_bench.model.results import ColumnValue, RunRecord, Summary
from ingest_bench.report import summary_files
from ingest_bench.results import layout

LENGTH = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeHistory:
    values: list[float]
    places: list[int]
    """Index of the first value of each new level."""
    shares: list[float]
    """Step relative to the level before it."""


def histories(
    count: int, seed: int, steps: tuple[int, ...], sizes: tuple[float, float] | None = None
) -> Iterator[MadeHistory]:
    """Yield *count* histories with noise of 2 to 10%; half drift by 5 to 20%, half have one to three outliers.

    The numbers of steps alternate. *sizes*: the range of steps as fractions; None: three standard deviations.
    """
    random = np.random.default_rng(seed)
    for number in range(count):
        noise = float(random.uniform(0.02, 0.1))
        turn = number // len(steps)
        yield _draw_history(
            random, steps[number % len(steps)], noise, sizes, drifts=turn % 2 == 1, odd=turn // 2 % 2 == 1
        )


def _draw_history(
    random: Any, steps: int, noise: float, sizes: tuple[float, float] | None, *, drifts: bool, odd: bool
) -> MadeHistory:
    level = np.ones(LENGTH)
    if drifts:
        level *= 1 + random.choice([-1, 1]) * random.uniform(0.05, 0.2) * np.linspace(0, 1, LENGTH)
    places: list[int] = []
    if steps:
        places = [int(random.integers(6, LENGTH - 5 if steps == 1 else LENGTH - 24))]
    if steps == 2:
        places.append(int(random.integers(places[0] + 12, LENGTH - 6)))
    shares = [float(random.choice([-1, 1])) * (float(random.uniform(*sizes)) if sizes else 3 * noise) for _ in places]
    for place, share in zip(places, shares, strict=True):
        level[place:] *= 1 + share
    values = level * (1 + noise * random.standard_normal(LENGTH))
    if odd:
        for place in random.choice(LENGTH, int(random.integers(1, 4)), replace=False):
            values[place] *= 1 + random.choice([-1, 1]) * random.uniform(0.3, 0.6)
    return MadeHistory(values=values.tolist(), places=places, shares=shares)


def write_results(
    place: Path,
    plan: Plan,
    facts: Mapping[str, Any],
    server: Mapping[str, Any],
    values: Callable[[Run], dict[str, ColumnValue]],
) -> None:
    """Write a results folder with a measured run for each run of the plan."""
    place.parent.mkdir(parents=True, exist_ok=True)
    # `layout.create` names it by the current second.
    layout.create_results(place.parent / "made", plan, facts).path.rename(place)
    results = layout.Results(place)
    rows = []
    for run in plan.runs:
        common: dict[str, Any] = {
            "run": run.id,
            "cell": run.cell.name,
            "replicate": run.replicate,
            "levels": run.cell.levels,
            "state": "measured",
        }
        row_values = dict.fromkeys(column.name for column in columns.COLUMNS) | values(run)
        rows.append(Summary(**common, reason="", values=row_values, experiment=plan.experiment))
        results.run_folder(run).create()
        results.run_folder(run).write_record(
            RunRecord(**common, started_utc="2026-09-01T02:00:00+00:00", server=dict(server))
        )
    results.write_files({"summary.csv": summary_files.format_summary_csv(rows).encode()})
