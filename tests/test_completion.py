"""Completion of the command in a shell, and `-h`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main

from ingest_bench.cli.app import app, run

COMMAND = Path(sys.executable).with_name("ingest-bench")


def in_bash(script: str, home: Path) -> str:
    """What bash says of a script, in that home."""
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
def test_an_installed_completion_completes_commands_and_options_in_bash(tmp_path: Path) -> None:
    # Whoever asks is found by its process: bash, which must not become the command itself.
    in_bash("ingest-bench --install-completion; true", tmp_path)
    script = """
        source ~/.bashrc
        complete -p ingest-bench > /dev/null
        COMP_WORDS=(ingest-bench re) COMP_CWORD=1
        _ingest_bench_completion ingest-bench; echo "${COMPREPLY[@]}"
        COMP_WORDS=(ingest-bench gate --ju) COMP_CWORD=2
        _ingest_bench_completion ingest-bench; echo "${COMPREPLY[@]}"
    """
    assert in_bash(script, tmp_path).splitlines() == ["report recommend", "--junit"]


@pytest.mark.processes
def test_a_completion_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said = in_bash("ingest-bench --install-completion 2>&1; echo $?", tmp_path / "file")
    *words, code = said.split()
    assert code == "2"
    assert "Traceback" not in words
    assert f"{tmp_path / 'file'}: File exists" in " ".join(words)


def groups(command: Any, *names: str) -> list[tuple[str, ...]]:
    below = getattr(command, "commands", {})
    return [names, *(found for name, one in below.items() for found in groups(one, *names, name))]


@pytest.mark.parametrize("names", groups(typer.main.get_command(app)), ids=" ".join)
def test_h_is_help_everywhere(names: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*names, "-h"]) == 0
    short = capsys.readouterr().out
    assert run([*names, "--help"]) == 0
    assert short == capsys.readouterr().out
    assert "Usage" in short
