"""Probe `stalls`, compared with the times that a test program prints."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from probe_lab import causes, make_context, notes, read, read_data, write_recording

from ingest_bench import system
from ingest_bench.jvm.java import compile_classes as compiled
from ingest_bench.jvm.java import find_java
from ingest_bench.model.results import Note, ProbeOutput
from ingest_bench.probes import jvm_options, recording

PROGRAMS = Path(__file__).parent / "java"
JAVAS = (11, 17, 21, 25)
FLUSH, LOCK, OTHER = "Lucene flushed a segment", "a thread waited for a lock", "a thread waited for another one"
FORCE, WRITE = "a file was forced to disk", "a write to a file was slow"
ROOM = "a thread waited for room for a direct buffer"
MS = 10**6


@pytest.fixture(scope="module")
def classes() -> Path:
    return compiled(find_java(17), (*recording.READER, *sorted(PROGRAMS.rglob("*.java"))))


def lines(output: str) -> dict[str, tuple[int, int]]:
    """Return the times that the program prints, such as "flush 1795604138191949602 1795604138929512185"."""
    rows = [line.split() for line in output.splitlines()]
    return {row[0]: (int(row[1]), int(row[2])) for row in rows if len(row) == 3 and row[1].isdigit()}


def kept(tmp_path: Path, name: str, **changed: Any) -> tuple[dict[str, tuple[int, int]], list[ProbeOutput]]:
    """Return the output of the program in a recorded run, and the output of the probe for its recording."""
    recorded = json.loads(read_data(f"stalls/{name}.json.gz"))
    write_recording(make_context(tmp_path), recorded["content"] | {"files": [], "lost_bytes": 0} | changed)
    return lines(recorded["said"]), read("stalls", make_context(tmp_path))


def assert_agrees(printed: dict[str, tuple[int, int]], measured: Sequence[ProbeOutput], late_ns: int) -> None:
    """Each thing was found where it was, of the thread that did it, and nothing else of its kind."""
    watched = causes(measured)
    for cause, threads in {LOCK: {"monitor", "lock"}, OTHER: {"park"}, FLUSH: {"flush"}, ROOM: {"buffers"}}.items():
        # On a busy machine the JVM's own recorder waits for its locks too.
        spans = [span for span in watched[cause] if not span.thread.startswith("JFR ")]
        assert {span.thread for span in spans} == threads, cause
        for span in spans:
            begin, end = printed[span.thread]
            assert begin - late_ns <= span.start_ns < span.end_ns <= end + late_ns, (cause, span)
    for thread, cause in {"monitor": LOCK, "lock": LOCK, "park": OTHER}.items():
        (begin, end), (span,) = printed[thread], [item for item in watched[cause] if item.thread == thread]
        assert span.end_ns - span.start_ns == pytest.approx(end - begin, abs=late_ns), thread
    # The sleeps of java.nio.Bits that last 20 ms: 32, 64, 128 and 256.
    assert sum(item.end_ns - item.start_ns for item in watched[ROOM]) >= (32 + 64 + 128 + 256) * MS
    assert {span.thread for span in watched[FORCE]} <= {"force"}


@pytest.mark.parametrize("java", JAVAS)
def test_activities_and_waits_are_found_in_a_recording(java: int, tmp_path: Path) -> None:
    printed, measured = kept(tmp_path, str(java))
    assert_agrees(printed, measured, 30 * MS)
    watched = causes(measured)
    begin, end = printed["flush"]
    flushed = sum(span.end_ns - span.start_ns for span in watched[FLUSH])
    assert flushed == pytest.approx(end - begin, rel=0.4)
    (forced,) = watched[FORCE]
    assert printed["force"][0] <= forced.start_ns < forced.end_ns <= printed["force"][1]
    assert watched["a read of a file was slow"] == ()
    assert "idle" not in {span.thread for cause in watched.values() for span in cause}


def test_writes_with_wrong_durations_of_java_11_are_left_out(tmp_path: Path) -> None:
    _, measured = kept(tmp_path, "11")
    assert WRITE not in causes(measured)
    assert notes(measured) == [
        "jdk.FileWrite is left out: this Java records wrong durations (one thread in two events at one moment)"
    ]


def test_writes_of_later_javas_are_used(tmp_path: Path) -> None:
    printed, measured = kept(tmp_path, "17")
    assert {span.thread for span in causes(measured)[WRITE]} == {"force"}
    written = sum(span.end_ns - span.start_ns for span in causes(measured)[WRITE])
    assert written <= printed["force"][1] - printed["force"][0]


def test_only_operations_of_a_collector_are_garbage_collection(tmp_path: Path) -> None:
    operations = ["G1CollectForAllocation", "ZMarkStart", "GenCollectFull", "CGC_Operation", "HeapDumper"]
    lines = [[f"JVM operation {name}", "", number * 100, number * 100 + 50] for number, name in enumerate(operations)]
    _, measured = kept(tmp_path, "17", stalls={"spans": lines, "wrong": [], "samples": 1, "lost": 0})
    watched = causes(measured)
    assert [span.start_ns for span in watched["garbage collection"]] == [0, 100, 200, 300]
    assert [span.start_ns for span in watched["JVM operation HeapDumper"]] == [400]


def test_collection_without_cpu_has_the_cause_of_the_gc_probe(tmp_path: Path) -> None:
    line = "[1970-01-01T00:00:10.200+0000][10.2s][info][gc{}] GC(1) {}\n"
    pause, cpu = "Pause Young (Normal) (G1 Evacuation Pause) 6M->1M(64M) 200.0ms", "User=0.01s Sys=0.00s Real=0.20s"
    (tmp_path / "gc.log").write_text(line.format("", pause) + line.format(",cpu", cpu))
    lines = [["JVM operation G1CollectForAllocation", "", at * MS, (at + 200) * MS] for at in (10_000, 11_000)]
    _, measured = kept(tmp_path, "17", stalls={"spans": lines, "wrong": [], "samples": 1, "lost": 0})
    watched = causes(measured)
    assert [span.start_ns for span in watched["garbage collection waiting for a CPU"]] == [10_000 * MS]
    assert [span.start_ns for span in watched["garbage collection"]] == [11_000 * MS]


def test_cause_without_an_event_in_this_java_is_not_searched_for(tmp_path: Path) -> None:
    events = json.loads(read_data("stalls/17.json.gz"))["content"]["known"]
    less = [name for name in events if name != "jdk.FileRead"]
    _, measured = kept(tmp_path, "17", known=less)
    assert "a read of a file was slow" not in causes(measured)


def test_recording_that_ends_too_early_rules_out_nothing(tmp_path: Path) -> None:
    (tmp_path / "jfr" / "repository").mkdir(parents=True)
    (tmp_path / "jfr" / "repository" / "1.jfr").write_bytes(b"read already")
    content = json.loads(read_data("stalls/17.json.gz"))["content"] | {"files": [], "lost_bytes": 0}
    write_recording(make_context(tmp_path), content, ["1.jfr"])
    assert [type(item) for item in read("stalls", make_context(tmp_path))] == [Note]


def test_dropped_spans_and_missing_samples_are_noted(tmp_path: Path) -> None:
    _, measured = kept(tmp_path, "17", stalls={"spans": [], "wrong": [], "samples": 0, "lost": 7})
    _, lost = notes(measured)
    assert lost.startswith("7 spans beyond the limit")


@pytest.mark.nightly
@pytest.mark.jvm
@pytest.mark.parametrize("version", JAVAS)
def test_real_jvm_shows_flushes_waits_for_locks_and_forced_files(version: int, classes: Path, tmp_path: Path) -> None:
    java = find_java(version).java
    raw = tmp_path / "raw"
    raw.mkdir()
    options = ["-Xmx256m", "-XX:MaxDirectMemorySize=64m", *jvm_options(["stalls"], raw, version)]
    printed = lines(system.run([str(java), *options, "-cp", str(classes), "Stalls", str(tmp_path)], timeout_s=120))
    context = make_context(raw, reader=lambda: (str(java), "-cp", str(classes), "JfrReader"))
    # A machine that is busy delays a thread that was let go, and its own note of that.
    assert_agrees(printed, read("stalls", context), 300 * MS)
