"""Options of a JVM that would run a command: refused as root."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingest_bench import system
from ingest_bench.errors import SpecError
from ingest_bench.experiment import spec
from ingest_bench.jvm import options
from ingest_bench.lab import campaign
from ingest_bench.lab.runner import RunOptions

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
