"""Parts that several targets share: pinned jars, requirements of a version, refused options, and default methods."""

from __future__ import annotations

import dataclasses
import functools
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingest_bench.errors import SpecError
from ingest_bench.host.capability_checks import CapabilityCheck, run_check
from ingest_bench.inputs import records
from ingest_bench.jvm import artifacts, java
from ingest_bench.jvm.artifacts import Artifact
from ingest_bench.jvm.java import Java
from ingest_bench.jvm.options import collector_options
from ingest_bench.model.target import Endpoint, ListenOptions, Preparation, TargetOptions
from ingest_bench.units import format_count

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingest_bench.jvm.attach import AttachedJvm
    from ingest_bench.model.experiment import Capability
    from ingest_bench.model.load import AdminRequest, Operation
    from ingest_bench.targets import Target
    from ingest_bench.targets.http import Http


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirements:
    """Artifacts and the Java that one version of a server needs before it can start."""

    artifacts: tuple[Artifact, ...]
    java_version: int
    full_jdk: bool = False


@dataclass(frozen=True, slots=True)
class NodeStart:
    """One node to start: its options and Java, an empty home, its index in the addresses of all nodes."""

    options: TargetOptions
    java: Java
    home: Path
    number: int
    nodes: Sequence[Endpoint]
    jvm_options: tuple[str, ...] = ()
    """Options of the JVM for its observer, besides those of the target."""

    @property
    def listen(self) -> Endpoint:
        """Return the address where it listens."""
        return self.nodes[self.number]


@functools.cache
def _pins() -> Mapping[str, Mapping[str, str]]:
    return tomllib.loads(Path(__file__).with_name("jars.toml").read_text(encoding="utf-8"))


def pinned_jars(*sections: str) -> tuple[Artifact, ...]:
    """Return the jars of these sections of jars.toml, in order."""
    pins = (pin for section in sections for pin in _pins()[section].items())
    return tuple(artifacts.parse_jar(f"{coordinate}@{sha256}") for coordinate, sha256 in pins)


def choose_version(name: str, versions: Mapping[str, Requirements], version: str | None, default: str) -> str:
    """Return the version or the default; SpecError with a suggestion if the target does not have it."""
    chosen = version or default
    if chosen not in versions:
        raise SpecError(f'target.version: {name} has no "{chosen}"; {records.suggest(chosen, versions)}')
    return chosen


def find_requirements(target: Target, options: TargetOptions) -> Requirements:
    """Return what the chosen version needs; SpecError for an unknown version or a collector that its Java lacks."""
    chosen = choose_version(target.name, target.versions, options.version, target.default_version)
    collector_options(options.gc, target.versions[chosen].java_version)
    return target.versions[chosen]


def refuse_options(options: TargetOptions, fields: Iterable[str], reason: str) -> None:
    """Raise SpecError, with the reason, if one of these fields is not at its default."""
    defaults = {field.name: field.default for field in dataclasses.fields(options)}
    for field in fields:
        if getattr(options, field) != defaults[field]:
            raise SpecError(f"target.{records.toml_key(field)}: {reason}; remove it")


def count_copies(options: TargetOptions) -> int:
    """Return how many nodes hold each document; SpecError if there are fewer nodes."""
    copies = options.nodes if options.replicas is None else options.replicas + 1
    if copies > options.nodes:
        raise SpecError(
            f"target.replicas: {options.replicas} replicas need {copies} nodes, and target.nodes is {options.nodes}"
        )
    return copies


class Plain:
    """Methods of a `Target` without indices, metrics or other APIs."""

    name: str
    is_persistent: bool = False
    flush: Callable[[Sequence[Http], Sequence[AttachedJvm], Sequence[str]], None] | None = None
    """None: it stores no files, or cannot be told to write them."""
    jvm_stats: Callable[[Http], Any] | None = None
    """None: it has no API about its JVM."""

    def listens(self, options: TargetOptions) -> ListenOptions:
        """Return the default port and time limit."""
        del options
        return ListenOptions()

    def prepare(self, options: TargetOptions, indices: Sequence[str], mapping: Mapping[str, Any]) -> Preparation:
        """Return no requests."""
        del options, indices, mapping
        return Preparation()

    def adapt_track_request(self, options: TargetOptions, operation: Operation, request: AdminRequest) -> AdminRequest:
        """Raise SpecError: tracks are for servers with indices."""
        del options, request
        raise SpecError(
            f"load.track: {operation}: {self.name} has no indices; send the track's documents by --documents"
        )

    def execute(self, http: Http, request: AdminRequest) -> None:
        """Fail: such a target has no requests to execute."""
        raise AssertionError(f"{http.origin} has no admin requests, and got {request}")

    def read_counters(self, nodes: Sequence[Http]) -> dict[str, Any]:
        """Return no counters."""
        del nodes
        return {}

    def read_delivered(self, nodes: Sequence[Http]) -> tuple[bytes, ...] | None:
        """Return None: its documents have no numbers."""
        del nodes
        return None


def check_targets(targets: Mapping[str, Target]) -> Iterator[Capability]:
    """Check for each version of each target whether it can start here, and what must be fetched."""
    for name, target in targets.items():
        for version in target.versions:
            # A custom target has no version.
            options = TargetOptions(name=name, version=version or None)
            attempt = functools.partial(_describe_start, target, options)
            yield run_check(CapabilityCheck(name=f"{name} {version}".rstrip(), attempt=attempt))


def _describe_start(target: Target, options: TargetOptions) -> str:
    requirements = target.requirements(options)
    missing = [artifact for artifact in requirements.artifacts if not artifacts.is_cached(artifact)]
    fetched = f"to be fetched: {format_count(len(missing), 'file')}" if missing else "in the cache"
    return f"{fetched}; {_describe_java(requirements.java_version, full=requirements.full_jdk)}"


def _describe_java(version: int, *, full: bool) -> str:
    for installed in java.find_installed():
        if installed.version == version and (installed.is_full or not full):
            return f"Java {version} at {installed.home}"
    if full:
        # Fails with the remedy.
        return str(java.find_java(version, full=True).home)
    return f"Java {version} from pip" + ("" if java.is_wheel_cached(version) else ", to be fetched")
