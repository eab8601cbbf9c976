"""Versions, classpath, launch and checks of all built-in servers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingest_bench import jvm
from ingest_bench.errors import InvalidRun
from ingest_bench.jvm import artifacts
from ingest_bench.jvm.java import ECJ, compile_classes
from ingest_bench.jvm.options import collector_options, default_to_g1, heap_options, uses_collector
from ingest_bench.model.target import LaunchPlan
from ingest_bench.targets.base import NodeStart, Requirements, pinned_jars

if TYPE_CHECKING:
    from ingest_bench.jvm.artifacts import Artifact
    from ingest_bench.model.results import ColumnValue
    from ingest_bench.model.target import TargetOptions

NETTY = pinned_jars("netty")
_SOURCES = Path(jvm.__file__).parent


def java_versions(*javas: int) -> dict[str, Requirements]:
    """Return the versions of a built-in server: the Javas that it can run on."""
    return {f"java{java}": Requirements(artifacts=(ECJ, *NETTY), java_version=java) for java in javas}


def plan_launch(
    main: str, node: NodeStart, properties: Iterable[str], *, native: Iterable[Artifact] = ()
) -> LaunchPlan:
    """Return how to start the class `main`, compiled at first use. `native` are jars with a library in C."""
    options, java, home = node.options, node.java, node.home
    jars = tuple(artifacts.fetch(artifact) for artifact in NETTY)
    classes = compile_classes(java, (_SOURCES / f"{main}.java", _SOURCES / "Answers.java"), jars)
    libraries = tuple(artifacts.fetch(artifact) for artifact in native)
    home.mkdir(parents=True, exist_ok=True)
    argv = (
        str(java.java),
        *heap_options(options.heap_bytes),
        *collector_options(default_to_g1(options.gc), java.version),
        # Netty frees direct buffers by Unsafe; Java 24 and later warn at length about that (JEP 498).
        *(("--sun-misc-unsafe-memory-access=allow",) if java.version >= 24 else ()),
        # The same for a library in C (JEP 472).
        *(("--enable-native-access=ALL-UNNAMED",) if java.version >= 24 and libraries else ()),
        f"-Djava.io.tmpdir={home}",
        *properties,
        *options.jvm,
        *node.jvm_options,
        "-cp",
        ":".join(map(str, (classes, *jars, *libraries))),
        main,
    )
    return LaunchPlan(argv=argv, env={}, cwd=home, writable=(home,))


def check_description(
    name: str, root: Mapping[str, Any], expected: Mapping[str, str], options: TargetOptions
) -> dict[str, ColumnValue]:
    """Return what all built-in servers report; InvalidRun if the collector or an expected value differs."""
    wrong = {key: root[key] for key, value in expected.items() if str(root[key]) != value}
    gc = default_to_g1(options.gc)
    if wrong or not uses_collector(gc, tuple(root["collectors"])):
        raise InvalidRun(f"{name}: expected {dict(expected)} and gc {gc}; it reports {wrong} and {root['collectors']}")
    return {
        "version": root["version"]["number"],
        "java": root["java"],
        "collectors": ", ".join(root["collectors"]),
        "heap_bytes": root["heap_bytes"],
    }
