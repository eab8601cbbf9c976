"""Whether a load worker's memory stays flat: its resident size over minutes, with synthetic documents and with a file.

    python benchmarks/memory.py [--minutes 3] [--rate 200] [--out FILE.csv]

Both loads run at once: 55 kB bulks at a fixed rate, one from the pool of synthetic documents, one from a file that is
larger than the pool and therefore read again and again. Memory does not care how busy the machine is.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from lab import WORKLOAD, Bench, Verdict, opened

from ingest_bench.analysis.compare import comparison
from ingest_bench.documents.export import write
from ingest_bench.documents.pool import POOL_BYTES
from ingest_bench.load import supervisor
from ingest_bench.model.load import Arrivals, Rate
from ingest_bench.model.results import Value

DOCUMENTS = 110
EVERY_S = 2.0
SETTLES_S = 60.0
BLOCKS = 8
# Keeping one record of 60 bytes a request, the smallest thing that could be forgotten, would be 0.7 MB/min at 200/s.
LIMIT_MB_PER_MIN = 0.2


@dataclass(frozen=True, slots=True)
class Slope:
    """Growth in MB a minute, and the 95% interval of it."""

    middle: float
    low: float
    high: float


def resident_bytes(pids: Sequence[int]) -> int:
    """What these processes hold in memory together; 0 when one of them has ended."""
    total = 0
    for pid in pids:
        try:
            status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
        except (FileNotFoundError, ProcessLookupError):
            return 0
        lines = [line for line in status.splitlines() if line.startswith("VmRSS:")]
        if not lines:
            return 0
        total += int(lines[0].split()[1]) * 1024
    return total


def watch(bench: Bench, rate: float, corpus: Path) -> tuple[dict[str, list[tuple[float, int]]], dict[str, int]]:
    """Seconds and resident bytes of each load, and how many documents each got acknowledged."""
    common: dict[str, Any] = {"bulk_documents": DOCUMENTS, "warm_up_ns": 0}
    common["arrivals"] = Arrivals(shape="constant", rate=Rate(rate))
    loads = {
        "synthetic": bench.started("synthetic", **common),
        "file": bench.started("file", documents=str(corpus), **common),
    }
    seen: dict[str, list[tuple[float, int]]] = {name: [] for name in loads}
    acked = dict.fromkeys(loads, 0)
    over = threading.Event()

    def wait(name: str) -> None:
        def progress(told: supervisor.Progress) -> None:
            acked[name] = told.documents

        try:
            loads[name].wait(progress)
        finally:
            over.set()

    try:
        with ThreadPoolExecutor() as threads:
            waiting = [threads.submit(wait, name) for name in loads]
            began = time.monotonic()
            while not over.wait(EVERY_S):
                for name, running in loads.items():
                    if acked[name] and (held := resident_bytes(running.pids)):
                        seen[name].append((time.monotonic() - began, held))
            for one in waiting:
                one.result()
    finally:
        for running in loads.values():
            running.stop()
    return seen, acked


def slope(seen: Sequence[tuple[float, int]]) -> Slope:
    """Least squares through the means of blocks: neighbouring readings are no independent ones, blocks nearly are."""
    size = len(seen) // BLOCKS
    blocks = [seen[number * size : (number + 1) * size] for number in range(BLOCKS)]
    minutes = [statistics.fmean(at_s for at_s, _ in block) / 60 for block in blocks]
    held_mb = [statistics.fmean(held for _, held in block) / 1e6 for block in blocks]
    middle, offset = statistics.linear_regression(minutes, held_mb)
    mean = statistics.fmean(minutes)
    rest = sum((held - offset - middle * at) ** 2 for at, held in zip(minutes, held_mb, strict=True))
    error = (rest / (BLOCKS - 2) / sum((at - mean) ** 2 for at in minutes)) ** 0.5
    half = comparison.t_quantile(BLOCKS - 2) * error
    return Slope(middle, middle - half, middle + half)


def table(seen: Mapping[str, Sequence[tuple[float, int]]], acked: Mapping[str, int]) -> tuple[str, Verdict]:
    """Markdown, and whether it stays flat."""
    lines = ["| documents | sent | MB after a minute | MB at the end | most MB | MB/min (95% interval) | promised |"]
    lines += ["|---|---|---|---|---|---|---|"]
    verdict = Verdict()
    for name, all_of_it in seen.items():
        settled = [(at_s, held) for at_s, held in all_of_it if at_s >= SETTLES_S]
        if len(settled) < BLOCKS * 2:
            raise SystemExit(f"{name}: {len(settled)} readings after the first minute; give more --minutes")
        grows = slope(settled)
        first, last, most = (held / 1e6 for held in (settled[0][1], settled[-1][1], max(h for _, h in all_of_it)))
        lines.append(
            f"| {name} | {acked[name]:,} | {first:.1f} | {last:.1f} | {most:.1f} "
            f"| {grows.middle:+.3f} ({grows.low:+.3f} to {grows.high:+.3f}) | at most {LIMIT_MB_PER_MIN:g} |"
        )
        said = f"{name}: {grows.middle:+.3f} MB/min ({grows.low:+.3f} to {grows.high:+.3f})"
        verdict.judge(
            f"{said}, promised at most {LIMIT_MB_PER_MIN:g}", (grows.low, grows.high), (-inf, LIMIT_MB_PER_MIN)
        )
    return "\n".join(lines), verdict


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=3)
    parser.add_argument("--rate", type=float, default=200, help="bulks a second, of each load")
    parser.add_argument("--out", type=Path, help="every reading, as CSV")
    chosen = parser.parse_args()
    with opened(4, chosen.minutes * 60) as bench:
        corpus = bench.folder / "documents.ndjson"
        written = write(
            WORKLOAD, POOL_BYTES * 3 // 2 * WORKLOAD.published_documents // WORKLOAD.published_bytes, corpus, 1
        )
        if written <= POOL_BYTES:
            raise SystemExit(f"the file of {written} bytes fits into the pool: it is not read again and again")
        seen, acked = watch(bench, chosen.rate, corpus)
    if chosen.out is not None:
        with chosen.out.open("w", newline="") as file:
            rows: list[tuple[Value, ...]] = [(name, *one) for name, all_of_it in seen.items() for one in all_of_it]
            csv.writer(file).writerows([("documents", "at_s", "resident_bytes"), *rows])
    text, verdict = table(seen, acked)
    print(text)
    return verdict.told()


if __name__ == "__main__":
    sys.exit(main())
