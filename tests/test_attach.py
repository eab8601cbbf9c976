"""Attaching to a JVM that is already running."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from servers import Served, served

from ingest_bench import system
from ingest_bench.errors import MissingCapability, RunFailed, SpecError
from ingest_bench.jvm import java
from ingest_bench.jvm.attach import attach, recorded
from ingest_bench.jvm.compile import classes
from ingest_bench.model.target import TargetOptions
from ingest_bench.targets.sink import Sink

SETTINGS = """<?xml version="1.0" encoding="UTF-8"?>
<configuration version="2.0"><event name="jdk.SocketRead">
<setting name="enabled">true</setting><setting name="threshold">0 ns</setting><setting name="stackTrace">false</setting>
</event></configuration>
"""


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


@pytest.mark.netns
@pytest.mark.parametrize(("option", "what"), [("--mount", "mount"), ("--pid", "process")])
def test_a_process_in_a_container_is_refused(option: str, what: str) -> None:
    fork = ["--fork", "--kill-child"] if option == "--pid" else []
    user = [] if system.is_root() else ["--user", "--map-root-user"]
    argv = ["unshare", *user, option, *fork, "sh", "-c", "echo ready; exec sleep 600"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="utf-8").split()
            with pytest.raises(MissingCapability, match=f"is in another {what} namespace"):
                attach(int(children[0]) if children else process.pid)
        finally:
            process.kill()


@pytest.fixture(scope="module", params=["java11", "java17", "java25"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    asked = TargetOptions(name="sink", version=request.param, heap_bytes=64 << 20)
    with served(tmp_path_factory.mktemp("attach"), asked) as started:
        yield started


@pytest.mark.jvm
@pytest.mark.netns
def test_a_recording_holds_what_happened_while_it_ran(server: Served, tmp_path: Path) -> None:
    jvm = attach(server.process.jvm_pid)
    assert f"java{jvm.java_version}" == server.asked.version
    (tmp_path / "reads.jfc").write_text(SETTINGS, encoding="utf-8")
    server.bulk(10)
    seen, true = [], []
    for file in (tmp_path / "first.jfr", tmp_path / "second.jfr"):
        before = counted_reads(server)
        with recorded(jvm, tmp_path / "reads.jfc", file, limit_s=600):
            for _ in range(7):
                server.bulk(10)
        # The question for the counters was one read, after the recording.
        true.append(counted_reads(server) - before - 1)
        seen.append(socket_reads(file))
    # The second may begin with what the first one had.
    assert seen in (true, [true[0], sum(true)])
    assert "name=ingest-bench" not in jvm.ask("JFR.check")


def counted_reads(server: Served) -> int:
    assert isinstance(server.target, Sink)
    return int(server.target.counters(server.http)["reads"])


def socket_reads(file: Path) -> int:
    """Reads of more than nothing."""
    for candidate in java.on_machine():
        program = candidate.home / "bin" / "jfr"
        if candidate.version >= 17 and program.exists():
            break
    else:
        program = java.wheel(17).home / "bin" / "jfr"
    told = system.run([str(program), "print", "--events", "jdk.SocketRead", str(file)], timeout_s=120)
    return sum("bytesRead = " in line and not line.strip().startswith("bytesRead = 0 ") for line in told.splitlines())


@pytest.mark.jvm
@pytest.mark.netns
def test_a_refused_recording_is_an_error_with_the_jvms_words(server: Served, tmp_path: Path) -> None:
    jvm = attach(server.process.jvm_pid)
    (tmp_path / "broken.jfc").write_text("this is no settings file", encoding="utf-8")
    with (
        pytest.raises(RunFailed, match=r"refused JFR\.start|did not obey JFR\.start"),
        recorded(jvm, tmp_path / "broken.jfc", tmp_path / "recording.jfr", limit_s=60),
    ):
        pytest.fail("it cannot start")
    assert not list(tmp_path.glob("*.jfr"))


@pytest.mark.jvm
@pytest.mark.netns
def test_a_jvm_that_ends_meanwhile_leaves_its_recording(tmp_path: Path) -> None:
    (tmp_path / "reads.jfc").write_text(SETTINGS, encoding="utf-8")
    asked = TargetOptions(name="sink", heap_bytes=64 << 20)
    with served(tmp_path, asked) as server:
        with recorded(attach(server.process.jvm_pid), tmp_path / "reads.jfc", tmp_path / "it.jfr", limit_s=600):
            server.bulk(10)
            server.process.popen.terminate()
            server.process.popen.wait(60)
        assert (tmp_path / "it.jfr").read_bytes()[:4] == b"FLR\0"


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
