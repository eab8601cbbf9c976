"""Servers that fail to start: time limits, reasons, the end of the log, and processes that must end."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest
from commands import nothing_left
from running import free_port
from servers import on_this_network, opened_link

from ingest_bench import targets
from ingest_bench.errors import RunFailed
from ingest_bench.jvm import process
from ingest_bench.model.target import Endpoint, LaunchPlan, ServerAddress
from ingest_bench.targets.http import open_http

pytestmark = pytest.mark.processes

# Instead of a JVM: prints a line, listens, and never is ready. test_http_child.py has other wrong responses.
SERVER = r"""
import signal, socket, sys
port, behaviour = int(sys.argv[1]), sys.argv[2]
listener = socket.create_server(("127.0.0.1", port))
print("the last word of the log \x1b[2J", flush=True)
if behaviour == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
kept = []
while True:
    connection, _ = listener.accept()
    kept.append(connection)
    if behaviour in ("busy", "odd"):
        connection.recv(65536)
        status, body = (b"200 OK", b'{"status": {}}') if behaviour == "odd" else (b"503 Service Unavailable", b"{}")
        head = b"HTTP/1.1 %s\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % (status, len(body))
        connection.sendall(head + body)
        connection.close()
"""
LIMIT_S = 1.5
BEHAVIOURS = {
    "silent": r"no response to GET http://127\.0\.0\.1:\d+/_cluster/health\?local=true \(TimeoutError: timed out\)",
    "deaf": "TimeoutError: timed out",
    "busy": "it responds that it is not ready|TimeoutError",
    "odd": "it responds that it is not ready|TimeoutError",
}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Yield a folder for a server; check that no process of it is left."""
    yield tmp_path
    remaining = [
        child for child in psutil.Process().children(recursive=True) if str(tmp_path) in " ".join(child.cmdline())
    ]
    assert remaining == []


@pytest.mark.parametrize("mode", [0o700, 0o711])
def test_a_closed_folder_is_not_reachable(monkeypatch: pytest.MonkeyPatch, mode: int) -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        monkeypatch.setenv("INGEST_BENCH_CACHE", folder)
        Path(folder).chmod(mode)
        plan = LaunchPlan(argv=("/bin/true",), env={}, cwd=Path(folder), writable=())
        assert process.is_reachable(plan) == (mode == 0o711)


def test_a_link_into_a_closed_folder_is_not_reachable() -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        Path(folder).chmod(0o711)
        target, link = Path(folder) / "closed" / "target", Path(folder) / "link"
        target.mkdir(parents=True)
        (Path(folder) / "again").symlink_to("link")
        link.symlink_to(target)
        plan = LaunchPlan(argv=("/bin/true",), env={}, cwd=Path(folder), writable=(Path(folder) / "again" / "home",))
        assert process.is_reachable(plan)
        target.parent.chmod(0o700)
        assert not process.is_reachable(plan)


def make_launch(
    folder: Path, argv: tuple[str, ...], is_ready: Callable[[float], bool], port: int = 9200
) -> process.Launch:
    plan = LaunchPlan(argv=argv, env={}, cwd=folder, writable=())
    listen = Endpoint("127.0.0.1", port)
    return process.Launch(plan=plan, enter=on_this_network, log=folder / "server.log", listen=listen, is_ready=is_ready)


def boot(folder: Path, argv: tuple[str, ...], port: int, timeout_s: float = LIMIT_S) -> None:
    """Start a server as if it were OpenSearch."""
    target = targets.find_target("opensearch")
    with open_http(ServerAddress(endpoint=Endpoint("127.0.0.1", port))) as http:
        launch = make_launch(folder, argv, lambda left_s: target.is_ready(0, (http.with_deadline(left_s),)), port)
        with process.serve(launch, timeout_s=timeout_s):
            pytest.fail("ready")


def scripted(behaviour: str, port: int) -> tuple[str, ...]:
    return (os.path.realpath(sys.executable), "-I", "-S", "-c", SERVER, str(port), behaviour)


@pytest.mark.nightly
@pytest.mark.parametrize("behaviour", BEHAVIOURS)
def test_a_server_that_is_never_ready_ends_within_its_limit(folder: Path, behaviour: str) -> None:
    port, start = free_port(), time.monotonic()
    with pytest.raises(RunFailed) as failed:
        boot(folder, scripted(behaviour, port), port)
    # A server that ignores SIGTERM gets five seconds for its recording.
    assert time.monotonic() - start < LIMIT_S + (6.5 if behaviour == "deaf" else 2.5)
    message = str(failed.value)
    assert re.match(rf"server: not ready after 1\.5 s \(.*({BEHAVIOURS[behaviour]}).*\)\. ", message), message
    assert f"{folder / 'server.log'} ends:\nthe last word of the log" in message


def test_a_launcher_that_outlives_its_server_is_ended(folder: Path) -> None:
    port, start = free_port(), time.monotonic()
    launcher = ("/bin/sh", "-c", "sh -c 'echo its server has died; exit 1'; exec sleep 1000")
    with pytest.raises(RunFailed, match=r"(?s)not ready after 1\.5 s \(.*its server has died"):
        boot(folder, launcher, port)
    assert time.monotonic() - start < LIMIT_S + 2.5


