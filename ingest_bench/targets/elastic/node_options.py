"""How a node of OpenSearch or Elasticsearch is started, and how its answers are read. All of it is pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from ingest_bench.errors import SpecError
from ingest_bench.jvm import options

if TYPE_CHECKING:
    from pathlib import Path

    from ingest_bench.jvm.artifacts import Artifact
    from ingest_bench.jvm.java import Java
    from ingest_bench.model.server import Collector
    from ingest_bench.model.target import Endpoint, TargetOptions
    from ingest_bench.targets.elastic.modules import Module

# Language analyzers are in a module that is not published as a jar, and that fails on pip's Java.
NO_ANALYZERS: Mapping[str, str | None] = {"english": "standard"}
_OURS = ("path.", "network.", "http.port", "transport.", "discovery.", "node.name", "cluster.name", "cluster.initial_")
# Where nodes speak to each other: the first of the servers' own range (9300-9399).
_TRANSPORT_PORT = 9300

LOGGING = """\
status = error
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = [%d{ISO8601}][%-5p][%-25c{1.}] %marker%m%n
rootLogger.level = info
rootLogger.appenderRef.console.ref = console
# Elasticsearch 5 does not name its allocator, nor does any node that uses Netty's default; Netty does.
logger.allocator.name = io.netty.buffer.ByteBufUtil
logger.allocator.level = debug
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One version of a server: how it is launched, and where it differs."""

    archive: Artifact
    java_version: int
    family: Literal["opensearch", "es"]
    """The prefix of its system properties."""
    main: str
    jvm: tuple[str, ...]
    """The options of its own config/jvm.options and start script. {home} and {dist} stand for the two folders."""
    gc: Collector = "g1"
    gc_options: tuple[str, ...] = ()
    """Tuning that its own files give to that collector."""
    small_heap_gc_options: tuple[str, ...] | None = None
    """The same for a heap below 8 GiB, where that is another one."""
    settings: tuple[tuple[str, str], ...] = ()
    full_jdk: bool = False
    modules: tuple[Module, ...] = ()
    """What the workloads need and the archive leaves out."""
    replaced: Mapping[str, str | None] = field(default_factory=lambda: NO_ANALYZERS)
    """Field types and analyzers that it has not, and what a mapping gets in their place; None: nothing will do."""
    before_7: bool = False
    """Documents have a type, and some settings have their old names."""
    launcher: str | None = None
    """A start script that forks the server; None: the JVM is started directly."""


def argv(
    version: Version,
    asked: TargetOptions,
    java: Java,
    home: Path,
    dist: Path,
    node: int,
    nodes: Sequence[Endpoint],
    jvm_options: tuple[str, ...],
) -> tuple[str, ...]:
    """The command that starts the node of that place.

    The start scripts run up to four more JVMs before it, so Java is called here. One of those four starts with all
    options, so that it would write the recording and the GC log of the next.
    """
    given = (*settings(version, asked), *cluster(version, node, nodes), *address(version, nodes[node], home))
    arguments = tuple(f"-E{key}={value}" for key, value in given)
    if version.launcher is not None:
        return (str(dist / version.launcher), *arguments)
    return (
        str(java.java),
        *jvm_flags(version, asked, java, home, dist),
        *asked.jvm,
        *jvm_options,
        f"-D{version.family}.path.home={dist}",
        *(() if version.before_7 else _kind(version, home)),
        "-cp",
        str(dist / "lib" / "*"),
        version.main,
        *arguments,
    )


def _kind(version: Version, home: Path) -> tuple[str, ...]:
    return (
        f"-D{version.family}.path.conf={home / 'config'}",
        f"-D{version.family}.distribution.type=zip",
        f"-D{version.family}.bundled_jdk=false",
        *(("-Des.distribution.flavor=default",) if version.family == "es" else ()),
    )


def env(version: Version, java: Java, home: Path) -> dict[str, str]:
    """What a start script is told, or what the script would have told the JVM."""
    if version.launcher is None:
        return {"LIBFFI_TMPDIR": str(home / "tmp")}
    return {
        "ES_JAVA_HOME": str(java.home),
        "ES_TMPDIR": str(home / "tmp"),
        "ES_PATH_CONF": str(home / "config"),
        # The launcher is a JVM too, and leaves an empty folder at each start.
        "CLI_JAVA_OPTS": f"-Djava.io.tmpdir={home / 'tmp'}",
    }


def config_files(
    name: str,
    version: Version,
    asked: TargetOptions,
    java: Java,
    home: Path,
    dist: Path,
    jvm_options: tuple[str, ...],
) -> dict[str, str]:
    """The files of a node's config folder. What was asked is on the command line, where a launcher does not read it."""
    files = {
        ("opensearch" if name == "opensearch" else "elasticsearch") + ".yml": "# Everything is on the command line.\n",
        "log4j2.properties": LOGGING,
    }
    if version.launcher is not None:
        lines = (*jvm_flags(version, asked, java, home, dist), *asked.jvm, *jvm_options)
        files["jvm.options"] = "\n".join(lines) + "\n"
    return files


