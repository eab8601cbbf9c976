"""What a user can type or write stands in the README."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer

from ingest_bench import catalog, data, probes, records, spec, targets
from ingest_bench.cli.app import app
from ingest_bench.model.experiment import Fault
from ingest_bench.model.load import LoadOptions
from ingest_bench.model.network import Impairment, Profile
from ingest_bench.model.target import TargetOptions

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
WORDS = set(re.findall(r"[\w.-]+", README))
GROUP = typer.main.get_command(app)


@pytest.mark.parametrize("record", [Profile, Impairment, TargetOptions, LoadOptions, Fault])
def test_every_key_of_a_table_is_documented(record: type) -> None:
    assert set(records.keys(record)) <= WORDS


def test_every_key_of_an_experiment_is_documented() -> None:
    assert set(spec.TOP) <= WORDS


@pytest.mark.parametrize(
    "names",
    [
        data.files(catalog.EXPERIMENTS),
        data.files(catalog.NETWORKS),
        data.files(catalog.WORKLOADS),
        targets.TARGETS,
        probes.PROBES,
    ],
    ids=["experiments", "network profiles", "workloads", "targets", "probes"],
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


def commands(group: Any, path: str) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, command in group.commands.items():
        found += commands(command, f"{path} {name}") if hasattr(command, "commands") else [(f"{path} {name}", command)]
    return found
