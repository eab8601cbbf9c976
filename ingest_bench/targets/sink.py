"""The null member: a small Netty server that counts what it reads and answers at once (jvm/NettySink.java)."""

from __future__ import annotations

import dataclasses
import platform
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingest_bench import jvm, records, units, urls
from ingest_bench.errors import InvalidRun, MissingCapability, RunFailed, SpecError
from ingest_bench.jvm import artifacts, options
from ingest_bench.jvm.artifacts import Artifact
from ingest_bench.jvm.compile import ECJ, classes
from ingest_bench.model.target import LaunchPlan
from ingest_bench.targets.version import Requirements, chosen
from ingest_bench.units import quoted

if TYPE_CHECKING:
    from ingest_bench.jvm.java import Java
    from ingest_bench.model.results import Value
    from ingest_bench.model.target import Endpoint, TargetOptions
    from ingest_bench.model.workload import Workload
    from ingest_bench.targets.http import Http

SOURCE = Path(jvm.__file__).with_name("NettySink.java")
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


def _threads(text: str) -> int:
    if re.fullmatch("[0-9]{1,3}", text) is None or not 1 <= int(text) <= 256:
        raise ValueError(f"{quoted(text)} is not between 1 and 256")
    return int(text)


def _one_of(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in words:
            raise ValueError(f"{text!r} is not one of {', '.join(words)}")
        return text

    return parse


# A setting, the system property that carries it to Java, and how its text is read. Faults are for tests of the tool.
SETTINGS: Mapping[str, tuple[str, Callable[[str], int | str]]] = {
    "sink.buffers": ("sink.buffers", _one_of("heap", "direct")),
    "sink.transport": ("sink.transport", _one_of("nio", "epoll")),
    "sink.threads": ("sink.threads", _threads),
    "sink.hold": ("sink.hold", _one_of("true", "false")),
    "sink.max_content_length": ("sink.max_content_length", units.parse_bytes),
    "sink.delay": ("sink.delay_ns", units.parse_time_ns),
    "sink.stall": ("sink.stall_ns", units.parse_time_ns),
    "sink.stall_after": ("sink.stall_after_ns", units.parse_time_ns),
    "sink.stall_every": ("sink.stall_every_ns", units.parse_time_ns),
    "sink.reject": ("sink.reject_ppm", units.parse_ppm),
    "sink.close": ("sink.close_ppm", units.parse_ppm),
    "sink.broken": ("sink.broken_ppm", units.parse_ppm),
    "sink.silent": ("sink.silent_ppm", units.parse_ppm),
}


class Sink:
    """The server `sink`. Its version is the Java that it runs on."""

    name = "sink"
    default_version = "java17"
    versions: Mapping[str, Requirements] = {
        f"java{java}": Requirements(artifacts=(ECJ, *NETTY), java_version=java) for java in (11, 17, 25)
    }

    def requirements(self, asked: TargetOptions) -> Requirements:
        """What the chosen version needs; SpecError when there is no such version or a choice that it cannot have."""
        needed = self.versions[chosen(self.name, self.versions, asked.version, self.default_version)]
        options.collector(asked.gc, needed.java_version)
        properties(asked)
        return dataclasses.replace(needed, artifacts=(*needed.artifacts, *native(asked)))

    def launch_plan(
        self, asked: TargetOptions, java: Java, home: Path, listen: Endpoint, jvm_options: tuple[str, ...]
    ) -> LaunchPlan:
        """How to start it; its classes are compiled when they are not in the cache."""
        jars = tuple(artifacts.fetch(artifact) for artifact in NETTY)
        compiled = classes(java, (SOURCE,), jars)
        jars += tuple(artifacts.fetch(artifact) for artifact in native(asked))
        home.mkdir(parents=True, exist_ok=True)
        gc = options.collector("g1" if asked.gc == "default" else asked.gc, java.version)
        argv = (
            str(java.java),
            *options.heap(asked.heap_bytes),
            *gc,
            # Netty frees buffers off the heap with it; from Java 24 on that is announced at length (JEP 498).
            *(("--sun-misc-unsafe-memory-access=allow",) if java.version >= 24 else ()),
            # And a library in C, by the same Java (JEP 472).
            *(("--enable-native-access=ALL-UNNAMED",) if java.version >= 24 and native(asked) else ()),
            f"-Djava.io.tmpdir={home}",
            *properties(asked),
            f"-Dsink.host={listen.host}",
            f"-Dsink.port={listen.port}",
            *asked.jvm,
            *jvm_options,
            "-cp",
            ":".join(map(str, (compiled, *jars))),
            SOURCE.stem,
        )
        return LaunchPlan(argv=argv, env={}, cwd=home, writable=(home,))

    def is_ready(self, http: Http) -> bool:
        """Whether it takes requests; NoAnswer when it does not answer at all."""
        return http.request("HEAD", "/", timeout_s=5).status == 200

    def index_body(self, asked: TargetOptions, mapping: Mapping[str, Any]) -> dict[str, Any]:
        """The same: it takes any index."""
        del asked
        return dict(mapping)

    def bulk_path(self, asked: TargetOptions, workload: Workload) -> str:
        """Where bulk requests go."""
        del asked
        return urls.path(workload.index, "_bulk")

    def count_documents(self, http: Http, indices: Sequence[str]) -> int:
        """The documents that it acknowledged, in whatever index: it does not read what action lines name."""
        del indices
        return int(http.expect("GET", "/_count")["count"])

    def describe(self, http: Http, asked: TargetOptions, log: Path) -> dict[str, Value]:
        """What it says about itself; InvalidRun when that is not what was asked."""
        del log
        told = http.expect("GET", "/")
        wanted: dict[str, Any] = {
            "allocator": "unpooled" if asked.allocator == "default" else asked.allocator,
            "buffers": buffers(asked),
            "transport": asked.setting.get("sink.transport", "nio"),
            "receive": receive(asked),
        }
        wrong = {key: told[key] for key, value in wanted.items() if told[key] != value}
        gc = "g1" if asked.gc == "default" else asked.gc
        if wrong or not options.obeyed(gc, tuple(told["collectors"])):
            raise InvalidRun(f"sink: asked for {wanted} and gc {gc}, it says {wrong} and {told['collectors']}")
        return {
            "version": told["version"]["number"],
            "java": told["java"],
            "collectors": ", ".join(told["collectors"]),
            "heap_bytes": told["heap_bytes"],
            "allocator": told["allocator"],
            "buffers": told["buffers"],
            "transport": told["transport"],
            "receive_predictor": told["receive"],
            "socket_receive_buffer_bytes": told["socket_receive_buffer_bytes"],
        }

    def counters(self, http: Http) -> dict[str, Any]:
        """Its own counts of its whole life, this question too: reads, bytes_read, documents, buffers_allocated …."""
        counted = http.expect("GET", "/_counters")
        if not isinstance(counted, dict):
            raise RunFailed(f"sink: its counters are no table: {counted!r}")
        return counted


def receive(asked: TargetOptions) -> str:
    """The receive buffer as the sink writes it: "65536", or "4096..524288" for an adaptive one."""
    return "..".join(map(str, asked.receive_predictor_bytes or (1 << 16,)))


def native(asked: TargetOptions) -> tuple[Artifact, ...]:
    """The library of the transport that was asked for; MissingCapability on a machine that it is not built for."""
    if asked.setting.get("sink.transport") != "epoll":
        return ()
    machine = platform.machine()
    if machine not in EPOLL:
        raise MissingCapability(
            f"sink.transport: Netty has no epoll for {machine}, only for {', '.join(EPOLL)}; use nio"
        )
    return (EPOLL[machine],)


def buffers(asked: TargetOptions) -> str:
    """Where it reads into; SpecError for buffers that the transport cannot read into."""
    is_epoll = asked.setting.get("sink.transport") == "epoll"
    chosen_buffers = asked.setting.get("sink.buffers", "direct" if is_epoll else "heap")
    if is_epoll and chosen_buffers == "heap":
        raise SpecError("target.setting.sink.buffers: epoll reads into direct buffers only; leave it out, or use nio")
    return chosen_buffers


def properties(asked: TargetOptions) -> tuple[str, ...]:
    """The system properties that carry the options; SpecError for a setting that the sink does not know."""
    chosen_properties = {
        "sink.receive": receive(asked),
        "sink.allocator": "unpooled" if asked.allocator == "default" else asked.allocator,
        "sink.buffers": buffers(asked),
    }
    if asked.socket_receive_buffer_bytes is not None:
        chosen_properties["sink.rcvbuf"] = str(asked.socket_receive_buffer_bytes)
    for key, text in asked.setting.items():
        if key not in SETTINGS:
            raise SpecError(f'target.setting: sink has no "{key}"; {records.nearest(key, SETTINGS)}')
        name, parse = SETTINGS[key]
        try:
            chosen_properties[name] = str(parse(text))
        except ValueError as error:
            raise SpecError(f"target.setting.{key}: {error}") from None
    return tuple(f"-D{name}={value}" for name, value in chosen_properties.items())