def jvm_flags(version: Version, asked: TargetOptions, java: Java, home: Path, dist: Path) -> tuple[str, ...]:
    """The JVM's own options: those of the distribution, with heap, collector and allocator as asked."""
    own = tuple(flag.format(home=home, dist=dist) for flag in version.jvm)
    if not java.is_full:
        # pip's runtime has no such module, and without it Lucene takes its scalar code.
        own = tuple(flag for flag in own if flag != "--add-modules=jdk.incubator.vector")
    return (
        *own,
        *options.heap(asked.heap_bytes),
        f"-XX:MaxDirectMemorySize={asked.heap_bytes // 2}",
        *gc_flags(version, asked, java.version),
        *allocator_flags(version, asked),
    )


def gc_flags(version: Version, asked: TargetOptions, java_version: int) -> tuple[str, ...]:
    """The collector's options: the distribution's tuning only where its own collector is used."""
    gc = version.gc if asked.gc == "default" else asked.gc
    tuning = version.gc_options
    if version.small_heap_gc_options is not None and asked.heap_bytes < 8 << 30:
        tuning = version.small_heap_gc_options
    return (*options.collector(gc, java_version), *(tuning if gc == version.gc else ()))


def allocator_flags(version: Version, asked: TargetOptions) -> tuple[str, ...]:
    """The system properties that choose Netty's allocator in that version.

    Since 7 the node's own choice is unpooled up to a heap of 1 GiB and pooled above. Its property
    use_unpooled_allocator=false means unpooled too (NettyAllocator.useUnpooled, Elasticsearch 7 to OpenSearch 3), so
    a small heap gets Netty's own pool, with chunks as the node would make them: below half a region of G1.
    """
    if asked.allocator == "default":
        return ()
    if version.before_7:
        return (f"-Dio.netty.allocator.type={asked.allocator}",)
    if asked.allocator == "unpooled":
        return (f"-D{version.family}.use_unpooled_allocator=true",)
    if asked.heap_bytes > 1 << 30:
        return ()
    gc = version.gc if asked.gc == "default" else asked.gc
    max_order = 5 if gc == "g1" and version.family == "opensearch" else 7
    return (
        f"-D{version.family}.unsafe.use_netty_default_allocator=true",
        "-Dio.netty.allocator.type=pooled",
        f"-Dio.netty.allocator.maxOrder={max_order}",
    )


def settings(version: Version, asked: TargetOptions) -> tuple[tuple[str, str], ...]:
    """The node's settings from what was asked; SpecError for what that version cannot do."""
    for key in asked.setting:
        if key.startswith(_OURS):
            raise SpecError(f'target.setting: "{key}" is set by ingest-bench itself; leave it out')
    given = {
        "cluster.name": "ingest-bench",
        # A full disk would stop the writes in the middle of a run.
        "cluster.routing.allocation.disk.threshold_enabled": "false",
        **dict(version.settings),
        **receive_predictor(version, asked.receive_predictor_bytes),
    }
    if asked.socket_receive_buffer_bytes is not None:
        given["http.tcp.receive_buffer_size"] = f"{asked.socket_receive_buffer_bytes}b"
    return (*(given | asked.setting).items(),)


def receive_predictor(version: Version, sizes_bytes: tuple[int, ...]) -> dict[str, str]:
    """The settings of the buffer that a socket is read into: fixed, or adaptive between two sizes."""
    if len(sizes_bytes) == 2:
        if not version.before_7:
            raise SpecError(
                "target.receive_predictor: a range (an adaptive buffer) is for Elasticsearch 5.6 and the sink; later "
                "versions have one fixed size"
            )
        smallest, largest = sizes_bytes
        return {
            "http.netty.receive_predictor_min": f"{smallest}b",
            "http.netty.receive_predictor_max": f"{largest}b",
        }
    return {"http.netty.receive_predictor_size": f"{sizes_bytes[0]}b"} if sizes_bytes else {}


def name(node: int) -> str:
    """What the node of that place calls itself."""
    return f"node-{node + 1}"


def cluster(version: Version, node: int, nodes: Sequence[Endpoint]) -> tuple[tuple[str, str], ...]:
    """Who it is, and how it finds the others."""
    transport = "transport.tcp.port" if version.before_7 else "transport.port"
    if len(nodes) == 1:
        return (("node.name", name(node)), ("discovery.type", "single-node"), (transport, "0"))
    own = (("node.name", name(node)), (transport, str(_TRANSPORT_PORT)))
    hosts = ",".join(f"{each.host}:{_TRANSPORT_PORT}" for each in nodes)
    if version.before_7:
        majority = str(len(nodes) // 2 + 1)
        return (
            *own,
            ("discovery.zen.ping.unicast.hosts", hosts),
            ("discovery.zen.minimum_master_nodes", majority),
        )
    masters = "cluster_manager" if version.family == "opensearch" else "master"
    first = ",".join(name(place) for place in range(len(nodes)))
    return (*own, ("discovery.seed_hosts", hosts), (f"cluster.initial_{masters}_nodes", first))


def address(version: Version, listen: Endpoint, home: Path) -> tuple[tuple[str, str], ...]:
    """Where it listens, on that address only, and its folders."""
    return (
        *((("path.conf", str(home / "config")),) if version.before_7 else ()),
        ("network.host", listen.host),
        ("http.port", str(listen.port)),
        ("path.data", str(home / "data")),
        ("path.logs", str(home / "logs")),
    )
