"""What strangers do at the port of a fleet changes nothing, and the page is there to look at."""

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
from test_fleet_load import agents, keys_in, supervising
from test_load_process import plan_for, samples_of

from ingest_bench.errors import RunFailed
from ingest_bench.load.fleet import keys
from ingest_bench.load.fleet.roster import Remote, joined, local
from ingest_bench.load.supervisor import Progress, start
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
# A worker for each of what it is told to send, all with one valid key. It ends when each was told that it is refused.
BROKEN = """
import ast, sys
from pathlib import Path
from locust.rpc import Message
from ingest_bench.load.fleet import curve, keys
port, key, *sent = sys.argv[1:]
own = keys.read_worker(Path(key))
hello = {"machine": "broken", "pid": 1, "version": "VERSION", "seat": None}
for number, text in enumerate(sent):
    name = f"broken-{number}"
    client = curve.Client(f"tcp://127.0.0.1:{port}", own, print, name)
    client.send(Message("client_ready", "2", name))
    client.send(Message("hello", hello | {"pid": number}, name))
    kind, data = ast.literal_eval(text)
    for _ in range(3):
        client.send(Message(kind, data, name))
    while client.recv().type != "refused":
        pass
    client.close()
""".replace("VERSION", metadata.version("ingest-bench"))
FIGURES = {"bulks": [{}, {}, 0, [], 0], "queries": [{}, {}, 0, [], 0], "in_flight": 0, "oldest_ns": 0, "cpu_ns": {}}
NONSENSE: tuple[tuple[object, object], ...] = (
    ("say", {}),
    ("say", None),
    ("say", {"phase": "ready", "worker": "w"}),
    ("say", {"phase": "fetched"}),
    ("say", {"phase": "prepared"}),
    ("say", {"phase": "prepared", "users": {"IngestUser": -1}}),
    ("say", {"phase": "measure", "documents": 2**64 - 1}),
    ("say", {"phase": "measure", "figures": FIGURES | {"bulks": [{"unheard of": 1}, {}, 0, [], 0]}}),
    ("say", {"phase": "measure", "figures": FIGURES | {"bulks": [{}, {}, 0, [[10**6, 1]], 0]}}),
    ("say", {"phase": "failed", "error": ["a", "b"]}),
    ("hello", {"machine": 1}),
    ("hello", {"machine": "m", "pid": 1, "version": metadata.version("ingest-bench"), "seat": None}),
    ("pong", {}),
    ("pong", {"asked_ns": 0, "monotonic_ns": 2**63 - 1}),
    ("piece", {"number": 0, "data": "text"}),
    ("heartbeat", None),
    ("heartbeat", {"state": "missing", "current_cpu_usage": 0.0}),
    ("heartbeat", {"state": "ready", "current_cpu_usage": "all"}),
    ("spawning_complete", None),
    ("stats", {"user_classes_count": {}}),
    ("locustfile", {"version": "2"}),
    ("exception", None),
    ("client_ready", 5),
    ("no kind", {}),
    (7, {}),
    ("say", {"__datetime__": 1, "as_str": "no time"}),
)


def test_a_worker_that_sends_nonsense_is_named_and_given_up_and_the_others_send(tmp_path: Path) -> None:
    port, told = free_port(), list[str]()
    known = keys.read_run(keys_in(tmp_path) / keys.RUN_FILE)
    remote = Remote(bind=Endpoint("127.0.0.1", port), workers=1, keys=known, patience_s=120)
    argv = [sys.executable, "-c", BROKEN, str(port), str(keys_in(tmp_path) / "worker-2.key"), *map(repr, NONSENSE)]
    with bulk_server() as server, agents(tmp_path, port, 1), joined(remote, told.append) as there:
        with subprocess.Popen(argv) as broken:
            while broken.poll() is None:
                there.hear(0.1)
        there.hear(0.1)
        given_up = [line for line in told if "is given up: it sent a message" in line]
        plan = plan_for(server.address, tmp_path)
        start(plan, fleet=there).wait(lambda _: None)
        assert samples_of(plan)["documents_acked"].sum() == server.documents > 0
    assert broken.returncode == 0
    assert len(given_up) == len(NONSENSE)
    for number, (line, (kind, _)) in enumerate(zip(given_up, NONSENSE, strict=True)):
        assert line.startswith("broken, ")
        assert f"worker-2, pid {number} is given up" in line
        assert repr(kind) in line or "cannot be read" in line or "of a kind" in line


def test_a_worker_that_sends_nonsense_in_a_load_ends_it_with_its_name(tmp_path: Path) -> None:
    plan_asked = """
while True:
    if client.recv().type == "plan":
        client.send(Message("say", {}, name))
"""
    port = free_port()
    known = keys.read_run(keys_in(tmp_path) / keys.RUN_FILE)
    remote = Remote(bind=Endpoint("127.0.0.1", port), workers=1, keys=known, patience_s=120)
    script = BROKEN.partition("    kind, data")[0] + plan_asked
    key = str(keys_in(tmp_path) / "worker-2.key")
    with (
        bulk_server() as server,
        subprocess.Popen([sys.executable, "-c", script, str(port), key, ""]) as broken,
        joined(remote, lambda _: None) as there,
    ):
        try:
            with pytest.raises(RunFailed, match=r"broken, .*worker-2, pid 0\): is given up: it sent a message 'say'"):
                start(plan_for(server.address, tmp_path), fleet=there).wait(lambda _: None)
        finally:
            broken.kill()


