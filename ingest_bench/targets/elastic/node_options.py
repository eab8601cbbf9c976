"""Command line, configuration and settings of an OpenSearch or Elasticsearch node. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from ingest_bench.errors import SpecError
from ingest_bench.jvm.artifacts import Artifact
from ingest_bench.jvm.options import collector_options, heap_options
from ingest_bench.model.load import GRPC
from ingest_bench.model.target import Collector, Endpoint, ServerAddress, TargetOptions
from ingest_bench.targets.base import NodeStart, format_log4j2

# Language analyzers are in a module that is not published as a jar, and that fails on pip's Java.
NO_ANALYZERS: Mapping[str, str | None] = {"english": "standard"}
_RESERVED_SETTINGS = (
    *("path.", "network.", "http.port", "discovery.", "node.name", "cluster.name", "cluster.initial_"),
    # Addresses of a node for others; its threads and buffers are a user's choice.
    *("transport.port", "transport.tcp.port", "transport.host", "transport.bind", "transport.publish"),
    *("transport.profiles", "transport.type", "aux."),
)
# Port between nodes: the first of the servers' default range (9300-9399).
_TRANSPORT_PORT = 9300
# The first of its default range, too (9400-9500).
_GRPC_PORT = 9400

# Elasticsearch 5 does not name its allocator, nor does any node that uses Netty's default; Netty does.
_ALLOCATOR_LOGGING = """\
logger.allocator.name = io.netty.buffer.ByteBufUtil
logger.allocator.level = debug
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A module that an archive leaves out: its jar and the class of its plugin."""

    name: str
    jar: Artifact
    plugin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One version of a server: how it is launched, and how it differs from others."""

    name: Literal["opensearch", "elasticsearch"]
    number: str
    sha256: str
    """Of the archive of its integration tests."""
    leave_out: tuple[str, ...] = ()
    """Folders of the archive that are not unpacked, except those of `keep`."""
    keep: tuple[str, ...] = ()
    java_version: int
    jvm: tuple[str, ...]
    """The options of its own config/jvm.options and start script. {home} and {dist} stand for the two folders."""
    gc: Collector = "g1"
    gc_options: tuple[str, ...] = ()
    """The tuning of that collector in its own files."""
    small_heap_gc_options: tuple[str, ...] | None = None
    """The tuning for a heap below 8 GiB; None: the same."""
    settings: Mapping[str, str] = field(default_factory=dict)
    full_jdk: bool = False
    modules: tuple[Module, ...] = ()
    """Modules that workloads need and the archive leaves out."""
    replaced: Mapping[str, str | None] = field(default_factory=lambda: NO_ANALYZERS)
    """Field types and analyzers that it lacks, and their replacements in a mapping; None: no replacement."""
    before_7: bool = False
    """Documents have a type, and some settings have their old names."""
    has_grpc: bool = False
    """It has the module transport-grpc."""
    launcher: str | None = None
    """A start script that forks the server; None: the JVM is started directly."""

    @property
    def archive(self) -> Artifact:
        """Return its archive."""
        return Artifact(
            group=f"org.{self.name}.distribution.integ-test-zip",
            name=self.name,
            version=self.number,
            packaging="zip",
            sha256=self.sha256,
            leave_out=self.leave_out,
            keep=self.keep,
        )

    @property
    def prefix(self) -> str:
        """Return the prefix of its system properties."""
        return "opensearch" if self.name == "opensearch" else "es"

    def choose_gc(self, options: TargetOptions) -> Collector:
        """Return the chosen collector, or its own."""
        return self.gc if options.gc == "default" else options.gc


