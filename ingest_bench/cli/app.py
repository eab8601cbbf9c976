"""All commands together, and what an error becomes: one message and an exit code."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module, metadata
from typing import Annotated, Any, TextIO

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException
from typer.main import get_group

from ingest_bench.cli import screen
from ingest_bench.errors import IngestBenchError, Interrupted, RunFailed, SpecError

# As a shell says it when a program ends by SIGPIPE. Not 0: what a run had still to do was not done.
_READER_GONE = 141
# Paths that the user gave, and that no file can have.
_NO_PATH = {errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EEXIST}
_FULL = {errno.ENOSPC, errno.EDQUOT}
_DISK = {*_FULL, errno.EROFS, errno.EACCES, errno.EPERM}

# Where the commands are, in the order of the help.
_HOMES = {
    "run": "measure",
    "plan": "measure",
    "report": "report",
    "recommend": "recommend",
    "gate": "gate",
    "compare": "compare",
    "trend": "trend",
    "list": "look",
    "fetch": "look",
    "doctor": "look",
    "calibrate": "calibrate",
    "worker": "worker",
    "net": "net",
    "workload": "workload",
}


class _Commands(Mapping[str, Any]):
    """The commands by name, each imported and built once it is asked for: to import all takes a second."""

    def __init__(self) -> None:
        self._built: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._built:
            home = get_group(import_module(f"ingest_bench.cli.{_HOMES[name]}").app)
            self._built[name] = home.commands.get(name, home)
            self._built[name].name = name
        return self._built[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_HOMES)

    def __len__(self) -> int:
        return len(_HOMES)


_COMMANDS = _Commands()


class _Group(TyperGroup):
    """The command itself."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "commands": _COMMANDS})

    def list_commands(self, _ctx: Any) -> list[str]:
        """Their names, in the order of the help."""
        return list(self.commands)


app = typer.Typer(
    name="ingest-bench",
    cls=_Group,
    help="Chaos and load testing of network ingest into JVM servers: what the network does to the heap.",
    epilog="Start with: ingest-bench run quickstart",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _version(asked: bool) -> None:
    if asked:
        screen.say(f"ingest-bench {metadata.version('ingest-bench')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def run(arguments: list[str] | None = None) -> int:
    """The exit code of a command, carried out; without `arguments`, of the process's own."""
    try:
        code = app(arguments, standalone_mode=False)
        sys.stdout.flush()
    except TyperException as error:
        return _misused(error)
    except Interrupted as error:
        return _complain(str(error), error.exit_code, word="interrupted")
    except IngestBenchError as error:
        return _complain(str(error), error.exit_code)
    except (SystemExit, BrokenPipeError) as error:
        if not isinstance(error, BrokenPipeError) and not isinstance(error.__context__, BrokenPipeError):
            raise
        # Whoever read our output went away, as `| head` does; rich and typer say it by SystemExit.
        _silence(sys.stdout)
        return _READER_GONE
    except OSError as error:
        if error.errno == errno.EIO and error.filename is None:
            # The terminal is gone, and we heard of it by writing there, before the signal.
            _silence(sys.stdout, sys.stderr)
            return Interrupted.exit_code
        if error.errno == errno.ENOENT and error.filename is None:
            return _complain("the current folder is gone, somebody removed it; change to another one", 2)
        where = f"{error.filename}: " if error.filename else ""
        if error.errno in _NO_PATH:
            return _complain(f"{where}{error.strerror}", SpecError.exit_code)
        if error.errno not in _DISK:
            raise
        is_full = error.errno in _FULL
        todo = ". Make room where results go (--out) and in the temporary folder; `run --resume` goes on" * is_full
        return _complain(f"{where}{error.strerror}{todo}", RunFailed.exit_code)
    if code == Interrupted.exit_code:
        return _complain("everything that was started is stopped", Interrupted.exit_code, word="interrupted")
    return code if isinstance(code, int) else 0


def _misused(error: TyperException) -> int:
    """A wrong use of the command; without a text it was no use at all, and the help is printed already."""
    text = error.format_message().rstrip(".")
    stop = "" if text.endswith("?") else "."
    return _complain(f"{text}{stop} `ingest-bench --help` shows what there is.", 2) if text else 2


def _complain(text: str, code: int, word: str = "error") -> int:
    screen.complain(word, text)
    return code


def _silence(*streams: TextIO) -> None:
    """Nobody reads them any more; Python flushes them at its end, and would complain there."""
    for stream in streams:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
