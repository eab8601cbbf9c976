"""Parts that several targets share: pinned jars, requirements of a version, refused options, and default methods."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

from ingest_bench.errors import SpecError
from ingest_bench.host.capability_checks import run_check
from ingest_bench.inputs import files, records
from ingest_bench.inputs.names import check_name
from ingest_bench.jvm import artifacts, cache, java
from ingest_bench.jvm.artifacts import Artifact
from ingest_bench.jvm.attach import AttachedJvm
from ingest_bench.jvm.java import Java
from ingest_bench.jvm.options import collector_options, heap_options
from ingest_bench.model.experiment import Capability
from ingest_bench.model.load import AdminRequest, Operation, ProtocolOptions, Workload
from ingest_bench.model.results import ColumnValue
from ingest_bench.model.target import (
    NETWORK_PACKAGES,
    Allocator,
    Collector,
    Endpoint,
    LaunchPlan,
    ListenOptions,
    Preparation,
    ServerAddress,
    TargetOptions,
    ThreadRoles,
)
from ingest_bench.targets.http import Http
from ingest_bench.targets.settings import Settings, parse_settings
from ingest_bench.units import format_count

OTHER_SERVERS = "a custom target file describes any other server: `ingest-bench show target bulk` prints one"
_PINS = tomllib.loads(Path(__file__).with_name("jars.toml").read_text(encoding="utf-8"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirements:
    """Artifacts and the Java that one version of a server needs before it can start."""

    artifacts: tuple[Artifact, ...]
    java_version: int
    full_jdk: bool = False
    maven: tuple[str, ...] = ()
    """Coordinates of jars that it needs with all their dependencies."""


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


def pinned_jars(*sections: str) -> tuple[Artifact, ...]:
    """Return the jars of these sections of jars.toml, in order."""
    pins = (pin for section in sections for pin in _PINS[section].items())
    return tuple(artifacts.parse_jar(f"{coordinate}@{sha256}") for coordinate, sha256 in pins)


def hash_jars(coordinates: Sequence[str]) -> dict[str, str]:
    """Return the SHA-256 of these jars and their dependencies by file name: not all are pinned."""
    jars = artifacts.resolve_jars(coordinates)
    return {jar.file_name: jar.sha256 or files.sha256(artifacts.fetch(jar)) for jar in jars}


def refuse_options(options: TargetOptions, fields: Iterable[str], reason: str) -> None:
    """Raise SpecError, with the reason, if one of these fields is not at its default."""
    defaults = TargetOptions()
    for field in fields:
        if getattr(options, field) != getattr(defaults, field):
            raise SpecError(f"target.{records.toml_key(field)}: {reason}; remove it")


def count_copies(options: TargetOptions) -> int:
    """Return how many nodes hold each document; SpecError if there are fewer nodes."""
    copies = options.nodes if options.replicas is None else options.replicas + 1
    if copies > options.nodes:
        raise SpecError(
            f"target.replicas: {options.replicas} replicas need {copies} nodes, and target.nodes is {options.nodes}"
        )
    return copies


def format_log4j2(level: str, layout: str) -> str:
    """Return log4j2.properties that log to the console."""
    return f"""\
status = error
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = [%d{{ISO8601}}][%-5p]{layout}%m%n
rootLogger.level = {level}
rootLogger.appenderRef.console.ref = console
"""


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Write texts by their names below a folder, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")


def plan_java(
    node: NodeStart,
    flags: Iterable[str],
    classpath: Iterable[Path],
    *main: str,
    default_gc: Collector = "g1",
    files: Mapping[str, str] | None = None,
) -> LaunchPlan:
    """Return how to start a node's JVM in its home, which is made with these files. The chosen options win."""
    write_files(node.home, files or {})
    options = node.options
    gc = default_gc if options.gc == "default" else options.gc
    argv = (
        str(node.java.java),
        *heap_options(options.heap_bytes),
        *collector_options(gc, node.java.version),
        f"-Djava.io.tmpdir={node.home}",
        *flags,
        *options.jvm,
        *node.jvm_options,
        "-cp",
        ":".join(map(str, classpath)),
        *main,
    )
    return LaunchPlan(argv=argv, env={}, cwd=node.home, writable=(node.home,))


