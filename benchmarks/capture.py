"""What the last headers of a run cost (`raw/last-frames.pcap`): throughput and CPU with and without them.

    python benchmarks/capture.py [--rounds 20] [--seconds 3] [--networks unshaped,ethernet] [--out FILE.json]

One sink under one load that goes on, as in `probes.py`: in each round the headers are kept for a while and are not for
as long, which comes first alternates, and the ratio is taken within the round. CPU is that of the server, of the load's
processes (a frame that is sent is looked at in the sender's time), and of the capture itself, for a million documents.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import json
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import psutil
from lab import Verdict, served
from probes import cpu_seconds, ratio

from ingest_bench import targets
from ingest_bench.analysis.run import sample_columns
from ingest_bench.experiment import catalog
from ingest_bench.lab import steps, wires
from ingest_bench.load import supervisor
from ingest_bench.load.plan import LoadPlan
from ingest_bench.model.experiment import Cell
from ingest_bench.model.load import LoadOptions, WorkerReport
from ingest_bench.model.target import Place, TargetOptions
from ingest_bench.network.act.link import Link
from ingest_bench.network.measure import capture
from ingest_bench.results.run_folder import RunFolder

SINK = TargetOptions(name="sink", heap_bytes=512 << 20)
# What may be lost at most: this much of the throughput, or more of each CPU.
LEAST, MOST = 0.98, 1.02
WARM_UP_S, SETTLE_S, SWITCH_S = 8.0, 0.5, 4.0
# The load has begun to send.
SENT_BYTES = 1 << 20
SIDES = ("without", "with")


@dataclass(frozen=True, slots=True)
class Look:
    """A time (CLOCK_MONOTONIC), and CPU seconds in it."""

    start_ns: int
    seconds: int
    server_s: float
    load_s: float
    capture_s: float


@dataclass(frozen=True, slots=True)
class Seen:
    """What was done in such a time. CPU seconds are for a million documents; `all` is of all three."""

    docs_per_s: float
    server: float
    load: float
    all: float


def measure(network: str, rounds: int, seconds: int) -> dict[str, list[Seen]]:
    """What was seen in each round, without and with the headers."""
    length_s = 4 * WARM_UP_S + 2 * rounds * (seconds + 2 * SETTLE_S + SWITCH_S)
    options = LoadOptions(
        workload="nyc_taxis", users=4, bulk_documents=1000, warm_up_ns=0, measure_ns=round(length_s * 1e9)
    )
    cell = Cell(name="sink", levels={}, network=catalog.profile(network, {}), target=SINK, load=options)
    looks: dict[str, list[Look]] = {side: [] for side in SIDES}
    with served(SINK, network) as here:

        def send(plans: Sequence[LoadPlan], _: Sequence[bool]) -> Sequence[WorkerReport]:
            sender = supervisor.start(plans[0], here.link.client.command)
            with ThreadPoolExecutor(1) as waiting:
                # What is started in between must be started by this thread: it would end with another one.
                told = waiting.submit(sender.wait, lambda _: None)
                try:
                    # Its bodies are built first.
                    while here.http.expect("GET", "/_counters")["bytes_read"] < SENT_BYTES:
                        time.sleep(SETTLE_S)
                    time.sleep(WARM_UP_S)
                    for number in range(rounds):
                        for side in SIDES if number % 2 else reversed(SIDES):
                            path = here.folder / f"{number}.pcap"
                            looks[side].append(look(here.link, here.jvm_pid, seconds, path if side == "with" else None))
                finally:
                    sender.stop()
                return [told.result()]

        out = here.folder / "load"
        to_do = steps.of(cell, Place(endpoint=here.listen), out, may_delete=True)
        asks = functools.partial(targets.named("sink").ask, here.http)
        steps.carry_out(to_do, asks, send, lambda _: contextlib.nullcontext(), out)
        sent = RunFolder(here.folder).samples().whole()
    return {side: [seen(sent, one) for one in those] for side, those in looks.items()}


def look(link: Link, server: int, seconds: int, path: Path | None) -> Look:
    """One look at server, load and capture; the headers are kept meanwhile where a path is given."""
    end = link.ends[0]
    senders = [each.pid for each in psutil.Process().children(recursive=True) if "ingest_bench.load" in words(each)]
    with contextlib.ExitStack() as stack:
        kept = None
        if path is not None:
            enter = end.namespace.command
            kept = stack.enter_context(capture.capturing(enter, end.device, path, wires.MOST_BYTES, keeps_last=True))
        of_capture = [] if kept is None else [kept.child.pid]
        time.sleep(SETTLE_S)
        start_ns = time.monotonic_ns()
        before = [sum(map(cpu_seconds, pids)) for pids in ([server], senders, of_capture)]
        time.sleep(seconds)
        after = [sum(map(cpu_seconds, pids)) for pids in ([server], senders, of_capture)]
        if kept is not None and path is not None:
            kept.keep()
            if path.stat().st_size < 1000:
                raise SystemExit("the capture has no frames")
            path.unlink()
    time.sleep(SETTLE_S)
    return Look(start_ns, seconds, *(now - then for now, then in zip(after, before, strict=True)))


def words(process: psutil.Process) -> str:
    """Its command line; empty when it is gone."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def seen(sent: sample_columns.Samples, looked: Look) -> Seen:
    """Return the work done in that time: a document counts when it is acknowledged."""
    documents = float(sample_columns.acked_per_second(sent, looked.start_ns, looked.seconds).sum())
    server, sender, kept = (1e6 * each / documents for each in (looked.server_s, looked.load_s, looked.capture_s))
    return Seen(documents / looked.seconds, server, sender, server + sender + kept)


def table(found: Mapping[str, Mapping[str, Sequence[Seen]]]) -> tuple[str, Verdict]:
    """Markdown, and whether it costs more than it may."""
    lines = ["| network | what | without, median | with by without (95%) |", "|---|---|---|---|"]
    verdict = Verdict()
    for network, sides in found.items():
        for field in dataclasses.fields(Seen):
            without, those_with = ([float(getattr(one, field.name)) for one in sides[side]] for side in SIDES)
            cost = ratio(without, those_with)
            name = "documents/s" if field.name == "docs_per_s" else f"CPU s per million documents, {field.name}"
            lines.append(f"| {network} | {name} | {statistics.median(without):,.2f} | {cost} |")
            promised = (LEAST, float("inf")) if field.name == "docs_per_s" else (0.0, MOST)
            verdict.judge(f"{network}: {name} {cost}", (cost.low, cost.high), promised)
    return "\n".join(lines), verdict


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--networks", default="unshaped,ethernet")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    found = {network: measure(network, chosen.rounds, chosen.seconds) for network in chosen.networks.split(",")}
    text, verdict = table(found)
    print(text)
    if chosen.out is not None:
        chosen.out.write_text(json.dumps(found, default=dataclasses.asdict, indent=1))
    return verdict.told()


if __name__ == "__main__":
    sys.exit(main())
