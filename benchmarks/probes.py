"""Cost of probes for a server: throughput, CPU and mean GC pause with and without them.

    python benchmarks/probes.py [--probes reads,gc,stalls] [--rounds 40] [--seconds 3] [--targets opensearch,sink]

One warm server under one continuous load. In each round the probes watch it for a while (with the recording and logs
of `run --attach`) and do not for as long; the order alternates, and the ratio is taken within the round, so that
drift of the server affects both. Rejected: a new server for each side. Eight such pairs differed by 10%, so they showed
nothing. OpenSearch flushes a small buffer repeatedly, and neither refreshes nor merges: with flushes and merges of
seconds, windows of 3 s differed tenfold, and 30 rounds showed nothing. CPU is user and system time of the JVM in the
window (/proc/PID/stat). Pauses are from a GC log that is always on, one line per pause.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import psutil
from lab import Server, Verdict, open_server
from scipy import stats

from ingest_bench import probes, system, targets
from ingest_bench.analysis.run import sample_columns
from ingest_bench.experiment import catalog
from ingest_bench.inputs import files
from ingest_bench.jvm.attach import AttachedJvm, launched
from ingest_bench.lab import planning
from ingest_bench.load import supervisor
from ingest_bench.load.plan import LoadPlan
from ingest_bench.model.experiment import Cell
from ingest_bench.model.load import LoadOptions
from ingest_bench.model.samples import WorkerReport
from ingest_bench.model.target import ServerAddress, TargetOptions
from ingest_bench.probes import gc_log, recording
from ingest_bench.probes.context import Probe, list_logs
from ingest_bench.probes.observer import watch_launched
from ingest_bench.results.layout import RunFolder

PROBES = "reads,gc,stalls"
# Limit of the project (docs/how-it-measures.md): ratio of CPU time with the probes to that without.
LIMITS = {"opensearch": 1.03}
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
# Until most of the server's code is compiled; around a switch; for the switch.
WARM_UP_S = 25.0
SETTLE_S = 0.5
SWITCH_S = 2.0


@dataclass(frozen=True, slots=True)
class Window:
    """A time span (CLOCK_MONOTONIC) and the server's activity in it."""

    start_ns: int
    seconds: int
    cpu_s: float
    documents: float = 0
    """Acknowledged documents."""
    pause_ms: float | None = None
    """Mean of the GC pauses; None without one."""

    @property
    def documents_per_s(self) -> float:
        """Acknowledged documents per second."""
        return self.documents / self.seconds

    @property
    def cpu_s_per_million(self) -> float:
        """The server's CPU time per million documents."""
        return self.cpu_s / self.documents * 1e6

    def with_load(self, samples: sample_columns.Samples, pauses: Sequence[gc_log.Pause]) -> Window:
        """Return the window with the documents acknowledged and the pauses ended in it."""
        documents = float(sample_columns.acked_per_second(samples, self.start_ns, self.seconds).sum())
        start_ns = self.start_ns + time.time_ns() - time.monotonic_ns()
        end_ns = start_ns + self.seconds * 10**9
        within = [pause.duration_ns / 1e6 for pause in pauses if start_ns <= pause.end_ns < end_ns]
        pause_ms = statistics.fmean(within) if within else None
        return dataclasses.replace(self, documents=documents, pause_ms=pause_ms)


