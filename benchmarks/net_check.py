"""The promises of all network profiles, and how a bulk after a pause is read: by each way to make a link here.

    python benchmarks/net_check.py [--profiles ethernet,lte] [--backends plain,uml] [--rounds 15] [--out FOLDER]

For each profile of `netem/` and each backend: what `ingest-bench net check` measures, and 200 KB that one connection
sends at once after a pause, read by `recv(65536)`: how many reads, and how long from the first to the last one, beside
what the wire needs for as many frames. Also how long the sender waits for the answer: what the link takes, and a round
trip, whenever the reader gets a processor. The window is grown before and kept over the pause, so that it is the link
which spaces the frames. FOLDER gets `promises.csv`, `reads.csv` and `README.md`.

Sender and reader have a processor each, and the reader goes before others where it may. The kernel spaces the frames
on the processor of the sender: on the same one, a reader at 1 Gbit/s got no turn until the end, and read 4 times in
15 of 15 bulks, where it reads 37 to 103 times on the other.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import platform
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from lab import Verdict

from ingest_bench import system
from ingest_bench.errors import IngestBenchError
from ingest_bench.experiment import catalog
from ingest_bench.model.network import Profile, Promise
from ingest_bench.network.act import box
from ingest_bench.network.act import link as link_module
from ingest_bench.network.measure import check, expected

BULK_BYTES, PAUSE_S, LIMIT_S = 200_000, 0.3, 600
# With netem in it: whoever needs a box for a profile without one makes the link for this state too.
FAR = "wan-50ms"
HEADS = (
    *("profile", "by", "promises kept", "not kept", "bulk promised", "bulk measured"),
    *("200 KB: reads (least, most)", "first to last read", "sent to answered, least", "the wire's", "its frames"),
)
READER = """
import contextlib, os, socket, sys, time
os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
with contextlib.suppress(PermissionError):
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
listener = socket.create_server((sys.argv[1], 9))
print("ready", flush=True)
connection, _ = listener.accept()
connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
while True:
    left, moments = int(sys.argv[2]), []
    while left:
        count = len(connection.recv(65536))
        if not count:
            sys.exit()
        moments.append(time.monotonic_ns())
        left -= count
    connection.sendall(b"%d %d\\n" % (len(moments), moments[-1] - moments[0]))
"""
WRITER = """
import json, os, socket, sys, time
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
size, rounds, pause_s = int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
connection = socket.create_connection((sys.argv[1], 9), timeout=300)
connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
answers, data, found = connection.makefile("rb"), bytes(size), []
for number in range(8 + rounds):
    if number >= 8:
        time.sleep(pause_s)
    began_ns = time.monotonic_ns()
    connection.sendall(data)
    found.append([*map(int, answers.readline().split()), time.monotonic_ns() - began_ns])
