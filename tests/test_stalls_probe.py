"""Probe `stalls`, compared with the times that a test program prints."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ingest_bench import system
from ingest_bench.jvm.java import compile_classes as compiled
from ingest_bench.jvm.java import find_java
from ingest_bench.model.results import CauseIntervals, Interval, Note, ProbeOutput
from ingest_bench.probes import jvm_options, recording, select_probes
from ingest_bench.probes.context import ReadContext
from ingest_bench.probes.observer import LaunchedObserver

DATA = Path(__file__).parent / "data" / "stalls"
PROGRAMS = Path(__file__).parent / "java"
JAVAS = (11, 17, 21, 25)
FLUSH, LOCK, OTHER = "Lucene flushed a segment", "a thread waited for a lock", "a thread waited for another one"
FORCE, WRITE = "a file was forced to disk", "a write to a file was slow"
ROOM = "a thread waited for room for a direct buffer"
MS = 10**6


@pytest.fixture(scope="module")
def classes() -> Path:
    return compiled(find_java(17), (*recording.READER, *sorted(PROGRAMS.rglob("*.java"))))


def context(raw: Path, classes: Path, java: Path) -> ReadContext:
    def reader() -> tuple[str, ...]:
        return (str(java), "-cp", str(classes), "JfrReader")

    return ReadContext(raw=raw, start_ns=0, end_ns=2**63 - 1, ports=frozenset(), reader=reader)


def lines(output: str) -> dict[str, tuple[int, int]]:
    """Return the times that the program prints, such as "flush 1795604138191949602 1795604138929512185"."""
    rows = [line.split() for line in output.splitlines()]
    return {row[0]: (int(row[1]), int(row[2])) for row in rows if len(row) == 3 and row[1].isdigit()}


def spans(measured: Sequence[ProbeOutput]) -> dict[str, tuple[Interval, ...]]:
    return {item.cause: item.intervals for item in measured if isinstance(item, CauseIntervals)}


def kept(tmp_path: Path, name: str, **changed: Any) -> tuple[dict[str, tuple[int, int]], list[ProbeOutput]]:
    """Return the output of the program in a recorded run, and the output of the probe for its recording."""
    with gzip.open(DATA / f"{name}.json.gz", "rt") as file:
        recorded = json.load(file)
    content = recorded["content"] | {"files": [], "lost_bytes": 0} | changed
    (tmp_path / "recording.jfr").write_bytes(b"read already")
    key = [recording.READER_VERSION, 0, 2**63 - 1, [], ["recording.jfr"]]
    (tmp_path / "recording.json").write_text(json.dumps({"key": key, "content": content}))
    return lines(recorded["said"]), LaunchedObserver.read(
        select_probes(["stalls"]), context(tmp_path, tmp_path, tmp_path)
    )


def assert_agrees(notes: dict[str, tuple[int, int]], measured: Sequence[ProbeOutput], late_ns: int) -> None:
    """Each thing was found where it was, of the thread that did it, and nothing else of its kind."""
    watched = spans(measured)
    for cause, threads in {LOCK: {"monitor", "lock"}, OTHER: {"park"}, FLUSH: {"flush"}, ROOM: {"buffers"}}.items():
        assert {span.thread for span in watched[cause]} == threads, cause
        for span in watched[cause]:
            begin, end = notes[span.thread]
            assert begin - late_ns <= span.start_ns < span.end_ns <= end + late_ns, (cause, span)
    for thread, cause in {"monitor": LOCK, "lock": LOCK, "park": OTHER}.items():
        (begin, end), (span,) = notes[thread], [item for item in watched[cause] if item.thread == thread]
        assert span.end_ns - span.start_ns == pytest.approx(end - begin, abs=late_ns), thread
    # The sleeps of java.nio.Bits that last 20 ms: 32, 64, 128 and 256.
    assert sum(item.end_ns - item.start_ns for item in watched[ROOM]) >= (32 + 64 + 128 + 256) * MS
    assert {span.thread for span in watched[FORCE]} <= {"force"}


@pytest.mark.parametrize("java", JAVAS)
def test_activities_and_waits_are_found_in_a_recording(java: int, tmp_path: Path) -> None:
    notes, measured = kept(tmp_path, str(java))
    assert_agrees(notes, measured, 30 * MS)
    watched = spans(measured)
    begin, end = notes["flush"]
    flushed = sum(span.end_ns - span.start_ns for span in watched[FLUSH])
    assert flushed == pytest.approx(end - begin, rel=0.4)
    (forced,) = watched[FORCE]
    assert notes["force"][0] <= forced.start_ns < forced.end_ns <= notes["force"][1]
    assert watched["a read of a file was slow"] == ()


def test_idle_thread_is_not_a_cause(tmp_path: Path) -> None:
    notes, measured = kept(tmp_path, "17")
    assert "flush" in notes
    assert "idle" not in {span.thread for event in spans(measured).values() for span in event}


def test_writes_with_wrong_durations_of_java_11_are_left_out(tmp_path: Path) -> None:
    _, measured = kept(tmp_path, "11")
    assert WRITE not in spans(measured)
    assert [item.text for item in measured if isinstance(item, Note)] == [
        "jdk.FileWrite is left out: this Java records wrong durations (one thread in two events at one moment)"
    ]


def test_writes_of_later_javas_are_used(tmp_path: Path) -> None:
    notes, measured = kept(tmp_path, "17")
    assert {span.thread for span in spans(measured)[WRITE]} == {"force"}
    written = sum(span.end_ns - span.start_ns for span in spans(measured)[WRITE])
    assert written <= notes["force"][1] - notes["force"][0]


def test_only_operations_of_a_collector_are_garbage_collection(tmp_path: Path) -> None:
    operations = ["G1CollectForAllocation", "ZMarkStart", "GenCollectFull", "CGC_Operation", "HeapDumper"]
    lines = [[f"JVM operation {name}", "", number * 100, number * 100 + 50] for number, name in enumerate(operations)]
    _, measured = kept(tmp_path, "17", stalls={"spans": lines, "wrong": [], "samples": 1, "lost": 0})
    watched = spans(measured)
    assert [span.start_ns for span in watched["garbage collection"]] == [0, 100, 200, 300]
    assert [span.start_ns for span in watched["JVM operation HeapDumper"]] == [400]


def test_collection_without_cpu_has_the_cause_of_the_gc_probe(tmp_path: Path) -> None:
    line = "[1970-01-01T00:00:10.200+0000][10.2s][info][gc{}] GC(1) {}\n"
    pause, cpu = "Pause Young (Normal) (G1 Evacuation Pause) 6M->1M(64M) 200.0ms", "User=0.01s Sys=0.00s Real=0.20s"
    (tmp_path / "gc.log").write_text(line.format("", pause) + line.format(",cpu", cpu))
    lines = [["JVM operation G1CollectForAllocation", "", at * MS, (at + 200) * MS] for at in (10_000, 11_000)]
    _, measured = kept(tmp_path, "17", stalls={"spans": lines, "wrong": [], "samples": 1, "lost": 0})
    watched = spans(measured)
    assert [span.start_ns for span in watched["garbage collection waiting for a CPU"]] == [10_000 * MS]
    assert [span.start_ns for span in watched["garbage collection"]] == [11_000 * MS]


def test_cause_without_an_event_in_this_java_is_not_searched_for(tmp_path: Path) -> None:
    with gzip.open(DATA / "17.json.gz", "rt") as file:
        events = json.load(file)["content"]["known"]
    less = [name for name in events if name != "jdk.FileRead"]
    _, measured = kept(tmp_path, "17", known=less)
    assert "a read of a file was slow" not in spans(measured)


def test_recording_that_ends_too_early_rules_out_nothing(tmp_path: Path) -> None:
    (tmp_path / "jfr" / "repository").mkdir(parents=True)
    (tmp_path / "jfr" / "repository" / "1.jfr").write_bytes(b"read already")
    with gzip.open(DATA / "17.json.gz", "rt") as file:
        content = json.load(file)["content"] | {"files": [], "lost_bytes": 0}
    key = [recording.READER_VERSION, 0, 2**63 - 1, [], ["1.jfr"]]
    (tmp_path / "recording.json").write_text(json.dumps({"key": key, "content": content}))
    measured = LaunchedObserver.read(select_probes(["stalls"]), context(tmp_path, tmp_path, tmp_path))
    assert [type(item) for item in measured] == [Note]


def test_dropped_spans_and_missing_samples_are_noted(tmp_path: Path) -> None:
    _, measured = kept(tmp_path, "17", stalls={"spans": [], "wrong": [], "samples": 0, "lost": 7})
    notes = [item.text for item in measured if isinstance(item, Note)]
    assert len(notes) == 2
    assert notes[1].startswith("7 spans beyond the limit")


@pytest.mark.nightly
@pytest.mark.jvm
@pytest.mark.parametrize("version", JAVAS)
def test_real_jvm_shows_flushes_waits_for_locks_and_forced_files(version: int, classes: Path, tmp_path: Path) -> None:
    java = find_java(version).java
    raw = tmp_path / "raw"
    raw.mkdir()
    options = ["-Xmx256m", "-XX:MaxDirectMemorySize=64m", *jvm_options(["stalls"], raw, version)]
    notes = lines(system.run([str(java), *options, "-cp", str(classes), "Stalls", str(tmp_path)], timeout_s=120))
    # A machine that is busy delays a thread that was let go, and its own note of that.
    assert_agrees(notes, LaunchedObserver.read(select_probes(["stalls"]), context(raw, classes, java)), 300 * MS)
