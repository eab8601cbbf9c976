"""A server that never gets ready ends the run within its boot limit, and says why with the end of its log."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
from commands import nothing_left
from running import free_port
from servers import on_this_network, opened_link, served

from ingest_bench import targets
from ingest_bench.errors import RunFailed
from ingest_bench.jvm import ending, process, server_user
from ingest_bench.model.target import Endpoint, LaunchPlan, TargetOptions
from ingest_bench.targets.http import ask

pytestmark = pytest.mark.processes

# In the place of a JVM: it says a last word, listens, and then does the thing with each connection that is asked for.
SERVER = r"""
import signal, socket, sys, time
port, behaviour = int(sys.argv[1]), sys.argv[2]
listener = socket.create_server(("127.0.0.1", port))
print("the last word of the log \x1b[2J", flush=True)
if behaviour == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
kept = []
while True:
    connection, _ = listener.accept()
    kept.append(connection)
    if behaviour == "broken":
        connection.close()
    if behaviour in ("busy", "odd"):
        connection.recv(65536)
        status, body = (b"200 OK", b'{"status": {}}') if behaviour == "odd" else (b"503 Service Unavailable", b"{}")
        head = b"HTTP/1.1 %s\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % (status, len(body))
        connection.sendall(head + body)
        connection.close()
    try:
        if behaviour == "drips":
            for letter in b"HTTP/1.1 200 OK\r\n" + b"X-Header: 1\r\n" * 10_000:
                connection.sendall(bytes([letter]))
                time.sleep(0.05)
        if behaviour == "endless":
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            while True:
                connection.sendall(b"x" * 65536)
    except OSError:
        pass
"""
LIMIT_S = 1.5
BEHAVIOURS = {
    "silent": r"no answer to GET http://127\.0\.0\.1:\d+/_cluster/health\?local=true \(TimeoutError: timed out\)",
    "deaf": "TimeoutError: timed out",
    "drips": "TimeoutError: timed out",
    "endless": "TimeoutError: timed out|the answer is longer than",
    "broken": "RemoteDisconnected|ConnectionResetError",
    "busy": "it answers that it is not",
    "odd": "it answers that it is not",
}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder for a server, of which no process is left."""
    yield tmp_path
    own = [child for child in psutil.Process().children(recursive=True) if str(tmp_path) in " ".join(child.cmdline())]
    assert own == []


