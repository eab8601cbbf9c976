"""Whether stalls are named rightly: injected ones on a running sink and OpenSearch, each one that is found judged.

    python benchmarks/stalls.py [--seed 14] [--share 1] [--out FOLDER]

Each run has about a dozen stalls of 0.4 to 2 s at random moments, some of them with another one that overlaps: faults
of ours, a generator that is stopped by a signal, a lock in the sink, a sink that does not read while large bodies come
(its receive window is full then). What is found is judged twice: by all causes, and
without the records of our own faults, by what the probes saw alone. It is right when each cause that is named is one of
the injected stall, or how that shows (CAUSES); wrong when any is not; else unexplained. A stall at a moment at which
nothing was injected is the machine's own: nobody knows its cause, but that it was no fault.
"""

from __future__ import annotations

import argparse
import csv
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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from ingest_bench.inputs import data
from ingest_bench.lab import evaluation
from ingest_bench.model.results import Stall, Summary
from ingest_bench.results import layout

S = 10**9
WARM_UP_S, MEASURE_S = 5, 70
GENERATOR, LOCK, UNREAD = "generator stopped", "lock in the sink", "zero window"
# How long after its end an injected stall still has effects: TCP waits twice as long before it sends again.
AFTER_S = 1.0
NETWORK = ("partition", "throttle", "profile")
# A node that another fault keeps from working would not feel these, and then its run fails.
ALONE = ("quota", "slow-disk", "slow-fsync", "neighbours")
_NET = ("packets lost on the network", "receive window was full", "send buffer was full")
# A thread that has no CPU, or no disk, keeps what others wait for.
_HELD = ("a thread waited for a lock", "a thread waited for another one")
_CPU = ("held back by its CPU quota", "waiting for a CPU", "CPUs saturated", *_HELD)
_DISK = (
    *("a file was forced to disk", "a write to a file was slow", "waiting for a disk", "the translog was synced"),
    *_HELD,
)
# How each kind shows beside its own record: parts of the names of causes.
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
# What a sink prints when it is over, with both moments.
_OF_SINK = {"lock": LOCK, "stall": UNREAD}
RESULTS = ("named right", "unexplained", "named wrong")


@dataclass(frozen=True, slots=True)
class Setup:
    """One kind of run: what is sent where, what may be injected, and how many runs there are."""

    target: str
    kinds: tuple[str, ...]
    runs: int
    load: str
    setting: str = ""
    """More lines of the server: keys, and its settings."""
    netem: str = "auto"


SINK = 'users = 4\nbulk_documents = 100\narrivals = "100/s"'
# More than a receive window takes.
LARGE = 'users = 4\nbulk_documents = 8000\narrivals = "4/s"'
OPENSEARCH = "users = 2\nbulk_documents = 50"
# Lucene flushes of its own accord when this is full, or when the index is refreshed (UNREFRESHED): stalls of seconds
# that nobody injected.
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
    # Of the collectors this one has the longest pauses.
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
    """What was done to whom, on CLOCK_REALTIME."""

    kind: str
    start_ns: int
    end_ns: int

    def may_be(self, stall: Stall) -> bool:
        """Whether that stall may be its: they overlap by half of the shorter, or it follows and is called so."""
        after_ns = AFTER_S * S + (2 * (self.end_ns - self.start_ns) if self.kind in NETWORK else 0)
        common_ns = min(stall.end_ns, self.end_ns + after_ns) - max(stall.start_ns, self.start_ns)
        if common_ns <= 0:
            return False
        shorter_ns = min(stall.end_ns - stall.start_ns, self.end_ns - self.start_ns)
        own = min(stall.end_ns, self.end_ns) - max(stall.start_ns, self.start_ns) >= shorter_ns / 2
        return own or (bool(stall.causes) and all(self.shows_as(cause.cause) for cause in stall.causes))

    def shows_as(self, cause: str) -> bool:
        """Whether a cause is it."""
        return cause == f"fault {self.kind}" or any(part in cause for part in CAUSES[self.kind])


