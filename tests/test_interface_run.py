"""`run --interface` as a process: a real path is shaped for the time of each run, and put back however it ends."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import commands
import pytest
from interface_lab import PORT, SERVER, Lab, lab
from readied import ready
from test_fleet_load import keys_in

from ingest_bench.network.act.box import kernel_complaint

pytestmark = [pytest.mark.netns, pytest.mark.processes]

RUN = (sys.executable, "-c", "from ingest_bench.cli import main; main()", "run")
SLOW = 'medium = "veth"\n[to_server]\nrate = "8mbit"\n[to_client]\nrate = "80mbit"\n'
FILE = """
[protocol]
name = "json-array"
path = "/"
[ready]
path = "/"
[count]
path = "/"
json = "stored"
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with lab(tmp_path_factory.mktemp("state")) as made, serving(made):
        yield made


@contextmanager
def serving(place: Lab) -> Iterator[None]:
    argv = (*place.server, sys.executable, str(Path(__file__).with_name("array_server.py")), SERVER, str(PORT))
    with ready(argv):
        yield


def started(place: Lab, folder: Path, *words: str, measure: str = "3s") -> subprocess.Popen[str]:
    (folder / "mine.toml").write_text(FILE)
    (folder / "slow.toml").write_text(SLOW)
    (folder / "same.toml").write_text('medium = "veth"\n')
    own = ("--target", "mine.toml", "--url", f"http://{SERVER}:{PORT}", "--interface", "eth0", "--out", "out")
    short = ("--warm-up", "500ms", "--measure", measure, "--set", "bulk_documents=100", "--set", "users=4")
    pipe = subprocess.PIPE
    argv = (*place.client, *RUN, *own, *short, *words)
    return subprocess.Popen(argv, stdout=pipe, stderr=pipe, text=True, env=place.env, cwd=folder)


def rows(folder: Path) -> list[dict[str, str]]:
    (table,) = folder.glob("out/*/*/summary.csv")
    with table.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def promises(folder: Path, network: str) -> dict[str, dict[str, Any]]:
    (path,) = folder.glob(f"out/*/*/*network={network}.toml/1/run.json")
    return {promise["name"]: promise for promise in json.loads(path.read_text())["promises"]}


@pytest.mark.nightly
def test_each_run_has_its_own_profile_and_what_one_end_can_tell_of_it(place: Lab, tmp_path: Path) -> None:
    before = place.snapshot()
    with started(place, tmp_path, "--set", "network=same.toml,slow.toml") as process:
        said = process.communicate(timeout=200)
    assert process.returncode == 0, said
    place.is_put_back(before)
    found = {row["network"]: row for row in rows(tmp_path)}
    assert set(found) == {"same", "slow"}, said
    for row in found.values():
        assert (row["state"], row["documents_counted"]) == ("measured", row["documents_acked"])
    slow, same = (
        {name: promise["kept"] for name, promise in promises(tmp_path, name).items()} for name in ("slow", "same")
    )
    assert same == {"rtt": True, "mtu": True, "mss": True}
    assert slow["rate to-server"] is True
    # The answers are far from 80 Mbit/s: whether the path would carry that, nobody knows.
    assert slow["rate to-client"] is None
    assert slow["qdisc to-server"] is slow["mss"] is True
    # The load itself is a second instrument: at most 8 Mbit/s, and what the last requests of the warm-up had sent.
    assert float(found["slow"]["bytes_measured"]) < 1.3 * 3 * 1e6
    # What our own queue lost is known; where there is none it is an empty cell.
    assert int(found["slow"]["loss_ppm"]) > 0
    assert found["same"]["loss_ppm"] == ""


@pytest.mark.nightly
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_run_that_is_interrupted_or_killed_leaves_the_interface_as_it_was(
    place: Lab, tmp_path: Path, number: signal.Signals
) -> None:
    before = place.snapshot()
    with started(place, tmp_path, "--set", "network=slow.toml", measure="1min") as process:
        assert process.stderr is not None
        while not (list(tmp_path.glob("out/*/*/*/1/load/samples-0.bin")) and place.leftovers()):
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        assert place.snapshot() != before
        process.send_signal(number)
        said = process.communicate(timeout=120)
    assert process.returncode == (130 if number == signal.SIGINT else -number), said
    place.is_put_back(before)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (("--interface", "nosuch0", "--set", "network=slow.toml"), 2, "there is no such interface"),
        (("--interface", "eth1", "--set", "network=slow.toml"), 2, "leave by eth0; use --interface eth0"),
        (("--set", "network=loopback"), 2, "is the loopback of one machine"),
        pytest.param(
            ("--set", "network=wan-50ms"),
            4,
            "this kernel has no netem",
            marks=pytest.mark.skipif(not kernel_complaint(), reason="this kernel has netem"),
        ),
    ],
)
def test_what_cannot_be_shaped_is_refused_before_the_first_run(
    place: Lab, tmp_path: Path, words: tuple[str, ...], code: int, reason: str
) -> None:
    before = place.snapshot()
    with started(place, tmp_path, *words) as process:
        said = process.communicate(timeout=120)
    assert process.returncode == code, said
    assert reason in " ".join(said[1].split())
    assert not list(tmp_path.glob("out/*/*/*/1"))
    assert place.snapshot() == before
    assert place.leftovers() == []