@pytest.mark.parametrize("mode", [0o700, 0o711])
def test_a_server_whose_own_folder_is_closed_may_walk_through_it_all_the_same(
    monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        monkeypatch.setenv("INGEST_BENCH_CACHE", folder)
        Path(folder).chmod(mode)
        plan = LaunchPlan(argv=("/bin/true",), env={}, cwd=Path(folder), writable=())
        assert server_user.reachable(plan) == (mode == 0o711)


def test_a_link_into_a_closed_folder_leads_through_it() -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        Path(folder).chmod(0o711)
        there, link = Path(folder) / "closed" / "there", Path(folder) / "link"
        there.mkdir(parents=True)
        # Two links, of which the second is in no closed folder.
        (Path(folder) / "again").symlink_to("link")
        link.symlink_to(there)
        plan = LaunchPlan(argv=("/bin/true",), env={}, cwd=Path(folder), writable=(Path(folder) / "again" / "home",))
        assert server_user.reachable(plan)
        there.parent.chmod(0o700)
        assert not server_user.reachable(plan)


def boot(folder: Path, argv: tuple[str, ...], port: int, timeout_s: float = LIMIT_S) -> None:
    """A start of such a server as if it were OpenSearch."""
    target, listen = targets.named("opensearch"), Endpoint("127.0.0.1", port)
    plan = LaunchPlan(argv=argv, env={}, cwd=folder, writable=())
    with ExitStack() as stack:
        http = stack.enter_context(ask(tuple, listen))
        launch = process.Launch(
            plan=plan,
            enter=on_this_network,
            log=folder / "server.log",
            listen=listen,
            ready=lambda left_s: target.is_ready(0, (http.within(left_s),)),
        )
        stack.enter_context(process.serve(launch, timeout_s=timeout_s))
        pytest.fail("it cannot be ready")


def scripted(behaviour: str, port: int) -> tuple[str, ...]:
    return (os.path.realpath(sys.executable), "-I", "-S", "-c", SERVER, str(port), behaviour)


@pytest.mark.nightly
@pytest.mark.parametrize("behaviour", BEHAVIOURS)
def test_a_server_that_is_never_ready_ends_within_its_limit(folder: Path, behaviour: str) -> None:
    port, began = free_port(), time.monotonic()
    with pytest.raises(RunFailed) as failed:
        boot(folder, scripted(behaviour, port), port)
    # One that is deaf to SIGTERM has five seconds to end its recording.
    assert time.monotonic() - began < LIMIT_S + (6.5 if behaviour == "deaf" else 2.5)
    said = str(failed.value)
    assert re.match(rf"server: not ready after 1\.5 s \(.*({BEHAVIOURS[behaviour]}).*\)\. ", said), said
    assert f"{folder / 'server.log'} ends:\nthe last word of the log" in said


def test_a_launcher_that_outlives_its_server_ends_within_the_limit_too(folder: Path) -> None:
    port, began = free_port(), time.monotonic()
    launcher = ("/bin/sh", "-c", "sh -c 'echo its server has died; exit 1'; exec sleep 1000")
    with pytest.raises(RunFailed, match=r"(?s)not ready after 1\.5 s \(.*its server has died"):
        boot(folder, launcher, port)
    assert time.monotonic() - began < LIMIT_S + 2.5


@pytest.mark.netns
@pytest.mark.parametrize(("is_ready", "when"), [(True, "as soon as"), (False, "before")])
def test_what_a_launcher_leaves_behind_ends_with_it(folder: Path, is_ready: bool, when: str) -> None:
    launcher = ("/bin/sh", "-c", f"setsid sleep 1000 & echo $! > {folder}/home/orphan; sleep 0.2")
    plan = LaunchPlan(argv=launcher, env={}, cwd=folder, writable=(folder / "home",), pid_is_jvm=False)

    def ready(_left_s: float) -> bool:
        # The launcher ends while it is asked.
        time.sleep(1)
        return is_ready

    with opened_link() as between, ExitStack() as stack:
        launch = process.Launch(
            plan=plan,
            enter=between.server.command,
            log=folder / "server.log",
            listen=Endpoint(between.server_address, 9200),
            ready=ready,
        )
        with pytest.raises(RunFailed, match=rf"it ended {when} it was ready \(exit 0\)"):
            stack.enter_context(process.serve(launch))
        orphan = int((folder / "home" / "orphan").read_text())
        assert not psutil.pid_exists(orphan) or psutil.Process(orphan).status() == psutil.STATUS_ZOMBIE


def test_a_server_that_ends_at_once_is_not_waited_for(folder: Path) -> None:
    port, began = free_port(), time.monotonic()
    with pytest.raises(RunFailed, match=r"(?s)it ended before it was ready \(exit 7\).*wrong option"):
        boot(folder, ("/bin/sh", "-c", "echo wrong option; exit 7"), port, timeout_s=60)
    assert time.monotonic() - began < 5


def test_what_is_done_meanwhile_goes_on_until_the_server_is_ready_and_its_error_ends_the_boot(folder: Path) -> None:
    done = 0

    def meanwhile() -> None:
        nonlocal done
        done += 1
        if done > 6:
            raise RunFailed("the master of the load has ended")

    def launch(ready: Callable[[float], bool]) -> process.Launch:
        plan = LaunchPlan(argv=("/bin/sleep", "1000"), env={}, cwd=folder, writable=())
        listen = Endpoint("127.0.0.1", free_port())
        return process.Launch(plan=plan, enter=on_this_network, log=folder / "server.log", listen=listen, ready=ready)

    with process.serve(launch(lambda _: done > 2), meanwhile=meanwhile) as (server,):
        assert done == 3
    began = time.monotonic()
    with (
        pytest.raises(RunFailed, match=r"^the master of the load has ended$"),
        process.serve(launch(lambda _: False), timeout_s=60, meanwhile=meanwhile),
    ):
        pytest.fail("it cannot be ready")
    assert time.monotonic() - began < 5
    assert server.popen.poll() is not None


def test_a_stack_in_a_log_leaves_room_for_what_was_said(tmp_path: Path) -> None:
    frames = "".join(f"\tat io.netty.Class.method(Class.java:{line})\n" for line in range(50))
    log = tmp_path / "server.log"
    log.write_text(f"Exception: maximum: 32768\n{frames}Caused by: the cause\n{frames}\t... 50 more\nthe end\n")
    first = "\tat io.netty.Class.method(Class.java:0)"
    assert process.last_lines(log).splitlines() == [
        "Exception: maximum: 32768",
        first,
        "Caused by: the cause",
        first,
        "the end",
    ]
    assert process.last_lines(tmp_path / "nothing") == f"({tmp_path / 'nothing'} could not be read)"


@pytest.mark.jvm
@pytest.mark.netns
@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("-Dsink.receive=65536..32768", "maximum: 32768"),
        ("-Dsink.host=192.0.2.1", "Cannot assign requested address"),
        ("-XX:NoSuchFlag", "Unrecognized VM option"),
        ("-Xmx1k", "Too small maximum heap|Initial heap size set to a larger value"),
    ],
)
def test_a_sink_that_cannot_run_ends_at_once_and_says_why(tmp_path: Path, option: str, said: str) -> None:
    asked, began = TargetOptions(name="sink", heap_bytes=64 << 20, jvm=(option,)), time.monotonic()
    with (
        pytest.raises(RunFailed, match=rf"(?s)it ended before it was ready \(exit 1\).*({said})"),
        served(tmp_path, asked),
    ):
        pytest.fail("it cannot be ready")
    assert time.monotonic() - began < 20