@dataclass(slots=True)
class Plan:
    """What is to happen in one run: (kind, at, length) in seconds from the measurement's beginning."""

    setup: Setup
    seed: int
    events: list[tuple[str, float, float]] = field(default_factory=list)

    @classmethod
    def drawn(cls, setup: Setup, seed: int) -> Plan:
        """At random moments."""
        plan, rng = cls(setup, seed), random.Random(seed)  # noqa: S311 - moments of faults
        at_s = rng.uniform(2, 4)
        while setup.kinds and at_s < MEASURE_S - 6:
            length_s, kind = rng.uniform(0.4, 2), rng.choice(setup.kinds)
            plan.events.append((kind, at_s, length_s))
            others = [] if kind in ALONE else [other for other in setup.kinds if other not in (kind, *ALONE)]
            end_s = at_s + length_s
            if others and rng.random() < 0.2:
                more = (rng.choice(others), at_s + rng.uniform(0, length_s), rng.uniform(0.4, 2))
                plan.events.append(more)
                end_s = max(end_s, more[1] + more[2])
            after_s = 2 * length_s if kind in NETWORK else 1
            at_s = end_s + after_s + rng.uniform(1.5, 3.5)
        return plan

    def text(self) -> str:
        """The experiment."""
        rng = random.Random(self.seed)  # noqa: S311
        lock = {"lock": f"{rng.uniform(0.5, 1.5):.2f}", "after": f"{rng.uniform(6, 9):.2f}", "every": "6"}
        setting = self.setup.setting.format(**lock) if self.setup.setting else ""
        heap = "3g" if self.setup.target == "opensearch" else "512m"
        parts = [
            f'replicates = 1\nseed = {self.seed}\nprobes = ["reads", "gc", "stalls", "host"]\n',
            f'[target]\nname = "{self.setup.target}"\nheap = "{heap}"\n{setting}',
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
            lines = (
                f'{key} = "{value.format(length=keys.get("for"))}"' if isinstance(value, str) else f"{key} = {value}"
                for key, value in keys.items()
            )
            parts.append("\n".join(("[[fault]]", *lines, "")))
        return "\n".join(parts)


def carried_out(plan: Plan, folder: Path) -> tuple[Path, list[Injected]]:
    """The results of such a run, and what the driver did itself."""
    file = folder / f"{plan.setup.target}-{plan.seed}.toml"
    file.write_text(plan.text())
    wifi = (data.folder("netem") / "lossy-wifi.toml").read_text(encoding="utf-8")
    (folder / "lossy.toml").write_text(re.sub(r"loss_gemodel = .*", 'loss_gemodel = ["20%", "20%"]', wifi))
    rides = (data.folder("workloads") / "nyc_taxis.toml").read_text(encoding="utf-8")
    assert UNREFRESHED[0] in rides  # noqa: S101 - else the index would be refreshed
    (folder / "unrefreshed.toml").write_text(rides.replace(*UNREFRESHED))
    out = folder / file.stem
    argv = (
        str(Path(sys.executable).with_name("ingest-bench")),
        "run",
        str(file),
        "--out",
        str(out),
        "--netem",
        plan.setup.netem,
    )
    with (folder / f"{file.stem}.log").open("wb") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log, cwd=folder)
        done: list[Injected] = []
        driver = threading.Thread(target=stop_generator, args=(process, plan, out, done), daemon=True)
        driver.start()
        process.wait()
        driver.join()
    if not done and any(kind == GENERATOR for kind, _, _ in plan.events):
        raise SystemExit(f"{out}: no load worker was found that could be stopped")
    # Beside the results, so that these can be judged again.
    out.with_suffix(".done.json").write_text(json.dumps([dataclasses.astuple(one) for one in done]))
    found = sorted(path.parent for path in out.rglob("plan.json"))
    if not found:
        raise SystemExit((folder / f"{file.stem}.log").read_text()[-2000:])
    return found[0], done


