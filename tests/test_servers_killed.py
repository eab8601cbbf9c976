"""What is left of a server when the command that started it is killed: nothing."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

PROGRAM = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from ingest_bench.model.target import TargetOptions
from servers import served
asked = TargetOptions(name=sys.argv[3], version=sys.argv[4], heap_bytes=512 << 20)
with served(Path(sys.argv[2]), asked) as server:
    print(server.process.jvm_pid, flush=True)
    time.sleep(600)
"""


LAUNCHER = """
import sys, time
from pathlib import Path
from ingest_bench.jvm import process
from ingest_bench.model.target import Endpoint, LaunchPlan
from ingest_bench.network.act.sandbox import sandbox
folder = Path(sys.argv[1])
argv = ("sh", "-c", f"{folder}/java 600 & {folder}/java-child 600 & sleep 1; echo up; wait")
log = folder / "log"
plan = LaunchPlan(argv=argv, env={}, cwd=folder, writable=(), pid_is_jvm=False, may_leave=True)
with sandbox() as opened:
    place = opened.add()
    ready = lambda _: log.stat().st_size > 0
    launch = process.Launch(plan=plan, enter=place.command, log=log, listen=Endpoint("h", 1), ready=ready)
    with process.serve(launch) as (server,):
        print(server.jvm_pid, flush=True)
        time.sleep(float(sys.argv[2]))
"""


@pytest.mark.netns
@pytest.mark.parametrize("lasts_s", [600, 0.5])
def test_no_process_that_a_command_started_outlives_the_harness(tmp_path: Path, lasts_s: float) -> None:
    shutil.copy("/bin/sleep", tmp_path / "java-child")
    # As a JVM that writes its recording when it is told to end; the command that started it ends at once.
    (tmp_path / "java").write_text("#!/bin/sh\ntrap 'sleep 1; echo recorded; exit' TERM\nwhile :; do sleep 0.1; done\n")
    (tmp_path / "java").chmod(0o755)
    argv = [sys.executable, "-c", LAUNCHER, str(tmp_path), str(lasts_s)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as harness:
        try:
            assert harness.stdout is not None
            jvm = int(harness.stdout.readline())
            family = psutil.Process(harness.pid).children(recursive=True)
            assert [one.name() for one in family if one.pid == jvm] == ["java"]
            assert {"java", "java-child"} <= {one.name() for one in family}
            if lasts_s > 1:
                harness.kill()
            assert harness.wait(60) == (-signal.SIGKILL if lasts_s > 1 else 0)
        finally:
            harness.kill()
    try:
        all_gone_within(family, seconds=20)
        assert ("recorded" in (tmp_path / "log").read_text()) == (lasts_s < 1)
    finally:
        for left in filter(lives, family):
            left.kill()


@pytest.mark.long
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT], ids=lambda sent: sent.name)
@pytest.mark.parametrize(
    ("name", "version"),
    [
        pytest.param("sink", "java17", marks=[pytest.mark.jvm, pytest.mark.netns]),
        # Its launcher dies with us; the server that it forked ends by itself when its standard input does.
        pytest.param("elasticsearch", "8.19.21", marks=[pytest.mark.elasticsearch, pytest.mark.netns]),
    ],
)
def test_no_process_outlives_a_killed_harness(tmp_path: Path, name: str, version: str, sent: signal.Signals) -> None:
    here = str(Path(__file__).parent)
    argv = [sys.executable, "-c", PROGRAM, here, str(tmp_path), name, version]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as harness:
        try:
            assert harness.stdout is not None
            line = harness.stdout.readline()
            if not line:
                pytest.skip("the server could not be started here")
            family = psutil.Process(harness.pid).children(recursive=True)
            assert int(line) in {process.pid for process in family}
            harness.send_signal(sent)
            harness.wait(90)
        finally:
            harness.kill()
    all_gone_within(family, seconds=60)


def all_gone_within(family: list[psutil.Process], *, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while left := [process for process in family if lives(process)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def lives(process: psutil.Process) -> bool:
    """Whether it runs. A dead one that its parent has not asked about yet does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
