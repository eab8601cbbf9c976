"""One run with every fault of the host at once, on a JVM that writes to its disk; and Ctrl-C in the middle of it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import commands
import pytest
from commands import CTRL_C, Place, nothing_left

from ingest_bench.errors import MissingCapability
from ingest_bench.host import node_resources

pytestmark = [pytest.mark.jvm, pytest.mark.netns, pytest.mark.processes, pytest.mark.machine]

SOURCE = Path(__file__).with_name("java") / "DiskServer.java"
SERVER = """
[protocol]
name = "json-array"
format = "lines"
path = "/"
[start]
source = "DiskServer.java"
java = 17
arguments = ["{host}", "{port}", "{home}"]
heap = "128m"
[ready]
path = "/"
[count]
path = "/"
json = "stored"
"""
EXPERIMENT = """
description = "Every fault of the host at once"
probes = ["host"]
[network]
profile = "ethernet"
[target]
file = "server.toml"
jvm = ["-XX:+AlwaysPreTouch"]
[load]
users = 2
bulk_documents = 50
warm_up = "1s"
measure = "8s"
"""
# Each with its key, how long it lasts, and what it is seen to have done. They begin 1 s after each other and last
# together for 2 s; the log has its blocks before the disk is full, none of its syncs lasts as long as a fault, and the
# last one goes on before its time. The heap is there from the start: the JVM has to give back pages of files alone.
FAULTS = {
    "cpu": ("cores = 0.2", 6, r"held back in (\d+) of \d+ periods of 100 ms"),
    "memory": ('room = "8MiB"', 5, r"at its limit of \d+ MB ([\d,]+) times"),
    "slow-disk": ('rate = "800mbit"', 4, r"wrote ([\d.]+) MB in [\d,]+ writes"),
    "slow-fsync": ('delay = "20ms"', 3, r"([\d,]+) syncs waited, (?:1[5-9]|2\d)\.\d ms each on average"),
    "full-disk": ("", 2, r"full by ([\d,]+) MB"),
}
LIMIT_S = 60


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    try:
        node_resources.require({"cpu", "memory", "disk", "throttle", "syncs"})
    except MissingCapability as error:
        pytest.skip(f"needs root: {error}")
    commands.fill_cache()
    with commands.place() as place:
        monkeypatch.setenv("INGEST_BENCH_STATE", str(place.folder / "state"))
        shutil.copy(SOURCE, place.folder)
        (place.folder / "server.toml").write_text(SERVER)
        faults = [
            f'[[fault]]\nkind = "{kind}"\n{key}\nat = "{number}s"\nfor = "{lasts_s}s"\n'
            for number, (kind, (key, lasts_s, _)) in enumerate(FAULTS.items(), 1)
        ]
        (place.folder / "all.toml").write_text(EXPERIMENT + "".join(faults))
        yield place


def left(place: Place, pid: int) -> list[str]:
    """What is there of the run that the kernel does not take away by itself."""
    found = [str(path) for path in Path("/sys/fs/cgroup").rglob(f"ingest-bench-{pid}-*")]
    found += [str(path) for path in (place.folder / "state").glob("*.jsonl")]
    mounts = Path("/proc/self/mountinfo").read_text()
    found += [line for line in mounts.splitlines() if str(place.folder) in line]
    loops = subprocess.run(("losetup", "-a"), capture_output=True, text=True, check=True).stdout
    return found + [line for line in loops.splitlines() if str(place.folder) in line]


def rules() -> dict[str, str]:
    """Every rule for a disk, and the file that is this disk; "": nobody's, although a rule goes before its disk."""
    files = Path("/sys/fs/cgroup/blkio").glob("blkio.throttle.*_device")
    lines = [(path.name, line) for path in files for line in path.read_text().splitlines()]
    return {f"{name} {line}": _file_of(line.split()[0]) for name, line in lines}


def _file_of(device: str) -> str:
    try:
        return Path(f"/sys/dev/block/{device}/loop/backing_file").read_text()
    except FileNotFoundError:
        return ""


def of_nobody() -> set[str]:
    return {rule for rule, file in rules().items() if not file}


@pytest.mark.nightly
def test_every_fault_of_the_host_is_seen_in_one_run_and_none_is_left(here: Place) -> None:
    before = of_nobody()
    with nothing_left(), here.command("run", "all.toml", "--out", "out") as command:
        pid = command.popen.pid
        assert command.end() == 0, command.text
    (record,) = (json.loads(path.read_text()) for path in here.results[0].glob("*/1/run.json"))
    assert record["state"] == "measured", record["reason"]
    seen = {each["kind"]: each["seen"] for each in record["faults"]}
    for kind, (_, _, words) in FAULTS.items():
        matched = re.search(f"^node 1: {words}", seen[kind])
        assert matched, json.dumps(seen, indent=1)
        assert float(matched[1].replace(",", "")) > 0, seen
    assert left(here, pid) == []
    assert of_nobody() <= before


@pytest.mark.nightly
def test_ctrl_c_in_the_middle_of_all_of_them_leaves_nothing(here: Place) -> None:
    before = of_nobody()
    with nothing_left(), here.command("run", "all.toml", "--out", "out", terminal=True) as command:
        command.until("load measure")
        until = time.monotonic() + LIMIT_S
        while not list(here.folder.rglob(".full-*")):
            assert time.monotonic() < until, command.text
            time.sleep(0.05)
        assert len(left(here, command.popen.pid)) >= 5
        assert len([file for file in rules().values() if str(here.folder) in file]) in (0, 2)
        os.write(command.heard, CTRL_C)
        assert command.end() == 130, command.text
    assert left(here, command.popen.pid) == []
    assert of_nobody() <= before
