"""Foreign connections at the port of a fleet, invalid messages, imports of children, and the page."""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import ExitStack
from importlib import metadata
from pathlib import Path

import pytest
from bulk_server import bulk_server
from running import free_port
from test_fleet_load import agents, keys_in, remote_workers, supervising
from test_load_process import plan_for, samples_of

from ingest_bench.errors import RunFailed
from ingest_bench.load.fleet.roster import open_fleet
from ingest_bench.load.supervisor import Progress, serve_page, start_load
from ingest_bench.model.target import Endpoint

pytestmark = pytest.mark.processes

# ZMTP 3.1: signature, version, mechanism. What follows never comes.
GREETING = b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x03\x01CURVE".ljust(32, b"\x00")
GARBAGE = (b"", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01" + b"\x00" * 200, GREETING, GREETING.ljust(64, b"\x00"))
STOCK = """
from locust.env import Environment
import locust.runners
locust.runners.CONNECT_TIMEOUT = 3
locust.runners.CONNECT_RETRY_COUNT = 1
import sys
try:
    Environment(user_classes=[]).create_worker_runner("127.0.0.1", int(sys.argv[1]))
except Exception:
    print("not taken")
"""
# A worker with a valid key that joins, and sends an invalid message three times, at once or when it gets a plan.
BROKEN = """
import sys
from pathlib import Path
from locust.rpc import Message
from ingest_bench.load.fleet import curve, keys
from ingest_bench.model.target import Endpoint
port, key, when = sys.argv[1:]
client = curve.Client(Endpoint("127.0.0.1", int(port)), keys.read(keys.WorkerKeys, Path(key)), print, "broken-0")
client.send(Message("client_ready", "2", "broken-0"))
client.send(Message("hello", {"machine": "broken", "pid": 0, "version": "VERSION"}, "broken-0"))
while when == "plan" and client.recv().type != "plan":
    pass
for _ in range(3):
    client.send(Message("status", {}, "broken-0"))
while client.recv().type != "refused":
    pass
client.close()
""".replace("VERSION", metadata.version("ingest-bench"))


def test_a_worker_with_an_invalid_message_is_expelled_and_the_others_send(tmp_path: Path) -> None:
    remote, logged = remote_workers(tmp_path), list[str]()
    port = remote.bind.port
    argv = [sys.executable, "-c", BROKEN, str(port), str(keys_in(tmp_path) / "worker-2.key"), "at once"]
    with bulk_server() as server, agents(tmp_path, port, 1), open_fleet(remote, logged.append) as fleet:
        with subprocess.Popen(argv) as broken:
            while broken.poll() is None:
                fleet.process_messages(0.1)
        plan = plan_for(server.address, tmp_path)
        start_load(plan, fleet=fleet).wait(lambda _: None)
        assert samples_of(plan)["documents_acked"].sum() == server.documents > 0
    assert broken.returncode == 0
    (expelled,) = (line for line in logged if "is expelled: it sent a message 'status'" in line)
    assert expelled.startswith("broken, ")
    assert "worker-2, pid 0 is expelled" in expelled


def test_a_worker_with_an_invalid_message_in_a_load_ends_it_with_its_name(tmp_path: Path) -> None:
    remote = remote_workers(tmp_path)
    port = remote.bind.port
    argv = [sys.executable, "-c", BROKEN, str(port), str(keys_in(tmp_path) / "worker-2.key"), "plan"]
    with bulk_server() as server, subprocess.Popen(argv) as broken, open_fleet(remote, lambda _: None) as fleet:
        try:
            with pytest.raises(RunFailed, match=r"broken, .*pid 0\): is expelled: it sent a message 'status'"):
                start_load(plan_for(server.address, tmp_path), fleet=fleet).wait(lambda _: None)
        finally:
            broken.kill()


def test_1100_foreign_connections_do_not_disturb_a_load(tmp_path: Path) -> None:
    port = free_port()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 3000:
        pytest.skip(f"a hard limit of {hard} descriptors leaves no room for 1,100 connections here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    try:
        with bulk_server() as server, agents(tmp_path, port, 1), supervising(tmp_path, port, 1) as there:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            with ExitStack() as stack:
                for number in range(200):
                    stranger = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
                    stranger.sendall(GARBAGE[number % len(GARBAGE)] or os.urandom(500))
                for _ in range(900):
                    stranger = stack.enter_context(socket.socket())
                    stranger.setblocking(False)
                    stranger.connect_ex(("127.0.0.1", port))
                plan = plan_for(server.address, tmp_path)
                report = start_load(plan, fleet=there).wait(lambda _: None)
            assert samples_of(plan)["documents_acked"].sum() == server.documents > 0
            assert report.bytes_written == server.bytes_read
            assert report.longest_heartbeat_gap_ns < 4e9
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.nightly
def test_a_stock_locust_worker_is_refused_and_logged(tmp_path: Path) -> None:
    remote = remote_workers(tmp_path)
    port = remote.bind.port
    logged: list[str] = []
    argv = [sys.executable, "-c", STOCK, str(port)]
    with (
        bulk_server() as server,
        agents(tmp_path, port, 1),
        open_fleet(remote, logged.append) as there,
        subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as stock,
    ):
        assert stock.communicate(timeout=60)[0] == "not taken\n"
        start_load(plan_for(server.address, tmp_path), fleet=there).wait(lambda _: None)
        assert server.documents
    # By who of both saw first that the other one does not speak its protocol.
    assert [
        line for line in logged if "does not speak our protocol" in line or "left before it identified itself" in line
    ]
    assert len([line for line in logged if "joined" in line]) == 1


def test_locusts_page_shows_the_load_and_is_read_only(tmp_path: Path) -> None:
    port = free_port()
    pages: list[dict[str, object]] = []
    refused: list[int] = []

    def look(progress: Progress) -> None:
        if progress.phase != "measure":
            return
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/stats/requests", timeout=5) as page:
            pages.append(json.load(page))
        for path in ("/stop", "/swarm", "/stats/reset", "/user"):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", data=b"", timeout=5).close()
            except urllib.error.HTTPError as error:
                refused.append(error.code)
                error.close()

    with bulk_server() as server, serve_page(Endpoint("127.0.0.1", port)) as shown:
        # Locust's current rate is that of the seconds up to two before the last update, and is cached for two seconds.
        plan = plan_for(server.address, tmp_path, measure_ns=8 * 10**9, processes=2)
        start_load(plan, page=shown).wait(look)
        assert samples_of(plan)["documents_acked"].sum() == server.documents
    assert set(refused) == {403}
    last = pages[-1]
    assert max(page["user_count"] for page in pages) == 4  # type: ignore[type-var] # they are numbers
    assert last["state"] == "running"
    (bulks,) = [entry for entry in last["stats"] if entry["name"] == "/tiny/_bulk"]  # type: ignore[attr-defined]
    assert 0 < bulks["num_requests"] <= server.requests
    assert bulks["num_failures"] == 0
    assert bulks["current_rps"] > 0


@pytest.mark.parametrize("child", ["worker", "page", "fleet.master"])
def test_a_child_imports_nothing_that_only_the_supervisor_needs(child: str) -> None:
    # A load begins when its children have imported their modules: it took a third longer.
    code = f"import sys, ingest_bench.load.{child}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True, timeout=120)
    imported = set(done.stdout.split())
    assert not {"ingest_bench.load.supervisor", "ingest_bench.load.fleet.roster", "scipy"} & imported
    assert "worker" in child or not [name for name in imported if name.startswith("ingest_bench.documents")]


def test_the_supervisor_and_the_command_import_neither_locust_nor_gevent() -> None:
    code = "import sys, ingest_bench.load.supervisor, ingest_bench.cli.worker; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True, timeout=120)
    assert not {"locust", "gevent", "flask"} & set(done.stdout.split())
