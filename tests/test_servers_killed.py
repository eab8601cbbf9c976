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
from typing import IO

import psutil
import pytest
from processes import is_alive, wait_until_gone

from ingest_bench import system
from ingest_bench.errors import MissingCapability
from ingest_bench.network import link_capabilities
from ingest_bench.network.act import link as link_module
from ingest_bench.network.act.sandbox import sandbox

HARNESS = """
import sys, time
from pathlib import Path
from ingest_bench.jvm import process
from ingest_bench.model.target import Endpoint, LaunchPlan
from ingest_bench.network.act.sandbox import sandbox
folder, script, kind = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
log = folder / "log"
plan = LaunchPlan(argv=("/bin/sh", "-c", script), env={}, cwd=folder, writable=(), pid_is_jvm=kind == "jvm")
with sandbox() as opened:
    enter = opened.add_namespace().command
    is_ready = lambda _: log.stat().st_size > 0
    launch = process.Launch(plan=plan, enter=enter, log=log, listen=Endpoint("h", 1), is_ready=is_ready)
    print("starts", flush=True)
    with process.serve(launch) as (server,):
        time.sleep(0.3)
        print(server.jvm_pid, flush=True)
        sys.stdin.readline()
        began = time.monotonic()
print(time.monotonic() - began, flush=True)
"""


@contextmanager
def start_harness(folder: Path, script: str, kind: str) -> Iterator[tuple[subprocess.Popen[str], IO[str]]]:
    """Yield the harness that starts the script as a server, and its output after the first line."""
    argv = (sys.executable, "-c", HARNESS, str(folder), script, kind)
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as harness:
        try:
            assert harness.stdout is not None
            assert harness.stdout.readline() == "starts\n"
            yield harness, harness.stdout
        finally:
            harness.kill()


@pytest.mark.netns
@pytest.mark.parametrize("is_killed", [False, True])
def test_no_process_of_a_launcher_outlives_the_harness(tmp_path: Path, is_killed: bool) -> None:
    shutil.copy("/bin/sleep", tmp_path / "java-child")
    # Like a JVM that writes its recording on SIGTERM; its launcher exits at once. It forks rarely: until its exec a
    # child has the name of the JVM.
    (tmp_path / "java").write_text("#!/bin/sh\ntrap 'sleep 1; echo recorded; exit' TERM\nwhile :; do sleep 1; done\n")
    (tmp_path / "java").chmod(0o755)
    script = f"{tmp_path}/java 600 & {tmp_path}/java-child 600 & sleep 1; echo up; wait"
    with start_harness(tmp_path, script, "launcher") as (harness, output):
        jvm = int(output.readline())
        family = psutil.Process(harness.pid).children(recursive=True)
        assert [process.name() for process in family if process.pid == jvm] == ["java"]
        assert {"java", "java-child"} <= {process.name() for process in family}
        if is_killed:
            harness.kill()
        else:
            harness.communicate("end\n", timeout=60)
        assert harness.wait(60) == (-signal.SIGKILL if is_killed else 0)
    try:
        wait_until_gone(family, seconds=20)
        assert ("recorded" in (tmp_path / "log").read_text()) == (not is_killed)
    finally:
        for process in filter(is_alive, family):
            process.kill()


# A server with children in other sessions and namespaces, one of which ignores SIGTERM.
FAMILY = "setsid sleep {n}1 & unshare -U -r --fork --pid sleep {n}2 & echo up; exec sleep {n}3"


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
def family_of(folder: Path) -> Iterator[tuple[subprocess.Popen[str], IO[str], int]]:
    number = random.randrange(10**6, 10**8)  # noqa: S311 - tells families apart
    try:
        with start_harness(folder, FAMILY.format(n=number), "jvm") as (harness, output):
            yield harness, output, number
    finally:
        for process in sleepers(number):
            process.kill()


@pytest.mark.ordinary
@pytest.mark.netns
@pytest.mark.parametrize("is_killed", [False, True])
def test_processes_in_other_sessions_and_namespaces_end_with_their_server(tmp_path: Path, is_killed: bool) -> None:
    with family_of(tmp_path) as (harness, output, number):
        assert psutil.Process(int(output.readline())).cmdline() == ["sleep", f"{number}3"]
        family = sleepers(number)
        # `unshare` has a waiting parent, too.
        assert len(family) == 4
        if is_killed:
            harness.kill()
            wait_until_gone(family, seconds=10)
        else:
            duration_s, _ = harness.communicate("end\n", timeout=60)
            assert [member for member in family if is_alive(member)] == []
            # A process that ignores SIGTERM does not use up the time that a JVM has for its recording.
            assert float(duration_s) < 5


@pytest.mark.nightly
@pytest.mark.ordinary
@pytest.mark.netns
def test_a_harness_killed_while_its_server_starts_leaves_no_process(tmp_path: Path) -> None:
    for attempt in range(25):
        with family_of(tmp_path) as (harness, _, number):
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
