"""Link checks of all network profiles, and reads of a bulk after a pause, with each backend that works here.

    python benchmarks/net_check.py [--profiles ethernet,lte] [--backends plain,uml] [--rounds 15] [--out FOLDER]

For each profile of `netem/` and each backend: the results of `ingest-bench net check`, and 200 KB that one connection
sends at once after a pause, read by `recv(65536)`: the number of reads, the time from the first to the last one, and
the time that the wire needs for as many frames. Also how long the sender waits for the response: the link's time plus a
round trip. The window is grown before and kept over the pause, so that the link spaces the frames. FOLDER gets
`link_checks.csv`, `reads.csv` and `README.md`.

Sender and reader have a processor each, and the reader has real-time priority if permitted. The kernel spaces the
frames on the processor of the sender: on the same one, a reader at 1 Gbit/s got no turn until the end, and read 4 times
in 15 of 15 bulks, compared with 37 to 103 times on the other one.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from lab import Verdict, write_csv

from ingest_bench import system
from ingest_bench.errors import IngestBenchError
from ingest_bench.experiment import catalog
from ingest_bench.model.network import LinkCheck, Profile
from ingest_bench.network.act import link as link_module
from ingest_bench.network.measure import check, expected

BULK_BYTES, PAUSE_S, LIMIT_S = 200_000, 0.3, 600
# A profile with netem: adding it as a later state forces the uml backend for a profile without netem.
FAR = "wan-50ms"
Check = tuple[str, str, LinkCheck]
"""Profile, backend and result of a link check."""
HEADS = (
    *("profile", "backend", "passed checks", "failed checks", "burst expected", "burst measured"),
    *("200 KB: reads (min, max)", "first to last read", "min sent to response", "wire time", "frames"),
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
responses, data, bulks = connection.makefile("rb"), bytes(size), []
for number in range(8 + rounds):
    if number >= 8:
        time.sleep(pause_s)
    began_ns = time.monotonic_ns()
    connection.sendall(data)
    bulks.append([*map(int, responses.readline().split()), time.monotonic_ns() - began_ns])
print(json.dumps(bulks[8:]))
"""


@dataclass(frozen=True, slots=True)
class Reads:
    """Reads of the bulks of one profile and backend, medians; `wire_ms` is None if the wire has no rate."""

    profile: str
    backend: str
    bulks: int
    reads: float
    reads_min: int
    reads_max: int
    first_to_last_ms: float
    min_sent_to_response_ms: float
    frames: int
    wire_ms: float | None


def measure_reads(link: link_module.Link, rounds: int) -> Reads:
    """Send *rounds* bulks to the server and return how they were read."""
    profile = link.profile
    link.client.run(("sysctl", "-q", "-w", "net.ipv4.tcp_slow_start_after_idle=0"))
    serving = link.server.command((sys.executable, "-c", READER, link.server_address, str(BULK_BYTES)))
    with system.Child(serving, name="reader") as reader:
        reader.read_line()
        arguments = (link.server_address, str(BULK_BYTES), str(rounds), str(PAUSE_S))
        with system.Child(link.client.command((sys.executable, "-c", WRITER, *arguments)), name="writer") as writer:
            bulks = json.loads(writer.read_line(LIMIT_S))
    counts, read_ns, waited_ns = zip(*bulks, strict=True)
    frames = math.ceil(BULK_BYTES / expected.mss_bytes(profile))
    frame_bytes = expected.full_frame_bytes(profile)
    rate_bps = expected.rate_bps(profile.to_server, frame_bytes)
    wire_ms = (frames - 1) * frame_bytes * 8000 / rate_bps if rate_bps else None
    return Reads(
        profile=profile.name,
        backend=link.backend,
        bulks=len(bulks),
        reads=statistics.median(counts),
        reads_min=min(counts),
        reads_max=max(counts),
        first_to_last_ms=round(statistics.median(read_ns) / 1e6, 3),
        min_sent_to_response_ms=round(min(waited_ns) / 1e6, 3),
        frames=frames,
        wire_ms=None if wire_ms is None else round(wire_ms, 3),
    )


