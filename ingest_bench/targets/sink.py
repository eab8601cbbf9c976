"""The null member: a small Netty server that counts what it reads and answers at once (jvm/NettySink.java)."""

from __future__ import annotations

import dataclasses
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingest_bench import jvm, units, urls
from ingest_bench.errors import InvalidRun, MissingCapability, SpecError
from ingest_bench.jvm import artifacts, options
from ingest_bench.jvm.artifacts import Artifact
from ingest_bench.jvm.compile import ECJ, classes
from ingest_bench.model.load import Wire
from ingest_bench.model.target import LaunchPlan, Listens
from ingest_bench.targets import counters, index, requests, settings
from ingest_bench.targets.settings import Settings, one_of, whole_number
from ingest_bench.targets.version import Requirements, chosen

if TYPE_CHECKING:
    from ingest_bench.jvm.java import Java
    from ingest_bench.model.results import Value
    from ingest_bench.model.target import Endpoint, Preparation, TargetOptions
    from ingest_bench.model.track import AdminRequest, Operation
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


# Faults are for tests of the tool.
SETTINGS: Settings = {
    "sink.buffers": ("sink.buffers", one_of("heap", "direct")),
    "sink.transport": ("sink.transport", one_of("nio", "epoll")),
    "sink.threads": ("sink.threads", whole_number(1, 256)),
    "sink.hold": ("sink.hold", one_of("true", "false")),
    "sink.max_content_length": ("sink.max_content_length", units.parse_bytes),
    "sink.delay": ("sink.delay_ns", units.parse_time_ns),
    "sink.stall": ("sink.stall_ns", units.parse_time_ns),
    "sink.stall_after": ("sink.stall_after_ns", units.parse_time_ns),
    "sink.stall_every": ("sink.stall_every_ns", units.parse_time_ns),
    "sink.reject": ("sink.reject_ppm", units.parse_ppm),
    "sink.close": ("sink.close_ppm", units.parse_ppm),
    "sink.broken": ("sink.broken_ppm", units.parse_ppm),
    "sink.silent": ("sink.silent_ppm", units.parse_ppm),
    "sink.unavailable": ("sink.unavailable_ppm", units.parse_ppm),
    "sink.unheard": ("sink.unheard_ppm", units.parse_ppm),
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
        self,
        asked: TargetOptions,
        java: Java,
        home: Path,
        node: int,
        nodes: Sequence[Endpoint],
        jvm_options: tuple[str, ...],
    ) -> LaunchPlan:
        """How to start it; its classes are compiled when they are not in the cache."""
        jars = tuple(artifacts.fetch(artifact) for artifact in NETTY)
        compiled = classes(java, (SOURCE,), jars)
        jars += tuple(artifacts.fetch(artifact) for artifact in native(asked))
        home.mkdir(parents=True, exist_ok=True)
        gc = options.collector(options.or_g1(asked.gc), java.version)
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
            f"-Dsink.host={nodes[node].host}",
            f"-Dsink.port={nodes[node].port}",
            *asked.jvm,
            *jvm_options,
            "-cp",
            ":".join(map(str, (compiled, *jars))),
            SOURCE.stem,
        )
        return LaunchPlan(argv=argv, env={}, cwd=home, writable=(home,))

    def is_ready(self, node: int, nodes: Sequence[Http]) -> bool:
        """Whether it takes requests; NoAnswer when it does not answer at all. Sinks know nothing of each other."""
        return nodes[node].request("HEAD", "/", timeout_s=5).status == 200

    def listens(self, asked: TargetOptions) -> Listens:
        """On which port it listens, and how long it may take until it is ready."""
        del asked
        return Listens()

    def wire(self, asked: TargetOptions, workload: Workload) -> Wire:
        """Bulks, to a path for each index."""
        del asked
        return Wire(keys={"path": urls.path(workload.index, "_bulk")})

    def prepare(self, asked: TargetOptions, indices: Sequence[str], mapping: Mapping[str, Any]) -> Preparation:
        """These indices are made, as they are: it takes any."""
        del asked
        return index.creation(indices, mapping)

    def track_request(self, asked: TargetOptions, operation: Operation, request: AdminRequest) -> AdminRequest:
        """The same request."""
        del asked, operation
        return request

    def ask(self, http: Http, request: AdminRequest) -> None:
        """Carries out such a request over HTTP."""
        requests.ask(http, request)

    # It keeps nothing.
    flush = None

    def jvm_stats(self, http: Http) -> None:
        """Nothing: it says nothing of its JVM."""
        del http

    def count(self, nodes: Sequence[Http], indices: Sequence[str]) -> int:
        """The documents that it has, in whatever index: what it acknowledged, each id once."""
        del indices
        return counters.documents(nodes)

    def read_back(self, nodes: Sequence[Http]) -> None:
        """Nothing: it keeps ids and no numbers of ours."""
        del nodes

    def describe(self, http: Http, asked: TargetOptions) -> dict[str, Value]:
        """What it says about itself; InvalidRun when that is not what was asked."""
        told = http.expect("GET", "/")
        wanted: dict[str, Any] = {
            "allocator": "unpooled" if asked.allocator == "default" else asked.allocator,
            "buffers": buffers(asked),
            "transport": asked.setting.get("sink.transport", "nio"),
            "receive": receive(asked),
        }
        wrong = {key: told[key] for key, value in wanted.items() if told[key] != value}
        gc = options.or_g1(asked.gc)
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

    def counters(self, nodes: Sequence[Http]) -> dict[str, Any]:
        """Their own counts of their whole lives, this question too: reads, bytes_read, documents …."""
        return counters.added_up(nodes)


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
    return settings.properties(chosen_properties | settings.parsed("sink", SETTINGS, asked))
