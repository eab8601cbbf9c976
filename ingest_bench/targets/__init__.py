"""The servers under load: one file each, and one line in TARGETS."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ingest_bench.errors import SpecError
from ingest_bench.inputs import records
from ingest_bench.jvm import artifacts, java
from ingest_bench.targets.cassandra import Cassandra
from ingest_bench.targets.data_prepper import DataPrepper
from ingest_bench.targets.elastic.elasticsearch import ELASTICSEARCH
from ingest_bench.targets.elastic.opensearch import OPENSEARCH
from ingest_bench.targets.kafka import Kafka
from ingest_bench.targets.own import Own
from ingest_bench.targets.small.buffer_maker import DirectMemory
from ingest_bench.targets.small.forwarder import Forwarder
from ingest_bench.targets.small.sink import Sink
from ingest_bench.targets.version import Requirements

if TYPE_CHECKING:
    from pathlib import Path

    from ingest_bench.jvm.artifacts import Progress
    from ingest_bench.jvm.attach import Attached
    from ingest_bench.jvm.java import Java
    from ingest_bench.model.load import Wire
    from ingest_bench.model.results import Value
    from ingest_bench.model.target import Endpoint, LaunchPlan, Listens, Preparation, TargetOptions
    from ingest_bench.model.track import AdminRequest, Operation
    from ingest_bench.model.workload import Workload
    from ingest_bench.targets.http import Http


class Target(Protocol):
    """How to launch one kind of server and speak with it. The launching itself is jvm/process.py."""

    @property
    def name(self) -> str:
        """Its key in TARGETS."""

    @property
    def default_version(self) -> str:
        """The version when none is asked for."""

    @property
    def versions(self) -> Mapping[str, Requirements]:
        """What each version needs."""

    def requirements(self, asked: TargetOptions) -> Requirements:
        """What the chosen version needs; SpecError for a choice that it cannot have. Starts nothing."""

    def launch_plan(
        self,
        asked: TargetOptions,
        java: Java,
        home: Path,
        node: int,
        nodes: Sequence[Endpoint],
        jvm_options: tuple[str, ...],
    ) -> LaunchPlan:
        """How to start one of its nodes in a fresh home, which is made here. What is not in the cache is fetched.

        `node` is its place among `nodes`, which are where all of them listen.
        """

    def listens(self, asked: TargetOptions) -> Listens:
        """On which port it listens, and how long it may take until it is ready."""

    def is_ready(self, node: int, nodes: Sequence[Http]) -> bool:
        """Whether that node takes requests and has found the others; RunFailed says why not, such as who is missing.

        NoAnswer when it does not answer at all.
        """

    def wire(self, asked: TargetOptions, workload: Workload) -> Wire:
        """How it takes the documents of a workload: a protocol of `protocols.PROTOCOLS`, and its keys."""

    def prepare(self, asked: TargetOptions, indices: Sequence[str], mapping: Mapping[str, Any]) -> Preparation:
        """What is asked of it before documents can go into these indices; nothing where it has no such thing."""

    def track_request(self, asked: TargetOptions, operation: Operation, request: AdminRequest) -> AdminRequest:
        """A request of a track as the chosen version takes it; SpecError for a server that has no indices."""

    def ask(self, http: Http, request: AdminRequest) -> None:
        """Carries out such a request, again until what it waits for is there; RunFailed when the server refuses."""

    def count(self, nodes: Sequence[Http], indices: Sequence[str]) -> int | None:
        """The documents that all its nodes have together, in these indices where it has any; None: nobody can count."""

    @property
    def keeps_files(self) -> bool:
        """Whether it has its documents in files, so that they are there when it is started again."""

    @property
    def flush(self) -> Callable[[Sequence[Http], Sequence[Attached], Sequence[str]], None] | None:
        """Writes to files what all its nodes have in memory of these indices, all at once; None: it cannot be told."""

    @property
    def jvm_stats(self) -> Callable[[Http], Any] | None:
        """Asks what all nodes say of their JVMs, as `probes.nodestats` reads it; None: it has no such API."""

    def counters(self, nodes: Sequence[Http]) -> dict[str, Any]:
        """What the nodes counted themselves on each connection, added up as a table; empty where they do not."""

    def read_back(self, nodes: Sequence[Http]) -> tuple[bytes, ...] | None:
        """Of each node which documents it has, by their numbers, as `analysis.run.delivery` reads it.

        Asked last of all. None where it cannot be read back by number.
        """

    def describe(self, http: Http, asked: TargetOptions) -> dict[str, Value]:
        """What a node says about itself; InvalidRun when that is not what was asked."""


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


def of(asked: TargetOptions) -> Target:
    """The target that was asked for, by its name or by a file of the user's own; SpecError with the nearest name."""
    return named(asked.name) if asked.server is None else Own(name=asked.name, server=asked.server)


def named(name: str) -> Target:
    """The target of that name; SpecError with the nearest one."""
    if name not in TARGETS:
        raise SpecError(
            f'target: there is no "{name}" (a server of your own is a file: --target my-server.toml); '
            f"{records.nearest(name, TARGETS)}"
        )
    return TARGETS[name]


def fetch(needed: Requirements, java_home: Path | None = None, progress: Progress = artifacts.no_progress) -> Java:
    """The Java to run on; afterwards the cache has all that the version needs, and a run needs no network."""
    found = java.find(needed.java_version, java_home, full=needed.full_jdk, progress=progress)
    for artifact in needed.artifacts:
        if artifact.packaging == "zip":
            artifacts.unpacked(artifact, progress)
        else:
            artifacts.fetch(artifact, progress)
    return found
