"""What the default probes (reads and gc) cost a server: throughput and CPU with and without them.

    python benchmarks/probes.py [--rounds 6] [--seconds 9] [--targets opensearch,sink] [--out FILE.json]

Each replicate is a new server on a link of its own, warmed up as long as it is measured. Each round runs it with and
without the probes, in turn, and the ratio is taken within the round: a drift of the machine meets both. "Without" is a
JVM to which nothing at all was added. CPU is user and system time of the JVM within the measurement (/proc/PID/stat).
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ingest_bench import catalog, load, network, probes, procedure, targets
from ingest_bench.analysis import samples, student
from ingest_bench.jvm.process import ServerProcess, serve
from ingest_bench.load import LoadPlan
from ingest_bench.model.experiment import Cell
from ingest_bench.model.load import LoadOptions, WorkerReport
from ingest_bench.model.target import Endpoint, Place, TargetOptions
from ingest_bench.network.link import Link
from ingest_bench.targets.http import Http, ask

DEFAULT_PROBES = ("reads", "gc")
# What the project promises (README): the largest allowed ratio of CPU time with the probes to that without.
PROMISED = {"opensearch": 1.03}
SERVERS = {
    "opensearch": TargetOptions(name="opensearch", version="2.19.6", heap_bytes=1 << 30),
    "sink": TargetOptions(name="sink", heap_bytes=512 << 20),
}
NETWORK = catalog.profile("ethernet", {})
CONFIDENCE = 0.95
PORT = 9200
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Seen:
    """One replicate."""

    documents: float
    seconds: float
    cpu_s: float

    @property
    def documents_per_s(self) -> float:
        """Acknowledged within the measurement."""
        return self.documents / self.seconds

    @property
    def cpu_s_per_million(self) -> float:
        """The server's CPU time for a million documents."""
        return self.cpu_s / self.documents * 1e6


@dataclass(frozen=True, slots=True)
class Ratio:
    """With the probes by without, the geometric mean over rounds, and its interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} ({self.low:.3f} to {self.high:.3f})"


def cell(target: str, seconds: float) -> Cell:
    """Documents as fast as they are taken. The sink is small and soon compiled: half the time is enough for it."""
    length_ns = max(1, round(seconds / (2 if target == "sink" else 1))) * 10**9
    options = LoadOptions(
        workload="nyc_taxis", users=4, bulk_documents=1000, warm_up_ns=length_ns, measure_ns=length_ns
    )
    return Cell(name=target, levels={}, network=NETWORK, target=SERVERS[target], load=options)


@contextlib.contextmanager
def served(link: Link, chosen: Cell, folder: Path, watched: Sequence[str]) -> Iterator[tuple[Http, ServerProcess]]:
    """A new server that these probes watch, or to which nothing was added."""
    target, listen = targets.named(chosen.target.name), Endpoint(link.server_address, PORT)
    java = targets.fetch(target.requirements(chosen.target))
    raw = folder / "raw"
    raw.mkdir()
    options = probes.jvm_options(watched, raw, java.version) if watched else ()
    plan = target.launch_plan(chosen.target, java, folder / "home", listen, options)
    plan = dataclasses.replace(plan, writable=(*plan.writable, raw))
    with (
        ask(link.server.command, listen) as http,
        serve(
            plan,
            enter=link.server.command,
            log=folder / "server.log",
            listen=listen,
            ready=lambda: target.is_ready(http),
        ) as server,
        probes.watch(watched, server.jvm_pid, raw),
    ):
        yield http, server
    if watched and not (raw / "recording.jfr").stat().st_size:
        raise SystemExit(f"{chosen.name}: the probes left no recording")


def replicate(chosen: Cell, watched: Sequence[str]) -> Seen:
    """What a new server does, with an empty index."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        folder.chmod(0o755)
        link = stack.enter_context(network.link(NETWORK))
        http, server = stack.enter_context(served(link, chosen, folder, watched))
        cpu_s: list[float] = []

        def send(plan: LoadPlan) -> WorkerReport:
            report, used_s = measured(plan, link, server.jvm_pid)
            cpu_s.append(used_s)
            return report

        to_do = procedure.of(
            chosen, Place(endpoint=Endpoint(link.server_address, PORT)), folder / "load", may_delete=True
        )
        report = procedure.carry_out(to_do, http, send, lambda _: contextlib.nullcontext(), folder / "load")
        sent = np.concatenate([np.fromfile(path, samples.DTYPE) for path in folder.glob("load/samples-*.bin")])
        window = samples.window_of(report)
        acked = samples.acked_per_second(sent, window.start_ns, window.seconds)
        return Seen(float(acked.sum()), window.seconds, sum(cpu_s))


