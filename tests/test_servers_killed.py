"""No process of a server is left when the command that started it is killed."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from ingest_bench import system
from ingest_bench.errors import MissingCapability
from ingest_bench.network import link_capabilities
from ingest_bench.network.act import link as link_module
from ingest_bench.network.act.sandbox import sandbox

PROGRAM = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from ingest_bench.model.target import TargetOptions
from servers import served
options = TargetOptions(name=sys.argv[3], version=sys.argv[4], heap_bytes=512 << 20)
with served(Path(sys.argv[2]), options) as server:
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
plan = LaunchPlan(argv=argv, env={}, cwd=folder, writable=(), pid_is_jvm=False)
with sandbox() as opened:
    namespace = opened.add_namespace()
    is_ready = lambda _: log.stat().st_size > 0
    launch = process.Launch(plan=plan, enter=namespace.command, log=log, listen=Endpoint("h", 1), is_ready=is_ready)
    with process.serve(launch) as (server,):
        print(server.jvm_pid, flush=True)
        time.sleep(float(sys.argv[2]))
"""


@pytest.mark.netns
@pytest.mark.parametrize("lasts_s", [600, 0.5])
def test_no_process_of_a_launcher_outlives_the_harness(tmp_path: Path, lasts_s: float) -> None:
    shutil.copy("/bin/sleep", tmp_path / "java-child")
    # Like a JVM that writes its recording on SIGTERM; its launcher exits at once. It forks rarely: until its exec a
    # child has the name of the JVM.
    (tmp_path / "java").write_text("#!/bin/sh\ntrap 'sleep 1; echo recorded; exit' TERM\nwhile :; do sleep 1; done\n")
    (tmp_path / "java").chmod(0o755)
    argv = [sys.executable, "-c", LAUNCHER, str(tmp_path), str(lasts_s)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as harness:
        try:
            assert harness.stdout is not None
            jvm = int(harness.stdout.readline())
            family = psutil.Process(harness.pid).children(recursive=True)
            assert [process.name() for process in family if process.pid == jvm] == ["java"]
            assert {"java", "java-child"} <= {process.name() for process in family}
            if lasts_s > 1:
                harness.kill()
            assert harness.wait(60) == (-signal.SIGKILL if lasts_s > 1 else 0)
        finally:
            harness.kill()
    try:
        wait_until_gone(family, seconds=20)
        assert ("recorded" in (tmp_path / "log").read_text()) == (lasts_s < 1)
    finally:
        for process in filter(is_alive, family):
            process.kill()


# A server with children in other sessions and namespaces, one of which ignores SIGTERM.
FAMILY = "setsid sleep {n}1 & unshare -U -r --fork --pid sleep {n}2 & echo up; exec sleep {n}3"
SERVER = """
import sys, time
from pathlib import Path
from ingest_bench.jvm import process
from ingest_bench.model.target import Endpoint, LaunchPlan
from ingest_bench.network.act.sandbox import sandbox
folder, script = Path(sys.argv[1]), sys.argv[2]
log = folder / "log"
plan = LaunchPlan(argv=("/bin/sh", "-c", script), env={}, cwd=folder, writable=())
with sandbox() as opened:
    enter = opened.add_namespace().command
    is_ready = lambda _: log.stat().st_size > 0
    launch = process.Launch(plan=plan, enter=enter, log=log, listen=Endpoint("h", 1), is_ready=is_ready)
    print("starts", flush=True)
    with process.serve(launch) as (server,):
        time.sleep(0.3)
        print(Path(f"/proc/{server.jvm_pid}/cmdline").read_text(), flush=True)
        sys.stdin.readline()
        began = time.monotonic()
print(time.monotonic() - began, flush=True)
"""


def sleepers(number: int) -> list[psutil.Process]:
    """Return the living processes of that family, also those with another parent now."""
    names = [str(number * 10 + digit) for digit in (1, 2, 3)]
    return [process for process in psutil.process_iter() if is_alive(process) and sleeps(process, names)]


def sleeps(process: psutil.Process, names: list[str]) -> bool:
    try:
        return process.cmdline()[-2:-1] == ["sleep"] and process.cmdline()[-1] in names
    except psutil.Error:
        return False


@contextmanager
def family_of(folder: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    number = random.randrange(10**6, 10**8)  # noqa: S311 - tells families apart
    argv = (sys.executable, "-c", SERVER, str(folder), FAMILY.format(n=number))
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as harness:
        try:
            yield harness, number
        finally:
            harness.kill()
            for process in sleepers(number):
                process.kill()


@pytest.mark.ordinary
@pytest.mark.netns
@pytest.mark.parametrize("is_killed", [False, True])
def test_processes_in_other_sessions_and_namespaces_end_with_their_server(tmp_path: Path, is_killed: bool) -> None:
    with family_of(tmp_path) as (harness, number):
        assert harness.stdout is not None
        assert harness.stdout.readline() == "starts\n"
        assert harness.stdout.readline() == f"sleep\0{number}3\0\n"
        family = sleepers(number)
        # `unshare` has a waiting parent, too.
        assert len(family) == 4
        if is_killed:
            harness.kill()
            wait_until_gone(family, seconds=10)
        else:
            output, _ = harness.communicate("end\n", timeout=60)
            assert [member for member in family if is_alive(member)] == []
            # A process that ignores SIGTERM does not use up the time that a JVM has for its recording.
            assert float(output) < 5


@pytest.mark.nightly
@pytest.mark.ordinary
@pytest.mark.netns
def test_a_harness_killed_while_its_server_starts_leaves_no_process(tmp_path: Path) -> None:
    for attempt in range(25):
        with family_of(tmp_path) as (harness, number):
            assert harness.stdout is not None
            assert harness.stdout.readline() == "starts\n"
            time.sleep(attempt * 0.008)
            # Includes the holders of the namespaces.
            family = psutil.Process(harness.pid).children(recursive=True)
            harness.kill()
            harness.wait()
            wait_until_gone(family, seconds=10)
            time.sleep(0.1)
            assert sleepers(number) == []


@pytest.mark.processes
def test_command_does_not_run_if_its_parent_died_early() -> None:
    argv = ("sh", "-c", system._INIT, "1", "echo", "ran")
    done = subprocess.run(argv, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (1, b"")


@pytest.mark.netns
def test_command_in_a_pid_namespace_has_its_own_proc_and_exit_status() -> None:
    with sandbox() as opened:
        namespace = opened.add_namespace()
        # Its /proc has its own pid and none of the test's processes. It is not pid 1, which ignores signals.
        script = "[ $$ -gt 1 ] && read -r pid _ < /proc/self/stat && [ $pid = $$ ] && [ ! -e /proc/$0 ] && kill -9 $$"
        argv = namespace.command(system.wrap_in_pid_namespace(("sh", "-c", script, str(os.getpid()))))
        assert subprocess.run(argv, check=False).returncode == 128 + signal.SIGKILL


@pytest.mark.netns
def test_commands_in_pid_namespaces_have_different_pids() -> None:
    with sandbox() as opened:
        namespace = opened.add_namespace()
        argv = namespace.command(system.wrap_in_pid_namespace(("sh", "-c", "echo $$; read -r _")))
        pipe = subprocess.PIPE
        commands = [subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True) for _ in range(4)]
        pids = [command.stdout.readline() for command in commands if command.stdout is not None]
        for command in commands:
            command.communicate("\n", timeout=60)
        assert len(set(pids)) == 4


@pytest.mark.netns
def test_missing_process_namespaces_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    # As in a container whose masked /proc prevents mounting another one.
    monkeypatch.setattr(system, "_INIT", system._INIT.replace("--mount-proc", "--mount-proc=/nonexistent"))
    with pytest.raises(MissingCapability, match=r"^process namespaces: unshare: .*/nonexistent"):
        link_module.require_links({})
    (namespaces,) = [
        capability for capability in link_capabilities.capabilities() if capability.name == "process namespaces"
    ]
    assert not namespaces.present
    assert "systempaths=unconfined" in namespaces.remedy


@pytest.mark.nightly
@pytest.mark.parametrize("signal_", [signal.SIGKILL, signal.SIGINT], ids=lambda signal_: signal_.name)
@pytest.mark.parametrize(
    ("name", "version"),
    [
        pytest.param("sink", "java17", marks=[pytest.mark.jvm, pytest.mark.netns]),
        # Its launcher dies with us; its forked server exits at the end of its standard input.
        pytest.param("elasticsearch", "8.19.21", marks=[pytest.mark.elasticsearch, pytest.mark.netns]),
    ],
)
def test_no_process_outlives_a_killed_harness(tmp_path: Path, name: str, version: str, signal_: signal.Signals) -> None:
    folder = str(Path(__file__).parent)
    argv = [sys.executable, "-c", PROGRAM, folder, str(tmp_path), name, version]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as harness:
        try:
            assert harness.stdout is not None
            line = harness.stdout.readline()
            if not line:
                pytest.skip("the server could not be started here")
            family = psutil.Process(harness.pid).children(recursive=True)
            assert int(line) in {process.pid for process in family}
            harness.send_signal(signal_)
            harness.wait(90)
        finally:
            harness.kill()
    wait_until_gone(family, seconds=60)


def wait_until_gone(family: list[psutil.Process], *, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while alive := [process for process in family if is_alive(process)]:
        assert time.monotonic() < deadline, alive
        time.sleep(0.1)


def is_alive(process: psutil.Process) -> bool:
    """Return True if it is running; a zombie is not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
