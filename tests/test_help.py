"""`--help`, `-h` and shell completion of every command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from ingest_bench.cli import completion
from ingest_bench.cli import help as help_module
from ingest_bench.cli.app import app

COMMAND = Path(sys.executable).with_name("ingest-bench")


def commands(command: Any, *names: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield names, command
    for name, child in getattr(command, "commands", {}).items():
        yield from commands(child, *names, name)


@pytest.mark.parametrize(
    ("names", "command"),
    list(commands(typer.main.get_command(app))),
    ids=lambda part: " ".join(part) if isinstance(part, tuple) else "",
)
def test_help_describes_every_option_and_h_is_the_same(names: tuple[str, ...], command: Any) -> None:
    long, short = (CliRunner().invoke(app, [*names, option], env={"COLUMNS": "80"}) for option in ("--help", "-h"))
    assert long.exit_code == 0, long.exception
    assert "Usage" in long.output
    assert short.output == long.output
    for parameter in command.params:
        assert " ".join((parameter.help or "").split()) in " ".join(long.output.split()), parameter.name
    assert max(map(len, long.output.splitlines())) <= 80


def test_help_of_run_fits_100_lines_with_examples_and_panels_first() -> None:
    output = CliRunner().invoke(app, ["run", "--help"], env={"COLUMNS": "80"}).output
    lines = output.splitlines()
    assert len(lines) <= 100
    assert sum(line.startswith("  ingest-bench run") for line in lines[:10]) == 5
    command: Any = typer.main.get_command(app)
    options = {parameter.name for parameter in command.commands["run"].params}
    panels = {panel: names.keys() & options for panel, names in help_module.PANELS.items()}
    assert [line for line in lines if line in panels] == [panel for panel, names in panels.items() if names]
    assert set().union(*panels.values()) == options


def test_help_and_version_are_commands_too() -> None:
    commands = (("help", "net", "apply"), ("help",), ("version",))
    outputs = [CliRunner().invoke(app, list(words)).output for words in commands]
    assert outputs[0] == CliRunner().invoke(app, ["net", "apply", "--help"]).output
    assert outputs[1] == CliRunner().invoke(app, ["--help"]).output
    assert outputs[2] == CliRunner().invoke(app, ["--version"]).output


def test_list_describes_each_part_differently() -> None:
    parts = json.loads(CliRunner().invoke(app, ["list", "--json"]).stdout)
    for kind in ("experiments", "network profiles", "workloads", "example targets", "protocols", "probes"):
        texts = list(parts[kind].values())
        assert all(texts), kind
        assert len(set(texts)) == len(texts), kind


def run_bash(script: str, home: Path) -> str:
    """Return the output of a script in bash with that home."""
    path = f"{COMMAND.parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-c", script],
        env={"HOME": str(home), "PATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.nightly
@pytest.mark.processes
def test_installed_completion_completes_commands_and_options(tmp_path: Path) -> None:
    # The shell is detected by its process: `true` keeps bash from replacing itself by the command.
    run_bash("ingest-bench --install-completion; true", tmp_path)
    script = """
        source ~/.bashrc
        complete -p ingest-bench > /dev/null
        COMP_WORDS=(ingest-bench re) COMP_CWORD=1
        _ingest_bench_completion ingest-bench; echo "${COMPREPLY[@]}"
        COMP_WORDS=(ingest-bench gate --ju) COMP_CWORD=2
        _ingest_bench_completion ingest-bench; echo "${COMPREPLY[@]}"
    """
    assert run_bash(script, tmp_path).splitlines() == ["report results recommend", "--junit"]


@pytest.mark.processes
def test_completion_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    output = run_bash("ingest-bench --install-completion 2>&1; echo $?", tmp_path / "file")
    *text, code = output.split()
    assert code == "2"
    assert "Traceback" not in text
    assert f"{tmp_path / 'file'}: File exists" in " ".join(text)


def test_names_keys_and_values_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "quick.toml").touch()
    (tmp_path / "results" / "quickstart" / "2026-11-22T04-00-00Z").mkdir(parents=True)
    assert completion.complete_experiment("quick") == ["quickstart", "quick.toml"]
    assert completion.complete_target("opens") == ["opensearch"]
    assert completion.complete_setting("hea") == ["heap="]
    assert "network=loopback,ethernet" in completion.complete_setting("network=loopback,eth")
    assert completion.complete_setting("target=cass") == ["target=cassandra"]
    assert "gc=parallel" in completion.complete_setting("gc=")
    assert "version=0.7.4..0.7.5" in completion.complete_setting("version=0.7.4..0")
    assert completion.complete_setting("nonsense=") == []
    assert completion.complete_results("qu") == ["quickstart"]
    assert completion.complete_results("results/") == ["results/quickstart/2026-11-22T04-00-00Z"]
    # Shells insert names without quotes.
    for name in ("quick$(reboot).toml", "quick;reboot.toml", "quick\nreboot.toml", "quick\x1b[2J.toml", "quick'.toml"):
        (tmp_path / name).touch()
    assert completion.complete_experiment("quick") == ["quickstart", "quick.toml"]
    words = "ingest-bench run quickstart --set hea"
    variables = {"_INGEST_BENCH_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": "4"}
    assert CliRunner().invoke(app, [], env=variables, prog_name="ingest-bench").output.split() == ["heap="]
