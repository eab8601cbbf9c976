"""What a worker on another machine costs the one that measures: the master's CPU and memory, and how well they start.

    python benchmarks/fleet.py [--workers 200] [--seconds 10]

So many workers join over TCP on loopback, one request a second each, against the sink: a quarter of them, half, and
all. They are processes of their own, forked from one that has imported what they need, as Locust's `--processes` does.
What a worker more costs is the slope between a quarter and all; it is written down for 1,000, too. Promised: each
begins within 20 ms of the others, each is heard, and every document is counted.

    The workers of this benchmark share the machine with the master. One that wakes late for that is not the fleet's
    doing, so a late start is no verdict on a machine that is busy.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from lab import PATH, WORKLOAD, Verdict, busy_share

from ingest_bench import targets
from ingest_bench.inputs.rates import parse_arrivals
from ingest_bench.jvm.process import Launch, serve
from ingest_bench.load import supervisor
from ingest_bench.load.fleet import json_child, keys, roster
from ingest_bench.load.fleet.roster import Remote
from ingest_bench.load.plan import LoadPlan
from ingest_bench.load.supervisor import Progress
from ingest_bench.model.load import LoadOptions, Wire
from ingest_bench.model.samples import SAMPLE
from ingest_bench.model.target import Endpoint, TargetOptions
from ingest_bench.targets.http import Http, ask

WITHIN_MS = 20.0
HEARD_S = 2.5
EXTRAPOLATED = 1000
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """What was measured of one."""

    workers: int
    joined_s: float
    """From the first to the last worker's arrival, their own start included."""
    spread_ms: float
    """Between the most and the least that a worker's first request was late, by the one clock of this machine."""
    silence_s: float
    master_cpu: float
    """While it sends, as a share of a core."""
    run_cpu: float
    """Of the process that measures, too."""
    master_mib: float
    """The most that the master ever had."""
    fetched_s: float
    """From the last answer to all samples on our disk."""
    acked: int
    counted: int


@contextlib.contextmanager
def sink(folder: Path) -> Iterator[tuple[Endpoint, Http]]:
    """One on loopback."""
    target, listen = targets.named("sink"), Endpoint("127.0.0.1", free_port())
    options = TargetOptions(name="sink", heap_bytes=256 << 20)
    plan = target.launch_plan(options, targets.fetch(target.requirements(options)), folder / "home", 0, (listen,), ())
    with ask(tuple, listen) as http:
        launch = Launch(
            plan=plan,
            enter=tuple,
            log=folder / "server.log",
            listen=listen,
            ready=lambda left_s: target.is_ready(0, (http.within(left_s),)),
        )
        with serve(launch):
            yield listen, http


def measured(workers: int, seconds: float, folder: Path, listen: Endpoint, http: Http) -> Fleet:
    """One load of so many workers."""
    folder.mkdir()
    run, *_ = keys.write_new(folder / "keys", workers)
    bind = Endpoint("127.0.0.1", free_port())
    before = count(http)
    argv = (sys.executable, __file__, "--as-workers", str(bind.port), str(folder), str(workers))
    marks: list[tuple[str, float, float, float]] = []
    began = time.monotonic()
    with (
        (folder / "workers.log").open("wb") as log,
        subprocess.Popen(argv, stdout=log, stderr=log) as forker,
        contextlib.ExitStack() as stack,
    ):
        stack.callback(forker.terminate)
        remote = Remote(bind=bind, workers=workers, keys=keys.read_run(run))
        with roster.joined(remote, lambda _: None) as fleet:
            joined_s = time.monotonic() - began
            master = child_of_ours("ingest_bench.load.fleet.master")

            def mark(progress: Progress) -> None:
                marks.append((progress.phase, time.monotonic(), cpu_s(master), cpu_s(os.getpid())))

            # Synthetic documents take a second of CPU in each worker before it is ready.
            documents = folder / "documents.json"
            documents.write_text("".join(f'{{"n":{number}}}\n' for number in range(20 * workers)))
            options = LoadOptions(
                documents=str(documents),
                users=workers,
                bulk_documents=10,
                arrivals=parse_arrivals(f"{workers}/s"),
                warm_up_ns=0,
                measure_ns=round(seconds * 1e9),
            )
            plan = LoadPlan(
                address=listen,
                wire=Wire(keys={"path": PATH}),
                workload=WORKLOAD,
                options=options,
                out=folder / "out",
                pool_bytes=10**5,
            )
            report = supervisor.start(plan, fleet=fleet).wait(mark)
            fetched_s = time.monotonic() - marks[-1][1]
            master_mib = peak_mib(master)
        stack.pop_all()
        forker.wait(60)
    sending = [each for each in marks if each[0] == "measure"]
    lasted_s = sending[-1][1] - sending[0][1]
    samples = [np.fromfile(plan.out / f"samples-{number}.bin", dtype=SAMPLE) for number in range(workers)]
    firsts = [each[np.argmin(each["planned_ns"])] for each in samples]
    # All have one clock here: by how much it was taken to be ahead, by so much a worker began too late.
    errors_ns = {clock.worker: clock.before_ns for clock in report.clock_offsets}
    late_ms = [
        float(first["sent_ns"] - first["planned_ns"] + errors_ns[number]) / 1e6 for number, first in enumerate(firsts)
    ]
    return Fleet(
        workers=workers,
        joined_s=joined_s,
        spread_ms=max(late_ms) - min(late_ms),
        silence_s=report.longest_silence_ns / 1e9,
        master_cpu=(sending[-1][2] - sending[0][2]) / lasted_s,
        run_cpu=(sending[-1][3] - sending[0][3]) / lasted_s,
        master_mib=master_mib,
        fetched_s=fetched_s,
        acked=int(sum(each["documents_acked"].sum() for each in samples)),
        counted=count(http) - before,
    )


