"""Attach to a running JVM: refusals, and the facts that it reports."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from readied import ready

from ingest_bench import system
from ingest_bench.errors import MissingCapability, SpecError
from ingest_bench.jvm import java
from ingest_bench.jvm.attach import JvmFacts, attach, parse_facts, read_start_id


@pytest.fixture
def sleeper() -> Iterator[int]:
    process = subprocess.Popen(["sleep", "600"])
    yield process.pid
    process.kill()
    process.wait()


def test_a_process_that_is_not_a_jvm_of_this_user_is_refused(monkeypatch: pytest.MonkeyPatch, sleeper: int) -> None:
    with pytest.raises(SpecError, match=r"--attach 4999999: no such process"):
        attach(4999999)
    with pytest.raises(SpecError, match=r"this process \(sleep\) is not a JVM"):
        attach(sleeper)
    monkeypatch.setattr(system, "is_root", lambda: False)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(MissingCapability, match=r"belongs to user \w+, we are uid 12345"):
        attach(sleeper)


def test_a_start_id_is_unique_and_an_exited_process_has_none(sleeper: int) -> None:
    assert read_start_id(sleeper) is not None
    assert read_start_id(sleeper) == read_start_id(sleeper)
    assert len({read_start_id(sleeper), read_start_id(os.getpid()), read_start_id(1)}) == 3
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert read_start_id(process.pid) is None, "a zombie has exited"
    assert read_start_id(4999999) is None


@pytest.mark.parametrize(
    ("flags", "collector"),
    [
        ("-XX:MaxHeapSize=33554432 -XX:+UseCompressedOops -XX:+UseG1GC", "g1"),
        ("-XX:MaxHeapSize=33554432 -XX:+UseParallelGC -XX:+UseParallelOldGC", "parallel"),
        ("-XX:MaxHeapSize=33554432 -XX:+UseConcMarkSweepGC", "cms"),
        ("-XX:MaxHeapSize=33554432 -XX:+UseZGC -XX:-UseGCOverheadLimit", "zgc"),
        ("-XX:MaxHeapSize=33554432 -XX:+UseShenandoahGC", "unknown: Shenandoah"),
    ],
)
def test_facts_are_parsed_from_responses_of_the_jvm(flags: str, collector: str) -> None:
    recorder = "4711:\nCurrent configuration:\n\nRepository path: N/A\nStack depth: 64\nGlobal buffer count: 20\n"
    assert parse_facts(flags, recorder) == JvmFacts(collector=collector, heap_bytes=32 << 20, stack_depth=64)
    assert parse_facts("", "") == JvmFacts(collector="", heap_bytes=None, stack_depth=None)
    # jcmd VM.flags of Java 17 with -Xmx3g.
    g1 = "4711:\n-XX:G1ConcRefinementThreads=2 -XX:G1HeapRegionSize=2097152 -XX:MaxHeapSize=3221225472 -XX:+UseG1GC"
    assert parse_facts(g1, "").g1_region_bytes == 2 << 20


@pytest.mark.ordinary
@pytest.mark.processes
def test_a_process_with_a_closed_root_folder_is_refused_to_its_user() -> None:
    # PR_SET_DUMPABLE: the kernel treats it like a process with more rights.
    script = "import ctypes, time; ctypes.CDLL(None).prctl(4, 0, 0, 0, 0); print('ready', flush=True); time.sleep(600)"
    refusal = (SpecError, "is not a JVM") if system.is_root() else (MissingCapability, r"cannot be opened \(Permission")
    with ready([sys.executable, "-c", script]) as process, pytest.raises(refusal[0], match=refusal[1]):
        attach(process.pid)


@pytest.mark.ordinary
@pytest.mark.jvm
def test_a_jvm_that_disables_attach_is_refused(tmp_path: Path) -> None:
    runtime = java.find_java(17)
    source = tmp_path / "Sleeps.java"
    source.write_text("class Sleeps { public static void main(String[] a) throws Exception { Thread.sleep(600000); } }")
    classes = java.compile_classes(runtime, (source,))
    argv = [str(runtime.java), "-XX:+DisableAttachMechanism", "-Xmx16m", "-cp", str(classes), "Sleeps"]
    with subprocess.Popen(argv, stdout=sys.stderr) as process:
        try:
            deadline = time.monotonic() + 60
            while "/libjvm.so" not in Path(f"/proc/{process.pid}/maps").read_text(encoding="utf-8"):
                assert time.monotonic() < deadline
                time.sleep(0.05)
            with pytest.raises(MissingCapability, match="refuses to be attached to"):
                attach(process.pid)
        finally:
            process.kill()
