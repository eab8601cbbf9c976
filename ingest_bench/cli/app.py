"""All commands, and how errors become one message and an exit code."""

from __future__ import annotations

import errno
import functools
import os
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Annotated, Any, TextIO

import typer
from typer import rich_utils
from typer.core import TyperGroup
from typer.exceptions import TyperException
from typer.main import get_group

from ingest_bench.cli import screen
from ingest_bench.cli.help import print_help, print_version
from ingest_bench.errors import IngestBenchError, Interrupted, RunFailed, SpecError

# What a shell returns when a program ends by SIGPIPE. Not 0: remaining work was not done.
_READER_GONE = 141
# Errors of paths that the user gave and that no file can have.
_BAD_PATH = {errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.EACCES}
_FULL = {errno.ENOSPC, errno.EDQUOT}
_DISK = {*_FULL, errno.EROFS, errno.EPERM}

# The module of each command, in the order of the help.
_MODULES = {
    name: module
    for module, names in (
        ("run", "run plan"),
        ("report", "report results recommend"),
        ("compare", "gate compare trend"),
        ("bisect", "bisect"),
        ("inventory", "list show init fetch doctor"),
        ("run", "calibrate"),
        ("worker", "worker"),
        ("net", "net"),
        ("inventory", "workload"),
        ("help", "help version"),
    )
    for name in names.split()
}


@functools.cache
def _load_command(name: str) -> Any:
    group = get_group(import_module(f"ingest_bench.cli.{_MODULES[name]}").app)
    command = group.commands.get(name, group)
    command.name = name
    return command


class _Commands(Mapping[str, Any]):
    """The commands by name. Each is imported when it is used: importing all takes a second."""

    def __getitem__(self, name: str) -> Any:
        return _load_command(name)

    def __iter__(self) -> Iterator[str]:
        return iter(_MODULES)

    def __len__(self) -> int:
        return len(_MODULES)


class _Group(TyperGroup):
    """The main command with its lazily imported commands."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "commands": _Commands()})


app = typer.Typer(
    name="ingest-bench",
    cls=_Group,
    suggest_commands=False,
    help="Chaos and load testing of network ingest into JVM servers: what the network does to the heap.",
    epilog="Start with: ingest-bench run quickstart",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)
# The help of typer itself has boxes and a column of Python types.
rich_utils.rich_format_help = print_help


def _print_version(is_requested: bool) -> None:
    if is_requested:
        print_version()
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def run(arguments: list[str] | None = None) -> int:
    """Run a command and return its exit code; without `arguments`, with those of the process."""
    try:
        code = app(arguments, standalone_mode=False, prog_name="ingest-bench")
        sys.stdout.flush()
    except TyperException as error:
        from ingest_bench.cli.usage import describe_usage_error  # noqa: PLC0415 - it imports the model of experiments

        text = describe_usage_error(error, sys.argv[1:] if arguments is None else arguments)
        # There is no text if the help was printed because there were no arguments.
        return _fail(text, SpecError.exit_code) if text else SpecError.exit_code
    except Interrupted as error:
        return _fail(str(error), error.exit_code, word="interrupted")
    except IngestBenchError as error:
        return _fail(str(error), error.exit_code)
    except (SystemExit, BrokenPipeError) as error:
        if not isinstance(error, BrokenPipeError) and not isinstance(error.__context__, BrokenPipeError):
            raise
        # The reader of our output is gone, as with `| head`; rich and typer raise SystemExit for it.
        _redirect_to_null(sys.stdout)
        return _READER_GONE
    except OSError as error:
        return _fail_os(error)
    if code == Interrupted.exit_code:
        return _fail("everything that was started is stopped", Interrupted.exit_code, word="interrupted")
    return code if isinstance(code, int) else 0


def _fail_os(error: OSError) -> int:
    """Print an error of the user's paths or disks; raise all others again."""
    if error.errno == errno.EIO and error.filename is None:
        # The terminal is gone, and writing to it failed before the signal came.
        _redirect_to_null(sys.stdout, sys.stderr)
        return Interrupted.exit_code
    if error.errno == errno.ENOENT and error.filename is None:
        return _fail("the current folder was deleted; change to another one", 2)
    where = f"{error.filename}: " if error.filename else ""
    if error.errno in _BAD_PATH:
        remedy = ". Give this user access to it, or use another path" if error.errno == errno.EACCES else ""
        return _fail(f"{where}{error.strerror}{remedy}", SpecError.exit_code)
    if error.errno not in _DISK:
        raise error
    remedy = ". Make room in the folder of results (--out) and in the temporary folder; `run --resume` continues"
    return _fail(f"{where}{error.strerror}{remedy if error.errno in _FULL else ''}", RunFailed.exit_code)


def _fail(text: str, code: int, word: str = "error") -> int:
    screen.print_error(word, text)
    return code


def _redirect_to_null(*streams: TextIO) -> None:
    """Redirect streams without a reader: Python flushes them at exit, and would fail there."""
    for stream in streams:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