def build_argv(version: Version, node: NodeStart, dist: Path) -> tuple[str, ...]:
    """Return the command that starts a node from the distribution in `dist`.

    Java is called directly: the start scripts run up to four more JVMs first, and one of these gets all options and
    would write the recording and the GC log of the server.
    """
    settings = {
        **server_settings(version, node.options),
        **cluster_settings(version, node.number, node.nodes),
        **({"path.conf": node.home / "config"} if version.before_7 else {}),
        "network.host": node.listen.host,
        "http.port": node.listen.port,
        "path.data": node.home / "data",
        "path.logs": node.home / "logs",
    }
    arguments = tuple(f"-E{key}={value}" for key, value in settings.items())
    if version.launcher is not None:
        return (str(dist / version.launcher), *arguments)
    distribution = (
        f"-D{version.prefix}.path.conf={node.home / 'config'}",
        f"-D{version.prefix}.distribution.type=zip",
        f"-D{version.prefix}.bundled_jdk=false",
        *(("-Des.distribution.flavor=default",) if version.name == "elasticsearch" else ()),
    )
    return (
        str(node.java.java),
        *jvm_flags(version, node, dist),
        *node.options.jvm,
        *node.jvm_options,
        f"-D{version.prefix}.path.home={dist}",
        *(() if version.before_7 else distribution),
        "-cp",
        str(dist / "lib" / "*"),
        "org.opensearch.bootstrap.OpenSearch"
        if version.name == "opensearch"
        else "org.elasticsearch.bootstrap.Elasticsearch",
        *arguments,
    )


def build_environment(version: Version, node: NodeStart) -> dict[str, str]:
    """Return the environment of a start script, or what the script would have set for the JVM."""
    if version.launcher is None:
        return {"LIBFFI_TMPDIR": str(node.home / "tmp")}
    return {
        "ES_JAVA_HOME": str(node.java.home),
        "ES_TMPDIR": str(node.home / "tmp"),
        "ES_PATH_CONF": str(node.home / "config"),
        # The launcher is a JVM too, and leaves an empty folder at each start.
        "CLI_JAVA_OPTS": f"-Djava.io.tmpdir={node.home / 'tmp'}",
    }


def config_files(version: Version, node: NodeStart, dist: Path) -> dict[str, str]:
    """Return the files of a node's config folder. Only a launcher reads options from there, not the command line."""
    files = {
        f"{version.name}.yml": "# Everything is on the command line.\n",
        "log4j2.properties": format_log4j2("info", "[%-25c{1.}] %marker") + _ALLOCATOR_LOGGING,
    }
    if version.launcher is not None:
        lines = (*jvm_flags(version, node, dist), *node.options.jvm, *node.jvm_options)
        files["jvm.options"] = "\n".join(lines) + "\n"
    return files


def jvm_flags(version: Version, node: NodeStart, dist: Path) -> tuple[str, ...]:
    """Return the options of the distribution, with heap, collector and allocator as chosen."""
    flags = tuple(flag.format(home=node.home, dist=dist) for flag in version.jvm)
    if not node.java.is_full:
        # pip's runtime lacks this module; without it Lucene uses its scalar code.
        flags = tuple(flag for flag in flags if flag != "--add-modules=jdk.incubator.vector")
    return (
        *flags,
        *heap_options(node.options.heap_bytes),
        f"-XX:MaxDirectMemorySize={node.options.heap_bytes // 2}",
        *gc_flags(version, node.options, node.java.version),
        *allocator_flags(version, node.options),
    )


def gc_flags(version: Version, options: TargetOptions, java_version: int) -> tuple[str, ...]:
    """Return the collector's options, with the distribution's tuning only for its own collector."""
    gc = version.choose_gc(options)
    tuning = version.gc_options
    if version.small_heap_gc_options is not None and options.heap_bytes < 8 << 30:
        tuning = version.small_heap_gc_options
    return (*collector_options(gc, java_version), *(tuning if gc == version.gc else ()))


