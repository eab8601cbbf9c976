"""Targets: the servers under load. One file each, and one line in TARGETS."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ingest_bench.errors import SpecError
from ingest_bench.inputs.names import check_name
from ingest_bench.jvm import artifacts, java
from ingest_bench.jvm.artifacts import Progress
from ingest_bench.jvm.java import Java
from ingest_bench.model.target import TargetOptions
from ingest_bench.targets.base import Requirements, Target
from ingest_bench.targets.builtin.direct_memory import DirectMemory
from ingest_bench.targets.builtin.forwarder import Forwarder
from ingest_bench.targets.builtin.sink import Sink
from ingest_bench.targets.cassandra.node import Cassandra
from ingest_bench.targets.custom import Custom
from ingest_bench.targets.data_prepper import DataPrepper
from ingest_bench.targets.elastic.versions import ELASTICSEARCH, OPENSEARCH
from ingest_bench.targets.kafka import Kafka

_ALL: tuple[Target, ...] = (
    OPENSEARCH,
    ELASTICSEARCH,
    Cassandra(),
    Kafka(),
    DataPrepper(),
    DirectMemory(),
    Forwarder(),
    Sink(),
)
TARGETS: Mapping[str, Target] = {target.name: target for target in _ALL}


def resolve(options: TargetOptions) -> Target:
    """Return the chosen target, by its name or by the file of a custom target; SpecError with a suggestion."""
    if options.custom is not None:
        target: Target = Custom(name=options.name, definition=options.custom)
    else:
        target = find_target(options.name)
    if options.protocol is not None and options.protocol not in target.protocols:
        choice = f"one of {', '.join(target.protocols)}" if target.protocols else "not for this server; remove it"
        raise SpecError(f'target.protocol: {target.name} does not take "{options.protocol}": {choice}')
    return target


def find_target(name: str) -> Target:
    """Return the target of that name; SpecError with a suggestion."""
    check_name(name, TARGETS, f'target: there is no "{name}" (a custom target is a file: --target my-server.toml)')
    return TARGETS[name]


def fetch(
    requirements: Requirements, java_home: Path | None = None, progress: Progress = artifacts.no_progress
) -> Java:
    """Fetch all requirements into the cache and return the Java; afterwards a run needs no network."""
    found_java = java.find_java(requirements.java_version, java_home, full=requirements.full_jdk, progress=progress)
    for artifact in (*requirements.artifacts, *artifacts.resolve_jars(requirements.maven, progress)):
        if artifact.packaging == "zip":
            artifacts.fetch_unpacked(artifact, progress)
        else:
            artifacts.fetch(artifact, progress)
    return found_java
