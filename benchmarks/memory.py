"""Growth of a load worker's resident size over minutes, with synthetic documents and with a file.

    python benchmarks/memory.py [--minutes 3] [--rate 200]

Both loads run at the same time: 55 kB bulks at a fixed rate, one from the pool of synthetic documents, one from a file
that is larger than the pool and therefore read repeatedly. A busy machine does not affect memory.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import inf
from pathlib import Path
from typing import Any

import psutil
from lab import WORKLOAD, Bench, Verdict, open_sink
from scipy import stats

from ingest_bench.analysis import student
from ingest_bench.documents.source import POOL_BYTES
from ingest_bench.documents.synthetic import write_documents
from ingest_bench.load import supervisor
from ingest_bench.model.load import Arrivals, Rate

DOCUMENTS = 110
PERIOD_S = 2.0
SETTLE_S = 60.0
BLOCKS = 8
# Keeping one record of 60 bytes per request, the smallest possible leak, would be 0.7 MB/min at 200/s.
LIMIT_MB_PER_MIN = 0.2

Readings = Sequence[tuple[float, int]]
"""Seconds since the start, and resident bytes."""


def resident_bytes(pids: Sequence[int]) -> int:
    """Return the resident bytes of these processes; 0 if one of them has ended."""
    try:
        return sum(psutil.Process(pid).memory_info().rss for pid in pids)
    except psutil.NoSuchProcess:
        return 0


def watch(bench: Bench, rate: float, corpus: Path) -> tuple[dict[str, list[tuple[float, int]]], dict[str, int]]:
    """Return the readings of each load, and the number of its acknowledged documents."""
    common: dict[str, Any] = {"bulk_documents": DOCUMENTS, "warm_up_ns": 0}
    common["arrivals"] = Arrivals(shape="constant", rate=Rate(rate))
    loads = {
        "synthetic": bench.start_load("synthetic", **common),
        "file": bench.start_load("file", documents=str(corpus), **common),
    }
    readings: dict[str, list[tuple[float, int]]] = {name: [] for name in loads}
    acknowledged = dict.fromkeys(loads, 0)
    stop = threading.Event()

    def wait(name: str) -> None:
        def update(progress: supervisor.Progress) -> None:
            acknowledged[name] = progress.documents

        try:
            loads[name].wait(update)
        finally:
            stop.set()

    try:
        with ThreadPoolExecutor() as threads:
            waits = [threads.submit(wait, name) for name in loads]
            started_s = time.monotonic()
            while not stop.wait(PERIOD_S):
                for name, load in loads.items():
                    if acknowledged[name] and (resident := resident_bytes(load.pids)):
                        readings[name].append((time.monotonic() - started_s, resident))
            for future in waits:
                future.result()
    finally:
        for load in loads.values():
            load.stop()
    return readings, acknowledged


def fit_slope(readings: Readings) -> tuple[float, float, float]:
    """Return the growth in MB per minute and its 95% interval.

    Least squares through the means of blocks: neighbouring readings depend on each other, blocks hardly do.
    """
    size = len(readings) // BLOCKS
    blocks = [readings[number * size : (number + 1) * size] for number in range(BLOCKS)]
    minutes = [statistics.fmean(at_s for at_s, _ in block) / 60 for block in blocks]
    megabytes = [statistics.fmean(resident for _, resident in block) / 1e6 for block in blocks]
    fit = stats.linregress(minutes, megabytes)
    half = student.quantile(BLOCKS - 2, 0.975) * fit.stderr
    return fit.slope, fit.slope - half, fit.slope + half


def format_table(readings: Mapping[str, Readings], acknowledged: Mapping[str, int]) -> tuple[str, Verdict]:
    """Return the growth as Markdown, and the verdict."""
    lines = ["| documents | sent | MB after a minute | MB at the end | max MB | MB/min (95% interval) | limit |"]
    lines += ["|---|---|---|---|---|---|---|"]
    verdict = Verdict()
    for name, of_load in readings.items():
        settled = [(at_s, resident) for at_s, resident in of_load if at_s >= SETTLE_S]
        if len(settled) < BLOCKS * 2:
            raise SystemExit(f"{name}: {len(settled)} readings after the first minute. Increase --minutes.")
        slope, low, high = fit_slope(settled)
        highest = max(resident for _, resident in of_load)
        first, last, most = (resident / 1e6 for resident in (settled[0][1], settled[-1][1], highest))
        growth = f"{slope:+.3f} ({low:+.3f} to {high:+.3f})"
        limit = f"at most {LIMIT_MB_PER_MIN:g}"
        lines.append(
            f"| {name} | {acknowledged[name]:,} | {first:.1f} | {last:.1f} | {most:.1f} | {growth} | {limit} |"
        )
        verdict.judge(f"{name}: {growth} MB/min, {limit}", (low, high), (-inf, LIMIT_MB_PER_MIN))
    return "\n".join(lines), verdict


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=3)
    parser.add_argument("--rate", type=float, default=200, help="bulks per second of each load")
    options = parser.parse_args()
    with open_sink(4, options.minutes * 60) as bench:
        corpus = bench.server.folder / "documents.ndjson"
        documents = POOL_BYTES * 3 // 2 * WORKLOAD.published_documents // WORKLOAD.published_bytes
        size = write_documents(WORKLOAD, documents, corpus, 1)
        if size <= POOL_BYTES:
            raise SystemExit(f"the file of {size} bytes fits into the pool, so it is read only once")
        readings, acknowledged = watch(bench, options.rate, corpus)
    text, verdict = format_table(readings, acknowledged)
    print(text)
    return verdict.print()


if __name__ == "__main__":
    sys.exit(main())
