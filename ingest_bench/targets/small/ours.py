"""The small servers of ours, in Java on Netty: what they are made of, how they are started, what all of them say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingest_bench import jvm
from ingest_bench.errors import InvalidRun
from ingest_bench.jvm import artifacts, options
from ingest_bench.jvm.artifacts import Artifact
from ingest_bench.jvm.compile import ECJ, classes
from ingest_bench.model.target import LaunchPlan
from ingest_bench.targets.version import Requirements

if TYPE_CHECKING:
    from ingest_bench.jvm.java import Java
    from ingest_bench.model.results import Value
    from ingest_bench.model.target import TargetOptions

_NETTY_VERSION = "4.1.115.Final"
_NETTY_SHA256 = {
    "netty-common": "39f1b5a2aaa4eab5d036dfd0486e35a4276df412e092d36b2d88b494705a134d",
    "netty-buffer": "4a7b331d3770c566ab70eb02a0d1feed63b95cf6e4d68c8fe778c4c9de2d116d",
    "netty-resolver": "7b3455d14f59828765a00573bc3967dc59379e874bd62a67eb1926d6512109d1",
    "netty-transport": "c3d71faaa736ffd2c9260ab0b498024b814c39c7d764bea8113fa98de6e2bdd2",
    "netty-transport-native-unix-common": "4b03e716272657c296b0204b57c140b2b2ca96b1a746c92da41f595892ec6d88",
    "netty-transport-classes-epoll": "40aa67b4463cca0ab346e393c87f6c37e8954d18ec8b78567d95b55aa1f2b3aa",
    "netty-codec": "cd189afb70ec6eacfcdfdd3a5f472b4e705a5c91d5bd3ef0386421f2ae15ec77",
    "netty-codec-http": "e6dbe971c59373bbae9802021c63b9bc1d8800fead382863d67e79e79b023166",
    "netty-handler": "5972028cc863b74927ce0d11fb8d58f65da2560bef5602fe8ce8903bd306ca07",
}
NETTY = tuple(
    Artifact(group="io.netty", name=name, version=_NETTY_VERSION, packaging="jar", sha256=sha256)
    for name, sha256 in _NETTY_SHA256.items()
)
# Netty's transport in C, for each kind of machine that it is built for (by the name that uname gives it).
_EPOLL_SHA256 = {
    "x86_64": ("linux-x86_64", "f0ffa992e676025e2202643b3be490f595c19ca8f91031b7fde502e7874c2b55"),
    "aarch64": ("linux-aarch_64", "82051543cbb328b5b45803229ccddf921f3e1897f9d75358ea76143a65a82e48"),
}
EPOLL: Mapping[str, Artifact] = {
    machine: Artifact(
        group="io.netty",
        name="netty-transport-native-epoll",
        version=_NETTY_VERSION,
        packaging="jar",
        sha256=sha256,
        classifier=classifier,
    )
    for machine, (classifier, sha256) in _EPOLL_SHA256.items()
}
_SOURCES = Path(jvm.__file__).parent
_ANSWERS = _SOURCES / "Answers.java"


def versions(*javas: int) -> dict[str, Requirements]:
    """What each version needs: it is the Java that the server runs on."""
    return {f"java{java}": Requirements(artifacts=(ECJ, *NETTY), java_version=java) for java in javas}


def launch_plan(
    main: str,
    asked: TargetOptions,
    java: Java,
    home: Path,
    jvm_options: Iterable[str],
    *,
    native: Iterable[Artifact] = (),
) -> LaunchPlan:
    """How to start that class, which is compiled when it is not in the cache. `native`: jars with a library in C."""
    jars = tuple(artifacts.fetch(artifact) for artifact in NETTY)
    compiled = classes(java, (_SOURCES / f"{main}.java", _ANSWERS), jars)
    libraries = tuple(artifacts.fetch(artifact) for artifact in native)
    home.mkdir(parents=True, exist_ok=True)
    argv = (
        str(java.java),
        *options.heap(asked.heap_bytes),
        *options.collector(options.or_g1(asked.gc), java.version),
        # Netty frees buffers off the heap with it; from Java 24 on that is announced at length (JEP 498).
        *(("--sun-misc-unsafe-memory-access=allow",) if java.version >= 24 else ()),
        # And a library in C, by the same Java (JEP 472).
        *(("--enable-native-access=ALL-UNNAMED",) if java.version >= 24 and libraries else ()),
        f"-Djava.io.tmpdir={home}",
        *jvm_options,
        "-cp",
        ":".join(map(str, (compiled, *jars, *libraries))),
        main,
    )
    return LaunchPlan(argv=argv, env={}, cwd=home, writable=(home,))


def described(name: str, told: Mapping[str, Any], wanted: Mapping[str, str], asked: TargetOptions) -> dict[str, Value]:
    """What all of them say of themselves; InvalidRun when that, or what else was `wanted`, is not what was asked."""
    wrong = {key: told[key] for key, value in wanted.items() if str(told[key]) != value}
    gc = options.or_g1(asked.gc)
    if wrong or not options.obeyed(gc, tuple(told["collectors"])):
        raise InvalidRun(f"{name}: asked for {dict(wanted)} and gc {gc}, it says {wrong} and {told['collectors']}")
    return {
        "version": told["version"]["number"],
        "java": told["java"],
        "collectors": ", ".join(told["collectors"]),
        "heap_bytes": told["heap_bytes"],
    }