def allocator_flags(version: Version, options: TargetOptions) -> tuple[str, ...]:
    """Return the system properties that choose Netty's allocator in that version.

    Since 7 the node's own choice is unpooled up to a heap of 1 GiB and pooled above. Its property
    use_unpooled_allocator=false means unpooled too (NettyAllocator.useUnpooled, Elasticsearch 7 to OpenSearch 3), so
    a small heap gets Netty's own pool, with chunks as the node would make them: below half a region of G1.
    """
    if options.allocator == "default":
        return ()
    if version.before_7:
        return (f"-Dio.netty.allocator.type={options.allocator}",)
    if options.allocator == "unpooled":
        return (f"-D{version.prefix}.use_unpooled_allocator=true",)
    if options.heap_bytes > 1 << 30:
        return ()
    max_order = 5 if version.choose_gc(options) == "g1" and version.name == "opensearch" else 7
    return (
        f"-D{version.prefix}.unsafe.use_netty_default_allocator=true",
        "-Dio.netty.allocator.type=pooled",
        f"-Dio.netty.allocator.maxOrder={max_order}",
    )


def server_settings(version: Version, options: TargetOptions) -> dict[str, str]:
    """Return the node's settings from the options; SpecError for what that version cannot do."""
    for key in options.setting:
        if key.startswith(_RESERVED_SETTINGS) and not key.startswith("transport.netty."):
            raise SpecError(f'target.setting: "{key}" is set by ingest-bench; remove it')
    settings = {
        "cluster.name": "ingest-bench",
        # A full disk would stop writes in the middle of a run.
        "cluster.routing.allocation.disk.threshold_enabled": "false",
        **version.settings,
    }
    if options.protocol == GRPC:
        if not version.has_grpc:
            raise SpecError(f"target.protocol: {version.name} {version.number} has no gRPC; opensearch 3.8.0 has")
        settings["aux.transport.types"] = "transport-grpc"
        settings["aux.transport.transport-grpc.port"] = str(_GRPC_PORT)
    sizes_bytes = options.receive_predictor_bytes
    if len(sizes_bytes) == 2 and not version.before_7:
        raise SpecError(
            "target.receive_predictor: a range (adaptive buffer) requires Elasticsearch 5.6 or the sink; later "
            "versions have one fixed size"
        )
    for name, size_bytes in zip(("min", "max") if len(sizes_bytes) == 2 else ("size",), sizes_bytes, strict=False):
        settings[f"http.netty.receive_predictor_{name}"] = f"{size_bytes}b"
    if options.socket_receive_buffer_bytes is not None:
        settings["http.tcp.receive_buffer_size"] = f"{options.socket_receive_buffer_bytes}b"
    return settings | options.setting


def at_grpc_port(address: ServerAddress) -> ServerAddress:
    """Return the address with the port of gRPC, for all nodes."""
    return replace(
        address,
        endpoint=replace(address.endpoint, port=_GRPC_PORT),
        other_addresses=tuple(map(at_grpc_port, address.other_addresses)),
    )


def node_name(node: int) -> str:
    """Return the name of a node in its cluster."""
    return f"node-{node + 1}"


def cluster_settings(version: Version, node: int, nodes: Sequence[Endpoint]) -> dict[str, str]:
    """Return the settings of a node's name and of how it finds the others."""
    transport = "transport.tcp.port" if version.before_7 else "transport.port"
    own = {"node.name": node_name(node)}
    if len(nodes) == 1:
        return {**own, "discovery.type": "single-node", transport: "0"}
    own[transport] = str(_TRANSPORT_PORT)
    hosts = ",".join(f"{endpoint.host}:{_TRANSPORT_PORT}" for endpoint in nodes)
    if version.before_7:
        majority = str(len(nodes) // 2 + 1)
        return {**own, "discovery.zen.ping.unicast.hosts": hosts, "discovery.zen.minimum_master_nodes": majority}
    masters = "cluster_manager" if version.name == "opensearch" else "master"
    names = ",".join(node_name(number) for number in range(len(nodes)))
    return {**own, "discovery.seed_hosts": hosts, f"cluster.initial_{masters}_nodes": names}
