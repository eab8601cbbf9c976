"""What the server's threads did and waited for, against a program that says when it did it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ingest_bench import system
from ingest_bench.jvm.compile import classes as compiled
from ingest_bench.jvm.java import find
from ingest_bench.model.results import Interval, Measured, Remark, Watched
from ingest_bench.probes import chosen, jvm_options, recording
from ingest_bench.probes.context import ReadContext
from ingest_bench.probes.vantage import Started

DATA = Path(__file__).parent / "data" / "stalls"
PROGRAMS = Path(__file__).parent / "java"
JAVAS = (11, 17, 21, 25)
FLUSH, LOCK, OTHER = "Lucene flushed a segment", "a thread waited for a lock", "a thread waited for another one"
FORCE, WRITE = "a file was forced to disk", "a write to a file was slow"
ROOM = "a thread waited for room for a direct buffer"
MS = 10**6


@pytest.fixture(scope="module")
def classes() -> Path:
    return compiled(find(17), (*recording.READER, *sorted(PROGRAMS.rglob("*.java"))))


def context(raw: Path, classes: Path, java: Path) -> ReadContext:
    def reader() -> tuple[str, ...]:
        return (str(java), "-cp", str(classes), "JfrReader")

    return ReadContext(raw=raw, start_ns=0, end_ns=2**63 - 1, ports=frozenset(), reader=reader)


def told(output: str) -> dict[str, tuple[int, int]]:
    """What the program says of itself, such as "flush 1795604138191949602 1795604138929512185"."""
    rows = [line.split() for line in output.splitlines()]
    return {row[0]: (int(row[1]), int(row[2])) for row in rows if len(row) == 3 and row[1].isdigit()}


def spans(measured: Sequence[Measured]) -> dict[str, tuple[Interval, ...]]:
    return {item.cause: item.spans for item in measured if isinstance(item, Watched)}


def kept(tmp_path: Path, name: str, **changed: Any) -> tuple[dict[str, tuple[int, int]], list[Measured]]:
    """What the program said in a recorded run, and what the probe says of what the reader found then."""
    with gzip.open(DATA / f"{name}.json.gz", "rt") as file:
        recorded = json.load(file)
    content = recorded["content"] | {"files": [], "lost_bytes": 0} | changed
    (tmp_path / "recording.jfr").write_bytes(b"read already")
    key = [recording.READER_VERSION, 0, 2**63 - 1, [], ["recording.jfr"]]
    (tmp_path / "recording.json").write_text(json.dumps({"key": key, "content": content}))
    return told(recorded["said"]), Started.read(chosen(["stalls"]), context(tmp_path, tmp_path, tmp_path))


def assert_agrees(said: dict[str, tuple[int, int]], measured: Sequence[Measured], late_ns: int) -> None:
    """Each thing was found where it was, of the thread that did it, and nothing else of its kind."""
    found = spans(measured)
    for cause, threads in {LOCK: {"monitor", "lock"}, OTHER: {"park"}, FLUSH: {"flush"}, ROOM: {"buffers"}}.items():
        assert {span.thread for span in found[cause]} == threads, cause
        for span in found[cause]:
            begin, end = said[span.thread]
            assert begin - late_ns <= span.start_ns < span.end_ns <= end + late_ns, (cause, span)
    for thread, cause in {"monitor": LOCK, "lock": LOCK, "park": OTHER}.items():
        (begin, end), (span,) = said[thread], [one for one in found[cause] if one.thread == thread]
        assert span.end_ns - span.start_ns == pytest.approx(end - begin, abs=late_ns), thread
    # The sleeps of java.nio.Bits that last 20 ms: 32, 64, 128 and 256.
    assert sum(one.end_ns - one.start_ns for one in found[ROOM]) >= (32 + 64 + 128 + 256) * MS
    assert {span.thread for span in found[FORCE]} <= {"force"}


@pytest.mark.parametrize("java", JAVAS)
def test_what_threads_did_and_waited_for_is_found_in_a_recorded_run(java: int, tmp_path: Path) -> None:
    said, measured = kept(tmp_path, str(java))
    assert_agrees(said, measured, 30 * MS)
    found = spans(measured)
    begin, end = said["flush"]
    flushed = sum(span.end_ns - span.start_ns for span in found[FLUSH])
    assert flushed == pytest.approx(end - begin, rel=0.4)
    (forced,) = found[FORCE]
    assert said["force"][0] <= forced.start_ns < forced.end_ns <= said["force"][1]
    assert found["a read of a file was slow"] == ()


def test_a_thread_that_has_nothing_to_do_waits_for_nobody(tmp_path: Path) -> None:
    said, measured = kept(tmp_path, "17")
    assert "flush" in said
    assert "idle" not in {span.thread for each in spans(measured).values() for span in each}


def test_writes_whose_duration_java_11_records_wrongly_are_looked_for_by_nobody(tmp_path: Path) -> None:
    _, measured = kept(tmp_path, "11")
    assert WRITE not in spans(measured)
    assert [item.text for item in measured if isinstance(item, Remark)] == [
        "jdk.FileWrite is left out: this Java records wrong durations, a thread would be in two at one moment"
    ]


def test_writes_of_later_javas_are_believed(tmp_path: Path) -> None:
    said, measured = kept(tmp_path, "17")
    assert {span.thread for span in spans(measured)[WRITE]} == {"force"}
    written = sum(span.end_ns - span.start_ns for span in spans(measured)[WRITE])
    assert written <= said["force"][1] - said["force"][0]


def test_the_operation_of_a_collector_is_garbage_collection_and_another_one_has_its_name(tmp_path: Path) -> None:
    operations = ["G1CollectForAllocation", "ZMarkStart", "GenCollectFull", "CGC_Operation", "HeapDumper"]
    told = [[f"JVM operation {name}", "", number * 100, number * 100 + 50] for number, name in enumerate(operations)]
    _, measured = kept(tmp_path, "17", stalls={"spans": told, "wrong": [], "samples": 1, "lost": 0})
    found = spans(measured)
    assert [span.start_ns for span in found["garbage collection"]] == [0, 100, 200, 300]
    assert [span.start_ns for span in found["JVM operation HeapDumper"]] == [400]


def test_a_collection_that_had_no_cpu_by_the_log_is_called_so_here_as_well(tmp_path: Path) -> None:
    line = "[1970-01-01T00:00:10.200+0000][10.2s][info][gc{}] GC(1) {}\n"
    pause, cpu = "Pause Young (Normal) (G1 Evacuation Pause) 6M->1M(64M) 200.0ms", "User=0.01s Sys=0.00s Real=0.20s"
    (tmp_path / "gc.log").write_text(line.format("", pause) + line.format(",cpu", cpu))
    told = [["JVM operation G1CollectForAllocation", "", at * MS, (at + 200) * MS] for at in (10_000, 11_000)]
    _, measured = kept(tmp_path, "17", stalls={"spans": told, "wrong": [], "samples": 1, "lost": 0})
    found = spans(measured)
    assert [span.start_ns for span in found["garbage collection waiting for a CPU"]] == [10_000 * MS]
    assert [span.start_ns for span in found["garbage collection"]] == [11_000 * MS]


def test_what_a_java_has_no_event_for_is_looked_for_by_nobody(tmp_path: Path) -> None:
    with gzip.open(DATA / "17.json.gz", "rt") as file:
        known = json.load(file)["content"]["known"]
    less = [name for name in known if name != "jdk.FileRead"]
    _, measured = kept(tmp_path, "17", known=less)
    assert "a read of a file was slow" not in spans(measured)


def test_a_recording_that_ends_before_the_measurement_rules_nothing_out(tmp_path: Path) -> None:
    (tmp_path / "jfr" / "repository").mkdir(parents=True)
    (tmp_path / "jfr" / "repository" / "1.jfr").write_bytes(b"read already")
    with gzip.open(DATA / "17.json.gz", "rt") as file:
        content = json.load(file)["content"] | {"files": [], "lost_bytes": 0}
    key = [recording.READER_VERSION, 0, 2**63 - 1, [], ["1.jfr"]]
    (tmp_path / "recording.json").write_text(json.dumps({"key": key, "content": content}))
    measured = Started.read(chosen(["stalls"]), context(tmp_path, tmp_path, tmp_path))
    assert [type(item) for item in measured] == [Remark]


def test_spans_that_were_left_out_and_a_lack_of_samples_are_said(tmp_path: Path) -> None:
    _, measured = kept(tmp_path, "17", stalls={"spans": [], "wrong": [], "samples": 0, "lost": 7})
    said = [item.text for item in measured if isinstance(item, Remark)]
    assert len(said) == 2
    assert said[1].startswith("7 spans more")


@pytest.mark.nightly
@pytest.mark.jvm
@pytest.mark.parametrize("version", JAVAS)
def test_a_real_jvm_is_seen_to_flush_to_wait_for_locks_and_others_and_to_force_files(
    version: int, classes: Path, tmp_path: Path
) -> None:
    java = find(version).java
    raw = tmp_path / "raw"
    raw.mkdir()
    options = ["-Xmx256m", "-XX:MaxDirectMemorySize=64m", *jvm_options(["stalls"], raw, version)]
    said = told(system.run([str(java), *options, "-cp", str(classes), "Stalls", str(tmp_path)], timeout_s=120))
    # A machine that is busy delays a thread that was let go, and its own note of that.
    assert_agrees(said, Started.read(chosen(["stalls"]), context(raw, classes, java)), 300 * MS)
