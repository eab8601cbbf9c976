"""`help` and `version`, and how the help of a command is printed: examples first, then its options in panels."""

from __future__ import annotations

import shutil
import textwrap
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer

from ingest_bench.cli import screen

app = typer.Typer()

PANELS = tomllib.loads(Path(__file__).with_name("options.toml").read_text(encoding="utf-8"))
"""Options by the panels of `run`; the help of a command with few options has no panels."""
_MAX_PLAIN_OPTIONS = 20


@app.command("help")
def show_help(
    context: typer.Context,
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[COMMAND]...", help="A command, as in `net apply`.")
    ] = None,
) -> None:
    """Describe all commands, or one."""
    command: Any = context.find_root().command
    command([*(words or ()), "--help"], prog_name=context.find_root().info_name, standalone_mode=False)


@app.command("version")
def print_version() -> None:
    """Print the version."""
    screen.print_text(f"ingest-bench {metadata.version('ingest-bench')}")


def print_help(*, obj: Any, ctx: Any, markup_mode: object) -> None:  # noqa: ARG001 - typer calls it
    """Print the help of a command: usage, purpose, examples, and its options without their types."""
    width = min(100, shutil.get_terminal_size().columns)
    screen.print_text(f"{obj.get_usage(ctx)}\n")
    for paragraph in (obj.help or "").split("\n\n"):
        screen.print_text(textwrap.fill(" ".join(paragraph.split()), width) + "\n")
    if obj.epilog:
        screen.print_text(f"{obj.epilog}\n")
    names = {name: panel for panel, names in PANELS.items() for name in names}
    shown = [parameter for parameter in obj.get_params(ctx) if not getattr(parameter, "hidden", False)]
    if len(shown) > _MAX_PLAIN_OPTIONS:
        shown.sort(key=lambda parameter: [*names, parameter.name].index(parameter.name))
    panels: dict[str, list[tuple[str, str]]] = {}
    for parameter in shown:
        kind = "Arguments" if parameter.param_type_name == "argument" else "Options"
        panel = names.get(parameter.name, "Output") if len(shown) > _MAX_PLAIN_OPTIONS else kind
        panels.setdefault(panel, []).append(_describe_parameter(parameter, ctx))
    if hasattr(obj, "commands"):
        commands = {name: obj.get_command(ctx, name).help for name in obj.list_commands(ctx)}
        panels["Commands"] = [(name, text.partition("\n\n")[0]) for name, text in commands.items()]
    for panel, rows in panels.items():
        screen.print_names(panel, rows, width)


def _describe_parameter(parameter: Any, ctx: Any) -> tuple[str, str]:
    """Return the names of a parameter, with a placeholder if it has one of its own, and its help."""
    text = parameter.help or ""
    if "|" in (choices := str(parameter.display_type_rich(ctx=ctx))) and not parameter.metavar:
        text += f" One of: {choices.strip('<>').replace('|', ', ')}."
    if parameter.required:
        text += " Required."
    elif parameter.default and isinstance(parameter.default, (int, str, Path)) and "efault" not in text:
        text += f" Default: {parameter.default}."
    if parameter.param_type_name == "argument":
        return parameter.metavar or parameter.name, text
    return " ".join([", ".join(sorted(parameter.opts, key=len)), parameter.metavar or ""]).rstrip(), text
