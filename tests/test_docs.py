"""What a user can type or write stands in the README."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer

import ingest_bench
from ingest_bench import probes, targets
from ingest_bench.cli.app import app
from ingest_bench.experiment import catalog, spec
from ingest_bench.inputs import data, records
from ingest_bench.model.experiment import Fault
from ingest_bench.model.host import HostSettings
from ingest_bench.model.load import LoadOptions
from ingest_bench.model.network import Impairment, Profile, RealLink
from ingest_bench.model.server import Count, Delivered, Ready, Server, Start
from ingest_bench.model.target import TargetOptions
from ingest_bench.protocols import PROTOCOLS
from ingest_bench.protocols.bulk import BulkKeys
from ingest_bench.protocols.json_array import JsonArrayKeys
from ingest_bench.protocols.kafka import KafkaKeys
from ingest_bench.protocols.rows import RowKeys

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
WORDS = set(re.findall(r"[\w.-]+", README))
RECORDS = [
    Profile,
    RealLink,
    Impairment,
    TargetOptions,
    LoadOptions,
    HostSettings,
    Fault,
    Start,
    Ready,
    Count,
    Delivered,
    BulkKeys,
    JsonArrayKeys,
    KafkaKeys,
    RowKeys,
]
GROUP = typer.main.get_command(app)


@pytest.mark.parametrize("record", RECORDS)
def test_every_key_of_a_table_is_documented(record: type) -> None:
    assert set(records.keys(record)) <= WORDS


def test_every_key_of_a_server_is_documented() -> None:
    # `folder` is not written: it is where the file lies.
    assert set(records.keys(Server)) - {"folder"} <= WORDS


def test_every_key_of_an_experiment_is_documented() -> None:
    assert set(spec.TOP) <= WORDS


@pytest.mark.parametrize(
    "names",
    [
        data.files(catalog.EXPERIMENTS),
        data.files(catalog.NETWORKS),
        data.files(catalog.WORKLOADS),
        targets.TARGETS,
        PROTOCOLS,
        probes.PROBES,
    ],
    ids=["experiments", "network profiles", "workloads", "targets", "protocols", "probes"],
)
def test_every_name_is_documented(names: dict[str, object]) -> None:
    assert set(names) <= WORDS


def test_every_command_and_each_of_its_options_says_what_it_does() -> None:
    for path, command in commands(GROUP, "ingest-bench"):
        assert path.rpartition(" ")[2] in WORDS, f"{path} is not in the README"
        assert command.help, f"{path} has no help"
        for parameter in command.params:
            if parameter.name != "help":
                assert getattr(parameter, "help", None), f"{path}: {parameter.name} has no help"


def test_every_variable_of_the_environment_is_documented_and_none_that_nobody_reads() -> None:
    documented = {word for word in WORDS if word.startswith("INGEST_BENCH_")}
    package = Path(ingest_bench.__file__).parent
    source = "".join(path.read_text(encoding="utf-8") for path in package.rglob("*.py"))
    assert documented <= set(re.findall(r"INGEST_BENCH_[A-Z_]+", source))
    assert documented >= {
        name
        for _, command in commands(GROUP, "ingest-bench")
        for parameter in command.params
        for name in named(getattr(parameter, "envvar", None))
    }


def named(variables: str | list[str] | None) -> list[str]:
    return [variables] if isinstance(variables, str) else list(variables or ())


def commands(group: Any, path: str) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, command in group.commands.items():
        found += commands(command, f"{path} {name}") if hasattr(command, "commands") else [(f"{path} {name}", command)]
    return found
