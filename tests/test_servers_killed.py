"""What is left of a server when the command that started it is killed: nothing."""

from __future__ import annotations

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
