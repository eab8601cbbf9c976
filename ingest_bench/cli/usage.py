"""Messages for commands, options and arguments that do not exist, are missing, or have an invalid value."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from typer.exceptions import TyperException

from ingest_bench import targets
from ingest_bench.experiment import catalog, key_paths
from ingest_bench.inputs import files
from ingest_bench.inputs.names import find_match, suggest
from ingest_bench.units import quote_name


def describe_usage_error(error: TyperException, arguments: Sequence[str]) -> str:
    """Return what is wrong with a command line, what was meant and whose help has more; empty if help was printed."""
    text, context = error.format_message().rstrip("."), getattr(error, "ctx", None)
    if not text:
        return ""
    if context is None:
        return f"{text}. See `{' '.join(['ingest-bench', *arguments[:1]])} --help`."
    command = context.command
    parts: Mapping[str, Any] = getattr(command, "commands", {})
    quoted = re.search(r"'([^']*)'|\(([^()]*)\)$", text)
    name = (quoted[1] or quoted[2] or "") if quoted else ""
    details: Any = error  # The classes of typer's exceptions are private.
    if type(error).__name__ == "NoSuchOption":
        option = details.option_name
        text = f"there is no option {quote_name(option)}{_suggest_option(option, command, arguments)}"
    elif text.startswith("No such command"):
        text = f'there is no command "{quote_name(name)}"{_suggest_command(name, parts, context.command_path)}'
    elif text == "Missing command":
        text = f"`{context.command_path}` requires a command: {', '.join(parts)}"
    elif text.startswith("Missing"):
        param = details.param
        name = param.opts[0] if param.opts[0].startswith("-") else (param.metavar or param.name).upper()
        meaning = param.help.replace("\\", "").rstrip(".")
        text = f"`{context.command_path}` requires {name.strip('[]')}: {meaning[:1].lower()}{meaning[1:]}"
    elif text.startswith("Got unexpected extra argument"):
        option = "--set" if "=" in name else "--version" if name[:1].isdigit() else ""
        remedy = f"; did you mean {option} {quote_name(name)}?" if option in _options(command) else ""
        if name[:1].isdigit() and "--good" in _options(command):
            remedy = f"; did you mean --set version={quote_name(name)}?"
        text = f'unexpected argument "{quote_name(name)}"{remedy}'
    elif invalid := re.fullmatch("Invalid value for '?([^']*)'?: (?:Value error, )?(.*)", text):
        problem = invalid[2].partition(",")[0].replace("Input should be", "must be")
        text = f"{invalid[1]}: {problem.replace('a valid integer', 'a whole number')}"
        value, *words = re.findall("'([^']*)'", invalid[2]) or [""]
        if words:
            text = f"{invalid[1]} {quote_name(value)}; {suggest(value, words)}"
    text += "" if text.endswith("?") else "."
    return f"{text} See `{context.command_path} --help`."


def _options(command: Any) -> list[str]:
    return [option for param in command.params for option in param.opts if option.startswith("--")]


def _suggest_option(option: str, command: Any, arguments: Sequence[str]) -> str:
    """Suggest an option of the command, or a key for its `--set`."""
    options, name = _options(command), option.strip("-").replace("-", "_")
    keys = [*key_paths.iter_keys()] if "--set" in options else []
    words = [word for argument in arguments for word in argument.split("=", 1)]
    following = dict(itertools.pairwise(words)).get(option, "--")
    value = "VALUE" if following.startswith("--") else following
    # "--mtu" is the key of that name, not the option --interface-mtu.
    if name not in keys and (match := find_match(option, options)):
        return f"; did you mean {match}?"
    if keys and (key := key_paths.find_key(option, value)):
        return f"; did you mean --set {key}={quote_name(value)}?"
    if keys and name in key_paths.REMEDIES:
        return f"; {key_paths.REMEDIES[name]}"
    return "; options follow the command" if hasattr(command, "commands") else ""


def _suggest_command(name: str, commands: Mapping[str, Any], path: str) -> str:
    """Suggest a command, or the command that runs the experiment of that name."""
    experiments = files.data_files(catalog.EXPERIMENTS)
    if match := find_match(name, commands):
        return f"; did you mean `{path} {match}`?"
    if "run" in commands and f"--{name}" in _options(commands["run"]):
        return f"; did you mean `{path} run --{name}`?"
    if "run" in commands and name in targets.TARGETS:
        return f"; did you mean `{path} run quickstart --target {name}`?"
    if "run" in commands and (match := name if name.endswith(".toml") else find_match(name, experiments)):
        return f"; did you mean `{path} run {quote_name(match)}`?"
    return f"; known: {', '.join(commands)}"