@dataclass(frozen=True, slots=True)
class Ratio:
    """With probes divided by without: the median over rounds and its interval."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3f} ({self.low:.3f} to {self.high:.3f})"


def measure(target: str, probe_names: Sequence[str], rounds: int, seconds: int) -> dict[str, list[Window]]:
    """Return the windows of each round, without and with the probes."""
    with contextlib.ExitStack() as stack:
        toml = (files.data_folder("workloads") / "nyc_taxis.toml").read_text(encoding="utf-8")
        assert INDEX[0] in toml  # noqa: S101 - otherwise the index would be refreshed
        workload = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "unmerged.toml"
        workload.write_text(toml.replace(*INDEX))
        length_s = WARM_UP_S + 2 * rounds * (seconds + 2 * SETTLE_S + SWITCH_S)
        length_ns = round(length_s * 1e9)
        load = LoadOptions(workload=str(workload), users=4, bulk_documents=1000, warm_up_ns=0, measure_ns=length_ns)
        network = catalog.load_profile(NETWORK, {})
        cell = Cell(name=target, levels={}, network=network, target=SERVERS[target], load=load)
        # The server's user writes there.
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-gc-")))
        logs.chmod(0o777)
        log = f"-Xlog:gc=info:file={logs / 'gc.log'}:time,uptime,level,tags:filecount=0"
        server = stack.enter_context(open_server(dataclasses.replace(SERVERS[target], jvm=(log,)), NETWORK))
        windows: dict[str, list[Window]] = {"without": [], "with": []}

        def send(plans: Sequence[LoadPlan], _: Sequence[bool]) -> Sequence[WorkerReport]:
            running = supervisor.start_load(plans[0], server.link.client.command)
            with ThreadPoolExecutor(1) as waiting:
                # The probes' children must be started by this thread: they end with the thread that started them.
                report = waiting.submit(running.wait, lambda _: None)
                try:
                    watch_windows(server, probe_names, rounds, seconds, windows)
                except BaseException:
                    running.stop()
                    raise
                # Not stopped here: the other thread waits for its end in some seconds.
                return [report.result()]

        folder = server.folder / "load"
        steps = planning.build_procedure(cell, ServerAddress(endpoint=server.listen), folder, may_delete=True)
        request = functools.partial(targets.find_target(target).execute, server.http)
        planning.execute(steps, request, send, lambda _: contextlib.nullcontext(), folder)
        samples = RunFolder(server.folder).samples().load_all()
        pauses = gc_log.parse_gc_log((logs / "gc.log").read_text().splitlines()).pauses
    if not pauses:
        raise SystemExit("the GC log has no pause")
    return {side: [window.with_load(samples, pauses) for window in of_side] for side, of_side in windows.items()}


def watch_windows(
    server: Server, probe_names: Sequence[str], rounds: int, seconds: int, windows: Mapping[str, list[Window]]
) -> None:
    """Record both windows of each round while the server is under load."""
    jvm = launched(server.jvm_pid, server.java)
    time.sleep(WARM_UP_S)
    for number in range(rounds):
        for side in sorted(windows, reverse=bool(number % 2)):
            raw = server.folder / f"raw-{number}-{side}"
            raw.mkdir()
            selected = probes.select_probes(probe_names)
            with record(jvm, selected, server, raw) if side == "with" else contextlib.nullcontext():
                time.sleep(SETTLE_S)
                start_ns, before_s = time.monotonic_ns(), cpu_seconds(jvm.pid)
                time.sleep(seconds)
                windows[side].append(Window(start_ns, seconds, cpu_seconds(jvm.pid) - before_s))
            time.sleep(SETTLE_S)


@contextlib.contextmanager
def record(jvm: AttachedJvm, selected: Mapping[str, Probe], server: Server, raw: Path) -> Iterator[None]:
    """Let the probes watch the JVM. A server that we launched may write to its own folder only."""
    events = recording.merge_events(probe.events for probe in selected.values())
    settings, home = recording.settings_path(raw), server.folder / "home"
    settings.write_text(recording.format_settings(events, None), encoding="utf-8")
    logs, file = list_logs(selected), home / f"{raw.name}.jfr"
    system.run(jvm.jcmd_argv("JFR.start", f"name={raw.name}", f"settings={settings}", f"filename={file}"))
    for log in logs:
        system.run(jvm.jcmd_argv(*log.enable_command(home)))
    with watch_launched((jvm.pid,), selected, [raw]):
        yield
    for log in logs:
        system.run(jvm.jcmd_argv(*log.disable_command(home)))
    system.run(jvm.jcmd_argv("JFR.stop", f"name={raw.name}"))
    if not file.stat().st_size:
        raise SystemExit("the probes left no recording")


def cpu_seconds(pid: int) -> float:
    """Return user and system time of all threads of a process."""
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def ratio(without: Sequence[float], with_probes: Sequence[float]) -> Ratio:
    """Return the median of the rounds' ratios and its interval (sign test: large merges affect single rounds)."""
    ratios = sorted(after / before for before, after in zip(without, with_probes, strict=True))
    at = int(stats.binom.ppf((1 - CONFIDENCE) / 2, len(ratios), 0.5))
    low, high = (ratios[at - 1], ratios[-at]) if at else (0.0, math.inf)
    return Ratio(statistics.median(ratios), low, high)


def format_table(results: Mapping[str, Mapping[str, Sequence[Window]]], probe_names: str) -> tuple[str, Verdict]:
    """Return the costs as Markdown, and the verdict."""
    head = ("server", probe_names, "documents/s, median (range)", "CPU s per million documents")
    lines = [f"| {' | '.join(head)} | ratio ({CONFIDENCE:.0%}) |", "|---|---|---|---|---|"]
    texts, verdict = [], Verdict()
    for target, sides in results.items():
        cpu = {side: [window.cpu_s_per_million for window in windows] for side, windows in sides.items()}
        rates = {side: [window.documents_per_s for window in windows] for side, windows in sides.items()}
        cost = ratio(cpu["without"], cpu["with"])
        for side in sides:
            columns = (target, side, median_range(rates[side], ",.0f"), median_range(cpu[side], ".2f"))
            lines.append(f"| {' | '.join(columns)} | {cost if side == 'with' else ''} |")
        texts.append(f"{target}: throughput with the probes by without: {ratio(rates['without'], rates['with'])}")
        pauses = [
            (before.pause_ms, after.pause_ms)
            for before, after in zip(sides["without"], sides["with"], strict=True)
            if before.pause_ms is not None and after.pause_ms is not None
        ]
        if pauses:
            lengths = ratio(*zip(*pauses, strict=True))
            without_ms, with_ms = (statistics.median(side) for side in zip(*pauses, strict=True))
            texts.append(
                f"{target}: mean GC pause of a round: {without_ms:.2f} ms without, {with_ms:.2f} ms with the "
                f"probes; ratio {lengths} in {len(pauses)} rounds"
            )
        if (limit := LIMITS.get(target)) is not None:
            verdict.judge(f"CPU on {target} {cost}, limit {limit:g}", (cost.low, cost.high), (-math.inf, limit))
    return "\n".join([*lines, *texts]), verdict


def median_range(values: Sequence[float], form: str) -> str:
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--probes", default=PROBES)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--targets", default="opensearch,sink")
    options = parser.parse_args()
    names = options.probes.split(",")
    results = {target: measure(target, names, options.rounds, options.seconds) for target in options.targets.split(",")}
    text, verdict = format_table(results, options.probes)
    print(text)
    return verdict.print()


if __name__ == "__main__":
    sys.exit(main())