def be_workers(port: int, folder: Path, count: int) -> None:
    """A process that forks the workers and waits for them. They end with it."""
    from ingest_bench.load.fleet import fleet_worker  # noqa: PLC0415 - with it comes Locust, which patches everything
    from ingest_bench.protocols.http1 import http_user  # noqa: PLC0415, F401 - as each worker would do when it prepares

    gc.collect()
    gc.freeze()
    for number in range(1, count + 1):
        own = folder / f"worker-{number}"
        own.mkdir()
        own_keys = keys.read_worker(folder / "keys" / f"worker-{number}.key")
        setup = json_child.worker_setup(
            {"host": "127.0.0.1", "port": port},
            own_keys,
            patience_s=300.0,
            machine=f"machine-{number}",
            folder=str(own),
        )
        reading, writing = os.pipe()
        os.write(writing, json.dumps(setup).encode() + b"\n")
        os.close(writing)
        if os.fork() == 0:
            os.dup2(reading, 0)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            fleet_worker.main()
        os.close(reading)
    for _ in range(count):
        os.wait()


def free_port() -> int:
    """One of loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def count(http: Http) -> int:
    """The documents that the sink took so far."""
    return int(http.expect("GET", "/_count")["count"])


def child_of_ours(module: str) -> int:
    """The pid of our own child that runs this module."""
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == os.getpid() and module in (path / "cmdline").read_text().split("\0"):
                return int(path.name)
    raise SystemExit(f"no child of ours runs {module}")


def cpu_s(pid: int) -> float:
    """The CPU time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def peak_mib(pid: int) -> float:
    """The most memory that a process ever had."""
    (line,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def table(found: Sequence[Fleet]) -> str:
    """Markdown: what was measured, and a line for 1,000 workers, as far as it grows evenly."""
    heads = ("workers", "joined, s", "start, ms", "silence, s", "master, core", "run, core", "master, MiB")
    lines = [f"| {' | '.join((*heads, 'fetched, s', 'acked', 'counted'))} |", "|---" * (len(heads) + 3) + "|"]
    for one in found:
        values = (one.joined_s, one.spread_ms, one.silence_s, one.master_cpu, one.run_cpu, one.master_mib)
        shown = (f"{value:.3f}" if value < 1 else f"{value:.1f}" for value in (*values, one.fetched_s))
        lines.append(f"| {one.workers} | {' | '.join(shown)} | {one.acked:,} | {one.counted:,} |")
    few, many = found[0], found[-1]
    more = many.workers - few.workers

    def at(name: str) -> tuple[float, float]:
        each = (getattr(many, name) - getattr(few, name)) / more
        return each, getattr(many, name) + each * (EXTRAPOLATED - many.workers)

    (cpu, cpu_then), (run, run_then), (mib, mib_then) = at("master_cpu"), at("run_cpu"), at("master_mib")
    return "\n".join(
        [
            *lines,
            "",
            f"A worker more: {cpu:.2%} of a core and {mib:.2f} MiB of the master, {run:.2%} of a core of `run`.",
            f"For {EXTRAPOLATED:,}: {cpu_then:.1f} cores and {mib_then:.0f} MiB of it, {run_then:.1f} cores of `run`.",
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workers", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=10)
    chosen = parser.parse_args()
    found: list[Fleet] = []
    verdict = Verdict()
    busy = busy_share()
    with tempfile.TemporaryDirectory(prefix="bench-") as text, sink(Path(text)) as (listen, http):
        for workers in (chosen.workers // 4, chosen.workers // 2, chosen.workers):
            found.append(measured(workers, chosen.seconds, Path(text) / str(workers), listen, http))
            judge(found[-1], verdict, is_busy=busy > 0.1)
    print(table(found))
    return verdict.told()


def judge(one: Fleet, verdict: Verdict, *, is_busy: bool) -> None:
    """Whether it kept what is promised."""
    if one.acked != one.counted or not one.acked:
        verdict.missed.append(f"{one.workers} workers: {one.acked:,} acknowledged, {one.counted:,} counted")
    for said, value, most in (
        (f"{one.workers} workers began within {one.spread_ms:.1f} ms of each other", one.spread_ms, WITHIN_MS),
        (f"{one.workers} workers: one was not heard for {one.silence_s:.1f} s", one.silence_s, HEARD_S),
    ):
        if value > most:
            (verdict.undecided if is_busy else verdict.missed).append(f"{said}, promised at most {most:g}")


if __name__ == "__main__":
    arguments: list[Any] = sys.argv[1:]
    if arguments[:1] == ["--as-workers"]:
        be_workers(int(arguments[1]), Path(arguments[2]), int(arguments[3]))
    else:
        sys.exit(main())
