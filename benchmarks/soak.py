"""Growth and leftovers in an hour: memory, files, threads, greenlets, and what kills leave.

    python benchmarks/soak.py [--minutes 60] [--out FOLDER]

The first half has two activities at the same time. One process executes short experiments in sequence, as
`ingest-bench run` does. And one load runs all the time, whose users reconnect repeatedly because the sink breaks one
request in ten. Both processes are sampled every few seconds. In the second half sessions of every kind and their
watchdogs are killed, and the machine is compared (`nox -s kills`).

A value grows if all readings of the last quarter exceed all of the second one; memory by more than its noise.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import greenlet
import psutil
from typer.testing import CliRunner

from ingest_bench import system
from ingest_bench.cli.app import app
from ingest_bench.model.load import Arrivals, Rate

PERIOD_S = 5.0
WORKER = "ingest_bench.load.worker"
MEMORY = "resident, MB"
COLUMNS = (MEMORY, "files", "threads", "greenlets")
# Usual fluctuation of a Python heap.
MEMORY_NOISE_MB = 3.0
KILLS = 50
EXPERIMENT = """
probes = ["reads", "gc", "host"]
[target]
name = "sink"
heap = "128m"
[load]
workload = "nyc_taxis"
users = 2
bulk_documents = 100
query_users = 1
query_arrivals = "10/s"
warm_up = "1s"
measure = "3s"
[factors]
network = ["loopback", "ethernet"]
[[fault]]
kind = "pause"
at = "1s"
for = "300ms"
[[fault]]
kind = "reset"
at = "2s"
"""


Reading = dict[str, float]
"""Values of a process by column, and the moment `at_s` (CLOCK_MONOTONIC)."""


def read_process() -> Reading:
    """Return the values of this process, after garbage collection."""
    gc.collect()
    me = psutil.Process()
    alive = sum(isinstance(item, greenlet.greenlet) and not item.dead for item in gc.get_objects())
    values = (me.memory_info().rss / 1e6, me.num_fds(), me.num_threads(), alive)
    return {"at_s": time.monotonic(), **dict(zip(COLUMNS, values, strict=True))}


def run_worker(file: Path) -> None:
    """Run a load worker that also writes its readings into *file*."""
    # Locust patches sockets and threads of a process that imports it.
    import gevent  # noqa: PLC0415

    from ingest_bench.load import worker  # noqa: PLC0415

    def watch() -> None:
        with file.open("a", encoding="ascii", buffering=1) as lines:
            while True:
                lines.write(json.dumps(read_process()) + "\n")
                gevent.sleep(PERIOD_S)

    gevent.spawn(watch)
    worker.main()


def run_load(seconds: float, folder: Path) -> tuple[list[Reading], str]:
    """Run a load with failing requests in a child process; return its readings and a summary."""
    # The worker must not import modules from this folder.
    import lab  # noqa: PLC0415

    file = folder / "worker.jsonl"
    worker_argv = system.build_program_argv(Path(__file__).resolve(), "--worker", str(file))
    build_module_argv = system.build_module_argv
    # Used by the start of a worker.
    system.build_module_argv = lambda module, *more: (
        worker_argv if module == WORKER else build_module_argv(module, *more)
    )
    try:
        with lab.open_sink(8, seconds, broken="10%") as bench:
            rate = Arrivals(shape="constant", rate=Rate(100))
            report, samples = bench.run_load("broken", bulk_documents=50, warm_up_ns=0, arrivals=rate)
    finally:
        system.build_module_argv = build_module_argv
    readings = [json.loads(line) for line in file.read_text(encoding="ascii").splitlines()]
    failed = int((samples["status"] == 0).sum())
    return readings, f"{len(samples):,} requests, {failed:,} of them broken, {len(report.local_ports):,} connections"


def run_experiments(seconds: float, folder: Path) -> tuple[list[Reading], str]:
    """Execute experiments in sequence in this process; return its readings and a summary."""
    file = folder / "short.toml"
    file.write_text(EXPERIMENT, encoding="utf-8")
    readings: list[Reading] = []
    exit_codes: list[int] = []
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        number = len(readings)
        result = CliRunner().invoke(app, ["run", str(file), "--out", str(folder / f"runs-{number}")])
        exit_codes.append(result.exit_code)
        if result.exit_code:
            print(f"experiment {number} ended with {result.exit_code}: {result.output[-2000:]}", flush=True)
        readings.append(read_process())
    failed = sum(map(bool, exit_codes))
    return readings, f"{len(exit_codes)} experiments of 2 runs, {failed} of them with a failed or invalid run"


def find_growth(readings: Sequence[Reading]) -> list[str]:
    """Return a text for each column that grows."""
    quarter = len(readings) // 4
    if quarter < 3:
        raise SystemExit(f"{len(readings)} readings. Increase --minutes.")
    texts = []
    for column in COLUMNS:
        values = [reading[column] for reading in readings]
        before, last = values[quarter : 2 * quarter], values[-quarter:]
        if min(last) > max(before) + (MEMORY_NOISE_MB if column == MEMORY else 0):
            texts.append(
                f"{column}: at most {max(before):,.0f} in the second quarter, at least {min(last):,.0f} in the last"
            )
    return texts


def format_table(processes: dict[str, list[Reading]]) -> str:
    """Return the median of each quarter as Markdown."""
    lines = ["| process | | 1st quarter | 2nd | 3rd | 4th | max |", "|---" * 7 + "|"]
    for name, readings in processes.items():
        quarter = len(readings) // 4
        for column in COLUMNS:
            values = [reading[column] for reading in readings]
            medians = (statistics.median(values[number * quarter : (number + 1) * quarter]) for number in range(4))
            columns = " | ".join(f"{value:,.0f}" for value in (*medians, max(values)))
            lines.append(f"| {name} | {column} | {columns} |")
    return "\n".join(lines)


def run_kills(seconds: float) -> tuple[int, list[str]]:
    """Run rounds of kills for that time; return their number and the failed tests."""
    argv = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/test_kills.py")
    end_s, kills, failed = time.monotonic() + seconds, 0, []
    while time.monotonic() < end_s:
        result = subprocess.run(
            argv, env=os.environ | {"INGEST_BENCH_KILLS": str(KILLS)}, capture_output=True, text=True, check=False
        )
        failed += re.findall(r"^(?:FAILED|ERROR) .*", result.stdout, re.MULTILINE)
        if result.returncode not in {0, 1}:
            raise SystemExit(f"pytest ended with {result.returncode}: {result.stdout[-2000:]}{result.stderr[-2000:]}")
        kills += KILLS
    return kills, failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--out", type=Path, help="a folder for all readings as CSV")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        run_worker(options.worker)
        return 0
    half_s = options.minutes * 30
    with tempfile.TemporaryDirectory(prefix="soak-", dir="/var/tmp") as name, ThreadPoolExecutor() as threads:
        folder = Path(name)
        load = threads.submit(run_load, half_s, folder)
        experiment_readings, experiment_summary = run_experiments(half_s, folder)
        load_readings, load_summary = load.result()
    processes = {"experiments": experiment_readings, "load": load_readings}
    if options.out is not None:
        import lab  # noqa: PLC0415 - see run_load

        options.out.mkdir(parents=True, exist_ok=True)
        rows = [{"process": process, **reading} for process, readings in processes.items() for reading in readings]
        lab.write_csv(options.out / "soak.csv", rows)
    print(f"experiments: {experiment_summary}\nload: {load_summary}\n\n{format_table(processes)}\n", flush=True)
    growth = [f"{process}: {text}" for process, readings in processes.items() for text in find_growth(readings)]
    kills, failed = run_kills(half_s)
    print(f"kills: {kills}, {len(failed)} tests failed", *failed, sep="\n")
    print("growth: " + ("none" if not growth else "; ".join(growth)))
    return 1 if growth or failed else 0


if __name__ == "__main__":
    sys.exit(main())
