"""Versions, launch, counts and checks of all built-in servers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ingest_bench import jvm
from ingest_bench.errors import InvalidRun
from ingest_bench.jvm import artifacts
from ingest_bench.jvm.java import ECJ, compile_classes
from ingest_bench.jvm.options import default_to_g1, uses_collector
from ingest_bench.model.target import LaunchPlan, ThreadRoles
from ingest_bench.targets import counting
from ingest_bench.targets.base import NodeStart, Requirements, Target, build_java_argv, pinned_jars

if TYPE_CHECKING:
    from ingest_bench.jvm.artifacts import Artifact
    from ingest_bench.model.results import ColumnValue
    from ingest_bench.model.target import TargetOptions
    from ingest_bench.targets.http import Http

NETTY = pinned_jars("netty")
_SOURCES = Path(jvm.__file__).parent


def java_versions(*javas: int) -> dict[str, Requirements]:
    """Return the versions of a built-in server: the Javas that it can run on."""
    return {f"java{java}": Requirements(artifacts=(ECJ, *NETTY), java_version=java) for java in javas}


class BuiltIn(Target, Protocol):
    """A built-in server. Its version is the Java that it runs on."""

    default_version: str = "java17"
    main: str
    """Its class; `jvm` has the source."""
    prefix: str
    """Of its system properties."""
    reported: tuple[str, ...] = ()
    """Further keys of its description of itself that become columns."""

    @property
    def thread_roles(self) -> ThreadRoles:
        """Return the roles of the threads: Netty's event loops do all the work of a built-in server."""
        return ThreadRoles(network=("EventLoopGroup-",))

    def flags(self, node: NodeStart) -> tuple[str, ...]:
        """Return the options of the JVM that carry its settings."""

    def native_jars(self, options: TargetOptions) -> tuple[Artifact, ...]:
        """Return jars with a library in C."""
        del options
        return ()

    def expected(self, options: TargetOptions) -> dict[str, Any]:
        """Return the settings that it must report."""

    def launch_plan(self, node: NodeStart) -> LaunchPlan:
        """Return how to start it; its classes are compiled at first use."""
        java, home = node.java, node.home
        jars = tuple(artifacts.fetch(artifact) for artifact in NETTY)
        classes = compile_classes(java, (_SOURCES / f"{self.main}.java", _SOURCES / "Answers.java"), jars)
        libraries = tuple(artifacts.fetch(artifact) for artifact in self.native_jars(node.options))
        home.mkdir(parents=True, exist_ok=True)
        flags = (
            # Netty frees direct buffers by Unsafe; Java 24 and later warn at length about that (JEP 498).
            *(("--sun-misc-unsafe-memory-access=allow",) if java.version >= 24 else ()),
            # The same for a library in C (JEP 472).
            *(("--enable-native-access=ALL-UNNAMED",) if java.version >= 24 and libraries else ()),
            *self.flags(node),
            f"-D{self.prefix}.host={node.listen.host}",
            f"-D{self.prefix}.port={node.listen.port}",
        )
        argv = build_java_argv(node, flags, (classes, *jars, *libraries), self.main)
        return LaunchPlan(argv=argv, env={}, cwd=home, writable=(home,))

    def is_ready(self, node: int, nodes: Sequence[Http]) -> bool:
        """Return True if the node responds. Nodes do not know each other."""
        return nodes[node].request("HEAD", "/", timeout_s=5).status == 200

    def count(self, nodes: Sequence[Http], indices: Sequence[str]) -> int:
        """Return the number of documents that the nodes accepted; the sink counts each id once."""
        del indices
        return sum(counting.request_count(http, "/_count") for http in nodes)

    def read_counters(self, nodes: Sequence[Http]) -> dict[str, Any]:
        """Return the nodes' counters since their start, including this request, added up."""
        return counting.sum_counters(nodes)

    def describe(self, http: Http, options: TargetOptions) -> dict[str, ColumnValue]:
        """Return what it reports about itself; InvalidRun if that is not as chosen."""
        root = http.request_json("GET", "/")
        expected = {key: str(value) for key, value in self.expected(options).items()}
        wrong = {key: root[key] for key, value in expected.items() if str(root[key]) != value}
        gc = default_to_g1(options.gc)
        if wrong or not uses_collector(gc, tuple(root["collectors"])):
            raise InvalidRun(
                f"{self.name}: expected {expected} and gc {gc}; it reports {wrong} and {root['collectors']}"
            )
        return {
            "version": root["version"]["number"],
            "java": root["java"],
            "collectors": ", ".join(root["collectors"]),
            "heap_bytes": root["heap_bytes"],
            **{key: root[key] for key in (*expected, *self.reported)},
        }
