"""What probes cost a server: throughput, CPU and the length of GC pauses with and without them.

    python benchmarks/probes.py [--probes reads,gc,stalls] [--rounds 40] [--seconds 3] [--targets opensearch,sink]
        [--out FILE.json]

One server that is warm, under one load that goes on. In each round the probes watch it for a while (as `run --attach`
does: the same recording and logs) and do not for as long; which comes first alternates, and the ratio is taken within
the round, so that a drift of the server meets both. Rejected: a new server for each side. Eight pairs of those differed
by a tenth, and told nothing. OpenSearch flushes a small buffer again and again, and neither refreshes nor merges: where
it flushed and merged for seconds, windows of 3 s differed by ten times, and 30 rounds told nothing. CPU is user and
system time of the JVM in that time (/proc/PID/stat). Pauses are those of a GC log that is on all the time, one line a
pause.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from lab import Verdict, served

from ingest_bench import probes, targets
from ingest_bench.analysis.run import sample_columns
from ingest_bench.experiment import catalog
from ingest_bench.inputs import data
from ingest_bench.jvm.attach import Attached, ours
from ingest_bench.lab import steps
from ingest_bench.load import supervisor
from ingest_bench.load.plan import LoadPlan
from ingest_bench.model.experiment import Cell
from ingest_bench.model.load import LoadOptions, WorkerReport
from ingest_bench.model.target import Place, TargetOptions
from ingest_bench.probes import vantage as vantage_module
from ingest_bench.probes.pauses import gclog
from ingest_bench.results.run_folder import RunFolder

PROBES = "reads,gc,stalls"
# What the project promises (docs/how-it-measures.md): the largest allowed ratio of CPU time with the probes to that
# without.
PROMISED = {"opensearch": 1.03}
SERVERS = {
    "opensearch": TargetOptions(
        name="opensearch",
        version="2.19.6",
        heap_bytes=1 << 30,
        setting={"indices.memory.index_buffer_size": "16mb"},
    ),
    "sink": TargetOptions(name="sink", heap_bytes=512 << 20),
}
NETWORK = "ethernet"
INDEX = (
    '"index.refresh_interval" = "30s"',
    '"index.refresh_interval" = "-1"\n"index.merge.policy.segments_per_tier" = 5000',
)
CONFIDENCE = 0.95
# Until most of the server's code is compiled; for what a switch itself costs; for the switch.
WARM_UP_S = 25.0
SETTLE_S = 0.5
SWITCH_S = 2.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Look:
    """A time (CLOCK_MONOTONIC) and the CPU seconds of the server in it."""

    start_ns: int
    seconds: int
    cpu_s: float

    @property
    def end_ns(self) -> int:
        """When it was over."""
        return self.start_ns + self.seconds * 10**9


@dataclass(frozen=True, slots=True)
class Seen:
    """What the server did in such a time."""

    documents: float
    seconds: int
    cpu_s: float
    pause_ms: float | None
    """The mean of the GC pauses; None: there was none."""

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
    """With the probes by without, the median over rounds, and its interval."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3f} ({self.low:.3f} to {self.high:.3f})"


def cell(target: str, length_s: float, workload: Path) -> Cell:
    """Documents as fast as they are taken, for so long."""
    options = LoadOptions(
        workload=str(workload), users=4, bulk_documents=1000, warm_up_ns=0, measure_ns=round(length_s * 1e9)
    )
    return Cell(name=target, levels={}, network=catalog.profile(NETWORK, {}), target=SERVERS[target], load=options)


def measure(target: str, chosen_probes: Sequence[str], rounds: int, seconds: int) -> dict[str, list[Seen]]:
    """What the server did in each round, without and with the probes."""
    each_s = seconds + 2 * SETTLE_S + SWITCH_S
    with contextlib.ExitStack() as stack:
        rides = (data.folder("workloads") / "nyc_taxis.toml").read_text(encoding="utf-8")
        assert INDEX[0] in rides  # noqa: S101 - else it would be refreshed
        workload = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "unmerged.toml"
        workload.write_text(rides.replace(*INDEX))
        chosen = cell(target, WARM_UP_S + 2 * rounds * each_s, workload)
        # The server's user writes there.
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-gc-")))
        logs.chmod(0o777)
        log = f"-Xlog:gc=info:file={logs / 'gc.log'}:time,uptime,level,tags:filecount=0"
        here = stack.enter_context(served(dataclasses.replace(SERVERS[target], jvm=(log,)), NETWORK))
        looks: dict[str, list[Look]] = {"without": [], "with": []}

        def send(plans: Sequence[LoadPlan], _: Sequence[bool]) -> Sequence[WorkerReport]:
            sender = supervisor.start(plans[0], here.link.client.command)
            with ThreadPoolExecutor(1) as waiting:
                # What is started in between must be started by this thread: it would end with another one.
                told = waiting.submit(sender.wait, lambda _: None)
                try:
                    look(ours(here.jvm_pid, here.java), chosen_probes, here.folder, rounds, seconds, looks)
                except BaseException:
                    sender.stop()
                    raise
                # Not stopped here: the other thread waits for it, and it ends by itself in some seconds.
                return [told.result()]

        out = here.folder / "load"
        to_do = steps.of(chosen, Place(endpoint=here.listen), out, may_delete=True)
        asks = functools.partial(targets.named(chosen.target.name).ask, here.http)
        steps.carry_out(to_do, asks, send, lambda _: contextlib.nullcontext(), out)
        sent = RunFolder(here.folder).samples().whole()
        pauses = gclog.parse((logs / "gc.log").read_text().splitlines()).pauses
    if not pauses:
        raise SystemExit("the GC log has no pause")
    return {side: [seen(sent, pauses, one) for one in those] for side, those in looks.items()}


