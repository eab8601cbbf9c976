"""Whether anything grows or stays behind in an hour: memory, files, threads, greenlets, and what kills leave.

    python benchmarks/soak.py [--minutes 60] [--out FOLDER]

In the first half two things go on at once. One process carries out one short experiment after the other, as
`ingest-bench run` does. And one load goes on all the time, of whose requests the sink breaks one in ten, so that its
users connect anew again and again. What both processes hold is looked at each few seconds. In the second half sessions
of every kind are killed, and their watchdogs, and the machine is compared (`nox -s kills`).

Something grows where all readings of the last quarter are above all of the second one; memory by more than is noise.
"""

from __future__ import annotations

import argparse
import csv
import gc
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import greenlet
import psutil
from typer.testing import CliRunner

from ingest_bench import system
from ingest_bench.cli.app import app
from ingest_bench.model.load import Arrivals, Rate

EVERY_S = 5.0
SENDER = "ingest_bench.load.fleet.fleet_worker"
MEMORY = "resident, MB"
COLUMNS = (MEMORY, "files", "threads", "greenlets")
# A heap of Python goes up and down by so much.
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


@dataclass(frozen=True, slots=True)
class Reading:
    """What a process held at a moment, in the order of COLUMNS."""

    at_s: float
    values: tuple[float, ...]


def held() -> Reading:
    """What this process holds. Garbage does not count."""
    gc.collect()
    me = psutil.Process()
    alive = sum(isinstance(one, greenlet.greenlet) and not one.dead for one in gc.get_objects())
    return Reading(time.monotonic(), (me.memory_info().rss / 1e6, me.num_fds(), me.num_threads(), alive))


def as_sender(file: Path) -> None:
    """A sender of a load that writes what it holds into that file."""
    # Locust changes the sockets and threads of a process that imports it.
    import gevent  # noqa: PLC0415

    from ingest_bench.load.fleet import fleet_worker  # noqa: PLC0415

    def watch() -> None:
        with file.open("a", encoding="ascii", buffering=1) as out:
            while True:
                now = held()
                out.write(f"{now.at_s},{','.join(map(str, now.values))}\n")
                gevent.sleep(EVERY_S)

    gevent.spawn(watch)
    fleet_worker.main()


def read(file: Path) -> list[Reading]:
    """What such a file says."""
    rows = ([float(word) for word in line.split(",")] for line in file.read_text(encoding="ascii").splitlines())
    return [Reading(at_s, tuple(values)) for at_s, *values in rows]


def load(seconds: float, folder: Path) -> tuple[list[Reading], str]:
    """A load whose requests fail all the time, in a process of its own."""
    # A sender imports nothing from the folder of its program.
    import lab  # noqa: PLC0415

    file = folder / "sender.csv"
    own, plain = system.program(Path(__file__).resolve(), "--sender", str(file)), system.python
    # What starts a sender asks it.
    system.python = lambda module, *more: own if module == SENDER else plain(module, *more)
    try:
        with lab.opened(8, seconds, broken="10%") as bench:
            rate = Arrivals(shape="constant", rate=Rate(100))
            report, samples = bench.sent("broken", bulk_documents=50, warm_up_ns=0, arrivals=rate)
    finally:
        system.python = plain
    failed = int((samples["status"] == 0).sum())
    return read(file), f"{len(samples):,} requests, {failed:,} of them broken, {len(report.local_ports):,} connections"


def runs(seconds: float, folder: Path) -> tuple[list[Reading], str]:
    """One experiment after the other, in this process."""
    file = folder / "short.toml"
    file.write_text(EXPERIMENT, encoding="utf-8")
    readings: list[Reading] = []
    states: list[int] = []
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        number = len(readings)
        done = CliRunner().invoke(app, ["run", str(file), "--out", str(folder / f"runs-{number}")])
        states.append(done.exit_code)
        if done.exit_code:
            print(f"experiment {number} ended with {done.exit_code}: {done.output[-2000:]}", flush=True)
        readings.append(held())
    return (
        readings,
        f"{len(states)} experiments of 2 runs, {sum(map(bool, states))} of them with a failed or invalid run",
    )


