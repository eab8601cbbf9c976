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
from rich.text import Text
from typer.testing import CliRunner

from ingest_bench.cli.app import app

COMMAND = Path(sys.executable).with_name("ingest-bench")


def commands(command: Any, *names: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield names, command
    for name, child in getattr(command, "commands", {}).items():
        yield from commands(child, *names, name)


def words(text: str) -> str:
    return " ".join(text.replace("│", " ").split())


@pytest.mark.parametrize(
    ("names", "command"),
    list(commands(typer.main.get_command(app))),
    ids=lambda part: " ".join(part) if isinstance(part, tuple) else "",
)
def test_help_describes_every_option_and_h_is_the_same(names: tuple[str, ...], command: Any) -> None:
    environment = {"COLUMNS": "100", "TERMINAL_WIDTH": "100"}
    long, short = (CliRunner().invoke(app, [*names, option], env=environment) for option in ("--help", "-h"))
    assert long.exit_code == 0, long.exception
    assert "Usage" in long.output
    assert short.output == long.output
    for parameter in command.params:
        text = Text.from_markup(parameter.help or "")
        assert not text.spans, f"{parameter.name}: brackets are taken for a style"
        assert words(text.plain) in words(long.output), parameter.name


def test_list_describes_each_part_differently() -> None:
    parts = json.loads(CliRunner().invoke(app, ["list", "--json"]).stdout)
    for kind in ("experiments", "network profiles", "workloads", "protocols", "probes"):
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
    assert run_bash(script, tmp_path).splitlines() == ["report recommend", "--junit"]


@pytest.mark.processes
def test_completion_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    output = run_bash("ingest-bench --install-completion 2>&1; echo $?", tmp_path / "file")
    *text, code = output.split()
    assert code == "2"
    assert "Traceback" not in text
    assert f"{tmp_path / 'file'}: File exists" in " ".join(text)