def test_strangers_at_the_port_change_nothing(tmp_path: Path) -> None:
    port = free_port()
    with (
        bulk_server() as server,
        agents(tmp_path, port, 1),
        supervising(tmp_path, port, 1) as there,
        ExitStack() as stack,
    ):
        for number in range(200):
            stranger = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            stranger.sendall(GARBAGE[number % len(GARBAGE)] or os.urandom(500))
        half = stack.enter_context(socket.create_connection(("127.0.0.1", port)))

        def drip(_: Progress) -> None:
            try:
                half.send(b"\xff")
            except OSError:
                return

        plan = plan_for(server.address, tmp_path, measure_ns=3 * 10**9)
        report = start(plan, fleet=there).wait(drip)
        assert samples_of(plan)["documents_acked"].sum() == server.documents > 0
        assert report.bytes_written == server.bytes_read
        assert report.longest_silence_ns < 4e9


def test_load_goes_on_with_1100_strangers_at_a_soft_limit_of_1024(tmp_path: Path) -> None:
    port = free_port()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 3000:
        pytest.skip(f"a hard limit of {hard} descriptors leaves no room for 1,100 connections here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    try:
        with bulk_server() as server, agents(tmp_path, port, 1), supervising(tmp_path, port, 1) as there:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            with ExitStack() as stack:
                for _ in range(1100):
                    stranger = stack.enter_context(socket.socket())
                    stranger.setblocking(False)
                    stranger.connect_ex(("127.0.0.1", port))
                plan = plan_for(server.address, tmp_path)
                report = start(plan, fleet=there).wait(lambda _: None)
            assert samples_of(plan)["documents_acked"].sum() == server.documents > 0
            assert report.longest_silence_ns < 4e9
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.nightly
def test_a_worker_of_a_stock_locust_does_not_join_and_is_told_of(tmp_path: Path) -> None:
    port = free_port()
    known = keys.read_run(keys_in(tmp_path) / keys.RUN_FILE)
    told: list[str] = []
    remote = Remote(bind=Endpoint("127.0.0.1", port), workers=1, keys=known, patience_s=120)
    argv = [sys.executable, "-c", STOCK, str(port)]
    with (
        bulk_server() as server,
        agents(tmp_path, port, 1),
        joined(remote, told.append) as there,
        subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as stock,
    ):
        assert stock.communicate(timeout=60)[0] == "not taken\n"
        start(plan_for(server.address, tmp_path), fleet=there).wait(lambda _: None)
        assert server.documents
    # By who of both saw first that the other one does not speak its protocol.
    assert [line for line in told if "does not speak our protocol" in line or "left before it had said" in line]
    assert len([line for line in told if "joined" in line]) == 1


@pytest.mark.nightly
def test_locusts_page_shows_the_load_and_can_only_be_looked_at(tmp_path: Path) -> None:
    port = free_port()
    seen: list[dict[str, object]] = []
    refused: list[int] = []

    def look(progress: Progress) -> None:
        if progress.phase != "measure":
            return
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/stats/requests", timeout=5) as page:
            seen.append(json.load(page))
        for path in ("/stop", "/swarm", "/stats/reset", "/user"):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", data=b"", timeout=5).close()
            except urllib.error.HTTPError as error:
                refused.append(error.code)
                error.close()

    with bulk_server() as server, local(tmp_path / "fleet", Endpoint("127.0.0.1", port)) as fleet:
        # Locust's current rate is that of the seconds up to two before the newest report, which comes once a second.
        plan = plan_for(server.address, tmp_path, measure_ns=8 * 10**9, processes=2)
        start(plan, fleet=fleet).wait(look)
        assert samples_of(plan)["documents_acked"].sum() == server.documents
    assert set(refused) == {403}
    last = seen[-1]
    assert max(one["user_count"] for one in seen) == 4  # type: ignore[type-var] # they are numbers
    assert last["state"] == "running"
    (bulks,) = [entry for entry in last["stats"] if entry["name"] == "/tiny/_bulk"]  # type: ignore[attr-defined]
    assert 0 < bulks["num_requests"] <= server.requests
    assert bulks["num_failures"] == 0
    assert bulks["current_rps"] > 0


@pytest.mark.parametrize("child", ["master", "fleet_worker"])
def test_a_child_imports_nothing_that_only_whoever_measures_needs(child: str) -> None:
    # A load begins when its children have imported what they need: it was a third more.
    code = f"import sys, ingest_bench.load.fleet.{child}; print(*sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True, timeout=120)
    imported = set(said.stdout.split())
    assert not {"ingest_bench.load.supervisor", "ingest_bench.load.fleet.roster"} & imported
    assert child == "fleet_worker" or not [name for name in imported if name.startswith("ingest_bench.documents")]
