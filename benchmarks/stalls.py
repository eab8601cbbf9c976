"""Attribution of injected stalls on a running sink and OpenSearch: each detected stall is judged.

    python benchmarks/stalls.py [--seed 14] [--share 1] [--out FOLDER]

Each run has about a dozen stalls of 0.4 to 2 s at random times, some of which overlap: faults, a load generator that is
stopped by a signal, a lock in the sink, a sink that does not read while large bodies arrive (its receive window is full
then). Each detected stall is judged twice: by all causes, and without the records of our own faults, by the probes
alone. It is right if each named cause is one of the injected stall or of its symptoms (CAUSES); wrong if any is not;
otherwise unexplained. A stall at a time without an injection is the machine's own: its cause is unknown, but not a
fault.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import psutil
from lab import write_csv

from ingest_bench.inputs import files
from ingest_bench.lab import evaluation
from ingest_bench.model.results import Stall, Summary
from ingest_bench.results import layout

S = 10**9
WARM_UP_S, MEASURE_S = 5, 70
GENERATOR, LOCK, UNREAD = "generator stopped", "lock in the sink", "zero window"
# Time after its end during which an injected stall has effects: TCP doubles its wait before it sends again.
AFTER_S = 1.0
NETWORK = ("partition", "throttle", "profile")
# A node blocked by another fault would not be affected by these, and then its run fails.
ALONE = ("quota", "slow-disk", "slow-fsync", "neighbours")
_NET = ("packets lost on the network", "receive window was full", "send buffer was full")
# A thread without CPU or disk holds what others wait for.
_HELD = ("a thread waited for a lock", "a thread waited for another one")
_CPU = ("held back by its CPU quota", "waiting for a CPU", "CPUs saturated", *_HELD)
_DISK = (
    *("a file was forced to disk", "a write to a file was slow", "waiting for a disk", "the translog was synced"),
    *_HELD,
)
# Symptoms of each kind in addition to its own record: parts of the names of causes.
CAUSES: dict[str, tuple[str, ...]] = {
    "pause": ("server process stopped", "receive window was full", "send buffer was full"),
    "gc": ("garbage collection", "JVM operation", "slow to reach a safepoint"),
    "quota": (*_CPU, "fault cpu", "receive window was full", "send buffer was full"),
    "neighbours": (*_CPU, "fault cpu", "the load generator stood still"),
    "partition": _NET,
    "throttle": _NET,
    "profile": _NET,
    "slow-fsync": _DISK,
    "slow-disk": _DISK,
    GENERATOR: ("the load generator stood still", "the load's receive window was full"),
    LOCK: ("a thread waited for a lock", "receive window was full", "send buffer was full"),
    UNREAD: ("receive window was full", "send buffer was full"),
}
KEYS = {
    "quota": (("kind", "cpu"), ("cores", 0.02)),
    "neighbours": (("kind", "cpu"), ("neighbours", 24)),
    "throttle": (("kind", "throttle"), ("rate", "100kbit")),
    "profile": (("kind", "profile"), ("profile", "lossy.toml")),
    "slow-fsync": (("kind", "slow-fsync"), ("delay", "{length}")),
    "slow-disk": (("kind", "slow-disk"), ("rate", "200kbit")),
}
# Lines that a sink prints with start and end.
_OF_SINK = {"lock": LOCK, "stall": UNREAD}
RESULTS = ("named right", "unexplained", "named wrong")


@dataclass(frozen=True, slots=True)
class Setup:
    """One kind of run: target, load, kinds of injections, and number of runs."""

    target: str
    kinds: tuple[str, ...]
    runs: int
    load: str
    setting: str = ""
    """More TOML lines of the target."""
    netem: str = "auto"


SINK = 'users = 4\nbulk_documents = 100\narrivals = "100/s"'
# More than a receive window holds.
LARGE = 'users = 4\nbulk_documents = 8000\narrivals = "4/s"'
OPENSEARCH = "users = 2\nbulk_documents = 50"
# Lucene flushes when this is full, or when the index is refreshed (UNREFRESHED): stalls of seconds that were not
# injected.
UNFLUSHED = '[target.setting]\n"indices.memory.index_buffer_size" = "1gb"\n'
UNREFRESHED = ('"index.refresh_interval" = "30s"', '"index.refresh_interval" = "-1"')
SETUPS = (
    Setup("sink", ("pause", "partition", "quota", "throttle", "neighbours", GENERATOR), 8, SINK),
    Setup(
        "sink",
        (GENERATOR,),
        2,
        SINK,
        '[target.setting]\n"sink.lock" = "{lock}s"\n"sink.lock_after" = "{after}s"\n"sink.lock_every" = "{every}s"\n',
    ),
    Setup(
        "opensearch",
        ("pause", "partition", "quota", "slow-fsync", "slow-disk", "neighbours", GENERATOR),
        6,
        OPENSEARCH,
        UNFLUSHED,
    ),
    # The collector with the longest pauses.
    Setup("opensearch", ("gc", "pause", "slow-fsync"), 3, OPENSEARCH, 'gc = "serial"\n' + UNFLUSHED),
    Setup("sink", ("profile",), 1, SINK, netem="uml"),
    Setup(
        "sink",
        (),
        2,
        LARGE,
        'socket_receive_buffer = "64KiB"\n[target.setting]\n"sink.threads" = "1"\n'
        '"sink.stall" = "{lock}s"\n"sink.stall_after" = "{after}s"\n'
        '"sink.stall_every" = "{every}s"\n',
    ),
)


@dataclass(frozen=True, slots=True)
class Injected:
    """One injected stall (CLOCK_REALTIME)."""

    kind: str
    start_ns: int
    end_ns: int

    def matches(self, stall: Stall) -> bool:
        """Return True if it overlaps the stall by half of the shorter one, or if the stall follows and names it."""
        after_ns = AFTER_S * S + (2 * (self.end_ns - self.start_ns) if self.kind in NETWORK else 0)
        common_ns = min(stall.end_ns, self.end_ns + after_ns) - max(stall.start_ns, self.start_ns)
        if common_ns <= 0:
            return False
        shorter_ns = min(stall.end_ns - stall.start_ns, self.end_ns - self.start_ns)
        overlaps = min(stall.end_ns, self.end_ns) - max(stall.start_ns, self.start_ns) >= shorter_ns / 2
        return overlaps or (bool(stall.causes) and all(self.explains(cause.cause) for cause in stall.causes))

    def explains(self, cause: str) -> bool:
        """Return True if the cause is this injection or one of its symptoms."""
        return cause == f"fault {self.kind}" or any(part in cause for part in CAUSES[self.kind])


@dataclass(slots=True)
class Plan:
    """The injections of one run: (kind, at, length) in seconds from the start of the measurement."""

    setup: Setup
    seed: int
    events: list[tuple[str, float, float]] = field(default_factory=list)

    @classmethod
    def draw(cls, setup: Setup, seed: int) -> Plan:
        """Draw random times."""
        plan, rng = cls(setup, seed), random.Random(seed)  # noqa: S311 - times of faults
        at_s = rng.uniform(2, 4)
        while setup.kinds and at_s < MEASURE_S - 6:
            length_s, kind = rng.uniform(0.4, 2), rng.choice(setup.kinds)
            plan.events.append((kind, at_s, length_s))
            others = [] if kind in ALONE else [other for other in setup.kinds if other not in (kind, *ALONE)]
            end_s = at_s + length_s
            if others and rng.random() < 0.2:
                second = (rng.choice(others), at_s + rng.uniform(0, length_s), rng.uniform(0.4, 2))
                plan.events.append(second)
                end_s = max(end_s, second[1] + second[2])
            after_s = 2 * length_s if kind in NETWORK else 1
            at_s = end_s + after_s + rng.uniform(1.5, 3.5)
        return plan

    def to_toml(self) -> str:
        """Return the experiment."""
        rng = random.Random(self.seed)  # noqa: S311
        lock = {"lock": f"{rng.uniform(0.5, 1.5):.2f}", "after": f"{rng.uniform(6, 9):.2f}", "every": "6"}
        heap = "3g" if self.setup.target == "opensearch" else "512m"
        parts = [
            f'replicates = 1\nseed = {self.seed}\nprobes = ["reads", "gc", "stalls", "host"]\n',
            f'[target]\nname = "{self.setup.target}"\nheap = "{heap}"\n{self.setup.setting.format(**lock)}',
            f'[load]\nworkload = "unrefreshed.toml"\n{self.setup.load}\n',
            f'warm_up = "{WARM_UP_S}s"\nmeasure = "{MEASURE_S}s"\n',
            '[factors]\nnetwork = ["ethernet"]\n',
        ]
        for kind, at_s, length_s in self.events:
            if kind == GENERATOR:
                continue
            keys = dict(KEYS.get(kind, (("kind", kind),)))
            keys["at"] = f"{at_s * 1000:.0f}ms"
            if kind != "gc":
                keys["for"] = f"{length_s * 1000:.0f}ms"
            values = {
                key: json.dumps(value.format(length=keys.get("for")) if isinstance(value, str) else value)
                for key, value in keys.items()
            }
            parts.append("\n".join(("[[fault]]", *(f"{key} = {value}" for key, value in values.items()), "")))
        return "\n".join(parts)


def execute(plan: Plan, folder: Path) -> tuple[Path, list[Injected]]:
    """Execute a run; return its results and the injections of this driver."""
    file = folder / f"{plan.setup.target}-{plan.seed}.toml"
    file.write_text(plan.to_toml())
    wifi = (files.data_folder("netem") / "lossy-wifi.toml").read_text(encoding="utf-8")
    (folder / "lossy.toml").write_text(re.sub(r"loss_gemodel = .*", 'loss_gemodel = ["20%", "20%"]', wifi))
    workload = (files.data_folder("workloads") / "nyc_taxis.toml").read_text(encoding="utf-8")
    assert UNREFRESHED[0] in workload  # noqa: S101 - otherwise the index would be refreshed
    (folder / "unrefreshed.toml").write_text(workload.replace(*UNREFRESHED))
    results = folder / file.stem
    command = str(Path(sys.executable).with_name("ingest-bench"))
    argv = (command, "run", str(file), "--out", str(results), "--netem", plan.setup.netem)
    with (folder / f"{file.stem}.log").open("wb") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log, cwd=folder)
        injected: list[Injected] = []
        driver = threading.Thread(target=stop_generator, args=(process, plan, results, injected), daemon=True)
        driver.start()
        process.wait()
        driver.join()
    if not injected and any(kind == GENERATOR for kind, _, _ in plan.events):
        raise SystemExit(f"{results}: no load worker was found that could be stopped")
    # Next to the results, so that these can be judged again.
    results.with_suffix(".done.json").write_text(json.dumps([dataclasses.astuple(stall) for stall in injected]))
    folders = sorted(path.parent for path in results.rglob("plan.json"))
    if not folders:
        raise SystemExit((folder / f"{file.stem}.log").read_text()[-2000:])
    return folders[0], injected


def stop_generator(process: subprocess.Popen[bytes], plan: Plan, results: Path, injected: list[Injected]) -> None:
    """Send SIGSTOP and SIGCONT to the load workers at the planned times."""
    while process.poll() is None and not any(file.stat().st_size for file in results.rglob("samples-*.bin")):
        time.sleep(0.02)
    started_s = time.monotonic() + WARM_UP_S
    for at_s, length_s in sorted(event[1:] for event in plan.events if event[0] == GENERATOR):
        time.sleep(max(0.0, started_s + at_s - time.monotonic()))
        if process.poll() is not None:
            return
        children = psutil.Process(process.pid).children(recursive=True)
        pids = []
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                if "ingest_bench.load.worker" in child.cmdline():
                    pids.append(child.pid)
        start_ns = time.time_ns()
        try:
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            time.sleep(length_s)
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
        if pids:
            injected.append(Injected(GENERATOR, start_ns, time.time_ns()))


def judge_run(path: Path, by_driver: Sequence[Injected]) -> Iterator[dict[str, str]]:
    """Yield a row for each injected stall and each detected one without an injection."""
    results = layout.open_results(path)
    (run,) = results.plan.runs
    folder = results.run_folder(run)
    record = folder.read_record()
    assert record is not None  # noqa: S101 - it ran
    if record.state != "measured":
        # Not judged: some of its faults may never have ended.
        print(f"{path}: {record.state}: {record.reason}")
        return
    injected = list(by_driver)
    planned = sorted(run.cell.faults, key=lambda fault: fault.at_ns)
    for happened, fault in zip(sorted(record.faults, key=lambda fault: fault.start_ns), planned, strict=False):
        kind = happened.kind if happened.kind != "cpu" else "quota" if fault.cores is not None else "neighbours"
        injected.append(Injected(kind, happened.start_ns, happened.end_ns or happened.start_ns))
    log = folder.log.read_text(errors="replace")
    for kind, *times in re.findall(r"^sink\.(lock|stall) (\S+) (\S+)$", log, re.MULTILINE):
        start_ns, end_ns = (round(datetime.fromisoformat(at).timestamp() * S) for at in times)
        injected.append(Injected(_OF_SINK[kind], start_ns, end_ns))
    start_ns, end_ns = record.measure_start_realtime_ns or 0, record.measure_end_realtime_ns or 0
    injected = [stall for stall in injected if start_ns < stall.start_ns and stall.end_ns < end_ns]
    if not injected:
        return
    for by, faults in (("all causes", record.faults), ("probes alone", ())):
        judged = evaluation.summarise_run(results.plan, run, folder, dataclasses.replace(record, faults=faults))
        yield from judge_stalls(judged, injected, {"by": by})


def judge_stalls(summary: Summary, injected: Sequence[Injected], labels: dict[str, str]) -> Iterator[dict[str, str]]:
    """Yield the rows of one summary."""
    start_ns = summary.measure_start_ns or 0
    matched: set[Injected] = set()
    for stall in summary.stalls:
        matches = [candidate for candidate in injected if candidate.matches(stall)]
        matched.update(matches)
        yield labels | {
            "injected": " + ".join(sorted({match.kind for match in matches})) or "nothing",
            "start_s": f"{(stall.start_ns - start_ns) / S:.2f}",
            "length_s": f"{(stall.end_ns - stall.start_ns) / S:.2f}",
            "result": judge_stall(stall, matches),
            "causes": "; ".join(f"{cause.cause} {cause.thread}".strip() for cause in stall.causes),
            "undecided": "; ".join(f"{cause.cause} ({cause.reason})" for cause in stall.undecided[:6]),
            "ruled_out": "; ".join(f"{cause.cause} ({cause.reason})" for cause in stall.ruled_out if cause.reason),
        }
    for missed in injected:
        if missed not in matched:
            yield labels | {
                **dict.fromkeys(("causes", "undecided", "ruled_out"), ""),
                "injected": missed.kind,
                "start_s": f"{(missed.start_ns - start_ns) / S:.2f}",
                "length_s": f"{(missed.end_ns - missed.start_ns) / S:.2f}",
                "result": "no stall",
            }


def judge_stall(stall: Stall, matches: Sequence[Injected]) -> str:
    """Return one of RESULTS; "its own" for a stall without an injection that no fault is blamed for."""
    if not matches:
        if any(cause.cause.startswith("fault") for cause in stall.causes):
            return "named wrong"
        return "its own" if stall.causes else "unexplained"
    if not stall.causes:
        return "unexplained"
    is_right = all(any(match.explains(cause.cause) for match in matches) for cause in stall.causes)
    return "named right" if is_right else "named wrong"


def format_table(rows: Sequence[dict[str, str]]) -> str:
    """Return the results by injection as Markdown."""
    heads = (*RESULTS, "no stall", "its own")
    lines = [f"| injected | target | by | {' | '.join(heads)} |", "|---" * (3 + len(heads)) + "|"]
    for by in ("all causes", "probes alone"):
        groups: dict[tuple[str, str], Counter[str]] = {}
        for row in rows:
            if row["by"] == by:
                group = "two that overlap" if "+" in row["injected"] else row["injected"]
                groups.setdefault((group, row["target"]), Counter())[row["result"]] += 1
        total: Counter[str] = Counter()
        for (kind, target), counts in sorted(groups.items()):
            lines.append(f"| {kind} | {target} | {by} | " + " | ".join(str(counts[head]) for head in heads) + " |")
            if kind != "nothing":
                total.update(counts)
        lines.append(f"| **all injected** | both | {by} | " + " | ".join(str(total[head]) for head in heads) + " |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=14)
    parser.add_argument("--share", type=float, default=1, help="fraction of the runs, such as 0.2")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    folder = options.out or Path(tempfile.mkdtemp(prefix="stalls-", dir="/var/tmp"))
    folder.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, str]] = []
    for index, setup in enumerate(SETUPS):
        for number in range(max(1, round(setup.runs * options.share))):
            seed = options.seed * 1000 + index * 100 + number
            labels = {"run": str(seed), "target": setup.target}
            rows += [labels | row for row in judge_run(*execute(Plan.draw(setup, seed), folder))]
            print(format_table(rows), flush=True)
    write_csv(folder / "stalls.csv", rows)
    (folder / "stalls.md").write_text(format_table(rows) + "\n")
    by_all = [row for row in rows if row["by"] == "all causes"]
    hits = [row for row in by_all if row["injected"] != "nothing" and row["result"] != "no stall"]
    right = sum(row["result"] == "named right" for row in hits)
    wrong = sum(row["result"] == "named wrong" for row in by_all)
    print(f"\n{len(hits)} injected stalls: {right} named right ({right / max(len(hits), 1):.0%}), {wrong} named wrong")
    return 0 if wrong == 0 and right >= 0.95 * len(hits) else 1


if __name__ == "__main__":
    sys.exit(main())
