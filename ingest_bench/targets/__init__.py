"""Targets: the servers under load. One file each, and one line in TARGETS."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ingest_bench.errors import SpecError
from ingest_bench.inputs import records
from ingest_bench.jvm import artifacts, java
from ingest_bench.targets.base import NodeStart, Requirements
from ingest_bench.targets.builtin.direct_memory import DirectMemory
from ingest_bench.targets.builtin.forwarder import Forwarder
from ingest_bench.targets.builtin.sink import Sink
from ingest_bench.targets.cassandra.node import Cassandra
from ingest_bench.targets.custom import Custom
from ingest_bench.targets.data_prepper import DataPrepper
from ingest_bench.targets.elastic.versions import ELASTICSEARCH, OPENSEARCH
from ingest_bench.targets.kafka import Kafka

if TYPE_CHECKING:
    from pathlib import Path

    from ingest_bench.jvm.artifacts import Progress
    from ingest_bench.jvm.attach import AttachedJvm
    from ingest_bench.jvm.java import Java
    from ingest_bench.model.load import AdminRequest, Operation, ProtocolOptions, Workload
    from ingest_bench.model.results import ColumnValue
    from ingest_bench.model.target import LaunchPlan, ListenOptions, Preparation, TargetOptions
    from ingest_bench.targets.http import Http


class Target(Protocol):
    """One kind of server: how to launch it and speak with it. jvm/process.py starts it."""

    @property
    def name(self) -> str:
        """Return its key in TARGETS."""

    @property
    def default_version(self) -> str:
        """Return the version that is used if none is chosen."""

    @property
    def versions(self) -> Mapping[str, Requirements]:
        """Return the requirements of each version."""

    def requirements(self, options: TargetOptions) -> Requirements:
        """Return what the chosen version needs; SpecError for options that it cannot have. Start nothing."""

    def launch_plan(self, node: NodeStart) -> LaunchPlan:
        """Return how to start a node, whose home is made here. Fetch what the cache lacks."""

    def listens(self, options: TargetOptions) -> ListenOptions:
        """Return its port and the time limit until it is ready."""

    def is_ready(self, node: int, nodes: Sequence[Http]) -> bool:
        """Return True if the node accepts requests and has found the others; RunFailed says why it is not ready.

        NoResponse if it does not respond at all.
        """

    def wire(self, options: TargetOptions, workload: Workload) -> ProtocolOptions:
        """Return how it takes the documents of a workload: a protocol of `protocols.PROTOCOLS`, and its keys."""

    def prepare(self, options: TargetOptions, indices: Sequence[str], mapping: Mapping[str, Any]) -> Preparation:
        """Return the requests that prepare these indices for documents; none if it has no such concept."""

    def adapt_track_request(self, options: TargetOptions, operation: Operation, request: AdminRequest) -> AdminRequest:
        """Return a track's request in the form of the chosen version; SpecError for a server without indices."""

    def execute(self, http: Http, request: AdminRequest) -> None:
        """Send such a request, repeatedly until its condition holds; RunFailed if the server refuses it."""

    def count(self, nodes: Sequence[Http], indices: Sequence[str]) -> int | None:
        """Return the number of documents of all nodes, in these indices if it has any; None if unknown."""

    @property
    def is_persistent(self) -> bool:
        """Return True if its documents are in files and exist after a restart."""

    @property
    def flush(self) -> Callable[[Sequence[Http], Sequence[AttachedJvm], Sequence[str]], None] | None:
        """Return the function that flushes the indices in memory of all nodes to files at once; None: unsupported."""

    @property
    def jvm_stats(self) -> Callable[[Http], Any] | None:
        """Return the function that requests the JVM statistics of all nodes, for `probes.nodestats`; None: no API."""

    def read_counters(self, nodes: Sequence[Http]) -> dict[str, Any]:
        """Return what the nodes counted themselves, added up as a table; empty if they do not count."""

    def read_delivered(self, nodes: Sequence[Http]) -> tuple[bytes, ...] | None:
        """Return the document numbers of each node, as `analysis.run.delivery` reads them; None: unsupported.

        It is the last request to the nodes.
        """

    def describe(self, http: Http, options: TargetOptions) -> dict[str, ColumnValue]:
        """Return what a node reports about itself; InvalidRun if that is not as chosen."""


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
    if options.custom is None:
        return find_target(options.name)
    return Custom(name=options.name, definition=options.custom)


def find_target(name: str) -> Target:
    """Return the target of that name; SpecError with a suggestion."""
    if name not in TARGETS:
        raise SpecError(
            f'target: there is no "{name}" (a custom target is a file: --target my-server.toml); '
            f"{records.suggest(name, TARGETS)}"
        )
    return TARGETS[name]


def fetch(
    requirements: Requirements, java_home: Path | None = None, progress: Progress = artifacts.no_progress
) -> Java:
    """Fetch all requirements into the cache and return the Java; afterwards a run needs no network."""
    found_java = java.find_java(requirements.java_version, java_home, full=requirements.full_jdk, progress=progress)
    for artifact in requirements.artifacts:
        if artifact.packaging == "zip":
            artifacts.fetch_unpacked(artifact, progress)
        else:
            artifacts.fetch(artifact, progress)
    return found_java
