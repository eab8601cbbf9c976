"""How long a summary takes, and how much memory: of made-up loads of 1, 10 and 50 million tickets.

    python benchmarks/analysis.py [--millions 1 10 50] [--workers 4] [--out FILE.json]

The samples are written to a file for each worker, as a load leaves them, and read by a process of its own, which makes
a summary of them. Promised (docs/how-it-measures.md): at most 2 s for 1 million, and memory that does not grow with
the load. Of more than 50 million the files stand there again as links: a billion would be 66 GB on disk. Time is CPU
time of that process beside the clock's, which on a busy machine is longer.

Judged is what it allocates (tracemalloc, which numpy tells of its arrays). What the process has beside that is glibc's
allocator, which gives back less the longer it works: 255 MB at 10 million, 348 at a billion (35 min); with a fixed
MALLOC_MMAP_THRESHOLD_=262144 it was 223 and 224 at 10 and 40 million, for twice the CPU.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from lab import Verdict

from ingest_bench import system
from ingest_bench.analysis.run.summary import summarise
from ingest_bench.model.experiment import Cell
from ingest_bench.model.load import LoadOptions, WorkerReport
from ingest_bench.model.results import RunRecord
from ingest_bench.model.samples import SAMPLE
from ingest_bench.model.target import TargetOptions
from ingest_bench.results.run_folder import RunFolder

PER_S = 20_000
START_NS = 10**12
BLOCK = 500_000
MOST_OF_A_FILE = 12_500_000
SECONDS_PER_MILLION = 2.0
# What is allocated beyond that of 10 million: pieces are cut differently.
GROWTH_MB = 16


def write(folder: Path, tickets: int, workers: int) -> int:
    """The samples of a load at a fixed rate, response times of a log-normal distribution. Its length in nanoseconds."""
    length_ns = tickets * 10**9 // PER_S
    folder.mkdir(parents=True)
    each = min(tickets // workers, MOST_OF_A_FILE)
    for number in range(workers, tickets // each):
        (folder / f"samples-{number}.bin").symlink_to(f"samples-{number % workers}.bin")
    for worker in range(workers):
        draw = np.random.default_rng(worker)
        with (folder / f"samples-{worker}.bin").open("wb") as file:
            for first in range(0, each, BLOCK):
                count = min(BLOCK, each - first)
                block = np.zeros(count, dtype=SAMPLE)
                block["done_ns"] = START_NS + (first + np.arange(count)) * (length_ns // each)
                block["planned_ns"] = block["done_ns"] - np.exp(draw.normal(16, 1, count)).astype(np.int64)
                block["sent_ns"] = block["planned_ns"] + 1000
                block["bytes_sent"], block["attempts"], block["status"] = 50_000, 1, 200
                block["documents"] = block["documents_acked"] = 100
                block.tofile(file)
    return length_ns


def summary(folder: Path, length_ns: int) -> None:
    """A process of its own: the seconds, the CPU seconds and the largest memory of one summary, as JSON."""
    import resource  # noqa: PLC0415 - of this process alone
    import tracemalloc  # noqa: PLC0415

    report = WorkerReport(
        started_monotonic_ns=START_NS,
        realtime_minus_monotonic_ns=0,
        warm_up_end_ns=START_NS,
        measure_end_ns=START_NS + length_ns,
        bytes_written=0,
        local_ports=(),
        item_failures={},
        cpu_ns=0,
        loop_lag_p99_ns=0,
        errors=(),
    )
    cell = Cell(name="made", levels={}, network=None, target=TargetOptions(name="sink"), load=LoadOptions())
    record = RunRecord(run="made/1", replicate=1, cell="made", levels={}, state="measured")
    tracemalloc.start(1)
    began, cpu = time.monotonic(), time.process_time()
    found = summarise(record, cell, RunFolder(folder.parent).samples(), report, ())
    used = resource.getrusage(resource.RUSAGE_SELF)
    told = {
        "seconds": time.monotonic() - began,
        "cpu_seconds": time.process_time() - cpu,
        "memory_mb": used.ru_maxrss / 1024,
        "allocated_mb": tracemalloc.get_traced_memory()[1] / 1e6,
        "response_ms_p99": found.values["response_ms_p99"],
    }
    print(json.dumps(told))


def measured(millions: int, workers: int) -> Mapping[str, float]:
    # Not in /tmp, which may be memory.
    with tempfile.TemporaryDirectory(prefix="bench-", dir="/var/tmp") as folder:
        load = Path(folder) / "load"
        length_ns = write(load, millions * 10**6, workers)
        argv = (sys.executable, __file__, "--summary", str(load), str(length_ns))
        child = system.start(argv, stdout=subprocess.PIPE, stderr=sys.stderr.fileno())
        said, _ = child.communicate()
        if child.returncode:
            raise SystemExit(f"the summary of {millions} million failed: {child.returncode}")
        told: Mapping[str, float] = json.loads(said)
        return told


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--millions", type=int, nargs="+", default=[1, 10, 50])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    found = {millions: measured(millions, chosen.workers) for millions in chosen.millions}
    print("| million tickets | s | CPU s | allocated at most, MB | memory, MB | p99, ms |\n|---|---|---|---|---|---|")
    for millions, told in found.items():
        names = ("seconds", "cpu_seconds", "allocated_mb", "memory_mb", "response_ms_p99")
        shown = [told[name] for name in names]
        print(f"| {millions} | " + " | ".join(f"{value:.1f}" for value in shown) + " |")
    if chosen.out is not None:
        chosen.out.write_text(json.dumps(found, indent=1))
    verdict = Verdict()
    if 1 in found and found[1]["seconds"] > SECONDS_PER_MILLION:
        verdict.missed.append(f"1 million: {found[1]['seconds']:.1f} s, promised at most {SECONDS_PER_MILLION:g}")
    large = [told["allocated_mb"] for millions, told in found.items() if millions >= 10]
    if large and max(large) - min(large) > GROWTH_MB:
        verdict.missed.append(f"what is allocated grew by {max(large) - min(large):.0f} MB from 10 million on")
    return verdict.told()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--summary"]:
        summary(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        sys.exit(main())
