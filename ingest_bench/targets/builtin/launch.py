"""Versions, launch, counts and checks of all built-in servers."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from ingest_bench import jvm
from ingest_bench.errors import InvalidRun, RunFailed
from ingest_bench.jvm import artifacts
from ingest_bench.jvm.java import ECJ, compile_classes
from ingest_bench.jvm.options import default_to_g1, uses_collector
from ingest_bench.model.results import ColumnValue
from ingest_bench.model.target import LaunchPlan, TargetOptions, ThreadRoles
from ingest_bench.targets.base import NodeStart, Requirements, Target, pinned_jars, plan_java
from ingest_bench.targets.http import Http

NETTY = pinned_jars("netty")
_SOURCES = Path(jvm.__file__).parent


def java_versions(*javas: int) -> dict[str, Requirements]:
    """Return the versions of a built-in server: the Javas that it can run on."""
    return {f"java{java}": Requirements(artifacts=(ECJ, *NETTY), java_version=java) for java in javas}


class BuiltIn(Target, Protocol):
    """A built-in server. Its version is the Java that it runs on, except for the sink."""

    default_version: str = "java17"
    main: str
    """Its class; `jvm` has the source."""
    prefix: str
    """Of its system properties."""
    reported: tuple[str, ...] = ()
    """Further keys of its description of itself that become columns, besides `defaults`."""

    @property
    def thread_roles(self) -> ThreadRoles:
        """Return the roles of the threads: Netty's event loops do all the work of a built-in server."""
        return ThreadRoles(network=("EventLoopGroup-",))

    def flags(self, node: NodeStart) -> tuple[str, ...]:
        """Return the options of the JVM that carry its properties."""
        values = {"host": node.listen.host, "port": node.listen.port, **self.read_properties(node.options)}
        return tuple(f"-D{self.prefix}.{name}={value}" for name, value in values.items())

    def launch_plan(self, node: NodeStart) -> LaunchPlan:
        """Return how to start it; its classes are compiled at first use."""
        java, requirements = node.java, self.start_requirements(node.options)
        needed = (*requirements.artifacts, *artifacts.resolve_jars(requirements.maven))
        jars = tuple(artifacts.fetch(artifact) for artifact in needed if artifact != ECJ)
        classes = compile_classes(java, (_SOURCES / f"{self.main}.java", _SOURCES / "Answers.java"), jars)
        has_library = any(artifact.classifier for artifact in needed)
        flags = (
            # Netty frees direct buffers by Unsafe; Java 24 and later warn at length about that (JEP 498).
            *(("--sun-misc-unsafe-memory-access=allow",) if java.version >= 24 else ()),
            # The same for a library in C (JEP 472).
            *(("--enable-native-access=ALL-UNNAMED",) if java.version >= 24 and has_library else ()),
            *self.flags(node),
        )
        return plan_java(node, flags, (classes, *jars), self.main)

    def is_ready(self, node: int, nodes: Sequence[Http]) -> bool:
        """Return True if the node responds. Nodes do not know each other."""
        return nodes[node].request("HEAD", "/", timeout_s=5).status == 200

    def count(self, nodes: Sequence[Http], indices: Sequence[str]) -> int:
        """Return the number of documents that the nodes accepted; the sink counts each id once."""
        return sum(http.request_count("/_count") for http in nodes)

    def read_counters(self, nodes: Sequence[Http]) -> dict[str, Any]:
        """Return the nodes' counters since their start, including this request, added up; RunFailed if they differ."""
        tables = [http.request_json("GET", "/_counters") for http in nodes]
        try:
            return functools.reduce(_add_tables, tables, {})
        except (AttributeError, TypeError, ValueError):
            raise RunFailed(f"{nodes[0].origin}: the counters of its nodes differ in structure: {tables!r}") from None

    def describe(self, http: Http, options: TargetOptions) -> dict[str, ColumnValue]:
        """Return what it reports about itself; InvalidRun if that is not as chosen."""
        root = http.request_json("GET", "/")
        expected = {key: str(value) for key, value in self.complete_properties(options).items()}
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


def _add_tables(table: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Add two tables of counts, which may contain tables of counts."""
    total = dict(table)
    for key, count in other.items():
        total[key] = _add_tables(total.get(key, {}), count) if isinstance(count, dict) else total.get(key, 0) + count
    return total
