"""`run --interface` as a process: a real path is shaped during each run, and restored however it ends."""

from __future__ import annotations

import csv
import json
import os
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
from test_interface_ssh import read_until, ssh, sshd

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
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with lab(tmp_path_factory.mktemp("state")) as opened, serve(opened):
        yield opened


@contextmanager
def serve(machine: Lab) -> Iterator[None]:
    argv = (*machine.server, sys.executable, str(Path(__file__).with_name("array_server.py")), SERVER, str(PORT))
    with ready(argv):
        yield


def start_run(machine: Lab, folder: Path, *words: str, measure: str = "3s") -> subprocess.Popen[str]:
    (folder / "mine.toml").write_text(FILE)
    (folder / "slow.toml").write_text(SLOW)
    (folder / "same.toml").write_text('medium = "veth"\n')
    target = ("--target", "mine.toml", "--url", f"http://{SERVER}:{PORT}", "--interface", "eth0", "--out", "out")
    short = ("--warm-up", "500ms", "--measure", measure, "--set", "bulk_documents=100", "--set", "users=4")
    pipe = subprocess.PIPE
    argv = (*machine.client, *RUN, *target, *short, *words)
    return subprocess.Popen(argv, stdout=pipe, stderr=pipe, text=True, env=machine.env, cwd=folder)


def rows(folder: Path) -> list[dict[str, str]]:
    (table,) = folder.glob("out/*/20*/summary.csv")
    with table.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def counted_rows(folder: Path, output: tuple[str, str]) -> dict[str, dict[str, str]]:
    """Return the rows by network; all acknowledged documents of both were counted, and one network is slow."""
    summary = {row["network"]: row for row in rows(folder)}
    assert set(summary) == {"same", "slow"}, output
    for row in summary.values():
        assert (row["state"], row["documents_counted"]) == ("measured", row["documents_acked"])
    # The load is a second instrument: at most 8 Mbit/s, plus the last requests of the warm-up.
    assert float(summary["slow"]["bytes_measured"]) < 1.3 * 3 * 1e6
    return summary


def link_checks(folder: Path, network: str) -> dict[str, dict[str, Any]]:
    (path,) = folder.glob(f"out/*/20*/*network={network}.toml/1/run.json")
    return {check["name"]: check for check in json.loads(path.read_text())["link_checks"]}


@pytest.mark.nightly
def test_each_run_has_its_own_profile_and_link_checks(machine: Lab, tmp_path: Path) -> None:
    before = machine.snapshot()
    with start_run(machine, tmp_path, "--set", "network=same.toml,slow.toml") as process:
        output = process.communicate(timeout=200)
    assert process.returncode == 0, output
    machine.assert_restored(before)
    summary = counted_rows(tmp_path, output)
    slow, same = (
        {name: check["passed"] for name, check in link_checks(tmp_path, name).items()} for name in ("slow", "same")
    )
    assert same == {"rtt": True, "mtu": True, "mss": True}
    assert slow["rate to-server"] is True
    # The responses do not use up 80 Mbit/s.
    assert slow["rate to-client"] is None
    assert slow["qdisc to-server"] is slow["mss"] is True
    # Without our queue, its losses are unknown: an empty cell.
    assert int(summary["slow"]["loss_ppm"]) > 0
    assert summary["same"]["loss_ppm"] == ""


@pytest.mark.nightly
def test_restore_during_a_run_makes_only_that_run_invalid(machine: Lab, tmp_path: Path) -> None:
    before = machine.snapshot()
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    with start_run(machine, first, "--set", "network=slow.toml", measure="8s") as process:
        while not list(first.glob("out/*/20*/*/1/load/samples-0.bin")):
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        with start_run(machine, second, "--set", "network=slow.toml") as other:
            other_output = other.communicate(timeout=120)
        assert machine.run_driver("restore")[0] == 0
        output = process.communicate(timeout=120)
    assert other.returncode == 3, other_output
    assert "eth0: in use by pid" in other_output[1]
    assert not list(second.glob("out/*/20*/*/1"))
    assert process.returncode == 3, output
    assert rows(first)[0]["state"] == "invalid"
    assert "the time limit" in rows(first)[0]["reason"]
    machine.assert_restored(before)


@pytest.mark.skipif(os.geteuid() != 0, reason="requires root to become another user")
def test_ordinary_user_is_refused_before_the_first_run(machine: Lab) -> None:
    with commands.place(commands.ORDINARY_UID) as ordinary:
        user = replace(machine, client=(*machine.client, *commands.as_user(commands.ORDINARY_UID)))
        with start_run(user, ordinary.folder, "--set", "network=slow.toml") as process:
            output = process.communicate(timeout=120)
        assert process.returncode == 4, output
        assert "only root can change a real interface" in output[1]
        assert ordinary.results == []


@pytest.mark.nightly
def test_run_over_the_interface_of_an_ssh_connection_obeys_its_limit(machine: Lab, tmp_path: Path) -> None:
    before = machine.snapshot()
    with over_ssh(machine) as terminal:
        with start_run(terminal, tmp_path, "--set", "network=slow.toml", measure="10min") as process:
            output = process.communicate(timeout=120)
        assert process.returncode == 2, output
        assert "may be shaped for 600 s, and the load takes" in " ".join(output[1].split())
        assert not list(tmp_path.glob("out/*/20*/*/1"))
        with start_run(terminal, tmp_path, "--set", "network=slow.toml") as process:
            output = process.communicate(timeout=200)
    assert process.returncode == 0, output
    machine.assert_restored(before)


@pytest.mark.nightly
def test_connections_of_remote_workers_are_shaped_at_the_server(machine: Lab, tmp_path: Path) -> None:
    at_server = machine.swap_ends()
    before = at_server.snapshot()
    keys = keys_in(tmp_path)
    with start_run(
        replace(at_server, client=(*at_server.client, "env", f"INGEST_BENCH_KEYS={keys / 'run.key'}")),
        tmp_path,
        *("--port", str(PORT), "--workers", "1", "--bind", SERVER, "--set", "network=same.toml,slow.toml"),
    ) as run:
        argv = (*machine.client, *RUN[:-1], "worker", "--connect", SERVER)
        env = {**machine.env, "INGEST_BENCH_KEYS": str(keys / "worker-1.key")}
        with subprocess.Popen(argv, env=env, cwd=tmp_path) as worker:
            output = run.communicate(timeout=200)
            assert worker.wait(60) == 0, output
    assert run.returncode == 0, output
    at_server.assert_restored(before)
    summary = counted_rows(tmp_path, output)
    slow, same = (link_checks(tmp_path, name) for name in ("slow", "same"))
    assert {name: check["passed"] for name, check in same.items()} == dict.fromkeys(("rtt", "mtu", "mss"))
    assert slow["rate to-server"]["passed"] is slow["qdisc to-server"]["passed"] is True
    assert float(summary["same"]["bytes_measured"]) > 3 * float(summary["slow"]["bytes_measured"])


@contextmanager
def over_ssh(machine: Lab) -> Iterator[Lab]:
    """Yield the machine as seen from an SSH-like connection over its interface."""
    with sshd(machine, "sh", "-c", "echo $SSH_CONNECTION; read -r _"), ssh(machine) as terminal:
        connection = read_until(terminal, "\n").strip()
        yield replace(machine, client=(*machine.client, "env", f"SSH_CONNECTION={connection}"))