def measured(plan: LoadPlan, link: Link, pid: int) -> tuple[WorkerReport, float]:
    """The load's report, and the CPU seconds of the server within its measurement."""
    sender = load.start(plan, link.client.command)
    looked: list[float] = []

    def look() -> None:
        while sender.measure_start_ns is None:
            time.sleep(0.01)
        for moment_ns in (sender.measure_start_ns, sender.measure_start_ns + plan.options.measure_ns):
            time.sleep(max(0, moment_ns - time.monotonic_ns()) / 1e9)
            looked.append(cpu_seconds(pid))

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    report = sender.wait(lambda _: None)
    watcher.join()
    return report, looked[1] - looked[0]


def cpu_seconds(pid: int) -> float:
    """User and system time of all threads of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def measure(target: str, rounds: int, seconds: float) -> dict[str, list[Seen]]:
    chosen = cell(target, seconds)
    sides: dict[str, Sequence[str]] = {"without": (), "with": DEFAULT_PROBES}
    found: dict[str, list[Seen]] = {side: [] for side in sides}
    for number in range(rounds):
        # What comes first finds a cooler machine and a colder page cache: each goes first every other time.
        for side in sorted(sides, reverse=bool(number % 2)):
            found[side].append(replicate(chosen, sides[side]))
    return found


def ratio(without: Sequence[float], those_with: Sequence[float]) -> Ratio:
    """Student's t interval on the logarithms of the rounds' own ratios."""
    logs = [math.log(other / one) for one, other in zip(without, those_with, strict=True)]
    mean, half = statistics.fmean(logs), math.inf
    if len(logs) > 1:
        half = student.quantile(CONFIDENCE, len(logs) - 1) * statistics.stdev(logs) / len(logs) ** 0.5
    return Ratio(math.exp(mean), math.exp(mean - half), math.exp(mean + half) if math.isfinite(half) else math.inf)


def table(found: Mapping[str, Mapping[str, Sequence[Seen]]]) -> tuple[str, list[str]]:
    """Markdown, and what it means for each promise; a line that begins with "missed" is one that was not kept."""
    lines = [
        f"| server | reads+gc | documents/s, median (range) | CPU s per million documents | ratio ({CONFIDENCE:.0%}) |",
        "|---|---|---|---|---|",
    ]
    said = []
    for target, sides in found.items():
        cpu = {side: [one.cpu_s_per_million for one in seen] for side, seen in sides.items()}
        for side, seen in sides.items():
            cost = ratio(cpu["without"], cpu["with"])
            taken = _middle([one.documents_per_s for one in seen], ",.0f")
            lines.append(
                f"| {target} | {side} | {taken} | {_middle(cpu[side], '.2f')} | {cost if side == 'with' else ''} |"
            )
        rates = {side: [one.documents_per_s for one in seen] for side, seen in sides.items()}
        said.append(f"{target}: throughput with the probes by without: {ratio(rates['without'], rates['with'])}")
        if (limit := PROMISED.get(target)) is not None:
            said.append(f"{verdict(cost, limit)}: CPU on {target} {cost}, promised at most {limit:g}")
    return "\n".join(lines), said


def verdict(cost: Ratio, limit: float) -> str:
    """Missed only when the whole interval is beyond the promise; kept only when none of it is."""
    if cost.low > limit:
        return "missed"
    return "kept" if cost.high <= limit else "not decided" if cost.mean > limit else "kept on average"


def _middle(values: Sequence[float], form: str) -> str:
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=9)
    parser.add_argument("--targets", default="opensearch,sink")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    found = {target: measure(target, chosen.rounds, chosen.seconds) for target in chosen.targets.split(",")}
    text, said = table(found)
    print(text, *said, sep="\n")
    if chosen.out is not None:
        chosen.out.write_text(json.dumps(found, default=dataclasses.asdict, indent=1))
    return 1 if any(line.startswith("missed") for line in said) else 0


if __name__ == "__main__":
    sys.exit(main())
