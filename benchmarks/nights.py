"""What `trend` says of 60 made-up nights: three histories with known steps, one bad night, and updates without effect.

    python benchmarks/nights.py FOLDER [--seed 60]

FOLDER gets nights/ and what `ingest-bench trend` makes of them: trend.txt, trend.csv, trend.png, trend.html.
The truth: since night 31 (Java 17 to 25) documents/s are 6% fewer; since night 46 (kernel 6.1 to 6.12) the 99th
percentile of response times is 30% longer; GC pauses never change; on night 20 a busy machine made half of the
documents. On night 12 the tool itself was updated, and nothing came of it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from ingest_bench.analysis.run import columns
from ingest_bench.experiment import order, spec
from ingest_bench.model.experiment import Plan, Run
from ingest_bench.model.results import RunRecord, Summary, Value
from ingest_bench.report.tables import text_tables
from ingest_bench.results import layout

Values = dict[str, Value]
NIGHTS, REPLICATES = 60, 3
JAVA_SINCE, KERNEL_SINCE, TOOL_SINCE, BUSY = 30, 45, 11, 19
FEWER, LONGER = 0.94, 1.3
FIRST = datetime(2026, 9, 1, 2, tzinfo=UTC)
COLUMNS = ("docs_per_s_mean", "response_ms_p99", "gc_pause_ms_total_per_gb")


def left(
    place: Path, ordered: Plan, facts: Mapping[str, Any], server: Mapping[str, Any], values: Callable[[Run], Values]
) -> None:
    """A results folder with a measured run for each of the plan's, as `run` would have left it there."""
    place.parent.mkdir(parents=True, exist_ok=True)
    # Named by the second in which it is made.
    layout.create(place.parent / "made", ordered, facts).path.rename(place)
    results = layout.Results(place)
    rows = []
    for run in ordered.runs:
        common: dict[str, Any] = {
            "run": run.id,
            "cell": run.cell.name,
            "replicate": run.replicate,
            "levels": run.cell.levels,
            "state": "measured",
        }
        known = dict.fromkeys(column.name for column in columns.COLUMNS) | values(run)
        rows.append(Summary(**common, reason="", values=known, experiment=ordered.experiment))
        results.run(run).create()
        results.run(run).write(RunRecord(**common, started_utc=FIRST.isoformat(), server=dict(server)))
    results.write({"summary.csv": text_tables.summary_csv(rows).encode()})


def made(folder: Path, seed: int) -> Path:
    """The nights, with what is true of them."""
    random = np.random.default_rng(seed)
    experiment = folder / "nightly.toml"
    experiment.write_text(f"replicates = {REPLICATES}\n", encoding="utf-8")
    ordered = order.order(spec.load(str(experiment)))
    for number in range(NIGHTS):
        tonight = random.normal(1, 0.01, len(COLUMNS))
        true = (
            20_000 * (FEWER if number >= JAVA_SINCE else 1) * (0.5 if number == BUSY else 1),
            120 * (LONGER if number >= KERNEL_SINCE else 1),
            45,
        )
        facts = {
            "cpu": "made up",
            "kernel": "6.1" if number < KERNEL_SINCE else "6.12",
            "ingest_bench": "0.1.0" if number < TOOL_SINCE else "0.2.0",
        }

        def values(_: Run, level: Any = tonight * true) -> Values:
            return dict(zip(COLUMNS, level * random.normal(1, (0.01, 0.05, 0.05)), strict=True))

        start = (FIRST + timedelta(days=number)).strftime("%Y-%m-%dT%H-%M-%SZ")
        server = {"java": "17.0.9" if number < JAVA_SINCE else "25.0.2"}
        left(folder / "nights" / start, ordered, facts, server, values)
    return folder / "nights"


def main() -> None:
    """The nights and what is said of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=60)
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True)
    nights = made(asked.folder, asked.seed)
    argv = [str(Path(sys.executable).with_name("ingest-bench")), "trend", str(nights)]
    argv += [word for name in COLUMNS for word in ("--column", name)]
    argv += [word for end in ("csv", "png", "html") for word in (f"--{end}", str(asked.folder / f"trend.{end}"))]
    said = subprocess.run(argv, check=True, capture_output=True, text=True).stdout
    (asked.folder / "trend.txt").write_text(said.replace(f"{asked.folder}/", ""), encoding="utf-8")
    print(said, end="")


if __name__ == "__main__":
    main()