def backends_of(profile: Profile, backends: Sequence[str]) -> Iterator[tuple[str, Sequence[Profile], str]]:
    """Yield each backend that can make the link, later states that force it, and its netem option."""
    for backend in backends:
        if backend == "plain" and not profile.needs_netem:
            yield backend, (), "auto"
        if backend == "uml" and profile.medium == "veth":
            yield backend, () if profile.needs_netem else (catalog.load_profile(FAR),), "uml"


def format_table(checks: Sequence[Check], reads: Sequence[Reads], failures: Sequence[str]) -> str:
    """Return a line for each profile and backend as Markdown."""
    problem = link_module.find_kernel_netem_problem()
    lines = [
        "# Link checks of the network profiles, and reads after a pause",
        "",
        f"Linux {platform.release()}, {system.run(('nproc',)).strip()} processors, by `nox -s bench -- net_check`.",
        f"Load average during the measurement: {os.getloadavg()[1]:.1f}.",
        *([f"Netem of the kernel: not tested here. {problem}"] if problem else []),
        "",
        f"200 KB are {BULK_BYTES:,} bytes at once on a TCP connection to the server that was silent for {PAUSE_S:g} s,",
        "read by `recv(65536)` on another processor than the sender's.",
        "The wire time is that of its frames at the profile's rate, without delay.",
        "",
        f"| {' | '.join(HEADS)} |",
        f"|{'---|' * len(HEADS)}",
    ]
    reads_by_link = {(row.profile, row.backend): row for row in reads}
    for link in dict.fromkeys((profile, backend) for profile, backend, _ in checks):
        results = [result for *name, result in checks if tuple(name) == link]
        failed = ", ".join(result.name for result in results if not result.passed)
        bulk = next((result for result in results if result.name == "burst to-server"), None)
        columns = [*link, f"{sum(bool(result.passed) for result in results)} of {len(results)}", failed]
        columns += (bulk.expected, bulk.measured) if bulk else ("", "")
        if (row := reads_by_link.get(link)) is not None:
            columns += [f"{row.reads:g} ({row.reads_min}, {row.reads_max})", f"{row.first_to_last_ms:.4g} ms"]
            columns += [f"{row.min_sent_to_response_ms:.4g} ms", f"{row.wire_ms:.4g} ms" if row.wire_ms else ""]
            columns.append(str(row.frames))
        lines.append("| " + " | ".join(columns + [""] * (len(HEADS) - len(columns))) + " |")
    return "\n".join(
        [*lines, *(["", "Not measured:", ""] if failures else []), *(f"- {text}" for text in failures), ""]
    )


def write(folder: Path, checks: Sequence[Check], reads: Sequence[Reads], text: str) -> None:
    """Write the files of the results folder."""
    folder.mkdir(parents=True, exist_ok=True)
    columns = ("name", "expected", "measured", "tolerance", "passed")
    results = [
        {"profile": profile, "backend": backend, **{column: getattr(result, column) for column in columns}}
        for profile, backend, result in checks
    ]
    write_csv(folder / "link_checks.csv", results)
    write_csv(folder / "reads.csv", [asdict(row) for row in reads])
    (folder / "README.md").write_text(text, encoding="utf-8")


def main() -> int:
    """Return 1 if a check failed, 3 if something was not measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profiles", default=",".join(sorted(path.stem for path in Path("netem").glob("*.toml"))))
    parser.add_argument("--backends", default="plain,uml")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, default=Path("results/net-check"))
    options = parser.parse_args()
    checks: list[Check] = []
    reads: list[Reads] = []
    failures: list[str] = []
    for name in options.profiles.split(","):
        profile = catalog.load_profile(name)
        for backend, later_profiles, netem in backends_of(profile, options.backends.split(",")):
            try:
                with link_module.open_link(profile, netem=netem, later_profiles=later_profiles) as link:
                    checks += [(name, backend, result) for result in check.check_link(link)]
                    reads.append(measure_reads(link, options.rounds))
                    line = str(reads[-1])
            except IngestBenchError as error:
                line = f"{name} by {backend}: {' '.join(str(error).split())}"
                failures.append(line)
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()
    write(options.out, checks, reads, format_table(checks, reads, failures))
    failed = [f"{name} by {backend}: {result.name}" for name, backend, result in checks if not result.passed]
    return Verdict(failed, failures).print()


if __name__ == "__main__":
    sys.exit(main())