print(json.dumps(found[8:]))
"""


@dataclass(frozen=True, slots=True)
class Reads:
    """How the bulks of one profile and backend were read, medians; empty: the wire has no rate."""

    profile: str
    backend: str
    bulks: int
    reads: float
    reads_least: int
    reads_most: int
    first_to_last_ms: float
    least_sent_to_answered_ms: float
    frames: int
    wire_ms: float | None


def reads(link: link_module.Link, rounds: int) -> Reads:
    """What became of so many bulks to the server."""
    profile = link.profile
    link.client.run(("sysctl", "-q", "-w", "net.ipv4.tcp_slow_start_after_idle=0"))
    serving = link.server.command((sys.executable, "-c", READER, link.server_address, str(BULK_BYTES)))
    with system.Child(serving, name="reader") as reader:
        reader.line()
        asked = (link.server_address, str(BULK_BYTES), str(rounds), str(PAUSE_S))
        with system.Child(link.client.command((sys.executable, "-c", WRITER, *asked)), name="writer") as writer:
            found = json.loads(writer.line(LIMIT_S))
    counts, took_ns, waited_ns = zip(*found, strict=True)
    frames = math.ceil(BULK_BYTES / expected.mss_bytes(profile))
    frame_bytes = expected.full_frame_bytes(profile)
    rate_bps = expected.rate_bps(profile.to_server, frame_bytes)
    wire_ms = (frames - 1) * frame_bytes * 8000 / rate_bps if rate_bps else None
    return Reads(
        profile.name,
        link.backend,
        len(found),
        statistics.median(counts),
        min(counts),
        max(counts),
        round(statistics.median(took_ns) / 1e6, 3),
        round(min(waited_ns) / 1e6, 3),
        frames,
        None if wire_ms is None else round(wire_ms, 3),
    )


def links(profile: Profile, backends: Sequence[str]) -> Iterator[tuple[str, Sequence[Profile], str]]:
    """Each backend that can make it, with the other states that ask for it, and what it is called there."""
    for backend in backends:
        if backend == "plain" and not profile.needs_netem:
            yield backend, (), "auto"
        if backend == "uml" and profile.medium == "veth":
            yield backend, () if profile.needs_netem else (catalog.profile(FAR),), "uml"


def table(promises: Sequence[tuple[str, str, Promise]], found: Sequence[Reads], failed: Sequence[str]) -> str:
    """Markdown: a line for each profile and backend."""
    lines = [
        "# Promises of the network profiles, and reads after a pause",
        "",
        f"Linux {platform.release()}, {system.run(('nproc',)).strip()} processors, by `nox -s bench -- net_check`.",
        f"Load of the machine meanwhile: {os.getloadavg()[1]:.1f} processes.",
        *([f"Netem of the kernel: not tried here. {without}"] if (without := box.kernel_complaint()) else []),
        "",
        f"200 KB are {BULK_BYTES:,} bytes at once on a TCP connection to the server that was silent for {PAUSE_S:g} s,",
        "read by `recv(65536)` on another processor than the sender's.",
        "The wire's time is that of its frames at the profile's rate; delay comes on top.",
        "",
        f"| {' | '.join(HEADS)} |",
        f"|{'---|' * len(HEADS)}",
    ]
    for profile, backend in dict.fromkeys((profile, backend) for profile, backend, _ in promises):
        own = [promise for *place, promise in promises if place == [profile, backend]]
        broken = ", ".join(promise.name for promise in own if not promise.kept)
        bulk = next((promise for promise in own if promise.name == "bulk to-server"), None)
        cells = (bulk.promised, bulk.measured) if bulk else ("", "")
        one = next((one for one in found if (one.profile, one.backend) == (profile, backend)), None)
        seen = ("", "", "", "", "")
        if one is not None:
            wire = "" if one.wire_ms is None else f"{one.wire_ms:.4g} ms"
            counts = f"{one.reads:g} ({one.reads_least}, {one.reads_most})"
            seen = (
                counts,
                f"{one.first_to_last_ms:.4g} ms",
                f"{one.least_sent_to_answered_ms:.4g} ms",
                wire,
                str(one.frames),
            )
        kept = f"{sum(bool(promise.kept) for promise in own)} of {len(own)}"
        lines.append("| " + " | ".join((profile, backend, kept, broken, *cells, *seen)) + " |")
    return "\n".join([*lines, *(["", "Not measured:", ""] if failed else []), *(f"- {one}" for one in failed), ""])


def write(folder: Path, promises: Sequence[tuple[str, str, Promise]], found: Sequence[Reads], text: str) -> None:
    """The files of the results folder."""
    folder.mkdir(parents=True, exist_ok=True)
    names = ("promise", "promised", "measured", "tolerance", "kept")
    with (folder / "promises.csv").open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(("profile", "backend", *names))
        for profile, backend, one in promises:
            rows.writerow((profile, backend, one.name, one.promised, one.measured, one.tolerance, int(bool(one.kept))))
    with (folder / "reads.csv").open("w", newline="", encoding="utf-8") as file:
        table_rows = csv.DictWriter(file, [field.name for field in fields(Reads)], lineterminator="\n")
        table_rows.writeheader()
        table_rows.writerows(asdict(one) for one in found)
    (folder / "README.md").write_text(text, encoding="utf-8")


def main() -> int:
    """Exit code 1 when a promise was broken, 3 when something was not measured."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--profiles", default=",".join(sorted(path.stem for path in Path("netem").glob("*.toml"))))
    asked.add_argument("--backends", default="plain,uml")
    asked.add_argument("--rounds", type=int, default=15)
    asked.add_argument("--out", type=Path, default=Path("results/net-check"))
    options = asked.parse_args()
    promises: list[tuple[str, str, Promise]] = []
    found: list[Reads] = []
    failed: list[str] = []
    for name in options.profiles.split(","):
        profile = catalog.profile(name)
        for backend, later, netem in links(profile, options.backends.split(",")):
            try:
                with link_module.link(profile, netem=netem, later=later) as link:
                    checked = check.check(link)
                    promises += [(name, backend, promise) for promise in checked]
                    found.append(reads(link, options.rounds))
                    said = str(found[-1])
            except IngestBenchError as error:
                said = f"{name} by {backend}: {' '.join(str(error).split())}"
                failed.append(said)
            sys.stdout.write(f"{said}\n")
            sys.stdout.flush()
    write(options.out, promises, found, table(promises, found, failed))
    missed = [f"{name} by {backend}: {promise.name}" for name, backend, promise in promises if not promise.kept]
    return Verdict(missed, failed).told()


if __name__ == "__main__":
    sys.exit(main())