def grown(readings: Sequence[Reading]) -> list[str]:
    """The columns that grow, each with what it was and is."""
    quarter = len(readings) // 4
    if quarter < 3:
        raise SystemExit(f"{len(readings)} readings; give more --minutes")
    found = []
    for place, column in enumerate(COLUMNS):
        values = [one.values[place] for one in readings]
        before, last = values[quarter : 2 * quarter], values[-quarter:]
        if min(last) > max(before) + (MEMORY_NOISE_MB if column == MEMORY else 0):
            found.append(
                f"{column}: at most {max(before):,.0f} in the second quarter, at least {min(last):,.0f} in the last"
            )
    return found


def table(parts: dict[str, list[Reading]]) -> str:
    """Markdown: the median of each quarter."""
    lines = ["| process | | 1st quarter | 2nd | 3rd | 4th | most |", "|---" * 7 + "|"]
    for name, readings in parts.items():
        quarter = len(readings) // 4
        for place, column in enumerate(COLUMNS):
            values = [one.values[place] for one in readings]
            middles = (statistics.median(values[number * quarter : (number + 1) * quarter]) for number in range(4))
            cells = " | ".join(f"{one:,.0f}" for one in (*middles, max(values)))
            lines.append(f"| {name} | {column} | {cells} |")
    return "\n".join(lines)


def kills(seconds: float) -> tuple[int, list[str]]:
    """Rounds of kills until the time is over: how many, and what failed."""
    files = [f"tests/test_{name}.py" for name in ("kills", "interface_kills", "servers_killed")]
    argv = (sys.executable, "-m", "pytest", "-q", "-k", "kill", *files, "-p", "no:cacheprovider")
    end_s, done, failed = time.monotonic() + seconds, 0, []
    while time.monotonic() < end_s:
        ended = subprocess.run(
            argv, env=os.environ | {"INGEST_BENCH_KILLS": str(KILLS)}, capture_output=True, text=True, check=False
        )
        failed += re.findall(r"^(?:FAILED|ERROR) .*", ended.stdout, re.MULTILINE)
        if ended.returncode not in {0, 1}:
            raise SystemExit(f"pytest ended with {ended.returncode}: {ended.stdout[-2000:]}{ended.stderr[-2000:]}")
        done += KILLS
    return done, failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--out", type=Path, help="a folder for every reading, as CSV")
    parser.add_argument("--sender", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.sender is not None:
        as_sender(chosen.sender)
        return 0
    half_s = chosen.minutes * 30
    with tempfile.TemporaryDirectory(prefix="soak-", dir="/var/tmp") as name, ThreadPoolExecutor() as threads:
        folder = Path(name)
        going_on = threads.submit(load, half_s, folder)
        of_runs, told_runs = runs(half_s, folder)
        of_load, told_load = going_on.result()
    parts = {"experiments": of_runs, "load": of_load}
    if chosen.out is not None:
        chosen.out.mkdir(parents=True, exist_ok=True)
        with (chosen.out / "soak.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(("process", "at_s", *COLUMNS))
            for part, readings in parts.items():
                first_s = readings[0].at_s
                writer.writerows(
                    (part, f"{one.at_s - first_s:.0f}", *(f"{value:.6g}" for value in one.values)) for one in readings
                )
    print(f"experiments: {told_runs}\nload: {told_load}\n\n{table(parts)}\n", flush=True)
    growing = [f"{part}: {text}" for part, readings in parts.items() for text in grown(readings)]
    killed, failed = kills(half_s)
    print(f"kills: {killed}, {len(failed)} tests failed", *failed, sep="\n")
    print("grows: " + ("nothing" if not growing else "; ".join(growing)))
    return 1 if growing or failed else 0


if __name__ == "__main__":
    sys.exit(main())