def stop_generator(process: subprocess.Popen[bytes], plan: Plan, out: Path, done: list[Injected]) -> None:
    """SIGSTOP and SIGCONT to the load's process at the planned moments."""
    while process.poll() is None and not any(file.stat().st_size for file in out.rglob("samples-*.bin")):
        time.sleep(0.02)
    begun = time.monotonic() + WARM_UP_S
    for _, at_s, length_s in sorted((event for event in plan.events if event[0] == GENERATOR), key=lambda one: one[1]):
        time.sleep(max(0.0, begun + at_s - time.monotonic()))
        if process.poll() is not None:
            return
        pids = [pid for pid, command in descendants(process.pid) if "load.fleet.fleet_worker" in command]
        start_ns = time.time_ns()
        try:
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            time.sleep(length_s)
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
        if pids:
            done.append(Injected(GENERATOR, start_ns, time.time_ns()))


def descendants(pid: int) -> Iterator[tuple[int, str]]:
    """The processes that it started, and those that these did, with their command lines."""
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, file.read_text().split()):
            try:
                yield child, Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            yield from descendants(child)


def injected(results: Path, done: Sequence[Injected]) -> list[Injected]:
    """Everything that was injected in the run of that folder."""
    opened = layout.open_results(results)
    (run,) = opened.plan.runs
    folder = opened.run(run)
    record = folder.record()
    assert record is not None  # noqa: S101 - it ran
    if record.state != "measured":
        # What it says is not judged: some of its faults may never have ended.
        print(f"{results}: {record.state}: {record.reason}")
        return []
    found = list(done)
    asked = sorted(run.cell.faults, key=lambda fault: fault.at_ns)
    for happened, fault in zip(sorted(record.faults, key=lambda one: one.started), asked, strict=False):
        kind = happened.kind
        if kind == "cpu":
            kind = "quota" if fault.cores is not None else "neighbours"
        found.append(Injected(kind, happened.started, happened.ended or happened.started))
    of_sink = re.findall(r"^sink\.(lock|stall) (\S+) (\S+)$", folder.log.read_text(errors="replace"), re.MULTILINE)
    for kind, *moments in of_sink:
        found.append(Injected(_OF_SINK[kind], *(round(datetime.fromisoformat(at).timestamp() * S) for at in moments)))
    start_ns, end_ns = record.measure_start_realtime_ns or 0, record.measure_end_realtime_ns or 0
    return [one for one in found if start_ns < one.start_ns and one.end_ns < end_ns]


def summaries(results: Path) -> Iterator[tuple[str, Summary]]:
    """The run as it is, and as it is without the records of its faults."""
    opened = layout.open_results(results)
    (run,) = opened.plan.runs
    record = opened.run(run).record()
    assert record is not None  # noqa: S101 - it ran
    yield "all causes", evaluation.run_summary(opened.plan, run, opened.run(run), record)
    yield (
        "probes alone",
        evaluation.run_summary(opened.plan, run, opened.run(run), dataclasses.replace(record, faults=())),
    )


def judged(stall: Stall, near: Sequence[Injected]) -> str:
    """One of RESULTS."""
    if not stall.causes:
        return "unexplained"
    right = all(any(one.shows_as(cause.cause) for one in near) for cause in stall.causes)
    return "named right" if right else "named wrong"


