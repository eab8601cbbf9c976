"""Attaching to a JVM that is already running."""

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
from ingest_bench.jvm.attach import JvmFacts, attach, began, parse_facts
from ingest_bench.jvm.compile import classes


@pytest.fixture
def sleeper() -> Iterator[int]:
    process = subprocess.Popen(["sleep", "600"])
    yield process.pid
    process.kill()
    process.wait()


def test_a_pid_that_is_none_is_refused() -> None:
    with pytest.raises(SpecError, match=r"--attach 4999999: there is no such process"):
        attach(4999999)


def test_a_process_that_is_no_jvm_is_refused(sleeper: int) -> None:
    with pytest.raises(SpecError, match=r"this process \(sleep\) is no JVM"):
        attach(sleeper)


def test_another_users_process_is_refused(monkeypatch: pytest.MonkeyPatch, sleeper: int) -> None:
    monkeypatch.setattr(system, "is_root", lambda: False)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(MissingCapability, match=r"belongs to user \w+, we are uid 12345"):
        attach(sleeper)


def test_a_process_is_known_by_its_start_and_an_ended_one_has_none(sleeper: int) -> None:
    assert began(sleeper) is not None
    assert began(sleeper) == began(sleeper)
    assert len({began(sleeper), began(os.getpid()), began(1)}) == 3
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert began(process.pid) is None, "a zombie is no process any more"
    assert began(4999999) is None


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
def test_collector_heap_and_stack_depth_are_what_the_jvm_says(flags: str, collector: str) -> None:
    recorder = "4711:\nCurrent configuration:\n\nRepository path: N/A\nStack depth: 64\nGlobal buffer count: 20\n"
    assert parse_facts(flags, recorder) == JvmFacts(collector=collector, heap_bytes=32 << 20, stack_depth=64)
    assert parse_facts("", "") == JvmFacts(collector="", heap_bytes=None, stack_depth=None)


def test_the_size_of_a_region_is_what_the_jvm_says() -> None:
    # jcmd VM.flags of Java 17 with -Xmx3g.
    said = "4711:\n-XX:G1ConcRefinementThreads=2 -XX:G1HeapRegionSize=2097152 -XX:MaxHeapSize=3221225472 -XX:+UseG1GC"
    assert parse_facts(said, "").g1_region_bytes == 2 << 20


@pytest.mark.ordinary
@pytest.mark.netns
@pytest.mark.parametrize(("option", "what"), [("--mount", "mount"), ("--pid", "process")])
def test_a_process_in_a_container_is_refused(option: str, what: str) -> None:
    fork = ["--fork", "--kill-child"] if option == "--pid" else []
    user = [] if system.is_root() else ["--user", "--map-root-user"]
    argv = ["unshare", *user, option, *fork, "sh", "-c", "echo ready; exec sleep 600"]
    with ready(argv) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="utf-8").split()
        with pytest.raises(MissingCapability, match=f"is in another {what} namespace"):
            attach(int(children[0]) if children else process.pid)


@pytest.mark.ordinary
@pytest.mark.jvm
def test_a_jvm_that_lets_nobody_attach_is_told(tmp_path: Path) -> None:
    found = java.find(17)
    source = tmp_path / "Sleeps.java"
    source.write_text("class Sleeps { public static void main(String[] a) throws Exception { Thread.sleep(600000); } }")
    compiled = classes(found, (source,))
    argv = [str(found.java), "-XX:+DisableAttachMechanism", "-Xmx16m", "-cp", str(compiled), "Sleeps"]
    with subprocess.Popen(argv, stdout=sys.stderr) as process:
        try:
            wait_until_java(process.pid)
            with pytest.raises(MissingCapability, match="lets nobody attach"):
                attach(process.pid)
        finally:
            process.kill()


def wait_until_java(pid: int) -> None:
    """Its Java machine is loaded."""
    deadline = time.monotonic() + 60
    while "/libjvm.so" not in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
