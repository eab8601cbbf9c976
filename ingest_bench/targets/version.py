"""What one version of a server needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ingest_bench.errors import SpecError
from ingest_bench.inputs import records
from ingest_bench.jvm import options

if TYPE_CHECKING:
    from ingest_bench.jvm.artifacts import Artifact
    from ingest_bench.model.target import TargetOptions
    from ingest_bench.targets import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirements:
    """What must be in the cache, and the Java, before a server can start."""

    artifacts: tuple[Artifact, ...]
    java_version: int
    full_jdk: bool = False


def chosen(name: str, versions: Mapping[str, Requirements], asked: str | None, default: str) -> str:
    """The version that was asked for; SpecError with the nearest one when the table has it not."""
    version = asked or default
    if version not in versions:
        raise SpecError(f'target.version: {name} has no "{version}"; {records.nearest(version, versions)}')
    return version


def needed_by(target: Target, asked: TargetOptions) -> Requirements:
    """What the chosen version needs; SpecError when there is no such version, or its Java has no such collector."""
    needed = target.versions[chosen(target.name, target.versions, asked.version, target.default_version)]
    options.collector(asked.gc, needed.java_version)
    return needed
