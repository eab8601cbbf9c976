"""Options that several commands share, and `grouped`: a dataclass of options as one parameter of a command."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_origin, get_type_hints

import typer
from typer.core import TyperCommand, TyperOption

from ingest_bench.analysis.run.columns import COLUMNS
from ingest_bench.cli import screen
from ingest_bench.cli.completion import complete_results
from ingest_bench.cli.help import PANELS
from ingest_bench.errors import SpecError
from ingest_bench.inputs import records
from ingest_bench.inputs.names import check_name
from ingest_bench.model.network import RealInterface
from ingest_bench.results import layout

_Result = TypeVar("_Result")


class _Command(TyperCommand):
    """A command that refuses a repeated option: the parser would take its last value and ignore the others."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command line; SpecError for an option with one value that is given twice."""
        _, _, options = self.make_parser(ctx).parse_args(args=list(args))
        for option in options if not ctx.resilient_parsing else ():
            if (
                isinstance(option, TyperOption)
                and not (option.multiple or option.is_flag)
                and options.count(option) > 1
            ):
                times = options.count(option)
                raise SpecError(f"{option.opts[0]}: given {times} times, and it has one value. Give it once.")
        return super().parse_args(ctx, args)


class App(typer.Typer):
    """The commands of a module."""

    def command(self, name: str | None = None, **options: Any) -> Callable[..., Any]:
        """Register a command that refuses repeated options."""
        return super().command(name, cls=_Command, **options)


ResultsFolder = Annotated[
    Path,
    typer.Argument(
        help="Results: a folder results/<experiment>/<start>, or an experiment's name for its latest.",
        autocompletion=complete_results,
    ),
]
Columns = Annotated[list[str], typer.Option("--column", help="A column of summary.csv. Repeatable.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowOptions:
    """Which connections of a real interface are shaped: options of `net apply`, `run` and `plan`."""

    to: list[str] = field(default_factory=list)
    port: str | None = None
    allow_default_route: bool = False
    interface_mtu: bool = False
    shared_settings: bool = False
    ssh_limit: str | None = None

    def to_table(self, interface: str | None) -> dict[str, Any]:
        """Return the given options by key; raise SpecError for an impossible interface, host or port."""
        if interface is None:
            if self != FlowOptions():
                raise SpecError("--to, --port, --interface-mtu and similar require --interface NAME, such as eth1")
            return {}
        records.read_key(RealInterface, ("name",), interface, "--interface")
        for host in self.to:
            records.read_key(RealInterface, ("to",), [host], "--to")
        for key, text in (("port", self.port), ("ssh_limit", self.ssh_limit)):
            if text is not None:
                records.read_key(RealInterface, (key,), text, f"--{key.replace('_', '-')}")
        return {"name": interface, **{key: value for key, value in dataclasses.asdict(self).items() if value}}


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputOptions:
    """Options for printed results of `run` and `report`."""

    wide: bool = False
    verbose: bool = False
    quiet: bool = False
    as_json: bool = False
    open_page: bool = False

    @property
    def is_silent(self) -> bool:
        """Return whether nothing but the results is printed."""
        return self.quiet or self.as_json

    def announce(self, text: str) -> None:
        """Print a message that is not a result: to stderr if stdout is for the results alone."""
        if self.is_silent:
            screen.print_to_stderr(text)
        else:
            screen.print_text(text)


def take_results(path: Path) -> Path:
    """Return the results folder that *path* means (`layout.find_results`), and say which one if it is another."""
    taken = layout.find_results(path)
    if taken != path:
        screen.print_to_stderr(f"results: {taken}")
    return taken


def check_columns(names: list[str]) -> None:
    """Raise SpecError for a name that is not a column of summary.csv."""
    columns = [column.name for column in COLUMNS]
    for name in names:
        check_name(name, columns, f'--column: unknown column "{name}"', "docs/columns.md")


def grouped(command: Callable[..., _Result]) -> Callable[..., _Result]:
    """Return the command for typer, with the fields of each dataclass parameter as options (`options.toml`)."""
    hints = get_type_hints(command, include_extras=True)
    options = _list_options(
        (parameter.name, hints[parameter.name], parameter.default)
        for parameter in inspect.signature(command).parameters.values()
    )

    @functools.wraps(command)
    def call(**values: Any) -> _Result:
        return command(**{name: _take_value(name, hint, values) for name, hint in hints.items() if name != "return"})

    call.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    return call


def _list_options(fields: Iterable[tuple[str, Any, Any]]) -> list[Parameter]:
    """Return a parameter for each field, given as its name, type and default, and for each field of a dataclass."""
    options: list[Parameter] = []
    for name, hint, default in fields:
        if _is_group(hint):
            hints, defaults = get_type_hints(hint, include_extras=True), hint()
            options += _list_options((item, below, getattr(defaults, item)) for item, below in hints.items())
        else:
            options.append(Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=_annotate(name, hint)))
    return options


def _annotate(name: str, hint: Any) -> Any:
    """Return the type of a parameter with its entry in `options.toml`; as it is if it has a description of typer."""
    kind, extra = (hint.__origin__, hint.__metadata__[0]) if get_origin(hint) is Annotated else (hint, {})
    entry = next((options[name] for options in PANELS.values() if name in options), None)
    if entry is None or not isinstance(extra, dict):
        return hint
    arguments: dict[str, Any] = {"help": entry} if isinstance(entry, str) else {**entry}
    # Without a name typer adds --no-NAME to a switch.
    names = arguments.pop("names", [f"--{name.replace('_', '-')}"] if kind is bool else [])
    describe = typer.Argument if arguments.pop("is_argument", False) else typer.Option
    return Annotated[kind, describe(*names, **(arguments | extra))]


def _take_value(name: str, hint: Any, values: Mapping[str, Any]) -> Any:
    """Return the value of a parameter, or a dataclass with the values of its fields."""
    if not _is_group(hint):
        return values[name]
    return hint(**{item: _take_value(item, below, values) for item, below in get_type_hints(hint).items()})


def _is_group(hint: Any) -> bool:
    return dataclasses.is_dataclass(hint)