@pytest.mark.nightly
def test_a_path_that_somebody_else_has_or_puts_back_meanwhile_spoils_only_that_run(place: Lab, tmp_path: Path) -> None:
    before = place.snapshot()
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    with started(place, first, "--set", "network=slow.toml", measure="8s") as process:
        while not list(first.glob("out/*/*/*/1/load/samples-0.bin")):
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        with started(place, second, "--set", "network=slow.toml") as other:
            others = other.communicate(timeout=120)
        assert place.driven("restore")[0] == 0
        said = process.communicate(timeout=120)
    assert other.returncode == 3, others
    assert "eth0: in use by pid" in others[1]
    assert not list(second.glob("out/*/*/*/1"))
    assert process.returncode == 3, said
    assert rows(first)[0]["state"] == "invalid"
    assert "the time limit" in rows(first)[0]["reason"]
    place.is_put_back(before)


@pytest.mark.skipif(os.geteuid() != 0, reason="this needs root, to be nobody")
def test_an_ordinary_user_is_told_that_it_takes_root_before_the_first_run(place: Lab) -> None:
    with commands.place(commands.NOBODY) as here:
        nobody = replace(place, client=(*place.client, *commands.as_user(commands.NOBODY)))
        with started(nobody, here.folder, "--set", "network=slow.toml") as process:
            said = process.communicate(timeout=120)
        assert process.returncode == 4, said
        assert "a real interface can be changed only by root" in said[1]
        assert here.results == []


@pytest.mark.nightly
def test_a_run_over_the_interface_of_our_ssh_connection_spares_it_and_is_not_longer_than_its_limit(
    place: Lab, tmp_path: Path
) -> None:
    before = place.snapshot()
    with over_ssh(place) as terminal:
        with started(terminal, tmp_path, "--set", "network=slow.toml", measure="10min") as process:
            said = process.communicate(timeout=120)
        assert process.returncode == 2, said
        assert "may be shaped for 600 s, and the load takes" in " ".join(said[1].split())
        assert not list(tmp_path.glob("out/*/*/*/1"))
        with started(terminal, tmp_path, "--set", "network=slow.toml") as process:
            said = process.communicate(timeout=200)
    assert process.returncode == 0, said
    spared = promises(tmp_path, "slow")["ssh"]
    assert spared["kept"] is True
    assert re.search(r"198.18.40.2:\d+ to 198.18.40.1:22: [1-9]\d* packets out and [1-9]\d* in", spared["measured"])
    place.is_put_back(before)


@pytest.mark.nightly
def test_at_the_server_the_connections_of_workers_on_other_machines_are_shaped_and_nothing_else(
    place: Lab, tmp_path: Path
) -> None:
    at_server = place.from_the_server()
    before = at_server.snapshot()
    keys = keys_in(tmp_path)
    with started(
        replace(at_server, client=(*at_server.client, "env", f"INGEST_BENCH_KEYS={keys / 'run.key'}")),
        tmp_path,
        *("--port", str(PORT), "--workers", "1", "--bind", SERVER, "--set", "network=same.toml,slow.toml"),
    ) as run:
        argv = (*place.client, *RUN[:-1], "worker", "--connect", SERVER)
        env = {**place.env, "INGEST_BENCH_KEYS": str(keys / "worker-1.key")}
        with subprocess.Popen(argv, env=env, cwd=tmp_path) as worker:
            said = run.communicate(timeout=200)
            assert worker.wait(60) == 0, said
    assert run.returncode == 0, said
    at_server.is_put_back(before)
    found = {row["network"]: row for row in rows(tmp_path)}
    assert set(found) == {"same", "slow"}, said
    for row in found.values():
        assert (row["state"], row["documents_counted"]) == ("measured", row["documents_acked"])
    slow, same = (promises(tmp_path, name) for name in ("slow", "same"))
    assert {name: promise["kept"] for name, promise in same.items()} == dict.fromkeys(("rtt", "mtu", "mss"))
    assert slow["rate to-server"]["kept"] is slow["qdisc to-server"]["kept"] is True
    # The load itself is a second instrument, as from the other end.
    assert float(found["slow"]["bytes_measured"]) < 1.3 * 3 * 1e6
    assert float(found["same"]["bytes_measured"]) > 3 * float(found["slow"]["bytes_measured"])


@contextmanager
def over_ssh(place: Lab) -> Iterator[Lab]:
    """The same place, to who is there by a connection on which a byte goes to and fro all the time."""
    talk = (
        "import socket, sys, time\n"
        "s = socket.create_server(('198.18.40.1', 22)); print('ready', flush=True); c = s.accept()[0]\n"
        "print(*c.getpeername(), *c.getsockname(), flush=True)\n"
        "while True: c.send(b'x'); c.recv(9); time.sleep(0.05)\n"
    )
    answer = "import socket\nc = socket.create_connection(('198.18.40.1', 22))\nwhile c.recv(9): c.send(b'y')\n"
    argv = (*place.client, sys.executable, "-c", talk)
    with ready(argv) as here, subprocess.Popen((*place.server, sys.executable, "-c", answer)) as there:
        try:
            assert here.stdout is not None
            connection = here.stdout.readline().strip()
            yield replace(place, client=(*place.client, "env", f"SSH_CONNECTION={connection}"))
        finally:
            there.kill()
