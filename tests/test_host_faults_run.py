"""One run with every fault of the host at the same time, on a JVM that writes to its disk."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import commands
import pytest
from commands import Place, nothing_left
from fault_lab import list_loop_devices, skip_without, wait_until
from kills_lab import SERVER

from ingest_bench.host import node_resources

pytestmark = [pytest.mark.jvm, pytest.mark.netns, pytest.mark.processes, pytest.mark.machine]

SOURCE = Path(__file__).with_name("java") / "DiskServer.java"
EXPERIMENT = """
description = "Every fault of the host at the same time"
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
# Key, duration in seconds, and effect. They begin 1 s after each other and overlap for 2 s. The log has its blocks
# before the disk is full, no sync lasts as long as a fault, and the last fault ends first. The heap is allocated from
# the start, so only pages of files can be reclaimed.
FAULTS = {
    "cpu": ("cores = 0.2", 6, r"throttled in (\d+) of \d+ periods of 100 ms"),
    "memory": ('headroom = "8MiB"', 5, r"reached its limit of \d+ MB ([\d,]+) times"),
    "slow-disk": ('rate = "800mbit"', 4, r"wrote ([\d.]+) MB in [\d,]+ writes"),
    "slow-fsync": ('delay = "20ms"', 3, r"([\d,]+) sync calls delayed, (?:1[5-9]|2\d)\.\d ms each on average"),
    "full-disk": ("", 2, r"filled with ([\d,]+) MB"),
}


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    skip_without(lambda: node_resources.require_resources({"cpu", "memory", "disk", "throttle", "syncs"}))
    commands.fill_cache()
    with commands.place() as place:
        monkeypatch.setenv("INGEST_BENCH_STATE", str(place.folder / "state"))
        shutil.copy(SOURCE, place.folder)
        (place.folder / "server.toml").write_text(SERVER)
        faults = [
            f'[[fault]]\nkind = "{kind}"\n{key}\nat = "{number}s"\nfor = "{duration_s}s"\n'
            for number, (kind, (key, duration_s, _)) in enumerate(FAULTS.items(), 1)
        ]
        (place.folder / "all.toml").write_text(EXPERIMENT + "".join(faults))
        yield place


def list_leftovers(place: Place, pid: int) -> list[str]:
    """Return what the kernel does not remove by itself."""
    leftovers = [str(path) for path in Path("/sys/fs/cgroup").rglob(f"ingest-bench-{pid}-*")]
    leftovers += [str(path) for path in (place.folder / "state").glob("*.jsonl")]
    mounts = Path("/proc/self/mountinfo").read_text()
    leftovers += [line for line in mounts.splitlines() if str(place.folder) in line]
    return leftovers + list_loop_devices(place.folder)


@pytest.mark.nightly
def test_every_fault_of_the_host_has_its_effect_and_leaves_nothing(here: Place) -> None:
    with nothing_left(), here.command("run", "all.toml", "--out", "out") as command:
        pid = command.popen.pid
        assert command.end() == 0, command.text
    (record,) = (json.loads(path.read_text()) for path in here.results[0].glob("*/1/run.json"))
    assert record["state"] == "measured", record["reason"]
    effects = {fault["kind"]: fault["effect"] for fault in record["faults"]}
    for kind, (_, _, pattern) in FAULTS.items():
        match = re.search(f"^node 1: {pattern}", effects[kind])
        assert match, json.dumps(effects, indent=1)
        assert float(match[1].replace(",", "")) > 0, effects
    wait_until(lambda: not list_leftovers(here, pid))