LAUNCHED = """
import time
from ingest_bench import system
from ingest_bench.jvm import ending

popen = system.start(("sh", "-c", "sleep 1000 & wait"))
while not ending.children_of(popen):
    time.sleep(0.01)
began = time.monotonic()
ending.end(popen, grace_s=1.0)
print(time.monotonic() - began)
"""


# PTRACE_SEIZE (linux/ptrace.h), and then nothing: whoever traces is told of an end first.
TRACES = """
import ctypes, sys, time
if ctypes.CDLL(None, use_errno=True).ptrace(0x4206, int(sys.argv[1]), None, None):
    sys.exit("it may not")
print("traces", flush=True)
time.sleep(1000)
"""


def test_a_server_that_somebody_else_traces_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ending, "_GONE_S", 1.0)
    with subprocess.Popen(("sleep", "1000")) as server:
        argv = (sys.executable, "-c", TRACES, str(server.pid))
        with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as tracer:
            assert tracer.stdout is not None
            traces = tracer.stdout.readline() == "traces\n"
            try:
                if traces:
                    with pytest.raises(RunFailed, match=rf"pid {server.pid} was killed .* pid {tracer.pid} traces it"):
                        ending.kill(server)
            finally:
                tracer.kill()
                server.kill()
    if not traces:
        pytest.skip("this machine lets nobody trace a process that it did not start")


def test_a_server_whose_script_ends_before_it_is_not_waited_for_when_nobody_asks_for_its_status() -> None:
    # Whoever loses its parent becomes a child of this process, which asks nobody for anything until the block ends.
    with nothing_left():
        ended = subprocess.run([sys.executable, "-c", LAUNCHED], capture_output=True, timeout=60, check=True)
    assert float(ended.stdout) < 10
