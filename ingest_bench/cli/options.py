"""Options that several commands share, and `grouped`: a dataclass of options as one parameter of a command."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from ingest_bench.analysis.run.columns import COLUMNS
from ingest_bench.cli import screen
from ingest_bench.cli.completion import complete_results
from ingest_bench.errors import SpecError
from ingest_bench.inputs import records
from ingest_bench.inputs.names import check_name
from ingest_bench.model.network import RealInterface
from ingest_bench.results import layout

_Result = TypeVar("_Result")

ResultsFolder = Annotated[
    Path,
    typer.Argument(
        help="Results: a folder results/<experiment>/<start>, or an experiment's name for its latest.",
        autocompletion=complete_results,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the results as JSON, and nothing else.")]
Columns = Annotated[list[str], typer.Option("--column", help="A column of summary.csv. Repeatable.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowOptions:
    """Which connections of a real interface are shaped: options of `net apply`, `run` and `plan`."""

    to: Annotated[
        list[str],
        typer.Option(
            "--to",
            metavar="HOST[/BITS]:PORTS",
            help="Connections to this host or network and these TCP ports (9200,9300-9310). Repeatable: all share the "
            "shaped queues.",
        ),
    ] = field(default_factory=list)
    port: Annotated[
        str | None,
        typer.Option(
            "--port",
            metavar="PORTS",
            help="On the server's machine: connections to these local ports, from any host or each --to HOST[/BITS].",
        ),
    ] = None
    allow_default_route: Annotated[
        bool, typer.Option("--allow-default-route", help="Also shape flows on the default route's interface.")
    ] = False
    interface_mtu: Annotated[
        bool, typer.Option("--interface-mtu", help="Set the MTU of the interface, not of the route.")
    ] = False
    shared_settings: Annotated[
        bool,
        typer.Option(
            "--shared-settings", help="Also set what affects other traffic: offloads, GSO sizes, TCP buffers."
        ),
    ] = False
    ssh_limit: Annotated[
        str | None,
        typer.Option(
            help="Longest duration if your SSH connection, which is not shaped, uses the interface. Default: 10min."
        ),
    ] = None

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

    wide: Annotated[bool, typer.Option("--wide", help="Print all columns and all tables.")] = False
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Also print all notes, and each stage of a run.")] = (
        False
    )
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the results, no progress.")] = False
    as_json: AsJson = False
    open_page: Annotated[bool, typer.Option("--open", help="Open the page of the report in a browser.")] = False

    @property
    def is_silent(self) -> bool:
        """Return whether nothing but the results is printed."""
        return self.quiet or self.as_json


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
    """Return the command for typer, with the fields of each dataclass parameter as options."""
    groups: dict[str, Any] = {}
    options: list[Parameter] = []
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        if dataclasses.is_dataclass(parameter.annotation):
            groups[parameter.name] = parameter.annotation
            options += _list_options(parameter.annotation)
        else:
            options.append(parameter.replace(kind=Parameter.KEYWORD_ONLY))

    @functools.wraps(command)
    def call(**values: Any) -> _Result:
        instances = {name: _build_group(group, values) for name, group in groups.items()}
        return command(**instances, **{option.name: values[option.name] for option in options if option.name in values})

    call.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    return call


def _list_options(group: Any) -> list[Parameter]:
    options: list[Parameter] = []
    hints = get_type_hints(group, include_extras=True)
    for item in dataclasses.fields(group):
        hint = hints[item.name]
        if dataclasses.is_dataclass(hint):
            options += _list_options(hint)
            continue
        default = item.default if item.default_factory is dataclasses.MISSING else item.default_factory()
        empty = Parameter.empty if default is dataclasses.MISSING else default
        options.append(Parameter(item.name, Parameter.KEYWORD_ONLY, default=empty, annotation=hint))
    return options


def _build_group(group: Any, values: dict[str, Any]) -> Any:
    """Build the dataclass from its own values, which are removed from `values`."""
    hints: Mapping[str, Any] = get_type_hints(group)
    return group(
        **{
            item.name: _build_group(hints[item.name], values)
            if dataclasses.is_dataclass(hints[item.name])
            else values.pop(item.name)
            for item in dataclasses.fields(group)
        }
    )
