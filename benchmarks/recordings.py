"""How fast flight recordings are read, and in how much memory, whichever Java made them.

    python benchmarks/recordings.py [--events 1000000] [--parts 24] [--javas 11,17,25]

A small program makes a recording with the probes' own settings: one of socket reads, one of allocations with their
stacks. A recording is a row of chunks, so that the same one several times over is a recording again: the largest here
is larger than the heap of the reader. Each is read by the command that a run uses, by the Java that made it; the rate
is of the whole command, the start of the JVM included.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lab import Verdict

from ingest_bench import probes, system
from ingest_bench.jvm.compile import classes
from ingest_bench.jvm.java import Java, find
from ingest_bench.probes import recording
from ingest_bench.probes.context import ReadContext

# What the project promises: so many events a second, and memory that does not grow with the recording.
EVENTS_PER_S = 500_000
GROWTH = 1.5
PROGRAM = Path(__file__).with_name("Events.java")
# A JVM with the smallest TLABs that it can have asks for one, or allocates outside, at every array.
SMALL_TLABS = ("-XX:TLABSize=2k", "-XX:MinTLABSize=2k", "-XX:-ResizeTLAB")


@dataclass(frozen=True, slots=True)
class Read:
    """One reading of one recording."""

    java: int
    kind: str
    recording_bytes: int
    events: int
    seconds: float
    rss_bytes: int

    @property
    def events_per_s(self) -> float:
        """Of the whole command."""
        return self.events / self.seconds


def record(java: Java, compiled: Path, raw: Path, kind: str, events: int) -> frozenset[int]:
    """Makes `raw/recording.jfr`, and says from which ports it was sent to."""
    raw.mkdir(parents=True)
    options = probes.jvm_options((kind,), raw, java.version)
    tlabs = SMALL_TLABS if kind == "allocations" else ()
    said = system.run(
        (str(java.java), "-Xmx128m", *tlabs, *options, "-cp", str(compiled), PROGRAM.stem, kind, str(events)),
        timeout_s=300,
    )
    return frozenset(int(port) for port in re.findall(r"port=(\d+)", said))


def read(java: Java, context: ReadContext, kind: str, found: Path) -> Read:
    """Reads a recording as a run does; SystemExit when anything of it could not be read."""
    started = time.monotonic()
    process = subprocess.Popen(recording.reader_argv(context, [found]), stdout=subprocess.PIPE)
    assert process.stdout is not None  # noqa: S101 - for the type: it is a pipe
    answer = json.loads(process.stdout.read())
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = status
    seconds = time.monotonic() - started
    if status or answer["files"][0]["error"] or answer["lost_bytes"]:
        raise SystemExit(f"{found}: {answer['files']}, {answer['lost_bytes']} bytes lost, status {status}")
    return Read(java.version, kind, found.stat().st_size, answer["events"], seconds, used.ru_maxrss << 10)


def measure(version: int, kind: str, events: int, parts: int, folder: Path) -> list[Read]:
    """The same events a few times over, and `parts` times over."""
    java = find(version)
    compiled = classes(find(17), (*recording.READER, PROGRAM))
    raw = folder / f"{version}-{kind}"
    ports = record(java, compiled, raw, kind, events)
    # Compiled before a clock runs.
    reader = recording.reader(java)
    context = ReadContext(raw=raw, start_ns=0, end_ns=2**62, ports=ports, reader=lambda: reader)
    whole = raw / "whole.jfr"
    found = []
    for times in (max(1, parts // 4), parts):
        with whole.open("wb") as out:
            for _ in range(times):
                with (raw / "recording.jfr").open("rb") as one:
                    shutil.copyfileobj(one, out)
        found.append(read(java, context, kind, whole))
    if found[1].events * max(1, parts // 4) != found[0].events * parts:
        raise SystemExit(f"{raw}: {found[0].events} events, {found[1].events} in {parts} of it")
    shutil.rmtree(raw)
    return found


def table(found: Sequence[Read]) -> str:
    """Markdown."""
    lines = ["| Java | recording of | size, MB | events | events/s | peak memory, MB |", "|---|---|---|---|---|---|"]
    lines += [
        f"| {one.java} | {one.kind} | {one.recording_bytes / 1e6:,.0f} | {one.events:,} | {one.events_per_s:,.0f} "
        f"| {one.rss_bytes / 1e6:,.0f} |"
        for one in found
    ]
    return "\n".join(lines)


def missed(small: Read, large: Read) -> list[str]:
    """Which promises these two readings do not keep."""
    what = f"Java {large.java}, {large.kind}"
    said = []
    if large.events_per_s < EVENTS_PER_S:
        said.append(f"{what}: {large.events_per_s:,.0f} events/s, promised at least {EVENTS_PER_S:,}")
    if large.rss_bytes > GROWTH * small.rss_bytes:
        said.append(f"{what}: memory grew from {small.rss_bytes / 1e6:,.0f} to {large.rss_bytes / 1e6:,.0f} MB")
    return said


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--parts", type=int, default=24)
    parser.add_argument("--javas", default="11,17,25")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    found, broken = [], []
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        for version in map(int, chosen.javas.split(",")):
            for kind in ("reads", "allocations"):
                small, large = measure(version, kind, chosen.events, chosen.parts, Path(folder))
                found += [small, large]
                broken += missed(small, large)
    print(table(found))
    if chosen.out is not None:
        chosen.out.write_text(json.dumps(found, default=dataclasses.asdict, indent=1))
    return Verdict(missed=broken).told()


if __name__ == "__main__":
    sys.exit(main())
