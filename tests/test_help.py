"""What `--help` says, of each command."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer.main
from rich.text import Text
from typer.testing import CliRunner

from ingest_bench.cli.app import app


def commands(command: Any, *names: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield names, command
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, *names, name)


def words(text: str) -> str:
    return " ".join(text.replace("│", " ").split())


EACH = list(commands(typer.main.get_command(app)))


@pytest.mark.parametrize(("names", "command"), EACH, ids=lambda part: " ".join(part) if isinstance(part, tuple) else "")
def test_the_help_of_each_command_says_what_each_of_its_options_is(names: tuple[str, ...], command: Any) -> None:
    shown = CliRunner().invoke(app, [*names, "--help"], env={"COLUMNS": "100", "TERMINAL_WIDTH": "100"})
    assert shown.exit_code == 0, shown.exception
    for parameter in command.params:
        said = Text.from_markup(parameter.help or "")
        assert not said.spans, f"{parameter.name}: what stands in brackets is taken for a style"
        assert words(said.plain) in words(shown.output), parameter.name
