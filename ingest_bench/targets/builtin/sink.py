"""Target `sink`, the null target: a Netty server that counts what it reads (jvm/NettySink.java)."""

from __future__ import annotations

import dataclasses
import platform
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ingest_bench import units
from ingest_bench.errors import MissingCapability, SpecError
from ingest_bench.inputs import urls
from ingest_bench.model.load import ProtocolOptions
from ingest_bench.targets.base import NodeStart, Requirements, find_requirements, pinned_jars
from ingest_bench.targets.builtin import launch
from ingest_bench.targets.elastic import index
from ingest_bench.targets.settings import Settings, jvm_properties, number_between, one_of, parse_settings

if TYPE_CHECKING:
    from ingest_bench.jvm.artifacts import Artifact
    from ingest_bench.model.load import AdminRequest, Operation, Workload
    from ingest_bench.model.results import ColumnValue
    from ingest_bench.model.target import Preparation, TargetOptions
    from ingest_bench.targets.http import Http

# By the machine's name in uname.
EPOLL = dict(zip(("x86_64", "aarch64"), pinned_jars("netty-epoll"), strict=True))
_TIMES = ("delay", "stall", "stall_after", "stall_every", "lock", "lock_after", "lock_every")
_SHARES = ("reject", "close", "broken", "silent", "unavailable", "unheard")
# The times and shares inject faults, for tests of ingest-bench.
SETTINGS: Settings = {
    "sink.buffers": ("sink.buffers", one_of("heap", "direct")),
    "sink.transport": ("sink.transport", one_of("nio", "epoll")),
    "sink.threads": ("sink.threads", number_between(1, 256)),
    "sink.hold": ("sink.hold", one_of("true", "false")),
    "sink.max_content_length": ("sink.max_content_length", units.parse_bytes),
    **{f"sink.{name}": (f"sink.{name}_ns", units.parse_time_ns) for name in _TIMES},
    **{f"sink.{name}": (f"sink.{name}_ppm", units.parse_ppm) for name in _SHARES},
}


class Sink(launch.BuiltIn):
    """The target `sink`."""

    name = prefix = "sink"
    main = "NettySink"
    reported = ("socket_receive_buffer_bytes",)
    versions: Mapping[str, Requirements] = launch.java_versions(11, 17, 25)

    def requirements(self, options: TargetOptions) -> Requirements:
        """Return what the chosen version needs; SpecError for options that it cannot have."""
        requirements = find_requirements(self, options)
        sink_properties(options)
        return dataclasses.replace(requirements, artifacts=(*requirements.artifacts, *self.native_jars(options)))

    def flags(self, node: NodeStart) -> tuple[str, ...]:
        """Return the options of the JVM that carry its settings."""
        return jvm_properties(sink_properties(node.options))

    def native_jars(self, options: TargetOptions) -> tuple[Artifact, ...]:
        """Return the library of the chosen transport; MissingCapability on a machine that it is not built for."""
        if options.setting.get("sink.transport") != "epoll":
            return ()
        machine = platform.machine()
        if machine not in EPOLL:
            raise MissingCapability(
                f"sink.transport: Netty has no epoll for {machine}, only for {', '.join(EPOLL)}; use nio"
            )
        return (EPOLL[machine],)

    def wire(self, options: TargetOptions, workload: Workload) -> ProtocolOptions:
        """Return the bulk protocol, with a path for each index."""
        del options
        return ProtocolOptions(keys={"path": urls.join_path(workload.index, "_bulk")})

    def prepare(self, options: TargetOptions, indices: Sequence[str], mapping: Mapping[str, Any]) -> Preparation:
        """Return requests that create the indices as they are: it accepts any."""
        del options
        return index.create_indices(indices, mapping)

    def adapt_track_request(self, options: TargetOptions, operation: Operation, request: AdminRequest) -> AdminRequest:
        """Return the request as it is."""
        del options, operation
        return request

    def expected(self, options: TargetOptions) -> dict[str, Any]:
        """Return the settings that it must report."""
        properties = {"sink.transport": "nio", **sink_properties(options)}
        return {name: properties[f"sink.{name}"] for name in ("allocator", "buffers", "transport", "receive")}

    def describe(self, http: Http, options: TargetOptions) -> dict[str, ColumnValue]:
        """Return what it reports about itself; InvalidRun if that is not as chosen."""
        description = super().describe(http, options)
        description["receive_predictor"] = description.pop("receive")
        return description


def sink_properties(options: TargetOptions) -> dict[str, Any]:
    """Return the sink's settings by system property; SpecError for an unknown one, or one that contradicts others."""
    is_epoll = options.setting.get("sink.transport") == "epoll"
    if is_epoll and options.setting.get("sink.buffers") == "heap":
        raise SpecError("target.setting.sink.buffers: epoll reads into direct buffers only; leave it out, or use nio")
    properties: dict[str, Any] = {
        # One fixed size, or "4096..524288" for an adaptive buffer.
        "sink.receive": "..".join(map(str, options.receive_predictor_bytes or (1 << 16,))),
        "sink.allocator": "unpooled" if options.allocator == "default" else options.allocator,
        "sink.buffers": "direct" if is_epoll else "heap",
    }
    if options.socket_receive_buffer_bytes is not None:
        properties["sink.rcvbuf"] = options.socket_receive_buffer_bytes
    return properties | parse_settings("sink", SETTINGS, options)
