"""The servers under load: one file each, and one line in TARGETS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ingest_bench import records
from ingest_bench.errors import SpecError
from ingest_bench.jvm import artifacts, java
from ingest_bench.targets.elasticsearch import ELASTICSEARCH
from ingest_bench.targets.opensearch import OPENSEARCH
from ingest_bench.targets.sink import Sink
from ingest_bench.targets.version import Requirements

if TYPE_CHECKING:
    from pathlib import Path

    from ingest_bench.jvm.artifacts import Progress
    from ingest_bench.jvm.java import Java
    from ingest_bench.model.results import Value
    from ingest_bench.model.target import Endpoint, LaunchPlan, TargetOptions
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
        self, asked: TargetOptions, java: Java, home: Path, listen: Endpoint, jvm_options: tuple[str, ...]
    ) -> LaunchPlan:
        """How to start it in a fresh home, which is made here. What is not in the cache is fetched."""

    def is_ready(self, http: Http) -> bool:
        """Whether it takes requests; NoAnswer when it does not answer at all."""

    def index_body(self, asked: TargetOptions, mapping: Mapping[str, Any]) -> dict[str, Any]:
        """The body that creates an index with these settings and mappings in the chosen version."""

    def bulk_path(self, asked: TargetOptions, workload: Workload) -> str:
        """Where bulk requests go."""

    def count_documents(self, http: Http, indices: Sequence[str]) -> int:
        """The documents in all these indices, after a refresh. One that is not there has none."""

    def counters(self, http: Http) -> dict[str, Any]:
        """What the server counted itself on each connection, as a table; empty where it does not."""

    def describe(self, http: Http, asked: TargetOptions, log: Path) -> dict[str, Value]:
        """What the server says about itself; InvalidRun when that is not what was asked."""


TARGETS: Mapping[str, Target] = {target.name: target for target in (OPENSEARCH, ELASTICSEARCH, Sink())}


def named(name: str) -> Target:
    """The target of that name; SpecError with the nearest one."""
    if name not in TARGETS:
        raise SpecError(f'target: there is no "{name}"; {records.nearest(name, TARGETS)}')
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