class Target(Protocol):
    """One kind of server: how to launch it and speak with it. jvm/process.py starts it.

    The defaults are those of a server without indices, metrics or other APIs.
    """

    name: str
    """Its key in TARGETS."""
    default_version: str
    other_versions: str = ""
    """Versions besides those of `versions`, in words."""
    is_persistent: bool = False
    """Its documents are in files and exist after a restart."""
    flush: Callable[[Sequence[Http], Sequence[AttachedJvm], Sequence[str]], None] | None = None
    """Flushes the indices in memory of all nodes to files at once; None: unsupported."""
    jvm_stats: Callable[[Http], Any] | None = None
    """Requests the JVM statistics of all nodes, for `probes.nodestats`; None: no API."""
    settings: ClassVar[Settings | None] = None
    """Its known `[target.setting]`; None: it checks them itself."""
    defaults: ClassVar[Mapping[str, Any]] = {}
    """By property: its value unless the user chooses another."""
    protocols: Collection[str] = ()
    """The protocols that `target.protocol` selects from; empty: it has one."""
    refused: ClassVar[Mapping[str, Sequence[str]]] = {}
    """By reason: the fields of TargetOptions that it does not have."""
    allocators: ClassVar[tuple[Allocator, ...]] = ("default", "pooled", "unpooled")
    """The allocators of Netty that it can have, unless it refuses to choose."""

    @property
    def thread_roles(self) -> ThreadRoles:
        """Return the roles of its threads."""
        return ThreadRoles()

    @property
    def network(self) -> tuple[str, ...]:
        """Return the packages of its network layer, for the layers of allocations."""
        return NETWORK_PACKAGES

    @property
    def settle_s(self) -> float:
        """Return the maximum time after the load until it counts all acknowledged documents."""
        return 0

    @property
    def versions(self) -> Mapping[str, Requirements]:
        """Return the requirements of each version."""

    def list_releases(self) -> Iterable[str]:
        """Return all versions that it can start, in any order; RunFailed if a repository does not list them."""
        return self.versions

    def choose_version(self, options: TargetOptions) -> str:
        """Return the chosen version or the default; SpecError with a suggestion if there is no such version."""
        chosen = options.version or self.default_version
        check_name(chosen, self.versions, f'target.version: {self.name} has no "{chosen}" ({OTHER_SERVERS})')
        return chosen

    def requirements(self, options: TargetOptions) -> Requirements:
        """Return what the chosen version needs; SpecError for options that it cannot have. Start nothing."""
        requirements = self.start_requirements(options)
        collector_options(options.gc, requirements.java_version)
        for reason, fields in self.refused.items():
            refuse_options(options, fields, reason)
        if options.allocator not in self.allocators:
            names = " and ".join(self.allocators)
            raise SpecError(f'target.allocator: {self.name} has no "{options.allocator}", only {names}')
        self.read_properties(options)
        return requirements

    def start_requirements(self, options: TargetOptions) -> Requirements:
        """Return what the chosen version needs, whatever else is chosen."""
        return self.versions[self.choose_version(options)]

    def read_properties(self, options: TargetOptions) -> dict[str, Any]:
        """Return the properties that the options choose; SpecError for an unknown setting or an invalid value."""
        return {} if self.settings is None else parse_settings(self.name, self.settings, options)

    def complete_properties(self, options: TargetOptions) -> dict[str, Any]:
        """Return the properties of `defaults`, as chosen."""
        values = self.read_properties(options)
        return {name: values.get(name, default) for name, default in self.defaults.items()}

    def launch_plan(self, node: NodeStart) -> LaunchPlan:
        """Return how to start a node, whose home is made here. Fetch what the cache lacks."""

    def listens(self, options: TargetOptions) -> ListenOptions:
        """Return its port and the time limit until it is ready."""
        return ListenOptions()

    def is_ready(self, node: int, nodes: Sequence[Http]) -> bool:
        """Return True if the node accepts requests and has found the others; RunFailed says why it is not ready.

        NoResponse if it does not respond at all.
        """

    def wire(self, options: TargetOptions, workload: Workload) -> ProtocolOptions:
        """Return how it takes the documents of a workload: a protocol of `protocols.PROTOCOLS`, and its keys."""

    def load_address(self, options: TargetOptions, address: ServerAddress) -> ServerAddress:
        """Return the address that documents go to; *address* is that of its other API."""
        return address

    def prepare(self, options: TargetOptions, indices: Sequence[str], mapping: Mapping[str, Any]) -> Preparation:
        """Return the requests that prepare these indices for documents; none if it has no such concept."""
        return Preparation()

    def adapt_track_request(self, options: TargetOptions, operation: Operation, request: AdminRequest) -> AdminRequest:
        """Return a track's request in the form of the chosen version; SpecError for a server without indices."""
        raise SpecError(
            f"load.track: {operation}: {self.name} has no indices; send the track's documents by --documents"
        )

    def execute(self, http: Http, request: AdminRequest) -> None:
        """Send such a request, repeatedly until its condition holds; RunFailed if the server refuses it."""
        http.execute(request)

    def count(self, nodes: Sequence[Http], indices: Sequence[str]) -> int | None:
        """Return the number of documents of all nodes, in these indices if it has any; None if unknown."""

    def read_counters(self, nodes: Sequence[Http]) -> dict[str, Any]:
        """Return what the nodes counted themselves, added up as a table; empty if they do not count."""
        return {}

    def read_delivered(self, nodes: Sequence[Http]) -> tuple[bytes, ...] | None:
        """Return the document numbers of each node, as `analysis.run.delivery` reads them; None: unsupported.

        It is the last request to the nodes.
        """
        return None

    def describe(self, http: Http, options: TargetOptions) -> dict[str, ColumnValue]:
        """Return what a node reports about itself; InvalidRun if that is not as chosen."""


def check_targets(targets: Mapping[str, Target]) -> Iterator[Capability]:
    """Check for each version of each target whether it can start here, and what must be fetched."""
    for name, target in targets.items():
        for version in target.versions:
            # A custom target has no version.
            options = TargetOptions(name=name, version=version or None)
            attempt = functools.partial(_describe_start, target, options)
            yield run_check(f"{name} {version}".rstrip(), attempt)


def _describe_start(target: Target, options: TargetOptions) -> str:
    requirements = target.requirements(options)
    wanted = (*requirements.artifacts, *artifacts.list_jars(requirements.maven))
    missing = [artifact for artifact in wanted if not cache.has(artifact.cache_name)]
    fetched = f"to be fetched: {format_count(len(missing), 'file')}" if missing else "in the cache"
    version, full = requirements.java_version, requirements.full_jdk
    if full or java.find_installed_version(version, full=full) is not None:
        return f"{fetched}; Java {version} at {java.find_java(version, full=full).home}"
    return f"{fetched}; Java {version} from pip" + ("" if java.is_wheel_cached(version) else ", to be fetched")
