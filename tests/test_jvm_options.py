"""Options of a JVM: its heap as it rounds it, and those that would run a command, which are refused as root."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingest_bench import system
from ingest_bench.errors import SpecError
from ingest_bench.experiment import spec
from ingest_bench.jvm import options
from ingest_bench.lab import campaign
from ingest_bench.lab.runner import RunOptions
from ingest_bench.model.values import MIB

COMMANDS = (
    "-XX:OnOutOfMemoryError=id",
    "-XX:OnError=id",
    "-XX:Flags=/tmp/flags",
    "-XX:VMOptionsFile=/tmp/flags",
    "-agentlib:jdwp=transport=dt_socket,onuncaught=y,launch=id",
    "-Xrunjdwp:onuncaught=y,launch = id",
    # A start script splits ES_JAVA_OPTS at spaces.
    "-Da=b -XX:OnError=id",
)


@pytest.mark.parametrize("option", COMMANDS)
def test_root_refuses_an_option_that_runs_a_command(option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "is_root", lambda: True)
    with pytest.raises(SpecError, match="can make the JVM run a command"):
        options.refuse_commands(("-Xss1m", option))
    monkeypatch.setattr(system, "is_root", lambda: False)
    options.refuse_commands((option,))


def test_root_takes_options_that_run_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "is_root", lambda: True)
    options.refuse_commands(("-XX:+ExitOnOutOfMemoryError", "-XX:MinTLABSize=65536", "-agentlib:jdwp=server=y"))


@pytest.mark.parametrize("where", ["experiment", "server file"])
def test_a_command_in_jvm_options_is_refused_before_anything_starts(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "is_root", lambda: True)
    monkeypatch.chdir(tmp_path)
    option = 'jvm = ["-XX:OnError=touch /tmp/x"]\n'
    server = '[protocol]\nname = "json-array"\nformat = "lines"\npath = "/"\n[start]\njar = "a.jar"\n'
    (tmp_path / "a.jar").touch()
    (tmp_path / "server.toml").write_text(server + (option if where == "server file" else ""))
    target = 'file = "server.toml"\n' if where == "server file" else 'name = "sink"\n' + option
    (tmp_path / "experiment.toml").write_text(f'[network]\nprofile = "ethernet"\n[target]\n{target}')
    plan = spec.build_plan(spec.load_experiment(str(tmp_path / "experiment.toml")))
    with pytest.raises(SpecError, match="-XX:OnError=touch /tmp/x"):
        campaign.check_machine(plan, RunOptions())


@pytest.mark.parametrize(
    ("bean", "requested", "argument", "actual", "is_requested"),
    # Sizes of Java 17 and 25 on x86: 2 MiB units, with G1 a region if that is larger.
    [
        ("G1 Young Generation", 1025 * MIB, "", 1_075_838_976, True),
        ("G1 Young Generation", 1025 * MIB, "", 1_075_838_976 + 2 * MIB, False),
        ("G1 Young Generation", 4097 * MIB, "", 4_299_161_600, True),
        ("G1 Young Generation", 1025 * MIB, "-XX:G1HeapRegionSize=4m", 1028 * MIB, True),
        ("G1 Young Generation", 1025 * MIB, "-XX:G1HeapRegionSize=4m", 1032 * MIB, False),
        ("G1 Young Generation", 1000 * MIB, "", 1024 * MIB, False),
        ("G1 Young Generation", 1025 * MIB, "", 1024 * MIB, False),
        ("ZGC Cycles", 64 * MIB + 1024, "", 69_206_016, True),
        ("ZGC Cycles", 4097 * MIB, "-XX:G1HeapRegionSize=4m", 4100 * MIB, False),
        ("PS Scavenge", 1025 * MIB, "", 1026 * MIB - 42 * MIB, True),
        ("Copy, MarkSweepCompact", 1025 * MIB, "", 512 * MIB, False),
    ],
)
def test_a_heap_that_the_jvm_rounded_up_is_the_requested_one(
    bean: str, requested: int, argument: str, actual: int, is_requested: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("resource.getpagesize", lambda: 4096)
    beans = tuple(bean.split(", "))
    assert options.is_requested_heap(actual, requested, beans, ("-Xms1g", argument)) == is_requested