def look(
    jvm: Attached,
    chosen: Sequence[str],
    folder: Path,
    rounds: int,
    seconds: int,
    looks: Mapping[str, list[Look]],
) -> None:
    """Each round's two looks at the server under load."""
    time.sleep(WARM_UP_S)
    for number in range(rounds):
        for side in sorted(looks, reverse=bool(number % 2)):
            raw = folder / f"raw-{number}-{side}"
            raw.mkdir()
            vantage = vantage_module.AttachedTo(jvm)
            watching = (
                contextlib.nullcontext() if side == "without" else vantage.watch(probes.chosen(chosen), [raw], 600)
            )
            with watching:
                time.sleep(SETTLE_S)
                start_ns, before_s = time.monotonic_ns(), cpu_seconds(jvm.pid)
                time.sleep(seconds)
                looks[side].append(Look(start_ns, seconds, cpu_seconds(jvm.pid) - before_s))
            if side == "with" and not (raw / "recording.jfr").stat().st_size:
                raise SystemExit("the probes left no recording")
            time.sleep(SETTLE_S)


def seen(sent: sample_columns.Samples, pauses: Sequence[gclog.LogPause], looked: Look) -> Seen:
    """Return the documents that were acknowledged in that time, and the pauses that ended in it."""
    documents = float(sample_columns.acked_per_second(sent, looked.start_ns, looked.seconds).sum())
    realtime_ns = time.time_ns() - time.monotonic_ns()
    within = [
        pause.duration_ns / 1e6 for pause in pauses if looked.start_ns <= pause.end_ns - realtime_ns < looked.end_ns
    ]
    return Seen(documents, looked.seconds, looked.cpu_s, statistics.fmean(within) if within else None)


def cpu_seconds(pid: int) -> float:
    """User and system time of all threads of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def ratio(without: Sequence[float], those_with: Sequence[float]) -> Ratio:
    """The median of the rounds' own ratios, and its interval by the sign test: a large merge meets single rounds."""
    found = sorted(other / one for one, other in zip(without, those_with, strict=True))
    rounds, tail = len(found), 0.0
    for at in range(rounds // 2):
        tail += math.comb(rounds, at) / 2**rounds
        if 2 * tail > 1 - CONFIDENCE:
            break
    else:
        at = rounds // 2
    low, high = (found[at - 1], found[rounds - at]) if at else (0.0, math.inf)
    return Ratio(statistics.median(found), low, high)


def table(found: Mapping[str, Mapping[str, Sequence[Seen]]], chosen_probes: str) -> tuple[str, Verdict]:
    """Markdown, and which promises it keeps."""
    head = ("server", chosen_probes, "documents/s, median (range)", "CPU s per million documents")
    lines = [f"| {' | '.join(head)} | ratio ({CONFIDENCE:.0%}) |", "|---|---|---|---|---|"]
    said, verdict = [], Verdict()
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
        paused = [
            (one.pause_ms, other.pause_ms)
            for one, other in zip(sides["without"], sides["with"], strict=True)
            if one.pause_ms is not None and other.pause_ms is not None
        ]
        if paused:
            lengths = ratio([one for one, _ in paused], [other for _, other in paused])
            without, those_with = (statistics.median(side) for side in zip(*paused, strict=True))
            said.append(
                f"{target}: mean GC pause of a round: {without:.2f} ms without, {those_with:.2f} ms with the "
                f"probes; ratio {lengths} in {len(paused)} rounds"
            )
        if (limit := PROMISED.get(target)) is not None:
            judged = f"CPU on {target} {cost}, promised at most {limit:g}"
            verdict.judge(judged, (cost.low, cost.high), (-math.inf, limit))
    return "\n".join([*lines, *said]), verdict


def _middle(values: Sequence[float], form: str) -> str:
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--probes", default=PROBES)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--targets", default="opensearch,sink")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    watching = chosen.probes.split(",")
    found = {target: measure(target, watching, chosen.rounds, chosen.seconds) for target in chosen.targets.split(",")}
    text, verdict = table(found, chosen.probes)
    print(text)
    if chosen.out is not None:
        chosen.out.write_text(json.dumps(found, default=dataclasses.asdict, indent=1))
    return verdict.told()


if __name__ == "__main__":
    sys.exit(main())