def rows(run: str, target: str, results: Path, done: Sequence[Injected]) -> Iterator[dict[str, object]]:
    """A row for each injected stall and each one that was found without."""
    put = injected(results, done)
    if not put:
        return
    for by, summary in summaries(results):
        start_ns = summary.measure_start_ns or 0
        hit: set[Injected] = set()
        for stall in summary.stalls:
            near = [one for one in put if one.may_be(stall)]
            hit.update(near)
            own = not near
            wrong = own and any(cause.cause.startswith("fault") for cause in stall.causes)
            yield {
                "run": run,
                "target": target,
                "by": by,
                "injected": " + ".join(sorted({one.kind for one in near})) or "nothing",
                "start_s": f"{(stall.start_ns - start_ns) / S:.2f}",
                "length_s": f"{(stall.end_ns - stall.start_ns) / S:.2f}",
                "result": ("named wrong" if wrong else "unexplained" if not stall.causes else "its own")
                if own
                else judged(stall, near),
                "causes": "; ".join(f"{one.cause} {one.thread}".strip() for one in stall.causes),
                "undecided": "; ".join(f"{one.cause} ({one.why})" for one in stall.undecided[:6]),
                "ruled_out": "; ".join(f"{one.cause} ({one.why})" for one in stall.ruled_out if one.why),
            }
        for one in put:
            if one not in hit:
                yield {
                    **dict.fromkeys(("causes", "undecided", "ruled_out"), ""),
                    "run": run,
                    "target": target,
                    "by": by,
                    "injected": one.kind,
                    "start_s": f"{(one.start_ns - start_ns) / S:.2f}",
                    "length_s": f"{(one.end_ns - one.start_ns) / S:.2f}",
                    "result": "no stall",
                }


def table(found: Sequence[dict[str, object]]) -> str:
    """Markdown: what was injected, by how it was named."""
    heads = (*RESULTS, "no stall", "its own")
    lines = [f"| injected | target | by | {' | '.join(heads)} |", "|---" * (3 + len(heads)) + "|"]
    for by in ("all causes", "probes alone"):
        groups: dict[tuple[str, str], Counter[str]] = {}
        for row in found:
            if row["by"] == by:
                kind = str(row["injected"])
                group = "two that overlap" if "+" in kind else kind
                groups.setdefault((group, str(row["target"])), Counter())[str(row["result"])] += 1
        for (kind, target), counts in sorted(groups.items()):
            lines.append(f"| {kind} | {target} | {by} | " + " | ".join(str(counts[head]) for head in heads) + " |")
        of_all: Counter[str] = Counter()
        for (kind, _), counts in groups.items():
            if kind != "nothing":
                of_all.update(counts)
        lines.append(f"| **all injected** | both | {by} | " + " | ".join(str(of_all[head]) for head in heads) + " |")
    return "\n".join(lines)


def score(found: Sequence[dict[str, object]], by: str) -> tuple[int, int, int]:
    """How many injected stalls were found, how many of them named right, and how many causes were named wrong."""
    mine = [row for row in found if row["by"] == by]
    hit = [row for row in mine if row["injected"] != "nothing" and row["result"] != "no stall"]
    right = sum(row["result"] == "named right" for row in hit)
    return len(hit), right, sum(row["result"] == "named wrong" for row in mine)


def main(
    argv: Sequence[str] | None = None, carry_out: Callable[[Plan, Path], tuple[Path, list[Injected]]] = carried_out
) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=14)
    parser.add_argument("--share", type=float, default=1, help="of the runs, such as 0.2")
    parser.add_argument("--only", default="", help="runs of these setups alone, such as 0,2")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args(argv)
    out = chosen.out or Path(tempfile.mkdtemp(prefix="stalls-", dir="/var/tmp"))
    out.mkdir(parents=True, exist_ok=True)
    only = {int(one) for one in chosen.only.split(",") if one} or set(range(len(SETUPS)))
    found: list[dict[str, object]] = []
    for place, setup in enumerate(SETUPS):
        if place not in only:
            continue
        for number in range(max(1, round(setup.runs * chosen.share))):
            seed = chosen.seed * 1000 + place * 100 + number
            results, done = carry_out(Plan.drawn(setup, seed), out)
            found += rows(str(seed), setup.target, results, done)
            print(table(found), flush=True)
    with (out / "stalls.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, found[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(found)
    (out / "stalls.md").write_text(table(found) + "\n")
    hit, right, wrong = score(found, "all causes")
    print(f"\n{hit} stalls by what was injected: {right} named right ({right / max(hit, 1):.0%}), {wrong} named wrong")
    return 0 if wrong == 0 and right >= 0.95 * hit else 1


if __name__ == "__main__":
    sys.exit(main())