@pytest.mark.netns
@pytest.mark.parametrize(("is_ready", "when"), [(True, "as soon as"), (False, "before")])
def test_orphans_of_a_launcher_are_ended(folder: Path, is_ready: bool, when: str) -> None:
    launcher = ("/bin/sh", "-c", f"setsid sleep 1000 & echo $! > {folder}/home/orphan; sleep 0.2")
    plan = LaunchPlan(argv=launcher, env={}, cwd=folder, writable=(folder / "home",), pid_is_jvm=False)

    def check_ready(_remaining_s: float) -> bool:
        # The launcher exits meanwhile.
        time.sleep(1)
        return is_ready

    with opened_link() as link, ExitStack() as stack:
        launch = process.Launch(
            plan=plan,
            enter=link.server.command,
            log=folder / "server.log",
            listen=Endpoint(link.server_address, 9200),
            is_ready=check_ready,
        )
        with pytest.raises(RunFailed, match=rf"it exited {when} it was ready \(exit 0\)"):
            stack.enter_context(process.serve(launch))
        orphan = int((folder / "home" / "orphan").read_text())
        # A zombie has no command line, and another process may have the number now.
        with suppress(psutil.NoSuchProcess):
            assert psutil.Process(orphan).cmdline() != ["sleep", "1000"]


def test_a_server_that_exits_at_once_ends_the_wait(folder: Path) -> None:
    port, start = free_port(), time.monotonic()
    with pytest.raises(RunFailed, match=r"(?s)it exited before it was ready \(exit 7\).*wrong option"):
        boot(folder, ("/bin/sh", "-c", "echo wrong option; exit 7"), port, timeout_s=60)
    assert time.monotonic() - start < 5


def test_meanwhile_is_called_until_the_server_is_ready(folder: Path) -> None:
    calls = 0

    def meanwhile() -> None:
        nonlocal calls
        calls += 1
        if calls > 6:
            raise RunFailed("the master of the load has ended")

    argv = ("/bin/sleep", "1000")
    with process.serve(make_launch(folder, argv, lambda _: calls > 2), meanwhile=meanwhile) as (server,):
        assert calls == 3
    start = time.monotonic()
    with (
        pytest.raises(RunFailed, match=r"^the master of the load has ended$"),
        process.serve(make_launch(folder, argv, lambda _: False), timeout_s=60, meanwhile=meanwhile),
    ):
        pytest.fail("ready")
    assert time.monotonic() - start < 5
    assert server.popen.poll() is not None


def test_stacks_in_a_log_are_shortened(tmp_path: Path) -> None:
    frames = "".join(f"\tat io.netty.Class.method(Class.java:{line})\n" for line in range(50))
    log = tmp_path / "server.log"
    log.write_text(f"Exception: maximum: 32768\n{frames}Caused by: the cause\n{frames}\t... 50 more\nthe end\n")
    first = "\tat io.netty.Class.method(Class.java:0)"
    assert process.read_last_lines(log).splitlines() == [
        "Exception: maximum: 32768",
        first,
        "Caused by: the cause",
        first,
        "the end",
    ]
    assert process.read_last_lines(tmp_path / "nothing") == f"({tmp_path / 'nothing'} could not be read)"


LAUNCHED = """
import time
from ingest_bench import system
from ingest_bench.jvm import process

popen = system.start(("sh", "-c", "sleep 1000 & wait"))
while not process._children(popen):
    time.sleep(0.01)
start = time.monotonic()
process._end(popen, grace_s=1.0)
print(time.monotonic() - start)
"""


# PTRACE_SEIZE (linux/ptrace.h), and then nothing: the tracer is told of an exit first.
TRACES = """
import ctypes, sys, time
if ctypes.CDLL(None, use_errno=True).ptrace(0x4206, int(sys.argv[1]), None, None):
    sys.exit("it may not")
print("traces", flush=True)
time.sleep(1000)
"""


def test_the_wait_for_a_traced_server_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_KILL_LIMIT_S", 1.0)
    with subprocess.Popen(("sleep", "1000")) as server:
        argv = (sys.executable, "-c", TRACES, str(server.pid))
        with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as tracer:
            assert tracer.stdout is not None
            traces = tracer.stdout.readline() == "traces\n"
            try:
                if traces:
                    with pytest.raises(
                        RunFailed,
                        match=rf"pid {server.pid} was killed .* traced by pid {tracer.pid}, which must detach",
                    ):
                        process.kill_tree(server)
            finally:
                tracer.kill()
                server.kill()
    if not traces:
        pytest.skip("this machine does not allow tracing")


def test_a_zombie_without_a_parent_does_not_delay_the_end() -> None:
    # Orphans become children of this process, which reaps none before the block ends.
    with nothing_left():
        ended = subprocess.run([sys.executable, "-c", LAUNCHED], capture_output=True, timeout=60, check=True)
    assert float(ended.stdout) < 10
