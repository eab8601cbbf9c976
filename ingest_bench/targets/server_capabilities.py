"""Which servers can be started here, and what they would still have to fetch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

from ingest_bench.jvm import artifacts, java
from ingest_bench.model.target import TargetOptions
from ingest_bench.trials import Trial, tried
from ingest_bench.units import count_of

if TYPE_CHECKING:
    from ingest_bench.model.capability import Capability
    from ingest_bench.targets import Target


def capabilities(targets: Mapping[str, Target]) -> Iterator[Capability]:
    """One line for each version of each target."""
    for name, target in targets.items():
        for version in target.versions:
            # A server of the user's own has no versions.
            options = TargetOptions(name=name, version=version or None)
            yield tried(Trial(name=f"{name} {version}".rstrip(), attempt=partial(_startable, target, options)))


def _startable(target: Target, options: TargetOptions) -> str:
    needed = target.requirements(options)
    missing = [artifact for artifact in needed.artifacts if not artifacts.is_here(artifact)]
    fetched = f"to be fetched: {count_of(len(missing), 'file')}" if missing else "in the cache"
    return f"{fetched}; {_runtime(needed.java_version, full=needed.full_jdk)}"


def _runtime(version: int, *, full: bool) -> str:
    found = next((each for each in java.on_machine() if each.version == version and (each.is_full or not full)), None)
    if found is not None:
        return f"Java {version} at {found.home}"
    if full or not java.wheel_is_here(version):
        return f"Java {version} from pip, to be fetched" if not full else str(java.find(version, full=True).home)
    return f"Java {version} from pip"
