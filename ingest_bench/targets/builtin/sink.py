"""Target `sink`, the null target: a Netty server that counts what it reads (jvm/NettySink.java)."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from ingest_bench import units
from ingest_bench.errors import InvalidRun, MissingCapability, SpecError
from ingest_bench.inputs import urls
from ingest_bench.jvm import artifacts
from ingest_bench.jvm.java import ECJ
from ingest_bench.model.load import AdminRequest, Operation, ProtocolOptions, Workload
from ingest_bench.model.target import Preparation, TargetOptions
from ingest_bench.targets.base import Requirements, hash_jars, pinned_jars
from ingest_bench.targets.builtin import launch
from ingest_bench.targets.elastic import index
from ingest_bench.targets.http import Http
from ingest_bench.targets.settings import number_between, one_of
from ingest_bench.units import quote_value

_RELEASE = re.compile(r"(4\.[12]\.[0-9]{1,3})(?:\.Final)?")
# The first releases with counters of the pooled allocator's buffers, and with the adaptive allocator.
_OLDEST, _FIRST_ADAPTIVE = (4, 1, 70), (4, 1, 110)
# Their dependencies are all other jars.
_JARS = ("netty-codec-http", "netty-transport-classes-epoll")
# The classifier of the library, by the machine's name in uname.
_EPOLL = {"x86_64": "linux-x86_64", "aarch64": "linux-aarch_64"}
# The times and shares inject faults, for tests of ingest-bench.
_TIMES = ("delay", "stall", "stall_after", "stall_every", "lock", "lock_after", "lock_every")
_SHARES = ("reject", "close", "broken", "silent", "unavailable", "unheard")


class Sink(launch.BuiltIn):
    """The target `sink`."""

    name = prefix = "sink"
    main = "NettySink"
    reported = ("socket_receive_buffer_bytes",)
    default_version = "4.1.115.Final"
    versions: Mapping[str, Requirements] = {
        default_version: Requirements(artifacts=(ECJ, *launch.NETTY), java_version=17)
    }
    other_versions = "any other release of Netty from 4.1.70 on, from Maven"
    allocators = ("default", "pooled", "unpooled", "adaptive")
    settings: ClassVar = {
        "sink.java": ("java", one_of("11", "17", "25")),
        "sink.buffers": ("buffers", one_of("heap", "direct")),
        "sink.transport": ("transport", one_of("nio", "epoll")),
        "sink.threads": ("threads", number_between(1, 256)),
        "sink.hold": ("hold", one_of("true", "false")),
        "sink.max_content_length": ("max_content_length", units.parse_bytes),
        **{f"sink.{name}": (f"{name}_ns", units.parse_time_ns) for name in _TIMES},
        **{f"sink.{name}": (f"{name}_ppm", units.parse_ppm) for name in _SHARES},
    }
    defaults: ClassVar = {"allocator": "unpooled", "buffers": "heap", "transport": "nio", "receive": 1 << 16}

    def list_releases(self) -> list[str]:
        """Return all releases of Netty that it runs on; RunFailed if Maven does not list them."""
        listed = artifacts.list_versions("io.netty", _JARS[0])
        return [version for version in listed if _RELEASE.fullmatch(version) and _number(version) >= _OLDEST]

    def choose_version(self, options: TargetOptions) -> str:
        """Return the chosen release of Netty by its full name; SpecError for one that the sink does not run on."""
        chosen = options.version or self.default_version
        match = _RELEASE.fullmatch(chosen)
        if match is None or _number(chosen) < _OLDEST:
            raise SpecError(
                f"target.version: {quote_value(chosen)} is not a release of Netty that the sink runs on: "
                f"{'.'.join(map(str, _OLDEST))} and later, or 4.2. The setting sink.java chooses the Java"
            )
        return f"{match[1]}.Final"

    def start_requirements(self, options: TargetOptions) -> Requirements:
        """Return the Java and the jars; MissingCapability on a machine that the chosen transport is not built for."""
        version, properties = self.choose_version(options), super().read_properties(options)
        classifier = _find_library() if properties.get("transport") == "epoll" else None
        java_version = int(properties.get("java", 17))
        if version in self.versions:
            libraries = (jar for jar in pinned_jars("netty-epoll") if jar.classifier == classifier)
            return Requirements(artifacts=(ECJ, *launch.NETTY, *libraries), java_version=java_version)
        maven = [f"io.netty:{name}:{version}" for name in _JARS]
        maven += [f"io.netty:netty-transport-native-epoll:{version}:{classifier}"] if classifier else []
        return Requirements(artifacts=(ECJ,), java_version=java_version, maven=tuple(maven))

    def read_properties(self, options: TargetOptions) -> dict[str, Any]:
        """Return its properties; SpecError for an unknown setting, or one that contradicts others."""
        properties = super().read_properties(options)
        properties.pop("java", None)
        if properties.get("transport") == "epoll" and properties.setdefault("buffers", "direct") == "heap":
            raise SpecError(
                "target.setting.sink.buffers: epoll reads into direct buffers only; leave it out, or use nio"
            )
        if options.receive_predictor_bytes:
            # One fixed size, or "4096..524288" for an adaptive buffer.
            properties["receive"] = "..".join(map(str, options.receive_predictor_bytes))
        if options.allocator != "default":
            properties["allocator"] = options.allocator
        version = self.choose_version(options)
        if options.allocator == "adaptive" and _number(version) < _FIRST_ADAPTIVE:
            first = ".".join(map(str, _FIRST_ADAPTIVE))
            raise SpecError(
                f"target.allocator: Netty {version} has no adaptive allocator; {first} is the first with it"
            )
        if options.socket_receive_buffer_bytes is not None:
            properties["rcvbuf"] = options.socket_receive_buffer_bytes
        return properties

    def wire(self, options: TargetOptions, workload: Workload) -> ProtocolOptions:
        """Return the bulk protocol, with a path for each index."""
        return ProtocolOptions(keys={"path": urls.join_path(workload.index, "_bulk")})

    def prepare(self, options: TargetOptions, indices: Sequence[str], mapping: Mapping[str, Any]) -> Preparation:
        """Return requests that create the indices as they are: it accepts any."""
        return index.create_indices(indices, mapping)

    def adapt_track_request(self, options: TargetOptions, operation: Operation, request: AdminRequest) -> AdminRequest:
        """Return the request as it is."""
        return request

    def describe(self, http: Http, options: TargetOptions) -> dict[str, Any]:
        """Return what it reports about itself; InvalidRun if that is not as chosen."""
        description: dict[str, Any] = super().describe(http, options)
        if description["version"] != (version := self.choose_version(options)):
            raise InvalidRun(f"{self.name}: expected Netty {version}; it reports {description['version']}")
        description["receive_predictor"] = description.pop("receive")
        if maven := self.start_requirements(options).maven:
            description["jars"] = hash_jars(maven)
        return description


def _number(version: str) -> tuple[int, ...]:
    """Return the numbers of a release, to compare it."""
    return tuple(map(int, version.removesuffix(".Final").split(".")))


def _find_library() -> str:
    """Return the classifier of Netty's epoll for this machine; MissingCapability if it is not built for it."""
    machine = platform.machine()
    if machine not in _EPOLL:
        raise MissingCapability(
            f"sink.transport: Netty has no epoll for {machine}, only for {', '.join(_EPOLL)}; use nio"
        )
    return _EPOLL[machine]
